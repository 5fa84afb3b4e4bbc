"""Who coordinates a key, from when to when, and what is due for it."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from wire.kafka.errors import ErrorCode
from wire.kafka.records.batch import build_batch
from wire.kafka.records.record import Record


@pytest.fixture
async def start(nursery, world_class):
    async def start(**given):
        world = world_class(**given)
        await nursery.start(world.run)
        return world

    return start


def batch_of(*records):
    return bytes(build_batch([Record(at, 0, *each) for at, each in enumerate(records)]))


async def test_a_key_is_coordinated_while_its_partition_is_held(start):
    world = await start()
    find = world.coordinator.find
    assert find("k") == (None, ErrorCode.NOT_COORDINATOR), "another broker leads"
    log = world.hold(batches=[batch_of((b"k", b"1"), (b"k", None), (b"l", b"2"))])
    assert find("k") == (None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    await trio.testing.wait_all_tasks_blocked()
    assert find("k") == (None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), "it is taken over"
    log.go_online()
    await world.coordinator.ensure_ready("k")
    shard, error = find("k")
    assert not error
    assert (shard.values, shard.calls) == ({b"l": b"2"}, ["loaded"])
    assert world.coordinator.shards() == [shard]
    assert world.coordinator.statistics()["partitions_active"] == 1
    log.go_offline()
    assert find("k") == (None, ErrorCode.NOT_COORDINATOR)
    assert shard.calls == ["loaded", "closed"]
    assert world.coordinator.shards() == []


async def test_each_partition_has_a_shard_of_its_own(start):
    world = await start(partitions=2)
    log = world.hold(0)
    log.go_online()
    await trio.testing.wait_all_tasks_blocked()
    by_partition = {world.coordinator.topic.partition_for(key): key for key in ("a", "b")}
    assert world.coordinator.find(by_partition[0])[0] is world.coordinator.partitions[0].shard
    assert world.coordinator.find(by_partition[1]) == (None, ErrorCode.NOT_COORDINATOR)


async def test_another_topic_is_nobody_of_ours(start):
    world = await start()
    world.hold(topic="__other").go_online()
    assert not world.coordinator.partitions
    assert not world.coordinator.is_loading


async def test_a_record_that_cannot_be_read_is_not_passed_over(start):
    """What is served without it would be something that never was."""
    world = await start()
    log = world.hold(batches=[batch_of((b"k", b"1"), (b"unreadable", b"?"))])
    log.go_online()
    partition = world.coordinator.partitions[0]
    await partition.settled.wait()
    assert partition.shard.calls == ["closed"]
    assert world.coordinator.find("k") == (None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), "anew"


@pytest.mark.parametrize("is_handed_over", [True, False])
async def test_an_append_that_the_log_refuses_for_good_ends_the_shard(start, is_handed_over):
    """Its log may be online for a while yet: nobody is to wait that long for an answer."""
    world = await start()
    log = world.hold()
    log.go_online()
    await world.coordinator.ensure_ready("k")
    (shard,) = world.coordinator.shards()
    log.is_closing = is_handed_over
    log.refusals = [ErrorCode.KAFKA_STORAGE_ERROR]
    answers = []
    shard.partition.write([(b"k", b"1")], answers.append)
    with trio.fail_after(60):
        while not answers:
            await trio.lowlevel.checkpoint()
    expected = ErrorCode.NOT_COORDINATOR if is_handed_over else ErrorCode.KAFKA_STORAGE_ERROR
    assert answers == [expected]
    assert log.state is log.State.ONLINE
    assert shard.calls == ["loaded", "closed"]
    # One that is not handed over is read anew.
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    after = ErrorCode.NOT_COORDINATOR if is_handed_over else loading
    assert world.coordinator.find("k") == (None, after)


async def test_a_load_that_failed_is_tried_again_though_nobody_asks(start, autojump_clock):
    """A transaction that is open in it has nobody else who would end it."""
    world = await start()
    log = world.hold(batches=[batch_of((b"k", b"1"))])
    log.broken_reads = 3
    log.go_online()
    await trio.sleep(0.5)
    assert world.coordinator.shards() == []
    await trio.sleep(3.0)
    (shard,) = world.coordinator.shards()
    assert shard.values == {b"k": b"1"}
    assert log.broken_reads == 0


async def test_what_an_append_has_closed_is_loaded_anew_though_nobody_asks(start, autojump_clock):
    world = await start()
    log = world.hold(batches=[batch_of((b"k", b"1"))])
    log.go_online()
    await world.coordinator.ensure_ready("k")
    (before,) = world.coordinator.shards()
    log.refusals = [ErrorCode.KAFKA_STORAGE_ERROR]
    before.partition.write([(b"k", b"2")], lambda error: None)
    await trio.sleep(0.5)
    assert world.coordinator.shards() == []
    await trio.sleep(1.0)
    (shard,) = world.coordinator.shards()
    assert shard is not before
    assert shard.values == {b"k": b"1"}


@pytest.mark.parametrize("why", ["unreadable", "handed over", "lost"])
async def test_what_would_be_in_vain_is_not_loaded_anew(start, why, autojump_clock):
    world = await start()
    records = [(b"unreadable", b"?")] if why == "unreadable" else [(b"k", b"1")]
    log = world.hold(batches=[batch_of(*records)])
    log.go_online()
    await trio.sleep(0.5)
    if why == "handed over":
        log.is_closing = True
        world.coordinator.partitions[0].close()
    elif why == "lost":
        log.go_offline()
    assert world.coordinator.partitions == {}
    await trio.sleep(5.0)
    assert world.coordinator.partitions == {}
    assert len(world.coordinator.timers) == 0


async def test_a_log_that_is_lost_while_it_is_loaded_is_not_served(start):
    """It is lost with its last record: nothing is read that would tell."""
    world = await start()
    log = world.hold(batches=[batch_of((b"k", b"1"))])
    partition = world.coordinator.partitions[0]
    shard = partition.shard
    apply = shard.apply

    def lost_meanwhile(key, value, offset, producer_id):
        apply(key, value, offset, producer_id)
        log.go_offline()

    shard.apply = lost_meanwhile
    log.go_online()
    with trio.fail_after(60):
        await partition.settled.wait()
    await trio.testing.wait_all_tasks_blocked()
    assert shard.values == {b"k": b"1"}
    assert shard.calls == ["closed"]
    assert partition.state.value == "closed"
    assert world.coordinator.find("k") == (None, ErrorCode.NOT_COORDINATOR)


async def test_what_is_due_comes_once_at_its_time(start, autojump_clock):
    world = await start()
    timers = world.coordinator.timers
    fired = []

    class Timed:
        timer_at_ms = None

        def __init__(self, name):
            self.name = name

        def on_timer(self, now_ms):
            fired.append((self.name, now_ms - began_ms))

    a, b, c = map(Timed, "abc")
    began_ms = timers.now_ms()
    timers.arm(a, began_ms + 3000)
    timers.arm(b, began_ms + 1000)
    timers.arm(a, began_ms + 2000)  # instead
    timers.arm(c, began_ms + 500)
    timers.cancel(c)
    await trio.sleep(10)
    assert [name for name, _ in fired] == ["b", "a"]
    assert [at_ms // 1000 for _, at_ms in fired] == [1, 2]


async def test_who_stops_tells_its_shards(world_class):
    world = world_class()
    ended = trio.Event()

    async def task():
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with trio.open_nursery() as nursery:
        assert world.coordinator.find("k") == (None, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        await nursery.start(world.run, task)
        world.hold().go_online()
        await world.coordinator.ensure_ready("k")
        (shard,) = world.coordinator.shards()
        nursery.cancel_scope.cancel()
    assert ended.is_set()
    assert shard.calls == ["loaded", "closed"]
    assert world.coordinator.find("k") == (None, ErrorCode.COORDINATOR_NOT_AVAILABLE)
