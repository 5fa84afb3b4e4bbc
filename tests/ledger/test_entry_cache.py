"""Entries kept in memory: what readers of the end and of the same old data cost bookies."""

import pytest
import trio
import trio.testing

from ledger.entry_cache import ENTRY_OVERHEAD_BYTES, TAIL_SHARE, EntryCache
from ledger.errors import LedgerReadError, NoSuchEntryError

SIZE = 1000
#: Room for so many entries of SIZE in the tail.
TAIL_COUNT = 30
CACHE_BYTES = int(TAIL_COUNT * (SIZE + ENTRY_OVERHEAD_BYTES) / TAIL_SHARE) + 2
CACHED_COUNT = TAIL_COUNT + 10


class Entries:
    """What a bookie has: entry n is SIZE bytes of n. `fetch` waits for `gate`."""

    def __init__(self, error=None):
        self.asked = []
        self.gate = trio.Event()
        self.error = error

    async def fetch(self, first, count_max, size_max):
        self.asked.append(first)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        count = max(1, min(count_max, size_max // SIZE))
        return [memoryview(bytes([n % 256]) * SIZE) for n in range(first, first + count)]


def fill(cache, count, ledger_id=1):
    for entry_id in range(count):
        cache.appended(ledger_id, entry_id, [bytes([entry_id % 256]) * (SIZE - 1), b"!"])


def test_the_tail_is_bounded_and_the_oldest_go_first():
    cache = EntryCache(CACHE_BYTES)
    fill(cache, 100)
    assert cache.run(1, 100 - TAIL_COUNT - 1, 10, 10 * SIZE) == []
    found = cache.run(1, 100 - TAIL_COUNT, 1000, 1000 * SIZE)
    assert [payload[0] for payload in found] == list(range(100 - TAIL_COUNT, 100))
    assert cache.size_bytes == TAIL_COUNT * (SIZE + ENTRY_OVERHEAD_BYTES)
    assert cache.size_bytes <= CACHE_BYTES


def test_a_run_keeps_to_its_limits_and_has_one_entry_at_least():
    cache = EntryCache(CACHE_BYTES)
    fill(cache, 10)
    assert len(cache.run(1, 0, 3, 1 << 20)) == 3
    assert len(cache.run(1, 0, 10, 2 * SIZE + 1)) == 2
    assert len(cache.run(1, 9, 10, 1)) == 1
    assert cache.run(2, 0, 10, 1 << 20) == []


def test_an_entry_larger_than_the_cache_is_not_kept():
    cache = EntryCache(CACHE_BYTES)
    cache.appended(1, 0, [bytes(CACHE_BYTES)])
    assert cache.size_bytes == 0
    assert cache.run(1, 0, 1, 1) == []


def test_what_is_kept_is_a_copy():
    cache = EntryCache(CACHE_BYTES)
    shared = bytearray(b"abc")
    cache.appended(1, 0, [memoryview(shared)])
    shared[:] = b"xyz"
    assert bytes(cache.run(1, 0, 1, 100)[0]) == b"abc"


async def test_readers_of_the_same_share_one_read(nursery):
    cache, entries, found = EntryCache(CACHE_BYTES), Entries(), []

    async def read():
        found.append(await cache.read(1, 5, 100, 4 * SIZE, entries.fetch))

    for _ in range(20):
        nursery.start_soon(read)
    await trio.testing.wait_all_tasks_blocked()
    assert entries.asked == [5]
    entries.gate.set()
    await trio.testing.wait_all_tasks_blocked()
    assert entries.asked == [5]
    assert [[payload[0] for payload in payloads] for payloads in found] == [[5, 6, 7, 8]] * 20
    assert cache.shared == 19


async def test_who_follows_closely_waits_for_the_run_that_is_on_its_way(nursery):
    cache, entries = EntryCache(1 << 20), Entries()
    entries.gate.set()
    # The first read tells how large the ledger's entries are.
    await cache.read(1, 0, 2, SIZE, entries.fetch)
    entries.gate = trio.Event()
    nursery.start_soon(cache.read, 1, 200, 8, SIZE, entries.fetch)
    await trio.testing.wait_all_tasks_blocked()
    nursery.start_soon(cache.read, 1, 203, 8, SIZE, entries.fetch)
    await trio.testing.wait_all_tasks_blocked()
    assert entries.asked == [0, 200]
    entries.gate.set()
    await trio.testing.wait_all_tasks_blocked()
    assert entries.asked == [0, 200]


async def test_a_scan_leaves_the_tail():
    cache, entries = EntryCache(CACHE_BYTES), Entries()
    entries.gate.set()
    fill(cache, TAIL_COUNT)
    for first in range(0, 1000, 10):
        await cache.read(2, first, 10, 10 * SIZE, entries.fetch)
    assert len(cache.run(1, 0, 1000, 1 << 20)) == TAIL_COUNT
    assert cache.size_bytes <= CACHE_BYTES


async def test_a_read_that_fails_fails_for_each_and_leaves_nothing_behind(nursery):
    cache, entries, failures = EntryCache(CACHE_BYTES), Entries(LedgerReadError(1, "no")), []

    async def read():
        with pytest.raises(LedgerReadError):
            await cache.read(1, 0, 10, SIZE, entries.fetch)
        failures.append(1)

    for _ in range(5):
        nursery.start_soon(read)
    await trio.testing.wait_all_tasks_blocked()
    entries.gate.set()
    await trio.testing.wait_all_tasks_blocked()
    assert len(failures) == 5
    entries.error = None
    assert len(await cache.read(1, 0, 10, SIZE, entries.fetch)) == 1


async def test_one_who_is_cancelled_does_not_hold_up_who_waits_for_it(nursery):
    cache, entries, found = EntryCache(CACHE_BYTES), Entries(), []

    async def read():
        found.append(await cache.read(1, 0, 10, SIZE, entries.fetch))

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as first:
            first.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    entries.gate.set()
    await trio.testing.wait_all_tasks_blocked()
    assert len(found) == 1
    assert entries.asked == [0, 0]


async def test_the_end_of_a_ledger_is_read_from_memory(new_world, nursery):
    world = new_world("abc", entry_cache_bytes=1 << 20)
    await world.start(nursery)
    writer = await world.create(3, 3, 2)
    payloads = [b"%d" % number * 10 for number in range(50)]
    done = trio.Event()
    for payload in payloads:
        writer.append_nowait(
            [payload[:3], payload[3:]], lambda entry_id, _: entry_id == 49 and done.set()
        )
    with pytest.raises(NoSuchEntryError):  # cached, and not confirmed
        writer.reader.read_nowait(49, count_max=1, size_max=1)
    await done.wait()
    found = writer.reader.read_nowait(0, count_max=100, size_max=1 << 20)
    assert [bytes(payload) for payload in found] == payloads
    assert world.client.statistics.reads == 0
    other = await world.client.open_ledger(writer.ledger_id, recover=True)
    reads = world.client.statistics.reads
    found = await other.read(0, count_max=100, size_max=1 << 20)
    assert [bytes(payload) for payload in found] == payloads
    assert world.client.statistics.reads == reads


async def test_its_figures():
    """Hits, misses, entries and bytes that are here, and what had to go."""
    cache, entries = EntryCache(CACHE_BYTES), Entries()
    entries.gate.set()
    assert (cache.size_max_bytes, len(cache), cache.size_bytes, cache.evicted) == (
        CACHE_BYTES, 0, 0, 0,
    )  # fmt: skip
    await cache.read(1, 0, 10, SIZE, entries.fetch)
    assert (cache.hits, cache.misses) == (0, 1)
    there = len(cache)
    assert there >= 1
    await cache.read(1, 0, 10, SIZE, entries.fetch)
    assert (cache.hits, cache.misses, cache.evicted) == (1, 1, 0)
    count = 0
    while cache.evicted == 0:
        cache.appended(2, count, [b"x" * 1000])
        count += 1
    assert count + there - cache.evicted == len(cache)
    assert cache.size_bytes <= CACHE_BYTES
