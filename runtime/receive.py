"""Where received bytes land, and how frames are cut from them without a copy.

Small frames: bytes are received into a chunk of memory that all connections share; each takes a
window at the chunk's end, and what it received stays there, as views, until the last request that
looks into the chunk was answered. A frame that was cut by the window's end is moved to the front of
the next window.

Large frames get memory of their own, so that keeping a request pins nothing else, and nothing is
copied. It grows with what has really arrived: a peer that announces 100 MiB and sends nothing costs
LARGE_FIRST_BYTES. Who receives from strangers has a say in it (`LargeFrames`): whether a frame of
that size may begin as it does, and whether it may grow now or has to wait.

Both are used again once the last view of them is gone (runtime/spare_memory.py).
"""

from __future__ import annotations

from mmap import mmap
from struct import Struct
from typing import TYPE_CHECKING, Protocol

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

#: How what a client of TLS says first is read as a size, in the upper half.
_CLIENT_HELLO = 0x1603
_SIZE = Struct(">i")

#: So much of a large frame is waited for before anybody is asked about it.
LARGE_HEAD_BYTES = 8


class FrameTooLargeError(ValueError):
    """A frame announces a size that is not allowed; names it."""


class LargeFrames(Protocol):
    """Who decides about frames that get memory of their own."""

    def check_large(self, size: int, head: memoryview) -> None:
        """A frame of `size` bytes begins with `head` (LARGE_HEAD_BYTES or more). May raise
        FrameTooLargeError."""

    def take_large(self, size: int) -> bool:
        """Whether the frame may have `size` bytes in all. If not, the receiver `is_stalled` and
        nothing is to be received until `go_on`."""

    def give_large(self) -> None:
        """The frame is whole."""


class _Unlimited:
    """As `LargeFrames`, for receivers whose peers are known."""

    def check_large(self, size: int, head: memoryview) -> None:
        pass

    def take_large(self, size: int) -> bool:
        return True

    def give_large(self) -> None:
        pass


UNLIMITED = _Unlimited()


class ReceiveChunks:
    """The shared chunk, and memory for large frames. One per event loop."""

    __slots__ = ("_chunk", "_memory", "_spare_chunks", "large", "taken_bytes")

    def __init__(self) -> None:
        self._spare_chunks = SpareMemory(SPARE_CHUNKS_BYTES_MAX)
        self._memory = self._spare_chunks.take(CHUNK_BYTES)
        self._chunk = memoryview(self._memory)
        #: Of the chunk. Whoever fills the front of a window adds what is now his.
        self.taken_bytes = 0
        self.large = SpareMemory(SPARE_LARGE_BYTES_MAX)

    def window(self, partial: bytes) -> memoryview:
        """Memory for the next bytes, with `partial` copied to its front. It is nobody else's
        until it is taken, or until the next call: then it is given anew."""
        end = self.taken_bytes + len(partial) + WINDOW_BYTES
        if end > CHUNK_BYTES:
            # The old chunk lives on in the views of those who still need it.
            self._chunk.release()
            self._spare_chunks.keep(self._memory)
            self._memory = self._spare_chunks.take(CHUNK_BYTES)
            self._chunk = memoryview(self._memory)
            self.taken_bytes = 0
            end = len(partial) + WINDOW_BYTES
        view = self._chunk[self.taken_bytes : end]
        if partial:
            view[: len(partial)] = partial
        return view


class FrameReceiver:
    """Cuts one connection's bytes into frames (int32 size, then that many bytes)."""

    __slots__ = (
        "_chunks",
        "_decides",
        "_filled",
        "_granted",
        "_large",
        "_large_memory",
        "_on_frame",
        "_partial",
        "_window",
        "frame_bytes_max",
        "is_stalled",
    )

    def __init__(
        self,
        chunks: ReceiveChunks,
        frame_bytes_max: int,
        on_frame: Callable[[memoryview], bool],
        decides: LargeFrames = UNLIMITED,
    ) -> None:
        """`on_frame(frame)` gets each frame without its size prefix, in writable memory, and says
        whether to go on: if not, what was received behind it is kept for `go_on`."""
        self._chunks = chunks
        self._decides = decides
        #: A large frame was not given memory: receive nothing before `go_on`.
        self.is_stalled = False
        #: May be changed between frames.
        self.frame_bytes_max = frame_bytes_max
        self._on_frame = on_frame
        self._partial = b""
        self._window: memoryview | None = None
        self._large: memoryview | None = None  # the frame being filled, prefix left out
        self._large_memory: bytearray | mmap = bytearray()
        self._filled = 0
        self._granted = 0  # of a frame that has memory for all of it: what it may fill

    @property
    def held_bytes(self) -> int:
        """Memory that an unfinished frame takes."""
        return len(self._partial) + (self._room if self._large is not None else 0)

    @property
    def large_bytes(self) -> int:
        """What has arrived of an unfinished large frame; 0 if there is none."""
        return self._filled if self._large is not None else 0

    def buffer(self) -> memoryview:
        """Where the next bytes go."""
        if self._large is not None:
            return self._large[self._filled : self._room]
        window = self._window = self._chunks.window(self._partial)
        # Only the bytes behind the partial frame are to be filled.
        return window[len(self._partial) :] if self._partial else window

    def received(self, count: int) -> None:
        """FrameTooLargeError if a frame's announced size is out of bounds."""
        if self._large is not None:
            self._fill_large(count)
            return
        window = self._window
        assert window is not None
        end = len(self._partial) + count
        self._window = None
        self._chunks.taken_bytes += end
        self._cut(window, end)

    def go_on(self) -> None:
        """After `on_frame` said to stop: cuts what was received and left; if it stalled: asks for
        memory again. FrameTooLargeError."""
        self.is_stalled = False
        if self._large is not None:
            if self._filled == self._room:
                self._grow_large()
        elif self._partial:
            kept = memoryview(bytearray(self._partial))
            self._cut(kept, len(kept))

    def _cut(self, window: memoryview, end: int) -> None:
        self._partial = b""
        position = 0
        on_frame = self._on_frame
        while end - position >= 4:
            (size,) = _SIZE.unpack_from(window, position)
            if not 0 < size <= self.frame_bytes_max:
                if size >> 16 == _CLIENT_HELLO:
                    raise FrameTooLargeError("TLS where plain bytes are spoken")
                raise FrameTooLargeError(
                    f"frame of {size} bytes; allowed are 1 to {self.frame_bytes_max}"
                )
            start = position + 4
            if start + size > end:
                if size > LARGE_FRAME_BYTES and end - start >= LARGE_HEAD_BYTES:
                    if self._start_large(size, window[start:end]):
                        return
                    self.is_stalled = True
                break
            position = start + size
            if not on_frame(window[start:position]):
                break
        self._partial = bytes(window[position:end])

    def _start_large(self, size: int, head: memoryview) -> bool:
        self._decides.check_large(size, head)
        first = max(min(size, LARGE_FIRST_BYTES), len(head))
        if not self._decides.take_large(first):
            return False
        self._take_large(first, head)
        # The frame's announced size is kept as the partial prefix, from which it is read again.
        self._partial = _SIZE.pack(size)
        return True

    def _take_large(self, size: int, head: memoryview) -> None:
        memory = self._chunks.large.take(size)
        self._hold_large(memory, memoryview(memory)[:size], head)

    def _hold_large(self, memory: bytearray | mmap, large: memoryview, head: memoryview) -> None:
        self._large_memory, self._large = memory, large
        self._filled = len(head)
        large[: len(head)] = head

    def _fill_large(self, count: int) -> None:
        self._filled += count
        if self._filled == self._room:
            self._grow_large()

    @property
    def _room(self) -> int:
        """How far the large frame may be filled by now."""
        assert self._large is not None
        return self._granted or len(self._large)

    def _grow_large(self) -> None:
        """What the large frame may have is full: gets it more, or gives the frame away."""
        large = self._large
        assert large is not None
        (size,) = _SIZE.unpack(self._partial)
        if self._filled < size:
            wanted = min(size, 2 * self._filled)
            if not self._decides.take_large(wanted):
                self.is_stalled = True
            elif wanted <= SPARE_LARGE_BYTES_MAX:
                self._take_large(wanted, large)
            else:
                if not self._granted:
                    # All of it, which costs nothing before it is touched: copying it again and
                    # again while it grows would hold the loop.
                    whole = mmap(-1, size)
                    self._hold_large(whole, memoryview(whole), large)
                self._granted = wanted
            return
        self._decides.give_large()
        memory, self._large_memory = self._large_memory, bytearray()
        self._large = None
        self._granted = 0
        self._partial = b""
        self._filled = 0
        self._on_frame(large)
        if isinstance(memory, bytearray):
            self._chunks.large.keep(memory)
