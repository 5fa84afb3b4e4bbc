"""What ShareFetch and ShareAcknowledge have in common: acknowledgements, and errors that name a
leader.

The acknowledgements of a request are begun partition by partition and answered together, when the
last of them is stored or refused. Those of one partition are done all or none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from broker.api import Reply, Steps
from broker.share.partition.acknowledgements import checked
from broker.share.sessions.share_session_core import Partition
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.share_groups import LeaderIdAndEpoch, NodeEndpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.api import Request
    from broker.cluster.catalog import TopicCatalog
    from broker.cluster.view import ClusterView
    from broker.share.partition.share_partitions import SharePartitions
    from broker.share.sessions.share_session_core import ShareSession, ShareSessions
    from runtime.turn import Turn
    from wire.kafka.messages.share_groups import (
        AcknowledgePartition,
        AcknowledgeTopic,
        FetchPartition,
        FetchTopic,
        ForgottenTopic,
        ShareAcknowledgeRequest,
        ShareFetchRequest,
    )

#: As in Kafka; a group's name is as long as its records may be.
MEMBER_ID_CHARS_MAX = 36
#: From this version on records can be renewed (KIP-1222).
RENEW_VERSION = 2
#: What a partition costs whose acknowledgements are begun.
PARTITION_UNITS = 10
#: What a partition of an answer costs.
ANSWER_UNITS = 5
T = TypeVar("T")
_NAMES_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def check_names(body: ShareFetchRequest | ShareAcknowledgeRequest) -> tuple[str, str]:
    """Group and member. KafkaError INVALID_REQUEST."""
    group, member = body.group_id, body.member_id
    if not group or not member or len(member) > MEMBER_ID_CHARS_MAX:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    return group, member


def count_of(topics: Sequence[FetchTopic | AcknowledgeTopic | ForgottenTopic]) -> int:
    """Of partitions."""
    return sum(len(topic.partitions) for topic in topics)


def at_once(turn: Turn, steps: Steps[T]) -> T:
    """All steps, charged to the turn: there are few."""
    try:
        while True:
            turn.spent_units += next(steps)
    except StopIteration as end:
        result: T = end.value
        return result


class _Answer(Protocol):
    """The response's part for a partition."""

    current_leader: LeaderIdAndEpoch


class Leaders:
    """Where clients are sent that ask the wrong broker. Told as far as this broker knows."""

    def __init__(self, catalog: TopicCatalog, view: ClusterView) -> None:
        self._catalog = catalog
        self._view = view

    def tell(
        self,
        answer: _Answer,
        partition: Partition,
        errors: Iterable[ErrorCode],
        listener: str,
        endpoints: dict[int, NodeEndpoint],
    ) -> None:
        """-1, -1 unless the error asks for it and another leader is known."""
        answer.current_leader = LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1)
        if not any(error in _NAMES_LEADER for error in errors):
            return
        topic = self._catalog.get_by_id(partition.topic_id)
        if topic is None or not 0 <= partition.number < topic.partition_count:
            return
        leader = self._view.leader(topic.name, partition.number, listener)
        if leader is None or leader.node_id == self._view.node_id:
            return
        epoch = self._view.partition(topic.name, partition.number).leader_epoch
        answer.current_leader = LeaderIdAndEpoch(leader_id=leader.node_id, leader_epoch=epoch)
        endpoints[leader.node_id] = NodeEndpoint(
            node_id=leader.node_id, host=leader.host, port=leader.port, rack=leader.rack
        )


class Acknowledging(Reply, ABC):
    """A reply that leaves when all acknowledgements of its request are answered, and when
    `is_ready`, which whoever extends it may look at."""

    __slots__ = ("_is_closing", "_outstanding", "acknowledged", "partitions", "session", "sessions")

    def __init__(
        self, session: ShareSession, sessions: ShareSessions, partitions: SharePartitions
    ) -> None:
        super().__init__()
        self.session = session
        self.sessions = sessions
        self.partitions = partitions
        #: Of each partition that was acknowledged anything of.
        self.acknowledged: dict[Partition, ErrorCode] = {}
        #: And one until all were begun.
        self._outstanding = 1
        self._is_closing = False

    def begin(
        self, request: Request, topics: Iterable[FetchTopic | AcknowledgeTopic]
    ) -> Steps[None]:
        """What is acknowledged of each partition; without anything, nothing."""
        body: ShareFetchRequest | ShareAcknowledgeRequest = request.body
        may_renew = request.version >= RENEW_VERSION and body.is_renew_ack
        rights = request.rights
        for topic in topics:
            is_refused = rights is not None and not rights.reads_topic(topic.topic_id)
            for each in topic.partitions:
                if not each.acknowledgement_batches:
                    continue
                key = Partition(topic.topic_id, each.partition_index)
                if is_refused:
                    yield 1
                    self.acknowledged[key] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                else:
                    yield from self._begin(key, each, may_renew=may_renew)

    def _begin(
        self, key: Partition, each: FetchPartition | AcknowledgePartition, *, may_renew: bool
    ) -> Steps[None]:
        batches = each.acknowledgement_batches
        yield PARTITION_UNITS
        acknowledgements = yield from checked(batches, may_renew=may_renew)
        self.acknowledged.setdefault(key, ErrorCode.NONE)
        if acknowledgements is None:
            self.acknowledged[key] = ErrorCode.INVALID_REQUEST
            return
        try:
            share = self.partitions.known(self.session.group, *key)
        except KafkaError as error:
            self.acknowledged[key] = error.code
            return
        self._outstanding += 1
        done = partial(self._acknowledged, key)
        yield from share.acknowledge(self.session.member, acknowledgements, done)

    def _acknowledged(self, key: Partition, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            self.acknowledged[key] = error
        self._one_less()

    def all_begun(self, *, closes: bool) -> None:
        """`closes`: the session, once they are answered."""
        self._is_closing = closes
        self._one_less()

    def _one_less(self) -> None:
        self._outstanding -= 1
        if self._outstanding:
            return
        if self._is_closing and not self.session.is_closed:
            self.sessions.close(self.session)
            self.partitions.let_go(self.session, releases=True)
        self.is_stored()

    @property
    def all_stored(self) -> bool:
        return not self._outstanding

    @abstractmethod
    def is_stored(self) -> None:
        """All acknowledgements are answered; called once."""
