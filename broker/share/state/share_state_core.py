"""One share partition's state: what each request makes of it, and which record says so.

    snapshot   all of it                                  a new one supersedes all before it
    update     what a write changed since, or a leader's epoch; means nothing without a snapshot

The state epoch is the group's: who initialises with an older one is refused, and so is a write of
an older one. The leader epoch is of the partition's leader: a read with a newer one fences older
leaders, a write never does (KAFKA-19456), and -1 fences nobody (KAFKA-20694).

A request may be lost, late, or come twice, so each is idempotent: what is written is merged
(batches_core), and the start offset never falls within a state epoch. Known deviations from Kafka,
for the same reason. There a write that comes late takes the start offset back, and what lies above
it again is delivered again. An Initialize with the state epoch that is in force already begins
anew there, whatever was acknowledged since; here it does so only if no leader has read the state,
and is answered without an error otherwise: an alteration of offsets comes with a later epoch
whenever the group had a member since the last.

`apply` is the one way in which a state changes: a coordinator that loads the log comes to the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.share.state.batches_core import Batches, are_valid, merged, normal
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.share.ports import StateBatch

UNCHANGED = -1
NOBODY = -1
#: No partition has more: its leader gives out 4,000 records at a time (Kafka's
#: group.share.max.partition.max.record.locks), and what is done with is below the start.
BATCHES_MAX = 10_000


class KeyState(NamedTuple):
    """What is known of a key, and its snapshot record: both are all of it."""

    snapshot_epoch: int
    state_epoch: int
    #: Of the newest leader that read it in this state epoch; NOBODY has.
    leader_epoch: int
    #: -1: nothing was delivered yet.
    start_offset: int
    #: Records from the start offset on that are acknowledged or archived; -1: unknown.
    delivery_complete_count: int
    batches: Batches
    #: When it was as it is in the snapshot; ms since 1970.
    create_ms: int
    #: When the snapshot was written.
    write_ms: int
    #: Update records since the snapshot.
    update_count: int = 0


class Update(NamedTuple):
    """An update record; -1: unchanged."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Batches

    @property
    def is_empty(self) -> bool:
        """It changes nothing, whatever the state: a mark in the log."""
        return (
            not self.batches
            and self.start_offset == UNCHANGED
            and self.delivery_complete_count == UNCHANGED
            and self.leader_epoch == NOBODY
        )


class Tombstone(NamedTuple):
    """The key's state is gone."""


StateRecord = KeyState | Update | Tombstone


class Write(NamedTuple):
    """What a leader writes."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Sequence[StateBatch]


class Outcome(NamedTuple):
    """What a request comes to. Without a record nothing changes; else `state` is what `apply` makes
    of it."""

    error: ErrorCode
    record: StateRecord | None = None
    state: KeyState | None = None


#: Nothing is wrong, and nothing changes.
NOTHING = Outcome(ErrorCode.NONE)
_FENCED_STATE = Outcome(ErrorCode.FENCED_STATE_EPOCH)
_FENCED_LEADER = Outcome(ErrorCode.FENCED_LEADER_EPOCH)
_INVALID = Outcome(ErrorCode.INVALID_REQUEST)


def apply(state: KeyState | None, record: StateRecord) -> KeyState | None:
    """What is known behind the record. An update without a snapshot is of one that was deleted with
    the log's beginning: another snapshot, or a tombstone, comes behind it."""
    if isinstance(record, KeyState):
        return record._replace(update_count=0)
    if isinstance(record, Tombstone) or state is None:
        return None
    if record.is_empty:
        return state
    start_offset = max(state.start_offset, record.start_offset)
    count = record.delivery_complete_count
    if count == UNCHANGED and start_offset == state.start_offset:
        count = state.delivery_complete_count
    return state._replace(
        leader_epoch=max(state.leader_epoch, record.leader_epoch),
        start_offset=start_offset,
        delivery_complete_count=count,
        batches=merged(state.batches, record.batches, start_offset),
        update_count=state.update_count + 1,
    )


def mark(state: KeyState | None) -> StateRecord:
    """A record that changes nothing."""
    if state is None:
        return Tombstone()
    return Update(state.snapshot_epoch, NOBODY, UNCHANGED, UNCHANGED, ())


def initialize(state: KeyState | None, state_epoch: int, start_offset: int, now_ms: int) -> Outcome:
    """A new beginning."""
    if start_offset < -1 or state_epoch < 0:
        return _INVALID
    snapshot_epoch = 0
    if state is not None:
        if state_epoch < state.state_epoch:
            return _FENCED_STATE
        if state_epoch == state.state_epoch and state.leader_epoch != NOBODY:
            return NOTHING  # said before
        snapshot_epoch = state.snapshot_epoch + 1
    count = UNCHANGED if start_offset < 0 else 0
    fresh = KeyState(
        snapshot_epoch, state_epoch, NOBODY, start_offset, count, (), now_ms, now_ms
    )  # fmt: skip
    return Outcome(ErrorCode.NONE, fresh, fresh)


def write(
    state: KeyState | None, request: Write, updates_per_snapshot: int, now_ms: int
) -> Outcome:
    """A leader's transitions."""
    if state is None or request.start_offset < -1 or request.delivery_complete_count < -1:
        return _INVALID
    if request.leader_epoch != NOBODY and request.leader_epoch < state.leader_epoch:
        return _FENCED_LEADER
    if request.state_epoch != UNCHANGED and request.state_epoch < state.state_epoch:
        return _FENCED_STATE
    if len(request.batches) > BATCHES_MAX or not are_valid(request.batches):
        return _INVALID
    batches = normal(request.batches, max(state.start_offset, request.start_offset, 0))
    start_offset, count = _progress(state, request)
    update = Update(
        state.snapshot_epoch, max(state.leader_epoch, 0), start_offset, count, batches
    )  # fmt: skip
    return _recorded(state, update, updates_per_snapshot, now_ms)


def read(
    state: KeyState | None, leader_epoch: int, updates_per_snapshot: int, now_ms: int
) -> Outcome:
    """A leader begins with what is stored; older ones are fenced from now on."""
    if state is None or leader_epoch < NOBODY:
        return _INVALID
    if leader_epoch in (NOBODY, state.leader_epoch):
        return NOTHING
    if leader_epoch < state.leader_epoch:
        return _FENCED_LEADER
    update = Update(state.snapshot_epoch, leader_epoch, UNCHANGED, UNCHANGED, ())
    return _recorded(state, update, updates_per_snapshot, now_ms)


def delete(state: KeyState | None) -> Outcome:
    """Nothing is known of it any more, epochs included."""
    return NOTHING if state is None else Outcome(ErrorCode.NONE, Tombstone())


def rewritten(state: KeyState, now_ms: int) -> KeyState:
    """The same in a new snapshot, so that the log before it is not needed."""
    return state._replace(snapshot_epoch=state.snapshot_epoch + 1, write_ms=now_ms, update_count=0)


def _progress(state: KeyState, request: Write) -> tuple[int, int]:
    """(start offset, complete deliveries) as they are to be recorded. Of writes with one start
    offset the highest count is the last; with an older one it counts what is below the start."""
    if request.start_offset > state.start_offset:
        return request.start_offset, request.delivery_complete_count
    is_older = UNCHANGED != request.start_offset < state.start_offset
    if is_older or request.delivery_complete_count <= state.delivery_complete_count:
        return UNCHANGED, UNCHANGED
    return UNCHANGED, request.delivery_complete_count


def _recorded(state: KeyState, update: Update, updates_per_snapshot: int, now_ms: int) -> Outcome:
    after = apply(state, update)
    assert after is not None, "an update deletes nothing"
    if len(after.batches) > BATCHES_MAX:
        return _INVALID
    if state.update_count < updates_per_snapshot:
        return Outcome(ErrorCode.NONE, update, after)
    snapshot = after._replace(
        snapshot_epoch=state.snapshot_epoch + 1, create_ms=now_ms, write_ms=now_ms, update_count=0
    )
    return Outcome(ErrorCode.NONE, snapshot, snapshot)
