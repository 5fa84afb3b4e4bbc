"""Tellers in a small world: they are in each other's way, and all comes out right."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from sim.plan import Fault
from sim.runner import Outcome, run_seed
from sim.shape import Shape

BANK = Shape(
    bookies=3, brokers=2, idempotent_producers=1, plain_producers=0, admins=0, tellers=3
)  # fmt: skip


def test_through_a_rolling_restart():
    plan = [Fault(1, 2.0, "rolling-restart", 0.9, 0.1, 1.0), Fault(2, 6.0, "clock", 0.0, 0.5, 0.1)]
    result = run_seed(1, plan=plan, shape=BANK)
    assert result.outcome is Outcome.FINE, result.story
    counts = result.counts
    assert counts["take-overs"] >= 3
    assert counts["bank: produce INVALID_RECORD"] > 0
    assert counts["bank: conflicts in a batch"] > 0
    assert counts["bank: records"] == counts["bank: committed"] > 50
