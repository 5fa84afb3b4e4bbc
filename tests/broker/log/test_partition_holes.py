"""Readers of a log that compaction thinned out: holes, batches without records, joined epochs."""

import pytest
import trio

from broker.coordinator.loading import load_records
from broker.log.append.entry_format import KIND_BATCHES, pack_header
from broker.log.life.swap import SwapOutcome
from broker.log.partition import State
from broker.log.read.batch_walk import collect
from broker.log.settings import LogSettings
from ledger.client import LedgerClient
from tests.broker.log.test_partition import World, batch, records_of
from tests.broker.log.thinning import swap_of
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.records.batch import TimestampType, build_batch, scan_batches
from wire.kafka.records.record import Record

VALUE = bytes(200)


@pytest.fixture
async def world(tmp_path, nursery):
    world = World(str(tmp_path), nursery, LogSettings())
    world.config.segment_bytes = 200
    world.config.file_delete_delay_ms = 60_000
    await world.start()
    return world


async def until(condition, seconds=30):
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.002)


async def closed(world, *values, **options):
    """One more ledger, of one batch."""
    await world.append(*(value + VALUE for value in values), **options)
    await until(lambda: not world.log.chain.ledgers[-1].is_open)


async def swapped(world, start, stop, keep, **options):
    swap = await swap_of(world, world.log.chain.ledgers[start:stop], keep, **options)
    with trio.fail_after(20):
        assert await world.keeper.swap(swap) is SwapOutcome.DONE
    return swap.infos[0]


async def cold(world):
    """Nothing of the ledgers is in memory."""
    for segment in world.log.segments:
        segment.reader = segment.index = None
        segment._cursors.clear()


def headers_of(got):
    return list(scan_batches(memoryview(b"".join(got.parts))))


async def test_fetch_from_every_offset_gives_suffix(world):
    for number in range(8):
        await closed(world, *(b"%d" % (3 * number + n) for n in range(3)))
    kept = {0, 4, 5, 13, 19, 23}
    await swapped(world, 0, 4, kept.__contains__)
    await swapped(world, 1, 5, kept.__contains__, drop_empty=False)
    assert len(world.log.segments) == 2
    for is_cold in (True, False):
        for size_max in (1, 300, 1 << 20):
            for offset in range(25):
                if is_cold:
                    await cold(world)
                found, position = [], offset
                while position < world.log.high_watermark:
                    got = await world.log.read(position, size_max)
                    found += [number for number, _ in records_of(got) if number >= offset]
                    assert got.next_offset > position
                    position = got.next_offset
                assert found == [number for number in sorted(kept) if number >= offset]


def look_back(monkeypatch, ledger_id, last_add_confirmed):
    """Whoever is asked for the ledger's metadata has not heard yet that it is closed."""
    open_ledger = LedgerClient.open_ledger

    async def behind(self, asked, **options):
        reader = await open_ledger(self, asked, **options)
        if asked == ledger_id:
            reader.last_add_confirmed = last_add_confirmed
        return reader

    monkeypatch.setattr(LedgerClient, "open_ledger", behind)


@pytest.mark.parametrize("known", [-1, 0, 1, 3])
async def test_an_end_that_is_not_known_is_no_hole(world, monkeypatch, known):
    for number in range(3):
        await closed(world, b"%d" % number)
    await cold(world)
    look_back(monkeypatch, world.log.chain.ledgers[1].ledger_id, known)
    with pytest.raises(KafkaError, match="the chain knows of 3") as caught:
        await world.log.read(1, 1 << 20)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    monkeypatch.undo()
    got = records_of(await world.log.read(1, 1 << 20))
    assert next(iter(got)) == (1, b"1" + VALUE)


@pytest.mark.parametrize("known", [-1, 0, 1])
async def test_no_take_over_goes_by_such_an_end(world, monkeypatch, known):
    """It would lack what producers have sent, and take a retry for news."""
    sent = {"producer_id": 7, "producer_epoch": 0}
    for number in range(2):
        await closed(world, b"%d" % number, base_sequence=number, **sent)
    look_back(monkeypatch, world.log.chain.ledgers[-1].ledger_id, known)
    with pytest.raises(AssertionError):
        await world.restart()
    assert world.log.state is State.OFFLINE
    monkeypatch.undo()
    await world.open()
    again = await world.append(b"1" + VALUE, base_sequence=1, **sent)
    assert (again.base_offset, world.log.next_offset) == (1, 2)


@pytest.mark.parametrize(("crash_count", "snapshot_entry"), [(1, None), (2, 0)])
@pytest.mark.parametrize("known", [-1, 0])
async def test_nor_where_a_recovery_closed_the_ledger(
    world, monkeypatch, known, crash_count, snapshot_entry
):
    """So that it has no snapshot, or begins with one: what follows is replayed."""
    sent = {"producer_id": 7, "producer_epoch": 0}
    world.config.segment_bytes = 1 << 20
    count = 0
    for _ in range(crash_count):
        for _ in range(2):
            await world.append(b"%d" % count, base_sequence=count, **sent)
            count += 1
        await world.crash()
    info = world.log.chain.ledgers[-1]
    assert not info.is_open
    assert info.snapshot_entry == snapshot_entry
    look_back(monkeypatch, info.ledger_id, known)
    with pytest.raises(AssertionError):
        await world.crash()
    assert world.log.state is State.OFFLINE
    monkeypatch.undo()
    await world.open()
    again = await world.append(b"last", base_sequence=count - 1, **sent)
    assert (again.base_offset, world.log.next_offset) == (count - 1, count)


@pytest.mark.parametrize("is_cold", [True, False])
async def test_fetch_in_hole_at_ledger_end_cold_cache(world, is_cold):
    """Not what a cleaner leaves: its last batch reaches the range's end."""
    for number in range(3):
        await closed(world, b"%d" % (2 * number), b"%d" % (2 * number + 1))
    await swapped(world, 0, 2, {0}.__contains__, has_end=False)
    for offset in (2, 3):
        if is_cold:
            await cold(world)
        else:
            await world.values()
        got = await world.log.read(offset, 1 << 20)
        assert got.next_offset == 6
        assert [number for number, _ in records_of(got)][-1] == 5


async def test_hole_at_the_log_end(world):
    await closed(world, b"0", b"1")
    await closed(world, b"2", b"3")
    await swapped(world, 0, 2, {0}.__contains__, has_end=False)
    await cold(world)
    got = await world.log.read(2, 1 << 20)
    assert (got.parts, got.next_offset) == ([], 4)


@pytest.mark.parametrize("is_cold", [True, False])
async def test_range_end_placeholder(world, is_cold):
    """A log that compaction emptied has its end, and a read comes to it."""
    await closed(world, b"0", b"1")
    await closed(world, b"2", b"3")
    await swapped(world, 0, 2, {0}.__contains__)
    await world.restart()
    assert (world.log.high_watermark, world.log.log_start_offset) == (4, 0)
    if not is_cold:
        await world.values()
    for offset in (1, 2, 3):
        got = await world.log.read(offset, 1 << 20)
        assert [header.record_count for header in headers_of(got)][-1] == 0
        assert (got.next_offset, got.has_records) == (4, False or offset < 2)
    appended = await world.append(b"4")
    assert appended.base_offset == 4


async def test_leading_empty_batches_small_max_bytes(world):
    for number in range(6):
        await closed(world, b"%d" % number)
    await swapped(world, 0, 3, set().__contains__, drop_empty=False)
    await swapped(world, 1, 3, {4}.__contains__, drop_empty=False)
    for is_cold in (True, False):
        if is_cold:
            await cold(world)
        got = await world.log.read(0, 1)
        assert [header.record_count for header in headers_of(got)] == [0, 0, 0, 0, 1]
        assert got.next_offset == 5
        got = await world.log.read(1, 150)
        assert [header.record_count for header in headers_of(got)] == [0, 0, 0, 1]
    # Where it is not the first partition of an answer: nothing rather than nothing but these.
    got = await world.log.reader.read(0, 150, at_least_one=False)
    assert (got.parts, got.next_offset) == ([], 0)
    got = world.log.reader.read_nowait(0, 150, at_least_one=False)
    assert got.parts == []
    await world.values()
    got = world.log.reader.read_nowait(0, 1 << 20, at_least_one=False)
    assert [number for number, _ in records_of(got)] == [4, 5]
    # Many entries of them are gone on with after a turn, and what has records is given.
    assert world.log.reader.read_nowait(0, 1 << 20, entries_max=1) is None
    got = world.log.reader.read_nowait(4, 1 << 20, entries_max=1)
    assert [number for number, _ in records_of(got)] == [4]


def test_many_leading_empty_batches_come_in_turns():
    """17,000 of them before a record were one turn of the loop."""
    empty = build_batch([], base_offset=0, last_offset_delta=0)
    assert len(empty) == 61

    def entry(first, count):
        headers = b"".join(
            build_batch([], base_offset=first + n, last_offset_delta=0) for n in range(count)
        )
        return memoryview(pack_header(KIND_BATCHES, first, count) + headers)

    entries = [entry(2000 * n, 2000) for n in range(4)]
    record = build_batch([Record(0, 0, b"k", b"v")], base_offset=8000)
    entries.append(memoryview(pack_header(KIND_BATCHES, 8000, 1) + record))
    offset, turns = 0, []
    while True:
        got = collect(entries[offset // 2000 :], offset, 100, at_least_one=True)
        turns.append(got.size_bytes)
        if got.has_records:
            break
        assert got.is_cut
        offset = got.next_offset
    assert (len(turns), got.next_offset) == (5, 8001)
    assert max(turns) == 2000 * 61


async def test_a_read_goes_on_behind_many_empty_batches(world, monkeypatch):
    monkeypatch.setattr("broker.log.read.batch_walk.EMPTY_BYTES_MAX", 100)
    for number in range(8):
        await closed(world, b"%d" % number)
    await swapped(world, 0, 4, set().__contains__, drop_empty=False)
    await swapped(world, 1, 5, {7}.__contains__, drop_empty=False)
    for is_cold in (True, False):
        if is_cold:
            await cold(world)
        assert is_cold or world.log.reader.read_nowait(0, 1) is None
        got = await world.log.read(0, 1)
        assert [header.record_count for header in headers_of(got)] == [0] * 7 + [1]
        assert got.next_offset == 8
        assert await world.values() == [(7, b"7" + VALUE)]


def test_leading_empty_batches_of_one_entry():
    def make(base, count):
        return build_batch([Record(i, 0, b"k", b"v") for i in range(count)], base_offset=base,
                           last_offset_delta=9)  # fmt: skip

    whole = [make(0, 0), make(10, 0), make(20, 3), make(30, 2)]
    entries = [
        memoryview(pack_header(KIND_BATCHES, 0, 20) + whole[0] + whole[1]),
        memoryview(pack_header(KIND_BATCHES, 20, 20) + whole[2] + whole[3]),
    ]
    got = collect(entries, 0, 1, at_least_one=True)
    assert (got.next_offset, got.has_records, got.full) == (30, True, True)
    got = collect(entries, 0, 130, at_least_one=True)
    assert got.next_offset == 30
    got = collect(entries, 0, 130, at_least_one=False)
    assert (got.next_offset, got.has_records, got.full) == (20, False, True)
    got = collect(entries[:1], 0, 1000, at_least_one=True)
    assert (got.next_offset, got.has_records, got.full) == (20, False, False)


async def test_list_offsets_by_time_and_max_after_thinning(world):
    await closed(world, b"0", b"1", b"2", timestamp=1000)  # 1000, 1001, 1002
    await closed(world, b"3", b"4", b"5", timestamp=2000)
    await closed(world, b"6", b"7", timestamp=500)
    assert await world.log.reader.max_timestamp_offset() == (5, 2002)
    await swapped(world, 0, 2, {2, 3}.__contains__)
    assert await world.log.reader.max_timestamp_offset() == (3, 2000)
    assert await world.log.reader.offset_for_timestamp(0) == (2, 1002)
    assert await world.log.reader.offset_for_timestamp(1003) == (3, 2000)
    assert await world.log.reader.offset_for_timestamp(2001) is None
    await swapped(world, 0, 1, set().__contains__)
    assert await world.log.reader.max_timestamp_offset() == (7, 501)
    assert await world.log.reader.offset_for_timestamp(0) == (6, 500)


async def test_the_largest_time_is_of_what_is_behind_the_log_start(world):
    """Also where the ledger that has a larger one is there still, in part or for its snapshot."""
    await closed(world, b"0", b"1", timestamp=9000)  # 9000, 9001
    await closed(world, b"2", b"3", b"4", b"5", timestamp=5000)  # 5000 to 5003
    await closed(world, b"6", timestamp=1000)
    assert await world.log.reader.max_timestamp_offset() == (1, 9001)
    await world.keeper.delete_records(1)
    assert await world.log.reader.max_timestamp_offset() == (1, 9001)
    kept = world.log.segments[0]
    await world.keeper.delete_records(2)
    if world.log.segments[0] is not kept:
        world.log.segments.insert(0, kept)  # as where producers are known of it alone
    assert await world.log.reader.max_timestamp_offset() == (5, 5003)
    assert await world.log.reader.offset_for_timestamp(5004) is None
    world.log.segments[:] = [each for each in world.log.segments if each is not kept]
    await world.keeper.delete_records(6)
    assert await world.log.reader.max_timestamp_offset() == (6, 1000)


async def test_the_largest_time_of_the_rest_of_a_ledger(world):
    await closed(world, b"0", b"1", b"2", timestamp=9000, step=-1000)  # 9000, 8000, 7000
    await closed(world, b"3", timestamp=7500)
    await closed(world, b"4", timestamp=7000)
    for start, expected in ((0, (0, 9000)), (1, (1, 8000)), (2, (3, 7500)), (4, (4, 7000))):
        await world.keeper.delete_records(start)
        assert await world.log.reader.max_timestamp_offset() == expected


async def test_list_offsets_skips_empty_batch(world):
    """Its header may keep the largest time of what it held."""
    await closed(world, b"0", timestamp=5000)
    await closed(world, b"1", timestamp=4000)
    await swapped(world, 0, 2, {1}.__contains__, drop_empty=False)
    assert await world.log.reader.offset_for_timestamp(4000) == (1, 4000)
    assert await world.log.reader.offset_for_timestamp(4500) is None
    assert await world.log.reader.max_timestamp_offset() == (1, 4000)


async def test_log_append_time_names_a_record_that_exists(world):
    world.config.message_timestamp_type = "LogAppendTime"
    await closed(world, b"0", b"1", b"2", b"3")
    time_ms = world.log.segments[0].max_timestamp
    await swapped(world, 0, 1, {2, 3}.__contains__)
    assert await world.log.reader.offset_for_timestamp(time_ms) == (2, time_ms)
    await world.keeper.delete_records(3)
    assert await world.log.reader.offset_for_timestamp(time_ms) == (3, time_ms)
    (header,) = headers_of(await world.log.read(3, 1000))
    assert header.timestamp_type == TimestampType.LOG_APPEND_TIME


async def test_merge_over_leader_epochs_offset_for_leader_epoch(world):
    for number in range(6):  # epochs 0, 0, 1, 2, 2, 3
        await closed(world, b"%d" % (2 * number), b"%d" % (2 * number + 1))
        if number in (1, 2, 4):
            await world.restart()
    assert [info.leader_epoch for info in world.log.chain.ledgers] == [0, 0, 1, 2, 2, 3]
    ends = [world.log.end_offset_for_epoch(epoch) for epoch in range(-1, 6)]
    epochs = [world.log.epoch_of(offset) for offset in range(13)]
    assert ends[1:5] == [(0, 4), (1, 6), (2, 10), (3, 12)]
    for start, stop in ((0, 2), (0, 3), (1, 3), (0, 2)):
        info = await swapped(world, start, stop, {0, 5, 11}.__contains__)
        assert [world.log.end_offset_for_epoch(epoch) for epoch in range(-1, 6)] == ends
        assert [world.log.epoch_of(offset) for offset in range(13)] == epochs
    assert info.epochs == ((0, 0), (1, 4), (2, 6), (3, 10))
    await world.restart()
    assert [world.log.end_offset_for_epoch(epoch) for epoch in range(-1, 3)] == ends[:4]


async def test_producers_are_replayed_over_gaps(world):
    """A take-over without a snapshot reads compacted ledgers, whose sequences have gaps."""
    for number in range(3):
        await closed(world, b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=2 * number)
    await swapped(world, 0, 3, {0, 5}.__contains__)
    await world.crash()
    with pytest.raises(KafkaError) as caught:
        await world.append(b"x", producer_id=7, producer_epoch=0, base_sequence=9)
    assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    again = await world.append(b"a", b"b", producer_id=7, producer_epoch=0, base_sequence=4)
    assert again.base_offset == 4
    following = await world.append(b"x", producer_id=7, producer_epoch=0, base_sequence=6)
    assert following.base_offset == 6


class LoadedTable:
    """What a coordinator would know: the last value of each key."""

    def __init__(self):
        self.table = {}

    def apply(self, key, value, offset, producer_id):
        assert producer_id < 0, "nothing here is part of a transaction"
        self.table[key] = value


async def load(world, read_bytes_max=1):
    shard = LoadedTable()
    await load_records(
        world.log, shard, world.env, read_bytes_max=read_bytes_max, is_wanted=lambda: True
    )
    return shard.table


async def keyed(world, *keys):
    records = [Record(i, i, key, b"%d" % (world.log.next_offset + i) + VALUE, [])
               for i, key in enumerate(keys)]  # fmt: skip
    with trio.fail_after(20):
        await world.log.append(build_batch(records, base_timestamp=1000))
    await until(lambda: not world.log.chain.ledgers[-1].is_open)


async def test_coordinator_load_over_holes(world):
    for _ in range(4):
        await keyed(world, b"a", b"b", b"c")
    full = await load(world)
    await swapped(world, 0, 4, {9, 10, 11}.__contains__, drop_empty=False)
    assert await load(world) == full
    await swapped(world, 0, 1, {9, 10, 11}.__contains__)
    await cold(world)
    assert await load(world) == full


async def test_coordinator_load_while_swapping(world):
    """Superseded records vanish between two reads, and their ledgers with them."""
    world.config.file_delete_delay_ms = 0
    for _ in range(8):
        await keyed(world, b"a", b"b")
    full = await load(world)
    kept, tables = {14, 15}, []
    for size in (8, 7, 4, 2):
        await cold(world)

        async def swap(size=size):
            stop = min(size, len(world.log.segments))
            await swapped(world, 0, stop, kept.__contains__)

        async def read():
            tables.append(await load(world))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            nursery.start_soon(swap)
    assert tables == [full] * 4


async def test_a_batch_is_read_whole_from_the_middle(world):
    await closed(world, b"0", b"1", b"2", b"3")
    await swapped(world, 0, 1, {0, 3}.__contains__)
    assert batch is not None
    for offset in range(4):
        got = await world.log.read(offset, 1)
        assert [number for number, _ in records_of(got)] == [0, 3]
        assert got.next_offset == 4
