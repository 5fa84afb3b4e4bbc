"""What the journal writes and syncs together, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runtime.histogram import LatencyHistogram

if TYPE_CHECKING:
    from collections.abc import Callable

    import trio

    from bookie.journal.journal_format import Position
    from wire.bookkeeper.status import Status
    from wire.buffers import Buffer

    Done = Callable[[Status], None]


class Group:
    """Records that are written and synced together, and who waits for them."""

    __slots__ = (
        "appended_at",
        "buffers",
        "dones",
        "end",
        "record_count",
        "size_bytes",
        "synced",
        "written_dones",
    )

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.dones: list[Done] = []
        #: Of those that do not wait for the sync, only for the write.
        self.written_dones: list[Done] = []
        self.size_bytes = 0
        self.record_count = 0
        #: By the monotonic clock, when the burst that brought its first record was read; 0 before.
        self.appended_at = 0.0
        #: Where it ends in the journal, once it was written.
        self.end: Position | None = None
        #: Set on demand, by those who wait without a `done`.
        self.synced: trio.Event | None = None


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
    #: Per group: the write into the page cache. Per sync: until it is durable.
    write_latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    sync_latency: LatencyHistogram = field(default_factory=LatencyHistogram)
