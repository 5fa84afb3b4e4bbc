"""A slow disk: writers are held back, memory is bounded, and the latency shows."""

import tracemalloc

import trio

from wire.bookkeeper.status import Status

KIB = 1024
ENTRY_SIZE_BYTES = 2000


async def test_memory_is_bounded_when_syncs_take_long(machine_class, adds_class, entry_bytes):
    """Far more is offered than the disk takes: it is held or refused, never kept."""
    machine = machine_class(
        journal_queue_size_max_bytes=64 * KIB,
        write_cache_size_bytes=256 * KIB,
        journal_size_bytes=256 * KIB,
        held_adds_size_max_bytes=64 * KIB,
        held_adds_max=1000,
    )
    machine.disk.faults.sync_seconds = (0.02, 0.02)
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        payload = bytes(ENTRY_SIZE_BYTES)
        offered = 2000
        peaks = []
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for entry_id in range(offered):
                adds.add(1, entry_id, payload)
                if entry_id % 20 == 19:
                    now = bookie.statistics()
                    peaks.append(now.journal_queued_bytes)
                    assert now.journal_queued_bytes <= 64 * KIB + ENTRY_SIZE_BYTES + 100
                    assert now.held_bytes <= 64 * KIB
                    assert now.write_cache_size_bytes <= 256 * KIB
                    await trio.sleep(0.001)
            grown = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
        await adds.wait(offered)
        statuses = adds.statuses()
        assert set(statuses) == {Status.EOK, Status.ETOOMANYREQUESTS}
        assert max(peaks) > 50 * KIB, "the queue never filled"
        # Queue, cache, held entries and the simulated disk's own copies; 4 MB were offered.
        assert grown < 2 << 20
        kept = [i for _, i, status in adds.answers if status is Status.EOK]
        for entry_id in kept:
            _, entry = await bookie.read_entry(1, entry_id)
            assert bytes(entry) == entry_bytes(1, entry_id, payload)
        latency = bookie.statistics().journal_sync_latency
        assert latency.count > 3
        assert latency.quantile(0.5) >= 0.02
