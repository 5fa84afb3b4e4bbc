"""Memory in which machine code that reads too far is caught."""

import ctypes
import mmap


class Guarded:
    """Memory whose last byte is followed by a page that nobody may read."""

    def __init__(self, pages=8):
        self._size = pages * mmap.PAGESIZE
        self._memory = mmap.mmap(-1, self._size + mmap.PAGESIZE)
        anchor = ctypes.c_char.from_buffer(self._memory)
        libc = ctypes.CDLL(None, use_errno=True)
        forbidden = ctypes.c_void_p(ctypes.addressof(anchor) + self._size)
        if libc.mprotect(forbidden, mmap.PAGESIZE, 0):
            raise OSError(ctypes.get_errno(), "mprotect")

    def at_end(self, data):
        view = memoryview(self._memory)[self._size - len(data) : self._size]
        view[:] = data
        return view
