"""What AdoptedJournals and KeptRuns keep to, one rule a test."""

import errno
from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import trio

from bookie.errors import BookieStartError, CorruptionError
from bookie.journal.group import Placement
from bookie.journal.journal_format import Position
from bookie.start import check_logs, check_missing_log
from bookie.storage.adopted import AdoptedJournals
from bookie.storage.checkpoint import AdoptedJournal, Checkpoint, read_checkpoint
from bookie.storage.index import MemoryIndex
from bookie.storage.kept_runs import KeptRuns
from runtime.sim_disk import SimDisk
from tests.bookie.storage.large_entries import LEDGERS, add
from wire.bookkeeper.status import Status


@pytest.fixture
def machine(machine_class):
    return machine_class(1, journal_kept_entry_min_bytes=1000, journal_size_bytes=12 * 1024)


async def add_and_flush(machine, bookie, ids, entry_bytes):
    await add(machine, bookie, ids, entry_bytes)
    return await bookie.flush()


def failing_link(monkeypatch, number, times):
    link, calls = SimDisk.link, []

    def fail(disk, source, target):
        calls.append(target)
        if len(calls) <= times:
            raise OSError(number, "no link", source)
        link(disk, source, target)

    monkeypatch.setattr(SimDisk, "link", fail)
    return calls


async def test_where_there_are_no_links_none_is_tried_again(
    machine, entry_bytes, autojump_clock, monkeypatch
):
    calls = failing_link(monkeypatch, errno.EXDEV, 99)
    async with machine.running() as bookie:
        for number in range(5):
            assert await add_and_flush(machine, bookie, [(1, number)], entry_bytes)
    assert len(calls) == 1


async def test_a_link_without_space_is_tried_again_by_the_next_flush(
    machine, entry_bytes, autojump_clock, monkeypatch
):
    failing_link(monkeypatch, errno.ENOSPC, 1)
    async with machine.running() as bookie:
        assert await add_and_flush(machine, bookie, [(1, 0)], entry_bytes)
        assert bookie._checkpointer.flush_statistics.kept_bytes == 0
        assert await add_and_flush(machine, bookie, [(1, 1)], entry_bytes)
        assert bookie._checkpointer.flush_statistics.kept_bytes > 0


@pytest.mark.parametrize("changes", [{"journal_kept_entry_min_bytes": 0}, {}])
async def test_no_journal_is_adopted_that_is_too_long_for_a_location(tiny, changes):
    config = tiny(journal_size_bytes=1 << 31, **changes)
    parts = SimpleNamespace(
        config=config,
        env=SimpleNamespace(disk=None),
        logs=None,
        writer=None,
        journal=SimpleNamespace(placements=deque()),
    )
    kept = SimpleNamespace(journal_ids=lambda: [1])
    generation = SimpleNamespace(kept=kept, entry_count=1, record_size_bytes=1 << 20)
    assert await AdoptedJournals(parts, "/journal").keep(generation) == {}


@pytest.mark.parametrize(
    ("large", "small", "is_kept"),
    [(1, 0, True), (1, 1, True), (2, 2, True), (1, 2, False), (1, 3, False)],
)
async def test_a_journal_is_kept_for_half_of_the_bytes_and_not_for_one_entry(
    machine, entry_bytes, autojump_clock, large, small, is_kept
):
    """Of entries that are all rather large: one of many was enough, all else in the journal was
    dead in it, and what followed the one had to be freed."""
    async with machine.running() as bookie:
        await add(machine, bookie, [(1, 2 * n) for n in range(large)], entry_bytes, 1000)
        await add(machine, bookie, [(2, n) for n in range(small)], entry_bytes, 900)
        assert await bookie.flush()
        assert (bookie._checkpointer.flush_statistics.kept_bytes > 0) == is_kept
        logs = bookie._logs.adopted
        assert bool(logs) == is_kept


async def test_what_became_a_log_is_let_go_of_in_the_page_cache(
    machine, entry_bytes, autojump_clock
):
    async with machine.running() as bookie:
        for number in range(9):
            assert await add_and_flush(machine, bookie, [(1, number)], entry_bytes)
        complete = {log.log_id: log.size_bytes for log in bookie._logs.all() if not log.is_written}
        assert complete
        noted = {log_id: size for log_id, _, size in bookie._writer._cached}
        assert complete.items() <= noted.items()


def test_a_record_in_front_of_all_long_runs_is_in_none():
    view = memoryview(bytes(1000))
    runs = KeptRuns([view], deque([Placement(view, 500, 900, 7, 4096)]))
    assert runs.find(0, 500, 600) == (7, 4096)
    assert runs.find(0, 600, 900) == (7, 4196)
    assert runs.find(0, 400, 450) is None
    assert runs.find(0, 800, 901) is None


def test_what_is_of_later_generations_stays():
    views = [memoryview(bytearray(10)) for _ in range(3)]
    placements = deque(Placement(view, 0, 10, 1, 4096 + at) for at, view in enumerate(views))
    later = placements[2]
    assert KeptRuns([views[1]], placements).find(0, 0, 10) == (1, 4097)
    assert list(placements) == [later]
    assert KeptRuns([views[0]], placements).journal_ids() == []
    assert list(placements) == [later]


class FullIndex(MemoryIndex):
    """Its sync finds no space so many times."""

    times = 0

    def sync(self):
        if self.times:
            self.times -= 1
            raise OSError(errno.ENOSPC, "no space")
        super().sync()


async def test_a_flush_that_is_tried_again_counts_what_stays_once(
    machine, entry_bytes, autojump_clock
):
    machine.index = FullIndex()
    ids = [(1, 0), (2, 0), (1, 1)]
    async with machine.running() as bookie:
        machine.index.times = 2
        if not await add_and_flush(machine, bookie, ids, entry_bytes):
            with trio.fail_after(60):
                while not await bookie.flush():
                    await trio.sleep(1)
        assert machine.index.times == 0
        (log,) = bookie._logs.adopted.values()
        size = 4 + len(entry_bytes(1, 0, bytes(1500)))
        assert log.ledgers == {1: 2 * size, 2: size}
        assert bookie._checkpointer.flush_statistics.kept_bytes == 3 * size


async def test_a_crash_before_a_link_is_durable_loses_nothing(machine, entry_bytes, autojump_clock):
    """The index and the checkpoint are; the name of the log is what they point at."""
    ids = [(1, number) for number in range(3)]
    async with machine.running_until_crash() as bookie:
        machine.disk.is_lucky = lambda: False  # what is not synced is lost
        assert await add_and_flush(machine, bookie, ids, entry_bytes)
        assert bookie._logs.adopted
    async with machine.running() as bookie:
        for ledger_id, entry_id in ids:
            assert (await bookie.read_entry(ledger_id, entry_id))[0] is Status.EOK


async def test_small_entries_beside_large_ones_are_copied(machine, entry_bytes, autojump_clock):
    """Though they are in a long run: a journal is kept for large entries alone."""
    sizes = {0: 1500, 1: 300, 2: 1500}
    answers = []
    async with machine.running() as bookie:
        for entry_id, size in sizes.items():
            entry = entry_bytes(1, entry_id, bytes(size))
            bookie.add_entry(1, entry_id, b"k" * 20, [entry], 0, answers.append)
        while len(answers) < 3:
            await trio.sleep(0.01)
        assert await bookie.flush()
        statistics = bookie._checkpointer.flush_statistics
        records = {each: 4 + len(entry_bytes(1, each, bytes(sizes[each]))) for each in sizes}
        assert statistics.written_bytes == records[1]
        assert statistics.kept_bytes == records[0] + records[2]
        for entry_id, size in sizes.items():
            status, entry = await bookie.read_entry(1, entry_id)
            assert (status, entry) == (Status.EOK, entry_bytes(1, entry_id, bytes(size)))


AT_START = Checkpoint(
    Position(7, 4096, 12), 3, 2048, {5: 100}, (1, 2), (AdoptedJournal(6, 9, 5000, {1: 10}),)
)


@pytest.mark.parametrize(("size", "is_refused"), [(4999, True), (5000, False)])
def test_an_adopted_journal_that_is_too_short_refuses_the_start(size, is_refused):
    logs = {
        3: SimpleNamespace(path="3.log", size_bytes=2048),
        9: SimpleNamespace(path="9.log", size_bytes=size),
    }
    with pytest.raises(CorruptionError, match="5000 bytes") if is_refused else nullcontext():
        check_logs(logs, AT_START)


@pytest.mark.parametrize("known", [1, 2])
def test_an_adopted_journal_that_is_missing_refuses_the_start_if_a_ledger_needs_it(known):
    logs = SimpleNamespace(get={3: "a log"}.get, missing_path=lambda log_id: f"{log_id}.log")
    with pytest.raises(BookieStartError, match=r"9\.log") if known == 1 else nullcontext():
        check_missing_log(logs, {known: "a state"}, AT_START)


async def test_what_the_checkpoint_names_is_not_compacted(machine, entry_bytes, autojump_clock):
    async with machine.running() as bookie:
        for number in range(9):
            assert await add_and_flush(machine, bookie, [(1, number)], entry_bytes)
            named = {each.log_id for each in read_checkpoint(machine.disk, LEDGERS).adopted}
            assert named
            assert named <= bookie._checkpointer.checkpoint_log_ids


async def test_several_long_runs_of_one_group(machine_class, entry_bytes, autojump_clock):
    """A new ledger's key, a record of its own, ends the run before it."""
    machine = machine_class(
        1,
        journal_kept_entry_min_bytes=1000,
        journal_size_bytes=32 * 1024,
        journal_group_size_max_bytes=16 * 1024,
    )
    answers = []
    async with machine.running() as bookie:
        groups = bookie._journal.statistics().groups
        for ledger_id in range(1, 5):
            entry = entry_bytes(ledger_id, 0, bytes([ledger_id]) * (1000 + 100 * ledger_id))
            bookie.add_entry(ledger_id, 0, b"k" * 20, [entry], 0, answers.append)
        while len(answers) < 4:
            await trio.sleep(0.01)
        assert bookie._journal.statistics().groups <= groups + 2, "shared by four"
        assert await bookie.flush()
        assert bookie._checkpointer.flush_statistics.written_bytes == 0
        for ledger_id in range(1, 5):
            expected = entry_bytes(ledger_id, 0, bytes([ledger_id]) * (1000 + 100 * ledger_id))
            assert await bookie.read_entry(ledger_id, 0) == (Status.EOK, expected)
