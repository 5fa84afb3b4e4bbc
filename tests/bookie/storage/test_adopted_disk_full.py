"""Adopted journals on a disk that is full: nothing that was acknowledged is lost."""

import errno

import pytest
import trio

from bookie.journal.journal_files import UNFINISHED_NAME
from bookie.journal.journal_format import file_name
from bookie.storage.adopted import AdoptedJournals
from bookie.storage.entry_logs import EntryLogs
from bookie.storage.log_scan import LogScanner
from runtime.sim_disk import SimDisk
from tests.bookie.storage.large_entries import JOURNALS, LEDGERS, SIZE, add, check, payload_of
from wire.bookkeeper.status import FLAG_HIGH_PRIORITY, FLAG_RECOVERY_ADD, Status

RECOVERY = FLAG_RECOVERY_ADD | FLAG_HIGH_PRIORITY


@pytest.fixture
def machine(machine_class):
    return machine_class(1, journal_kept_entry_min_bytes=1000, journal_size_bytes=12 * 1024)


def fill(machine, free_bytes=0):
    machine.disk.faults.capacity_bytes = machine.disk.used_bytes + free_bytes


def make_room(machine):
    machine.disk.faults.capacity_bytes = 1 << 40


async def test_a_clean_stop_on_a_full_disk_does_not_move_the_mark_past_what_is_not_flushed(
    machine, entry_bytes, autojump_clock
):
    large, small = [(1, n) for n in range(3)], [(2, n) for n in range(8)]
    async with machine.running() as bookie:
        await add(machine, bookie, large, entry_bytes)
        assert await bookie.flush()
        assert bookie._logs.adopted
        await trio.sleep(2)  # the next journal is there
        await add(machine, bookie, small, entry_bytes, 300)
        fill(machine, 1500)
        assert not await bookie.flush()
    make_room(machine)
    async with machine.running() as bookie:
        await check(bookie, large, entry_bytes)
        await check(bookie, small, entry_bytes, 300)


async def test_a_clean_stop_on_a_full_disk_before_the_start_is_settled_keeps_adopted_journals(
    machine_class, entry_bytes, autojump_clock
):
    """The next journal finds room, and what is replayed does not."""
    machine = machine_class(
        1,
        journal_kept_entry_min_bytes=1000,
        journal_size_bytes=12 * 1024,
        write_cache_size_bytes=256 * 1024,
        entry_log_size_limit_bytes=256 * 1024,
        flush_entry_log_bytes=256 * 1024,
    )
    known, behind = [(1, n) for n in range(3)], [(1, n) for n in range(3, 33)]
    async with machine.running_until_crash() as bookie:
        await add(machine, bookie, known, entry_bytes)
        assert await bookie.flush()
        assert bookie._logs.adopted
        for ids in behind:
            await add(machine, bookie, [ids], entry_bytes)
    fill(machine, 40 * 1024)
    async with machine.running() as bookie:
        assert bookie.is_read_only
        await trio.sleep(2)
        await check(bookie, known + behind, entry_bytes)
    make_room(machine)
    async with machine.running() as bookie:
        await check(bookie, known + behind, entry_bytes)


async def test_compaction_on_a_full_disk_leaves_the_logs_that_the_checkpoint_names(
    machine_class, entry_bytes, autojump_clock, monkeypatch
):
    """Not settled yet, so the checkpoint of the life before is the one that a start compares. The
    crash comes when a journal was completed, and the checkpoint names it still."""
    names, named = AdoptedJournals.names, {}

    def all_names(adopted):
        named.update((each.log_id, each) for each in names(adopted))
        return list(named.values())

    monkeypatch.setattr(AdoptedJournals, "names", all_names)
    machine = machine_class(
        1,
        journal_kept_entry_min_bytes=1000,
        journal_size_bytes=12 * 1024,
        write_cache_size_bytes=256 * 1024,
    )
    ids = [(2, 0), (1, 0), (2, 1), (2, 2), (2, 3), (2, 4), (2, 5)]
    behind = [(3, n) for n in range(30)]
    async with machine.running_until_crash() as bookie:
        for each in ids:
            await add(machine, bookie, [each], entry_bytes)
        assert await bookie.flush()
        first = min(named)
        log = bookie._logs.get(first)
        assert not log.is_written, "complete, and the checkpoint names it"
        assert 1 in await bookie._logs.walk.live_ledgers(log)
        monkeypatch.undo()
        assert await bookie.delete_ledger(2) is Status.EOK
        for each in behind:
            await add(machine, bookie, [each], entry_bytes)
    fill(machine, 40 * 1024)
    async with machine.running_until_crash() as bookie:
        assert bookie.is_read_only
        await check(bookie, [(1, 0), *behind], entry_bytes)
        await trio.sleep(5)
        await bookie.collect_garbage(force_major=True)
        await trio.sleep(5)
        await check(bookie, [(1, 0), *behind], entry_bytes)
    make_room(machine)
    async with machine.running() as bookie:
        await check(bookie, [(1, 0), *behind], entry_bytes)


async def test_a_link_whose_name_cannot_be_synced_for_want_of_space_is_not_left(
    machine, entry_bytes, autojump_clock, monkeypatch
):
    """The directory's sync says ENOSPC once: the entries are copied, and the link goes, or there
    would be two logs that are one journal."""
    ids = [(1, n) for n in range(3)]
    sync_directory = SimDisk.sync_directory
    failing = [1]

    def sync(disk, path):
        if path == LEDGERS and failing and bookie_box and bookie_box[0]._cache.flushing is not None:
            names = [n for n in disk.list(LEDGERS) if n.endswith(".log")]
            if any(disk.link_count(f"{LEDGERS}/{n}") > 1 for n in names):
                failing.pop()
                raise OSError(errno.ENOSPC, "no space", path)
        sync_directory(disk, path)

    bookie_box = []
    monkeypatch.setattr(SimDisk, "sync_directory", sync)
    async with machine.running_until_crash() as bookie:
        bookie_box.append(bookie)
        bookie._logs._last_log_id = 14  # f.log, and then 10.log, which is listed before
        await add(machine, bookie, ids, entry_bytes)
        assert await bookie.flush()
        assert not failing
        assert bookie._logs.adopted == {}
        assert bookie._checkpointer.flush_statistics.kept_bytes == 0
        logs = [name for name in machine.disk.list(LEDGERS) if name.endswith(".log")]
        assert [machine.disk.link_count(f"{LEDGERS}/{name}") for name in logs] == [1] * len(logs)
    for _ in range(3):
        async with machine.running_until_crash() as bookie:
            await check(bookie, ids, entry_bytes)


async def test_emptied_ledgers_are_forgotten_before_the_checkpoint_that_their_log_outlives(
    machine, entry_bytes, autojump_clock, monkeypatch
):
    """A map found no space, so the log is completed by the checkpoint of `empty_ledgers`, which
    names it with the ledger that is emptied, and then removes the log."""
    write_map = EntryLogs.write_map
    failing = [1]

    async def write(logs, log):
        if log.journal_id >= 0 and failing:
            failing.pop()
            raise OSError(errno.ENOSPC, "no space")
        await write_map(logs, log)

    monkeypatch.setattr(EntryLogs, "write_map", write)
    async with machine.running_until_crash() as bookie:
        for entry_id in range(9):
            await add(machine, bookie, [(1, entry_id)], entry_bytes)
        await bookie.flush()
        assert not failing
        assert bookie._checkpointer.is_full
        bookie._checkpointer.watch_quiet([1])
        assert await bookie._checkpointer.empty_ledgers([1]) == 1
    async with machine.running() as bookie:
        assert bookie.list_ledgers() == [1]


async def test_a_journal_that_goes_on_behind_a_torn_filler_is_a_chain_of_records(
    machine_class, entry_bytes, autojump_clock
):
    """No checksum is of what fills up to the next block, so a crash may lose that and not its
    group; on a full disk the journal goes on behind it, and becomes an entry log."""
    machine = machine_class(
        1,
        journal_kept_entry_min_bytes=1000,
        journal_size_bytes=16 * 1024,
        journal_alignment_bytes=1024,
        write_cache_size_bytes=64 * 1024,
    )
    before, later = [(1, 0)], [(1, 1), (1, 2)]
    async with machine.running_until_crash() as bookie:
        await add(machine, bookie, before, entry_bytes)
    # Wherever the crash came while the next journal was made, its space is not free below.
    for name in (file_name(2), UNFINISHED_NAME):
        if machine.disk.exists(f"{JOURNALS}/{name}"):
            machine.disk.remove(f"{JOURNALS}/{name}")
    machine.disk.sync_directory(JOURNALS)
    file = machine.disk.open(f"{JOURNALS}/{file_name(1)}")
    data = bytearray(file.pread(file.size(), 0))
    end = data.index(payload_of(1, 0)) + SIZE
    assert data[end : end + 4] != bytes(4), "a filler starts there"
    file.pwrite([bytes(-end % 1024)], end)
    await file.wait_synced()
    file.close()
    fill(machine, 3 * 1024 // 2)
    async with machine.running() as bookie:
        assert bookie._journal._journal_id == 1, "it goes on"
        make_room(machine)
        with trio.fail_after(60):
            while bookie.is_read_only or not await bookie.flush():
                await trio.sleep(1)
        await add(machine, bookie, later, entry_bytes)
        assert await bookie.flush()
        assert bookie._logs.adopted
    for name in machine.disk.list(LEDGERS):
        if name.endswith(".log"):
            file = machine.disk.open(f"{LEDGERS}/{name}")
            scanner = LogScanner(machine.disk, file, file.size())
            while await scanner.next() is not None:
                pass
            assert scanner.damage is None, name
