"""LedgerWriter: the one who appends to a ledger.

Owner of the ledger's metadata while it is open. `append_nowait` is the hot path: no await, no task,
no log; it sends at once, and the callbacks come in entry order in the pass of `AddPipeline`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import trio

from ledger.errors import (
    AddTimeoutError,
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
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ledger.bookie_client import BookieClient
    from ledger.config import LedgerClientConfig
    from ledger.entry_cache import EntryCache
    from ledger.metadata import LedgerManager, Versioned
    from ledger.missing_copies import MissingCopies
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
        "_bookies",
        "_cache",
        "_closed",
        "_closing",
        "_explicit_lac",
        "_manager",
        "_missing",
        "_oldest",
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
        missing: MissingCopies,
        versioned: Versioned,
        reader: LedgerReader,
        config: LedgerClientConfig,
        statistics: LedgerStatistics,
        flags: int = 0,
        cache: EntryCache | None = None,
    ) -> None:
        super().__init__(
            core, bookies, turn, placement, spawn, digest, master_key, flags, statistics
        )
        self._bookies = bookies
        self._cache = cache
        statistics.writers.add(self)
        self._manager = manager
        self._missing = missing
        self._versioned = versioned
        self.reader = reader
        self._window_entries_max = config.window_entries_max
        self._window_bytes_max = config.window_bytes_max
        self._closing = False
        self._closed: LedgerMetadata | None = None
        self._on_room: Callable[[], None] | None = None
        #: The last LAC that bookies were told by `tell_lac`.
        self._explicit_lac = -1
        #: The oldest entry in flight at the last `look_for_timeout` that found a new one, and when.
        self._oldest: tuple[int, float] | None = None

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
        if (
            self._closing
            or core.pending_bytes >= self._window_bytes_max
            or len(core.pending) >= self._window_entries_max
        ):
            self._refuse()
        size = 0
        for piece in payload:
            size += len(piece)
        if core.error is not None:
            self._act(STOPPED)
            return core.add(size, done).entry_id
        entry_id = self._append(payload, size, done)
        if self._cache is not None:
            self._cache.appended(self.ledger_id, entry_id, payload)
        return entry_id

    def _refuse(self) -> NoReturn:
        if self._closing:
            raise LedgerClosedError(self.ledger_id, "its writer was closed")
        core = self._core
        raise LedgerBusyError(
            self.ledger_id,
            f"{len(core.pending)} entries of {core.pending_bytes} bytes are in flight",
        )

    def when_room(self, function: Callable[[], None]) -> None:
        """Calls `function()` once, after the callbacks of the next pass that leaves room (or that
        ends the ledger). One caller at a time."""
        assert self._on_room is None
        self._on_room = function

    async def close(self) -> LedgerMetadata:
        """Takes no more appends, waits for those in flight, and makes the LAC the ledger's end.

        After a failure for want of bookies, time or metadata it still closes the ledger, at the
        LAC.
        LedgerFencedError, UnauthorizedError, MetadataConflictError: the end is for somebody else
        to decide. May be called again after any error or cancellation."""
        if self._closed is not None:
            return self._closed
        self._closing = True
        await self._wait_drained()
        core = self._core
        if core.error is not None and (
            not isinstance(
                core.error, NotEnoughBookiesError | LedgerMetadataError | AddTimeoutError
            )
            or isinstance(core.error, MetadataConflictError)
        ):
            raise core.error
        last_entry_id, length = await self._end()

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
        self._take_missed()
        if self._left_out and not await self._manager.mark_under_replicated(
            # Once more: a worker of BookKeeper's takes an open ledger's mark for done.
            self.ledger_id,
            self._left_out,
        ):
            self._missing.tell(self.ledger_id, self._left_out)
        self._closed = self._versioned.metadata
        self.reader.set_metadata(self._versioned)
        return self._closed

    def _leave_out(self, bookies: Collection[str]) -> None:
        new = set(bookies) - self._left_out
        super()._leave_out(bookies)
        if new:
            self._missing.tell(self.ledger_id, new)

    async def _end(self) -> tuple[int, int]:
        """The last entry that counts, and the payload bytes up to it."""
        return self._core.last_add_confirmed, self._core.confirmed_length

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

    def look_for_timeout(self, now: float, timeout_seconds: float) -> None:
        """To be called now and then: stops the ledger if its oldest entry is in flight for longer
        (addEntryQuorumTimeoutSec). No entry pays for it."""
        core = self._core
        if not core.is_waiting or core.error is not None:
            self._oldest = None
            return
        entry_id = core.pending[0].entry_id
        if self._oldest is None or self._oldest[0] != entry_id:
            self._oldest = (entry_id, now)
        elif now - self._oldest[1] >= timeout_seconds:
            words = f"entry {entry_id} did not reach its ack quorum in {timeout_seconds:g} s"
            self._statistics.add_timeouts += 1
            self._stop(AddTimeoutError(self.ledger_id, words))

    async def tell_lac(self) -> bool:
        """Tells the LAC to the bookies of the write set that has it, unless an entry in flight
        carries it or it was told before (ExplicitLacUpdateFlow.java). Whether an ack quorum has
        it now. Readers of an idle ledger see its last entry only after this."""
        core, last_add_confirmed = self._core, self.last_add_confirmed
        if last_add_confirmed <= self._explicit_lac or core.error is not None:
            return False
        if core.pending and core.pending[-1].last_add_confirmed >= last_add_confirmed:
            return False
        packet = self._digest.seal_lac(self.ledger_id, last_add_confirmed)
        statuses: list[Status] = []

        async def tell(bookie: str) -> None:
            statuses.append(
                await self._bookies.write_lac(
                    bookie, self.ledger_id, last_add_confirmed, self._master_key, packet
                )
            )

        async with trio.open_nursery() as nursery:
            for index in core.schedule.write_set(last_add_confirmed):
                nursery.start_soon(tell, core.ensemble[index])
        if statuses.count(Status.EOK) < core.schedule.ack_quorum_size:
            return False
        self._explicit_lac = max(self._explicit_lac, last_add_confirmed)
        return True

    async def _store_ensemble(self, request: ChangeRequest, ensemble: tuple[str, ...]) -> None:
        """Compare-and-set while the ledger is OPEN and the failed bookies are where they were
        (invariant W4): a new ensemble is used only once it is durable (bk#1591)."""

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
        self.reader.set_metadata(self._versioned)

    def _check_open(self, metadata: LedgerMetadata) -> None:
        if metadata.state is LedgerState.IN_RECOVERY:
            raise LedgerFencedError(self.ledger_id, "somebody is recovering it")
        if metadata.is_closed:
            raise LedgerClosedError(
                self.ledger_id, f"somebody closed it at entry {metadata.last_entry_id}"
            )
