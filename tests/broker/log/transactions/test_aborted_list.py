"""A partition's lists while its ledgers change."""

import pytest
import trio

from broker.log.read import partition_reader
from broker.log.transactions import aborted_list
from broker.log.transactions.aborted_list import AbortedCache, AbortedLists
from wire.kafka.errors import KafkaError


def pids(rows):
    return [row.producer_id for row in rows]


async def aborted_ledger(world, pid):
    world.put(1, pid=pid)
    world.end(pid, commit=False)
    await world.roll()


async def walked(lists, offset, end_offset):
    found = []
    await lists.walk(offset, end_offset, found.extend)
    return found


@pytest.mark.parametrize("read", [AbortedLists.find, walked])
async def test_a_ledger_that_is_sealed_while_another_is_loaded(
    world, autojump_clock, monkeypatch, read
):
    """Its rows are those of the open ledger when the search begins, and of a closed one when it
    comes there."""
    await aborted_ledger(world, 1)
    world.put(1, pid=2)
    world.end(2, commit=False)
    await world.settle()
    lists = world.log.transactions.aborted
    lists._cache = AbortedCache(0)
    world.log.segments[0].aborted = None
    load = AbortedLists._load

    async def slow(self, segment):
        if segment is world.log.segments[0]:
            await world.roll()
        return await load(self, segment)

    monkeypatch.setattr(AbortedLists, "_load", slow)
    assert pids(await read(lists, 0, 4)) == [1, 2]
    assert len(world.log.segments) == 2
    assert not world.log.transactions.aborted.open


async def test_a_walk_gives_what_a_search_finds(world, autojump_clock, monkeypatch):
    """In the order of the markers, a few at a time, from memory and from ledgers."""
    monkeypatch.setattr(aborted_list, "WALK_ROWS", 2)
    for pid in range(4):
        world.put(1, pid=pid)
    for pid in (3, 0):
        world.end(pid, commit=False)
        await world.roll()
    await aborted_ledger(world, 9)
    for pid in range(20, 30):
        world.put(1, pid=pid)
        world.end(pid, commit=False)
        if pid == 24:
            await world.roll()
    world.end(1, commit=False)
    world.end(2, commit=True)
    await world.settle()
    lists, end = world.log.transactions.aborted, world.log.high_watermark
    for _ in range(2):
        for offset in range(end + 1):
            for end_offset in (offset, offset + 1, offset + 3, end):
                rows = await walked(lists, offset, end_offset)
                assert [row.last_offset for row in rows] == sorted(row.last_offset for row in rows)
                found = await lists.find(offset, end_offset)
                assert sorted(rows, key=lambda row: row.first_offset) == found
        await world.restart()
        lists = world.log.transactions.aborted
    assert len(await walked(lists, 0, end)) == 14


async def test_records_and_index_are_of_the_same_ledgers(world, autojump_clock, monkeypatch):
    """A ledger that is replaced between the two is read again."""
    world.put(1, pid=1)
    world.end(1, commit=False)
    await world.settle()
    log, read, count = world.log, world.log.reader.read, 0

    async def swapped_after(*arguments, **keywords):
        nonlocal count
        count += 1
        log.swap_count += count == 1
        return await read(*arguments, **keywords)

    monkeypatch.setattr(log.reader, "read", swapped_after)
    result, aborted = await log.reader.read_committed(0, 1 << 20)
    assert (count, result.next_offset, [each.producer_id for each in aborted]) == (2, 2, [1])


async def test_records_of_a_ledger_that_is_deleted_meanwhile_are_not_given(
    world, autojump_clock, monkeypatch
):
    """Seed 27 of the simulation: its row in the index is gone with it, and what was aborted would
    have been taken for committed."""
    world.put(1, pid=1)
    world.end(1, commit=False)
    await world.roll()
    world.put(1, pid=2)
    world.end(2, commit=True)
    await world.settle()
    log, read = world.log, world.log.reader.read

    async def deleted_after(*arguments, **keywords):
        result = await read(*arguments, **keywords)
        await world.keeper.delete_records(2)
        return result

    monkeypatch.setattr(log.reader, "read", deleted_after)
    with pytest.raises(KafkaError, match="OFFSET_OUT_OF_RANGE"):
        await log.reader.read_committed(0, 1 << 20)


async def test_very_many_are_found_in_slices(world, autojump_clock, monkeypatch):
    """From memory and from ledgers; what is in memory and few costs no waiting."""
    monkeypatch.setattr(aborted_list, "NOWAIT_ROWS", 5)
    monkeypatch.setattr(aborted_list, "WALK_ROWS", 1)
    for pid in range(8):
        world.put(1, pid=pid)
    for pid in (7, 0, 5, 1):
        world.end(pid, commit=False)
    await world.roll()
    for pid in (6, 2, 4, 3):
        world.end(pid, commit=False)
    await world.settle()
    lists, end = world.log.transactions.aborted, world.log.high_watermark
    for offset in range(end + 1):
        for end_offset in range(offset + 1, end + 1):
            found = await lists.find(offset, end_offset)
            assert found == sorted(found, key=lambda row: row.first_offset)
            found_nowait = lists.find_nowait(offset, end_offset)
            assert found_nowait in (found, None)
            if len(found) < 3:
                assert found_nowait is not None
            assert (found_nowait is None) >= (len(found) > 5)
    turns = 0

    async def others():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        assert len(await lists.find(0, end)) == 8
        nursery.cancel_scope.cancel()
    assert turns >= 12


async def test_less_is_read_of_very_many(world, autojump_clock, monkeypatch):
    monkeypatch.setattr(partition_reader, "ABORTED_PER_READ_MAX", 10)
    monkeypatch.setattr(partition_reader, "ABORTED_READ_BYTES_MIN", 400)
    for pid in range(50):
        world.put(1, pid=pid)
        world.end(pid, commit=False)
    await world.settle()
    offset, counts, end = 0, [], world.log.high_watermark
    while offset < end:
        result, aborted = await world.log.reader.read_committed(offset, 1 << 20)
        assert aborted == await world.log.reader.read_aborted(offset, result.next_offset)
        assert result.next_offset > offset
        assert len(aborted) <= 10
        counts.append(len(aborted))
        offset = result.next_offset
    assert max(counts) > 3
    assert sum(counts) >= 50


async def test_one_batch_is_read_whatever_was_aborted(world, autojump_clock, monkeypatch):
    monkeypatch.setattr(partition_reader, "ABORTED_PER_READ_MAX", 3)
    monkeypatch.setattr(partition_reader, "ABORTED_READ_BYTES_MIN", 1)
    for pid in range(8):
        world.put(1, pid=pid)
    first = world.log.next_offset
    world.put(20, pid=8)
    for pid in range(9):
        world.end(pid, commit=False)
    await world.settle()
    result, aborted = await world.log.reader.read_committed(first, 1 << 20)
    assert (result.next_offset, len(aborted)) == (first + 20, 9)
