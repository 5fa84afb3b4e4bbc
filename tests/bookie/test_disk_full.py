"""Disks that fill up and recover: read-only and back, nothing acknowledged is lost, no mark passes
what is not flushed."""

import errno
import random

import pytest
import trio

from bookie.space.disk_usage import DiskState
from bookie.start import ledger_directory
from bookie.storage.checkpoint import read_checkpoint
from bookie.storage.entry_logs import EntryLogs
from bookie.storage.flush import Flusher
from bookie.storage.index import MemoryIndex
from wire.bookkeeper.status import (
    FLAG_DO_FENCING,
    FLAG_HIGH_PRIORITY,
    FLAG_RECOVERY_ADD,
    Status,
)

KEY = b"k" * 20
RECOVERY = FLAG_RECOVERY_ADD | FLAG_HIGH_PRIORITY
KIB = 1024


def fill(machine, free_bytes=0):
    machine.disk.faults.capacity_bytes = machine.disk.used_bytes + free_bytes


def make_room(machine):
    machine.disk.faults.capacity_bytes = 1 << 40


async def check_all(bookie, ledger_id, expected):
    status, entries = await bookie.read_entries(ledger_id, 0, 0, 1 << 30)
    assert (status, [bytes(entry) for entry in entries]) == (Status.EOK, expected)


async def test_read_only_at_the_threshold_and_writable_below_it(
    machine_class, adds_class, autojump_clock
):
    machine = machine_class(disk_usage_threshold=0.9, disk_usage_warn_threshold=0.8)
    async with machine.running() as bookie:
        await trio.sleep(1)  # the next journal is there
        states, are_short = [], []
        bookie.disks.on_change(states.append)
        bookie.disks.on_change(lambda _: are_short.append(bookie._logs.removed.is_short_of_space))
        used = machine.disk.used_bytes
        for share in (0.85, 0.95, 0.85, 0.5):
            machine.disk.faults.capacity_bytes = int(used / share)
            await trio.sleep(11)
            used = machine.disk.used_bytes
        assert states == [DiskState.WARN, DiskState.READ_ONLY, DiskState.WARN, DiskState.OK]
        assert are_short == [True, True, True, False], "removed files are freed at once"
        adds = adds_class(bookie)
        adds.add(1, 0)
        await adds.wait(1)
        assert adds.statuses() == [Status.EOK]


async def test_the_low_water_mark_keeps_it_read_only(machine_class, autojump_clock):
    machine = machine_class(
        disk_usage_threshold=0.9, disk_usage_warn_threshold=0.8, disk_usage_low_water_mark=0.6
    )
    async with machine.running() as bookie:
        await trio.sleep(1)
        used = machine.disk.used_bytes
        found = []
        for share in (0.85, 0.95, 0.85, 0.7, 0.59):
            machine.disk.faults.capacity_bytes = int(used / share)
            await trio.sleep(11)
            found.append(bookie.is_read_only)
        assert found == [False, True, True, True, False]


async def test_a_fast_writer_is_stopped_before_the_disk_is_full(machine_class, adds_class):
    """No interval of ten seconds passes here: what is written makes the bookie look."""
    machine = machine_class(
        journal_size_bytes=64 * KIB,
        write_cache_size_bytes=64 * KIB,
        entry_log_size_limit_bytes=1 << 20,
        disk_usage_threshold=0.8,
        disk_usage_warn_threshold=0.7,
    )
    async with machine.running() as bookie:
        fill(machine, 16 << 20)
        bookie.disks.check()
        adds = adds_class(bookie)
        entry_id = 0
        while not bookie.is_read_only:
            for _ in range(8):
                adds.add(1, entry_id, bytes(2000))
                entry_id += 1
            await adds.wait(entry_id)
        total, free = machine.disk.usage("/")
        assert 0.75 < (total - free) / total < 0.9
        assert set(adds.statuses()) <= {Status.EOK, Status.EREADONLY}
        assert not bookie._checkpointer.is_full


async def test_what_a_read_only_bookie_does_and_does_not(machine, adds_class, entry_bytes):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for ledger_id in (1, 2):
            adds.add(ledger_id, 0)
        await adds.wait(2)
        bookie.set_read_only("by hand")
        assert bookie.is_read_only
        assert bookie.disks.reasons == {"admin": "by hand"}
        adds.add(1, 1)
        assert adds.statuses()[2:] == [Status.EREADONLY]
        assert await bookie.set_explicit_lac(1, KEY, b"lac") is Status.EREADONLY
        await check_all(bookie, 1, [entry_bytes(1, 0)])
        status, _ = await bookie.read_entry(1, 0, flags=FLAG_DO_FENCING, master_key=KEY)
        assert status is Status.EOK
        adds.add(1, 1, flags=RECOVERY)
        await adds.wait(4)
        assert adds.statuses()[3] is Status.EOK
        assert await bookie.delete_ledger(2) is Status.EOK
        await bookie.flush()
        bookie.set_writable()
        assert not bookie.is_read_only
        adds.add(3, 0)
        await adds.wait(5)
        assert adds.statuses()[4] is Status.EOK


async def test_a_recovery_is_refused_when_space_is_short(machine_class, adds_class):
    machine = machine_class(high_priority_min_usable_bytes=100 * KIB)
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        bookie.set_read_only("by hand")
        for free in (200 * KIB, 50 * KIB):
            fill(machine, free)
            bookie.disks.check()
            adds.add(1, len(adds.answers), flags=RECOVERY)
            await adds.wait(len(adds.answers))
            await trio.sleep(0.01)
        assert adds.statuses() == [Status.EOK, Status.EREADONLY]


async def test_held_adds_are_refused_when_it_becomes_read_only(machine, adds_class):
    machine.disk.faults.sync_seconds = (0.01, 0.01)
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(16):
            adds.add(1, entry_id, bytes(1000))
        assert len(bookie._adds.held) > 0
        bookie.set_read_only("by hand")
        assert len(bookie._adds.held) == 0
        await adds.wait(16)
        assert set(adds.statuses()) == {Status.EOK, Status.EREADONLY}
        taken = [entry_id for _, entry_id, status in adds.answers if status is Status.EOK]
        assert taken == list(range(len(taken)))


async def test_forced_read_only(machine_class, adds_class):
    machine = machine_class(force_read_only=True)
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        adds.add(1, 0)
        assert adds.statuses() == [Status.EREADONLY]


async def test_without_read_only_mode_a_full_disk_ends_it(machine_class, autojump_clock):
    machine = machine_class(read_only_mode_enabled=False)

    async def live():
        async with machine.running():
            fill(machine, 10)
            await trio.sleep(11)

    with pytest.raises(BaseExceptionGroup) as error:
        await live()
    assert error.group_contains(OSError, match="readOnlyModeEnabled", depth=None)


async def test_a_checkpoint_without_space_is_made_later(
    machine, adds_class, entry_bytes, autojump_clock
):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(10):
            adds.add(1, entry_id, bytes(500))
        await adds.wait(10)
        mark = read_checkpoint(machine.disk, ledger_directory(machine.config)).mark
        fill(machine, 100)
        assert not await bookie.flush()
        assert bookie.is_read_only
        assert read_checkpoint(machine.disk, ledger_directory(machine.config)).mark == mark
        expected = [entry_bytes(1, i, bytes(500)) for i in range(10)]
        await check_all(bookie, 1, expected)
        make_room(machine)
        await bookie.flush()
        assert read_checkpoint(machine.disk, ledger_directory(machine.config)).mark > mark
        await check_all(bookie, 1, expected)
        adds.add(1, 10)
        await adds.wait(11)
        assert adds.statuses()[-1] is Status.EOK


async def test_deletions_make_the_space_that_a_checkpoint_waits_for(
    machine_class, adds_class, entry_bytes, autojump_clock
):
    machine = machine_class(
        disk_reserve_size_bytes=4 * KIB,
        entry_log_size_limit_bytes=64 * KIB,
        write_cache_size_bytes=64 * KIB,
    )
    machine.disk.faults.capacity_bytes = 1 << 20
    async with machine.running() as bookie:
        await trio.sleep(11)
        assert machine.disk.exists("/ledgers/current/reserve")
        adds = adds_class(bookie)
        for entry_id in range(10):
            adds.add(1, entry_id, bytes(1000))
            await adds.wait(entry_id + 1)
        await bookie.flush()
        for entry_id in range(10):
            adds.add(2, entry_id, bytes(700))
            await adds.wait(entry_id + 11)
        fill(machine)
        with trio.move_on_after(5):
            await bookie.flush()
        assert bookie._checkpointer.is_full
        used = machine.disk.used_bytes
        assert await bookie.delete_ledger(1) is Status.EOK
        with trio.fail_after(60):
            while not await bookie.flush():
                await trio.sleep(1)
        assert machine.disk.used_bytes < used
        assert not bookie._checkpointer.is_full
        await check_all(bookie, 2, [entry_bytes(2, i, bytes(700)) for i in range(10)])
    async with machine.running() as bookie:
        assert (await bookie.read_entry(1, 0))[0] is Status.ENOLEDGER
        await check_all(bookie, 2, [entry_bytes(2, i, bytes(700)) for i in range(10)])


async def test_a_checkpoint_that_finds_no_space_waits_for_what_others_removed(
    machine, autojump_clock
):
    """It is freed at once then, and not by and by."""
    async with machine.running() as bookie:
        file = machine.disk.open("/ledgers/current/7f.log", create=True)
        file.pwrite([bytes(100_000)], 0)
        machine.disk.remove("/ledgers/current/7f.log")
        bookie._logs.removed.add(file)
        used = machine.disk.used_bytes
        await bookie._checkpointer._give_space()
        assert bookie._logs.removed.count == 0
        assert machine.disk.used_bytes < used - 50_000, "less what it makes itself"


async def test_logs_that_are_half_dead_do_not_keep_it_read_only(
    machine_class, adds_class, entry_bytes, autojump_clock
):
    """No log is dead enough for the minor compaction, and the disk stays full without the major."""
    machine = machine_class(
        disk_usage_threshold=0.9, disk_usage_warn_threshold=0.8, disk_reserve_size_bytes=4 * KIB
    )
    machine.disk.faults.capacity_bytes = 1 << 30
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for number in range(100):
            for ledger_id in (1, 2):
                adds.add(ledger_id, number, bytes(1000))
                await adds.wait(2 * number + ledger_id)
            if number % 5 == 4:
                await bookie.flush()
        machine.disk.faults.capacity_bytes = int(machine.disk.used_bytes / 0.92)
        await trio.sleep(11)
        assert bookie.is_read_only
        assert await bookie.delete_ledger(1) is Status.EOK
        with trio.fail_after(120):
            while bookie.is_read_only:
                await trio.sleep(1)
        await check_all(bookie, 2, [entry_bytes(2, i, bytes(1000)) for i in range(100)])


async def test_a_compaction_gets_the_reserve_if_nothing_else_gives_space(
    machine_class, adds_class, entry_bytes, autojump_clock
):
    """A disk without a block: each log is half dead, and what is alive of none of them fits."""
    machine = machine_class(
        disk_usage_threshold=1.0,
        disk_usage_warn_threshold=1.0,
        disk_reserve_size_bytes=32 * KIB,
        entry_log_size_limit_bytes=16 * KIB,
    )
    machine.disk.faults.capacity_bytes = 2 << 20
    async with machine.running() as bookie:
        await trio.sleep(11)
        assert machine.disk.exists("/ledgers/current/reserve")
        adds = adds_class(bookie)
        for number in range(100):
            for ledger_id in (1, 2):
                adds.add(ledger_id, number, bytes(1000))
                await adds.wait(2 * number + ledger_id)
            if number % 5 == 4:
                await bookie.flush()
        assert await bookie.delete_ledger(1) is Status.EOK
        await bookie.flush()
        number = 0
        while not bookie.is_read_only:
            fill(machine, 2 * KIB)
            adds.add(3, number, bytes(1000))
            number += 1
            await trio.sleep(1)
            assert number < 50
        acked = [ids for *ids, status in adds.answers if status is Status.EOK and ids[0] == 3]
        with trio.fail_after(120):
            while bookie.is_read_only:
                await trio.sleep(1)
        assert bookie.gc.statistics.compacted_logs > 0
        await check_all(bookie, 2, [entry_bytes(2, i, bytes(1000)) for i in range(100)])
        for _, entry_id in acked:
            status, entry = await bookie.read_entry(3, entry_id)
            assert (status, entry) == (Status.EOK, entry_bytes(3, entry_id, bytes(1000)))


async def test_a_journal_that_waits_for_space_does_not_keep_others_from_making_it(
    machine_class, adds_class, entry_bytes, autojump_clock
):
    """More is taken than the journals have room for. The checkpoint waits for that, and so do the
    deletions that come then; what is dead already gives the space."""
    machine = machine_class(
        journal_queue_size_max_bytes=64 * KIB,
        write_cache_size_bytes=512 * KIB,
        entry_log_size_limit_bytes=64 * KIB,
        flush_interval_ms=5000,
    )
    machine.disk.faults.capacity_bytes = 1 << 30
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for number in range(300):
            adds.add(1, number, bytes(1000))
            if number % 30 == 0:
                adds.add(2, number // 30, bytes(1000))
            await adds.wait(number + 2 + number // 30)
            if number % 30 == 29:
                await bookie.flush()
        adds.add(4, 0)
        await adds.wait(311)
        assert await bookie.delete_ledger(1) is Status.EOK
        await trio.sleep(1)
        fill(machine, 12 * KIB)
        for number in range(60):
            adds.add(3, number, bytes(1000))
        await trio.sleep(2)
        assert bookie.is_read_only
        assert "journal" in bookie.disks.reasons
        assert len(adds.answers) < 371
        with trio.fail_after(120):
            while bookie.is_read_only or len(adds.answers) < 371:
                await trio.sleep(1)
        assert set(adds.statuses()) == {Status.EOK}
        await check_all(bookie, 2, [entry_bytes(2, i, bytes(1000)) for i in range(10)])
        await check_all(bookie, 3, [entry_bytes(3, i, bytes(1000)) for i in range(60)])


async def test_a_start_on_a_full_disk_serves_what_it_has(
    machine_class, adds_class, entry_bytes, autojump_clock
):
    machine = machine_class(write_cache_size_bytes=64 * KIB)
    async with machine.running_until_crash() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(10):
            adds.add(1, entry_id, bytes(2000))
            await adds.wait(entry_id + 1)
    expected = [entry_bytes(1, i, bytes(2000)) for i in range(10)]
    for _ in range(3):
        # An entry log's header finds room; the entries do not, and no further journal.
        fill(machine, 3 * KIB)
        async with machine.running_until_crash() as bookie:
            assert bookie.is_read_only
            await check_all(bookie, 1, expected)
            assert await bookie.delete_ledger(7) is Status.EOK
    make_room(machine)
    async with machine.running() as bookie:
        await bookie.flush()
        assert not bookie.is_read_only
        await check_all(bookie, 1, expected)


@pytest.mark.parametrize("full_count", [1, 2, 4])
async def test_a_start_that_finds_no_space_to_settle_does_so_later(
    machine, adds_class, entry_bytes, autojump_clock, monkeypatch, full_count
):
    """What was replayed found room, and the maps of the logs that a crash left did not."""
    async with machine.running_until_crash() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(8):
            adds.add(1, entry_id, bytes(200))
            await adds.wait(entry_id + 1)
            if entry_id == 3:
                await bookie.flush()
    left, flush_count = full_count, 0
    complete, flush = EntryLogs.complete, Flusher.flush

    async def complete_later(logs, log, end, ledgers):
        nonlocal left
        if left:
            left -= 1
            raise OSError(errno.ENOSPC, "no space", log.path)
        await complete(logs, log, end, ledgers)

    async def counted(flusher, generation):
        nonlocal flush_count
        flush_count += 1
        assert flush_count < 20, "it flushes empty generations for ever"
        await flush(flusher, generation)

    monkeypatch.setattr(EntryLogs, "complete", complete_later)
    monkeypatch.setattr(Flusher, "flush", counted)
    async with machine.running() as bookie:
        assert bookie.is_read_only == (full_count > 1)
        await trio.sleep(2 * full_count)
        assert not left
        assert not bookie.is_read_only
        await check_all(bookie, 1, [entry_bytes(1, i, bytes(200)) for i in range(8)])


class FullIndex(MemoryIndex):
    """An index whose puts find no space now and then; after that it must be mended."""

    def __init__(self, rng):
        super().__init__()
        self.rng = rng
        self.share = 0.0
        self.is_stuck = False

    def _do(self, change):
        if self.is_stuck or self.rng.random() < self.share:
            self.is_stuck = True
            raise OSError(28, "the index is full")
        super()._do(change)

    def mend(self):
        if self.rng.random() < self.share:
            raise OSError(28, "the index is still full")
        self.is_stuck = False

    def crash(self):
        super().crash()
        self.is_stuck = False


async def life(machine, rng, adds_class, entry_bytes, acked, deleted, next_entry):
    async with machine.running_until_crash() as bookie:
        for ledger_id, entry_id in sorted(acked):
            if ledger_id in deleted:
                continue
            status, entry = await bookie.read_entry(ledger_id, entry_id)
            assert status is Status.EOK, f"acknowledged {ledger_id}, {entry_id}: {status!r}"
            assert bytes(entry) == acked[ledger_id, entry_id]
        for _ in range(rng.randrange(2, 20)):
            what = rng.random()
            if what < 0.5:
                for _ in range(rng.choice([1, 5, 20])):
                    key = (rng.randrange(3), next_entry[0])
                    next_entry[0] += 1
                    entry = entry_bytes(*key, rng.randbytes(rng.choice([30, 300, 2000])))

                    def done(status, key=key, entry=entry):
                        assert status in (
                            Status.EOK,
                            Status.EREADONLY,
                            Status.EIO,
                            Status.ETOOMANYREQUESTS,
                            Status.EFENCED,
                        )
                        if status is Status.EOK:
                            acked[key] = entry

                    flags = RECOVERY if rng.random() < 0.2 else 0
                    bookie.add_entry(*key, KEY, [entry], flags, done)
            elif what < 0.6:
                with trio.move_on_after(rng.random() * 3):
                    await bookie.flush()
            elif what < 0.75:
                machine.disk.faults.capacity_bytes = machine.disk.used_bytes + rng.choice(
                    [0, 0, 500, 3 * KIB, 20 * KIB, 1 << 30]
                )
            elif what < 0.8:
                machine.index.share = rng.choice([0, 0.1, 0.9])
            elif what < 0.83:
                ledger_id = rng.randrange(3)
                deleted.add(ledger_id)
                with trio.move_on_after(0.1):
                    await bookie.delete_ledger(ledger_id)
            await trio.sleep(rng.choice([0, 0.001, 0.01, 1.1]))


@pytest.mark.parametrize("seed", range(60))
async def test_filling_and_crashing_loses_nothing(
    seed, machine_class, adds_class, entry_bytes, autojump_clock
):
    rng = random.Random(seed)
    machine = machine_class(
        seed,
        flush_interval_ms=rng.choice([20, 1000]),
        entry_log_size_limit_bytes=rng.choice([9, 16, 64]) * KIB,
        write_cache_size_bytes=64 * KIB,
        disk_check_interval_ms=500,
        disk_reserve_size_bytes=rng.choice([0, 4 * KIB]),
    )
    machine.index = FullIndex(rng)
    acked, deleted, next_entry = {}, set(), [0]
    for _ in range(6):
        machine.disk.faults.sync_seconds = rng.choice([(0, 0), (0.0001, 0.002)])
        await life(machine, rng, adds_class, entry_bytes, acked, deleted, next_entry)
        machine.index.share = 0.0
        # A start needs room for an entry log; whether it finds more is left to chance.
        spare = rng.choice([4 * KIB, 40 * KIB, 1 << 30])
        machine.disk.faults.capacity_bytes = max(
            machine.disk.faults.capacity_bytes, machine.disk.used_bytes + spare
        )
    make_room(machine)
    await life(machine, rng, adds_class, entry_bytes, acked, deleted, next_entry)
    make_room(machine)
    machine.index.share = 0.0
    async with machine.running() as bookie:
        await bookie.flush()
        assert not bookie.is_read_only
        for ledger_id, entry_id in sorted(acked):
            if ledger_id not in deleted:
                status, entry = await bookie.read_entry(ledger_id, entry_id)
                assert (status, bytes(entry)) == (Status.EOK, acked[ledger_id, entry_id])
    assert len(acked) > 20


async def test_what_logs_were_given_up_for_is_not_looked_for_each_second(machine):
    """The maps of all logs are read for it."""
    async with machine.running() as bookie:
        checkpointer = bookie._checkpointer
        one, two = object(), object()
        assert await checkpointer._not_given([{1: one}, {2: one}]) == [1, 2]
        assert await checkpointer._not_given([{1: one}, {2: one, 3: two}]) == [3]
        assert await checkpointer._not_given([{1: two, 3: two}]) == [1], "deleted once more"
        await bookie.flush()
        assert await checkpointer._not_given([{1: two}]) == [1], "there was space meanwhile"
