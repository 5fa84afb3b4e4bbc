"""What the journal writes and syncs together, who waits for it, and what is counted of it.

Owner: the event loop's thread, by the journal (bookie/journal/journal.py).
"""

from __future__ import annotations

from collections import deque
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from runtime.histogram import LatencyHistogram
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    import trio

    from bookie.journal.journal_format import Position
    from wire.bookkeeper.status import Status
    from wire.buffers import Buffer

    Done = Callable[[Status], None]


class Placement(NamedTuple):
    """Where the bytes `view[start:end]` were written."""

    view: memoryview
    start: int
    end: int
    journal_id: int
    offset: int


class Group:
    """Records that are written and synced together, and who waits for them."""

    __slots__ = (
        "appended_at",
        "buffers",
        "crcs",
        "dones",
        "end",
        "long_runs",
        "pieces",
        "pieces_at",
        "pieces_end",
        "record_count",
        "size_bytes",
        "synced",
        "write_seconds",
        "written_dones",
    )

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        #: Of those of them of which it is known, the CRC32C.
        self.crcs: dict[int, int] = {}
        #: Which of the buffers are long, and what they are slices of.
        self.long_runs: list[tuple[int, memoryview, int, int]] = []
        self.dones: list[Done] = []
        #: Of those that do not wait for the sync, only for the write.
        self.written_dones: list[Done] = []
        self.size_bytes = 0
        self.record_count = 0
        #: By the monotonic clock, when the burst that brought its first record was read; 0 before.
        self.appended_at = 0.0
        #: Where it ends in the journal, once it was written.
        self.end: Position | None = None
        #: What is still to be written, and where from and where to, once that has begun.
        self.pieces: deque[Buffer] | None = None
        self.pieces_at = self.pieces_end = 0
        self.write_seconds = 0.0
        #: Set on demand, by those who wait without a `done`.
        self.synced: trio.Event | None = None

    def take_pieces(self, size_max: int) -> tuple[list[Buffer], int, int]:
        """The next of `pieces`, at most so many bytes; where they belong, and their size."""
        pieces, at = self.pieces, self.pieces_at
        assert pieces
        assert size_max > 0
        left = self.pieces_end - at
        if left <= size_max:
            self.pieces = deque()
            self.pieces_at = self.pieces_end
            return list(pieces), at, left
        taken: list[Buffer] = []
        size = 0
        while pieces and size < size_max:
            piece = pieces.popleft()
            if len(piece) > size_max - size:
                view = memoryview(piece)
                pieces.appendleft(view[size_max - size :])
                piece = view[: size_max - size]
            taken.append(piece)
            size += len(piece)
        self.pieces_at += size
        return taken, at, size


@dataclass(slots=True)
class JournalStatistics:
    records: int = 0
    groups: int = 0
    syncs: int = 0
    written_bytes: int = 0
    queued_bytes: int = 0
    files: int = 0
    #: Groups that were written while a sync ran, because so much was waiting.
    groups_written_ahead: int = 0
    #: Per record, as of its group: from the burst that brought it to the write, and to `done`.
    queue_latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    add_latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    #: Groups whose write took more than one turn of the loop.
    groups_in_slices: int = 0
    #: Per group: the write into the page cache. Per sync: until it is durable.
    write_latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    sync_latency: LatencyHistogram = field(default_factory=LatencyHistogram)
