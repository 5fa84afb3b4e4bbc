"""FileViews: bytes of a file as memoryviews into a mapping of it, with no copy of them.

Owner: the event loop's thread.

Pages that were looked at count as the process's resident memory for as long as they are mapped, and
the kernel does not let go of mapped pages when it is told that a range of the file will not be
needed (posix_fadvise). So after `MAPPED_SIZE_MAX_BYTES` the mapping is emptied: the pages stay in
the page cache, and who looks again has them mapped again, 16 at a time, without a read."""

from __future__ import annotations

import mmap
import os
import weakref

#: Looked at since the mapping was emptied last, in whole chunks.
MAPPED_SIZE_MAX_BYTES = 16 << 20
CHUNK_SIZE_BYTES = 256 << 10


class FileViews:
    """Of one file, whose descriptor is told with each view: it is the caller's to close."""

    __slots__ = ("_chunks", "_former", "_map", "_mapping", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        self._mapping: mmap.mmap | None = None
        self._map = memoryview(b"")
        self._former: list[weakref.ref[mmap.mmap]] = []
        self._chunks: set[int] = set()

    def view(self, fd: int, size: int, offset: int) -> memoryview:
        """`size` bytes from `offset` on; valid until the file is truncated below its end.
        ValueError if it ends behind the file."""
        end = offset + size
        if end > len(self._map):
            self._map_to(fd, end)
        first, last = offset // CHUNK_SIZE_BYTES, (end - 1) // CHUNK_SIZE_BYTES
        if first != last or first not in self._chunks:
            self._look_at(range(first, last + 1))
        return self._map[offset:end]

    def forget(self, size: int = 0) -> None:
        """The mapping is no longer used if it is of more than `size` bytes. It lives on for as long
        as views look into it, which is why it is never closed."""
        if len(self._map) > size:
            self._map = memoryview(b"")
            self._mapping = None
            self._chunks.clear()

    def is_viewed(self) -> bool:
        """Whether anybody looks into a mapping, the present one included."""
        return any(reference() is not None for reference in self._former)

    def _look_at(self, chunks: range) -> None:
        if len(self._chunks) + len(chunks) > MAPPED_SIZE_MAX_BYTES // CHUNK_SIZE_BYTES:
            if self._mapping is not None:
                self._mapping.madvise(mmap.MADV_DONTNEED)
            self._chunks.clear()
        self._chunks.update(chunks[: MAPPED_SIZE_MAX_BYTES // CHUNK_SIZE_BYTES])

    def _map_to(self, fd: int, end: int) -> None:
        """Maps the whole file as it is now."""
        size = os.fstat(fd).st_size
        if end > size:
            raise ValueError(f"{self._path}: view ends at {end}, the file at {size}")
        if self._mapping is not None:
            # Who still looks into it has the pages mapped again.
            self._mapping.madvise(mmap.MADV_DONTNEED)
        self._chunks.clear()
        self._mapping = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
        self._former = [ref for ref in self._former if ref() is not None]
        self._former.append(weakref.ref(self._mapping))
        self._map = memoryview(self._mapping)
