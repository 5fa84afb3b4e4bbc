"""The write cache is a map in bounded memory, whose views outlive its generations."""

import random

from bookie.storage import write_cache
from bookie.storage.write_cache import WriteCache
from runtime.slices import Slices


def put(cache, ledger_id, entry_id, payload):
    start = cache.put(ledger_id, entry_id, (payload[:3], payload[3:]), len(payload))
    if start >= 0:
        cache.commit(ledger_id, entry_id, start, len(payload))
    return start >= 0


def read(cache, ledger_id, first, count_max=1 << 60, size_max=1 << 60):
    entries = []
    cache.read(ledger_id, first, count_max, size_max, entries)
    return [bytes(entry) for entry in entries]


async def test_write_cache_is_a_map(tiny):
    rng = random.Random(3)
    cache = WriteCache(tiny(write_cache_size_bytes=1 << 20))
    model = {}
    for step in range(2000):
        ledger_id = rng.randrange(3)
        entry_id = rng.randrange(300) if rng.random() < 0.5 else step
        payload = rng.randbytes(rng.randrange(0, 120))
        if not put(cache, ledger_id, entry_id, payload):
            break
        model[ledger_id, entry_id] = payload
        if step == 1000:
            cache.swap()
    assert len(model) > 800
    for ledger_id in range(3):
        ids = [entry for ledger, entry in model if ledger == ledger_id]
        assert cache.last_entry_id(ledger_id) == max(ids)
        for first in range(0, 2001, 7):
            expected = []
            while (key := (ledger_id, first + len(expected))) in model:
                expected.append(model[key])
            assert read(cache, ledger_id, first) == expected
            assert read(cache, ledger_id, first, 2) == expected[:2]
            sizes = 0
            fitting = []
            for entry in expected:
                sizes += len(entry)
                if fitting and sizes > 200:
                    break
                fitting.append(entry)
            assert read(cache, ledger_id, first, size_max=200) == fitting
    generation = cache.active
    for ledger_id, run in generation.runs.items():
        ids = [entry for entry, _ in await run.sorted_places()]
        assert ids == sorted(set(ids))
        for entry, place in await run.sorted_places():
            assert bytes(generation.entry(place)) == model[ledger_id, entry]


def test_a_generation_is_bounded_and_its_memory_used_again(tiny):
    config = tiny()
    cache = WriteCache(config)
    filled = 0
    while put(cache, 1, filled, b"x" * 100):
        filled += 1
    half = config.write_cache_size_bytes // 2
    assert half * 0.6 < cache.active.record_size_bytes <= half
    first = [id(segment.data) for segment in cache.active.segments]
    cache.swap()
    assert put(cache, 1, filled, b"y" * 100)
    cache.flushed()
    cache.swap()
    while put(cache, 1, filled, b"z" * 100):
        filled += 1
    assert {id(segment.data) for segment in cache.active.segments} <= set(first)


def test_a_view_pins_its_segment_until_it_is_gone(tiny):
    cache = WriteCache(tiny())
    put(cache, 1, 0, b"entry zero")
    entries = []
    cache.read(1, 0, 1, 100, entries)
    assert entries[0].readonly
    cache.swap()
    cache.flushed()
    assert cache.statistics().pinned_size_bytes == 2048
    for entry_id in range(100):
        put(cache, 1, entry_id, b"other bytes")
    assert bytes(entries[0]) == b"entry zero"
    entries.clear()
    cache.swap()
    cache.flushed()
    assert cache.statistics().pinned_size_bytes == 0


def test_too_much_pinned_gives_copies(tiny):
    cache = WriteCache(tiny(write_cache_pinned_size_max_bytes=2047))
    held = []
    for _ in range(2):
        put(cache, 1, 0, b"entry zero")
        cache.read(1, 0, 1, 100, held)
        cache.swap()
        cache.flushed()
    assert cache.statistics().copied_reads == 1
    assert cache.statistics().pinned_size_bytes == 2048
    assert [bytes(entry) for entry in held] == [b"entry zero"] * 2


async def test_sizes_of_many_entries_are_summed_up_in_turns(tiny, monkeypatch):
    """Whether entries of so many bytes have so many bytes, those of exactly that size too."""
    cache = WriteCache(tiny(write_cache_size_bytes=1 << 20))
    for entry_id in range(100):
        assert put(cache, 1, entry_id, bytes(100))
        assert put(cache, 2, entry_id, bytes(101))
    generation = cache.swap()
    turns = 0

    async def counted(_):
        nonlocal turns
        turns += 1

    monkeypatch.setattr(write_cache, "MEASURED_PER_TURN", 20)
    monkeypatch.setattr(Slices, "turn", counted)
    for size_min, wanted, has in (
        (100, 20_100, True),
        (100, 20_101, False),
        (101, 10_100, True),
        (101, 10_101, False),
        (102, 1, False),
    ):
        turns = 0
        assert await generation.has_bytes_of(size_min, wanted) is has
        assert turns == 9
