"""LedgerWriter: the one who appends to a ledger.

Owner of the ledger's metadata while it is open. `append_nowait` is the hot path: no await, no task,
no log; it sends at once, and the callbacks come in entry order in the pass of `AddPipeline`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.errors import (
    LedgerBusyError,
    LedgerClosedError,
    LedgerError,
    LedgerFencedError,
    LedgerMetadataError,
    MetadataConflictError,
    NotEnoughBookiesError,
)
from ledger.pipeline import AddPipeline
from ledger.writer_core import STOPPED
from wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.bookie_client import BookieClient
    from ledger.config import LedgerClientConfig
    from ledger.metadata import LedgerManager, Versioned
    from ledger.pipeline import Spawn
    from ledger.placement import Placement
    from ledger.reader import LedgerReader
    from ledger.statistics import LedgerStatistics
    from ledger.writer_core import AppendDone, ChangeRequest, WriterCore
    from runtime.turn import Turn
    from wire.bookkeeper.entry import Digest
    from wire.buffers import Buffers


class LedgerWriter(AddPipeline):
    """Made by `LedgerClient.create_ledger`. `reader` reads up to this writer's LAC."""

    __slots__ = (
        "__weakref__",
        "_closed",
        "_closing",
        "_manager",
        "_on_room",
        "_versioned",
        "_window_bytes_max",
        "_window_entries_max",
        "reader",
    )

    def __init__(
        self,
        core: WriterCore,
        bookies: BookieClient,
        turn: Turn,
        placement: Placement,
        spawn: Spawn,
        digest: Digest,
        master_key: bytes,
        *,
        manager: LedgerManager,
        versioned: Versioned,
        reader: LedgerReader,
        config: LedgerClientConfig,
        statistics: LedgerStatistics,
    ) -> None:
        super().__init__(core, bookies, turn, placement, spawn, digest, master_key, 0, statistics)
        statistics.writers.add(self)
        self._manager = manager
        self._versioned = versioned
        self.reader = reader
        self._window_entries_max = config.window_entries_max
        self._window_bytes_max = config.window_bytes_max
        self._closing = False
        self._closed: LedgerMetadata | None = None
        self._on_room: Callable[[], None] | None = None

    @property
    def metadata(self) -> LedgerMetadata:
        return self._versioned.metadata

    @property
    def length(self) -> int:
        """Payload bytes of all entries that were appended, confirmed or not."""
        return self._core.length

    @property
    def error(self) -> LedgerError | None:
        """Why appends fail from now on; None while they do not."""
        if self._core.error is not None:
            return self._core.error
        return LedgerClosedError(self.ledger_id, "is being closed") if self._closing else None

    @property
    def has_room(self) -> bool:
        """Whether `append_nowait` would take one more entry, of any size."""
        core = self._core
        return (
            len(core.pending) < self._window_entries_max
            and core.pending_bytes < self._window_bytes_max
        )

    def append_nowait(self, payload: Buffers, done: AppendDone) -> int:
        """The new entry's id. `done(entry_id, None)` once it and all before it are acked by Qa;
        `done(entry_id, error)` if the ledger failed: then it may or may not be in the ledger.
        Never called from inside this call. The payload must not change any more.

        LedgerBusyError if the window is full (`has_room`, `when_room`), LedgerClosedError after
        `close` or `abandon`: then nothing was appended, and `done` is not called. A ledger that
        failed takes it and fails it like all that was in flight."""
        core = self._core
        if self._closing:
            raise LedgerClosedError(self.ledger_id, "its writer was closed")
        if (
            core.pending_bytes >= self._window_bytes_max
            or len(core.pending) >= self._window_entries_max
        ):
            raise LedgerBusyError(
                self.ledger_id,
                f"{len(core.pending)} entries of {core.pending_bytes} bytes are in flight",
            )
        size = 0
        for piece in payload:
            size += len(piece)
        if core.error is not None:
            self._act(STOPPED)
            return core.add(size, done).entry_id
        return self._append(payload, size, done)

    def when_room(self, function: Callable[[], None]) -> None:
        """Calls `function()` once, after the callbacks of the next pass that leaves room (or that
        ends the ledger). One caller at a time."""
        assert self._on_room is None
        self._on_room = function

    async def close(self) -> LedgerMetadata:
        """Takes no more appends, waits for those in flight, and makes the LAC the ledger's end.

        After a failure for want of bookies or metadata it still closes the ledger, at the LAC.
        LedgerFencedError, UnauthorizedError, MetadataConflictError: the end is for somebody else
        to decide. May be called again after any error or cancellation."""
        if self._closed is not None:
            return self._closed
        self._closing = True
        await self._wait_drained()
        core = self._core
        if core.error is not None and (
            not isinstance(core.error, NotEnoughBookiesError | LedgerMetadataError)
            or isinstance(core.error, MetadataConflictError)
        ):
            raise core.error
        last_entry_id, length = core.last_add_confirmed, core.confirmed_length

        def transform(metadata: LedgerMetadata) -> LedgerMetadata | None:
            if metadata.is_closed and (metadata.last_entry_id, metadata.length) == (
                last_entry_id,
                length,
            ):
                return None
            self._check_open(metadata)
            return metadata.closed_at(last_entry_id, length)

        self._versioned = await self._manager.update(self.ledger_id, self._versioned, transform)
        self._stop(LedgerClosedError(self.ledger_id, "was closed"))
        self._closed = self._versioned.metadata
        self.reader.set_metadata(self._closed)
        return self._closed

    def abandon(self) -> None:
        """Fails what is in flight and takes no more. The metadata stays as it is: whoever wants
        the ledger recovers it."""
        self._closing = True
        self._stop(LedgerClosedError(self.ledger_id, "was abandoned by its writer"))

    def _on_confirmed(self) -> None:
        self.reader.last_add_confirmed = self._core.last_add_confirmed

    def _deliver(self) -> None:
        super()._deliver()
        function = self._on_room
        if function is not None and (self.has_room or self._core.error is not None):
            self._on_room = None
            function()

    async def _store_ensemble(self, request: ChangeRequest, ensemble: tuple[str, ...]) -> None:
        """Compare-and-set while the ledger is OPEN and the failed bookies are where they were
        (ledgers.md 2.1.4d): a new ensemble is used only once it is durable (bk#1591)."""

        def transform(metadata: LedgerMetadata) -> LedgerMetadata | None:
            self._check_open(metadata)
            first_entry_id, bookies = metadata.last_segment
            if (first_entry_id, bookies) == (request.first_entry_id, ensemble):
                return None  # an earlier try whose reply was lost
            if bookies != request.ensemble or first_entry_id > request.first_entry_id:
                raise MetadataConflictError(
                    self.ledger_id,
                    f"the last segment is {bookies} from entry {first_entry_id}, this writer's is "
                    f"{request.ensemble}, to change from entry {request.first_entry_id}",
                )
            return metadata.with_segment(request.first_entry_id, ensemble)

        self._versioned = await self._manager.update(self.ledger_id, self._versioned, transform)
        self.reader.set_metadata(self._versioned.metadata)

    def _check_open(self, metadata: LedgerMetadata) -> None:
        if metadata.state is LedgerState.IN_RECOVERY:
            raise LedgerFencedError(self.ledger_id, "somebody is recovering it")
        if metadata.is_closed:
            raise LedgerClosedError(
                self.ledger_id, f"somebody closed it at entry {metadata.last_entry_id}"
            )
