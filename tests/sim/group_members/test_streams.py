"""Members of a streams group in small worlds: tasks move, and the coordinator makes a changelog."""

from sim.plan import Fault
from sim.runner import Outcome, run_seed
from sim.shape import Shape

STREAMS = Shape(
    bookies=3, brokers=2, idempotent_producers=1, plain_producers=0, admins=0, retention=1,
    streams_members=3,
)  # fmt: skip


def test_through_a_rolling_restart():
    """The changelog topic of the second subtopology is missing at first, and then it is made."""
    plan = [Fault(1, 2.0, "rolling-restart", 0.9, 0.1, 1.0)]
    result = run_seed(1, plan=plan, shape=STREAMS)
    assert result.outcome is Outcome.FINE, result.story
    counts = result.counts
    assert counts["streams status MISSING_INTERNAL_TOPICS"] >= 1
    assert counts["streams group assignments"] >= 3
    assert counts["offsets committed"] > 10
