"""A group that changes its protocol while it is in use, in small worlds."""

import pytest

from sim.plan import Fault
from sim.runner import Outcome, run_seed
from sim.shape import Shape

MIGRATING = Shape(
    bookies=3, brokers=2, idempotent_producers=1, plain_producers=0, admins=0, migrating_members=3
)  # fmt: skip


@pytest.mark.parametrize("seed", [1, 2], ids=["eager", "cooperative"])
def test_up_and_down_through_a_rolling_restart(seed):
    """Classic members are in a group of the newer protocol meanwhile, and it becomes a classic one
    again. The last fault comes late: there is time for several rounds."""
    plan = [
        Fault(1, 2.0, "rolling-restart", 0.9, 0.1, 1.0),
        Fault(2, 25.0, "reset", 0.9, 0.1, 1.0),
    ]
    result = run_seed(seed, plan=plan, shape=MIGRATING)
    assert result.outcome is Outcome.FINE, result.story
    counts = result.counts
    assert counts["members upgraded"] >= 3
    assert counts["members downgraded"] >= 3
    assert counts["classic joins of a group of KIP-848's"] >= 1
    assert counts["group generations"] >= 3
    assert counts["offsets committed"] > 10
