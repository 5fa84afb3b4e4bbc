"""The cluster and its partitions: DescribeCluster, DescribeTopicPartitions, log directories.

| key | versions | what |
|--|--|--|
| 34 AlterReplicaLogDirs | 1-2 | LOG_DIR_NOT_FOUND: there is one directory (KIP-113) |
| 35 DescribeLogDirs | 1-5 | one directory, with each partition's bytes in its ledgers |
| 60 DescribeCluster | 0-2 | KIP-700; controller endpoints are refused (KIP-919) |
| 75 DescribeTopicPartitions | 0 | pages in order of names, with a cursor (KIP-966) |

Behaviour was compared with Kafka 4.3.1. Of all topics DescribeTopicPartitions shows those that the
client may describe; without an authorizer everybody may do everything. Known deviations: the size
of a partition is that of its ledgers' payloads wherever they are, on whichever bookies; an invalid
topic name is INVALID_TOPIC_EXCEPTION (Kafka: UNKNOWN_SERVER_ERROR).
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Protocol

from broker.api import Api, Request, Steps
from broker.authorization import AclOperation, ResourceType
from broker.cluster.catalog import Topic, check_name
from broker.rights import operations_of_cluster, operations_of_topic
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.cluster import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from wire.kafka.messages.metadata import (
    Cursor,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from broker.cluster.catalog import TopicCatalog
    from broker.cluster.registry import ConfigRegistry
    from broker.cluster.view import ClusterView
    from broker.rights import Rights

_BROKERS, _CONTROLLERS = 1, 2

#: What a topic costs, and each of its partitions, in units of `Steps`.
TOPIC_UNITS = 5
PARTITION_UNITS = 10
#: Names that are sorted in one step.
SORTED_AT_ONCE = 1000


class Log(Protocol):
    """The part of broker/log's PartitionLog that is described."""

    leader_epoch: int

    @property
    def size_bytes(self) -> int: ...


class Logs(Protocol):
    """The part of broker/log's LogManager that is asked."""

    def get(self, topic: str, partition: int) -> Log:
        """KafkaError if this broker does not hold it."""


class ClusterHandler:
    def __init__(
        self,
        catalog: TopicCatalog,
        registry: ConfigRegistry,
        cluster: ClusterView,
        logs: Logs,
        *,
        data_directory: str,
        disk_usage: Callable[[], tuple[int, int]],
    ) -> None:
        """`data_directory` is what DescribeLogDirs calls the log directory; `disk_usage()` gives
        the total and the free bytes of its file system."""
        self._catalog = catalog
        self._registry = registry
        self._cluster = cluster
        self._logs = logs
        self._data_directory = data_directory
        self._disk_usage = disk_usage

    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, self.alter_replica_log_dirs),
            Api(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, self.describe_log_dirs),
            Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, self.describe_cluster),
            Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, self.describe_topic_partitions),
        ]

    # -- DescribeCluster --------------------------------------------------------------------------

    def describe_cluster(self, request: Request) -> DescribeClusterResponse:
        body: DescribeClusterRequest = request.body
        if body.endpoint_type != _BROKERS:
            code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            if body.endpoint_type == _CONTROLLERS:
                code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
            return DescribeClusterResponse(
                error_code=int(code),
                error_message=f"brokers are here, and no endpoints of type {body.endpoint_type}",
            )
        response = DescribeClusterResponse(
            cluster_id=self._cluster.cluster_id,
            controller_id=self._cluster.controller_id,
            brokers=[
                DescribeClusterBroker(
                    broker_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack
                )
                for broker in self._cluster.brokers(request.connection.listener)
            ],
        )
        if body.include_cluster_authorized_operations:
            response.cluster_authorized_operations = operations_of_cluster(request.rights)
        return response

    # -- DescribeTopicPartitions ------------------------------------------------------------------

    def describe_topic_partitions(self, request: Request) -> Steps[DescribeTopicPartitionsResponse]:
        body: DescribeTopicPartitionsRequest = request.body
        response = DescribeTopicPartitionsResponse()
        asked = set()
        for asked_topic in body.topics:
            yield 1
            asked.add(asked_topic.name)
        cursor = body.cursor
        if cursor is not None and (
            cursor.partition_index < 0 or (asked and cursor.topic_name not in asked)
        ):
            for topic in body.topics:
                yield 1
                response.topics.append(
                    DescribeTopicPartitionsResponseTopic(
                        error_code=int(ErrorCode.INVALID_REQUEST), name=topic.name
                    )
                )
            return response
        rights = request.rights
        names: Iterable[str] = asked or (topic.name for topic in self._catalog.all())
        if rights is not None and not asked:
            # Not even the cursor names another.
            names = yield from _describable(rights, names)
        elif rights is not None:
            names = yield from _allowed(rights, asked, response.topics)
        first_name = "" if cursor is None else cursor.topic_name
        is_first_shown = rights is None or rights.describes_topic(first_name)
        limit = self._registry.broker.max_request_partition_size_limit
        room = max(1, min(limit, body.response_partition_limit))
        for name in (yield from _in_order(names, first_name, is_shown=is_first_shown)):
            first = cursor.partition_index if cursor and cursor.topic_name == name else 0
            if room == 0:
                response.next_cursor = Cursor(topic_name=name, partition_index=first)
                break
            yield TOPIC_UNITS
            described, next_index = yield from self._describe_topic(name, first, room)
            described.topic_authorized_operations = operations_of_topic(rights, name)
            response.topics.append(described)
            room -= len(described.partitions)
            if next_index is not None:
                response.next_cursor = Cursor(topic_name=name, partition_index=next_index)
                break
        return response

    def _describe_topic(
        self, name: str, first: int, room: int
    ) -> Steps[tuple[DescribeTopicPartitionsResponseTopic, int | None]]:
        """The topic with up to `room` partitions from `first`, and where the next page begins."""
        described = DescribeTopicPartitionsResponseTopic(name=name)
        try:
            check_name(name)
        except KafkaError as error:
            described.error_code = int(error.code)
            return described, None
        topic = self._catalog.get(name)
        if topic is None:
            described.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return described, None
        described.topic_id = topic.id
        described.is_internal = topic.internal
        end = min(first + room, topic.partition_count)
        for number in range(first, end):
            yield PARTITION_UNITS
            described.partitions.append(self._describe_partition(topic, number))
        return described, end if end < topic.partition_count else None

    def _describe_partition(
        self, topic: Topic, number: int
    ) -> DescribeTopicPartitionsResponsePartition:
        state = self._cluster.partition(topic.name, number)
        log = self._log(topic.name, number)
        error = ErrorCode.NONE if state.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE
        return DescribeTopicPartitionsResponsePartition(
            error_code=int(error),
            partition_index=number,
            leader_id=state.leader,
            leader_epoch=max(state.leader_epoch, -1 if log is None else log.leader_epoch),
            replica_nodes=list(state.replicas),
            isr_nodes=list(state.isr),
            eligible_leader_replicas=[],
            last_known_elr=[],
            offline_replicas=[
                node for node in state.replicas if node not in state.isr or node in state.offline
            ],
        )

    def _log(self, topic: str, partition: int) -> Log | None:
        try:
            return self._logs.get(topic, partition)
        except KafkaError:
            return None

    # -- AlterReplicaLogDirs ----------------------------------------------------------------------

    def alter_replica_log_dirs(self, request: Request) -> Steps[AlterReplicaLogDirsResponse]:
        """A partition that is to move where it is said to be is there already."""
        body: AlterReplicaLogDirsRequest = request.body
        answered: dict[str, AlterReplicaLogDirTopicResult] = {}
        for directory in body.dirs:
            yield 1
            for topic in directory.topics:
                yield TOPIC_UNITS
                result = answered.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic.name))
                for number in topic.partitions:
                    yield PARTITION_UNITS
                    code = self._move_error(directory.path, topic.name, number)
                    result.partitions.append(AlterReplicaLogDirPartitionResult(number, int(code)))
        return AlterReplicaLogDirsResponse(results=list(answered.values()))

    def _move_error(self, path: str, topic: str, partition: int) -> ErrorCode:
        if path != self._data_directory:
            return ErrorCode.LOG_DIR_NOT_FOUND
        try:
            self._logs.get(topic, partition)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    # -- DescribeLogDirs --------------------------------------------------------------------------

    def describe_log_dirs(self, request: Request) -> Steps[DescribeLogDirsResponse]:
        body: DescribeLogDirsRequest = request.body
        if body.topics is None:
            asked: Iterable[tuple[str, Iterable[int]]] = (
                (topic.name, range(topic.partition_count)) for topic in self._catalog.all()
            )
        else:
            asked = ((topic.topic, topic.partitions) for topic in body.topics)
        total, free = self._disk_usage()
        result = DescribeLogDirsResult(
            log_dir=self._data_directory, total_bytes=total, usable_bytes=free
        )
        for name, numbers in asked:
            yield TOPIC_UNITS
            partitions = []
            for number in numbers:
                yield PARTITION_UNITS
                log = self._log(name, number)
                if log is not None:
                    partitions.append(
                        DescribeLogDirsPartition(
                            partition_index=number, partition_size=log.size_bytes
                        )
                    )
            if partitions:
                result.topics.append(DescribeLogDirsTopic(name=name, partitions=partitions))
        return DescribeLogDirsResponse(results=[result])


def _in_order(names: Iterable[str], first: str, *, is_shown: bool) -> Steps[Iterator[str]]:
    """The names from `first` on, in order; `first` is one of them unless it is empty: a topic that
    was deleted between two pages is answered as unknown, not left out. Unless `is_shown` the client
    may not describe it, whatever its cursor names."""
    runs: list[list[str]] = [[first] if first and is_shown else []]
    for name in names:
        yield 1
        if name > first or not first:
            if len(runs[-1]) == SORTED_AT_ONCE:
                runs.append([])
            runs[-1].append(name)
    for run in runs:
        yield SORTED_AT_ONCE
        run.sort()
    return heapq.merge(*runs)


def _describable(rights: Rights, names: Iterable[str]) -> Steps[list[str]]:
    kept = []
    for name in names:
        yield TOPIC_UNITS
        if rights.describes_topic(name):
            kept.append(name)
    return kept


def _allowed(
    rights: Rights, names: Iterable[str], refused: list[DescribeTopicPartitionsResponseTopic]
) -> Steps[list[str]]:
    """Of names that the client knows; the others are told so."""
    kept = []
    for name in names:
        yield TOPIC_UNITS
        if rights.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, name):
            kept.append(name)
        else:
            refused.append(
                DescribeTopicPartitionsResponseTopic(
                    error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED), name=name
                )
            )
    return kept
