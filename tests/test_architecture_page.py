"""docs/architecture.md leads to the code: its paths exist, and its ten questions are answered.

The paths of docs/invariants.md and docs/features.md exist, too."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
LINE_LENGTH_MAX = 120

ROOMS = (
    "wire|runtime|metadata|bookie|ledger|joined|broker|quire|sim|checks|tests|compat_tests|bench"
)
#: `bookie/adds.py` and `ledger/network/`, not `/quire/brokers/<id>` of the metadata's tree.
PATH = re.compile(
    rf"(?<![\w/.<:-])((?:{ROOMS}|spark_examples|bank_example)/[\w./]*\w/?|\w+\.(?:py|md))"
)
QUESTION = re.compile(r"^\| (.+?) \| \[(.+?)\]\(#([\w-]+)\) \| (\S+\.py) `(\w+)` \|$", re.M)
#: The first row of each of the ten; a row that goes on with the same question begins with «…».
TOPICS = (
    "bookie fence",
    "`max_bytes`",
    "journal record",
    "duplicate",
    "rebalance timer",
    "ensemble change",
    "retention",
    "dump",
    "setting",
    "fetch that waits",
)


def text():
    return PAGE.read_text(encoding="utf-8")


def paths_in(part):
    return set(PATH.findall(part))


def sections():
    """Anchor -> a section's text, up to the next heading of its level."""
    parts = re.split(r"^## (.+)\n", text(), flags=re.M)[1:]
    titles, bodies = parts[::2], parts[1::2]
    anchors = [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]
    return dict(zip(anchors, bodies, strict=True))


def questions():
    return QUESTION.findall(text())


def defined_in(path):
    """Names that a module binds, at its top level or in its classes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    found = set()
    for node in (node for body in bodies for node in body):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
    return found


@pytest.mark.parametrize("page", ["architecture", "invariants", "features"])
def test_every_path_exists(page):
    found = paths_in((PAGE.parent / f"{page}.md").read_text(encoding="utf-8"))
    assert len(found) > 20
    folders = (ROOT, PAGE.parent)
    assert sorted(p for p in found if not any((each / p).exists() for each in folders)) == []


def test_ten_questions_are_asked():
    asked = [question for question, *_ in questions() if not question.startswith("…")]
    assert len(asked) == len(TOPICS)
    for question, topic in zip(asked, TOPICS, strict=True):
        assert topic in question
    table = sections()["ten-questions"]
    assert len(questions()) == sum(line.startswith("| ") for line in table.splitlines()) - 1


@pytest.mark.parametrize("row", questions(), ids=lambda row: f"{row[3]}-{row[4]}")
def test_a_question_is_two_hops_from_its_answer(row):
    """The first hop is a section that names the file, or its folder; the second is the file."""
    _, title, anchor, path, name = row
    section = sections()[anchor]
    assert f"\n## {title}\n" in text()
    assert paths_in(section) & {path, f"{Path(path).parent.as_posix()}/"}
    assert name in defined_in(ROOT / path)


@pytest.mark.parametrize("page", ["architecture", "invariants", "features"])
def test_prose_is_narrow(page):
    """Rows of tables cannot be wrapped; all other lines can."""
    lines = (PAGE.parent / f"{page}.md").read_text(encoding="utf-8").splitlines()
    long = [
        f"{number}: {len(line)}"
        for number, line in enumerate(lines, 1)
        if len(line) > LINE_LENGTH_MAX and not line.startswith("|")
    ]
    assert long == []
