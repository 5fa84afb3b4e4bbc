"""Deferred sync (invariants D): adds are answered once written; FORCE makes them last."""

import random
import struct

import pytest
import trio

from bookie.journal.journal import Journal
from bookie.journal.journal_files import JournalFiles
from runtime.sim_disk import DiskFaults, SimDisk
from runtime.turn import Turn
from wire.bookkeeper.status import FLAG_DEFERRED_SYNC, Status

KEY = b"k" * 20
SYNC_SECONDS = 0.5


def slow_syncs(machine):
    machine.disk.faults = DiskFaults(sync_seconds=(SYNC_SECONDS, SYNC_SECONDS))


async def test_an_add_is_answered_before_its_sync(machine, adds_class, autojump_clock):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        adds.add(1, 0)
        await adds.wait(1)
        slow_syncs(machine)
        start = trio.current_time()
        for entry_id in range(1, 5):
            adds.add(1, entry_id, flags=FLAG_DEFERRED_SYNC)
            await adds.wait(1 + entry_id)
        assert trio.current_time() - start < SYNC_SECONDS / 10
        assert machine.disk.sync_count > 0
        # An ordinary add beside them waits for a sync that began after it was written.
        adds.add(2, 0)
        adds.add(1, 5, flags=FLAG_DEFERRED_SYNC)
        await adds.wait(6)
        assert adds.answers[-1] == (1, 5, Status.EOK)
        assert trio.current_time() - start < SYNC_SECONDS / 10
        await adds.wait(7)
        assert adds.answers[-1] == (2, 0, Status.EOK)
        assert trio.current_time() - start >= SYNC_SECONDS
        machine.disk.faults = DiskFaults()


async def test_a_force_waits_for_the_sync(machine_class, adds_class, autojump_clock):
    machine = machine_class(journal_attest_interval_ms=0)
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        slow_syncs(machine)
        adds.add(1, 0, flags=FLAG_DEFERRED_SYNC)
        await adds.wait(1)
        start = trio.current_time()
        assert await bookie.force_ledger(1) is Status.EOK
        assert trio.current_time() - start >= SYNC_SECONDS * 0.9
        # Nothing is left to sync.
        start = trio.current_time()
        assert await bookie.force_ledger(1) is Status.EOK
        assert trio.current_time() - start < SYNC_SECONDS / 10
        machine.disk.faults = DiskFaults()


@pytest.mark.parametrize("seed", range(60))
async def test_what_was_forced_survives_a_crash(machine_class, adds_class, entry_bytes, seed):
    """Random adds, deferred or not, forces, and a crash in the middle: what was forced, or was
    answered without deferral, is there; the rest is whole or absent; nothing else is there."""
    rng = random.Random(seed)
    machine = machine_class(seed)
    machine.disk.faults = DiskFaults(sync_seconds=(0.0, 0.003))
    safe, added = set(), set()
    async with machine.running_until_crash() as bookie:
        forces = []

        async def force():
            answered = {entry_id for _, entry_id, status in adds.answers if status is Status.EOK}
            if await bookie.force_ledger(1) is Status.EOK:
                safe.update(answered)

        adds = adds_class(bookie)
        ordinary = set()
        async with trio.open_nursery() as nursery:
            for entry_id in range(rng.randrange(10, 40)):
                is_deferred = rng.random() < 0.8
                if not is_deferred:
                    ordinary.add(entry_id)
                added.add(entry_id)
                adds.add(1, entry_id, flags=FLAG_DEFERRED_SYNC if is_deferred else 0)
                if rng.random() < 0.3:
                    await trio.sleep(rng.random() * 0.004)
                if rng.random() < 0.15:
                    forces.append(nursery.start_soon(force))
            await trio.sleep(rng.random() * 0.01)
            nursery.cancel_scope.cancel()
        safe |= {
            entry_id
            for _, entry_id, status in adds.answers
            if status is Status.EOK and entry_id in ordinary
        }
    machine.disk.faults = DiskFaults()
    async with machine.running() as bookie:
        found = set()
        for entry_id in range(60):
            status, entry = await bookie.read_entry(1, entry_id)
            if status is Status.EOK:
                found.add(entry_id)
                assert bytes(entry) == entry_bytes(1, entry_id)
    assert safe <= found <= added, (sorted(safe - found), sorted(found - added))


async def test_a_crash_may_lose_what_was_only_answered(machine_class, adds_class):
    """Else the test above would prove nothing."""
    lost = 0
    for seed in range(20):
        machine = machine_class(seed)
        async with machine.running_until_crash() as bookie:
            adds = adds_class(bookie)
            adds.add(1, 0)
            await adds.wait(1)
            machine.disk.faults = DiskFaults(sync_seconds=(5.0, 5.0))
            adds.add(1, 1, flags=FLAG_DEFERRED_SYNC)
            await adds.wait(2)
        machine.disk.faults = DiskFaults()
        async with machine.running() as bookie:
            assert (await bookie.read_entry(1, 0))[0] is Status.EOK
            lost += (await bookie.read_entry(1, 1))[0] is not Status.EOK
    assert 0 < lost < 20


async def test_a_sync_that_fails_fails_the_force(machine, adds_class, autojump_clock):
    async with machine.running_until_crash() as bookie:
        adds = adds_class(bookie)
        adds.add(1, 0)
        await adds.wait(1)
        await trio.sleep(0.1)  # the next journal file is ready: the next sync is the add's
        number = machine.disk.sync_count + 1
        machine.disk.faults = DiskFaults(failing_sync_number=number, sync_seconds=(0.01, 0.02))
        adds.add(1, 1, flags=FLAG_DEFERRED_SYNC)
        await adds.wait(2)
        assert adds.statuses() == [Status.EOK, Status.EOK]
        assert await bookie.force_ledger(1) is Status.EIO
        adds.add(1, 2, flags=FLAG_DEFERRED_SYNC)
        await adds.wait(3)
        assert adds.statuses()[-1] is Status.EIO


async def test_a_write_that_fails_is_told_once(tiny):
    """Of two groups the second write fails: the first one's adds may be told either way, and each
    of them once."""
    disk = SimDisk(random.Random(1))
    disk.make_directory("/j")
    turn, errors, answers = Turn(), [], []
    config = tiny(journal_size_bytes=8192 + 768 + 1024, journal_turn_size_max_bytes=8192)
    files = JournalFiles(config, disk, "/j")
    journal = Journal(config, turn, files, errors.append, lambda: None)
    files.load(0)
    await files.prepare()
    journal.open(0)
    payload = bytes(1500)
    for entry_id in range(4):
        record = struct.pack(">iqq", 16 + len(payload), 1, entry_id) + payload
        journal.append_unsynced(
            memoryview(record),
            0,
            len(record),
            lambda status, entry_id=entry_id: answers.append((entry_id, status)),
        )
    file = journal._file
    written = type(file).pwrite
    calls = []

    class Failing:
        def __getattr__(self, name):
            return getattr(file, name)

        def pwrite(self, buffers, offset):
            calls.append(offset)
            if len(calls) == 2:
                raise OSError(5, "Input/output error")
            written(file, buffers, offset)

    journal._file = Failing()
    turn.run()
    assert len(errors) == 1
    journal.refuse_pending(Status.EIO)
    assert sorted(entry_id for entry_id, _ in answers) == [0, 1, 2, 3]
    assert (3, Status.EIO) in answers
