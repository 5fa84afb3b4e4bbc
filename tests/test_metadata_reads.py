"""docs/metadata-reads.md names every place that reads metadata, and says why it may be stale."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "metadata-reads.md"
PACKAGES = ("broker", "ledger", "bookie", "joined", "quire")
READS = {"get", "get_many", "exists", "children", "owns"}
#: `store`, `self._store`, `cluster.store`, `context.store` …: what a MetadataStore is called here.
STORES = {"store", "_store"}


def is_read(node):
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    owner = node.func.value
    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    return node.func.attr in READS and name in STORES


def readers():
    """«module.py::Class.function» of each function that reads, at the outermost level."""
    found = set()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            module = path.relative_to(ROOT).as_posix()
            for place, function in functions(ast.parse(path.read_text()), ""):
                if any(is_read(node) for node in ast.walk(function)):
                    found.add(f"{module}::{place}")
    return found


def functions(node, prefix):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child


def listed():
    """The places of the tables' rows, with what the rows say of them."""
    rows = {}
    for line in DOCUMENT.read_text().splitlines():
        if not line.startswith("| `"):
            continue
        places, *words = (cell.strip() for cell in line.strip("|").split(" | "))
        for place in re.findall(r"`([^`]+)`", places):
            assert place not in rows, f"{place} is listed twice"
            rows[place] = words
    return rows


def test_every_reader_is_listed_and_every_listed_one_reads():
    assert sorted(listed()) == sorted(readers())


def test_every_row_says_what_follows_from_the_answer_and_why_it_may_be_stale():
    for place, words in listed().items():
        assert len(words) == 2, place
        assert all(words), place


@pytest.mark.parametrize(
    ("code", "is_one"),
    [
        ("self._store.get(path)", True),
        ("await_(cluster.store.get_many([path]))", True),
        ("store.children(path)", True),
        ("context.store.owns(path)", True),
        ("self._store.sync(path)", False),
        ("self._store.put(path, b'', 0)", False),
        ("values.get(name)", False),
        ("self._topics.get(name)", False),
    ],
)
def test_what_counts_as_a_read(code, is_one):
    assert any(map(is_read, ast.walk(ast.parse(code)))) == is_one


def test_no_store_goes_by_another_name():
    """A parameter or attribute of type MetadataStore is called `store` or `_store`, else the reads
    of it are not seen here."""
    others = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                annotation = getattr(node, "annotation", None)
                if annotation is None or "MetadataStore" not in ast.unparse(annotation):
                    continue
                target = getattr(node, "target", None)
                name = node.arg if isinstance(node, ast.arg) else getattr(target, "id", None)
                if name not in STORES:
                    others.add((path.relative_to(ROOT).as_posix(), name))
    assert others == set()
