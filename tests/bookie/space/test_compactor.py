"""Compaction: what is alive moves, what is dead goes, and nothing in between does harm."""

import errno
from math import inf

import pytest
import trio

from bookie.space.compactor import EntryLogCompactor
from bookie.space.gc_config import GcConfig
from bookie.storage.entry_logs import EntryLogs
from bookie.storage.index import MemoryIndex
from wire.bookkeeper.entry import Digest
from wire.bookkeeper.status import FLAG_RECOVERY_ADD, Status

KEY = b"k" * 20
LEDGERS = "/ledgers/current"
FAST = GcConfig(rate_entries=0)


class Everything:
    """Knows all ledgers, all with CRC32C digests."""

    async def gone(self, ledger_ids):
        return []

    async def confirmed(self):
        return []

    seconds_to_confirm = inf

    async def digest(self, ledger_id):
        return Digest()


@pytest.fixture
def machine(machine_class):
    machine = machine_class(gc=FAST, disk_reserve_size_bytes=0)
    machine.known_ledgers = Everything()
    return machine


async def fill(bookie, adds_class, ledgers, count, size=500):
    """Adds entries in turns to the ledgers, and flushes, so that logs have all of them."""
    adds = adds_class(bookie)
    for entry_id in range(count):
        for ledger_id in ledgers:
            adds.add(ledger_id, entry_id, bytes([ledger_id]) * size)
        await adds.wait((entry_id + 1) * len(ledgers))
    assert set(adds.statuses()) == {Status.EOK}
    await bookie.flush()


async def delete(bookie, *ledger_ids):
    for ledger_id in ledger_ids:
        assert await bookie.delete_ledger(ledger_id) is Status.EOK
    await bookie.flush()


async def check(bookie, entry_bytes, ledger_id, count, size=500):
    for entry_id in range(count):
        status, entry = await bookie.read_entry(ledger_id, entry_id)
        assert status is Status.EOK, (ledger_id, entry_id)
        assert bytes(entry) == entry_bytes(ledger_id, entry_id, bytes([ledger_id]) * size)


def log_files(machine):
    return [name for name in machine.disk.list(LEDGERS) if ".log" in name]


def logs_with_locations(machine):
    return {
        place >> 32
        for entries in machine.index._tables.locations.values()
        for place in entries.values()
    }


async def test_survivors_move_and_space_comes_back(machine, adds_class, entry_bytes):
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2, 3, 4), 40)
        await delete(bookie, 1, 2, 3)
        before = bookie.statistics().entry_log_bytes
        report = await bookie.collect_garbage(force_major=True)
        assert report.was_major
        assert report.is_complete
        assert report.compacted_logs >= 3
        assert report.copied_entries > 20
        after = bookie.statistics().entry_log_bytes
        assert after < before * 0.6
        # Exact, but for the map of the log that was given up and the start of the next.
        assert 0 <= report.reclaimed_bytes - (before - after) <= 1200
        await check(bookie, entry_bytes, 4, 40)
    machine.crash()
    async with machine.running() as bookie:
        await check(bookie, entry_bytes, 4, 40)
        assert bookie.list_ledgers() == [4]
        again = await bookie.collect_garbage(force_major=True)
        assert again.compacted_logs <= 1, "there is nothing left to gain"


async def test_a_log_of_which_all_is_alive_is_left_alone(machine, adds_class, entry_bytes):
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2), 60)
        before = log_files(machine)
        report = await bookie.collect_garbage(force_major=True)
        assert report.compacted_logs == 0
        assert log_files(machine) == before


async def test_minor_takes_only_what_is_nearly_dead(machine, adds_class, entry_bytes):
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2), 60)
        await delete(bookie, 1)
        assert (await bookie.collect_garbage(force_minor=True)).compacted_logs == 0
        assert bookie.gc.status().usage_buckets[4] + bookie.gc.status().usage_buckets[5] >= 2
        assert (await bookie.collect_garbage(force_major=True)).compacted_logs >= 2
        await check(bookie, entry_bytes, 2, 60)


async def test_views_stay_valid(machine, adds_class, entry_bytes):
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2), 60)
        _, views = await bookie.read_entries(2, 0, 60, 1 << 20)
        await delete(bookie, 1)
        assert (await bookie.collect_garbage(force_major=True)).compacted_logs >= 2
        assert len(views) == 60 or len(views) > 5
        for entry_id, view in enumerate(views):
            assert bytes(view) == entry_bytes(2, entry_id, b"\x02" * 500)


async def test_reads_and_adds_go_on_meanwhile(machine, adds_class, entry_bytes, autojump_clock):
    machine.disk.faults.sync_seconds = (0.001, 0.005)
    machine.disk.faults.cached_share = 0.5
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2), 60)
        await delete(bookie, 1)
        done = trio.Event()
        reads = 0

        async def collect():
            report = await bookie.collect_garbage(force_major=True)
            assert report.compacted_logs >= 2
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect)
            adds = adds_class(bookie)
            entry_id = 0
            while not done.is_set():
                adds.add(5, entry_id, b"\x05" * 500)
                entry_id += 1
                status, entries = await bookie.read_entries(2, reads % 60, 3, 5000)
                assert status is Status.EOK
                assert bytes(entries[0]) == entry_bytes(2, reads % 60, b"\x02" * 500)
                reads += 1
                await trio.sleep(0.0005)
        assert reads > 5
        await adds.wait(entry_id)
        taken = [i for _, i, status in adds.answers if status is Status.EOK]
        assert len(taken) > 5
        for i in taken:
            assert bytes((await bookie.read_entry(5, i))[1]) == entry_bytes(5, i, b"\x05" * 500)
        await check(bookie, entry_bytes, 2, 60)


async def test_a_flush_in_between_wins(machine, adds_class, entry_bytes, autojump_clock):
    """An entry that is written again while its old copy is being moved stays where the flush
    has put it."""
    machine.disk.faults.sync_seconds = (0.01, 0.01)
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2), 30)
        await delete(bookie, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: bookie.collect_garbage(force_major=True))
            while not any(name.endswith(".compacting") for name in log_files(machine)):
                await trio.sleep(0.0005)
            adds = adds_class(bookie)
            for entry_id in range(10):
                adds.add(2, entry_id, b"\x02" * 500, flags=FLAG_RECOVERY_ADD)
            await bookie.flush()
            new = {i: machine.index.get(2, i) for i in range(10)}
        assert not any(name.endswith(".compacting") for name in log_files(machine))
        kept = {i: machine.index.get(2, i) for i in range(10)}
        current = bookie._checkpointer.current_log.log_id
        assert any(place >> 32 == current for place in kept.values()) or kept == new
        await check(bookie, entry_bytes, 2, 30)


async def test_a_flush_before_the_index_is_told_wins(machine, adds_class, entry_bytes, monkeypatch):
    """The same, where the flush surely comes between the copy and the index: all that it wrote
    stays where it has put it."""
    written, may_go_on = trio.Event(), trio.Event()
    write_map = EntryLogs.write_map

    async def write_and_wait(self, log):
        await write_map(self, log)
        if log.is_compacting:
            written.set()
            await may_go_on.wait()

    monkeypatch.setattr(EntryLogs, "write_map", write_and_wait)
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2), 30)
        await delete(bookie, 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: bookie.collect_garbage(force_major=True))
            await written.wait()
            adds = adds_class(bookie)
            for entry_id in range(10):
                adds.add(2, entry_id, b"\x02" * 500, flags=FLAG_RECOVERY_ADD)
            await bookie.flush()
            new = {i: machine.index.get(2, i) for i in range(10)}
            may_go_on.set()
        assert {i: machine.index.get(2, i) for i in range(10)} == new
        await check(bookie, entry_bytes, 2, 30)


@pytest.mark.parametrize("moment", range(0, 60, 3))
async def test_a_ledger_deleted_meanwhile_does_not_come_back(
    moment, machine, adds_class, entry_bytes, autojump_clock
):
    machine.disk.faults.sync_seconds = (0.002, 0.002)
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2, 3), 30)
        await delete(bookie, 1)

        async def delete_later():
            await trio.sleep(moment * 0.0005)
            await delete(bookie, 2)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(delete_later)
            nursery.start_soon(lambda: bookie.collect_garbage(force_major=True))
        assert machine.index.last_entry_id(2) == -1
        await bookie.collect_garbage(force_major=True)
        for log in bookie._logs.all():
            assert 2 not in await bookie._logs.walk.live_ledgers(log)
        await check(bookie, entry_bytes, 3, 30)
    async with machine.running() as bookie:
        assert bookie.list_ledgers() == [3]
        await check(bookie, entry_bytes, 3, 30)


def damage(machine, ledger_id, entry_id, offset, bit=0):
    place = machine.index.get(ledger_id, entry_id)
    machine.disk.flip_bit(f"{LEDGERS}/{place >> 32:x}.log", (place & 0xFFFFFFFF) + offset, bit)
    return place >> 32


@pytest.mark.parametrize("offset", [-4, 7, 15, 33, 100, 400])
async def test_a_damaged_record_that_is_alive_keeps_its_log(
    offset, machine, adds_class, entry_bytes
):
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2), 60)
        log_id = damage(machine, 2, 3, offset, bit=3)
        await delete(bookie, 1)
        report = await bookie.collect_garbage(force_major=True)
        assert report.damaged_logs == 1
        assert report.compacted_logs >= 1, "the others are compacted"
        assert f"{log_id:x}.log" in log_files(machine)
        for entry_id in range(60):
            if entry_id != 3:
                status, entry = await bookie.read_entry(2, entry_id)
                assert status is Status.EOK
                assert bytes(entry) == entry_bytes(2, entry_id, b"\x02" * 500)
        (listed,) = bookie.scrubber.damages()
        assert (await bookie.read_entry(2, 3))[0] is Status.EIO
        if offset > 15:  # else nobody knows whose it is
            assert (listed.ledger_id, listed.entry_id) == (2, 3)
        assert list(await bookie.sound_entries(2)) == [n for n in range(60) if n != 3]
        assert bookie.gc.statistics.compaction_errors == 1
        minor = await bookie.collect_garbage(force_minor=True)
        assert minor.damaged_logs == 0, "not tried again and again"


async def test_damage_in_what_is_dead_does_no_harm(machine, adds_class, entry_bytes):
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2), 60)
        log_id = damage(machine, 1, 3, 100)
        await delete(bookie, 1)
        report = await bookie.collect_garbage(force_major=True)
        assert report.damaged_logs == 0
        assert f"{log_id:x}.log" not in log_files(machine)
        await check(bookie, entry_bytes, 2, 60)


async def test_the_checkpoints_log_is_never_compacted(machine, adds_class, entry_bytes):
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2), 10)
        current = bookie._checkpointer.current_log
        await delete(bookie, 1)
        # Complete, but the checkpoint still names it: as in the middle of a flush.
        await bookie._writer.start_log()
        assert bookie._checkpointer.checkpoint_log_ids == {current.log_id}
        assert not current.is_written
        report = await bookie.collect_garbage(force_major=True)
        assert bookie._logs.get(current.log_id) is current
        assert report.is_complete
        await fill(bookie, adds_class, (3,), 1)
        assert (await bookie.collect_garbage(force_major=True)).compacted_logs >= 1
        assert bookie._logs.get(current.log_id) is None
        await check(bookie, entry_bytes, 2, 10)


async def test_a_mostly_dead_current_log_is_given_up(machine, adds_class, entry_bytes):
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2), 10)
        await delete(bookie, 1)
        assert (await bookie.collect_garbage(force_minor=True)).compacted_logs == 0
        report = await bookie.collect_garbage(force_major=True)
        assert report.compacted_logs >= 1
        assert report.reclaimed_bytes > 2000
        await check(bookie, entry_bytes, 2, 10)
    machine.crash()
    async with machine.running() as bookie:
        await check(bookie, entry_bytes, 2, 10)


# -- no space --------------------------------------------------------------------------------------


def limit(machine, free):
    machine.disk.faults.capacity_bytes = machine.disk.used_bytes + free


async def test_without_space_nothing_happens_and_with_some_it_does(
    machine_class, adds_class, entry_bytes, monkeypatch
):
    waits, close_removed = [], EntryLogs.close_removed

    async def noted(logs):
        waits.append(logs.count)
        await close_removed(logs)

    monkeypatch.setattr(EntryLogs, "close_removed", noted)
    machine = machine_class(
        gc=FAST, disk_reserve_size_bytes=0, disk_usage_threshold=1.0, disk_usage_warn_threshold=1.0
    )
    machine.known_ledgers = Everything()
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2), 100)
        await delete(bookie, 1)
        limit(machine, 2000)
        report = await bookie.collect_garbage(force_major=True)
        assert (report.compacted_logs, report.damaged_logs) == (0, 0)
        assert report.no_space_logs >= 4
        await check(bookie, entry_bytes, 2, 100)
        # As much as the survivors of one log need: then each makes room for the next.
        limit(machine, 16_000)
        report = await bookie.collect_garbage(force_major=True)
        assert report.compacted_logs >= 4
        assert len(waits) > 3, "what the next one needs is waited for, not freed by and by"
        assert machine.disk.free_bytes() > 30_000
        await check(bookie, entry_bytes, 2, 100)


@pytest.mark.parametrize("stolen", [1000, 3000, 6000, 9000, 10_000])
async def test_space_that_vanishes_meanwhile(
    stolen, machine_class, adds_class, entry_bytes, autojump_clock
):
    machine = machine_class(
        gc=GcConfig(rate_bytes=20_000, throttle_by_bytes=True),
        disk_reserve_size_bytes=0,
        disk_usage_threshold=1.0,
        disk_usage_warn_threshold=1.0,
    )
    machine.known_ledgers = Everything()
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2), 100)
        await delete(bookie, 1)
        limit(machine, 12_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: bookie.collect_garbage(force_major=True))
            while not any(name.endswith(".compacting") for name in log_files(machine)):
                await trio.sleep(0.001)
            limit(machine, 12_000 - stolen)
        assert not any(name.endswith(".compacting") for name in log_files(machine))
        await check(bookie, entry_bytes, 2, 100)
        machine.disk.faults.capacity_bytes = 1 << 40
        report = await bookie.collect_garbage(force_major=True)
        assert report.is_complete
        await check(bookie, entry_bytes, 2, 100)
        assert bookie.statistics().entry_log_bytes < 100_000


# -- what a crash leaves ---------------------------------------------------------------------------


async def test_a_log_without_a_map_that_compaction_left_is_removed(machine, adds_class):
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1,), 10)
        log = await bookie._logs.create(compacting_in=LEDGERS)
        bookie._logs.file(log).pwrite([b"\0\0\1\0" + bytes(400)], 1024)
        await bookie._logs.file(log).wait_synced()
        log.is_written = False
    assert any(name.endswith(".compacting") for name in log_files(machine))
    async with machine.running() as bookie:
        assert not any(name.endswith(".compacting") for name in log_files(machine))


@pytest.mark.parametrize("pointed", [0, 7, 40])
async def test_a_crash_while_the_index_is_told(
    pointed, machine, adds_class, entry_bytes, monkeypatch, wait_until
):
    """The index has heard of some of the moves, durably, and the power fails."""
    async with machine.running_until_crash() as bookie:
        await fill(bookie, adds_class, (1, 2), 40)
        await delete(bookie, 1)

        def some_only(base, moves, moved):
            ids = list(moves.entry_ids)[:pointed]
            machine.index.put(2, ids, [base | new for new in list(moves.new_offsets)[:pointed]])
            machine.index.sync()
            raise OSError(errno.EIO, "the power fails")

        monkeypatch.setattr(bookie.gc._compactor, "_repoint_slice", some_only)
        report = await bookie.collect_garbage(force_major=True)
        assert not report.is_complete
    assert any(name.endswith(".compacting") for name in log_files(machine))
    async with machine.running() as bookie:
        await check(bookie, entry_bytes, 2, 40)
        await wait_until(
            lambda: not any(name.endswith(".compacting") for name in log_files(machine))
        )
        assert (await bookie.collect_garbage(force_major=True)).compacted_logs >= 1
        await check(bookie, entry_bytes, 2, 40)
        assert bookie.statistics().entry_log_bytes < 40 * 540 * 1.5
    machine.crash()
    async with machine.running() as bookie:
        await check(bookie, entry_bytes, 2, 40)


# -- logs without a readable map -------------------------------------------------------------------


def spoil_header(machine, name, offset=10):
    machine.disk.flip_bit(f"{LEDGERS}/{name}", offset)


async def test_a_log_may_go_while_room_is_made_for_it(machine, adds_class, monkeypatch):
    """By a checkpoint that brings the deletion of all that was in it."""
    finish, looked = EntryLogCompactor._finish, []

    def lacked_at_the_second(compactor, log):
        looked.append(log)
        return 1 if len(looked) == 2 else -1

    async with machine.running() as bookie:

        async def finish_while_it_goes(compactor):
            await finish(compactor)
            if len(looked) == 2:
                await delete(bookie, 2)

        monkeypatch.setattr(EntryLogCompactor, "_lacked_bytes", lacked_at_the_second)
        monkeypatch.setattr(EntryLogCompactor, "_finish", finish_while_it_goes)
        await fill(bookie, adds_class, (1, 2), 60)
        await delete(bookie, 1)
        report = await bookie.collect_garbage(force_major=True)
        assert report.is_complete
        assert bookie._logs.get(looked[1].log_id) is None
        assert bookie.is_running


async def test_what_moved_in_memory_only_keeps_the_log_that_it_came_from(
    machine, adds_class, entry_bytes, monkeypatch
):
    """The index finds no space for the moves of a second log. The next compaction gets no further
    than the first one, of which nothing is alive by what is in memory; then power fails."""
    put, told = MemoryIndex.put, []

    def put_once(index, ledger_id, entry_ids, locations):
        told.append(ledger_id)
        if len(told) > 1:
            raise OSError(errno.ENOSPC, "the index is full")
        put(index, ledger_id, entry_ids, locations)

    def lacked_behind_the_first(compactor, log):
        return log.log_id - first

    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2, 3), 60)
        await delete(bookie, 1, 2)
        first = min(logs_with_locations(machine))
        with monkeypatch.context() as patch:
            patch.setattr(MemoryIndex, "put", put_once)
            report = await bookie.collect_garbage(force_major=True)
        assert report.no_space_logs > 1
        assert len(told) == 2
        assert first not in logs_with_locations(machine)
        monkeypatch.setattr(EntryLogCompactor, "_lacked_bytes", lacked_behind_the_first)
        report = await bookie.collect_garbage(force_major=True)
        assert (report.compacted_logs, report.copied_entries) == (1, 0)
    machine.crash()
    async with machine.running() as bookie:
        await check(bookie, entry_bytes, 3, 60)


async def test_a_map_that_is_damaged_in_this_life_costs_nothing_that_lives(
    machine, adds_class, entry_bytes, wait_until
):
    """It was read at the start, or written since; a deletion reads it again."""
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2), 60)
        logs = [log for log in bookie._logs.all() if not log.is_written]
        for log in logs:
            # Of the first ledger's id: ledger 1 would be another one, and the log dead.
            machine.disk.flip_bit(log.path, log.map.offset + 24 + 6)
        await delete(bookie, 1)
        await bookie.flush()
        assert all(log.is_doubtful and not log.is_known for log in logs)
        await bookie.collect_garbage()
        await wait_until(lambda: not bookie._logs.unknown())
        for log in logs:
            assert set(await bookie._logs.walk.live_ledgers(log)) <= {2}
        await check(bookie, entry_bytes, 2, 60)
        assert (await bookie.collect_garbage(force_major=True)).compacted_logs > 0
        await check(bookie, entry_bytes, 2, 60)
    async with machine.running() as bookie:
        await check(bookie, entry_bytes, 2, 60)


@pytest.mark.parametrize("where", ["magic", "offset", "count", "map"])
async def test_a_log_whose_map_is_damaged_is_scanned(
    where, machine, adds_class, entry_bytes, wait_until
):
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2), 60)
        log = min(
            (log for log in bookie._logs.all() if not log.is_written), key=lambda log: log.log_id
        )
        name, map_end = f"{log.log_id:x}.log", log.size_bytes
    offset = {"magic": 1, "offset": 14, "count": 19, "map": map_end - 9}[where]
    spoil_header(machine, name, offset)
    async with machine.running() as bookie:
        await wait_until(lambda: not bookie._logs.unknown())
        found = bookie._logs.get(int(name.split(".")[0], 16))
        await wait_until(lambda: found.is_known and not found.is_written)
        assert set(await bookie._logs.walk.live_ledgers(found)) == {1, 2}
        await delete(bookie, 1)
        assert (await bookie.collect_garbage(force_major=True)).compacted_logs >= 2
        assert name not in log_files(machine)
        await check(bookie, entry_bytes, 2, 60)
    # What was found was written down.
    async with machine.running() as bookie:
        assert not bookie._logs.unknown()
        await check(bookie, entry_bytes, 2, 60)


async def test_a_log_that_cannot_be_read_to_its_end_is_kept(
    machine, adds_class, entry_bytes, wait_until
):
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2), 60)
        place = machine.index.get(1, 3)
        log_id = place >> 32
    spoil_header(machine, f"{log_id:x}.log", 1)
    machine.disk.flip_bit(f"{LEDGERS}/{log_id:x}.log", (place & 0xFFFFFFFF) - 4, 7)
    async with machine.running() as bookie:
        await wait_until(lambda: log_id in bookie.gc._unreadable)
        await delete(bookie, 1)
        for _ in range(3):
            report = await bookie.collect_garbage(force_minor=True)
            assert report.examined_logs == 0, "not looked at again and again"
        report = await bookie.collect_garbage(force_major=True)
        assert (report.examined_logs, report.unreadable_logs) == (1, 1)
        assert bookie.gc.status().unreadable_logs == 1
        assert f"{log_id:x}.log" in log_files(machine)
        await check(bookie, entry_bytes, 2, 60)


async def test_a_scan_finds_what_is_dead(machine, adds_class, entry_bytes, wait_until):
    """A log of which nothing is alive, and nobody knows: no map, and the index does not point."""
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2), 60)
        log_id = machine.index.get(1, 3) >> 32
        saved = machine.disk.open(f"{LEDGERS}/{log_id:x}.log").pread(1 << 20, 0)
        await delete(bookie, 1)
        await bookie.collect_garbage(force_major=True)
    # The removal was undone, and the header is torn.
    machine.disk.write_file(f"{LEDGERS}/{log_id:x}.log", b"X" + saved[1:])
    async with machine.running() as bookie:
        await wait_until(lambda: not bookie._logs.unknown())
        assert f"{log_id:x}.log" not in log_files(machine)
        await check(bookie, entry_bytes, 2, 60)


async def test_zeros_at_the_end_are_space_never_used(machine, adds_class, entry_bytes, wait_until):
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1,), 60)
        log_id = machine.index.get(1, 3) >> 32
    path = f"{LEDGERS}/{log_id:x}.log"
    file = machine.disk.open(path)
    data = file.pread(1 << 20, 0)
    end = int.from_bytes(data[8:16], "big")
    # As Apache BookKeeper leaves a log that it allocated ahead and did not complete.
    machine.disk.write_file(path, data[:8] + bytes(1016) + data[1024:end] + bytes(3_000_000))
    async with machine.running() as bookie:
        await bookie.collect_garbage(force_major=True)
        assert not bookie._logs.unknown()
        await check(bookie, entry_bytes, 1, 60)
