"""The rules of writing one ledger (invariants W). Pure: no loop, sockets, clock or entropy.

Owner of: the entries in flight, the LAC, the ensemble that is written to. The shell (`pipeline`)
sends what it is told to, hands in every reply, and acts on the flags that come back:

    DELIVER   the oldest entries are acked: call `confirm()`, then their callbacks
    CHANGE    a bookie failed: make a new ensemble durable as `change_request()` says, then call
              `ensemble_changed()`, or `keep_failed()` if there is no other bookie; until then LAC
              and callbacks stand still
    STOPPED   nothing more will be acked: `take_failed()` has what was in flight
    MISSED    a bookie will never have an entry that is confirmed: `missed` names it

Invariants: entry ids are dense; an entry is confirmed only when Qa bookies of its write set *in the
ensemble that is durable* have it, and all before it are confirmed; the LAC never goes back; after
`stop` nothing is confirmed.

An ack is recorded also when the entry has enough of them, and is taken away again when its bookie
is replaced, so an entry that was complete can become incomplete (2.1.3). Confirmation happens only
in `confirm`, never while acks are being taken away (bk#3005, bk#4097).

With delayed ensemble change (2.1.5) a bookie is replaced only when so many refused an entry that
it could miss its ack quorum, or when one said that it is read-only. A refusal of an entry that was
confirmed already is noted in `late`, and that bookie replaced before the next add (`replace_late`).

An ensemble change sends again only what is not confirmed yet (LedgerHandle.java: the pending adds).
What was confirmed without a bookie that hangs, and is refused by it later, has a copy less for
good, whether that bookie still has its place by then, was replaced, or the ledger has ended. Every
add is answered some day: a time-out or a broken connection is a refusal.

Where no bookie can take a failed one's place, that one stays in the ensemble and is sent nothing
more, as long as every write set has Qa others (`keep_failed`): the ensemble that is durable does
not change, and an entry still needs Qa acks out of it. It gets entries again once it took one
(`rejoin`), and is replaced when somebody is there to (`replace_failed`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ledger.errors import LedgerError, LedgerFencedError, UnauthorizedError
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from ledger.distribution import Schedule
    from wire.buffers import Buffer

NOTHING = 0
DELIVER = 1
CHANGE = 2
STOPPED = 4
MISSED = 8

#: done(entry id, None or why it failed)
AppendDone = Callable[[int, LedgerError | None], None]

_FENCED = int(Status.EFENCED)
_UNAUTHORIZED = int(Status.EUA)
_READ_ONLY = int(Status.EREADONLY)


class PendingAdd:
    """One entry in flight. `acks` has a bit for each ensemble index that has it, `refusals` for
    each that failed and was kept (delayed ensemble change only)."""

    __slots__ = (
        "acks",
        "done",
        "entry",
        "entry_id",
        "last_add_confirmed",
        "length",
        "refusals",
        "size",
    )

    def __init__(
        self, entry_id: int, last_add_confirmed: int, length: int, size: int, done: AppendDone
    ) -> None:
        self.entry_id = entry_id
        #: What the entry itself tells of the LAC.
        self.last_add_confirmed = last_add_confirmed
        #: Payload bytes of the ledger up to and including this entry.
        self.length = length
        self.size = size
        self.done = done
        self.acks = 0
        self.refusals = 0
        #: Header, digest and payload; set by the shell before it sends.
        self.entry: tuple[Buffer, ...] = ()


class ChangeRequest(NamedTuple):
    """Wanted: an ensemble without the failed bookies, valid from entry `first_entry_id` on."""

    first_entry_id: int
    ensemble: tuple[str, ...]
    #: Ensemble index -> the bookie there that failed.
    failed: dict[int, str]


class WriterCore:
    #: Whether another bookie may take a failed one's place.
    may_replace: ClassVar[bool] = True

    __slots__ = (
        "_ack_quorum_size",
        "_delays_change",
        "_replaced_at",
        "changing",
        "confirmed_length",
        "ensemble",
        "error",
        "failed",
        "is_short",
        "last_add_confirmed",
        "last_add_pushed",
        "late",
        "ledger_id",
        "length",
        "missed",
        "pending",
        "pending_bytes",
        "schedule",
        "under_replicated_count",
    )

    def __init__(
        self,
        ledger_id: int,
        schedule: Schedule,
        ensemble: tuple[str, ...],
        *,
        last_add_confirmed: int = -1,
        length: int = 0,
        delay_ensemble_change: bool = False,
    ) -> None:
        assert len(ensemble) == schedule.ensemble_size
        self.ledger_id = ledger_id
        self.schedule = schedule
        self._ack_quorum_size = schedule.ack_quorum_size
        self.ensemble = ensemble
        self.last_add_confirmed = last_add_confirmed
        self.last_add_pushed = last_add_confirmed
        #: Payload bytes of all entries that were added, and of those that are confirmed.
        self.length = length
        self.confirmed_length = length
        self.pending: deque[PendingAdd] = deque()
        self.pending_bytes = 0
        #: A new ensemble is being made: LAC and callbacks stand still.
        self.changing = False
        #: Ensemble index -> the bookie there that is to be replaced, or was kept. Only the core
        #: changes it.
        self.failed: dict[int, str] = {}
        #: Failed bookies were kept.
        self.is_short = False
        self._delays_change = delay_ensemble_change
        #: Ensemble index -> the first entry of the bookie that took a replaced one's place there.
        self._replaced_at: dict[int, int] = {}
        #: Ensemble index -> the bookie there that refused an entry after it was confirmed.
        self.late: dict[int, str] = {}
        #: Entries that had fewer than Qw acks when they were confirmed.
        self.under_replicated_count = 0
        #: Bookies that refused an entry which is confirmed without them; the shell empties it.
        self.missed: set[str] = set()
        #: Why this core stopped; None while it works.
        self.error: LedgerError | None = None

    def add(self, size: int, done: AppendDone) -> PendingAdd:
        """Takes the next entry id. The shell then sends it to `targets(pending)`, unless the core
        has stopped: then it only waits for `take_failed`."""
        entry_id = self.last_add_pushed + 1
        self.last_add_pushed = entry_id
        self.length = length = self.length + size
        self.pending_bytes += size
        pending = PendingAdd(entry_id, self.last_add_confirmed, length, size, done)
        self.pending.append(pending)
        return pending

    def add_at(self, entry_id: int, size: int, done: AppendDone) -> PendingAdd:
        """As `add`, with an id of the caller's choice: AdvCore's."""
        raise AssertionError(f"ledger {self.ledger_id} takes no entry ids: {entry_id}")

    def targets(self, pending: PendingAdd) -> tuple[int, ...]:
        """Ensemble indexes to send a new entry to. Indexes whose bookie has failed are left out:
        `ensemble_changed` asks to send there once there is another bookie."""
        write_set = self.schedule.write_sets[pending.entry_id % self.schedule.ensemble_size]
        if self.failed:
            return tuple(index for index in write_set if index not in self.failed)
        return write_set

    def reply(self, pending: PendingAdd, index: int, bookie: str, status: int) -> int:
        """A bookie's answer to an add that was sent to it as number `index` of the ensemble."""
        # An answer from a bookie that was replaced meanwhile says nothing of the next (2.1.2).
        if self.ensemble[index] != bookie or self.error is not None:
            return self._answered_too_late(pending, index, bookie, status) if status else NOTHING
        if status:
            return self._refused(pending, index, bookie, status)
        pending.acks |= 1 << index
        # Only the oldest entry can make anything happen; those behind it are found by confirm().
        if pending.entry_id == self.last_add_confirmed + 1 and self._is_head_complete():
            return DELIVER
        return NOTHING

    def _answered_too_late(self, pending: PendingAdd, index: int, bookie: str, status: int) -> int:
        """A refusal by one that was replaced, or of a ledger that has ended."""
        if status in (_FENCED, _UNAUTHORIZED) or pending.entry_id > self.last_add_confirmed:
            return NOTHING
        # What was in flight when another one took its place is there.
        is_replaced = self.ensemble[index] != bookie
        if is_replaced and pending.entry_id >= self._replaced_at[index]:
            return NOTHING
        self.missed.add(bookie)
        return MISSED

    def _refused(self, pending: PendingAdd, index: int, bookie: str, status: int) -> int:
        if status == _FENCED:
            return self.stop(LedgerFencedError(self.ledger_id, f"bookie {bookie} was fenced"))
        if status == _UNAUTHORIZED:
            words = f"bookie {bookie} knows the ledger with another master key"
            return self.stop(UnauthorizedError(self.ledger_id, words))
        flags = NOTHING
        if pending.entry_id <= self.last_add_confirmed:
            self.missed.add(bookie)
            flags = MISSED
        if self._delays_change:
            if self._is_tolerable(pending, index, bookie, status):
                return flags
        elif index in self.failed:
            return flags
        self.failed[index] = bookie
        return flags | self._begin_change()

    def _begin_change(self) -> int:
        if self.changing:
            return NOTHING  # ensemble_changed() asks for another round
        self.changing = True
        return CHANGE

    def _is_tolerable(self, pending: PendingAdd, index: int, bookie: str, status: int) -> bool:
        """Whether the bookie may stay; else all that refused this entry are to be replaced."""
        pending.refusals |= 1 << index
        if status != _READ_ONLY:
            if pending.entry_id <= self.last_add_confirmed:
                self.late[index] = bookie
                return True
            if not self.is_short:
                schedule = self.schedule
                tolerance = schedule.write_quorum_size - schedule.ack_quorum_size
                if pending.refusals.bit_count() <= tolerance:
                    return True
            elif self._can_complete(pending):
                return True
        self._give_up_refusers(pending)
        return False

    def _give_up_refusers(self, pending: PendingAdd) -> None:
        for other in self.schedule.write_set(pending.entry_id):
            # A confirmed one keeps the refusals of bookies that were replaced since.
            is_of_todays = self._replaced_at.get(other, 0) <= pending.entry_id
            if pending.refusals >> other & 1 and is_of_todays:
                self.failed[other] = self.ensemble[other]

    def _can_complete(self, pending: PendingAdd) -> bool:
        """Whether so many of its write set neither refused it nor are left out."""
        count = 0
        for index in self.schedule.write_set(pending.entry_id):
            count += not (pending.refusals >> index & 1 or index in self.failed)
        return count >= self._ack_quorum_size

    def replace_late(self) -> int:
        """Before an add: those in `late` are to be replaced now. CHANGE or NOTHING."""
        late, self.late = self.late, {}
        for index, bookie in late.items():
            if self.ensemble[index] == bookie:
                self.failed[index] = bookie
        return self._begin_change() if self.failed else NOTHING

    def replace_failed(self) -> int:
        """Those that were kept are to be replaced, if now somebody is there to: CHANGE or
        NOTHING."""
        return self._begin_change() if self.failed else NOTHING

    def _is_head_complete(self) -> bool:
        return (
            not self.changing
            and bool(self.pending)
            and self.pending[0].acks.bit_count() >= self._ack_quorum_size
        )

    def confirm(self) -> list[PendingAdd]:
        """Moves the LAC over all complete entries at the head, and returns them in order."""
        confirmed: list[PendingAdd] = []
        if self.changing or self.error is not None:
            return confirmed
        queue, ack_quorum_size = self.pending, self._ack_quorum_size
        write_quorum_size = self.schedule.write_quorum_size
        size = 0
        while queue:
            pending = queue[0]
            ack_count = pending.acks.bit_count()
            if ack_count < ack_quorum_size:
                break
            if ack_count != write_quorum_size:
                self.under_replicated_count += 1
                if pending.refusals:
                    self._note_missed(pending)
            queue.popleft()
            size += pending.size
            confirmed.append(pending)
        if confirmed:
            self.pending_bytes -= size
            assert self.pending_bytes >= 0
            last = confirmed[-1]
            assert last.entry_id == self.last_add_confirmed + len(confirmed)
            self.last_add_confirmed = last.entry_id
            self.confirmed_length = last.length
        return confirmed

    def _note_missed(self, pending: PendingAdd) -> None:
        """Of an entry that is being confirmed: who refused it and was kept."""
        for index in self.schedule.write_set(pending.entry_id):
            if pending.refusals >> index & 1 and not pending.acks >> index & 1:
                self.missed.add(self.ensemble[index])

    def change_request(self) -> ChangeRequest:
        """What the ensemble must lose. The new one starts behind the LAC, which stands still until
        `ensemble_changed`, so that no entry is confirmed in between (bk#4097, bk#4651)."""
        assert self.changing
        return ChangeRequest(self.last_add_confirmed + 1, self.ensemble, dict(self.failed))

    def ensemble_changed(
        self, ensemble: tuple[str, ...]
    ) -> tuple[list[tuple[PendingAdd, int]], int]:
        """The new ensemble is durable: which entries to send again, to which of its indexes; and
        flags. All acks of replaced bookies are gone before anything can be confirmed."""
        assert len(ensemble) == self.schedule.ensemble_size
        if self.error is not None:
            return [], NOTHING
        assert self.changing
        replaced = [i for i, bookie in enumerate(ensemble) if bookie != self.ensemble[i]]
        kept_mask = ~sum(1 << index for index in replaced)
        self._replaced_at.update(dict.fromkeys(replaced, self.last_add_confirmed + 1))
        self.ensemble = ensemble
        # Failures that came in during the change, of bookies that are still there.
        self.failed = {i: bookie for i, bookie in self.failed.items() if ensemble[i] == bookie}
        resend: list[tuple[PendingAdd, int]] = []
        for pending in self.pending:
            pending.acks &= kept_mask
            pending.refusals &= kept_mask
            write_set = self.schedule.write_set(pending.entry_id)
            resend.extend((pending, index) for index in replaced if index in write_set)
        if self.failed:
            return resend, CHANGE
        self.changing = self.is_short = False
        return resend, DELIVER if self._is_head_complete() else NOTHING

    @property
    def failed_indexes(self) -> tuple[int, ...]:
        return tuple(self.failed)

    def can_keep(self, request: ChangeRequest) -> bool:
        """Whether every write set has its ack quorum without those that failed."""
        return all(
            sum(index not in request.failed for index in write_set) >= self._ack_quorum_size
            for write_set in self.schedule.write_sets
        )

    def keep_failed(self, request: ChangeRequest) -> int:
        """Nobody is there in place of any of those in `request`, and `can_keep(request)`: writing
        goes on without them. Flags; CHANGE if more have failed since."""
        if self.error is not None:
            return NOTHING
        assert self.changing
        assert self.can_keep(request)
        # Refused by one that was tolerated while there were others: those are no more.
        for pending in self.pending:
            if pending.refusals and not self._can_complete(pending):
                self._give_up_refusers(pending)
        if len(self.failed) > len(request.failed):
            return CHANGE
        self.changing = False
        self.is_short = True
        return DELIVER if self._is_head_complete() else NOTHING

    def rejoin(self, index: int, bookie: str) -> list[PendingAdd]:
        """One that was kept took an entry: it is sent all from now on. Returns what is in flight
        and to be sent to it."""
        if self.changing or self.error is not None or self.failed.get(index) != bookie:
            return []
        del self.failed[index]
        self.is_short = bool(self.failed)
        bit = 1 << index
        missing: list[PendingAdd] = []
        for pending in self.pending:
            if index in self.schedule.write_set(pending.entry_id) and not pending.acks & bit:
                pending.refusals &= ~bit
                missing.append(pending)
        return missing

    @property
    def is_waiting(self) -> bool:
        """Whether something is in flight that can still be confirmed."""
        return bool(self.pending)

    def stop(self, error: LedgerError) -> int:
        """For good; the first reason stays. Nothing is confirmed from here on (2.1.6)."""
        if self.error is not None:
            return NOTHING
        self.error = error
        return STOPPED

    def take_failed(self) -> list[PendingAdd]:
        """What was in flight when the core stopped, in order; once."""
        assert self.error is not None
        failed = list(self.pending)
        self.pending.clear()
        self.pending_bytes = 0
        return failed
