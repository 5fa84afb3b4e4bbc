"""Disk: files, with durability as a thing of its own.

`Disk` and `File` are the seam behind which a simulation loses unsynced writes, tears them, fills up
and fails. Everything a bookie or a metadata store keeps goes through here.

Three kinds of calls:
- plain `def`: short, on the caller's thread (page-cache writes, opens, renames);
- `File.sync(done)`: durability without a task. `done(None)` or `done(error)` is called exactly once
  on the loop's thread: before `sync` returns if the disk chose to sync inline, else later;
- `await disk.run(function, *args)`: a long blocking function on a worker thread (inline in a
  simulation, where a thread would not advance virtual time).

A sync that failed is never retried: the kernel may have dropped the dirty pages, so the file's
state is unknown (feature 5, invariant B7). Callers end the bookie.

A write that finds no space is different: nothing is unknown, and it may be tried again. `is_full`
tells it from all other errors, because a sync that fails for want of space (delayed allocation, a
quota) reports EIO like any other sync that failed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from wire.buffers import Buffer, Buffers


T = TypeVar("T")
SyncDone = Callable[[OSError | None], None]
#: For `File.shrink` and `discard`: somebody waits for the space.
FREE_AT_ONCE = 31
_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: OSError) -> bool:
    """A write found no space; no sync failed."""
    return error.errno in _FULL


def sync_error(error: OSError) -> OSError:
    """The error of a sync, as `is_full` wants it."""
    if not is_full(error):
        return error
    words = f"the sync failed for want of space: {error.strerror}"
    return OSError(errno.EIO, words, error.filename)


class File(Protocol):
    """An open file. All offsets and sizes in bytes; OSError as the operating system gives it."""

    @property
    def path(self) -> str: ...

    def size(self) -> int: ...

    def pwrite(self, buffers: Buffers, offset: int) -> None:
        """Writes all the buffers, back to back, at `offset` (pwritev; loops over short writes and
        over IOV_MAX). Into the page cache: durable only after a sync."""

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes; shorter only at the end of the file."""

    def read_cached(self, size: int, offset: int) -> memoryview:
        """Of the range what is in memory, from its start up to the first page that would have to be
        read from the disk: a read-only copy, empty if that is the first. Never waits."""

    def is_cached(self, size: int, offset: int) -> bool:
        """A cheap guess (first and last page) whether the range is in memory."""

    def prefetch(self, size: int, offset: int) -> None:
        """Starts reading the range into the cache (fadvise WILLNEED); never waits."""

    def drop_cached(self, size: int, offset: int) -> None:
        """Lets go of the range's pages in the cache, as far as they are clean (DONTNEED); its last
        page, if the range ends inside it, stays."""

    def allocate(self, size: int, offset: int) -> None:
        """Reserves space with zeros written to it, so that a later sync of it need not change the
        file's metadata. ENOSPC if there is none."""

    def preallocate(self, size: int) -> None:
        """Reserves space for that many bytes without writing them; a file that is shorter becomes
        that long, and what is new of it reads as zeros. Quick, but the first sync of what is
        written there changes the file's metadata. ENOSPC if there is none."""

    def truncate(self, size: int) -> None:
        """Waits for all that the file system is just freeing, for a tenth of a second at times: of
        much, see `shrink`."""

    def shrink(self, size: int, behind: int) -> bool:
        """Truncates little by little, for a quarter of a second; true when the file has no more
        than `size`. Syncs of other files wait behind what is freed at once: so it is at most some
        80 MB/s, and as much again for each file that waits `behind` it. What is freed is durably
        gone; OSError as of a sync. For `Disk.run`, while nobody else syncs the file."""

    def discard(self, behind: int) -> bool:
        """As `shrink`, of all of a file whose name is gone, durably, and that nobody uses any more;
        it is closed when that is true, which frees the last step."""

    def sync(self, done: SyncDone) -> None:
        """Makes all that was written to this file before this call durable (fdatasync)."""

    async def wait_synced(self) -> None:
        """`sync` for those who can wait; raises its OSError."""

    def close(self) -> None: ...


class Disk(Protocol):
    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> File:
        """Opens for reading and writing. FileNotFoundError without `create`; FileExistsError with
        `exclusive`. A created file's *name* is durable only after `sync_directory`."""

    def list(self, directory: str) -> list[str]:
        """Names of the entries, sorted."""

    def exists(self, path: str) -> bool: ...
    def make_directory(self, path: str) -> None:
        """Makes it and its parents; fine if it is there already."""

    def remove(self, path: str) -> None: ...
    def rename(self, source: str, target: str) -> None:
        """Replaces `target` atomically."""

    def link(self, source: str, target: str) -> None:
        """A second name for a file (link(2)). OSError where that cannot be, as over two file
        systems (EXDEV); FileExistsError."""

    def link_count(self, path: str) -> int:
        """How many names the file has."""

    def sync_directory(self, path: str) -> None:
        """Makes creations, links, renames and removals in it durable."""

    def write_file(self, path: str, data: Buffer) -> None:
        """A small file, whole or not at all, durable on return: temporary file, fsync, rename,
        fsync of the directory."""

    def usage(self, path: str) -> tuple[int, int]:
        """(total, free) bytes of the file system that holds `path`."""

    def lock(self, path: str) -> Callable[[], None]:
        """Takes an exclusive lock on the file (flock; made if missing) and returns the function
        that lets it go. BlockingIOError if another process or another holder has it."""

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Runs a long blocking function on a worker thread; not cancellable."""
