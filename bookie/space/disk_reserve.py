"""DiskReserve: a file that keeps space for the writes that make space.

On a disk without a free block nothing could be deleted: a deletion is a record in the index, an
entry log that is to be given up needs a successor, RocksDB needs room to open, a compaction needs
some for the survivors. So a file of zeros is kept; when such a write finds no space, the file goes,
and the write is tried again. The reserve is made again when there is plenty. Flushing entries never
takes it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from runtime.disk import is_full

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from runtime.disk import Disk

logger = logging.getLogger(__name__)

FILE_NAME = "reserve"
#: The file is at most this part of its file system, and made only if there is this many times as
#: much free.
SHARE_MAX = 64
PLENTY = 4
SLICE_SIZE_BYTES = 1 << 20
#: With less than this free a start begins by releasing the reserve.
SHORT_BYTES = 4 << 20


class DiskReserve:
    __slots__ = ("_disk", "_path", "_size_bytes", "released_count")

    def __init__(self, disk: Disk, directory: str, size_bytes: int) -> None:
        self._disk = disk
        self._path = f"{directory}/{FILE_NAME}"
        self._size_bytes = size_bytes
        self.released_count = 0

    async def make(self) -> None:
        """Makes the file if it is not there and there is plenty of space. OSError, but not for
        want of space."""
        total, free = self._disk.usage(self._path.rpartition("/")[0])
        size = min(self._size_bytes, total // SHARE_MAX)
        if size <= 0 or free < PLENTY * size or self._disk.exists(self._path):
            return
        try:
            await self._fill(size)
        except OSError as error:
            if not is_full(error):
                raise
            self.release()

    async def _fill(self, size: int) -> None:
        file = self._disk.open(self._path, create=True)
        try:
            for at in range(0, size, SLICE_SIZE_BYTES):
                # Synced in slices, so that it is never much that the journal's sync waits behind.
                await self._disk.run(file.allocate, min(SLICE_SIZE_BYTES, size - at), at)
                await file.wait_synced()
        finally:
            file.close()

    def release(self) -> bool:
        """Gives the space free; whether there was any."""
        if not self._disk.exists(self._path):
            return False
        self._disk.remove(self._path)
        self.released_count += 1
        logger.warning("the disk is full: the reserve is released path=%s", self._path)
        return True

    def release_for(self, size_bytes: int) -> bool:
        """As `release`, if that gives so much."""
        total, _ = self._disk.usage(self._path.rpartition("/")[0])
        return min(self._size_bytes, total // SHARE_MAX) >= size_bytes and self.release()

    def release_if_short(self) -> None:
        """Before a start, which needs some space for itself and gives none back at first."""
        if self._size_bytes and self._disk.usage(self._path.rpartition("/")[0])[1] < SHORT_BYTES:
            self.release()

    async def with_room(self, write: Callable[[], Awaitable[None]]) -> None:
        """`await write()`, and once more with the reserve's space if it finds none. `write` may be
        repeated. OSError: `write`'s."""
        try:
            await write()
        except OSError as error:
            if not is_full(error) or not self.release():
                raise
            # The space of a removed file may take the file system a moment to give back.
            await trio.lowlevel.checkpoint()
            await write()
