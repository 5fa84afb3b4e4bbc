"""Metadata (key 3), versions 0-13.

- `topics`: null means all (an empty list in version 0); by name, or by topic id from version 12 on;
- a missing topic is created if the request allows it (always before version 4) and
  auto.create.topics.enable is set; the answer waits until its partitions are served;
- partitions that are being taken over are waited for, LOAD_WAIT_SECONDS at most, then answered with
  LEADER_NOT_AVAILABLE, so that a client that comes right after a start needs no retry;
- leader epochs are always known (KIP-320); that of a partition which another broker
  leads is the assigned one, and never above what its leader says;
- a leader that is not registered is none: LEADER_NOT_AVAILABLE, leader -1; where nobody is
  registered the one that answers is named;
- of all topics those that the client may describe; one that it names and may not describe is
  TOPIC_AUTHORIZATION_FAILED, there or not, without an id, and by id without a name. A missing topic
  is created for who may describe and create it. Without an authorizer everybody may, and the
  authorized operations, if asked for, are all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from broker.api import Api, Request, Steps, in_slices
from broker.authorization import AclOperation, ResourceType
from broker.cluster.catalog import check_name
from broker.guards.tools import CHARACTERS_PER_UNIT, QUESTION_UNITS
from broker.log.partition import State
from broker.rights import operations_of_cluster, operations_of_topic
from runtime.slices import Slices
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.message import ZERO_UUID
from wire.kafka.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from broker.cluster.catalog import Topic, TopicCatalog
    from broker.cluster.view import ClusterView
    from broker.log.manager import LogManager
    from broker.log.partition import PartitionLog
    from broker.rights import Rights

LOAD_WAIT_SECONDS = 5.0
LOGS_PER_TURN = 1000
#: What a topic costs, and each of its partitions, in units of `Steps`.
TOPIC_UNITS = 4
PARTITION_UNITS = 15
#: What a topic costs of which is told what the client may do with it.
OPERATIONS_UNITS = 20

#: From this version on a request says itself whether topics may be created.
AUTO_CREATE_FIELD_VERSION = 4
#: From this version on topics may be asked for by id, without a name.
TOPIC_ID_VERSION = 12


class MetadataHandler:
    def __init__(
        self,
        catalog: TopicCatalog,
        view: ClusterView,
        logs: LogManager,
        auto_create: Callable[[str], Awaitable[Topic]],
        auto_create_enabled: Callable[[], bool],
    ) -> None:
        """`auto_create(name)` makes a topic with the broker's defaults; KafkaError."""
        self._catalog = catalog
        self._view = view
        self._logs = logs
        self._auto_create = auto_create
        self._auto_create_enabled = auto_create_enabled

    def apis(self) -> list[Api]:
        return [Api(ApiKey.METADATA, 0, 13, self.metadata)]

    def metadata(self, request: Request) -> Steps[MetadataResponse | Awaitable[MetadataResponse]]:
        body: MetadataRequest = request.body
        wanted = self._wanted(body, request.version)
        missing: list[str] = []
        refused: list[MetadataResponseTopic] = []
        once: dict[object, MetadataRequestTopic] = {}
        for item in wanted or ():
            yield 1
            once[item.topic_id if item.topic_id != ZERO_UUID else item.name] = item
            by_id = item.topic_id != ZERO_UUID
            if request.version < TOPIC_ID_VERSION and (item.name is None or by_id):
                return (yield from self._refuse(request, wanted or []))
            if item.name and not by_id and self._find(item) is None:
                missing.append(item.name)
        if wanted is not None:
            wanted = list(once.values())  # as Kafka, which makes a set of them
            missing = list(dict.fromkeys(missing))
        may_create = self._may_create(body, request.version)
        if request.rights is not None and wanted is not None:
            refused = yield from _refused(request.rights, wanted, missing if may_create else [])
            gone = {topic.name for topic in refused}
            missing = [name for name in missing if name not in gone]
        if missing and may_create:
            return self._create_then_answer(request, wanted, refused, missing)
        for log in self._logs_of(wanted):
            yield 1
            if log.state is State.LOADING:
                return self._wait_then_answer(request, wanted, refused)
        return (yield from self._answer(request, wanted, refused))

    # -- what is asked for ---------------------------------------------------------------------

    @staticmethod
    def _wanted(body: MetadataRequest, version: int) -> list[MetadataRequestTopic] | None:
        """None for all topics."""
        if body.topics is None or (version == 0 and not body.topics):
            return None
        return body.topics

    def _may_create(self, body: MetadataRequest, version: int) -> bool:
        allowed = version < AUTO_CREATE_FIELD_VERSION or body.allow_auto_topic_creation
        return allowed and self._auto_create_enabled()

    def _find(self, wanted: MetadataRequestTopic) -> Topic | None:
        if wanted.topic_id != ZERO_UUID:
            return self._catalog.get_by_id(wanted.topic_id)
        return self._catalog.get(wanted.name or "")

    def _topics(self, wanted: list[MetadataRequestTopic] | None) -> list[Topic]:
        if wanted is None:
            return self._catalog.all()
        found = (self._find(item) for item in wanted)
        return [topic for topic in found if topic is not None]

    def _logs_of(self, wanted: list[MetadataRequestTopic] | None) -> Iterator[PartitionLog]:
        for topic in self._topics(wanted):
            for partition in range(topic.partition_count):
                try:
                    yield self._logs.get(topic.name, partition)
                except KafkaError:
                    continue

    async def _create_then_answer(
        self,
        request: Request,
        wanted: list[MetadataRequestTopic] | None,
        refused: list[MetadataResponseTopic],
        missing: list[str],
    ) -> MetadataResponse:
        errors: dict[str, ErrorCode] = {}
        for name in missing:
            try:
                await self._auto_create(name)
            except KafkaError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    errors[name] = error.code
        return await self._wait_then_answer(request, wanted, refused, errors)

    async def _wait_then_answer(
        self,
        request: Request,
        wanted: list[MetadataRequestTopic] | None,
        refused: list[MetadataResponseTopic],
        errors: dict[str, ErrorCode] | None = None,
    ) -> MetadataResponse:
        slices = Slices(LOGS_PER_TURN)
        with trio.move_on_after(LOAD_WAIT_SECONDS):
            for log in self._logs_of(wanted):
                if slices.due():
                    await slices.turn()
                if log.state is State.LOADING:
                    await log.wait_loaded()
        return await in_slices(self._answer(request, wanted, refused, errors))

    # -- answer --------------------------------------------------------------------------------

    def _answer(
        self,
        request: Request,
        wanted: list[MetadataRequestTopic] | None,
        refused: list[MetadataResponseTopic],
        errors: dict[str, ErrorCode] | None = None,
    ) -> Steps[MetadataResponse]:
        view = self._view
        response = MetadataResponse(
            cluster_id=view.cluster_id,
            controller_id=view.controller_id,
            brokers=[
                MetadataResponseBroker(
                    node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack
                )
                for broker in view.brokers(request.connection.listener)
            ],
        )
        body: MetadataRequest = request.body
        rights = request.rights
        if body.include_cluster_authorized_operations:
            response.cluster_authorized_operations = operations_of_cluster(rights)
        asked = self._catalog.all() if wanted is None else wanted
        for item in asked:
            yield TOPIC_UNITS
            topic = self._find(item) if isinstance(item, MetadataRequestTopic) else item
            if topic is None:
                assert isinstance(item, MetadataRequestTopic)
                answer = self._missing(item, errors or {})
            elif wanted is None and rights is not None and not rights.describes_topic(topic.name):
                continue
            else:
                answer = yield from self._topic(topic)
            if body.include_topic_authorized_operations:
                yield OPERATIONS_UNITS
                name = answer.name or ""
                answer.topic_authorized_operations = operations_of_topic(rights, name)
            response.topics.append(answer)
        response.topics.extend(refused)
        return response

    def _refuse(
        self, request: Request, wanted: list[MetadataRequestTopic]
    ) -> Steps[MetadataResponse]:
        """Versions 10 and 11 can name an id, or neither name nor id, but their answer needs a name.
        As Kafka: INVALID_REQUEST for every topic."""
        response = yield from self._answer(request, [], [])
        for item in wanted:
            yield 1
            response.topics.append(
                MetadataResponseTopic(int(ErrorCode.INVALID_REQUEST), name=item.name or "")
            )
        return response

    @staticmethod
    def _missing(
        wanted: MetadataRequestTopic, errors: dict[str, ErrorCode]
    ) -> MetadataResponseTopic:
        name = wanted.name or ""
        if wanted.topic_id != ZERO_UUID:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        elif name in errors:
            code = errors[name]
        else:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            try:
                check_name(name)
            except KafkaError as error:
                code = error.code
        return MetadataResponseTopic(
            error_code=int(code), name=wanted.name, topic_id=wanted.topic_id
        )

    def _topic(self, topic: Topic) -> Steps[MetadataResponseTopic]:
        answer = MetadataResponseTopic(
            name=topic.name, topic_id=topic.id, is_internal=topic.internal
        )
        for number in range(topic.partition_count):
            yield PARTITION_UNITS
            answer.partitions.append(self._partition(topic, number))
        return answer

    def _partition(self, topic: Topic, partition: int) -> MetadataResponsePartition:
        placed = self._view.partition(topic.name, partition)
        answer = MetadataResponsePartition(
            partition_index=partition,
            leader_id=placed.leader,
            leader_epoch=placed.leader_epoch,
            replica_nodes=list(placed.replicas),
            isr_nodes=list(placed.isr),
            offline_replicas=list(placed.offline),
        )
        if placed.leader == self._view.node_id:
            try:
                log = self._logs.get(topic.name, partition)
            except KafkaError:
                is_served = False
            else:
                answer.leader_epoch = max(log.leader_epoch, placed.leader_epoch)
                is_served = log.state is State.ONLINE
        else:
            is_served = placed.leader >= 0
        if not is_served:
            answer.error_code = int(ErrorCode.LEADER_NOT_AVAILABLE)
        return answer


def _refused(
    rights: Rights, wanted: list[MetadataRequestTopic], to_create: list[str]
) -> Steps[list[MetadataResponseTopic]]:
    """Takes what the client may not describe, or create, out of `wanted`."""
    create = AclOperation.CREATE
    creates = set(to_create)
    if creates and rights.allows_cluster(create, is_told=False):
        creates = set()
    kept, refused = [], []
    for item in wanted:
        yield QUESTION_UNITS + len(item.name or "") // CHARACTERS_PER_UNIT
        by_id = item.topic_id != ZERO_UUID
        name = rights.topic_name(item.topic_id) if by_id else item.name
        if name is None:
            kept.append(item)  # an id that nothing has
            continue
        is_allowed = rights.allows(AclOperation.DESCRIBE, ResourceType.TOPIC, name)
        if is_allowed and not by_id and name in creates:
            is_allowed = rights.allows(create, ResourceType.TOPIC, name)
        if is_allowed:
            kept.append(item)
        else:
            code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            shown = None if by_id else name
            refused.append(MetadataResponseTopic(code, name=shown, topic_id=item.topic_id))
    wanted[:] = kept
    return refused
