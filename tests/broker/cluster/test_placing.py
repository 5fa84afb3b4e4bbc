"""Leaders of a new topic's partitions: chosen in slices, and as one would in one go."""

from collections import Counter
from types import SimpleNamespace
from uuid import UUID

import pytest
import trio

from broker.cluster.assignment import Assignment, new_assignment
from broker.cluster.balance import Candidate, spread
from broker.cluster.placing import Placing
from broker.cluster.topic import Topic

TOPIC = Topic(UUID(int=3), "t", 3000, {}, internal=False, replication_factor=3)


@pytest.fixture
def placing():
    membership = SimpleNamespace(
        candidates=lambda: [Candidate(n, str(n % 3)) for n in range(30)], live=range(30)
    )
    ownership = SimpleNamespace(leading=Counter({2: 7}), known=None, number=4)
    ownership.get = lambda _: ownership.known
    ownership.version = lambda _: ownership.number
    made = Placing(membership, ownership)
    made.ownership = ownership
    return made


def _wanted(count):
    brokers = [Candidate(n, str(n % 3)) for n in range(30)]
    return spread(count, 3, brokers, {2: 7}, start=TOPIC.id.int % 997)


async def _turns_of_others(function):
    """What it returns, and how often others had the loop meanwhile."""
    count = 0

    async def others():
        nonlocal count
        while True:
            await trio.lowlevel.checkpoint()
            count += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        result = await function()
        nursery.cancel_scope.cancel()
    return result, count


async def test_a_large_topic_is_placed_in_slices(placing):
    """17 ms in one piece, of 30 brokers."""
    (op,), count = await _turns_of_others(lambda: placing.create_ops(TOPIC, None))
    assert Assignment.from_bytes(op.data) == new_assignment("t", _wanted(3000))
    assert count >= 10


async def test_it_grows_from_what_was_known_when_it_began(placing):
    """Somebody may change the assignment meanwhile: then the version does not fit."""
    known = placing.ownership.known = new_assignment("t", _wanted(3000))

    async def grow():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            return await placing.grow_ops(TOPIC, 2000, None)

    async def change():
        placing.ownership.known = new_assignment("t", [])
        placing.ownership.number += 1

    (op,), count = await _turns_of_others(grow)
    assert op.version == 4
    assert Assignment.from_bytes(op.data) == known.grown(_wanted(2000))
    assert count >= 6
