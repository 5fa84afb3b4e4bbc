"""The journal that is made ahead: written before, as far as there is time."""

import errno
import random

import pytest
import trio

from bookie.journal.journal_files import (
    ALLOCATE_SLICE_SIZE_BYTES,
    UNFINISHED_NAME,
    UNWRITTEN_SYNC_MIN_BYTES,
    JournalFiles,
)
from bookie.journal.journal_format import file_name, parse_file_header
from runtime.disk import FREE_AT_ONCE
from runtime.sim_disk import SimDisk, SimFile
from tests.bookie.conftest import tiny_config
from tests.bookie.storage.large_entries import add
from tests.bookie.storage.test_reader import LARGE_MACHINE, MIB

DIRECTORY = "/journal"
SLICES = 16
SIZE = SLICES * ALLOCATE_SLICE_SIZE_BYTES


class Counting:
    """A disk that tells what its files are asked to allocate."""

    def __init__(self):
        self.disk = SimDisk(random.Random(1))
        self.disk.make_directory(DIRECTORY)
        self.calls = []

    def __getattr__(self, name):
        return getattr(self.disk, name)

    async def run(self, function, *arguments):
        if function.__name__ in ("allocate", "preallocate"):
            self.calls.append((function.__name__, arguments[0]))
        return await self.disk.run(function, *arguments)


@pytest.fixture
def disk():
    return Counting()


async def test_a_removed_journal_is_freed_in_steps_when_its_name_is_durably_gone(
    disk, tiny, monkeypatch
):
    """Else a crash could bring back a journal without its end; and with one step its space would
    not come back before the process ends."""
    noted, discard, sync = [], SimFile.discard, disk.disk.sync_directory

    def in_pieces(file, behind):
        assert behind == FREE_AT_ONCE, "the checkpoint waits for it"
        noted.append("discard")
        return discard(file, behind) if noted.count("discard") == 3 else False

    def synced(path):
        noted.append("sync")
        sync(path)

    monkeypatch.setattr(SimFile, "discard", in_pieces)
    disk.sync_directory = synced
    disk.disk.open(f"{DIRECTORY}/{file_name(1)}", create=True).close()
    files = JournalFiles(tiny(journal_spare_files_max=0), disk, DIRECTORY)
    files.load(3)
    await files.recycle(2)
    assert noted == ["sync", "discard", "discard", "discard"]


@pytest.mark.parametrize("change", [{}, {"journal_alignment_bytes": 512}])
async def test_one_whose_header_was_torn_is_gone_on_in(disk, tiny, change):
    """Its first sector is there, as the replay found. Of other settings it is refused."""
    files = JournalFiles(tiny(), disk, DIRECTORY)
    files.load(0)
    await files.prepare()
    journal_id, file = files.take_next()
    size = files.size_bytes
    whole = bytes(file.pread(size, 0))
    begin = parse_file_header(whole).first_group_offset
    file.pwrite([bytes(begin - 512)], 512)
    file.close()
    again = JournalFiles(tiny(**change), disk, DIRECTORY)
    again.load(journal_id)
    if change:
        with pytest.raises(ValueError, match="other settings"):
            await again.go_on_in(journal_id, begin, begin)
        return
    await again.go_on_in(journal_id, begin, begin)
    assert again.take_next()[0] == journal_id
    assert bytes(disk.open(f"{DIRECTORY}/{file_name(journal_id)}").pread(size, 0)) == whole


async def made(disk, tiny, filled, *, adopted=False, sync_bytes=0):
    """The calls by which the second journal is made, while `filled(calls)` of the first are."""
    files = JournalFiles(tiny(journal_size_bytes=SIZE), disk, DIRECTORY)
    files.load(0)
    await files.prepare()
    if adopted:
        # What was left last is an entry log: it has a second name.
        journal_id, file = files.take_next()
        file.close()
        [name] = [each for each in disk.list(DIRECTORY) if each.endswith(".txn")]
        disk.link(f"{DIRECTORY}/{name}", "/log")
        await files.prepare()
        await files.recycle(journal_id + 1)
    _, file = files.take_next(sync_bytes)
    file.close()
    disk.calls.clear()
    ready = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(files.run, ready.set, lambda: filled(disk.calls))
        await ready.wait()
        nursery.cancel_scope.cancel()
    _, file = files.take_next()
    assert file.size() == SIZE
    file.close()
    return disk.calls


WRITTEN = [("allocate", ALLOCATE_SLICE_SIZE_BYTES)]


async def test_it_is_written_before_if_there_is_time(disk, tiny):
    for ahead in (0, 1):
        disk = Counting()
        calls = await made(
            disk, tiny, lambda calls, more=ahead: (len(calls) + more) * ALLOCATE_SLICE_SIZE_BYTES
        )
        assert calls == WRITTEN * SLICES


async def test_what_would_be_late_is_only_allocated(disk, tiny):
    """Five slices are written in time; then the one in use fills up faster."""
    calls = await made(
        disk, tiny, lambda calls: 0 if len(calls) < 5 else 6 * ALLOCATE_SLICE_SIZE_BYTES + 1
    )
    assert calls == [*WRITTEN * 5, ("preallocate", SIZE)]


@pytest.mark.parametrize(
    ("adopted", "sync_bytes", "is_written"),
    [
        (True, UNWRITTEN_SYNC_MIN_BYTES, False),
        (True, UNWRITTEN_SYNC_MIN_BYTES - 1, True),
        (False, UNWRITTEN_SYNC_MIN_BYTES, True),
    ],
)
async def test_behind_large_syncs_of_entry_logs_nothing_is_written(
    disk, tiny, adopted, sync_bytes, is_written
):
    calls = await made(disk, tiny, lambda calls: 0, adopted=adopted, sync_bytes=sync_bytes)
    assert calls == (WRITTEN * SLICES if is_written else [("preallocate", SIZE)])


async def test_while_writes_wait_nothing_is_written_ahead(disk, tiny):
    """A group that does not fit leaves the end of the one in use empty for good."""
    files = JournalFiles(tiny(journal_size_bytes=SIZE), disk, DIRECTORY)
    files.load(0)
    await files.prepare()
    files.take_next()[1].close()
    disk.calls.clear()
    waits = []

    def filled():
        if len(disk.calls) == 3 and not waits:
            waits.append(files.take_next())
        return 0

    with trio.move_on_after(1):
        await files.run(lambda: None, filled)
    assert waits == [None]
    assert disk.calls == [*WRITTEN * 4, ("preallocate", SIZE)]
    # The next one is not waited for.
    files.take_next()[1].close()
    disk.calls.clear()
    await files.prepare()
    assert disk.calls == WRITTEN * SLICES


def told(filled=0):
    """Files on a disk, and what that is asked."""
    events = []
    disk = SimDisk(
        random.Random(1), observe=lambda event, detail: events.append((event, *detail.split()))
    )
    disk.make_directory(DIRECTORY)
    files = JournalFiles(tiny_config(journal_size_bytes=SIZE), disk, DIRECTORY)
    files.load(0)
    files._filled = lambda: filled
    return disk, files, events


FILLED = pytest.mark.parametrize("filled", [0, 2 * ALLOCATE_SLICE_SIZE_BYTES + 1, SIZE])


@FILLED
async def test_each_piece_is_synced_before_the_file_has_a_name(filled):
    disk, files, events = told(filled)
    named = []
    rename = disk.rename
    disk.rename = lambda source, target: (named.append(len(events)), rename(source, target))
    await files.prepare()
    made = [event for event, path, *_ in events[: named[0]] if path.endswith(UNFINISHED_NAME)]
    assert set(made[1::2]) == {"sync"}, made
    assert "sync" not in made[::2], made
    assert len(made) % 2 == 0, made


@FILLED
async def test_what_a_crash_left_unfinished_is_gone_and_takes_no_space(filled):
    disk, files, _ = told(filled)
    left = disk.open(f"{DIRECTORY}/{UNFINISHED_NAME}", create=True)
    left.pwrite([b"x" * (SIZE + 5)], 0)
    left.close()
    disk.faults.capacity_bytes = SIZE + SIZE // 2
    await files.prepare()
    _, file = files.take_next()
    assert file.size() == SIZE
    assert not any(file.pread(SIZE, 4096))
    file.close()


@pytest.mark.parametrize("filled", [0, SIZE])
async def test_where_somebody_else_takes_the_space_nothing_is_left(filled):
    disk, files, _ = told(filled)
    usage = disk.usage

    def quicker(path):
        found = usage(path)
        disk.faults.capacity_bytes = disk.used_bytes + SIZE // 2
        return found

    disk.usage = quicker
    with pytest.raises(OSError, match="space") as caught:
        await files.prepare()
    assert caught.value.errno == errno.ENOSPC
    assert disk.list(DIRECTORY) == []


async def test_a_bookie_tells_how_full_its_journal_is(machine_class, entry_bytes, autojump_clock):
    settings = {**LARGE_MACHINE, "journal_size_bytes": 8 * MIB}
    machine = machine_class(1, journal_kept_entry_min_bytes=0, **settings)
    async with machine.running() as bookie:
        while bookie._files._next is None:
            await trio.sleep(0.001)
        for entry_id in range(40):
            await add(machine, bookie, [(1, entry_id)], entry_bytes, MIB)
            assert 0 < bookie._files._filled() == bookie._journal._offset <= 8 * MIB
