"""A running server's way of a produce and of a fetch is the one that docs/architecture.md tells."""

import re

import pytest
import trio

from checks import walks
from checks.walks import ROOT, Walk

PAGE = ROOT / "docs" / "architecture.md"
STEP = re.compile(r"^\d+\. (.*?)(?=^\d+\. |\n\n|\Z)", re.M | re.S)
PATH = re.compile(r"(?<![\w/])((?:\w+/)+\w+\.py)")


def told(title):
    """The first file that each numbered step of a section names."""
    section = PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    named = [PATH.search(step) for step in STEP.findall(section)]
    assert len(named) >= 7
    assert all(named), "a step that names no file"
    return [each.group(1) for each in named]


def out_of_order(files, hops):
    """Of `files` the first that `hops` does not have behind the ones before it; None if all are."""
    rest = iter(hops)
    return next((file for file in files if file not in rest), None)


@pytest.fixture(scope="module")
def walked():
    return {walk.name: walk for walk in trio.run(walks.walks)}


@pytest.mark.parametrize(
    ("title", "name"), [("One produce", "a produce"), ("One fetch", "a fetch")]
)
def test_the_page_tells_the_way_that_is_walked(walked, title, name):
    assert out_of_order(told(title), walked[name].hops) is None


def test_no_walk_climbs_into_the_command_line(walked):
    assert not [hop for walk in walked.values() for hop in walk.hops if hop.startswith("quire/")]


def test_a_way_in_another_order_is_seen():
    assert out_of_order(["a", "c"], ["a", "b", "c"]) is None
    assert out_of_order(["c", "a"], ["a", "b", "c"]) == "a"
    assert out_of_order(["a", "d"], ["a", "b", "c"]) == "d"


def test_figures_of_a_walk():
    walk = Walk("w", ["broker/a.py", "bookie/b.py", "broker/a.py", "bookie/c.py", "broker/a.py"])
    assert walk.files == ["broker/a.py", "bookie/b.py", "bookie/c.py"]
    assert walk.rooms == ["broker", "bookie"]
    assert walk.within("part", "bookie").hops == ["bookie/b.py", "bookie/c.py"]
