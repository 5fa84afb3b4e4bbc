"""A bookie is killed, which leaves what it wrote in the page cache; it starts again and counts on
that; then the power fails. What the second life showed or built upon is there in the third."""

import random
from contextlib import asynccontextmanager, suppress

import pytest
import trio

from bookie.bookie import Bookie
from bookie.journal.journal_files import list_journals
from runtime.env import Env, RealClock
from runtime.sim_disk import SimFile
from runtime.sim_disk_life import DiskLife
from runtime.turn import Turn
from wire.bookkeeper.status import FLAG_DO_FENCING, Status

KEY = b"k" * 20
KIB = 1024
JOURNALS = "/journal/current"


@asynccontextmanager
async def life(machine, *, with_power: bool):
    """A bookie that serves until its process (or the power) ends, without notice."""
    machine.turn = Turn()
    env = Env(
        clock=RealClock(),
        rng=machine.rng,
        net=None,
        disk=DiskLife(machine.disk),
        turn=machine.turn,
    )
    bookie = Bookie(machine.config, env, index=machine.index)
    has_ended = []

    async def run(task_status):
        try:
            await bookie.run(task_status=task_status)
        except OSError:
            if not has_ended:
                raise

    async with trio.open_nursery() as nursery:
        nursery.start_soon(machine.turn.serve)
        await nursery.start(run)
        try:
            yield bookie
        finally:
            has_ended.append(True)
            if with_power:
                machine.crash()
            else:
                machine.disk.kill()  # the index's puts are in the page cache, too
            bookie.crash()
            nursery.cancel_scope.cancel()


async def killed_in_a_sync(machine, adds_class):
    """One journal's worth of entries is durable; as much again was written, and not synced."""
    async with life(machine, with_power=False) as bookie:
        adds = adds_class(bookie)
        for entry_id in range(12):
            adds.add(1, entry_id, bytes(1000))
            await adds.wait(entry_id + 1)
        adds.add(1, 12, bytes(1000))  # the second journal is in use, and the third is made
        await trio.sleep(1)
        machine.disk.faults.sync_seconds = (1.0, 1.0)
        for entry_id in range(13, 20):
            adds.add(1, entry_id, bytes(1000))
        await trio.sleep(0.5)
        assert len(adds.answers) == 13
    machine.disk.faults.sync_seconds = (0.0, 0.0)


async def all_of(bookie):
    status, entries = await bookie.read_entries(1, 0, 0, 1 << 20)
    assert status is Status.EOK
    return [bytes(entry) for entry in entries]


@pytest.mark.parametrize("seed", range(8))
async def test_what_was_replayed_on_a_full_disk_survives_a_power_failure(
    seed, machine_class, adds_class, entry_bytes, autojump_clock
):
    """There is room for a journal and not for the entries: they are served from memory."""
    machine = machine_class(
        seed,
        write_cache_size_bytes=64 * KIB,
        journal_queue_size_max_bytes=64 * KIB,
        journal_turn_size_max_bytes=1 << 20,  # written by when it is killed
        flush_entry_log_bytes=64 * KIB,
        entry_log_size_limit_bytes=64 * KIB,
    )
    await killed_in_a_sync(machine, adds_class)
    expected = [entry_bytes(1, i, bytes(1000)) for i in range(20)]
    machine.disk.faults.capacity_bytes = machine.disk.used_bytes + 18 * KIB
    async with life(machine, with_power=True) as bookie:
        assert bookie._checkpointer.is_full
        served = await all_of(bookie)
        assert len(served) > 13
        assert served == expected[: len(served)]
        assert await bookie.delete_ledger(7) is Status.EOK
    machine.disk.faults.capacity_bytes = 1 << 40
    async with life(machine, with_power=True) as bookie:
        assert await all_of(bookie) == served


@pytest.mark.parametrize("seed", range(8))
async def test_a_journal_that_is_gone_on_in_has_a_durable_name(
    seed, machine_class, adds_class, autojump_clock
):
    """The process was killed while it made the journal, between the file's name and the sync of
    the directory; the next one finds no space for another journal."""
    machine = machine_class(seed, write_cache_size_bytes=64 * KIB)
    disk = machine.disk
    async with life(machine, with_power=False) as bookie:
        adds = adds_class(bookie)
        for entry_id in range(8):
            adds.add(1, entry_id, bytes(1000))
            await adds.wait(entry_id + 1)
        [*_, prepared] = list_journals(disk, JOURNALS)
        disk.faults.sync_seconds = (1.0, 1.0)
        for entry_id in range(8, 20):
            adds.add(1, entry_id, bytes(1000))
        with trio.fail_after(20):
            while list_journals(disk, JOURNALS)[-1] == prepared:
                await trio.sleep(0.1)
    disk.faults.sync_seconds = (0.0, 0.0)
    # For an entry log, and neither for a journal nor for the entries.
    disk.faults.capacity_bytes = disk.used_bytes + 8 * KIB
    async with life(machine, with_power=True) as bookie:
        assert list_journals(disk, JOURNALS)[-1] == prepared + 1
        status, _ = await bookie.read_entry(1, 0, flags=FLAG_DO_FENCING, master_key=KEY)
        assert status is Status.EOK
        assert list_journals(disk, JOURNALS)[-1] == prepared + 1
    disk.faults.capacity_bytes = 1 << 40
    async with life(machine, with_power=True) as bookie:
        adds = adds_class(bookie)
        adds.add(1, 20)
        assert adds.statuses() == [Status.EFENCED]


def failed_write_back(disk, directory):
    """What Linux makes of a write-back that failed when nobody was left to be told: the pages are
    clean, read as they were written, and are not on the disk; a sync finds nothing to write."""
    for path, node in disk._names.items():
        if path.startswith(directory):
            node.changes.clear()


def drop_clean_pages(file, size, offset):
    """`File.drop_cached`: clean pages are read from the disk the next time."""
    node = file._node
    if not node.changes:
        node.content[offset : offset + size] = node.durable[offset : offset + size]


async def test_what_is_replayed_is_what_the_disk_has(
    machine_class, adds_class, entry_bytes, autojump_clock, monkeypatch
):
    """The write-back of the killed process's last entries failed. Nobody was told that they are
    durable, so they may be gone; but an entry that the next life has served may not go later."""
    monkeypatch.setattr(SimFile, "drop_cached", drop_clean_pages)
    machine = machine_class(
        1,
        write_cache_size_bytes=64 * KIB,
        journal_queue_size_max_bytes=64 * KIB,
        flush_entry_log_bytes=64 * KIB,
        entry_log_size_limit_bytes=64 * KIB,
    )
    await killed_in_a_sync(machine, adds_class)
    failed_write_back(machine.disk, "/journal")
    # The entries find no room in an entry log: the journal stays their only place.
    machine.disk.faults.capacity_bytes = machine.disk.used_bytes + 12 * KIB
    async with life(machine, with_power=True) as bookie:
        assert bookie._checkpointer.is_full
        served = await all_of(bookie)
    assert served == [entry_bytes(1, i, bytes(1000)) for i in range(13)]
    machine.disk.faults.capacity_bytes = 1 << 40
    async with life(machine, with_power=True) as bookie:
        assert await all_of(bookie) == served


class PowerFailsError(Exception):
    pass


@pytest.mark.parametrize("seed", range(40))
async def test_a_start_after_a_kill_may_lose_power_anywhere(
    seed, machine_class, adds_class, entry_bytes, autojump_clock
):
    """A deletion that only the page cache knew of must not be half of what the next start finds:
    a log that is gone, entries in the journal, and no key."""
    rng = random.Random(seed)
    machine = machine_class(seed, journal_size_bytes=64 * KIB, flush_interval_ms=600_000)
    async with life(machine, with_power=False) as bookie:
        adds = adds_class(bookie)
        for ledger_id in (1, 2):
            adds.add(ledger_id, 0, bytes(1000))
        await adds.wait(2)
        await bookie.flush()
        for ledger_id in (1, 2):
            adds.add(ledger_id, 1, bytes(1000))
        await adds.wait(4)
        machine.disk.faults.sync_seconds = (1.0, 1.0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bookie.delete_ledger, 1)
            nursery.start_soon(bookie.delete_ledger, 3)
            await trio.sleep(0.5)
            nursery.cancel_scope.cancel()
    machine.disk.faults.sync_seconds = (0.0, 0.0)
    left = [rng.randrange(40)]

    def observe(event, detail):
        left[0] -= 1
        if left[0] == 0:
            machine.crash()
            raise PowerFailsError

    machine.disk.observe = observe
    try:
        async with life(machine, with_power=True):
            pass
    except* PowerFailsError:
        pass
    machine.disk.observe = lambda _event, _detail: None
    async with life(machine, with_power=True) as bookie:
        expected = [entry_bytes(2, i, bytes(1000)) for i in range(2)]
        status, entries = await bookie.read_entries(2, 0, 0, 1 << 20)
        assert (status, [bytes(each) for each in entries]) == (Status.EOK, expected)


@pytest.mark.parametrize("seed", range(8))
async def test_the_header_of_a_journal_that_became_an_entry_log(
    machine_class, adds_class, entry_bytes, autojump_clock, seed
):
    """Written, and not synced: the next life finds it complete, and its checkpoint does not name
    it. The loss of power then gives the journal's header back."""
    machine = machine_class(
        seed,
        journal_kept_entry_min_bytes=1000,
        journal_size_bytes=12 * KIB,
        flush_interval_ms=100_000,
    )
    written = []

    def observe(event, detail):
        path = detail.split()[0]
        if event == "write" and "/ledgers/current/" in path and " 0+1024" in detail:
            file = machine.disk.open(path)
            if file.size() > KIB and file.pread(4, 0) != b"BKLO":  # it still was the journal's
                written.append(path)
        elif event == "sync" and written == [path]:
            written.append("killed")
            machine.disk.kill()

    machine.disk.observe = observe
    count = 0
    with suppress(BaseExceptionGroup, OSError):
        async with machine.running() as bookie:
            while len(written) < 2:
                adds = adds_class(bookie)
                adds.add(1, count, bytes(1500))
                with trio.move_on_after(1):
                    await adds.wait(1)
                if adds.statuses() != [Status.EOK]:
                    break
                count += 1
                if count % 6 == 3:
                    await bookie.flush()
    assert written[-1] == "killed"
    assert count > 3
    machine.disk.observe = lambda *_: None
    async with machine.running() as bookie:
        pass  # it stops cleanly, too
    machine.crash()
    async with machine.running() as bookie:
        for entry_id in range(count):
            status, entry = await bookie.read_entry(1, entry_id)
            assert (status, bytes(entry)) == (Status.EOK, entry_bytes(1, entry_id, bytes(1500)))
