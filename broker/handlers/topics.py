"""Topics and their partitions: CreateTopics, DeleteTopics, CreatePartitions.

| key | versions | what |
|--|--|--|
| 19 CreateTopics | 2-7 | KIP-4; -1 for defaults (KIP-464); settings in the answer (KIP-525) |
| 20 DeleteTopics | 1-6 | by name, from version 6 by id too (KIP-516) |
| 37 CreatePartitions | 0-3 | KIP-195; every asked topic is in the answer |

A change is durable when it is answered, so the timeouts of the requests are not needed. Behaviour
was compared with Kafka 4.3.1, error by error.
Known deviations: two names of one request that differ only in '.' and '_' collide with one another
(Kafka makes both); the first broker of an assignment by hand leads the partition, the others are
those that are to lead it in its place: the copies are on bookies, wherever those are; an internal
topic gets its coordinator's settings and number of partitions where the request says nothing else,
and no more partitions later, as its keys would be looked for in others.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from broker.api import Api, Request
from broker.authorization import AclOperation, ResourceType
from broker.cluster.catalog import PARTITIONS_PER_TOPIC_MAX, Topic
from broker.cluster.durability import default_factor
from broker.cluster.internal_topics import making_of
from metadata.store import MetadataError
from runtime.slices import Slices
from wire.dataclass import dataclass
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.message import ZERO_UUID
from wire.kafka.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from broker.api import MutationQuota
    from broker.cluster.catalog import TopicCatalog
    from broker.cluster.registry import ConfigRegistry
    from broker.cluster.view import ClusterView
    from broker.rights import Rights

logger = logging.getLogger(__name__)

_BY_ID_VERSION_MIN = 6
_DELETION_DISABLED_VERSION_MIN = 3
_DEFAULT = -1
#: From these versions on the quota on changes refuses.
_CREATE_STRICT_VERSION_MIN, _DELETE_STRICT_VERSION_MIN, _PARTITIONS_STRICT_VERSION_MIN = 6, 5, 3

#: Before others have the loop: topics that are looked at, and as how many one counts that is
#: checked, and a setting that is described; values that are counted.
TOPICS_PER_TURN = 500
CREATED_COST = 200
SETTING_COST = 10
VALUES_PER_TURN = 2000
#: As how many values a topic counts that is looked up.
VALUES_PER_TOPIC = 2

T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class _Wanted:
    """A topic of CreateTopics with its defaults filled in."""

    name: str
    partition_count: int
    replication_factor: int
    configs: Mapping[str, str]
    by_hand: Sequence[Sequence[int]] | None = None


def metadata_failure(error: MetadataError) -> KafkaError:
    """Metadata cannot be reached or did not answer: the client may ask again."""
    logger.warning("event=metadata_failed path=%s error=%s", error.path, error)
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, "metadata did not answer")


async def caught_up(catalog: TopicCatalog) -> KafkaError | None:
    """For who is about to tell a client that a topic is not there, or is there already: another
    broker may have told it otherwise just before. The error for that client if metadata is away."""
    try:
        await catalog.catch_up()
    except MetadataError as error:
        return metadata_failure(error)
    return None


class TopicsHandler:
    def __init__(
        self, catalog: TopicCatalog, registry: ConfigRegistry, cluster: ClusterView
    ) -> None:
        self._catalog = catalog
        self._registry = registry
        self._cluster = cluster

    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.CREATE_TOPICS, 2, 7, self.create_topics),
            Api(ApiKey.DELETE_TOPICS, 1, 6, self.delete_topics),
            Api(ApiKey.CREATE_PARTITIONS, 0, 3, self.create_partitions),
        ]

    # -- CreateTopics ---------------------------------------------------------------------------

    async def create_topics(self, request: Request) -> CreateTopicsResponse:
        body: CreateTopicsRequest = request.body
        response = CreateTopicsResponse()
        slices = Slices(TOPICS_PER_TURN)
        asked_often = dict.fromkeys(await _repeated(topic.name for topic in body.topics))
        excessive = await self._partitions_asked(body.topics) > PARTITIONS_PER_TOPIC_MAX
        for name in asked_often:
            result = CreatableTopicResult(name=name, error_message=None)
            _refuse(result, KafkaError(ErrorCode.INVALID_REQUEST, "the request names it twice"))
            response.topics.append(result)
        is_there = await _any(self._catalog.get(topic.name) for topic in body.topics)
        away = await caught_up(self._catalog) if is_there else None
        quota = _quota_of(request, _CREATE_STRICT_VERSION_MIN)
        for topic in body.topics:
            if slices.due(1 if excessive else CREATED_COST):
                await slices.turn()
            if topic.name in asked_often:
                continue
            result = CreatableTopicResult(name=topic.name, error_message=None)
            response.topics.append(result)
            try:
                if away is not None:
                    raise away
                if excessive:
                    raise KafkaError(
                        ErrorCode.POLICY_VIOLATION,
                        f"a request may make {PARTITIONS_PER_TOPIC_MAX} partitions at most",
                    )
                await self._create_topic(
                    topic, result, slices, quota, validate_only=body.validate_only
                )
            except KafkaError as error:
                _refuse(result, error)
            except MetadataError as error:
                _refuse(result, metadata_failure(error))
        return response

    async def _partitions_asked(self, topics: Sequence[CreatableTopic]) -> int:
        slices = Slices(VALUES_PER_TURN)
        asked = 0
        for topic in topics:
            if slices.due(VALUES_PER_TOPIC):
                await slices.turn()
            if topic.assignments:
                asked += len(topic.assignments)
            elif topic.num_partitions < 0:
                asked += self._default_partition_count(topic.name)
            else:
                asked += topic.num_partitions
        return asked

    async def _create_topic(
        self,
        asked: CreatableTopic,
        result: CreatableTopicResult,
        slices: Slices,
        quota: MutationQuota | None,
        *,
        validate_only: bool,
    ) -> None:
        self._catalog.check_create(asked.name, 1, {})
        wanted = self._wanted(asked)
        if validate_only or quota is not None:
            self._catalog.check_create(wanted.name, wanted.partition_count, wanted.configs)
        if quota is not None:
            quota.take(wanted.partition_count)
        if not validate_only:
            topic = await self._catalog.create(
                wanted.name,
                wanted.partition_count,
                wanted.configs,
                wanted.replication_factor,
                wanted.by_hand,
            )
            result.topic_id = topic.id
        result.num_partitions = wanted.partition_count
        result.replication_factor = wanted.replication_factor
        configs = []
        for described in self._registry.describe_topic(wanted.configs):
            if slices.due(SETTING_COST):
                await slices.turn()
            configs.append(
                CreatableTopicConfigs(
                    name=described.key.name,
                    value=described.value,
                    read_only=described.read_only,
                    config_source=int(described.source),
                    is_sensitive=described.key.sensitive,
                )
            )
        result.configs = configs

    def _wanted(self, asked: CreatableTopic) -> _Wanted:
        by_hand = None
        if asked.assignments:
            partition_count, replication_factor = self._assigned(asked)
            ordered = sorted(asked.assignments, key=lambda one: one.partition_index)
            by_hand = [one.broker_ids for one in ordered]
        else:
            partition_count = asked.num_partitions
            if partition_count == _DEFAULT:
                partition_count = self._default_partition_count(asked.name)
            elif partition_count < 1:
                raise KafkaError(
                    ErrorCode.INVALID_PARTITIONS, f"{partition_count} partitions cannot be made"
                )
            replication_factor = self.replication_factor(asked.name, asked.replication_factor)
        making = making_of(asked.name, self._registry.broker)
        configs = {} if making is None else dict(making.configs)
        for config in asked.configs:
            if config.value is None:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"{config.name} has no value")
            configs[config.name] = config.value
        return _Wanted(asked.name, partition_count, replication_factor, configs, by_hand)

    def _default_partition_count(self, name: str) -> int:
        making = making_of(name, self._registry.broker)
        return self._registry.broker.num_partitions if making is None else making.partition_count

    def replication_factor(self, name: str, asked: int) -> int:
        """What -1 stands for, and the check against the live bookies. KafkaError
        INVALID_REPLICATION_FACTOR. `quire.clip.replication.factor` lowers instead."""
        config = self._registry.broker
        if asked < 1 and asked != _DEFAULT:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {asked}: the least is 1, and -1 means the default",
            )
        factor = (default_factor(name, config) or 1) if asked == _DEFAULT else asked
        live = self._cluster.copies_max
        if factor <= live:
            return factor
        if config.quire_clip_replication_factor:
            return live
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {factor} needs more bookies than the {live} that take writes",
        )

    def _assigned(self, asked: CreatableTopic) -> tuple[int, int]:
        """(partitions, replication factor) of a manual assignment, once it is found valid."""
        for value, what in (
            (asked.replication_factor, "a replication factor"),
            (asked.num_partitions, "a number of partitions"),
        ):
            if value != _DEFAULT:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, f"an assignment and {what} exclude one another"
                )
        indexes = [assignment.partition_index for assignment in asked.assignments]
        if twice := _more_than_once(Counter(indexes)):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partition {twice[0]} is assigned twice"
            )
        if sorted(indexes) != list(range(len(indexes))):
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "the assigned partitions are not 0, 1, 2 and so on without a gap",
            )
        for assignment in asked.assignments:
            self._check_replicas(assignment.broker_ids)
        sizes = {len(assignment.broker_ids) for assignment in asked.assignments}
        if len(sizes) > 1:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "the assigned partitions have different numbers of replicas",
            )
        return len(indexes), sizes.pop()

    def _check_replicas(self, broker_ids: Sequence[int]) -> None:
        problem = None
        live = self._cluster.replica_ids()
        unknown = [broker_id for broker_id in broker_ids if broker_id not in live]
        if not broker_ids:
            problem = "a partition is assigned to no broker"
        elif twice := _more_than_once(Counter(broker_ids)):
            problem = f"a partition is assigned to broker {twice[0]} twice"
        elif unknown:
            problem = f"a partition is assigned to broker {unknown[0]}, which is not there"
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)

    # -- DeleteTopics ---------------------------------------------------------------------------

    async def delete_topics(self, request: Request) -> DeleteTopicsResponse:
        body: DeleteTopicsRequest = request.body
        slices = Slices(TOPICS_PER_TURN)
        asked = body.topics
        if request.version < _BY_ID_VERSION_MIN:
            asked = []
            for name in body.topic_names:
                if slices.due():
                    await slices.turn()
                asked.append(DeleteTopicState(name=name))
        names = await counted(state.name for state in asked if state.name is not None)
        ids = await counted(
            state.topic_id for state in asked if state.name is None and state.topic_id != ZERO_UUID
        )
        response = DeleteTopicsResponse()
        answered: set[object] = set()
        found: list[tuple[DeletableTopicResult, Topic]] = []
        is_missing = await _any(self._find(state) is None for state in asked)
        away = await caught_up(self._catalog) if is_missing else None
        # All are looked up before the first is deleted: what a request says twice is an error,
        # whichever comes first.
        for state in asked:
            if slices.due():
                await slices.turn()
            handle = state.topic_id if state.name is None else state.name
            repeated = (ids[state.topic_id] if state.name is None else names[state.name]) > 1
            if repeated:
                if handle in answered:
                    continue
                answered.add(handle)
            result = DeletableTopicResult(name=state.name, topic_id=state.topic_id)
            response.responses.append(result)
            try:
                if repeated:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names it twice")
                if away is not None:
                    raise away
                topic = self._to_delete(state, request.version)
                if state.name is None and request.rights is not None:
                    _check_may_delete(request.rights, topic.name, result)
                result.name, result.topic_id = topic.name, topic.id
                if state.name is None and topic.name in names:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST, "the request names it by name and by id"
                    )
            except KafkaError as error:
                _refuse(result, error)
            else:
                found.append((result, topic))
        quota = _quota_of(request, _DELETE_STRICT_VERSION_MIN)
        for result, topic in found:
            await self._delete(result, topic, quota)
        return response

    async def _delete(
        self, result: DeletableTopicResult, topic: Topic, quota: MutationQuota | None
    ) -> None:
        try:
            if quota is not None:
                quota.take(topic.partition_count)
            await self._catalog.delete(topic.name)
        except KafkaError as error:
            _refuse(result, error)
        except MetadataError as error:
            _refuse(result, metadata_failure(error))

    def _to_delete(self, state: DeleteTopicState, version: int) -> Topic:
        if not self._registry.broker.delete_topic_enable:
            disabled = version >= _DELETION_DISABLED_VERSION_MIN
            raise KafkaError(
                ErrorCode.TOPIC_DELETION_DISABLED if disabled else ErrorCode.INVALID_REQUEST,
                "delete.topic.enable is false",
            )
        if state.name is None:
            if state.topic_id == ZERO_UUID:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "neither a name nor an id is given")
            topic = self._find(state)
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
            return topic
        if state.topic_id != ZERO_UUID:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "both a name and an id are given")
        topic = self._find(state)
        if topic is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {state.name!r}"
            )
        return topic

    def _find(self, state: DeleteTopicState) -> Topic | None:
        if state.name is None:
            return self._catalog.get_by_id(state.topic_id)
        return self._catalog.get(state.name)

    # -- CreatePartitions -----------------------------------------------------------------------

    async def create_partitions(self, request: Request) -> CreatePartitionsResponse:
        body: CreatePartitionsRequest = request.body
        response = CreatePartitionsResponse()
        slices = Slices(TOPICS_PER_TURN)
        asked_often = dict.fromkeys(await _repeated(topic.name for topic in body.topics))
        for name in asked_often:
            repeated = CreatePartitionsTopicResult(name=name)
            _refuse(repeated, KafkaError(ErrorCode.INVALID_REQUEST, "the request names it twice"))
            response.results.append(repeated)
        is_missing = await _any(self._catalog.get(topic.name) is None for topic in body.topics)
        away = await caught_up(self._catalog) if is_missing else None
        quota = _quota_of(request, _PARTITIONS_STRICT_VERSION_MIN)
        for topic in body.topics:
            if slices.due(1 + len(topic.assignments or ())):
                await slices.turn()
            if topic.name in asked_often:
                continue
            result = CreatePartitionsTopicResult(name=topic.name)
            response.results.append(result)
            try:
                if away is not None:
                    raise away
                added = self._check_new_partitions(topic)
                if quota is not None:
                    quota.take(added)
                if not body.validate_only:
                    by_hand = None
                    if topic.assignments is not None:
                        by_hand = [one.broker_ids for one in topic.assignments]
                    await self._catalog.add_partitions(topic.name, topic.count, by_hand)
            except KafkaError as error:
                _refuse(result, error)
            except MetadataError as error:
                _refuse(result, metadata_failure(error))
        return response

    def _check_new_partitions(self, asked: CreatePartitionsTopic) -> int:
        """How many are added."""
        topic = self._catalog.check_add_partitions(asked.name, asked.count)
        added = asked.count - topic.partition_count
        if asked.assignments is None:
            return added
        if len(asked.assignments) != added:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{added} partitions are added, but {len(asked.assignments)} are assigned",
            )
        for assignment in asked.assignments:
            self._check_replicas(assignment.broker_ids)
        return added


_Result = CreatableTopicResult | DeletableTopicResult | CreatePartitionsTopicResult


def _refuse(result: _Result, error: KafkaError) -> None:
    result.error_code = int(error.code)
    result.error_message = error.message
    if isinstance(result, CreatableTopicResult):
        result.configs = []


def _check_may_delete(rights: Rights, name: str, result: DeletableTopicResult) -> None:
    """Of a topic that was named by id: this broker may have heard of it since the guard asked, to
    which it was not there. KafkaError."""
    if rights.allows_cluster(AclOperation.DELETE, is_told=False):
        return
    describes = rights.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, name)
    if describes and rights.allows(AclOperation.DELETE, ResourceType.TOPIC, name):
        return
    if describes:
        result.name = name
    raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")


def _quota_of(request: Request, strict_version: int) -> MutationQuota | None:
    """Clients of older versions do not know that they may be refused (KIP-599)."""
    if request.account is None:
        return None
    return request.account.mutations(is_strict=request.version >= strict_version)


async def counted(values: Iterable[T]) -> Counter[T]:
    """How often each comes, in the order of their first time; in slices."""
    counts: Counter[T] = Counter()
    slices = Slices(VALUES_PER_TURN)
    for value in values:
        if slices.due():
            await slices.turn()
        counts[value] += 1
    return counts


async def _repeated(values: Iterable[T]) -> list[T]:
    """Those that come more than once, in the order of their first time."""
    return _more_than_once(await counted(values))


async def _any(values: Iterable[object]) -> bool:
    """Whether one of them is true; in slices."""
    slices = Slices(VALUES_PER_TURN)
    for value in values:
        if slices.due(VALUES_PER_TOPIC):
            await slices.turn()
        if value:
            return True
    return False


def _more_than_once(counts: Counter[T]) -> list[T]:
    return [value for value, count in counts.items() if count > 1]
