"""Answers to requests that are refused as a whole, where an API's answer has the error in each of
its items, as Kafka's `getErrorResponse` makes it. In steps: a request may have very many items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.guards.tools import Refused, at_the_top, told_each, words
from wire.dataclass import dataclass
from wire.kafka.codec import response_class
from wire.kafka.messages import (
    acls,
    cluster,
    configs,
    offsets,
    security,
    share_state,
    transactions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from broker.api import Request, Steps
    from wire.kafka.errors import ErrorCode


@dataclass(slots=True, frozen=True)
class EachRefused:
    """All of the request's list `items`, in the answer's list `answers`."""

    items: str
    answers: str
    refused: Callable[[Any, ErrorCode], Any]

    def __call__(self, request: Request, code: ErrorCode) -> Steps[Any]:
        items = getattr(request.body, self.items)
        answers = yield from told_each(items, code, self.refused)
        return response_class(request.key)(**{self.answers: answers})


def _plain(partitions: str = "partitions") -> Callable[[Any], Iterable[int]]:
    """Of an item whose partitions are numbers."""
    return lambda item: getattr(item, partitions)


commit_topic = Refused(
    offsets.OffsetCommitResponseTopic,
    offsets.OffsetCommitResponsePartition,
    same=("name", "topic_id"),
)
txn_commit_topic = Refused(
    transactions.TxnOffsetCommitResponseTopic, transactions.TxnOffsetCommitResponsePartition
)
txn_topic = Refused(
    transactions.AddPartitionsToTxnTopicResult,
    transactions.AddPartitionsToTxnPartitionResult,
    parts="results_by_partition",
    error="partition_error_code",
    numbers=_plain(),
)
all_commits = EachRefused("topics", "topics", commit_topic)
all_txn_commits = EachRefused("topics", "topics", txn_commit_topic)
all_txn_topics = EachRefused("v3_and_below_topics", "results_by_topic_v3_and_below", txn_topic)

_marker_topic = Refused(
    transactions.WritableTxnMarkerTopicResult,
    transactions.WritableTxnMarkerPartitionResult,
    numbers=_plain("partition_indexes"),
)


def all_markers(request: Request, code: ErrorCode) -> Steps[Any]:
    response = transactions.WriteTxnMarkersResponse()
    for marker in request.body.markers:
        answer = transactions.WritableTxnMarkerResult(marker.producer_id)
        response.markers.append(answer)
        answer.topics = yield from told_each(marker.topics, code, _marker_topic)
        yield 1
    return response


all_creations = EachRefused(
    "creations", "results", lambda item, code: acls.AclCreationResult(int(code), words(code))
)
all_filters = EachRefused(
    "filters",
    "filter_results",
    lambda item, code: acls.DeleteAclsFilterResult(int(code), words(code)),
)


def _quota_entry(item: Any, code: ErrorCode) -> Steps[Any]:  # noqa: ANN401  # of the request
    entity = []
    for each in item.entity:
        yield 1
        entity.append(configs.EntityData(each.entity_type, each.entity_name))
    return configs.AlterClientQuotasResponseEntryData(
        error_code=int(code), error_message=words(code), entity=entity
    )


all_quotas = EachRefused("entries", "entries", _quota_entry)


def no_quotas(request: Request, code: ErrorCode) -> Steps[Any]:  # as all of them
    yield 1
    return configs.DescribeClientQuotasResponse(
        error_code=int(code), error_message=words(code), entries=None
    )


def all_scram_users(request: Request, code: ErrorCode) -> Steps[Any]:
    """Each user once, as Kafka's `AlterUserScramCredentialsRequest`."""
    body, response = request.body, security.AlterUserScramCredentialsResponse()
    seen: set[str] = set()
    for items in (body.deletions, body.upsertions):
        for item in items:
            yield 1
            if item.name not in seen:
                seen.add(item.name)
                response.results.append(
                    security.AlterUserScramCredentialsResult(item.name, int(code), words(code))
                )
    return response


_moved_topic = Refused(
    cluster.AlterReplicaLogDirTopicResult,
    cluster.AlterReplicaLogDirPartitionResult,
    same=(),
    numbers=_plain(),
)


def all_moves(request: Request, code: ErrorCode) -> Steps[Any]:
    response = cluster.AlterReplicaLogDirsResponse()
    for directory in request.body.dirs:
        for topic in directory.topics:
            answer = yield from _moved_topic(topic, code)
            answer.topic_name = topic.name
            response.results.append(answer)
        yield 1
    return response


def log_dirs(request: Request, code: ErrorCode) -> Steps[Any]:
    """Before version 3 without a word, as Kafka: nothing is there to be seen."""
    if request.version < 3:
        return cluster.DescribeLogDirsResponse()
    return (yield from at_the_top(request, code))


def _state(topic: type[Any], part: type[Any]) -> EachRefused:
    """Of what brokers tell each other of share partitions."""

    refused = Refused(
        topic,
        part,
        same=("topic_id",),
        index="partition",
        numbers=lambda item: (each.partition for each in item.partitions),
    )
    return EachRefused("topics", "results", refused)


initialized_states = _state(
    share_state.InitializeStateResult,
    share_state.InitializeShareGroupStateResponsePartitionResult,
)
read_states = _state(
    share_state.ReadStateResult, share_state.ReadShareGroupStateResponsePartitionResult
)
written_states = _state(
    share_state.WriteStateResult, share_state.WriteShareGroupStateResponsePartitionResult
)
deleted_states = _state(
    share_state.DeleteStateResult, share_state.DeleteShareGroupStateResponsePartitionResult
)
summarized_states = _state(
    share_state.ReadStateSummaryResult,
    share_state.ReadShareGroupStateSummaryResponsePartitionResult,
)
