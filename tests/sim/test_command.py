"""`python -m sim`: many seeds in several processes, coverage, time limits, errors."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sim import __main__ as command
from sim import code_seed, worker
from sim.batch import Batch, WorkerError
from sim.case import Case, parse_kinds, parse_shape
from sim.coverage import REQUIRED, Coverage
from sim.plan import KINDS
from sim.runner import Outcome
from sim.trace import counted
from sim.worker import Summary

ROOT = Path(__file__).parents[2]
SMALL = (("bookies", 3), ("brokers", 1), ("admins", 0), ("recoverers", 0), ("members", 0))


def small(seed, steps=1):
    return Case(seed, steps, kinds=("reset",), shape=SMALL)


@pytest.mark.timeout(300)
def test_processes_give_what_one_does():
    known = {case.seed: summary for case, summary in Batch(map(small, range(1, 4)), jobs=2)}
    assert sorted(known) == [1, 2, 3]
    here = worker.run(small(2))
    assert (known[2].digest, known[2].counts) == (here.digest, here.counts)


def test_nothing_is_begun_after_the_time():
    assert list(Batch(map(small, range(1, 4)), jobs=1, seconds=0)) == []


@pytest.mark.timeout(300)
def test_a_process_that_ends_is_told():
    batch = Batch(map(small, range(1, 1000)))
    runs = iter(batch)
    next(runs)
    os.kill(batch._processes[0].pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"ended: python -m sim --seed \d+ --steps 1 --faults"):
        list(runs)


@pytest.mark.timeout(300)
def test_a_batch_ends_its_processes():
    batch = Batch(map(small, range(1, 1000)), jobs=2)
    for _ in batch:
        break
    batch.close()
    assert all(process.returncode is not None for process in batch._processes)


def test_a_case_survives_the_pipe():
    case = Case(7, 3, ("reset", "stop"), (0, 2), (("admins", 0),))
    assert worker.decode_case(worker.encode_case(case)) == case
    assert worker.decode_case(worker.encode_case(Case(8))) == Case(8)


def test_a_command_is_its_case():
    case = Case(7, 3, ("reset", "stop"), (0, 2), (("admins", 0), ("brokers", 2)))
    words = case.command.replace("'", "").split()
    assert words[:3] == ["python", "-m", "sim"]
    assert list(command.cases(command.parse(words[3:]))) == [case]
    assert Case(7).command == "python -m sim --seed 7"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--faults reset,fire", "--faults: unknown fire; known: crash-bookie"),
        ("--shape bookies=many", "--shape: bookies is 'many', not a number"),
        ("--shape moons=1", "--shape: unknown 'moons'; known: bookies, brokers"),
        ("--count 3 --trace x", "--trace: of one seed only"),
        ("--jobs 0", "--jobs: at least one"),
    ],
)
def test_bad_words_are_named(words, told, capsys):
    with pytest.raises(SystemExit):
        command.parse(words.split())
    assert told in capsys.readouterr().err


def test_words_that_are_right():
    assert parse_kinds("reset,stop") == ("reset", "stop")
    assert parse_shape("bookies=5,admins=0") == (("bookies", 5), ("admins", 0))
    assert parse_shape("") == ()


class Told:
    """A Batch of made-up summaries."""

    summaries = ()

    def __init__(self, cases, **_options):
        self._cases = cases

    def __iter__(self):
        for case, (outcome, counts) in zip(self._cases, self.summaries, strict=False):
            yield case, Summary(case.seed, outcome, "d", 10, 1.0, 5.0, "why", counts)


@pytest.fixture
def run_told(monkeypatch, capsys):
    def run(words, *summaries):
        Told.summaries = summaries
        monkeypatch.setattr(command, "Batch", Told)
        code = command.main(words.split())
        return code, capsys.readouterr().out

    return run


def test_the_worst_is_the_exit_code(run_told):
    code, told = run_told(
        "--seed 5 --count 3 --quiet",
        (Outcome.LIVENESS, {}),
        (Outcome.CORRECTNESS, {}),
        (Outcome.FINE, {}),
    )
    assert code == 5
    assert "  again: python -m sim --seed 5\n" in told
    assert "seed 7" not in told
    assert "3 runs in 0 s, 2 failed; 60 seeds a minute" in told


def test_a_zero_is_an_error_where_it_was_asked(run_told):
    full = dict.fromkeys(REQUIRED, 1)
    fine = (Outcome.FINE, full)
    assert run_told("--seed 5 --count 1000 --require-coverage", fine, fine)[0] == 0
    lacking = (Outcome.FINE, {**full, "compactions": 0})
    assert run_told("--seed 5 --count 1000", lacking)[0] == 0
    code, told = run_told("--seed 5 --count 1000 --require-coverage", lacking, lacking)
    assert code == command.UNREACHED
    assert "reached by no run: compactions\n" in told
    assert run_told("--count 9 --seed 5 --require-coverage", lacking, fine)[0] == 0


def test_coverage_sums():
    coverage = Coverage()
    coverage.add({"recoveries": 2, "compactions": 0})
    coverage.add({"recoveries": 3})
    line = next(line for line in coverage.table().splitlines() if line.startswith("recoveries"))
    assert line.split() == ["recoveries", "5", "2"]
    assert "compactions" in coverage.missing()
    assert set(KINDS) <= set(coverage.missing())
    assert "recoveries" not in coverage.missing()


@pytest.mark.parametrize(
    ("event", "detail", "name"),
    [
        ("crash", "power", "bookie crashes: power"),
        ("write", "/ledgers/current/1f.log 0+1024", "entry logs begun"),
        ("write", "/ledgers/current/1f.log 1024+80", None),
        ("write file", "/ledgers/current/lastMark", "checkpoints"),
        ("write file", "/ledgers/current/checkpoint", None),
        ("rename", "/journal/current/3.txn /journal/current/spare-3", "journal files retired"),
        ("rename", "/journal/current/unfinished", None),
        ("reset", "c7", "connections reset"),
        ("sync", "/journal/current/3.txn", None),
    ],
)
def test_what_counts(event, detail, name):
    assert counted("bookie-2", event, detail) == name


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_interrupted_run_tells_what_it_knows():
    process = subprocess.Popen(
        [sys.executable, "-m", "sim", "--seed", "3", "--steps", "1", "--minutes", "30"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "seeds from 3 on\n"
        assert process.stdout.readline().startswith("seed 3 FINE ")
        began = time.monotonic()
        process.terminate()
        rest = process.stdout.read()
    assert "interrupted\nreached " in rest
    assert " failed; " in rest
    assert process.returncode == 0
    assert time.monotonic() - began < 60


def test_the_codes_own_seed_changes_with_it(tmp_path):
    """And with nothing else."""
    for package in code_seed.PACKAGES:
        assert list((ROOT / package).glob("*.py")), package
    source = tmp_path / "broker" / "log.py"
    source.parent.mkdir()
    source.write_text("one = 1\n")
    first = code_seed.code_seed(tmp_path)
    assert 0 <= first < 1 << 31
    (tmp_path / "broker" / "log.pyc").write_text("made of it")
    (tmp_path / "docs.py").write_text("of no package")
    assert code_seed.code_seed(tmp_path) == first
    source.write_text("one = 2\n")
    changed = code_seed.code_seed(tmp_path)
    source.write_text("one = 1\n")
    renamed = source.rename(source.with_name("log2.py"))
    assert len({first, changed, code_seed.code_seed(tmp_path)}) == 3
    renamed.rename(source)
    assert code_seed.code_seed(tmp_path) == first
    assert command.parse(["--seed", "code"]).seed == code_seed.code_seed(ROOT)
    assert command.parse(["--seed", "17"]).seed == 17
    with pytest.raises(SystemExit):
        command.parse(["--seed", "cod"])
