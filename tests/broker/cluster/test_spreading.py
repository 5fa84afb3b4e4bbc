"""Partitions spread over the brokers that start together, if they were others the last time."""

import json
from collections import Counter
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.assignment import Assigned, Assignment, new_assignment
from broker.cluster.balance import Candidate
from broker.cluster.spreading import SPREAD_PATH, forget_spread, is_uneven, spread_if_others
from metadata.memory import MemoryStore
from metadata.store import MetadataUnavailableError


class Ownership:
    """AssignedOwnership, as far as it is asked; `racing`: what another wrote meanwhile."""

    def __init__(self, assignments, racing=None):
        self.assignments = dict(assignments)
        self.racing = racing or {}
        self.leading = Counter(
            one.leader for each in self.assignments.values() for one in each.partitions
        )

    def get(self, topic_id):
        return self.assignments.get(topic_id)

    async def change_many(self, changes):
        self.assignments |= self.racing
        for topic_id, change in changes.items():
            made = change(self.assignments.get(topic_id))
            assert change(self.assignments.get(topic_id)) == made, "decided twice, it is another"
            self.assignments[topic_id] = made

    def leaders(self):
        return Counter(one.leader for each in self.assignments.values() for one in each.partitions)


def topics_of(*counts, copies=1):
    return [
        SimpleNamespace(
            id=UUID(int=number), name=f"t{number}", partition_count=count, replication_factor=copies
        )
        for number, count in enumerate(counts)
    ]


async def spread(topics, ownership, *node_ids, store=None, live=None):
    """`store`: none has been there before."""
    alive = node_ids if live is None else live
    membership = SimpleNamespace(
        live=dict.fromkeys(alive), candidates=lambda: [Candidate(n) for n in alive]
    )
    catalog = SimpleNamespace(all=lambda: topics)
    store = MemoryStore() if store is None else store
    return await spread_if_others(store, catalog, membership, ownership, node_ids)


def led(*leaders):
    return new_assignment("t", [(leader,) for leader in leaders])


@pytest.mark.parametrize(
    ("assignments", "node_ids", "wanted"),
    [
        ([], (0, 1), False),
        ([led(0)], (0, 1), False),
        ([led(0, 0)], (0, 1), True),
        ([led(0, 1), led(2)], (0, 1), True),
        # An administrator's.
        ([led(0, 0, 0, 0, 1)], (0, 1), False),
        ([Assignment("t", (Assigned(-1, 0, ()),))], (0, 1), False),
    ],
)
def test_what_is_uneven(assignments, node_ids, wanted):
    assert is_uneven(assignments, node_ids) is wanted


async def test_topics_of_one_broker_go_to_all():
    """Its documents have no leaders: it was the whole cluster."""
    topics, ownership = topics_of(3, 5, 1), Ownership({})
    assert await spread(topics, ownership, 0, 1, 2)
    assert ownership.leaders() == {0: 3, 1: 3, 2: 3}
    assert ownership.assignments[UUID(int=1)].topic == "t1"


async def test_what_another_assigned_meanwhile_is_spread_too():
    topics = topics_of(4)
    ownership = Ownership({}, {UUID(int=0): led(1, 1, 1, 1)})
    assert await spread(topics, ownership, 0, 1)
    assert ownership.leaders() == {0: 2, 1: 2}
    moved = [one for one in ownership.assignments[UUID(int=0)].partitions if one.leader == 0]
    assert all((one.epoch, one.before) == (1, (1,)) for one in moved)


async def test_even_ones_stay():
    topics, ownership = topics_of(2), Ownership({UUID(int=0): led(0, 1)})
    before = dict(ownership.assignments)
    assert not await spread(topics, ownership, 0, 1)
    assert ownership.assignments == before


async def noted(store):
    return json.loads((await store.get(SPREAD_PATH)).data)["brokers"]


async def test_the_same_brokers_as_the_last_time_spread_nothing():
    """Whatever an administrator, or a broker that takes nothing more, has made of it since."""
    topics, ownership, store = topics_of(6), Ownership({}), MemoryStore()
    assert await spread(topics, ownership, 0, 1, 2, store=store)
    assert await noted(store) == [0, 1, 2]
    ownership.assignments = {UUID(int=0): led(0, 0, 0, 1, 1, 1)}
    assert not await spread(topics, ownership, 2, 1, 0, store=store)
    # And none is spread because one has just died, which has its share.
    ownership.assignments = {UUID(int=0): led(0, 0, 1, 1, 2, 2)}
    assert not await spread(topics, ownership, 0, 1, 2, store=store, live=(0, 2))
    assert ownership.leaders() == {0: 2, 1: 2, 2: 2}
    # Nor because a topic is so new that its assignment is not known yet.
    assert not await spread(topics_of(6, 1), ownership, 0, 1, 2, store=store)


async def test_where_nothing_is_noted_one_that_has_just_died_is_no_other():
    topics, store = topics_of(6), MemoryStore()
    ownership = Ownership({UUID(int=0): led(0, 0, 1, 1, 2, 2)})
    assert not await spread(topics, ownership, 0, 1, 2, store=store, live=(0, 2))
    assert await noted(store) == [0, 1, 2]


async def test_other_brokers_spread_all_though_it_looks_even():
    topics, ownership, store = topics_of(6), Ownership({}), MemoryStore()
    await spread(topics, ownership, 0, 1, 2, store=store)
    ownership.assignments = {UUID(int=0): led(0, 0, 0, 1, 2, 3)}
    assert await spread(topics, ownership, 0, 1, 2, 3, store=store)
    assert max(ownership.leaders().values()) == 2
    assert await noted(store) == [0, 1, 2, 3]


class CutOff(Ownership):
    async def change_many(self, changes):
        raise MetadataUnavailableError("/", "away")


@pytest.mark.parametrize("count", [2, 3, 4])
async def test_a_spread_that_was_cut_off_is_done_again_by_any_number_of_brokers(count):
    topics, store = topics_of(8), MemoryStore()
    ownership = Ownership({UUID(int=0): led(*[0, 1] * 4)})
    assert not await spread(topics, ownership, 0, 1, store=store)
    with pytest.raises(MetadataUnavailableError):
        await spread(topics, CutOff(ownership.assignments), 0, 1, 2, store=store)
    # As far as it came, each is preferred by some.
    ownership.assignments = {UUID(int=0): led(0, 0, 0, 1, 1, 1, 1, 2)}
    assert await spread(topics, ownership, *range(count), store=store)
    assert max(ownership.leaders().values()) == -(-8 // count)
    assert not await spread(topics, ownership, *range(count), store=store)


async def test_a_spread_without_one_that_died_is_done_again_the_next_time():
    topics, ownership, store = topics_of(6), Ownership({}), MemoryStore()
    assert await spread(topics, ownership, 0, 1, 2, store=store, live=(0, 2))
    assert ownership.leaders() == {0: 3, 2: 3}
    assert await spread(topics, ownership, 0, 1, 2, store=store)
    assert ownership.leaders() == {0: 2, 1: 2, 2: 2}
    assert not await spread(topics, ownership, 0, 1, 2, store=store)


async def test_after_one_broker_alone_it_is_looked_who_has_what():
    topics, ownership, store = topics_of(2, 2), Ownership({}), MemoryStore()
    await forget_spread(store)
    await spread(topics, ownership, 0, 1, store=store)
    await forget_spread(store)
    del ownership.assignments[UUID(int=1)]
    assert await spread(topics, ownership, 0, 1, store=store)
    assert ownership.leaders() == {0: 2, 1: 2}


async def test_a_broker_alone_starts_although_nothing_can_be_written(caplog):
    class Full(MemoryStore):
        async def delete(self, path, version=-1):
            raise MetadataUnavailableError(path, "database or disk is full")

    await forget_spread(Full())
    assert "spread_not_forgotten" in caplog.text


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"brokers":[null]}', b'{"brokers":7}'])
async def test_a_note_that_cannot_be_read_is_made_anew(data):
    topics, ownership, store = topics_of(4), Ownership({}), MemoryStore()
    await store.create(SPREAD_PATH, data, make_parents=True)
    assert await spread(topics, ownership, 0, 1, store=store)
    assert await noted(store) == [0, 1]


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=5),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(2, 6),
)
async def test_afterwards_it_is_even_whoever_had_them(counts, copies, before, after):
    topics = topics_of(*counts, copies=copies)
    ownership = Ownership({})
    await spread(topics, ownership, *range(10, 10 + before))
    assert await spread(topics, ownership, *range(after))
    leaders = ownership.leaders()
    assert max(leaders.values()) - min(leaders[n] for n in range(after)) <= 1
    for each in ownership.assignments.values():
        assert all(one.leader == one.replicas[0] for one in each.partitions)
    assert not await spread(topics, ownership, *range(after))
