"""Values that go into and come out of a transactional id's state machine (txn_core).

Inputs are what a request says, that a record is stored, that a marker was answered, that time
passed. Outputs are effects, to be carried out by the shell in the order given:
- `Append`: queue this record for the id's partition; when it is acknowledged or has failed, call
  `txn_core.stored(txn, then, error, now_ms)`. Records of one id are acknowledged in their order;
- `Answer`: reply to the request that the token stands for; each token is answered exactly once.
  With `needs_barrier` not before something that was appended after the question is acknowledged: a
  coordinator that was deposed, and does not know it yet, answers from old memory otherwise;
- `SendMarkers`: write the markers, and call `txn_core.marked` with what the partitions answered;
- `ArmTimer`: call `txn_core.tick` at that time or later; one timer per id, the last call counts;
- `NeedProducerId`: nothing was changed; the same call again, with a fresh producer id;
- `Forget`: memory is ahead of the log, which refused a record: load the partition anew.
"""

from __future__ import annotations

from enum import IntEnum

from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode

#: (topic, partition number).
TopicPartition = tuple[str, int]
#: The same for all ids that have none: an empty set takes 200 bytes.
NO_PARTITIONS: frozenset[TopicPartition] = frozenset()

#: `transaction.version`: 1, a producer's epoch stays as it is over transactions; 2, every
#: transaction raises it (KIP-890). A request's version of the API tells which one its client uses.
TV1, TV2 = 1, 2

NO_PRODUCER_ID = -1
NO_EPOCH = -1
#: A producer never gets 32767: it is for the markers that end what epoch 32766 did.
EPOCH_EXHAUSTED = 32_766
EPOCH_MAX = 32_767


class TxnState(IntEnum):
    """By their bytes in `__transaction_state`. Kafka's 6 (Dead) and 7 (PrepareEpochFence) are
    never written, and are no states here: an id that is dead is not there, and who is fenced is
    fenced and aborted in one step."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


#: The names in DescribeTransactions and ListTransactions (Kafka's `TransactionState`).
STATE_NAMES = {
    TxnState.EMPTY: "Empty",
    TxnState.ONGOING: "Ongoing",
    TxnState.PREPARE_COMMIT: "PrepareCommit",
    TxnState.PREPARE_ABORT: "PrepareAbort",
    TxnState.COMPLETE_COMMIT: "CompleteCommit",
    TxnState.COMPLETE_ABORT: "CompleteAbort",
}
ENDING = frozenset({TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT})
AT_REST = frozenset({TxnState.EMPTY, TxnState.COMPLETE_COMMIT, TxnState.COMPLETE_ABORT})


@dataclass(slots=True, frozen=True)
class TxnSnapshot:
    """A transactional id as its record has it (Kafka's TransactionLogValue)."""

    transactional_id: str
    producer_id: int
    previous_producer_id: int
    next_producer_id: int
    epoch: int
    timeout_ms: int
    state: TxnState
    partitions: frozenset[TopicPartition]
    updated_ms: int
    started_ms: int
    version: int


# --- inputs


@dataclass(slots=True, frozen=True)
class InitInput:
    """InitProducerId. A producer that goes on names its id and epoch (KIP-360), others -1."""

    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH

    @property
    def is_named(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID


@dataclass(slots=True, frozen=True)
class AddInput:
    """AddPartitionsToTxn, AddOffsetsToTxn; or the question whether they are in (verify)."""

    producer_id: int
    epoch: int
    partitions: frozenset[TopicPartition]
    version: int = TV1


@dataclass(slots=True, frozen=True)
class EndInput:
    """EndTxn."""

    producer_id: int
    epoch: int
    is_commit: bool
    version: int


# --- effects


@dataclass(slots=True, frozen=True)
class TxnResult:
    """What a request is answered. Id and epoch are those to use from now on (InitProducerId,
    EndTxn 5); `missing` are the partitions that are not in the transaction (verify)."""

    error: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH
    missing: frozenset[TopicPartition] = frozenset()


@dataclass(slots=True, frozen=True)
class Answer:
    token: object
    result: TxnResult
    needs_barrier: bool


@dataclass(slots=True, frozen=True)
class Answered:
    """Then: this answer may leave."""

    token: object
    result: TxnResult


@dataclass(slots=True, frozen=True)
class Decided:
    """Then: the transaction's end is decided, the markers may leave. `reply`: who asked for it;
    None: nobody, the transaction took too long."""

    reply: Answered | None


@dataclass(slots=True, frozen=True)
class Completed:
    """Then: nothing. The id was free before: whatever comes next lies behind this in the log."""


Continuation = Answered | Decided | Completed


@dataclass(slots=True, frozen=True)
class Append:
    snapshot: TxnSnapshot
    then: Continuation


class MarkerPace(IntEnum):
    """How a round of markers comes to be sent."""

    FIRST = 0
    #: These were answered with what may be over soon, or not at all.
    AGAIN = 1
    #: These were refused as from somebody who was deposed: not before it is shown that we are not.
    DOUBTED = 2


@dataclass(slots=True, frozen=True)
class Markers:
    """The end of one transaction in some of its partitions. `round_id` goes back with the answers:
    those of another transaction, or another life of this one, do not count."""

    round_id: int
    producer_id: int
    epoch: int
    is_commit: bool
    version: int
    partitions: frozenset[TopicPartition]
    pace: MarkerPace = MarkerPace.FIRST


@dataclass(slots=True, frozen=True)
class SendMarkers:
    markers: Markers


@dataclass(slots=True, frozen=True)
class ArmTimer:
    at_ms: int


@dataclass(slots=True, frozen=True)
class NeedProducerId:
    pass


@dataclass(slots=True, frozen=True)
class Forget:
    pass


Effect = Append | Answer | SendMarkers | ArmTimer | NeedProducerId | Forget


@dataclass(slots=True)
class Transaction:
    """One transactional id, as the coordinator has it in memory: as its last record says, which
    may not be acknowledged yet, and a little more. Who changes it is transitions."""

    transactional_id: str
    producer_id: int = NO_PRODUCER_ID
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_EPOCH
    timeout_ms: int = 0
    state: TxnState = TxnState.EMPTY
    partitions: frozenset[TopicPartition] = NO_PARTITIONS
    updated_ms: int = 0
    started_ms: int = -1
    #: Of the client that last added to it or ended it; of the server, if that ended it.
    version: int = 0
    #: The epoch before the last one was given out; not stored: a retry of InitProducerId is not
    #: known any more after a load, and its producer is fenced.
    last_epoch: int = NO_EPOCH
    #: Records on their way.
    pending: int = 0
    #: While it ends: who has no marker yet, and which round of markers it is.
    unmarked: frozenset[TopicPartition] = NO_PARTITIONS
    round_id: int = 0

    @property
    def is_new(self) -> bool:
        """Nothing of it is in the log, or on its way there."""
        return self.epoch == NO_EPOCH and not self.pending

    @property
    def is_ending(self) -> bool:
        return self.state in ENDING

    @property
    def is_exhausted(self) -> bool:
        """The producer's next epoch needs another id."""
        return self.epoch >= EPOCH_EXHAUSTED

    def snapshot(self) -> TxnSnapshot:
        return TxnSnapshot(
            self.transactional_id,
            self.producer_id,
            self.previous_producer_id,
            self.next_producer_id,
            self.epoch,
            self.timeout_ms,
            self.state,
            self.partitions,
            self.updated_ms,
            self.started_ms,
            self.version,
        )

    @classmethod
    def restore(cls, stored: TxnSnapshot) -> Transaction:
        """As it was when its last record was written."""
        return cls(
            stored.transactional_id,
            stored.producer_id,
            stored.previous_producer_id,
            stored.next_producer_id,
            stored.epoch,
            stored.timeout_ms,
            stored.state,
            stored.partitions,
            stored.updated_ms,
            stored.started_ms,
            stored.version,
        )
