"""WriterCore for the two other ways of writing a ledger (invariants D). Pure.

Parity with BookKeeper's client: no partition of the broker writes so. See ledger/writer_modes.py.

`AdvCore`: the caller gives entry ids, in any order (LedgerHandleAdv.java). Acks are told in the
order of ids, so an entry waits for all lower ids to be given and acked. Lengths count in the order
of the calls.

`DeferredSyncCore`: bookies may answer before they sync. Such an ack promises nothing: the LAC,
which does, moves only when every bookie of the ensemble was told to sync (`forced`). The ensemble
is never changed: entries that only the replaced bookie had not synced yet would be on too few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ledger.errors import DuplicateEntryError
from ledger.writer_core import NOTHING, PendingAdd, WriterCore

if TYPE_CHECKING:
    from ledger.distribution import Schedule
    from ledger.writer_core import AppendDone


class AdvCore(WriterCore):
    """`pending` is in the order of ids, and may have gaps."""

    __slots__ = ()

    def add_at(self, entry_id: int, size: int, done: AppendDone) -> PendingAdd:
        """DuplicateEntryError if the id was given before."""
        queue = self.pending
        # Callers are nearly in order: the place is near the end.
        position = len(queue)
        while position and queue[position - 1].entry_id > entry_id:
            position -= 1
        is_known = bool(position) and queue[position - 1].entry_id == entry_id
        if is_known or entry_id <= self.last_add_confirmed:
            raise DuplicateEntryError(self.ledger_id, f"entry {entry_id} was added before")
        self.last_add_pushed = max(self.last_add_pushed, entry_id)
        self.length += size
        self.pending_bytes += size
        pending = PendingAdd(entry_id, self._told_lac(), self.length, size, done)
        queue.insert(position, pending)
        return pending

    def _told_lac(self) -> int:
        """The LAC that a new entry carries."""
        return self.last_add_confirmed

    def _is_head_complete(self) -> bool:
        queue = self.pending
        return (
            bool(queue)
            and queue[0].entry_id == self.last_add_confirmed + 1
            and super()._is_head_complete()
        )

    def confirm(self) -> list[PendingAdd]:
        confirmed: list[PendingAdd] = []
        if self.changing or self.error is not None:
            return confirmed
        queue, ack_quorum_size = self.pending, self._ack_quorum_size
        while queue and queue[0].entry_id == self.last_add_confirmed + 1:
            ack_count = queue[0].acks.bit_count()
            if ack_count < ack_quorum_size:
                break
            if ack_count != self.schedule.write_quorum_size:
                self.under_replicated_count += 1
                if queue[0].refusals:
                    self._note_missed(queue[0])
            pending = queue.popleft()
            self.pending_bytes -= pending.size
            self.last_add_confirmed = pending.entry_id
            # Not the entry's own length: that counts in the order of the calls.
            self.confirmed_length += pending.size
            confirmed.append(pending)
        return confirmed

    @property
    def is_waiting(self) -> bool:
        queue = self.pending
        return bool(queue) and queue[0].entry_id == self.last_add_confirmed + 1


class DeferredSyncCore(AdvCore):
    """`last_add_confirmed` is what bookies have answered; `last_add_forced` is the ledger's LAC."""

    may_replace: ClassVar[bool] = False

    __slots__ = ("forced_length", "last_add_forced")

    def __init__(
        self,
        ledger_id: int,
        schedule: Schedule,
        ensemble: tuple[str, ...],
        *,
        delay_ensemble_change: bool = False,
    ) -> None:
        super().__init__(ledger_id, schedule, ensemble, delay_ensemble_change=delay_ensemble_change)
        self.last_add_forced = -1
        self.forced_length = 0

    def add(self, size: int, done: AppendDone) -> PendingAdd:
        return self.add_at(self.last_add_pushed + 1, size, done)

    def _told_lac(self) -> int:
        return self.last_add_forced

    def replace_late(self) -> int:
        # Its entry is on its ack quorum; a later force tells whether that is durable.
        self.late = {}
        return NOTHING

    def indexes_with_entries(self, last_entry_id: int) -> set[int]:
        """Ensemble indexes that were sent any of the entries up to that one."""
        count = min(last_entry_id + 1, self.schedule.ensemble_size)
        return {index for entry_id in range(count) for index in self.schedule.write_set(entry_id)}

    def forced(self, last_add_forced: int, length: int) -> None:
        """All of the ensemble have synced what was answered up to that entry."""
        assert last_add_forced <= self.last_add_confirmed
        if last_add_forced > self.last_add_forced:
            self.last_add_forced = last_add_forced
            self.forced_length = length
