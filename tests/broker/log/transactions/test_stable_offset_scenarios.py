"""Transactions in one partition, one situation each: what readers of committed records see."""

import trio

from broker.log.append.entry_format import KIND_ABORTED
from broker.log.read.scan import scan
from broker.log.transactions import aborted_list
from broker.log.transactions.aborted_index import decode_aborted
from wire.kafka.errors import ErrorCode


async def test_aborted_invisible_read_committed_visible_uncommitted(world, autojump_clock):
    world.put(2, pid=1)
    world.put(1)
    world.put(2, pid=2)
    world.end(1, commit=False)
    world.end(2, commit=True)
    await world.settle()
    assert world.log.last_stable_offset == world.log.high_watermark == 7
    assert await world.consume() == [2, 3, 4]
    got = await world.log.read(0, 1 << 20)
    assert got.next_offset == 7


async def test_lso_waits_for_marker_ack_not_marker_append(world, autojump_clock):
    world.put(2, pid=1)
    world.put(1)
    await world.settle()
    log = world.log
    assert (log.last_stable_offset, log.high_watermark) == (0, 3)
    world.wire.freeze()
    done = world.end(1, commit=False)
    await world.settle()
    assert not done
    assert log.producers.first_open_transaction_offset is None, "it has ended, as far as we know"
    assert (log.last_stable_offset, log.high_watermark) == (0, 3)
    world.wire.thaw()
    await world.settle()
    assert done
    assert (log.last_stable_offset, log.high_watermark) == (4, 4)


async def test_lso_never_goes_back_over_takeover(world, autojump_clock):
    """The marker that nobody acknowledged is lost with its writer."""
    world.put(2, pid=1)
    await world.settle()
    world.wire.freeze()
    world.end(1, commit=True)
    await world.settle()
    seen = world.log.last_stable_offset
    await world.crash()
    assert world.log.last_stable_offset == seen == 0
    world.end(1, commit=True)
    await world.settle()
    assert world.log.last_stable_offset == 3


async def test_fetch_cut_at_lso_inside_one_entry(world, autojump_clock):
    appends = [world.put(1), world.put(1, pid=1), world.put(1)]
    await world.settle()
    assert [each.base_offset for each in appends] == [0, 1, 2]
    assert world.log.segments[-1].reader.last_add_confirmed == 0, "they are one entry"
    headers, aborted, next_offset = await world.fetch(0)
    assert ([each.base_offset for each in headers], aborted, next_offset) == ([0], [], 1)


async def test_fetch_between_lso_and_hw_is_empty(world, autojump_clock):
    world.put(2, pid=1)
    world.put(3)
    await world.settle()
    for offset in range(6):
        assert await world.fetch(offset, hot=True) == ([], [], offset)


async def test_aborted_list_spans_ledgers_and_is_bounded(world, autojump_clock):
    """The rows are in later ledgers than the data, and none but those of the data is given."""
    firsts = []
    for number in range(5):
        firsts.append(world.put(1, pid=number).base_offset)
        await world.roll()
    await world.settle()
    for number in range(5):
        world.end(number, commit=False)
        await world.settle()
        await world.roll()
    for number in range(100, 140):
        world.put(1, pid=number)
        world.end(number, commit=False)
    await world.settle()
    assert len(world.log.segments) > 9
    _, aborted, end = await world.fetch(2, 1)
    assert end == 3
    assert [(each.producer_id, each.first_offset) for each in aborted] == [(0, 0), (1, 1), (2, 2)]
    assert await world.consume() == []


async def test_abort_begun_three_ledgers_ago_after_recovered_ledger(world, autojump_clock):
    """Its first offset is known of the snapshot with which the ledger after a recovered one
    begins; and again when the index is made anew."""
    world.put(1, pid=1)
    await world.settle()
    await world.crash()
    world.put(1, pid=2)
    await world.settle()
    await world.crash()
    world.put(1, pid=3)
    world.end(2, commit=False)
    await world.settle()
    await world.crash()
    world.put(1)
    world.end(1, commit=False)
    world.end(3, commit=True)
    await world.settle()
    for life in (world.crash, world.crash, world.restart):
        assert world.log.last_stable_offset == world.log.high_watermark == 7
        _, aborted, _ = await world.fetch(0, 1)
        assert [(each.producer_id, each.first_offset) for each in aborted] == [(1, 0)]
        assert await world.consume() == [2, 4]
        await life()


async def test_every_boundary_has_a_snapshot_on_one_side(world, autojump_clock):
    world.put(1, pid=1)
    await world.settle()
    await world.crash()
    assert world.log.chain.ledgers[-1].index_entry is None, "it was recovered"
    waiting = [world.put(1, pid=2), world.put(1, pid=1)]
    await world.settle()
    assert [each.base_offset for each in waiting] == [1, 2]
    assert world.log.chain.ledgers[-1].snapshot_entry == 0
    await world.restart()
    assert world.log.chain.ledgers[-1].snapshot_entry > world.log.chain.ledgers[-1].index_entry > 0


async def test_a_sealed_ledgers_index_is_read_and_not_made_anew(world, monkeypatch, autojump_clock):
    """Whole, though a part of its rows was written in front of a snapshot before."""
    for number in range(3):
        world.put(1, pid=number)
        world.end(number, commit=False)
        await world.settle()
        world.log.queue.push_snapshot()
    world.put(1, pid=7)
    world.end(7, commit=False)
    await world.roll()
    info = world.log.chain.ledgers[0]
    assert (info.aborted_entry, info.aborted_count) == (info.index_entry + 1, 4)
    assert info.snapshot_entry == info.aborted_entry + 1
    await world.restart()

    async def rebuilt(*_):
        raise AssertionError("the ledger is read whole")

    monkeypatch.setattr(aborted_list, "rebuild_aborted", rebuilt)
    assert world.log.transactions.aborted.find_nowait(0, 8) is None, "it is not in memory"
    _, aborted, _ = await world.fetch(0)
    assert [(each.producer_id, each.first_offset) for each in aborted] == [
        (0, 0), (1, 2), (2, 4), (7, 6),
    ]  # fmt: skip
    # The rows in front of each snapshot are those since the last one.
    reader = await world.log.segments[0].open()
    found = (await scan(reader, 0)).facts
    counts = [len(decode_aborted(f.content)) for f in found if f.header.kind == KIND_ABORTED]
    assert counts == [1, 1, 1, 4]


async def test_a_ledger_with_many_aborted_transactions_is_closed(world, autojump_clock):
    """Else its seal would write any number of rows in one turn of the loop."""
    world.settings.aborted_rows_max = 3
    for number in range(7):
        world.put(1, pid=number)
        world.end(number, commit=False)
        await world.settle()
    assert [each.info.aborted_count for each in world.log.segments] == [3, 3, 0]
    assert len(world.log.transactions.aborted.open) == 1
    assert len((await world.fetch(0))[1]) == 7


async def test_suspended_partition_gets_marker_later(world, autojump_clock):
    world.put(1, pid=1)
    await world.settle()
    await world.roll()
    world.log.is_suspended = True
    [refused] = world.end(1, commit=True)
    assert refused.error is ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.log.last_stable_offset == 0
    world.log.is_suspended = False
    done = world.end(1, commit=True)
    await world.settle()
    assert done[0].error is ErrorCode.NONE
    assert world.log.last_stable_offset == 2


async def test_a_marker_without_data_moves_nothing(world, autojump_clock):
    """KAFKA-10702: no row for it, and none is kept waiting."""
    world.put(1)
    world.end(1, commit=False)
    world.end(2, commit=True)
    await world.settle()
    assert len(world.log.transactions.aborted.open) == 0
    assert world.log.last_stable_offset == world.log.high_watermark == 3


async def test_zombie_coordinator_marker_52(world, autojump_clock):
    world.put(1, pid=1)
    world.end(1, commit=True, coordinator_epoch=5)
    world.put(1, pid=1)
    done = world.end(1, commit=False, coordinator_epoch=4)
    await world.settle()
    assert done[0].error is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert world.log.last_stable_offset == 2


async def test_marker_retry_same_epoch_after_lost_reply(world, autojump_clock):
    """KAFKA-19999, over a crash: the next owner knows it of the marker in the log."""
    world.put(1, pid=1, epoch=3)
    world.end(1, commit=True, epoch=4, version=2)
    await world.settle()
    await world.crash()
    done = world.end(1, commit=True, epoch=4, version=2)
    await world.settle()
    assert done[0].error is ErrorCode.NONE
    late = world.end(1, commit=True, epoch=3, version=2)
    await world.settle()
    assert late[0].error is ErrorCode.INVALID_PRODUCER_EPOCH


async def test_a_watcher_hears_when_the_lso_moves(world, autojump_clock):
    world.put(1, pid=1)
    await world.settle()
    heard = []
    world.log.watch(lambda: heard.append(world.log.last_stable_offset))
    world.end(1, commit=True)
    with trio.fail_after(10):
        while not heard:
            await trio.sleep(0.01)
    assert heard[-1] == 2


async def test_retention_keeps_newest_snapshot(world, autojump_clock):
    """And drops the ledger with it when the open ledger has a newer one. No record is read of it
    meanwhile, and the transaction that it tells of is open."""
    world.put(1, pid=1)
    await world.roll()
    old = world.log.segments[0].info.ledger_id
    assert await world.keeper.delete_records(1) == 1
    assert [each.info.ledger_id for each in world.log.segments] == [old], "there is no newer one"
    assert (world.log.log_start_offset, world.log.last_stable_offset) == (1, 1)
    await world.crash()
    assert world.log.producers.transaction_start(1) == 0
    world.put(1)
    await world.settle()
    world.keeper.check_retention()
    assert world.log.segments[0].info.ledger_id == old, "nothing newer is noted"
    world.log.queue.push_snapshot()
    await world.settle()
    assert old not in [each.info.ledger_id for each in world.log.segments]
    assert world.log.chain.ledgers[0].snapshot_entry is not None
    await world.crash()
    assert world.log.producers.transaction_start(1) == 0
    assert (world.log.last_stable_offset, world.log.high_watermark) == (1, 2)


async def test_retention_passes_open_transaction(world, autojump_clock):
    """Redpanda keeps all that an open transaction holds back, and disks fill behind one that hangs;
    Kafka, and this, do not."""
    world.config.retention_bytes = 1
    for _ in range(3):
        world.put(1, pid=1)
        world.put(1)
        await world.roll()
    world.put(1)
    await world.settle()
    world.keeper.check_retention()
    await world.settle()
    log = world.log
    assert log.log_start_offset == 6
    assert log.producers.transaction_start(1) == 0
    assert (log.last_stable_offset, log.high_watermark) == (6, 7)
    assert await world.fetch(6) == ([], [], 6)
    assert len(log.segments) == 1, "a snapshot was written for that"
    await world.crash()
    world.end(1, commit=False)
    await world.settle()
    assert log.producers.transaction_start(1) == 0
    assert world.log.last_stable_offset == 8
    assert await world.consume() == [6]


async def test_delete_records_into_open_transaction(world, autojump_clock):
    world.put(4, pid=1)
    world.put(2)
    world.put(2, pid=1)
    await world.settle()
    assert await world.keeper.delete_records(3) == 3
    assert world.log.last_stable_offset == 3
    assert await world.fetch(3) == ([], [], 3)
    world.end(1, commit=False)
    await world.settle()
    assert await world.consume() == [4, 5]
    for life in (world.crash, world.restart):
        await life()
        assert await world.consume() == [4, 5]


async def test_without_producers_nothing_is_kept(world, autojump_clock):
    """A closed ledger goes as it always did."""
    world.put(3)
    await world.roll()
    assert await world.keeper.delete_records(-1) == 3
    assert world.log.segments == []
