"""Adopted journals whose checkpoint is gone or damaged, many entries, and rebuilds."""

import pytest
import trio

from bookie.storage.index import MemoryIndex
from tests.bookie.storage.large_entries import JOURNALS, LEDGERS, add, check, payload_of


@pytest.fixture
def machine(machine_class):
    return machine_class(1, journal_kept_entry_min_bytes=1000, journal_size_bytes=12 * 1024)


@pytest.mark.parametrize("clean", [True, False])
async def test_without_a_checkpoint_an_adopted_journal_is_kept_by_every_later_start(
    machine, entry_bytes, autojump_clock, clean
):
    """`lastMark` counts then, as the refused start says that it may be done. The first start keeps
    what nobody knows of; the second must not take it for what no checkpoint knows."""
    ids = [(1, n) for n in range(3)]
    async with machine.running_until_crash() as bookie:
        await add(machine, bookie, ids, entry_bytes)
        assert await bookie.flush()
        assert bookie._logs.adopted
        await add(machine, bookie, [(2, 0)], entry_bytes)
    machine.disk.remove(f"{LEDGERS}/checkpoint")
    machine.disk.sync_directory(LEDGERS)
    for _ in range(3):
        running = machine.running() if clean else machine.running_until_crash()
        async with running as bookie:
            await check(bookie, [*ids, (2, 0)], entry_bytes)


async def test_no_put_into_the_index_has_more_than_a_slice(machine_class, entry_bytes):
    """A put runs on the loop's thread, all of it at once."""
    machine = machine_class(
        1,
        journal_kept_entry_min_bytes=1,
        journal_size_bytes=1 << 20,
        journal_group_size_max_bytes=1 << 16,
        journal_queue_size_max_bytes=1 << 20,
        held_adds_max=10_000,
        held_adds_size_max_bytes=1 << 20,
        write_cache_size_bytes=1 << 20,
        write_cache_segment_size_bytes=1 << 16,
    )
    counts = []

    class CountingIndex(MemoryIndex):
        def put(self, ledger_id, entry_ids, locations):
            counts.append(len(entry_ids))
            super().put(ledger_id, entry_ids, locations)

    machine.index = CountingIndex()
    async with machine.running() as bookie:
        ids = [(1, n) for n in range(3000)]
        await add(machine, bookie, ids, entry_bytes, 20)
        assert await bookie.flush()
        await check(bookie, ids, entry_bytes, 20)
        assert bookie._checkpointer.flush_statistics.kept_bytes
    assert sum(counts) == 3000
    assert max(counts) <= 200


async def test_a_journal_of_which_nothing_is_kept_is_used_again(
    machine_class, entry_bytes, autojump_clock
):
    """Runs of entries are long, no entry is: all are copied, so a journal is no entry log, whose
    end would take its blocks and have the next one made anew."""
    machine = machine_class(1, journal_kept_entry_min_bytes=1000, journal_size_bytes=12 * 1024)
    async with machine.running() as bookie:
        for start in range(0, 60, 3):
            answers = []
            for entry_id in range(start, start + 3):
                entry = entry_bytes(1, entry_id, payload_of(1, entry_id, 600))
                bookie.add_entry(1, entry_id, b"k" * 20, [entry], 0, answers.append)
            machine.turn.run()
            while len(answers) < 3:
                await trio.sleep(0.01)
            assert await bookie.flush()
            assert bookie._checkpointer.flush_statistics.kept_bytes == 0
            assert bookie._logs.adopted == {}
        assert any(name.startswith("spare") for name in machine.disk.list(JOURNALS))
