"""A turn that is too long is measured again, and nothing else is run twice."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests import turns
from tests.turns import PIECES, TurnTooLongError, about_equal, check_turn

ROOT = Path(__file__).parent.parent
TESTS = """
import time

import pytest
import trio
from tests.turns import check_turn

runs = {}

def runs_of(name):
    runs[name] = runs.get(name, 0) + 1
    print(f"ran {name}")
    return runs[name]

@pytest.fixture
async def at_the_end():
    yield
    check_turn(1.0 / runs_of("fixture"), 0.9, "in a fixture")

@pytest.fixture
async def fails_otherwise():
    yield
    raise ValueError("otherwise")

@MARK
@pytest.mark.trio
async def test_once(at_the_end):
    async with trio.open_nursery():
        check_turn(0.001, 0.9)

@MARK
@pytest.mark.trio
async def test_nested():
    async with trio.open_nursery():
        check_turn(1.0 / runs_of("nested"), 0.9)

@MARK
def test_always():
    check_turn(runs_of("always"), 0.9, "what is ours")

@MARK
def test_another_failure():
    assert runs_of("another") > 1

@MARK
@pytest.mark.trio
async def test_both(fails_otherwise):
    runs_of("both")
    check_turn(1.0, 0.9)

@MARK
def test_what_a_finally_took_the_place_of():
    try:
        assert runs_of("hidden") > 1
    finally:
        check_turn(1.0, 0.9)

@pytest.fixture
def too_late():
    yield
    check_turn(1.0 / runs["body"], 0.9)

@MARK
def test_a_phase_that_fails_otherwise(too_late):
    assert runs_of("body") > 1

@MARK
@pytest.mark.timeout(1)
def test_the_second_run_has_its_time(clock=time):
    if runs_of("timed") > 1:
        clock.sleep(5)
    check_turn(1.0 / runs["timed"], 0.9)

@pytest.fixture(scope="module")
def shared():
    runs_of("shared")

@MARK
def test_shared_by_one(shared):
    check_turn(1.0 / runs_of("one"), 0.9)

@MARK
def test_shared_by_the_next(shared):
    assert runs["shared"] == 1

def test_without_the_mark():
    check_turn(1.0 / runs_of("unmarked"), 0.9)
"""


def test_what_is_too_long_is_measured_once_more(tmp_path):
    text = TESTS.replace("MARK", "pytest.mark.{}".format("turns"))  # or it were one itself
    (tmp_path / "test_them.py").write_text(text, encoding="utf-8")
    words = (
        "import tests.turns\n"
        "tests.turns.wait_until_steady = lambda: print('ran waited')\n"
        "from tests.turns import pytest_runtest_makereport, pytest_runtest_protocol\n"
    )
    (tmp_path / "conftest.py").write_text(words, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = turns\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", str(tmp_path)]
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"}
    environment["COLUMNS"] = "200"  # or words are cut
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=60, cwd=tmp_path
    )
    ran = [line.split()[-1] for line in done.stdout.splitlines() if "ran " in line]
    counts = {name: ran.count(name) for name in ran}
    assert counts == {
        "fixture": 2, "nested": 2, "always": 2, "another": 1, "both": 1, "unmarked": 1,
        "hidden": 1, "body": 1, "timed": 2, "shared": 1, "one": 2,
        "waited": 5,
    }, done.stdout  # fmt: skip
    first = ran.index("always")
    assert ran[first : first + 3] == ["always", "waited", "always"]
    failed = {
        line.split("::")[1].split()[0]
        for line in done.stdout.splitlines()
        if line.startswith(("FAILED", "ERROR"))
    }
    assert failed == {
        "test_always", "test_another_failure", "test_both", "test_without_the_mark",
        "test_what_a_finally_took_the_place_of", "test_a_phase_that_fails_otherwise",
        "test_the_second_run_has_its_time",
    }, done.stdout  # fmt: skip
    again = "measured again: test_them.py::test_always: what is ours: 1000.0 ms, 900 may"
    assert again in done.stdout
    assert "TurnTooLongError: what is ours: 2000.0 ms, 900 may" in done.stdout


@pytest.mark.parametrize("seconds", [1.0, math.nan])
def test_a_bound_is_not_reached(seconds):
    with pytest.raises(TurnTooLongError):
        check_turn(seconds, 1.0)


@pytest.mark.parametrize(
    ("longest", "steady"), [(0.9, True), (3.9, True), (4.0, False), (9.0, False)]
)
def test_one_long_piece_tells(longest, steady):
    assert about_equal([*[1.0] * (PIECES - 1), longest]) is steady


@pytest.mark.parametrize(("answers", "waited", "slept"), [([0, 0, 1], 60, 2), ([0], 0, 0)])
def test_a_steady_machine_is_waited_for(monkeypatch, answers, waited, slept):
    pauses = []
    monkeypatch.setattr(turns, "is_steady", lambda: bool(answers.pop(0)))
    monkeypatch.setattr(turns, "WAIT_SECONDS", waited)
    monkeypatch.setattr(turns.time, "sleep", pauses.append)
    turns.wait_until_steady()
    assert not answers
    assert len(pauses) == slept
