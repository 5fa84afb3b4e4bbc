"""Administrators of rights in small worlds, and who judges what brokers know of them."""

import pytest

from sim.history import Violation
from sim.plan import Fault
from sim.rights import judge_rights
from sim.runner import Outcome, run_seed
from sim.shape import Shape

RIGHTS = Shape(
    bookies=3, brokers=2, idempotent_producers=1, plain_producers=0, admins=0, acl_admins=2
)  # fmt: skip


def test_through_a_rolling_restart():
    plan = [Fault(1, 2.0, "rolling-restart", 0.9, 0.1, 1.0)]
    result = run_seed(1, plan=plan, shape=RIGHTS)
    assert result.outcome is Outcome.FINE, result.story
    assert result.counts["rights given"] > 10
    assert result.counts["rights taken"] > 5
    assert result.counts["brokers whose rights were judged"] == 2


class Node:
    name, is_serving = "broker-1", True


class World:
    """With one broker, which lists what it is told to."""

    def __init__(self, listed, *acknowledged):
        self.brokers, self.seeds, self.listed = [Node()], [("broker-1", 1)], listed
        self.rights = dict.fromkeys(acknowledged)
        self.trace = self

    def client(self, name):
        return self

    def count(self, what):
        pass


@pytest.fixture
def listed(monkeypatch):
    async def rights_of(world, address, name):
        return world.listed.pop(0) if len(world.listed) > 1 else world.listed[0]

    monkeypatch.setattr("sim.rights.rights_of", rights_of)


async def test_a_broker_may_hear_late_and_must_hear(listed, autojump_clock):
    await judge_rights(World([["a"], ["a", "b"]], "b", "a"))
    with pytest.raises(Violation, match=r"other rights: broker-1: \['b'\]"):
        await judge_rights(World([["a"]], "a", "b"))
    with pytest.raises(Violation, match=r"other rights: broker-1: \['c'\]"):
        await judge_rights(World([["a", "c"]], "a"))
