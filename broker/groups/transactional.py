"""What transactions do with a group's offsets: TxnOffsetCommit, and the markers that end them.

A transaction may write to a partition that its coordinator knows to be part of it: that is asked
first (TxnOffsetCommit up to version 4), or the partition is added (from 5 on), unless the
transaction has written there already. Whether the member may commit is looked at when the answer is
there, since the group may have gone on meanwhile (KAFKA-15784); whether the producer's epoch is
still the newest, and the transaction open, by the log when it numbers the batch.

Markers of `__consumer_offsets` come this way, too, so that who hears that one is written finds the
offsets in the tables (KAFKA-17507).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from broker.coordinator.partition import PartitionState
from broker.coordinator.units import Producer
from broker.groups.records import StoredOffset, offset_record
from broker.log.transactions.origin import IMPLICIT_ADD_VERSION, Origin
from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.coordinator.coordinator import Coordinator
    from broker.coordinator.units import Marker
    from broker.groups.offsets.offsets_core import CommittedOffset
    from broker.groups.shard import GroupShard

#: The first version of TxnOffsetCommit that adds the group's partition to the transaction.
IMPLICIT_ADD_SINCE = 5
#: The first one whose clients know TRANSACTION_ABORTABLE; and that bear being told that the
#: coordinator loads (KAFKA-7296).
ABORTABLE_SINCE = 4
LOADING_SINCE = 2

#: What clients are told of what the partition, or the transaction's coordinator, answered; others
#: pass as they are. Kafka's CoordinatorOperationExceptionHelper and AddPartitionsToTxnManager.
TOLD = {
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    # That the producer is fenced, which is fatal, is for its coordinator to say.
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
#: What the sender of a marker is told instead: to look for the leader, and try again.
_NOT_HERE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


@dataclass(slots=True, frozen=True)
class TxnCommit:
    """Who commits: a producer, for a member of a group, or for a group without one."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str
    member_id: str
    instance_id: str | None
    generation_id: int  # -1: none
    adds: bool  # the partition to the transaction

    @property
    def origin(self) -> Origin:
        return Origin(self.transactional_id, IMPLICIT_ADD_VERSION if self.adds else 0)


class GroupTransactions:
    """Of all groups of a broker; keeps nothing. Plain calls on the loop's thread; `reply` is called
    exactly once, possibly before a call returns."""

    def __init__(self, coordinator: Coordinator[GroupShard]) -> None:
        self._coordinator = coordinator

    def commit(
        self,
        who: TxnCommit,
        offsets: Sequence[tuple[str, int, CommittedOffset]],
        reply: Callable[[ErrorCode], None],
    ) -> None:
        """TxnOffsetCommit: `reply(error)`, NONE once all offsets are durable, to count when the
        transaction is committed. Errors are what was answered, for `told`."""
        if not who.group_id:
            reply(ErrorCode.INVALID_GROUP_ID)
            return
        shard, error = self._coordinator.find(who.group_id)
        if shard is None:
            reply(error)
        elif who.producer_id < 0 or who.producer_epoch < 0:
            reply(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        else:
            origin = who.origin
            answered = partial(_answered, shard, who, origin, offsets, reply)
            partition = shard.partition
            partition.ask_transaction(origin, who.producer_id, who.producer_epoch, answered)

    def end(self, index: int, marker: Marker, reply: Callable[[ErrorCode], None]) -> None:
        """A marker for partition `index` of `__consumer_offsets`: `reply(NONE)` once it is durable
        and in the tables. NOT_LEADER_OR_FOLLOWER: whoever coordinates these groups is somebody
        else, or not ready."""

        def told(error: ErrorCode) -> None:
            reply(ErrorCode.NOT_LEADER_OR_FOLLOWER if error in _NOT_HERE else error)

        shard, error = self._coordinator.find_partition(index)
        if shard is None:
            told(error)
        else:
            shard.write_marker(marker, told)


def _answered(
    shard: GroupShard,
    who: TxnCommit,
    origin: Origin,
    offsets: Sequence[tuple[str, int, CommittedOffset]],
    reply: Callable[[ErrorCode], None],
    error: ErrorCode,
) -> None:
    """What the transaction's coordinator says of the partition is here."""
    if error:
        reply(error)
        return
    if shard.partition.state is not PartitionState.ACTIVE:
        shard.partition.give_back(origin)  # its log may be here still
        reply(ErrorCode.NOT_COORDINATOR)
        return
    group_id = who.group_id
    entry = shard.groups.get(group_id)
    if entry is None and who.generation_id >= 0:
        error = ErrorCode.ILLEGAL_GENERATION
    elif entry is not None:
        error = entry.commit_error(
            who.member_id,
            who.instance_id,
            who.generation_id,
            [(each.topic_id, number) for _, number, each in offsets],
            in_transaction=True,
        )
    if error:
        shard.partition.give_back(origin)
        reply(error)
        return
    if entry is None:
        entry = shard.create(group_id)
    shard.commit(
        entry,
        [offset_record(group_id, *each) for each in offsets],
        [StoredOffset(group_id, *each) for each in offsets],
        reply,
        Producer(who.producer_id, who.producer_epoch, origin),
    )


def told(error: ErrorCode, version: int) -> ErrorCode:
    """The error as a client of this version of TxnOffsetCommit knows it."""
    error = TOLD.get(error, error)
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < LOADING_SINCE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error
