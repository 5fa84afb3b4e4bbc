"""Memory that is used again once nobody looks into it.

The first touch of a page costs several times what copying into it does, and memory of some hundred
kilobytes may go back to the system whenever it is freed. So what bytes are received into is kept
for the next ones, up to a limit.
"""

from __future__ import annotations

import ctypes
from collections import deque

#: Of those that are kept, so many are asked, oldest first, before new memory is made.
TRIES_MAX = 3
#: Sizes are rounded up, so that what fitted one frame fits the next, a few bytes longer.
ROUND_BYTES = 16 << 10


#: CPython's own, with no bytes to copy: what is in the memory is left over from whoever had it.
#: `bytearray(size)` fills it with zeros, which bytes are received over (docs/benchmarks.md).
_unfilled = ctypes.pythonapi.PyByteArray_FromStringAndSize
_unfilled.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)
_unfilled.restype = ctypes.py_object


def is_free_of_views(memory: bytearray) -> bool:
    """Whether nobody holds a memoryview of it, or of a part. Not for empty ones."""
    try:
        # A bytearray refuses to change its size while something looks into it; taking the last
        # byte away and putting it back neither moves nor copies the rest.
        memory.append(memory.pop())
    except BufferError:
        return False
    return True


class SpareMemory:
    """Pieces whose users come and go; at most `bytes_max` bytes are kept. Owner: one thread."""

    __slots__ = ("_bytes_max", "_kept", "kept_bytes")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept: deque[bytearray] = deque()
        self.kept_bytes = 0

    def take(self, size: int) -> bytearray:
        """`size` bytes or some more, that nobody looks into. What they hold is left over."""
        kept = self._kept
        for _ in range(min(len(kept), TRIES_MAX)):
            memory = kept.popleft()
            if size <= len(memory) <= size + size // 2 + ROUND_BYTES and is_free_of_views(memory):
                self.kept_bytes -= len(memory)
                return memory
            kept.append(memory)
        made: bytearray = _unfilled(None, -(-size // ROUND_BYTES) * ROUND_BYTES)
        return made

    def keep(self, memory: bytearray) -> None:
        """For later. Who looks into it may go on doing so."""
        kept = self._kept
        kept.append(memory)
        self.kept_bytes += len(memory)
        while self.kept_bytes > self._bytes_max:
            self.kept_bytes -= len(kept.popleft())
