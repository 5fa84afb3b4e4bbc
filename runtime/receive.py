"""Where received bytes land, and how frames are cut from them without a copy.

Small frames: bytes are received into a chunk of memory that all connections share; each takes a
window at the chunk's end, and what it received stays there, as views, until the last request that
looks into the chunk was answered. A frame that was cut by the window's end is moved to the front of
the next window.

Large frames get memory of their own, so that keeping a request pins nothing else, and nothing is
copied. It grows with what has really arrived: a peer that announces 100 MiB and sends nothing costs
LARGE_FIRST_BYTES.

Both are used again once the last view of them is gone (runtime/spare_memory.py).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from runtime.spare_memory import SpareMemory

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK_BYTES = 512 << 10
WINDOW_BYTES = 128 << 10
#: Frames above this get their own memory.
LARGE_FRAME_BYTES = 32 << 10
#: Entries and batches of 1 MiB fit, with what their frames have in front of them.
LARGE_FIRST_BYTES = (1 << 20) + (64 << 10)
#: Memory kept for the next chunks, and for the next large frames.
SPARE_CHUNKS_BYTES_MAX = 2 << 20
SPARE_LARGE_BYTES_MAX = 4 << 20

_SIZE = Struct(">i")


class FrameTooLargeError(ValueError):
    """A frame announces a size that is not allowed; names it."""


class ReceiveChunks:
    """The shared chunk, and memory for large frames. One per event loop."""

    __slots__ = ("_chunk", "_memory", "_position", "_spare_chunks", "large")

    def __init__(self) -> None:
        self._spare_chunks = SpareMemory(SPARE_CHUNKS_BYTES_MAX)
        self._memory = self._spare_chunks.take(CHUNK_BYTES)
        self._chunk = memoryview(self._memory)
        self._position = 0
        self.large = SpareMemory(SPARE_LARGE_BYTES_MAX)

    def window(self, partial: bytes) -> memoryview:
        """Memory for the next bytes, with `partial` copied to its front. It is nobody else's
        until `taken`, or until the next call: then it is given anew."""
        end = self._position + len(partial) + WINDOW_BYTES
        if end > CHUNK_BYTES:
            # The old chunk lives on in the views of those who still need it.
            self._chunk.release()
            self._spare_chunks.keep(self._memory)
            self._memory = self._spare_chunks.take(CHUNK_BYTES)
            self._chunk = memoryview(self._memory)
            self._position = 0
            end = len(partial) + WINDOW_BYTES
        view = self._chunk[self._position : end]
        if partial:
            view[: len(partial)] = partial
        return view

    def taken(self, count: int) -> None:
        """The first `count` bytes of the last window now belong to whoever asked for it."""
        self._position += count


class FrameReceiver:
    """Cuts one connection's bytes into frames (int32 size, then that many bytes)."""

    __slots__ = (
        "_chunks",
        "_filled",
        "_large",
        "_large_memory",
        "_on_frame",
        "_partial",
        "_window",
        "frame_bytes_max",
    )

    def __init__(
        self, chunks: ReceiveChunks, frame_bytes_max: int, on_frame: Callable[[memoryview], bool]
    ) -> None:
        """`on_frame(frame)` gets each frame without its size prefix, in writable memory, and says
        whether to go on: if not, what was received behind it is kept for `go_on`."""
        self._chunks = chunks
        #: May be changed between frames.
        self.frame_bytes_max = frame_bytes_max
        self._on_frame = on_frame
        self._partial = b""
        self._window: memoryview | None = None
        self._large: memoryview | None = None  # the frame being filled, prefix left out
        self._large_memory = bytearray()
        self._filled = 0

    @property
    def held_bytes(self) -> int:
        """Memory that an unfinished frame takes."""
        return len(self._partial) + (len(self._large) if self._large is not None else 0)

    def buffer(self) -> memoryview:
        """Where the next bytes go."""
        if self._large is not None:
            return self._large[self._filled :]
        # Only the bytes behind the partial frame are to be filled.
        self._window = self._chunks.window(self._partial)
        return self._window[len(self._partial) :]

    def received(self, count: int) -> None:
        """FrameTooLargeError if a frame's announced size is out of bounds."""
        if self._large is not None:
            self._fill_large(count)
            return
        window = self._window
        assert window is not None
        end = len(self._partial) + count
        self._window = None
        self._chunks.taken(end)
        self._cut(window, end)

    def go_on(self) -> None:
        """After `on_frame` said to stop: cuts what was received and left. FrameTooLargeError."""
        if self._large is None and self._partial:
            kept = memoryview(bytearray(self._partial))
            self._cut(kept, len(kept))

    def _cut(self, window: memoryview, end: int) -> None:
        self._partial = b""
        position = 0
        on_frame = self._on_frame
        while end - position >= 4:
            (size,) = _SIZE.unpack_from(window, position)
            if not 0 < size <= self.frame_bytes_max:
                raise FrameTooLargeError(
                    f"frame of {size} bytes; allowed are 1 to {self.frame_bytes_max}"
                )
            start = position + 4
            if start + size > end:
                if size > LARGE_FRAME_BYTES:
                    self._start_large(size, window[start:end])
                    return
                break
            position = start + size
            if not on_frame(window[start:position]):
                break
        self._partial = bytes(window[position:end])

    def _start_large(self, size: int, head: memoryview) -> None:
        self._take_large(max(min(size, LARGE_FIRST_BYTES), len(head)), head)
        # The frame's announced size is kept as the partial prefix, from which it is read again.
        self._partial = _SIZE.pack(size)

    def _take_large(self, size: int, head: memoryview) -> None:
        self._large_memory = self._chunks.large.take(size)
        self._large = memoryview(self._large_memory)[:size]
        self._filled = len(head)
        self._large[: len(head)] = head

    def _fill_large(self, count: int) -> None:
        large = self._large
        assert large is not None
        self._filled += count
        if self._filled < len(large):
            return
        (size,) = _SIZE.unpack(self._partial)
        if self._filled < size:
            self._take_large(min(size, 2 * len(large)), large)
            return
        memory, self._large_memory = self._large_memory, bytearray()
        self._large = None
        self._partial = b""
        self._filled = 0
        self._on_frame(large)
        self._chunks.large.keep(memory)
