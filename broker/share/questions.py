"""The five requests about share partitions' state, as questions about one key each: how many of
them become one request, and which answer belongs to which.

A request has one group, and its answer nothing of the question but the partition. So questions of
one request are of one kind, of one group, and of different keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from broker.share.ports import ShareState, StateBatch
from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import share_state as wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from uuid import UUID

    from broker.share.ports import ShareKey
    from broker.share.state.share_state_core import Write
    from wire.kafka.message import Message

    Reply = Callable[[ShareState], None]


class StateRequests(Protocol):
    """What a coordinator in this process takes."""

    def initialize(
        self, key: ShareKey, state_epoch: int, start_offset: int, reply: Reply, /
    ) -> None:
        """`reply` exactly once, as of all of them."""

    def read(self, key: ShareKey, leader_epoch: int, reply: Reply, /) -> None: ...
    def read_summary(self, key: ShareKey, reply: Reply, /) -> None: ...
    def delete(self, key: ShareKey, reply: Reply, /) -> None: ...
    def write(self, key: ShareKey, request: Write, reply: Reply, /) -> Iterator[int]:
        """Yields what each step cost, in units of about a microsecond."""


@dataclass(frozen=True, slots=True)
class Initialize:
    key: ShareKey
    state_epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class Read:
    key: ShareKey
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Written:
    key: ShareKey
    write: Write


@dataclass(frozen=True, slots=True)
class Delete:
    key: ShareKey


@dataclass(frozen=True, slots=True)
class ReadSummary:
    key: ShareKey


Question = Initialize | Read | Written | Delete | ReadSummary

#: Of each kind the newest version.
VERSIONS: dict[type[Question], int] = {
    Initialize: 0,
    Read: 0,
    Written: 1,
    Delete: 0,
    ReadSummary: 1,
}
#: Units of one question that is asked in this process.
_PLAIN_UNITS = 40


def ask_here(coordinator: StateRequests, question: Question, reply: Reply) -> Iterator[int]:
    """A plain call; yields what it costs, in units of about a microsecond."""
    match question:
        case Initialize(key, state_epoch, start_offset):
            coordinator.initialize(key, state_epoch, start_offset, reply)
        case Read(key, leader_epoch):
            coordinator.read(key, leader_epoch, reply)
        case Written(key, write):
            yield from coordinator.write(key, write, reply)
        case Delete(key):
            coordinator.delete(key, reply)
        case ReadSummary(key):
            coordinator.read_summary(key, reply)
    yield _PLAIN_UNITS


Q = TypeVar("Q")


def _by_topic(questions: Iterable[Q], key: Callable[[Q], ShareKey]) -> dict[UUID, list[Q]]:
    topics: dict[UUID, list[Q]] = {}
    for each in questions:
        topics.setdefault(key(each).topic_id, []).append(each)
    return topics


def request_of(group_id: str, questions: list[Question]) -> Message:
    """One request of questions of one kind and group, and of different keys."""
    first = questions[0]
    assert all(type(each) is type(first) for each in questions), "of one kind"
    topics = _by_topic(questions, lambda each: each.key).items()
    if isinstance(first, Initialize):
        return wire.InitializeShareGroupStateRequest(
            group_id,
            [
                wire.InitializeStateData(
                    topic_id,
                    [
                        wire.InitializeShareGroupStateRequestPartitionData(
                            each.key.partition, each.state_epoch, each.start_offset
                        )
                        for each in some
                        if isinstance(each, Initialize)
                    ],
                )
                for topic_id, some in topics
            ],
        )
    if isinstance(first, Written):
        return wire.WriteShareGroupStateRequest(
            group_id,
            [
                wire.WriteStateData(
                    topic_id,
                    [_write_data(each) for each in some if isinstance(each, Written)],
                )
                for topic_id, some in topics
            ],
        )
    return _request_of_a_look(group_id, first, topics)


def _request_of_a_look(
    group_id: str, first: Question, topics: Iterable[tuple[UUID, list[Question]]]
) -> Message:
    """Or of a deletion: what says little of each partition."""
    if isinstance(first, Read):
        return wire.ReadShareGroupStateRequest(
            group_id,
            [
                wire.ReadStateData(
                    topic_id,
                    [
                        wire.ReadShareGroupStateRequestPartitionData(
                            each.key.partition, each.leader_epoch
                        )
                        for each in some
                        if isinstance(each, Read)
                    ],
                )
                for topic_id, some in topics
            ],
        )
    if isinstance(first, Delete):
        return wire.DeleteShareGroupStateRequest(
            group_id,
            [
                wire.DeleteStateData(
                    topic_id,
                    [
                        wire.DeleteShareGroupStateRequestPartitionData(each.key.partition)
                        for each in some
                    ],
                )
                for topic_id, some in topics
            ],
        )
    return wire.ReadShareGroupStateSummaryRequest(
        group_id,
        [
            wire.ReadStateSummaryData(
                topic_id,
                [
                    # Nobody is fenced by a look.
                    wire.ReadShareGroupStateSummaryRequestPartitionData(each.key.partition, -1)
                    for each in some
                ],
            )
            for topic_id, some in topics
        ],
    )


def _write_data(question: Written) -> wire.WriteShareGroupStateRequestPartitionData:
    write = question.write
    return wire.WriteShareGroupStateRequestPartitionData(
        question.key.partition,
        write.state_epoch,
        write.leader_epoch,
        write.start_offset,
        write.delivery_complete_count,
        [wire.StateBatch(*batch) for batch in write.batches],
    )


class Answer(NamedTuple):
    """Of one partition."""

    topic_id: UUID
    partition: int
    state: ShareState


def answers_of(message: Message | None) -> Iterator[Answer]:
    """Every partition of a response of whatever kind, in order."""
    if isinstance(message, wire.ReadShareGroupStateResponse):
        for read in message.results:
            for one in read.partitions:
                batches = tuple(
                    StateBatch(
                        each.first_offset,
                        each.last_offset,
                        each.delivery_state,
                        each.delivery_count,
                    )
                    for each in one.state_batches
                )
                state = ShareState(
                    _error(one.error_code), one.state_epoch, one.start_offset, batches=batches
                )
                yield Answer(read.topic_id, one.partition, state)
    elif isinstance(message, wire.ReadShareGroupStateSummaryResponse):
        for summary in message.results:
            for each in summary.partitions:
                state = ShareState(
                    _error(each.error_code),
                    each.state_epoch,
                    each.start_offset,
                    each.delivery_complete_count,
                    leader_epoch=each.leader_epoch,
                )
                yield Answer(summary.topic_id, each.partition, state)
    elif isinstance(
        message,
        wire.InitializeShareGroupStateResponse
        | wire.WriteShareGroupStateResponse
        | wire.DeleteShareGroupStateResponse,
    ):
        for result in message.results:
            for done in result.partitions:
                state = ShareState(_error(done.error_code))
                yield Answer(result.topic_id, done.partition, state)


def _error(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
