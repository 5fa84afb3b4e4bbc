"""LedgerWriter: the one who appends to a ledger.

It has a pipeline, which does the writing (`ledger.pipeline`), and the ledger's metadata while it is
open (`ledger.open_ledger`). Its own are the two ends of the work: which appends it takes, and how
the ledger is closed. `append_nowait` is the hot path: no await, no task, no log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ledger.errors import (
    AddTimeoutError,
    LedgerClosedError,
    LedgerError,
    LedgerMetadataError,
    MetadataConflictError,
    NotEnoughBookiesError,
)
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.client_parts import ClientParts, LedgerSeal
    from ledger.open_ledger import OpenLedger
    from ledger.pipeline import AddPipeline
    from ledger.writer_core import AppendDone
    from wire.bookkeeper.ledger_metadata import LedgerMetadata
    from wire.buffers import Buffers


class LedgerWriter:
    """Made by `LedgerClient.create_ledger`. `reader` reads up to this writer's LAC."""

    __slots__ = (
        "__weakref__",
        "_bookies",
        "_cache",
        "_closed",
        "_closing",
        "_core",
        "_digest",
        "_explicit_lac",
        "_ledger",
        "_master_key",
        "_oldest",
        "_pipeline",
        "_statistics",
        "ledger_id",
        "reader",
    )

    def __init__(
        self, pipeline: AddPipeline, ledger: OpenLedger, seal: LedgerSeal, parts: ClientParts
    ) -> None:
        self.ledger_id = ledger.ledger_id
        self.reader = ledger.reader
        self._pipeline = pipeline
        self._core = pipeline.core
        self._ledger = ledger
        self._digest = seal.digest
        self._master_key = seal.master_key
        self._bookies = parts.bookies
        self._cache = parts.cache
        self._statistics = parts.statistics
        self._statistics.writers[id(self)] = self
        self._closing = False
        self._closed: LedgerMetadata | None = None
        #: The last LAC that bookies were told by `tell_lac`.
        self._explicit_lac = -1
        #: The oldest entry in flight at the last `look_for_timeout` that found a new one, and when.
        self._oldest: tuple[int, float] | None = None

    @property
    def last_add_confirmed(self) -> int:
        """-1: none."""
        return self._core.last_add_confirmed

    @property
    def last_add_pushed(self) -> int:
        return self._core.last_add_pushed

    @property
    def pending_count(self) -> int:
        return len(self._core.pending)

    @property
    def pending_bytes(self) -> int:
        return self._core.pending_bytes

    @property
    def is_short(self) -> bool:
        """Whether it goes on without a bookie of its ensemble that failed, for want of another."""
        return self._core.is_short

    @property
    def metadata(self) -> LedgerMetadata:
        return self._ledger.metadata

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
        return self._pipeline.has_room

    def when_room(self, function: Callable[[], None]) -> None:
        """Calls `function()` once, after the callbacks of the next pass that leaves room (or that
        ends the ledger). One caller at a time."""
        self._pipeline.when_room(function)

    def append_nowait(self, payload: Buffers, done: AppendDone) -> int:
        """The new entry's id. `done(entry_id, None)` once it and all before it are acked by Qa;
        `done(entry_id, error)` if the ledger failed: then it may or may not be in the ledger.
        Never called from inside this call. The payload must not change any more.

        LedgerBusyError if the window is full (`has_room`, `when_room`), LedgerClosedError after
        `close` or `abandon`: then nothing was appended, and `done` is not called. A ledger that
        failed takes it and fails it like all that was in flight."""
        if self._closing:
            raise LedgerClosedError(self.ledger_id, "its writer was closed")
        entry_id = self._pipeline.append(payload, done)
        if self._cache is not None and self._core.error is None:
            self._cache.appended(self.ledger_id, entry_id, payload)
        return entry_id

    async def close(self) -> LedgerMetadata:
        """Takes no more appends, waits for those in flight, and makes the LAC the ledger's end.

        After a failure for want of bookies, time or metadata it still closes the ledger, at the
        LAC.
        LedgerFencedError, UnauthorizedError, MetadataConflictError: the end is for somebody else
        to decide. May be called again after any error or cancellation."""
        if self._closed is not None:
            return self._closed
        self._closing = True
        await self._pipeline.wait_drained()
        core = self._core
        if core.error is not None and (
            not isinstance(
                core.error, NotEnoughBookiesError | LedgerMetadataError | AddTimeoutError
            )
            or isinstance(core.error, MetadataConflictError)
        ):
            raise core.error
        last_entry_id, length = await self._end()
        await self._ledger.close(last_entry_id, length)
        self._pipeline.stop(LedgerClosedError(self.ledger_id, "was closed"))
        self._pipeline.take_missed()
        await self._ledger.mark_left_out()
        self._closed = self._ledger.metadata
        self._ledger.tell_reader()
        return self._closed

    async def _end(self) -> tuple[int, int]:
        """The last entry that counts, and the payload bytes up to it."""
        return self._core.last_add_confirmed, self._core.confirmed_length

    def abandon(self) -> None:
        """Fails what is in flight and takes no more. The metadata stays as it is: whoever wants
        the ledger recovers it."""
        self._closing = True
        self._pipeline.stop(LedgerClosedError(self.ledger_id, "was abandoned by its writer"))

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
            self._pipeline.stop(AddTimeoutError(self.ledger_id, words))

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
