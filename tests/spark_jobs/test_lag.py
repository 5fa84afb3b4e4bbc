"""Committed offsets and their times, from ledgers on simulated bookies."""

from dataclasses import replace

import trio

from broker.groups.offsets.offsets_core import CommittedOffset
from broker.groups.records import offset_record
from pyspark_quire.connection import Where
from pyspark_quire.partitions import read_view
from spark_jobs import lag
from spark_jobs.lag import CommitsPiece, Committed, _last_commits, _with_time, read_commits
from tests.pyspark_quire.simulated import (
    SimulatedLog,
    entry,
    marker,
    of_transaction,
    records,
)
from wire.kafka.records.batch import build_batch
from wire.kafka.records.record import Record


async def time_of(log, offset):
    await log.store_chain()
    found = await _with_time(log.connection, log.topic, Committed("g", "t", 0, offset))
    return found.next_timestamp_ms


async def test_the_time_behind_a_hole_is_that_of_the_next_record(nursery, autojump_clock):
    log = SimulatedLog()
    await log.world.start(nursery)
    await log.open(0, entry(records(0, b"a", times=[10])), entry(records(5, b"b", times=[50])))
    await log.close(5, generation=1)
    await log.open(6, entry(records(6, b"c", times=[60])), entry(records(7, b"d")))
    assert await time_of(log, 0) == 10
    assert await time_of(log, 5) == 50
    assert await time_of(log, 2) == 50


async def test_the_time_behind_a_marker_is_that_of_the_next_record(nursery, autojump_clock):
    """Where a consumer of transactions stands: it has read the last record, and not the marker."""
    log = SimulatedLog()
    await log.world.start(nursery)
    await log.open(
        0,
        entry(of_transaction(7, 0, b"a")),
        entry(marker(7, 1, committed=True)),
        entry(records(2, b"b", times=[70])),
        entry(records(3, b"c", times=[80])),
    )
    assert await time_of(log, 1) == 70


def commit(offset, at, **more):
    key, value = offset_record("g", "t", 0, CommittedOffset(at, -1, "", 0))
    return build_batch([Record(0, 0, key, value, [])], base_offset=offset, **more)


async def test_offsets_of_an_aborted_transaction_are_not_committed(nursery, autojump_clock):
    """Nor are those of one that is not decided (TxnOffsetCommit)."""
    log = SimulatedLog(name="__consumer_offsets")
    await log.world.start(nursery)
    transaction = {"is_transactional": True, "producer_epoch": 0, "base_sequence": 0}
    await log.open(
        0,
        entry(commit(0, 5)),
        entry(commit(1, 100, producer_id=7, **transaction)),
        entry(marker(7, 2, committed=False)),
        entry(commit(3, 200, producer_id=8, **transaction)),
        entry(records(4, b"later")),
    )
    await log.store_chain()
    view = await read_view(log.connection, log.topic, 0, high_watermark=4)
    assert await _last_commits(log.connection, view) == [Committed("g", "t", 0, 5)]


async def test_a_ledger_that_the_cleaner_took_is_no_end_of_a_report(
    nursery, autojump_clock, monkeypatch
):
    """`__consumer_offsets` is compacted all the time. What took the ledger's place has its
    records; a plan is made anew for that, and so is this look."""
    log = SimulatedLog(name="__consumer_offsets")
    await log.world.start(nursery)
    await log.open(0, entry(commit(0, 5)))
    await log.close(0)
    old = log.infos[0]
    await log.open(1, entry(commit(1, 6)), entry(records(2, b"later")))
    await log.store_chain()
    looks = [await read_view(log.connection, log.topic, 0)]  # one from before the swap
    writer = await log.world.create(3, 3, 2)
    writer.append_nowait([entry(commit(0, 5))], lambda *_: None)
    await writer.close()
    log.infos[0] = replace(old, ledger_id=writer.ledger_id, generation=1)
    await log.store_chain()
    await log.world.client.delete_ledger(old.ledger_id)

    async def look(*args, **more):
        return looks.pop() if looks else await read_view(*args, **more)

    def run_within(_where, _seconds, work):
        return trio.from_thread.run(work, log.connection)

    monkeypatch.setattr(lag, "read_view", look)
    monkeypatch.setattr(lag, "run_within", run_within)
    piece = CommitsPiece(Where("zk+hierarchical://h/ledgers"), log.topic, (0,))
    found = await trio.to_thread.run_sync(read_commits, piece)
    assert found == [Committed("g", "t", 0, 6)]
