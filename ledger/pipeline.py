"""AddPipeline: the shell around `WriterCore`; a part of each writer, and of each recovery.

The way of an entry is one: `append` gives it an id (core), seals it, and sends it to its write set;
each answer goes to the core, and the turn's deferred pass (`_deliver`) confirms and calls back. The
pass runs once per burst of replies for all entries that it confirmed, together with those of all
other pipelines, and never from inside `append`. Making an ensemble is the one thing that waits; it
runs in a task of the LedgerClient (`spawn`), and what it does to the core is synchronous.

While a failed bookie is kept for want of another, every LOOK_SECONDS the next append looks for one
that could replace it, and is sent to it as a *trial*: if that is acked, the bookie is back. No
trial is sent while an ensemble is being made: metadata may name another bookie for that entry by
then.

Sent payloads must never change: with Qa < Qw a slow bookie may still be sent an entry whose
callback has run.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol

import trio

from ledger.errors import LedgerBusyError, LedgerError, NotEnoughBookiesError
from ledger.placement import TooFewBookiesError
from ledger.writer_core import CHANGE, DELIVER, MISSED, STOPPED, WriterCore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ledger.client_parts import ClientParts, LedgerSeal
    from ledger.writer_core import AppendDone, ChangeRequest, PendingAdd
    from wire.bookkeeper.status import Status
    from wire.buffers import Buffers

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25


class Ensembles(Protocol):
    """Makes a ledger's new ensembles durable, and knows which bookies lack entries."""

    async def store_ensemble(self, request: ChangeRequest, ensemble: tuple[str, ...]) -> None:
        """Returns when the new ensemble may be used; LedgerError."""

    def leave_out(self, bookies: Collection[str]) -> None:
        """The ledger goes on without these, or has confirmed an entry that they refused."""

    def take_in(self, bookie: str) -> None:
        """One that the ledger went on without is sent all entries from now on."""


class LacFollower(Protocol):
    """Told of each LAC, before any callback of an entry that it confirms."""

    last_add_confirmed: int


class Window(NamedTuple):
    """What may be in flight before `append` refuses: entries, and bytes of payload."""

    entries_max: int
    bytes_max: int


class AddPipeline:
    """Owner of what is in flight (`core`), of its bound, and of the callbacks."""

    __slots__ = (
        "_add_entry",
        "_bytes_max",
        "_deliveries",
        "_delivery_deferred",
        "_drained",
        "_ensemble_size",
        "_ensembles",
        "_entries_max",
        "_flags",
        "_follower",
        "_ledger_id",
        "_master_key",
        "_next_look",
        "_on_room",
        "_placement",
        "_returned",
        "_seal",
        "_spawn",
        "_statistics",
        "_trials_due",
        "_trying",
        "_write_sets",
        "core",
    )

    def __init__(
        self,
        core: WriterCore,
        parts: ClientParts,
        seal: LedgerSeal,
        ensembles: Ensembles,
        window: Window,
        follower: LacFollower | None = None,
    ) -> None:
        self.core = core
        self._ledger_id = core.ledger_id
        self._statistics = parts.statistics
        self._add_entry = parts.bookies.add_entry
        self._deliveries = parts.deliveries
        self._placement = parts.placement
        self._spawn = parts.spawn
        self._seal = seal.digest.seal
        self._master_key = seal.master_key
        self._flags = seal.flags
        self._write_sets = core.schedule.write_sets
        self._ensemble_size = core.schedule.ensemble_size
        self._ensembles = ensembles
        self._follower = follower
        self._entries_max, self._bytes_max = window
        self._delivery_deferred = False
        self._drained: trio.Event | None = None
        self._on_room: Callable[[], None] | None = None
        #: When kept bookies are looked after next, in trio's time.
        self._next_look = 0.0
        #: Ensemble indexes of kept bookies that get the next entry of theirs as a trial, and of
        #: those that have not answered theirs.
        self._trials_due: set[int] = set()
        self._trying: set[int] = set()
        #: Index and name of those whose trial was acked.
        self._returned: list[tuple[int, str]] = []

    @property
    def has_room(self) -> bool:
        """Whether `append` would take one more entry, of any size."""
        core = self.core
        return len(core.pending) < self._entries_max and core.pending_bytes < self._bytes_max

    def when_room(self, function: Callable[[], None]) -> None:
        """Calls `function()` once, after the callbacks of the next pass that leaves room (or that
        ends the ledger). One caller at a time."""
        assert self._on_room is None
        self._on_room = function

    def append(self, payload: Buffers, done: AppendDone, given_id: int | None = None) -> int:
        """Sends the payload as the ledger's next entry; returns the entry's id. Only an AdvCore
        takes a `given_id`.

        `done(entry_id, None)` once the entry is confirmed; `done(entry_id, error)` if the ledger
        fails first, or has failed. LedgerBusyError if the window is full: nothing is appended."""
        core = self.core
        if core.pending_bytes >= self._bytes_max or len(core.pending) >= self._entries_max:
            self._refuse()
        size = 0
        for piece in payload:
            size += len(piece)
        # Bookies have failed: there may be others to send to now.
        is_uneasy = core.failed or core.late
        # A change that is under way may be in the metadata already, without the kept one; one that
        # this call begins is not.
        may_try = is_uneasy and not core.changing
        if is_uneasy and core.error is None:
            self._look_after_failed()
        pending = core.add(size, done) if given_id is None else core.add_at(given_id, size, done)
        entry_id = pending.entry_id
        if core.error is not None:
            # The next pass fails it with all that was in flight.
            self.act(STOPPED)
            return entry_id
        ledger_id = self._ledger_id
        head = self._seal(
            ledger_id, entry_id, pending.last_add_confirmed, pending.length, payload, size
        )
        entry = pending.entry = (head, *payload)
        # The bookies of its write set, without those that failed.
        indexes = (
            core.targets(pending) if is_uneasy else self._write_sets[entry_id % self._ensemble_size]
        )
        ensemble, add_entry = core.ensemble, self._add_entry
        for index in indexes:
            bookie = ensemble[index]
            add_entry(
                bookie,
                ledger_id,
                entry_id,
                self._master_key,
                entry,
                self._flags,
                partial(_on_reply, self, pending, index, bookie),
            )
        if may_try:
            self._send_trials(pending)
        return entry_id

    def _refuse(self) -> NoReturn:
        core = self.core
        raise LedgerBusyError(
            self._ledger_id,
            f"{len(core.pending)} entries of {core.pending_bytes} bytes are in flight",
        )

    def _send(self, pending: PendingAdd, index: int) -> None:
        bookie = self.core.ensemble[index]
        self._add_entry(
            bookie,
            self._ledger_id,
            pending.entry_id,
            self._master_key,
            pending.entry,
            self._flags,
            partial(_on_reply, self, pending, index, bookie),
        )

    def _look_after_failed(self) -> None:
        core = self.core
        if core.late:
            self.act(core.replace_late())
        if core.is_short and not core.changing and trio.current_time() >= self._next_look:
            self._next_look = trio.current_time() + LOOK_SECONDS
            self._trials_due = set(core.failed_indexes) - self._trying
            self.act(core.replace_failed())

    def _send_trials(self, pending: PendingAdd) -> None:
        core = self.core
        for index in core.schedule.write_set(pending.entry_id):
            if index in self._trials_due:
                self._trials_due.discard(index)
                if index not in core.failed:
                    continue  # replaced since: its successor is sent all entries anyway
                self._trying.add(index)
                bookie = core.ensemble[index]
                self._add_entry(
                    bookie,
                    self._ledger_id,
                    pending.entry_id,
                    self._master_key,
                    pending.entry,
                    self._flags,
                    partial(self._on_trial_reply, pending, index, bookie),
                )

    def _on_trial_reply(self, pending: PendingAdd, index: int, bookie: str, status: Status) -> None:
        self._trying.discard(index)
        _on_reply(self, pending, index, bookie, status)
        if not status:
            self._returned.append((index, bookie))
            self._take_back()

    def _take_back(self) -> None:
        """Not while an ensemble is being made: that one may be without them."""
        if self.core.changing:
            return
        returned, self._returned = self._returned, []
        core = self.core
        for index, bookie in returned:
            was_failed = index in core.failed
            resend = core.rejoin(index, bookie)
            if was_failed and index not in core.failed:
                # Before it is sent anything: what it refuses from here on is told anew.
                self._ensembles.take_in(bookie)
            for missing in resend:
                self._send(missing, index)

    def act(self, flags: int, status: int | None = None) -> None:
        """Does what the core asks for; `status` is the answer that made it."""
        if flags & (DELIVER | STOPPED | MISSED) and not self._delivery_deferred:
            self._delivery_deferred = True
            self._deliveries.defer(self._deliver)
        if flags & CHANGE:
            request = self.core.change_request()
            logger.log(
                # Looked for again and again, where there is none.
                logging.DEBUG if self.core.is_short and status is None else logging.INFO,
                "ledger=%d changing ensemble from entry=%d failed=%s status=%s",
                self._ledger_id,
                request.first_entry_id,
                request.failed,
                status,
            )
            if not self._spawn(self._change_ensemble):
                words = "bookies failed, and LedgerClient.run() is not running to replace them"
                self.stop(NotEnoughBookiesError(self._ledger_id, words))

    def _deliver(self) -> None:
        """One pass: the LAC moves over all that is confirmed, then the callbacks run, in order."""
        self._delivery_deferred = False
        core = self.core
        confirmed = core.confirm()
        if confirmed:
            self._statistics.adds += len(confirmed)
            self._statistics.adds_under_replicated += core.under_replicated_count
            core.under_replicated_count = 0
            if self._follower is not None:
                self._follower.last_add_confirmed = core.last_add_confirmed
            for pending in confirmed:
                pending.done(pending.entry_id, None)
        if core.missed:
            self.take_missed()
        if core.error is not None:
            for pending in core.take_failed():
                self._statistics.add_failures += 1
                pending.done(pending.entry_id, core.error)
        if self._drained is not None and not core.is_waiting:
            self._drained.set()
            self._drained = None
        function = self._on_room
        if function is not None and (self.has_room or core.error is not None):
            self._on_room = None
            function()

    def stop(self, error: LedgerError) -> None:
        """Fails what is in flight, and all that is appended from now on, with the first reason."""
        flags = self.core.stop(error)
        if flags:
            logger.info("ledger=%d stopped: %s", self._ledger_id, error)
            self.act(flags)

    async def wait_drained(self) -> None:
        """Returns when nothing is in flight that can be acked: all was, or all has failed."""
        while self.core.is_waiting:
            if self._drained is None:
                self._drained = trio.Event()
            await self._drained.wait()

    async def _change_ensemble(self) -> None:
        """Replaces what failed until nothing is left to replace, or nobody to replace it with: then
        goes on without, or stops the ledger."""
        core = self.core
        while core.error is None:
            request = core.change_request()
            try:
                ensemble = await self._choose(request)
                if ensemble != request.ensemble:
                    await self._ensembles.store_ensemble(request, ensemble)
            except LedgerError as error:
                self.stop(error)
                return
            if ensemble == request.ensemble:
                flags = self._keep(request)
            else:
                self._statistics.ensemble_changes += 1
                resend, flags = core.ensemble_changed(ensemble)
                for pending, index in resend:
                    self._send(pending, index)
            if not flags & CHANGE:
                self.act(flags)
                self._take_back()
                return

    def take_missed(self) -> None:
        """Tells the ensembles which bookies refused an entry that is confirmed without them."""
        missed, self.core.missed = self.core.missed, set()
        self._ensembles.leave_out(missed)

    def _keep(self, request: ChangeRequest) -> int:
        core = self.core
        self._ensembles.leave_out(request.failed.values())
        if not core.is_short:
            words = ", ".join(request.failed.values())
            logger.warning("ledger=%d goes on without %s", self._ledger_id, words)
            self._next_look = trio.current_time() + LOOK_SECONDS
        return core.keep_failed(request)

    async def _choose(self, request: ChangeRequest) -> tuple[str, ...]:
        """The ensemble with as many of the failed replaced as there are bookies for; the same if
        there are none, and the ledger can go on so. NotEnoughBookiesError if it cannot."""
        if not self.core.may_replace:
            failed = ", ".join(request.failed.values())
            raise NotEnoughBookiesError(
                self._ledger_id,
                f"{failed} failed, and with deferred sync no bookie can be replaced",
            )
        try:
            return await self._replace(request, request.ensemble, request.failed.keys())
        except TooFewBookiesError as error:
            words = str(error)
        ensemble = request.ensemble
        if len(request.failed) > 1:
            for index in request.failed:
                with suppress(TooFewBookiesError):
                    ensemble = await self._replace(request, ensemble, [index])
        if ensemble == request.ensemble and not self.core.can_keep(request):
            failed = ", ".join(request.failed.values())
            raise NotEnoughBookiesError(
                self._ledger_id, f"no bookies in place of {failed}: {words}"
            )
        return ensemble

    async def _replace(
        self, request: ChangeRequest, ensemble: tuple[str, ...], indexes: Collection[int]
    ) -> tuple[str, ...]:
        schedule = self.core.schedule
        return await self._placement.replace(
            ensemble,
            indexes,
            schedule.write_quorum_size,
            schedule.ack_quorum_size,
            set(request.failed.values()),
        )


def _on_reply(
    pipeline: AddPipeline, pending: PendingAdd, index: int, bookie: str, status: Status
) -> None:
    """A function and no method: a method would be bound anew for each copy of each entry."""
    flags = pipeline.core.reply(pending, index, bookie, status)
    if flags:
        pipeline.act(flags, status)
