"""read_committed of ledgers on simulated bookies: what a reader is told of transactions."""

from pyspark_quire import planning
from pyspark_quire.planning import look_at, look_until
from pyspark_quire.stream_core import part_key
from pyspark_quire.streaming import StreamLooks
from tests.pyspark_quire.simulated import (
    SimulatedLog,
    entry,
    marker,
    of_transaction,
    options,
    records,
)

COMMITTED = {"isolation.level": "read_committed"}


async def overlapping(nursery):
    """Producer 8 is at work still, so the last stable offset is 1. Producer 7's abort, at offset
    2, is acknowledged, and the bookies are not told so before the next write."""
    log = SimulatedLog()
    await log.world.start(nursery)
    await log.open(
        0,
        entry(of_transaction(7, 0, b"aborted")),
        entry(of_transaction(8, 1, b"open")),
        entry(marker(7, 2, committed=False)),
    )
    await log.store_chain()
    return log


async def aborted_of(look):
    assert look.end_offset == 1
    return [(each.producer_id, each.first_offset) for each in await look.committed.aborted(0, 1)]


async def test_a_leaders_word_of_the_stable_offset_is_no_word_of_what_was_aborted_before_it(
    nursery, autojump_clock, monkeypatch
):
    log = await overlapping(nursery)
    monkeypatch.setattr(planning, "leader_ends", lambda *_, **__: {("t", 0): 1})
    given = options(**COMMITTED, **{"kafka.bootstrap.servers": "h:1"})
    [look] = await look_at(log.connection, given, [(log.topic, 0)])
    assert await aborted_of(look) == [(7, 0)]


async def test_a_streams_later_look_finds_what_was_aborted_before_its_end(nursery, autojump_clock):
    log = await overlapping(nursery)
    [look] = await look_until(log.connection, options(**COMMITTED), {(log.topic, 0): 1})
    assert await aborted_of(look) == [(7, 0)]


async def test_the_stable_offset_is_not_before_the_logs_start(nursery, autojump_clock):
    """As Kafka's: where retention overtook an open transaction, a stream from `latest` would begin
    at what is not there any more, and fail for it with its first batch."""
    log = SimulatedLog()
    await log.world.start(nursery)
    await log.open(0, entry(of_transaction(7, 0, b"open")), entry(records(1, b"a", b"b")))
    await log.append(entry(records(3, b"c")))
    log.log_start = 2
    await log.store_chain()
    looks = StreamLooks(options(is_stream=True, **COMMITTED))
    assert (await looks._initial(log.connection))[part_key(log.topic.id, 0)] >= 2
