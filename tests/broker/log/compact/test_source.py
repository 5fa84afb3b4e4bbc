"""Batches of a ledger, ahead of who takes them; and what is not what the chain says."""

import random
from dataclasses import replace

import pytest
import trio

from broker.log.compact.source import CHUNK_BYTES, Source, read_final_snapshot
from broker.log.compact.steps import CompactionError
from broker.log.compact.throttle import Throttle
from broker.log.read.scan import SCAN_BYTES, scan
from ledger.errors import LedgerReadError


def unlimited():
    return Throttle(lambda: 1e12, trio.current_time)


async def offsets_of(shop, info, throttle=None):
    found = []
    async with trio.open_nursery() as nursery:
        with Source(nursery, shop.broker.ledgers, info, throttle or unlimited()) as source:
            while (batches := await source.next_batches()) is not None:
                found += [header.base_offset for header, _ in batches]
    return found


def leaf(error):
    while isinstance(error, BaseExceptionGroup):
        [error] = error.exceptions
    return error


async def test_every_batch_once_in_order(autojump_clock, shop):
    await shop.open()
    await shop.fill(*([(b"k%d" % n, b"." * 500)] for n in range(50)))
    [info] = shop.log.chain.ledgers
    assert await offsets_of(shop, info) == list(range(50))


@pytest.mark.parametrize(
    "change",
    [
        {"base_offset": -1},
        {"base_offset": 1},
        {"last_offset": 48},
        {"last_offset": 50},
        {"entry_count": 3},
    ],
)
async def test_what_the_chain_does_not_say_is_damage(autojump_clock, shop, change):
    await shop.open()
    await shop.fill(*([(b"k%d" % n, b"." * 500)] for n in range(50)))
    [info] = shop.log.chain.ledgers
    with pytest.raises((CompactionError, BaseExceptionGroup)) as caught:
        await offsets_of(shop, replace(info, **change))
    assert isinstance(leaf(caught.value), CompactionError)


async def test_holes_are_for_compacted_ledgers(autojump_clock, shop):
    await shop.open()
    await shop.fill(*([(b"k", b"%d" % n), (b"l%d" % n, b"1")] for n in range(10)))
    await shop.compact()
    await shop.fill([(b"k", b"x")], [(b"l3", b"2")])
    await shop.compact()
    [info] = shop.log.chain.ledgers
    assert info.generation == 2
    assert await offsets_of(shop, info) == [0, 2, 4, 8, 10, 12, 14, 16, 18, 20, 21]
    with pytest.raises((CompactionError, BaseExceptionGroup)) as caught:
        await offsets_of(shop, replace(info, generation=0))
    assert isinstance(leaf(caught.value), CompactionError)


async def test_who_leaves_early_leaves_no_task(autojump_clock, shop):
    await shop.open()
    await shop.fill(*([(b"k%d" % n, b"." * 500)] for n in range(50)))
    [info] = shop.log.chain.ledgers
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            slow = Throttle(lambda: 1.0, trio.current_time)
            with Source(nursery, shop.broker.ledgers, info, slow):
                await trio.sleep(1)


async def test_final_snapshots_only(autojump_clock, shop):
    await shop.open()
    await shop.put((b"a", b"1"), base_sequence=0, producer_id=7, producer_epoch=0)
    await shop.roll()
    [info] = shop.log.chain.ledgers
    ledgers = shop.broker.ledgers
    assert len(await read_final_snapshot(ledgers, info)) == 1
    assert not await read_final_snapshot(ledgers, replace(info, snapshot_entry=None))
    assert not await read_final_snapshot(ledgers, replace(info, last_offset=info.last_offset + 1))
    assert not await read_final_snapshot(ledgers, replace(info, snapshot_entry=info.index_entry))


async def test_a_snapshot_behind_an_end_that_is_not_known_is_not_passed_over(autojump_clock, shop):
    """The compacted ledger would have none, and what producers send again is refused for good."""
    await shop.open()
    await shop.put((b"a", b"1"), base_sequence=0, producer_id=7, producer_epoch=0)
    await shop.roll()
    [info] = shop.log.chain.ledgers
    longer = replace(info, entry_count=info.entry_count + 1, snapshot_entry=info.entry_count)
    with pytest.raises(LedgerReadError, match=f"the chain knows of {info.entry_count + 1}"):
        await read_final_snapshot(shop.broker.ledgers, longer)


async def test_a_large_batch_is_put_together_in_turns(autojump_clock, shop):
    """What spans entries is copied once, and others have the loop in between."""
    await shop.open(max_message_bytes=16 << 20)
    value = random.Random(5).randbytes(8 << 20)
    await shop.put((b"k", value))
    await shop.roll()
    [info] = shop.log.chain.ledgers
    reader = await shop.broker.ledgers.open_ledger(info.ledger_id, recover=False)
    entries = await reader.read(0, count_max=info.entry_count, size_max=1 << 30)
    assert len(entries) > 2
    turns = [0, 0]

    class Counting:
        """The ledger, whose reads are no turn."""

        last_add_confirmed = reader.last_add_confirmed

        async def read(self, entry_id, *, count_max, size_max):
            return entries[entry_id:]

    async def count():
        while True:
            turns[0] += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await trio.lowlevel.checkpoint()
        before = turns[0]
        chunk = await scan(Counting(), 0)
        turns[1] = turns[0] - before
        nursery.cancel_scope.cancel()
    [entry] = chunk.entries
    [(header, batch)] = entry.batches()
    assert bytes(batch[-len(value) - 1 : -1]) == value
    assert (header.size, entry.body.readonly) == (len(entry.body), True)
    assert turns[1] >= (8 << 20) // SCAN_BYTES - 1


@pytest.mark.parametrize("size", [30_000, 1 << 20])
async def test_chunks_are_of_the_size_and_one_waits(autojump_clock, shop, size):
    await shop.open()
    rng = random.Random(1)
    await shop.fill(*([(b"k%d" % n, rng.randbytes(size))] for n in range((3 << 20) // size)))
    [info] = shop.log.chain.ledgers
    async with trio.open_nursery() as nursery:
        with Source(nursery, shop.broker.ledgers, info, unlimited()) as source:
            await trio.sleep(5)
            waiting = source._chunks.statistics()
            assert (waiting.current_buffer_used, waiting.tasks_waiting_send) == (1, 1)
            sizes = []
            while (batches := await source.next_batches()) is not None:
                sizes.append(sum(len(batch) for _, batch in batches))
                await trio.sleep(0.1)
    if size > CHUNK_BYTES:
        assert max(sizes) < size + 1000
    else:
        assert max(sizes) <= CHUNK_BYTES
        assert min(sizes[:-1]) > CHUNK_BYTES // 2
