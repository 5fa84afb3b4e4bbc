"""Members of a streams group in small worlds: tasks move, and the coordinator makes a changelog."""

import pytest

from sim.group_members.streams import StreamsMember
from sim.history import Violation
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
    assert counts["standby tasks changed"] >= 3
    assert counts["offsets committed"] > 10


class World:
    """Of a world, what a member asks before it runs."""

    partitions = (("log", 0), ("log", 1), ("short", 0))


@pytest.fixture
def member(monkeypatch):
    monkeypatch.setattr("sim.group_members.heartbeating.CommittingMember.__init__", lambda *_: None)
    one = StreamsMember(World(), "m")
    one.name, one._assigned = "m", [("short", 1)]
    return one


@pytest.mark.parametrize(
    ("told", "word"),
    [
        (("short", 0), "has .* and is to have a copy"),
        (("short", 1), "has .* and is to have a copy"),
        (("log", 1), "has no store"),
    ],
    ids=["told with it", "its own", "no store"],
)
def test_a_copy_is_of_a_task_with_a_store_that_another_one_has(member, told, word):
    active = {("short", 0)}
    member._told_standby = {("short", 2)}
    member._judge_standby(active)
    member._told_standby.add(told)
    with pytest.raises(Violation, match=word):
        member._judge_standby(active)
