"""Every scenario of docs/scenarios.md is a test of that name, in each file that the page names."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "scenarios.md"
#: Number, name, words (in some of the tables), files.
ROW = re.compile(r"^\| (\d+) \| `(\w+)` \| (?:[^|]+ \| )?([^|]+) \|$", re.M)
#: Before the program that measures what no test can assert.
FIGURE = "a figure: "


def sections():
    text = PAGE.read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)\n", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("section", sections())
def test_each_is_a_test(section):
    rows = ROW.findall(sections()[section])
    assert len(rows) == len(re.findall(r"^\| \d+ \|", sections()[section], re.M)), "a row is torn"
    numbers = [int(number) for number, _, _ in rows]
    assert numbers == sorted(set(numbers))
    measured = [path.removeprefix(FIGURE) for *_, path in rows if path.startswith(FIGURE)]
    assert all((ROOT / path).exists() for path in measured)
    lost = [
        f"{name} in {path}"
        for _, name, files in rows
        for path in ([] if files.startswith(FIGURE) else files.split(", "))
        if not re.search(rf"^(async )?def test_{name}\(", (ROOT / path).read_text(), re.M)
    ]
    assert lost == []
