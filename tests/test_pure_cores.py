"""The contract of the cores covers all there are, and breaks for a new one that is not pure."""

import tomllib
from pathlib import Path

import grimp
import pytest

from tests.pure_cores import PureCores, cores

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "importlinter"
]
(OPTIONS,) = [one for one in PROJECT["contracts"] if one["type"] == "pure_cores"]


@pytest.fixture
def graph():
    """Of a house with one core, which is pure: it asks a room that asks nobody."""
    graph = grimp.ImportGraph()
    for name in ("room", "room.a_core", "room.rules", "metadata", "metadata.store"):
        graph.add_module(name)
    for name in ("trio", "time"):
        graph.add_module(name, is_squashed=True)
    graph.add_import(importer="room.a_core", imported="room.rules")
    return graph


def is_kept(graph):
    contract = PureCores("cores", {}, {**OPTIONS, "ignore_imports": []})
    return contract.check(graph, verbose=False).kept


def test_it_is_checked():
    assert PROJECT["contract_types"] == ["pure_cores: tests.pure_cores.PureCores"]


def test_a_pure_core_keeps_it(graph):
    graph.add_import(importer="room", imported="trio")  # others may
    assert is_kept(graph)


@pytest.mark.parametrize("banned", ["trio", "time", "metadata.store"])
def test_a_new_core_is_held_to_it_by_its_name(graph, banned):
    graph.add_module("room.deeper")
    graph.add_module("room.deeper.new_core")
    graph.add_import(importer="room.deeper.new_core", imported=banned)
    assert not is_kept(graph)


def test_the_way_round_through_others_counts(graph):
    graph.add_import(importer="room.rules", imported="time")
    assert not is_kept(graph)


def test_what_is_ignored_must_be_there(graph):
    graph.add_module("runtime.logs")
    contract = PureCores("cores", {}, OPTIONS)
    with pytest.raises(ValueError, match=r"runtime\.logs does not import time"):
        contract.check(graph, verbose=False)


def test_all_files_of_that_name_are_cores():
    files = [
        path.relative_to(ROOT).with_suffix("")
        for room in PROJECT["root_packages"]
        for path in (ROOT / room).rglob("*_core.py")
    ]
    assert len(files) >= 5
    known = grimp.build_graph(*PROJECT["root_packages"], cache_dir=None).modules
    assert {".".join(path.parts) for path in files} <= set(cores(known))
