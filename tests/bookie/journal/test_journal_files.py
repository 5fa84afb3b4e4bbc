"""The journal that is made ahead: written before, as far as there is time."""

import random

import pytest
import trio

from bookie.journal.journal_files import (
    ALLOCATE_SLICE_SIZE_BYTES,
    UNWRITTEN_SYNC_MIN_BYTES,
    JournalFiles,
)
from runtime.sim_disk import SimDisk

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
