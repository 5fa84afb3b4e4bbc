"""AddPipeline: the shell around `WriterCore`; what the writer and recovery have in common.

It seals entries, sends them, hands the answers to the core, and acts on the core's flags. Callbacks
run in a deferred pass of the turn: once per burst of replies, all entries that it confirmed, and
never from inside `append`. Making an ensemble is the one thing that waits; it runs in a task of the
LedgerClient (`spawn`), and what it does to the core is synchronous.

While a failed bookie is kept for want of another, every LOOK_SECONDS the next append looks for one
that could replace it, and is sent to it as a *trial*: if that is acked, the bookie is back.

Sent payloads must never change: with Qa < Qw a slow bookie may still be sent an entry whose
callback has run.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio

from ledger.errors import LedgerError, NotEnoughBookiesError
from ledger.placement import TooFewBookiesError
from ledger.statistics import LedgerStatistics
from ledger.writer_core import CHANGE, DELIVER, STOPPED, WriterCore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from ledger.bookie_client import BookieClient
    from ledger.placement import Placement
    from ledger.writer_core import AppendDone, ChangeRequest, PendingAdd
    from runtime.turn import Turn
    from wire.bookkeeper.entry import Digest
    from wire.bookkeeper.status import Status
    from wire.buffers import Buffers

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25


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
        "_left_out",
        "_master_key",
        "_next_look",
        "_placement",
        "_returned",
        "_seal",
        "_single",
        "_spawn",
        "_statistics",
        "_trials_due",
        "_trying",
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
        #: When kept bookies are looked after next, in trio's time.
        self._next_look = 0.0
        #: Ensemble indexes of kept bookies that get the next entry of theirs as a trial, and of
        #: those that have not answered theirs.
        self._trials_due: set[int] = set()
        self._trying: set[int] = set()
        #: All that the ledger ever went on without: they lack entries that are confirmed.
        self._left_out: set[str] = set()
        #: Index and name of those whose trial was acked.
        self._returned: list[tuple[int, str]] = []

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

    def _append(
        self, payload: Buffers, size: int, done: AppendDone, given_id: int | None = None
    ) -> int:
        """Only an AdvCore takes a `given_id`."""
        core = self._core
        is_uneasy = core.late or core.is_short
        if is_uneasy:
            self._look_after_failed()
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
            if is_uneasy:
                self._send_trials(pending)
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

    def _look_after_failed(self) -> None:
        core = self._core
        if core.late:
            self._act(core.replace_late())
        if core.is_short and not core.changing and trio.current_time() >= self._next_look:
            self._next_look = trio.current_time() + LOOK_SECONDS
            self._trials_due = set(core.failed_indexes) - self._trying
            self._act(core.replace_failed())

    def _send_trials(self, pending: PendingAdd) -> None:
        core = self._core
        for index in core.schedule.write_set(pending.entry_id):
            if index in self._trials_due:
                self._trials_due.discard(index)
                self._trying.add(index)
                bookie = core.ensemble[index]
                self._add_entry(
                    bookie,
                    self.ledger_id,
                    pending.entry_id,
                    self._master_key,
                    pending.entry,
                    self._flags,
                    partial(self._on_trial_reply, pending, index, bookie),
                )

    def _on_trial_reply(self, pending: PendingAdd, index: int, bookie: str, status: Status) -> None:
        self._trying.discard(index)
        self._on_reply(pending, index, bookie, status)
        if not status:
            self._returned.append((index, bookie))
            self._take_back()

    def _take_back(self) -> None:
        """Not while an ensemble is being made: that one may be without them."""
        if self._core.changing:
            return
        returned, self._returned = self._returned, []
        for index, bookie in returned:
            for missing in self._core.rejoin(index, bookie):
                self._send(missing, index)

    def _act(self, flags: int, status: int | None = None) -> None:
        if flags & (DELIVER | STOPPED) and not self._delivery_deferred:
            self._delivery_deferred = True
            self._turn.defer(self._deliver)
        if flags & CHANGE:
            request = self._core.change_request()
            logger.log(
                # Looked for again and again, where there is none.
                logging.DEBUG if self._core.is_short and status is None else logging.INFO,
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
            if core.missed:
                self._take_missed()
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
        """Replaces what failed until nothing is left to replace, or nobody to replace it with: then
        goes on without, or stops the ledger."""
        core = self._core
        while core.error is None:
            request = core.change_request()
            try:
                ensemble = await self._choose(request)
                if ensemble != request.ensemble:
                    await self._store_ensemble(request, ensemble)
            except LedgerError as error:
                self._stop(error)
                return
            if ensemble == request.ensemble:
                flags = self._keep(request)
            else:
                self._statistics.ensemble_changes += 1
                resend, flags = core.ensemble_changed(ensemble)
                for pending, index in resend:
                    self._send(pending, index)
            if not flags & CHANGE:
                self._act(flags)
                self._take_back()
                return

    def _take_missed(self) -> None:
        missed, self._core.missed = self._core.missed, set()
        self._leave_out(missed)

    def _leave_out(self, bookies: Collection[str]) -> None:
        self._left_out.update(bookies)

    def _keep(self, request: ChangeRequest) -> int:
        core = self._core
        self._leave_out(request.failed.values())
        if not core.is_short:
            words = ", ".join(request.failed.values())
            logger.warning("ledger=%d goes on without %s", self.ledger_id, words)
            self._next_look = trio.current_time() + LOOK_SECONDS
        return core.keep_failed(request)

    async def _choose(self, request: ChangeRequest) -> tuple[str, ...]:
        """The ensemble with as many of the failed replaced as there are bookies for; the same if
        there are none, and the ledger can go on so. NotEnoughBookiesError if it cannot."""
        try:
            return await self._replace(request, request.ensemble, request.failed.keys())
        except TooFewBookiesError as error:
            words = str(error)
        ensemble = request.ensemble
        if len(request.failed) > 1:
            for index in request.failed:
                with suppress(TooFewBookiesError):
                    ensemble = await self._replace(request, ensemble, [index])
        if ensemble == request.ensemble and not self._core.can_keep(request):
            failed = ", ".join(request.failed.values())
            raise NotEnoughBookiesError(self.ledger_id, f"no bookies in place of {failed}: {words}")
        return ensemble

    async def _replace(
        self, request: ChangeRequest, ensemble: tuple[str, ...], indexes: Collection[int]
    ) -> tuple[str, ...]:
        schedule = self._core.schedule
        return await self._placement.replace(
            ensemble,
            indexes,
            schedule.write_quorum_size,
            schedule.ack_quorum_size,
            set(request.failed.values()),
        )

    @abstractmethod
    async def _store_ensemble(self, request: ChangeRequest, ensemble: tuple[str, ...]) -> None:
        """Returns when the new ensemble may be used; LedgerError."""
