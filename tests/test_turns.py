"""A turn that is too long is measured again, more often where the machine is not steady.

Nothing else is run twice.
"""

import gc
import itertools
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests import turns
from tests.turns import LOOKS, PIECES, TurnTooLongError, about_equal, check_turn

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


def run_them(tmp_path, was_steady, is_steady):
    """What was run, in order, what failed, and the output."""
    text = TESTS.replace("MARK", "pytest.mark.{}".format("turns"))  # or it were one itself
    (tmp_path / "test_them.py").write_text(text, encoding="utf-8")
    words = (
        "import tests.turns\n"
        f"tests.turns.wait_until_steady = lambda: print('ran waited') or {was_steady}\n"
        f"tests.turns.is_steady = lambda: print('ran looked') or {is_steady}\n"
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
    failed = {
        line.split("::")[1].split()[0]
        for line in done.stdout.splitlines()
        if line.startswith(("FAILED", "ERROR"))
    }
    return ran, failed, done.stdout


def test_what_is_too_long_is_measured_once_more(tmp_path):
    ran, failed, output = run_them(tmp_path, was_steady=True, is_steady=True)
    counts = {name: ran.count(name) for name in ran}
    assert counts == {
        "fixture": 2, "nested": 2, "always": 2, "another": 1, "both": 1, "unmarked": 1,
        "hidden": 1, "body": 1, "timed": 2, "shared": 1, "one": 2,
        "waited": 5, "looked": 1,
    }, output  # fmt: skip
    first = ran.index("always")
    assert ran[first : first + 4] == ["always", "waited", "always", "looked"]
    assert failed == {
        "test_always", "test_another_failure", "test_both", "test_without_the_mark",
        "test_what_a_finally_took_the_place_of", "test_a_phase_that_fails_otherwise",
        "test_the_second_run_has_its_time",
    }, output  # fmt: skip
    again = "measured again: test_them.py::test_always: what is ours: 1000.0 ms, 900 may"
    assert again in output
    assert "TurnTooLongError: what is ours: 2000.0 ms, 900 may" in output


@pytest.mark.parametrize(("was_steady", "is_steady"), [(False, True), (True, False)])
def test_a_look_at_an_unsteady_machine_says_nothing(tmp_path, was_steady, is_steady):
    """But five of them do; and what is fine once, or fails otherwise, is not run again."""
    ran, failed, output = run_them(tmp_path, was_steady, is_steady)
    counts = {name: ran.count(name) for name in ran}
    assert counts["always"] == LOOKS == 5
    assert counts.get("looked", 0) == (LOOKS - 1 if was_steady else 0)
    assert counts["waited"] == 4 + LOOKS - 1
    assert {counts[name] for name in ("fixture", "nested", "one", "timed")} == {2}
    assert {counts[name] for name in ("another", "both", "hidden", "body", "unmarked")} == {1}
    assert "test_always" in failed
    assert "TurnTooLongError: what is ours: 5000.0 ms, 900 may" in output


@pytest.mark.parametrize("seconds", [1.0, math.nan])
def test_a_bound_is_not_reached(seconds):
    with pytest.raises(TurnTooLongError):
        check_turn(seconds, 1.0)


@pytest.mark.parametrize(
    ("longest", "steady"), [(0.9, True), (3.9, True), (4.0, False), (9.0, False)]
)
def test_one_long_piece_tells(longest, steady):
    assert about_equal([*[1.0] * (PIECES - 1), longest]) is steady


@pytest.mark.parametrize(
    ("answers", "waited", "slept", "steady"),
    [([0, 0, 1], 60, 2, True), ([0], 0, 0, False), ([1], 60, 0, True)],
)
def test_a_steady_machine_is_waited_for(monkeypatch, answers, waited, slept, steady):
    pauses = []
    monkeypatch.setattr(turns, "is_steady", lambda: bool(answers.pop(0)))
    monkeypatch.setattr(turns, "WAIT_SECONDS", waited)
    monkeypatch.setattr(turns.time, "sleep", pauses.append)
    assert turns.wait_until_steady() is steady
    assert not answers
    assert len(pauses) == slept


@pytest.mark.parametrize("spoiled", [None, 500, PIECES + 500])
def test_both_kinds_of_pieces_are_looked_at(monkeypatch, spoiled):
    """By a clock that says the same of each, but of one."""
    calls = itertools.count()

    def clock():
        number = next(calls)
        return number // 2 * 10.0 + (number % 2) * (9.0 if number // 2 == spoiled else 1.0)

    monkeypatch.setattr(turns.time, "thread_time", clock)
    assert turns.is_steady() is (spoiled is None)
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        turns.is_steady()
        assert not gc.isenabled()
    finally:
        gc.enable()
