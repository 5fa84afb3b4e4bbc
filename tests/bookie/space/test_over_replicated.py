"""A bookie gives up the entries of ledgers that are wholly on other bookies: what stays known, what
a later copy may rely on, and what a crash at any operation leaves."""

import errno
from math import inf

import pytest
import trio

from bookie.known_ledgers import CollectionRefusedError
from bookie.space import over_replicated
from bookie.space.gc_config import GcConfig
from bookie.storage import checkpointer
from bookie.storage.index import MemoryIndex
from wire.bookkeeper.entry import Digest
from wire.bookkeeper.status import FLAG_RECOVERY_ADD, Status

KEY = b"k" * 20
COUNT = 12


class Known:
    """bookie.known_ledgers.KnownLedgers: all ledgers live, some of them elsewhere."""

    seconds_to_confirm = inf

    def __init__(self):
        self.elsewhere = set()
        self.asked = []
        self.refusal = ""
        self.before = None

    async def gone(self, ledger_ids):
        return []

    async def confirmed(self):
        return []

    async def digest(self, ledger_id):
        return Digest()

    async def over_replicated(self, ledger_ids, give_up):
        self.asked.append(list(ledger_ids))
        if self.refusal:
            raise CollectionRefusedError(self.refusal)
        if self.before is not None:
            await self.before()
        if found := [each for each in ledger_ids if each in self.elsewhere]:
            await give_up(found)


def new_machine(machine_class, seed=0, wait_ms=1):
    machine = machine_class(
        seed,
        gc=GcConfig(rate_entries=0, over_replicated_wait_ms=wait_ms),
        disk_reserve_size_bytes=0,
    )
    machine.known_ledgers = Known()
    return machine


@pytest.fixture
def machine(machine_class):
    return new_machine(machine_class)


async def fill(bookie, adds_class, ledger_id, *, flags=0, size=400, count=COUNT):
    adds = adds_class(bookie)
    for entry_id in range(count):
        adds.add(ledger_id, entry_id, bytes([ledger_id]) * size, flags=flags)
        await adds.wait(entry_id + 1)
    return adds.statuses()


async def collect(bookie):
    """Both looks; how many ledgers were emptied."""
    await trio.sleep(0.005)
    first = await bookie.collect_garbage()
    assert first.emptied_ledgers == 0
    return (await bookie.collect_garbage()).emptied_ledgers


def places(machine, ledger_id):
    return [each for each in machine.index.locations() if each[0] == ledger_id]


async def status_of(bookie, adds_class, ledger_id, entry_id, flags=0):
    adds = adds_class(bookie)
    adds.add(ledger_id, entry_id, flags=flags)
    await adds.wait(1)
    return adds.statuses()[0]


async def test_entries_go_and_their_space_comes_back(machine, adds_class):
    known = machine.known_ledgers
    async with machine.running() as bookie:
        for ledger_id in (1, 2):
            await fill(bookie, adds_class, ledger_id, count=40)
            await bookie.flush()
        before = bookie.gc.status().active_log_bytes
        known.elsewhere = {1}
        assert await collect(bookie) == 1
        assert (places(machine, 1), len(places(machine, 2))) == ([], 40)
        assert bookie.gc.status().active_log_bytes < before * 0.6
        assert bookie.gc.status().reclaimed_by_deletion_bytes > 0
        assert (await bookie.read_entry(1, 0))[0] is Status.ENOENTRY
        assert (await bookie.read_entry(2, 0))[0] is Status.EOK
        assert await collect(bookie) == 0
        assert known.asked == [[1, 2], [2]], "one without entries is not asked for again"


@pytest.mark.parametrize("wait_ms", [1, 1_000_000])
async def test_many_ledgers_are_looked_at_in_parts(
    machine_class, adds_class, monkeypatch, wait_ms, autojump_clock
):
    """Two rounds for each part; the last one ends the look."""
    monkeypatch.setattr(over_replicated, "CANDIDATES_MAX", 2)
    monkeypatch.setattr(over_replicated, "LEDGERS_PER_TURN", 2)
    machine = new_machine(machine_class, wait_ms=wait_ms)
    known = machine.known_ledgers
    async with machine.running() as bookie:
        for ledger_id in range(1, 6):
            await fill(bookie, adds_class, ledger_id)
        await bookie.flush()
        known.elsewhere = {1, 3, 5}
        await trio.sleep(wait_ms / 1000 + 0.005)
        emptied = [(await bookie.collect_garbage()).emptied_ledgers for _ in range(6)]
        assert known.asked == [[1, 2], [3, 4], [5]]
        assert emptied == [0, 1, 0, 1, 0, 1]
        assert {each[0] for each in machine.index.locations()} == {2, 4}
    # What a start finds in the maps is forgotten part by part, too.
    async with machine.running() as bookie:
        await bookie.flush()
        await trio.sleep(wait_ms / 1000 + 0.005)
        for _ in range(6):
            await bookie.collect_garbage()
        for log in bookie._logs.all():
            found = await bookie._logs.walk.live_ledgers(log)
            assert not known.elsewhere & found.keys()


async def test_the_scrub_does_not_miss_what_was_given_up(machine, adds_class):
    """Its records stay in logs that have others, until they are compacted; also after a start."""
    async with machine.running() as bookie:
        for ledger_id in (1, 2):
            await fill(bookie, adds_class, ledger_id)
        await bookie.flush()
        machine.known_ledgers.elsewhere = {1}
        assert await collect(bookie) == 1
        assert (await bookie.scrubber.scrub()).damaged_entries == 0
    for _ in range(2):
        async with machine.running() as bookie:
            status = await bookie.scrubber.scrub()
            assert (status.verified_entries, status.damaged_entries) == (COUNT, 0)
            assert bookie.scrubber.damages() == []


async def test_an_old_writer_is_refused_and_auto_recovery_is_not(machine, adds_class):
    machine.known_ledgers.elsewhere = {1}
    async with machine.running_until_crash() as bookie:
        await fill(bookie, adds_class, 1)
        await bookie.flush()
        assert await collect(bookie) == 1
    async with machine.running_until_crash() as bookie:
        assert await status_of(bookie, adds_class, 1, COUNT) is Status.EFENCED
        assert await fill(bookie, adds_class, 1, flags=FLAG_RECOVERY_ADD) == [Status.EOK] * COUNT
    async with machine.running() as bookie:
        assert list(await bookie.entries(1)) == list(range(COUNT))
        assert await status_of(bookie, adds_class, 1, COUNT) is Status.EFENCED


@pytest.mark.parametrize("is_flushed", [True, False])
@pytest.mark.parametrize("when", ["between the looks", "under the lock"])
async def test_a_ledger_that_gets_entries_is_kept(machine, adds_class, is_flushed, when):
    """Somebody copies it here, and may be about to name this bookie."""
    known = machine.known_ledgers
    known.elsewhere = {1, 2}
    async with machine.running() as bookie:
        for ledger_id in (1, 2):
            await fill(bookie, adds_class, ledger_id)
        await bookie.flush()

        async def copy():
            await fill(bookie, adds_class, 1, flags=FLAG_RECOVERY_ADD)
            if is_flushed:
                await bookie.flush()

        await trio.sleep(0.005)
        await bookie.collect_garbage()
        if when == "between the looks":
            await copy()
        else:
            known.before = copy
        assert (await bookie.collect_garbage()).emptied_ledgers == 1
        assert (len(places(machine, 1)), places(machine, 2)) == (COUNT, [])
        known.before = None
        await bookie.flush()
        assert await collect(bookie) == 1, "at the next look it is quiet"


async def test_on_doubt_and_when_disabled_all_is_kept(machine_class, adds_class):
    for wait_ms, refusal in ((1, "no tree"), (0, ""), (-1, ""), (86_400_000, "")):
        machine = new_machine(machine_class, wait_ms=wait_ms)
        machine.known_ledgers.elsewhere = {1}
        machine.known_ledgers.refusal = refusal
        async with machine.running() as bookie:
            await fill(bookie, adds_class, 1)
            await bookie.flush()
            assert await collect(bookie) == 0
            assert len(places(machine, 1)) == COUNT
            assert bool(machine.known_ledgers.asked) == bool(refusal)


async def test_a_start_does_not_miss_the_log_that_went(machine, adds_class):
    """The checkpoint on disk had named the log that is removed, with a ledger that is still
    known."""
    known = machine.known_ledgers
    known.elsewhere = {1}
    async with machine.running_until_crash() as bookie:
        await fill(bookie, adds_class, 1, count=4)
        await bookie.flush()
        await trio.sleep(0.005)
        await bookie.collect_garbage()
        logs = bookie._logs.count
        # Rolls to the next log, which no checkpoint names yet.
        await bookie._writer.start_log()
        assert bookie._logs.count == logs + 1
        assert (await bookie.collect_garbage()).emptied_ledgers == 1
        assert bookie._logs.count == logs
    async with machine.running() as bookie:
        assert bookie.list_ledgers() == [1]


async def test_without_space_for_a_checkpoint_the_log_that_the_last_one_names_stays(
    machine, adds_class, monkeypatch
):
    """Also when the next one is begun: a start would miss it."""

    def full(*_):
        raise OSError(errno.ENOSPC, "no space")

    machine.known_ledgers.elsewhere = {1}
    async with machine.running_until_crash() as bookie:
        await fill(bookie, adds_class, 1, count=4)
        await bookie.flush()
        await trio.sleep(0.005)
        await bookie.collect_garbage()
        with monkeypatch.context() as patch:
            patch.setattr(checkpointer, "write_checkpoint", full)
            assert (await bookie.collect_garbage()).emptied_ledgers == 0
        assert places(machine, 1) == []
        logs = bookie._logs.count
        await bookie._writer.start_log()
        assert bookie._logs.count == logs + 1
    async with machine.running() as bookie:
        assert bookie.list_ledgers() == [1]
        await fill(bookie, adds_class, 2)
        await bookie.flush()
        assert bookie._logs.count == 2
        await trio.sleep(0.005)
        await bookie.collect_garbage()
        await bookie.collect_garbage()
        assert bookie._logs.count == 1, "it goes as soon as a checkpoint names another"


class StampsFull(MemoryIndex):
    """Deletes, and then finds no space for the stamp that a sync writes first."""

    is_full = False

    def delete_entries(self, ledger_ids):
        super().delete_entries(ledger_ids)
        self.is_full = True

    def sync(self):
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space for the stamp")
        super().sync()


@pytest.mark.parametrize("is_map_damaged", [False, True])
async def test_what_the_index_forgot_in_memory_only_keeps_its_log(
    machine_class, adds_class, is_map_damaged
):
    """A later round that goes by it makes it durable first: power that fails would leave places
    in logs that are gone. The collector reads the log where its map cannot be read."""
    machine = new_machine(machine_class)
    machine.index, machine.known_ledgers.elsewhere = StampsFull(), {1}
    async with machine.running_until_crash() as bookie:
        for ledger_id in (1, 2):
            await fill(bookie, adds_class, ledger_id)
            await bookie._writer.start_log()
            await bookie.flush()
        await trio.sleep(0.005)
        await bookie.collect_garbage()
        [log] = {place >> 32 for _, _, place in places(machine, 1)}
        if is_map_damaged:
            at = bookie._logs.get(log).map.offset
            machine.disk.flip_bit(f"/ledgers/current/{log:x}.log", at + 30)
        assert (await bookie.collect_garbage()).emptied_ledgers == 0
        assert places(machine, 1) == []
        machine.index.is_full = False
        for _ in range(2):
            await trio.sleep(0.005)
            await bookie.collect_garbage()
        assert bookie._logs.get(log) is None
    machine.crash()
    async with machine.running() as bookie:
        assert places(machine, 1) == []
        assert (await bookie.read_entry(1, 0))[0] is Status.ENOENTRY
        assert (await bookie.read_entry(2, 0))[0] is Status.EOK


async def test_the_maps_that_a_start_reads_are_corrected(machine, adds_class):
    """A log that is half dead keeps its map on disk, with what was given up in it."""
    known = machine.known_ledgers
    async with machine.running() as bookie:
        for ledger_id in (1, 2):
            await fill(bookie, adds_class, ledger_id)
        await bookie.flush()
    async with machine.running() as bookie:
        known.elsewhere = {1}
        assert await collect(bookie) == 1
        alive = bookie.gc.status().active_log_bytes
    async with machine.running() as bookie:
        assert bookie.gc.status().active_log_bytes > alive
        await collect(bookie)
        assert bookie.gc.status().active_log_bytes == alive
        assert (await bookie.read_entry(2, 0))[0] is Status.EOK


class Crash:
    """Ends the bookie right before its n-th change of the disk from `arm` on."""

    def __init__(self, machine, bookie, number, *, is_power):
        self.machine, self.bookie = machine, bookie
        self.left, self.is_power = number, is_power
        self.has_come = False
        machine.disk.observe = self.observe

    def observe(self, _event, _detail):
        self.left -= 1
        if self.left == 0 and not self.has_come:
            self.has_come = True
            if self.is_power:
                self.machine.crash()
            else:
                self.machine.disk.kill()
                self.machine.index.crash()  # RocksDB's memory goes with the process
            self.bookie.crash()


async def one_life(machine, adds_class, number, *, is_power):
    """Up to the crash: (whether it came, whether entries were given up, entries that were
    acknowledged after that)."""
    known = machine.known_ledgers
    known.elsewhere = set()
    for ledger_id in (1, 2):  # each in an entry log of its own
        async with machine.running() as bookie:
            await fill(bookie, adds_class, ledger_id)
    known.elsewhere = {1}
    copied, emptied = [], 0
    async with machine.running_until_crash() as bookie:
        await trio.sleep(0.005)
        await bookie.collect_garbage()
        crash = Crash(machine, bookie, number, is_power=is_power)
        for step in range(3):
            if bookie.is_running and not step:
                emptied = (await bookie.collect_garbage()).emptied_ledgers
                known.elsewhere = set()
            for entry_id in range(step * 4, step * 4 + 4):
                adds = adds_class(bookie)
                adds.add(1, entry_id, b"\1" * 400, flags=FLAG_RECOVERY_ADD)
                await adds.wait(1)
                if adds.statuses() == [Status.EOK] and not crash.has_come:
                    copied.append(entry_id)
            if bookie.is_running and step:
                await bookie.flush()
        came = crash.has_come
        machine.disk.observe = lambda _event, _detail: None
    return came, emptied, copied


@pytest.mark.parametrize("is_power", [True, False], ids=["power fails", "killed"])
@pytest.mark.parametrize("seed", range(2))
async def test_a_crash_at_every_change(machine_class, adds_class, entry_bytes, seed, is_power):
    """New copies that were acknowledged are there, other ledgers too, the fence holds, no place
    points at a log that is gone."""
    given_up = 0
    for number in range(1, 1000):
        machine = new_machine(machine_class, seed * 1000 + number)
        came, emptied, copied = await one_life(machine, adds_class, number, is_power=is_power)
        given_up += emptied
        async with machine.running() as bookie:
            for ledger_id, entry_id, place in machine.index.locations():
                assert bookie._logs.get(place >> 32) is not None, (number, ledger_id, entry_id)
            for entry_id in copied:
                status, entry = await bookie.read_entry(1, entry_id)
                assert status is Status.EOK, (number, entry_id)
                assert bytes(entry) == entry_bytes(1, entry_id, b"\1" * 400)
            for entry_id in range(COUNT):
                assert (await bookie.read_entry(2, entry_id))[0] is Status.EOK, number
            if emptied:
                assert await status_of(bookie, adds_class, 1, COUNT) is Status.EFENCED, number
            else:
                # Wholly as it was, or wholly gone: by ledger the index forgets in one step.
                assert len(places(machine, 1)) in (COUNT, len(copied)), number
        if not came:
            break
    assert number > 15, "so many operations at least"
    assert given_up > 5
