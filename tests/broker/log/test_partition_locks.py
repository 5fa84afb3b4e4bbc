"""Optimistic locks of a partition: what comes before them, what their answers wait for, and what a
take-over and a change of settings make of the table."""

import random

import pytest
import trio

from broker.log.partition import State
from quire.tools.locks.audit_core import Audit
from wire.kafka.errors import ErrorCode
from wire.kafka.records.batch import build_batch
from wire.kafka.records.compression import Compression
from wire.kafka.records.record import Record

P, R, W, A = "quire.position", "quire.lock.read", "quire.lock.write", "quire.lock.append"


def headers(position=None, *, read=(), write=(), append=()):
    found = [] if position is None else [(P, b"%d" % position)]
    for name, ids in ((R, read), (W, write), (A, append)):
        found += [(name, lock) for lock in ids]
    return found


def batch(*records, **options):
    """Of the headers of each."""
    made = [Record(n, 0, None, b"v%d" % n, some) for n, some in enumerate(records)]
    return build_batch(made, **options)


def write(position, *ids, **options):
    return batch(headers(position, write=ids), **options)


async def online(broker):
    with trio.fail_after(120):
        while (log := broker.log()) is None or log.state is not State.ONLINE:
            await trio.sleep(0.01)
    return log


async def until(condition):
    with trio.fail_after(30):
        while not condition():
            await trio.sleep(0.01)


@pytest.fixture
async def started(sim, nursery, autojump_clock):
    """A cluster of two brokers; topic «t» of one partition with locks, led by broker 1."""
    clusters = []

    async def start(**configs):
        cluster = sim.Cluster(delay_s=0.02)
        clusters.append(cluster)
        cluster.one = await cluster.start(nursery, 1)
        cluster.two = await cluster.start(nursery, 2)
        configs = {"quire_locks": "optional", **configs}
        topic = await cluster.create_topic(cluster.one, 1, **configs)
        cluster.assignments.assign(topic.id, 0, 1)
        await online(cluster.one)
        return cluster

    yield start
    for cluster in clusters:
        for broker in (cluster.one, cluster.two):
            if not broker.wire.dead:
                await broker.kill()


def put(log, data):
    """Where the answer comes."""
    answers = []
    log.append_nowait(memoryview(bytearray(data)), answers.append)
    return answers


async def answer(log, data):
    """(base offset, None), or (error, message)."""
    answers = put(log, data)
    await until(lambda: answers)
    (told,) = answers
    return (told.error.name, told.error_message) if told.error else (told.base_offset, None)


CONFLICT = "LOCK_CONFLICT position={} conflict={} lock={}".format


async def test_scenario_2_to_5_on_a_log(autojump_clock, started):
    log = (await started()).one.log()
    assert await answer(log, write(0, b"x")) == (0, None)
    assert await answer(log, write(0, b"x")) == ("INVALID_RECORD", CONFLICT(0, 0, "x"))
    assert await answer(log, batch(headers(0, read=[b"y"]))) == (1, None)
    assert await answer(log, batch(headers(0, read=[b"y"]))) == (2, None)
    assert (await answer(log, batch(headers(0, read=[b"x"]))))[0] == "INVALID_RECORD"
    for offset in (3, 4):
        assert await answer(log, batch(headers(append=[b"sum"]))) == (offset, None)
    assert await answer(log, write(4, b"sum")) == ("INVALID_RECORD", CONFLICT(4, 4, "sum"))
    assert await answer(log, write(5, b"sum")) == (5, None)
    assert log.next_offset == 6


async def test_scenario_6_the_answer_waits_for_what_it_conflicts_with(autojump_clock, started):
    cluster = await started()
    log = cluster.one.log()
    await answer(log, batch([]))  # a ledger is there
    cluster.one.wire.freeze()
    first, second = put(log, write(1, b"x")), put(log, write(1, b"x"))
    at_once = put(log, batch(headers(0, write=[b"a"]), headers(0, read=[b"a"])))
    await trio.sleep(1)
    assert (first, second) == ([], [])
    assert at_once[0].error_message == CONFLICT(0, -1, "a"), "nothing is there to be waited for"
    assert list(at_once[0].record_indexes) == [1]
    cluster.one.wire.thaw()
    await until(lambda: second)
    assert first[0].base_offset == 1
    assert log.high_watermark == 2
    assert second[0].error_message == CONFLICT(1, 1, "x")
    counts = cluster.one.manager.checks.lock_counts
    assert (counts.accepted, counts.conflicts, counts.in_flight_conflicts) == (1, 1, 1)


async def test_scenario_6_with_what_is_on_its_way_already(autojump_clock, started):
    """The first is with the bookies when the second is asked about."""
    cluster = await started()
    log = cluster.one.log()
    await answer(log, batch([]))
    cluster.one.wire.freeze()
    first = put(log, write(1, b"x"))
    await trio.sleep(1)
    assert log.queue.pushed_offset == 2
    second = put(log, write(1, b"x"))
    await trio.sleep(1)
    assert (first, second) == ([], [])
    cluster.one.wire.thaw()
    await until(lambda: second)
    assert first[0].base_offset == 1
    assert second[0].error_message == CONFLICT(1, 1, "x")


async def test_nobody_can_have_applied_what_is_not_acknowledged(autojump_clock, started):
    cluster = await started()
    log = cluster.one.log()
    await answer(log, batch([]))
    cluster.one.wire.freeze()
    first, second = put(log, write(1, b"x")), put(log, write(2, b"y"))
    await trio.sleep(1)
    cluster.one.wire.thaw()
    await until(lambda: first and second)
    assert first[0].base_offset == 1
    assert second[0].error_message == "POSITION_AHEAD position=2 end=1"


async def test_of_several_conflicts_the_answer_waits_for_the_last(autojump_clock, started):
    cluster = await started()
    log = cluster.one.log()
    await answer(log, write(0, b"old"))
    cluster.one.wire.freeze()
    first = put(log, write(1, b"new"))
    second = put(log, batch(headers(0, read=[b"old"]), headers(1, read=[b"new"])))
    await trio.sleep(1)
    assert (first, second) == ([], [])
    cluster.one.wire.thaw()
    await until(lambda: second)
    assert first[0].base_offset == 1
    assert list(second[0].record_messages) == [CONFLICT(0, 0, "old"), CONFLICT(1, 1, "new")]


@pytest.mark.parametrize("compression", [Compression.GZIP, Compression.ZSTD])
async def test_locks_in_packed_batches(autojump_clock, started, compression):
    log = (await started()).one.log()
    assert await answer(log, write(0, b"x", compression=compression)) == (0, None)
    for options in ({}, {"compression": compression}):
        told = await answer(log, write(0, b"x", **options))
        assert told == ("INVALID_RECORD", CONFLICT(0, 0, "x"))


async def test_scenario_7_the_broker_dies_before_the_ack(autojump_clock, started):
    cluster = await started()
    log = cluster.one.log()
    await answer(log, batch([]))
    cluster.one.wire.freeze()
    first, second = put(log, write(1, b"x")), put(log, write(1, b"x"))
    await trio.sleep(0.1)
    log.go_offline("killed")
    assert [one[0].error for one in (first, second)] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    await cluster.one.kill()
    cluster.assignments.assign(cluster.topic.id, 0, 2)
    new = await online(cluster.two)
    end = new.next_offset
    assert await answer(new, write(1, b"x")) == (
        (end, None) if end == 1 else ("INVALID_RECORD", CONFLICT(1, end - 1, "x"))
    )


async def test_scenario_8_a_duplicate_is_answered_before_its_locks_are_asked(
    autojump_clock, started
):
    log = (await started()).one.log()
    data = write(0, b"x", producer_id=7, producer_epoch=0, base_sequence=0)
    assert await answer(log, data) == (0, None)
    assert await answer(log, data) == (0, None)
    assert log.next_offset == 1


async def test_what_is_behind_a_new_producers_refused_batch_is_no_beginning(
    autojump_clock, started
):
    """As behind a known one's. Taken, it would be number 1, which a client that counts back gives
    to what it sends next: that would be called a duplicate, and be nowhere."""
    log = (await started()).one.log()
    assert await answer(log, write(0, b"x")) == (0, None)
    producer = {"producer_id": 7, "producer_epoch": 0}
    refused = put(log, write(0, b"x", **producer, base_sequence=0))
    behind = put(log, write(1, b"y", **producer, base_sequence=1))
    await until(lambda: refused and behind)
    assert refused[0].error_message == CONFLICT(0, 0, "x")
    assert behind[0].error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await answer(log, write(1, b"y", **producer, base_sequence=0)) == (1, None)
    assert await answer(log, write(1, b"z", **producer, base_sequence=1)) == (2, None)


async def test_scenario_12_a_take_over_refuses_who_has_not_caught_up(autojump_clock, started):
    cluster = await started()
    log = cluster.one.log()
    for n in range(3):
        await answer(log, write(n, b"%d" % n))
    await cluster.one.kill()
    cluster.assignments.assign(cluster.topic.id, 0, 2)
    new = await online(cluster.two)
    assert await answer(new, write(2, b"new")) == ("INVALID_RECORD", CONFLICT(2, 2, "new"))
    assert await answer(new, write(3, b"new")) == (3, None)


async def test_scenario_13_a_deposed_owner_does_not_say_that_a_position_is_ahead(
    autojump_clock, started
):
    cluster = await started()
    old = cluster.one.log()
    await answer(old, write(0, b"x"))
    cluster.one.ownership.is_deaf = True
    cluster.one.wire.freeze()
    cluster.assignments.alive.discard(cluster.one.incarnation)
    cluster.assignments.assign(cluster.topic.id, 0, 2)
    new = await online(cluster.two)
    assert await answer(new, write(1, b"x")) == (1, None)
    answers = put(old, write(2, b"x"))
    await trio.sleep(0.5)
    assert answers == []
    cluster.one.wire.thaw()
    await until(lambda: answers)
    assert answers[0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_scenario_15_a_position_beyond_the_end(autojump_clock, started):
    log = (await started()).one.log()
    await answer(log, write(0, b"x"))
    assert await answer(log, write(2, b"x")) == (
        "INVALID_RECORD",
        "POSITION_AHEAD position=2 end=1",
    )
    assert await answer(log, write(1, b"x")) == (1, None)


async def set_config(cluster, **configs):
    texts = {key.replace("_", "."): value for key, value in configs.items()}
    catalog, log = cluster.one.catalog, cluster.one.log()
    before = log.config
    await catalog.change_configs("t", lambda topic: {**topic.configs, **texts})
    await until(lambda: log.config is not before)


async def test_scenario_18_switched_on_while_others_write(autojump_clock, started):
    """What was written while nobody looked counts as written by everybody."""
    cluster = await started(quire_locks="off")
    log = cluster.one.log()
    assert await answer(log, write(9, b"x")) == (0, None), "the headers mean nothing"
    assert log.locks.table is None
    await set_config(cluster, quire_locks="optional")
    assert await answer(log, write(0, b"y")) == ("INVALID_RECORD", CONFLICT(0, 0, "y"))
    assert await answer(log, write(1, b"y")) == (1, None)
    await set_config(cluster, quire_locks="off")
    assert await answer(log, write(0, b"x")) == (2, None)
    assert log.locks.table is None
    await set_config(cluster, quire_locks="optional")
    assert await answer(log, write(2, b"z")) == ("INVALID_RECORD", CONFLICT(2, 2, "z"))
    assert await answer(log, write(3, b"z")) == (3, None)


async def test_what_was_checked_without_locks_and_is_numbered_with_them(autojump_clock, started):
    """Its locks are not known: it counts as one that wrote all."""
    cluster = await started()
    log = cluster.one.log()
    await answer(log, write(0, b"x"))
    on = log.config
    await set_config(cluster, quire_locks="off")
    taken = []
    accept, log.accept = log.accept, lambda *some: taken.append(some)
    put(log, batch([], headers(0, write=[b"secret"])))
    log.accept = accept
    log.config = on
    log.accept(*taken[0])
    await until(lambda: log.high_watermark == 3)
    assert await answer(log, write(2, b"secret")) == (
        "INVALID_RECORD", CONFLICT(2, 2, "secret")
    )  # fmt: skip
    assert await answer(log, write(3, b"secret")) == (3, None)


async def test_scenario_19_another_size_refuses_too_much_and_never_too_little(
    autojump_clock, started
):
    cluster = await started()
    log = cluster.one.log()
    await answer(log, write(0, b"x"))
    await answer(log, write(0, b"y"))
    await set_config(cluster, quire_locks_table_size="2000")
    assert (await answer(log, write(0, b"x")))[0] == "INVALID_RECORD"
    assert (await answer(log, write(1, b"y")))[0] == "INVALID_RECORD"
    assert await answer(log, write(1, b"z")) == ("INVALID_RECORD", CONFLICT(1, 1, "z"))
    assert log.locks.table.size == 2000
    assert await answer(log, write(2, b"z")) == (2, None)


async def test_scenarios_18_and_19_while_others_write(autojump_clock, started):
    """Settings change under load; what was taken while there were locks is valid by the rule that
    knows of no tables, and something is taken all the time."""
    cluster = await started()
    log, rng = cluster.one.log(), random.Random(19)
    taken, is_over = {}, False

    async def writer():
        while not is_over:
            position = max(0, log.high_watermark - rng.randrange(4))
            some = headers(position, write=[b"%d" % rng.randrange(3)])
            answers = put(log, batch(some))
            await until(lambda answers=answers: answers)
            if not answers[0].error:
                taken[answers[0].base_offset] = some
            await trio.sleep(rng.random() / 10)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(writer)
        for number in range(8):
            count = len(taken)
            await until(lambda count=count: len(taken) > count + 5)
            size = {"quire_locks_table_size": str(2_000 + number)}
            await set_config(cluster, quire_locks=("required", "optional")[number % 2], **size)
        is_over = True
    audit = Audit()
    assert [audit.look(offset, taken[offset]) for offset in sorted(taken)] == [[]] * len(taken)
    assert cluster.one.manager.checks.lock_counts.conflicts > 20


async def test_records_without_locks_mark_nothing(autojump_clock, started):
    log = (await started()).one.log()
    for n in range(3):
        assert await answer(log, batch([("other", b"x")])) == (n, None)
    assert await answer(log, write(0, b"x")) == (3, None)


async def test_without_bookies_nobody_is_told_of_conflicts(autojump_clock, started):
    """NOT_ENOUGH_REPLICAS will pass, and is retried by all clients."""
    cluster = await started()
    log = cluster.one.log()
    await answer(log, write(0, b"x"))
    log.is_suspended, log.queue.sealed = True, True
    assert (await answer(log, write(0, b"x")))[0] == "NOT_ENOUGH_REPLICAS"
