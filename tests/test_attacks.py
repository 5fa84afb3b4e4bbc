"""Every attack of docs/security.md has tests, and they are there under the names that it says; and
where it tells rights beside Kafka's, they are those that are compared."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "security.md"
ATTACKS = 74
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.M)
TEST = re.compile(r"(\S+\.py) `(\w+)`")
#: In a test's docstring, comment or name.
CITED = re.compile(r"[Aa]ttacks? (\d+)(?: and (\d+))?|^(?:async )?def test_attack_(\d+)_", re.M)


def rows():
    text = PAGE.read_text(encoding="utf-8")
    return {int(number): TEST.findall(tests) for number, _, _, tests in ROW.findall(text)}


def test_each_attack_has_a_row():
    assert sorted(rows()) == list(range(1, ATTACKS + 1))


@pytest.mark.parametrize("number", range(1, ATTACKS + 1))
def test_its_tests_are_there(number):
    tests = rows()[number]
    assert tests, "nobody shows what it meets"
    lost = [
        f"{name} in {path}"
        for path, name in tests
        if not (ROOT / path).exists()
        or not re.search(rf"^(async )?def test_{name}\(", (ROOT / path).read_text(), re.M)
    ]
    assert lost == []


def test_a_test_that_cites_an_attack_cites_one_that_there_is():
    cited = {
        int(number)
        for folder in ("tests", "compat_tests")
        for path in (ROOT / folder).rglob("test_*.py")
        for match in CITED.findall(path.read_text(encoding="utf-8"))
        for number in match
        if number
    }
    assert cited <= set(rows())
    assert len(cited) > ATTACKS / 2


def test_rights_that_differ_from_kafkas_are_those_that_are_compared():
    folder = ROOT / "compat_tests"
    kafkas, different = (
        json.loads((folder / name).read_text(encoding="utf-8"))
        for name in ("control_rights.json", "different_rights.json")
    )
    wanted = [
        f"| {case} | {', '.join(kafkas[case])} | {', '.join(ours)} | {why} |"
        for case, (ours, why) in different.items()
    ]
    text = PAGE.read_text(encoding="utf-8")
    section = re.search(r"^## Rights beside Kafka\n(.*?)^## ", text, re.S | re.M)[1]
    assert re.findall(r"^\| [A-Z_]+ (?:nobody|admin) .*$", section, re.M) == wanted
    assert f"Of {len(kafkas)} cases these {len(different)} have" in " ".join(section.split())
