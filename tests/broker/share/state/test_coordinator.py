"""The share coordinator on logs in memory: appends fail, tenures end, logs are pruned."""

from __future__ import annotations

import random
import uuid

import pytest
import trio
import trio.testing

from broker.share.ports import ShareKey, ShareState, StateBatch
from broker.share.state.coordinator import WRITE_BATCHES
from tests.broker.share.state.test_batches_core import by_offset
from tests.broker.share.state.world import KEY, World
from wire.kafka.errors import ErrorCode as E

KEYS = [KEY._replace(partition=at) for at in range(5)]


@pytest.fixture
async def world(nursery):
    return await World(nursery, write_timeout_ms=5_000).start()


async def test_a_life(world, autojump_clock):
    await world.begin()
    read = await world.told(world.ask("read", KEY, 4))
    assert read == ShareState(E.NONE, 1, -1, -1, (), 4)
    assert (await world.told(world.write((0, 9, 2, 1), start=0, count=10))).error is E.NONE
    read = await world.told(world.ask("read", KEY, 5))
    assert read == ShareState(E.NONE, 1, 0, 10, (StateBatch(0, 9, 2, 1),), 5)
    summary = await world.told(world.ask("read_summary", KEY))
    assert summary == read._replace(batches=())
    assert (await world.told(world.ask("delete", KEY))).error is E.NONE
    assert (await world.told(world.ask("read", KEY, 5))).error is E.INVALID_REQUEST
    assert await world.told(world.ask("read_summary", KEY)) == ShareState(E.NONE)
    assert (await world.told(world.ask("delete", KEY))).error is E.NONE


async def test_what_is_refused_at_once(world, autojump_clock):
    for error, key in (
        (E.INVALID_GROUP_ID, KEY._replace(group_id="")),
        (E.INVALID_REQUEST, KEY._replace(partition=-1)),
        (E.INVALID_REQUEST, KEY._replace(topic_id=uuid.UUID(int=0))),
        (E.UNKNOWN_TOPIC_OR_PARTITION, KEY._replace(partition=8)),
        (E.UNKNOWN_TOPIC_OR_PARTITION, KEY._replace(topic_id=uuid.UUID(int=5))),
    ):
        assert [each.error for each in world.ask("initialize", key, 1, -1)] == [error]
        assert [each.error for each in world.ask("read", key, 1)] == [error]
        assert [each.error for each in world.ask("read_summary", key)] == [error]
        assert [each.error for each in world.write(key=key)] == [error]
    assert world.log.in_flight == []
    gone = ShareKey("g", uuid.UUID(int=5), 0)
    assert (await world.told(world.ask("delete", gone))).error is E.NONE


async def test_nothing_is_answered_before_the_ack(world, autojump_clock):
    asked = [
        world.ask("initialize", KEY, 1, -1),
        world.ask("read", KEY, 3),
        world.write((0, 1, 2, 1)),
        world.ask("delete", KEY),
    ]
    await trio.testing.wait_all_tasks_blocked()
    assert asked == [[], [], [], []]
    assert len(world.log.in_flight) == 1, "those of one turn are one batch"
    world.log.ack(1)
    assert [len(each) for each in asked] == [1, 1, 1, 1]


async def test_who_was_deposed_tells_nothing(world, autojump_clock):
    """A read of the same leader changes nothing; it is answered behind a barrier all the same."""
    await world.begin()
    await world.told(world.ask("read", KEY, 4))
    asked = [world.ask("read", KEY, 4), world.ask("read_summary", KEY), world.ask("read", KEY, 3)]
    await trio.testing.wait_all_tasks_blocked()
    assert asked == [[], [], []]
    world.log.go_offline()
    assert [each[0].error for each in asked] == [E.NOT_COORDINATOR] * 3


async def test_persister_write_fails(world, autojump_clock):
    """What comes behind a write that was refused is not told as stored, and memory equals the log
    again."""
    await world.begin()
    world.log.refusals.append(E.NOT_ENOUGH_REPLICAS)
    refused = world.write((0, 9, 2, 1))
    await trio.testing.wait_all_tasks_blocked()
    assert [each.error for each in refused] == [E.COORDINATOR_NOT_AVAILABLE]
    await trio.testing.wait_all_tasks_blocked()
    read = await world.told(world.ask("read", KEY, -1))
    assert (read.error, read.batches) == (E.NONE, ())


async def test_a_write_behind_a_lost_beginning_is_not_acknowledged(world, autojump_clock):
    """The update is stored, its snapshot is not: it means nothing."""
    await world.begin(KEYS[1])
    world.log.refusals.append(E.NOT_ENOUGH_REPLICAS)
    begun = world.ask("initialize", KEY, 1, -1)
    # In a batch of its own, which the log takes.
    first = world.write((0, 0, 2, 1), key=KEYS[1])
    world.turn.run()
    written = world.write((0, 9, 2, 1))
    await trio.testing.wait_all_tasks_blocked()
    world.log.ack(9)
    await trio.testing.wait_all_tasks_blocked()
    assert [each[0].error is E.NONE for each in (begun, first, written)] == [False] * 3
    await trio.sleep(2)
    assert (await world.told(world.ask("read", KEY, 1))).error is E.INVALID_REQUEST


async def test_who_waits_for_too_long_is_told(world, autojump_clock):
    await world.begin()
    answers = world.write((0, 9, 2, 1))
    await trio.sleep(4.9)
    assert answers == []
    await trio.sleep(0.2)
    assert [each.error for each in answers] == [E.COORDINATOR_NOT_AVAILABLE]
    world.log.ack(1)
    assert len(answers) == 1
    assert (await world.told(world.ask("read", KEY, -1))).batches == ((0, 9, 2, 1),)


async def test_a_request_is_refused_while_too_much_waits(nursery, autojump_clock):
    world = await World(nursery, pending_bytes_max=200).start()
    await world.begin()
    answers = [world.write((at, at, 2, 1)) for at in range(10)]
    refused = [each[0].error for each in answers if each]
    assert set(refused) == {E.COORDINATOR_NOT_AVAILABLE}
    await trio.testing.wait_all_tasks_blocked()
    world.log.ack(9)
    taken = [each[0].error for each in answers].count(E.NONE)
    assert taken + len(refused) == 10
    read = await world.told(world.ask("read", KEY, -1))
    assert len(by_offset(read.batches)) == taken


async def test_very_many_batches_are_written_in_steps(world, autojump_clock):
    await world.begin()
    batches = [(2 * at, 2 * at, 2, 1) for at in range(3 * WRITE_BATCHES + 7)]
    assert (await world.told(world.write(*batches, start=0, count=len(batches)))).error is E.NONE
    read = await world.told(world.ask("read", KEY, -1))
    assert [*read.batches] == batches
    assert read.delivery_complete_count == len(batches)
    # Refused in one step is refused.
    refused = await world.told(world.write(*batches, (5, 4, 2, 1)))
    assert refused.error is E.INVALID_REQUEST


# --- pruning


async def test_prune_keeps_cold_key(world, autojump_clock):
    cold, hot = KEYS[0], KEYS[1]
    await world.begin(cold)
    await world.told(world.write((3, 5, 4, 2), key=cold))
    await world.begin(hot)
    for at in range(1_100):
        world.write((at, at, 2, 1), key=hot, start=at)
        await trio.testing.wait_all_tasks_blocked()
        world.log.ack(1)
    await world.coordinator.prune()
    assert world.deleted == [], "the cold one's snapshot is at the very beginning"
    await trio.sleep(301)
    await trio.testing.wait_all_tasks_blocked()
    world.log.ack(9)
    await trio.sleep(301)
    # The hot one's last snapshot, too, is cold by now; it was written anew with the other.
    assert world.deleted
    assert world.log.log_start_offset > 1_000
    before = dict(world.shard.states)
    await world.take_over()
    assert world.shard.states == before
    assert world.shard.states[cold].batches == ((3, 5, 4, 2),)


async def test_who_is_quiet_is_not_written_anew_for_ever(world, autojump_clock):
    for key in KEYS:
        await world.begin(key)
        await world.told(world.write((1, 1, 2, 1), key=key))
        await world.told(world.write((2, 2, 2, 1), key=key))
    for _ in range(10):
        await trio.sleep(301)
        await trio.testing.wait_all_tasks_blocked()
        world.log.ack(9)
    assert world.coordinator.rewritten_count == len(KEYS)
    assert world.log.high_watermark - world.log.log_start_offset <= 2 * len(KEYS)


async def test_a_tenure_that_is_over_prunes_nothing(world, autojump_clock):
    """The jobs look at the shards of now (KAFKA-20710)."""
    await world.begin()
    for _ in range(3):
        await world.told(world.ask("delete", KEY))
        await world.begin()
    old = world.shard
    await world.take_over()
    assert old is not world.shard
    assert not old.is_active
    world.log.go_offline()
    await world.coordinator.prune()
    await world.coordinator.rewrite_cold()
    assert world.deleted == []


# --- random histories


class Model:
    """What was acknowledged of each key since it was begun: the least that each record is."""

    def __init__(self):
        self.acknowledged, self.starts = {}, {}

    def check(self, states):
        for key, table in self.acknowledged.items():
            state = states[key]
            stored = by_offset(state.batches)
            assert state.start_offset >= self.starts[key]
            for offset, rank in table.items():
                assert offset < state.start_offset or stored[offset] >= rank


@pytest.mark.parametrize("seed", range(25))
async def test_no_acknowledged_write_is_lost(nursery, seed, autojump_clock):
    """Appends are refused, tenures end with some of what was on its way, the log is pruned."""
    rng = random.Random(seed)
    config = {"snapshot_update_records_per_snapshot": rng.choice((0, 1, 3, 10))}
    world, model = await World(nursery, **config).start(), Model()
    for key in KEYS:
        await world.begin(key, start_offset=0)
        model.acknowledged[key], model.starts[key] = {}, 0
    unanswered = []
    for _ in range(150):
        kind = rng.random()
        if kind < 0.6:
            key, first = rng.choice(KEYS), rng.randrange(40)
            batch = (first, first + rng.randrange(5), rng.choice((0, 2, 4)), rng.randrange(1, 5))
            start = rng.choice((-1, rng.randrange(10)))
            answers = world.write(batch, key=key, start=start)
            unanswered.append((answers, key, batch, start))
        elif kind < 0.8:
            world.log.ack(rng.randrange(1, 4))
        elif kind < 0.85:
            world.log.refusals.append(E.NOT_ENOUGH_REPLICAS)
        elif kind < 0.9:
            await world.take_over(rng.randrange(3))
            model.check(world.shard.states)
        elif kind < 0.95:
            await world.coordinator.prune()
        else:
            await trio.sleep(rng.choice((0.1, 301)))
        await trio.testing.wait_all_tasks_blocked()
        for answers, key, batch, start in unanswered:
            if answers and answers[0].error is E.NONE:
                table = model.acknowledged[key]
                for offset, rank in by_offset([StateBatch(*batch)]).items():
                    table[offset] = max(table.get(offset, (-1, -1)), rank)
                model.starts[key] = max(model.starts[key], start)
        unanswered = [each for each in unanswered if not each[0]]
    world.log.refusals.clear()
    world.log.ack(1_000)
    await trio.sleep(3)
    world.log.ack(1_000)
    await trio.sleep(3)
    assert world.shard.is_active
    live = dict(world.shard.states)
    model.check(live)
    await world.take_over()
    assert world.shard.states == live, "memory equals the log"
