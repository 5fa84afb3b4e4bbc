"""CachedReads: what is in the page cache of a file, copied into memory that is used again.

Not a mapping: there a page that the disk cannot read, or that was cut off, is a signal which ends
the process (SIGBUS), for whoever looks into it and whenever; and a page that is not in memory makes
the loop wait. Here the kernel copies what it has, up to the first page that it would have to read
(preadv2, RWF_NOWAIT), and an error is an OSError. The copy costs about what mapping the pages did.

Owner: the event loop's thread.
"""

from __future__ import annotations

import errno
import os

from runtime.spare_memory import SpareMemory

#: Memory of these sizes is kept; smaller and larger pieces are made and thrown away. The last holds
#: what a fetch of 1 MiB needs, with the headers of its entries.
POOLED_SIZES = tuple(kib << 10 for kib in (16, 32, 72, 160, 352, 640, 1088))
LARGEST_POOLED_BYTES = POOLED_SIZES[-1]
#: Of each of the sizes.
KEPT_BYTES_MAX = 6 << 20

_EMPTY = memoryview(b"")
_NOWAIT_UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class CachedReads:
    __slots__ = ("_pools",)

    def __init__(self) -> None:
        self._pools: dict[int, SpareMemory] = {}

    def read(self, fd: int, size: int, offset: int, *, is_memory: bool) -> memoryview:
        """See `runtime.disk.File.read_cached`. `is_memory`: the file system never waits."""
        memory = self._memory(size)
        view = memoryview(memory)[:size]
        try:
            count = os.preadv(fd, [view], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            count = 0
        except OSError as error:
            if error.errno not in _NOWAIT_UNSUPPORTED:
                raise
            count = os.preadv(fd, [view], offset) if is_memory else 0
        if not count:
            return _EMPTY
        return view[:count].toreadonly()

    def _memory(self, size: int) -> bytearray:
        if not POOLED_SIZES[0] <= size <= LARGEST_POOLED_BYTES:
            return bytearray(size)
        pooled_size = next(pooled for pooled in POOLED_SIZES if size <= pooled)
        pool = self._pools.get(pooled_size)
        if pool is None:
            pool = self._pools[pooled_size] = SpareMemory(KEPT_BYTES_MAX)
        memory = pool.take(pooled_size)
        # Kept at once: it is taken again only when nobody looks into it.
        pool.keep(memory)
        return memory
