"""Guards of records, of the offsets of partitions, and of topics."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from broker.authorization import AclOperation, ResourceType
from broker.guards.tools import (
    CODES,
    NO_ANSWER,
    QUESTION_UNITS,
    Each,
    Refused,
    may_by_id,
    split,
    told_beside,
    told_each,
)
from wire.kafka.errors import ErrorCode
from wire.kafka.message import ZERO_UUID
from wire.kafka.messages.list_offsets import (
    EpochEndOffset,
    ListOffsetsPartitionResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderTopicResult,
)
from wire.kafka.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from wire.kafka.messages.topics import (
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteRecordsPartitionResult,
    DeleteRecordsTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.api import Request, Steps
    from broker.guards.tools import Finish
    from broker.rights import Rights

TOPIC = ResourceType.TOPIC
_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_PRODUCE_IDS_FROM = 13
_DELETE_IDS_FROM = 6
_WORDS = "Topic authorization failed."

# -- Produce --------------------------------------------------------------------------------------

_produced = Refused(
    TopicProduceResponse,
    PartitionProduceResponse,
    same=("name", "topic_id"),
    parts="partition_responses",
    index="index",
    more={"base_offset": -1},
    numbers=lambda topic: (each.index for each in topic.partition_data),
)


def produce(request: Request, rights: Rights) -> Steps[Any]:
    """Known deviation: Kafka asks for the transactional id only if a batch is transactional."""
    body: ProduceRequest = request.body
    transactional_id = body.transactional_id
    if transactional_id is not None:
        yield QUESTION_UNITS
        kind = ResourceType.TRANSACTIONAL_ID
        if not rights.allows(AclOperation.WRITE, kind, transactional_id):
            return (yield from _nothing_produced(body, CODES[kind], body.topic_data))
    if request.version >= _PRODUCE_IDS_FROM:
        refused = yield from split(
            body.topic_data,
            lambda topic: may_by_id(rights, AclOperation.WRITE, topic.topic_id),
            "topic_id",
        )
    else:
        refused = yield from split(
            body.topic_data,
            lambda topic: rights.allows(AclOperation.WRITE, TOPIC, topic.name),
            "name",
        )
    if not refused:
        return None
    if not body.topic_data:
        return (yield from _nothing_produced(body, _REFUSED, refused))
    if body.acks == 0:
        return _closing(request)
    answer = yield from _refusals(_REFUSED, refused)
    return told_beside("responses", answer.responses)


def _nothing_produced(
    body: ProduceRequest, code: ErrorCode, refused: list[TopicProduceData]
) -> Steps[Any]:
    """With acks=0 nobody reads an answer: the connection is closed, for the producer to notice."""
    return NO_ANSWER if body.acks == 0 else (yield from _refusals(code, refused))


def _closing(request: Request) -> Finish:
    """What is allowed was written; for the rest the connection is closed."""

    def finish(response: ProduceResponse) -> Steps[None]:  # as every finish
        yield 1
        request.connection.close()

    return finish


def _refusals(code: ErrorCode, refused: list[TopicProduceData]) -> Steps[ProduceResponse]:
    return ProduceResponse(responses=(yield from told_each(refused, code, _produced)))


# -- offsets --------------------------------------------------------------------------------------

_listed = Each(
    TOPIC,
    AclOperation.DESCRIBE,
    "topics",
    "name",
    "topics",
    Refused(ListOffsetsTopicResponse, ListOffsetsPartitionResponse),
)
_ended = Each(
    TOPIC,
    AclOperation.DESCRIBE,
    "topics",
    "topic",
    "topics",
    Refused(
        OffsetForLeaderTopicResult,
        EpochEndOffset,
        same=("topic",),
        index="partition",
        numbers=lambda topic: (each.partition for each in topic.partitions),
    ),
)


def unless_a_broker(each: Each) -> Callable[[Request, Rights], Steps[Any]]:
    """Brokers ask it of one another: CLUSTER_ACTION is as good as what clients need."""

    def guard(request: Request, rights: Rights) -> Steps[Any]:
        yield QUESTION_UNITS
        if rights.allows_cluster(AclOperation.CLUSTER_ACTION, is_told=False):
            return None
        return (yield from each(request, rights))

    return guard


list_offsets = unless_a_broker(_listed)
offsets_for_leader_epochs = unless_a_broker(_ended)

delete_records = Each(
    TOPIC,
    AclOperation.DELETE,
    "topics",
    "name",
    "topics",
    Refused(DeleteRecordsTopicResult, DeleteRecordsPartitionResult, more={"low_watermark": -1}),
)

# -- topics ---------------------------------------------------------------------------------------

create_partitions = Each(
    TOPIC,
    AclOperation.ALTER,
    "topics",
    "name",
    "results",
    lambda topic, code: CreatePartitionsTopicResult(topic.name, int(code), _WORDS),
)


def create_topics(request: Request, rights: Rights) -> Steps[Any]:
    """A name that comes twice is for the handler to refuse, which does not look for it. Without
    DESCRIBE_CONFIGS the settings of what was made are not told."""
    body: CreateTopicsRequest = request.body
    often: Counter[str] = Counter()
    for topic in body.topics:
        yield 1
        often[topic.name] += 1
    refused: list[CreatableTopic] = []
    if not rights.allows_cluster(AclOperation.CREATE, is_told=False):
        refused = yield from split(
            body.topics,
            lambda topic: (
                often[topic.name] > 1 or rights.allows(AclOperation.CREATE, TOPIC, topic.name)
            ),
            "name",
        )
    answers = []
    for topic in refused:
        yield 1
        answers.append(
            CreatableTopicResult(
                name=topic.name,
                error_code=int(_REFUSED),
                error_message="Authorization failed.",
                configs=[],
            )
        )
    if refused and not body.topics:
        return CreateTopicsResponse(topics=answers)
    return _without_configs(rights, answers)


def _without_configs(rights: Rights, refused: list[CreatableTopicResult]) -> Finish:
    def finish(response: CreateTopicsResponse) -> Steps[None]:
        for topic in response.topics:
            yield QUESTION_UNITS
            if topic.error_code or rights.allows(
                AclOperation.DESCRIBE_CONFIGS, TOPIC, topic.name, is_told=False
            ):
                continue
            topic.topic_config_error_code = int(_REFUSED)
            topic.num_partitions = topic.replication_factor = -1
            topic.configs = []
        response.topics.extend(refused)

    return finish


def delete_topics(request: Request, rights: Rights) -> Steps[Any]:
    """Who may not describe a topic learns of neither its name nor its id."""
    body: DeleteTopicsRequest = request.body
    yield QUESTION_UNITS
    if rights.allows_cluster(AclOperation.DELETE, is_told=False):
        return None
    by_state = request.version >= _DELETE_IDS_FROM
    answers: list[DeletableTopicResult] = []

    def is_allowed(asked: DeleteTopicState | str) -> bool:
        answer = _not_deletable(asked, rights)
        if answer is not None:
            answers.append(answer)
        return answer is None

    items: list[Any] = body.topics if by_state else body.topic_names
    yield from split(items, is_allowed, "")
    if not answers:
        return None
    if not items:
        return DeleteTopicsResponse(responses=answers)
    return told_beside("responses", answers)


def _not_deletable(asked: DeleteTopicState | str, rights: Rights) -> DeletableTopicResult | None:
    name, topic_id = (asked, ZERO_UUID) if isinstance(asked, str) else (asked.name, asked.topic_id)
    if name is not None and topic_id != ZERO_UUID:
        return None  # malformed, and refused before anything is looked up
    shown = name
    if name is None:
        name = rights.topic_name(topic_id)
        if name is None:
            return None
    describes = rights.allows(AclOperation.DESCRIBE, TOPIC, name)
    if describes and rights.allows(AclOperation.DELETE, TOPIC, name):
        return None
    if shown is None and describes:
        shown = name
    return DeletableTopicResult(
        name=shown, topic_id=topic_id, error_code=int(_REFUSED), error_message=_WORDS
    )
