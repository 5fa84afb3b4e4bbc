"""Seeds of the simulation: a fixed set, that a broken rule is found, that a seed is a seed.

Fresh seeds are `make test`'s, by `python -m sim --minutes 2`.
"""

import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from bookie.journal.journal import Journal
from bookie.start import ReplayTarget
from sim.case import Case
from sim.minimise import minimise
from sim.plan import KINDS, Fault, draw_kinds, draw_plan
from sim.runner import Outcome, run_seed
from sim.shape import Shape

ROOT = Path(__file__).parents[2]
FIXED_SEEDS = range(1, 6)
STEPS = 10
SMALL = Shape(bookies=3, idempotent_producers=1, plain_producers=0, admins=0)


def explain(result):
    return f"python -m sim --seed {result.seed} --steps {STEPS}: {result.story}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", FIXED_SEEDS)
def test_fixed_seed(seed):
    result = Case(seed, STEPS).run()
    assert result.outcome is Outcome.FINE, explain(result)
    assert result.counts["acked"] > 50
    assert result.counts["flushes"] > 10


@pytest.mark.timeout(300)
def test_few_seeds_reach_what_is_rare():
    """Every kind of fault is in some plan of a hundred; a few runs with crashes and partitions
    reach the rare paths."""
    drawn = {
        fault.kind for seed in range(1, 100) for fault in draw_plan(seed, STEPS, draw_kinds(seed))
    }
    assert drawn == set(KINDS)
    reached = (
        "partitions", "ensemble changes", "recoveries", "take-overs", "ledger rolls",
        "compactions", "checkpoints", "journal files retired", "entry logs begun",
    )  # fmt: skip
    kinds = ("crash-bookie", "crash-broker", "partition")
    counts = Counter()
    for seed in range(5, 15):
        counts += run_seed(seed, steps=STEPS, kinds=kinds).counts
        missing = [name for name in reached if not counts[name]]
        if not missing:
            break
    assert missing == []
    assert any(name.startswith("bookie crashes: ") for name in counts)
    assert any(name.startswith("broker crashes: ") for name in counts)


@pytest.mark.timeout(1800)
@pytest.mark.slow
def test_three_seeds_twice():
    """In two processes, whatever the hashes of strings and the addresses of objects are. More of
    them, and other ones each time, are a part of `make test-long`. 26 has administrators of
    ACLs: it differed when DescribeAcls gave them in the order of a set."""
    done = subprocess.run(
        [sys.executable, "-m", "sim", "--seed", "24", "--count", "3", "--steps", "4", "--twice"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pairs = re.findall(r"^seed (\d+) (\w+) (\w+) the same$", done.stdout, re.MULTILINE)
    assert [int(seed) for seed, _, _ in pairs] == [24, 25, 26]
    assert len({digest for _, digest, _ in pairs}) == 3


def test_a_seed_that_differs_is_told(monkeypatch, capsys):
    """A trace with the address of an object, in one of many lines."""
    from sim import __main__ as command
    from sim.worker import Summary

    class Differing:
        def __init__(self, cases, *, jobs, hash_seed):
            self._cases, self._hash_seed = cases, hash_seed

        def __iter__(self):
            for case in self._cases:
                digest = f"{case.seed}-{self._hash_seed if case.seed == 8 else ''}"
                yield case, Summary(case.seed, Outcome.FINE, digest, 1, 1.0, 1.0, "")

    monkeypatch.setattr(command, "Batch", Differing)
    assert command.main(["--seed", "7", "--count", "3", "--twice"]) == command.DIFFERENT
    told = capsys.readouterr().out
    assert [line.split()[1] for line in told.splitlines() if "DIFFERENT" in line] == ["8"]


def test_same_seed_same_trace_in_this_process():
    digests = [run_seed(seed, steps=5, shape=SMALL).digest for seed in (11, 12)]
    assert digests[0] != digests[1]
    assert [run_seed(seed, steps=5, shape=SMALL).digest for seed in (11, 12)] == digests


@pytest.fixture
def ack_before_sync(monkeypatch):
    """The canary: a journal that says «durable» when it has only begun to sync."""

    def start_sync(self):
        self._syncing, self._unsynced = self._unsynced, []
        self._sync_running = True
        self._file.sync(lambda _error: None)
        self._synced(None)
        return not self._sync_running

    monkeypatch.setattr(Journal, "_start_sync", start_sync)


SLOW_BLACKOUT = [
    Fault(1, 1.4, "slow-disk", 0.1, 0.95, 4.0),
    Fault(2, 1.8, "reset", 0.5, 0.5, 1.0),
    Fault(3, 2.4, "blackout", 0.9, 0.1, 0.5),
]


@dataclass(frozen=True)
class SlowBlackout(Case):
    """A plan and a shape by hand."""

    @property
    def plan(self):
        return [fault for fault in SLOW_BLACKOUT if self.only is None or fault.number in self.only]

    @property
    def full_shape(self):
        return Shape(**{"bookies": 3, "plain_producers": 0, "witness": 0, **dict(self.shape)})


def test_the_canary_is_found_and_made_small(ack_before_sync):
    """All disks are slow when the power fails everywhere: what was acknowledged before its sync is
    gone, and the bookies' own journals tell. The reset and all clients but one have no part."""
    case = SlowBlackout(1)
    result = case.run()
    assert result.outcome is Outcome.CRASH, result.story
    assert "CorruptionError" in result.story
    heard = []
    smaller = minimise(case, Outcome.CRASH, say=heard.append)
    assert [fault.kind for fault in smaller.plan] == ["slow-disk", "blackout"]
    assert smaller.run().outcome is Outcome.CRASH
    shape = smaller.full_shape
    clients = shape.idempotent_producers + shape.plain_producers + shape.consumers + shape.admins
    assert clients < 4
    assert heard[-1] == smaller.command
    assert "--only '1,3' --shape " in smaller.command


def test_a_replay_that_forgets_is_found(monkeypatch):
    """No part of the code can tell this one: only the history can."""
    monkeypatch.setattr(ReplayTarget, "_apply_entry", lambda *_: True)
    shape = Shape(bookies=3, idempotent_producers=0, plain_producers=2, admins=0, witness=0)
    result = run_seed(3, plan=SLOW_BLACKOUT, shape=shape)
    assert result.outcome is Outcome.CORRECTNESS, explain(result)
    assert result.error.kind in ("lost", "diverging")


def test_the_canarys_faults_do_no_harm():
    result = run_seed(1, plan=SLOW_BLACKOUT, shape=SMALL)
    assert result.outcome is Outcome.FINE, explain(result)


def test_the_trace_is_for_people(tmp_path):
    path = tmp_path / "trace"
    with path.open("w") as file:
        traced = run_seed(3, steps=4, file=file)
    lines = path.read_text().splitlines()
    assert any(" fault " in line for line in lines)
    assert any(" log " in line for line in lines)
    assert sum(" log  " not in line for line in lines) == traced.events
    assert run_seed(3, steps=4).digest == traced.digest
