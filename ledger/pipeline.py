"""AddPipeline: the shell around `WriterCore`; what the writer and recovery have in common.

It seals entries, sends them, hands the answers to the core, and acts on the core's flags. Callbacks
run in a deferred pass of the turn: once per burst of replies, all entries that it confirmed, and
never from inside `append`. Making an ensemble is the one thing that waits; it runs in a task of the
LedgerClient (`spawn`), and what it does to the core is synchronous.

Sent payloads must never change: with Qa < Qw a slow bookie may still be sent an entry whose
callback has run.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio

from ledger.errors import LedgerError, NotEnoughBookiesError
from ledger.placement import TooFewBookiesError
from ledger.statistics import LedgerStatistics
from ledger.writer_core import CHANGE, DELIVER, STOPPED, WriterCore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ledger.bookie_client import BookieClient
    from ledger.placement import Placement
    from ledger.writer_core import AppendDone, ChangeRequest, PendingAdd
    from runtime.turn import Turn
    from wire.bookkeeper.entry import Digest
    from wire.bookkeeper.status import Status
    from wire.buffers import Buffers

logger = logging.getLogger(__name__)


class Spawn(Protocol):
    """Runs an async function in a task that outlives the caller; False if there is nobody to."""

    def __call__(self, function: Callable[[], Awaitable[None]], /) -> bool: ...


class AddPipeline(ABC):
    """Subclasses say how a new ensemble is made durable (`_store_ensemble`)."""

    __slots__ = (
        "_add_entry",
        "_core",
        "_delivery_deferred",
        "_digest",
        "_drained",
        "_flags",
        "_master_key",
        "_placement",
        "_seal",
        "_single",
        "_spawn",
        "_statistics",
        "_turn",
        "ledger_id",
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
        flags: int,
        statistics: LedgerStatistics | None = None,
    ) -> None:
        self.ledger_id = core.ledger_id
        self._statistics = LedgerStatistics() if statistics is None else statistics
        self._core = core
        self._add_entry = bookies.add_entry
        self._turn = turn
        self._placement = placement
        self._spawn = spawn
        self._digest = digest
        self._seal = digest.seal
        self._master_key = master_key
        self._flags = flags
        self._single = core.schedule.ensemble_size == 1
        self._delivery_deferred = False
        self._drained: trio.Event | None = None

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

    def _append(
        self, payload: Buffers, size: int, done: AppendDone, given_id: int | None = None
    ) -> int:
        """Only an AdvCore takes a `given_id`."""
        core = self._core
        if core.late:
            self._act(core.replace_late())
        pending = core.add(size, done) if given_id is None else core.add_at(given_id, size, done)
        entry_id = pending.entry_id
        head = self._seal(
            self.ledger_id, entry_id, pending.last_add_confirmed, pending.length, payload, size
        )
        pending.entry = (head, *payload)
        if self._single and not core.changing:
            bookie = core.ensemble[0]
            self._add_entry(
                bookie,
                self.ledger_id,
                entry_id,
                self._master_key,
                pending.entry,
                self._flags,
                partial(self._on_reply, pending, 0, bookie),
            )
        else:
            for index in core.targets(pending):
                self._send(pending, index)
        return entry_id

    def _send(self, pending: PendingAdd, index: int) -> None:
        bookie = self._core.ensemble[index]
        self._add_entry(
            bookie,
            self.ledger_id,
            pending.entry_id,
            self._master_key,
            pending.entry,
            self._flags,
            partial(self._on_reply, pending, index, bookie),
        )

    def _on_reply(self, pending: PendingAdd, index: int, bookie: str, status: Status) -> None:
        flags = self._core.reply(pending, index, bookie, status)
        if flags:
            self._act(flags, status)

    def _act(self, flags: int, status: int | None = None) -> None:
        if flags & (DELIVER | STOPPED) and not self._delivery_deferred:
            self._delivery_deferred = True
            self._turn.defer(self._deliver)
        if flags & CHANGE:
            request = self._core.change_request()
            logger.info(
                "ledger=%d changing ensemble from entry=%d failed=%s status=%s",
                self.ledger_id,
                request.first_entry_id,
                request.failed,
                status,
            )
            if not self._spawn(self._change_ensemble):
                words = "bookies failed, and LedgerClient.run() is not running to replace them"
                self._stop(NotEnoughBookiesError(self.ledger_id, words))

    def _deliver(self) -> None:
        """One pass: the LAC moves over all that is confirmed, then the callbacks run, in order."""
        self._delivery_deferred = False
        core = self._core
        confirmed = core.confirm()
        if confirmed:
            self._statistics.adds += len(confirmed)
            self._statistics.adds_under_replicated += core.under_replicated_count
            core.under_replicated_count = 0
            self._on_confirmed()
            for pending in confirmed:
                pending.done(pending.entry_id, None)
        if core.error is not None:
            for pending in core.take_failed():
                self._statistics.add_failures += 1
                pending.done(pending.entry_id, core.error)
        if self._drained is not None and not core.is_waiting:
            self._drained.set()
            self._drained = None

    def _on_confirmed(self) -> None:  # noqa: B027  # recovery has nothing to do here
        """The LAC moved; before any callback."""

    def _stop(self, error: LedgerError) -> None:
        flags = self._core.stop(error)
        if flags:
            logger.info("ledger=%d stopped: %s", self.ledger_id, error)
            self._act(flags)

    async def _wait_drained(self) -> None:
        """Returns when nothing is in flight that can be acked: all was, or all has failed."""
        while self._core.is_waiting:
            if self._drained is None:
                self._drained = trio.Event()
            await self._drained.wait()

    async def _change_ensemble(self) -> None:
        """Replaces what failed until nothing is left to replace, or the ledger stops."""
        core = self._core
        while core.error is None:
            request = core.change_request()
            try:
                ensemble = await self._choose(request)
                await self._store_ensemble(request, ensemble)
            except LedgerError as error:
                self._stop(error)
                return
            self._statistics.ensemble_changes += 1
            resend, flags = core.ensemble_changed(ensemble)
            for pending, index in resend:
                self._send(pending, index)
            if not flags & CHANGE:
                self._act(flags)
                return

    async def _choose(self, request: ChangeRequest) -> tuple[str, ...]:
        schedule = self._core.schedule
        try:
            return await self._placement.replace(
                request.ensemble,
                request.failed.keys(),
                schedule.write_quorum_size,
                schedule.ack_quorum_size,
                set(request.failed.values()),
            )
        except TooFewBookiesError as error:
            failed = ", ".join(request.failed.values())
            raise NotEnoughBookiesError(
                self.ledger_id, f"no bookies in place of {failed}: {error}"
            ) from error

    @abstractmethod
    async def _store_ensemble(self, request: ChangeRequest, ensemble: tuple[str, ...]) -> None:
        """Returns when the new ensemble may be used; LedgerError."""
