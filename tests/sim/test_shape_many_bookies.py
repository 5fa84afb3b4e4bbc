"""A world of a hundred bookies: what is lost is replaced, and copied by auto-recovery."""

from sim.plan import draw_plan
from sim.runner import Outcome, run_seed
from sim.shape import Shape

SHAPE = Shape(
    bookies=100,
    brokers=2,
    recoverers=1,
    partitions=6,
    idempotent_producers=1,
    plain_producers=0,
    admins=0,
    short_ledgers=1,
)


def test_bookies_come_and_go_among_a_hundred():
    plan = draw_plan(1, 12, ("crash-bookie", "absence", "stop"))
    result = run_seed(1, plan=plan, shape=SHAPE)
    assert result.outcome is Outcome.FINE, result.story
    assert result.counts["bookie lives"] > SHAPE.bookies
    assert result.counts["ensemble changes"] > 0
    assert result.counts["ledgers repaired"] > 0
