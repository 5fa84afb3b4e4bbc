"""Streams groups (KIP-1071).

| key | API | versions |
|---|---|---|
| 88 | StreamsGroupHeartbeat | 0 |
| 89 | StreamsGroupDescribe | 0 |

Behaviour: Kafka 4.3's; what a heartbeat does is streams_core's contract. Here is its form:
- group id and member id, and the rack id if it is given, are not empty; the epoch is -1 or more.
- who joins (epoch 0) gives a rebalance timeout, a topology, and no tasks; nobody else gives a
  topology. The three lists of tasks are given together or not at all.
- instance ids, warm-up tasks, offsets of tasks and patterns of source topics are not served yet.
All of that is INVALID_REQUEST; everything UNSUPPORTED_VERSION while not every broker of the cluster
serves the protocol. STREAMS_INVALID_TOPOLOGY: a topology names a topic of the server's own, or one
that no topic can be called; a changelog topic says how many partitions it has; it has too many
elements, or bytes.

Internal topics that are missing are made as the requester: who may not is told so in the answer's
status, and the group stays as it is.

StreamsGroupDescribe tells what is stored. An empty group id is INVALID_GROUP_ID, a group that is
not there, or of another type, GROUP_ID_NOT_FOUND.

Known deviations: the authorized operations of a group are all that groups have. A topology has at
most ELEMENTS_MAX topics and groups of them, and TOPOLOGY_BYTES_MAX as a record; Kafka has no limit
but that of a record. A heartbeat that lists more tasks than a topology may come to, or very many
client tags, is INVALID_REQUEST. Of a topology that is not ready the describing answer has what the
members said, where Kafka's has no subtopologies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api import Api, Reply, Request, Steps, each_once, run_steps
from broker.authorization import ALL_OPERATIONS, AclOperation, ResourceType
from broker.cluster.topic import INTERNAL_TOPICS, check_name
from broker.groups.streams.group import NO_TARGET, NOTHING_HELD
from broker.groups.streams.live import LiveStreamsGroup
from broker.groups.streams.records import topology_value
from broker.groups.streams.topology_core import (
    TASKS_MAX,
    Configured,
    configure,
    element_count,
)
from broker.groups.streams.types import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    CopartitionGroup,
    GroupError,
    HeartbeatInput,
    HeartbeatResult,
    InternalTopic,
    StatusCode,
    Subtopology,
    Target,
    Tasks,
    Topology,
)
from broker.groups.streams.types import Endpoint as GroupEndpoint
from broker.groups.streams.types import Status as GroupStatus
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError, short
from wire.kafka.messages.streams_groups import (
    Assignment,
    DescribedGroup,
    Endpoint,
    EndpointToPartitions,
    KeyValue,
    Member,
    Status,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupDescribeResponseSubtopology,
    StreamsGroupDescribeResponseTopology,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestSubtopology,
    StreamsGroupHeartbeatRequestTopology,
    StreamsGroupHeartbeatResponse,
    TaskIds,
    TopicInfo,
    TopicPartition,
)
from wire.kafka.records.coordinator import encode_value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from broker.coordinator.ports import Catalog
    from broker.groups.coordinator import GroupCoordinator
    from broker.groups.streams.group import StreamsGroup
    from broker.rights import Rights
    from runtime.turn import Turn

#: What a group costs, in units of `Steps`, and characters of its id that cost one: it is hashed.
GROUP_UNITS = 8
MEMBER_UNITS = 20
CHARACTERS_PER_UNIT = 20
#: Topics of a topology's subtopologies, and groups of them: configuring it takes about 2 ms.
ELEMENTS_MAX = 1_000
#: Settings of its internal topics, altogether.
CONFIGS_MAX = 10_000
#: A Java client has at most five.
CLIENT_TAGS_MAX = 100
#: Of a topology as a record: a batch must hold it beside others.
TOPOLOGY_BYTES_MAX = 250_000


class StreamsGroupsHandler:
    """Between the messages and the coordinator; keeps nothing."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        catalog: Catalog,
        turn: Turn,
        is_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_on`: whether the protocol is served: the cluster's `streams.version` and this
        broker's group.coordinator.rebalance.protocols allow it."""
        self._coordinator = coordinator
        self._catalog = catalog
        self._turn = turn
        self._is_on = is_on

    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 0, self.heartbeat),
            Api(ApiKey.STREAMS_GROUP_DESCRIBE, 0, 0, self.describe),
        ]

    # --- StreamsGroupHeartbeat

    def heartbeat(self, request: Request) -> Steps[StreamsGroupHeartbeatResponse | Reply]:
        body: StreamsGroupHeartbeatRequest = request.body
        if not self._is_on():
            return StreamsGroupHeartbeatResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION))
        try:
            given = yield from _input(body, request)
        except GroupError as error:
            return StreamsGroupHeartbeatResponse(
                error_code=int(error.code), error_message=error.message
            )
        reply = Reply()

        def answer(result: HeartbeatResult) -> None:
            if result.to_create and not result.error:
                self._create(body.group_id, request, result)
            response = _heartbeat_response(result)
            if result.endpoints is None:
                reply.resolve(response)
            else:
                steps = _tell_endpoints(response, result.endpoints)
                run_steps(self._turn, steps, lambda: reply.resolve(response))

        self._coordinator.streams_heartbeat(body.group_id, given, answer)
        return reply

    def _create(self, group_id: str, request: Request, result: HeartbeatResult) -> None:
        names = sorted(result.to_create)
        refused = [] if request.rights is None else _not_creatable(request.rights, names)
        if refused:
            _say_more(result, f"Unauthorized to CREATE on topics {', '.join(refused)}.")
            return
        groups = self._coordinator.streams
        failures = groups.creation_failures(names)
        groups.make_topics(group_id, result.to_create)
        if failures:
            told = ", ".join(f"{name} ({why})" for name, why in failures)
            _say_more(result, f"Creation failed: {told}.")

    # --- StreamsGroupDescribe

    def describe(self, request: Request) -> Steps[StreamsGroupDescribeResponse]:
        body: StreamsGroupDescribeRequest = request.body
        response = StreamsGroupDescribeResponse()
        for group_id in (yield from each_once(body.group_ids)):
            yield GROUP_UNITS + len(group_id) // CHARACTERS_PER_UNIT
            described = yield from self._described(group_id)
            if body.include_authorized_operations and not described.error_code:
                described.authorized_operations = ALL_OPERATIONS[ResourceType.GROUP]
            response.groups.append(described)
        return response

    def _described(self, group_id: str) -> Steps[DescribedGroup]:
        described = DescribedGroup(group_id=group_id)
        if not self._is_on():
            described.error_code = int(ErrorCode.UNSUPPORTED_VERSION)
            return described
        if not group_id:
            described.error_code = int(ErrorCode.INVALID_GROUP_ID)
            return described
        error, entry = self._coordinator.describe(group_id)
        if entry is None or not isinstance(entry.group, LiveStreamsGroup):
            described.error_code = int(error or ErrorCode.GROUP_ID_NOT_FOUND)
            if described.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                described.error_message = short(f"Group {group_id} not found.")
            return described
        group = entry.group.stored
        described.group_state = group.state.value
        described.group_epoch = group.epoch
        described.assignment_epoch = group.assignment_epoch
        if group.topology is not None:
            yield element_count(group.topology)
            described.topology = self._described_topology(group.topology)
        for member_id in list(group.members):
            yield MEMBER_UNITS
            if member_id in group.members:
                described.members.append(_described_member(group, member_id))
        return described

    def _described_topology(self, topology: Topology) -> StreamsGroupDescribeResponseTopology:
        """With the partitions that internal topics have, as far as they are known."""
        try:
            configured = configure(topology, self._catalog)
        except GroupError:
            configured = Configured(topology.epoch)
        subtopologies = []
        for each in topology.subtopologies:
            known = configured.subtopologies.get(each.subtopology_id)
            changelog = each.changelog_topics if known is None else known.changelog
            repartition = each.repartition_source_topics if known is None else known.repartition
            subtopologies.append(
                StreamsGroupDescribeResponseSubtopology(
                    each.subtopology_id,
                    sorted(each.source_topics),
                    sorted(each.repartition_sink_topics),
                    [_topic_info(topic) for topic in changelog],
                    [_topic_info(topic) for topic in repartition],
                )
            )
        return StreamsGroupDescribeResponseTopology(topology.epoch, subtopologies)


def _not_creatable(rights: Rights, names: list[str]) -> list[str]:
    create = AclOperation.CREATE
    if rights.allows_cluster(create, is_told=False):
        return []
    return [name for name in names if not rights.allows(create, ResourceType.TOPIC, name)]


def _described_member(group: StreamsGroup, member_id: str) -> Member:
    member = group.members[member_id]
    current = group.current.get(member_id, NOTHING_HELD)
    held, target = current.assigned, group.targets.get(member_id, NO_TARGET)
    endpoint = member.user_endpoint
    return Member(
        member_id,
        current.epoch,
        None,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.topology_epoch,
        member.process_id,
        None if endpoint is None else Endpoint(*endpoint),
        [KeyValue(*each) for each in member.client_tags],
        [],
        [],
        Assignment(_task_ids(held.active), _task_ids(held.standby), _task_ids(held.warmup)),
        Assignment(_task_ids(target.active), _task_ids(target.standby), _task_ids(target.warmup)),
    )


def _topic_info(topic: InternalTopic) -> TopicInfo:
    return TopicInfo(
        topic.name,
        topic.partitions,
        topic.replication_factor,
        [KeyValue(*each) for each in topic.configs],
    )


# --- a heartbeat as the core has it


def _input(body: StreamsGroupHeartbeatRequest, request: Request) -> Steps[HeartbeatInput]:
    """GroupError: it is malformed."""
    _check_lengths(body)
    problem = _form_problem(body)
    if problem is not None:
        raise GroupError(ErrorCode.INVALID_REQUEST, problem)
    topology = None
    if body.topology is not None:
        topology = yield from _topology(body.topology)
    owned = None
    if body.active_tasks is not None:
        owned = Target(
            (yield from _tasks(body.active_tasks)), (yield from _tasks(body.standby_tasks or []))
        )
    endpoint, tags = body.user_endpoint, body.client_tags
    return HeartbeatInput(
        body.member_id,
        body.member_epoch,
        request.client_id,
        f"/{request.connection.peer_host}",
        body.endpoint_information_epoch,
        body.rack_id,
        body.rebalance_timeout_ms,
        topology,
        owned,
        body.process_id,
        None if endpoint is None else (endpoint.host, endpoint.port),
        None if tags is None else tuple(sorted({each.key: each.value for each in tags}.items())),
        body.shutdown_application,
    )


def _check_lengths(body: StreamsGroupHeartbeatRequest) -> None:
    """Of lists, before anything walks over them. GroupError."""
    for tasks in (body.active_tasks, body.standby_tasks):
        if tasks is None:
            continue
        if len(tasks) > TASKS_MAX or sum(len(each.partitions) for each in tasks) > TASKS_MAX:
            raise GroupError(
                ErrorCode.INVALID_REQUEST, f"A member has {TASKS_MAX} tasks of a kind at most."
            )
    if len(body.client_tags or ()) > CLIENT_TAGS_MAX:
        raise GroupError(
            ErrorCode.INVALID_REQUEST, f"A member has {CLIENT_TAGS_MAX} client tags at most."
        )
    told = body.topology
    if told is None:
        return
    is_long = len(told.subtopologies) > ELEMENTS_MAX
    if is_long or sum(map(_told_elements, told.subtopologies)) > ELEMENTS_MAX:
        raise _invalid(f"A topology may have {ELEMENTS_MAX} topics and groups of them at most.")
    configs = sum(
        len(topic.topic_configs)
        for each in told.subtopologies
        for topic in (*each.repartition_source_topics, *each.state_changelog_topics)
    )
    if configs > CONFIGS_MAX:
        raise _invalid(f"Internal topics may have {CONFIGS_MAX} settings at most.")


def _told_elements(told: StreamsGroupHeartbeatRequestSubtopology) -> int:
    """As `element_count` has it."""
    groups = told.copartition_groups
    return (
        1
        + len(told.source_topics)
        + len(told.repartition_sink_topics)
        + len(told.repartition_source_topics)
        + len(told.state_changelog_topics)
        + sum(1 + len(each.source_topics) + len(each.repartition_source_topics) for each in groups)
    )


def _form_problem(body: StreamsGroupHeartbeatRequest) -> str | None:
    """What is wrong with a request whatever the group is."""
    for name, value in (
        ("MemberId", body.member_id),
        ("GroupId", body.group_id),
        ("InstanceId", body.instance_id),
        ("RackId", body.rack_id),
    ):
        if value is not None and not value.strip():
            return f"{name} can't be empty."
    lists = (body.active_tasks, body.standby_tasks, body.warmup_tasks)
    if body.member_epoch == JOIN_EPOCH:
        if body.rebalance_timeout_ms == -1:
            return "RebalanceTimeoutMs must be provided in first request."
        for name, tasks in zip(("Active", "Standby", "Warmup"), lists, strict=True):
            if tasks is None or tasks:
                return f"{name}Tasks must be empty when (re-)joining."
        if body.topology is None:
            return "Topology must be non-null when (re-)joining."
    elif body.member_epoch < LEAVE_EPOCH:
        return f"MemberEpoch is {body.member_epoch}, but must be greater than or equal to -1."
    elif body.topology is not None:
        return "Topology can only be provided when (re-)joining."
    if any(tasks is not None for tasks in lists) and any(tasks is None for tasks in lists):
        return "If one task-type is non-null, all must be non-null."
    return _unserved(body)


def _unserved(body: StreamsGroupHeartbeatRequest) -> str | None:
    """What Kafka 4.3 does not serve, either."""
    if body.instance_id is not None:
        return "Static membership is not yet supported."
    if body.task_offsets is not None:
        return "TaskOffsets are not supported yet."
    if body.task_end_offsets is not None:
        return "TaskEndOffsets are not supported yet."
    if body.warmup_tasks:
        return "WarmupTasks are not supported yet."
    if body.topology is not None and any(
        each.source_topic_regex for each in body.topology.subtopologies
    ):
        return "Regular expressions for source topics are not supported yet."
    return None


def _tasks(ids: Iterable[TaskIds]) -> Steps[Tasks]:
    found: dict[str, set[int]] = {}
    for each in ids:
        yield 1 + len(each.partitions) // 10
        if each.partitions:
            found.setdefault(each.subtopology_id, set()).update(each.partitions)
    return {subtopology_id: frozenset(numbers) for subtopology_id, numbers in found.items()}


def _topology(told: StreamsGroupHeartbeatRequestTopology) -> Steps[Topology]:
    subtopologies: dict[str, Subtopology] = {}
    for each in told.subtopologies:
        yield 2 + len(each.repartition_source_topics) + len(each.state_changelog_topics)
        if each.subtopology_id in subtopologies:
            raise _invalid(f"Subtopology {each.subtopology_id} is there twice.")
        subtopologies[each.subtopology_id] = Subtopology(
            each.subtopology_id,
            tuple(each.source_topics),
            tuple(each.repartition_sink_topics),
            tuple(_internal_topic(topic) for topic in each.repartition_source_topics),
            tuple(_internal_topic(topic) for topic in each.state_changelog_topics),
            tuple(
                CopartitionGroup(tuple(group.source_topics), tuple(group.repartition_source_topics))
                for group in each.copartition_groups
            ),
        )
    topology = Topology(told.epoch, tuple(subtopologies[each] for each in sorted(subtopologies)))
    elements = element_count(topology)
    yield elements
    size = len(encode_value(topology_value(topology)))
    if size > TOPOLOGY_BYTES_MAX:
        raise _invalid(f"A topology may have {TOPOLOGY_BYTES_MAX} bytes at most, and has {size}.")
    yield elements
    _check_names(topology)
    yield elements
    return topology


def _internal_topic(topic: TopicInfo) -> InternalTopic:
    return InternalTopic(
        topic.name,
        topic.partitions,
        topic.replication_factor,
        tuple(sorted({each.key: each.value for each in topic.topic_configs}.items())),
    )


def _check_names(topology: Topology) -> None:
    if topology.epoch < 0:
        raise _invalid("Topology epoch must be non-negative.")
    names: dict[str, None] = {}
    for each in topology.subtopologies:
        names.update(dict.fromkeys((*each.read_topics(), *each.repartition_sink_topics)))
        for topic in each.changelog_topics:
            names[topic.name] = None
            if topic.partitions:
                raise _invalid(
                    f"Changelog topic {topic.name} must have an undefined partition count, but it"
                    f" is set to {topic.partitions}."
                )
    own = [name for name in names if name in INTERNAL_TOPICS]
    if own:
        raise _invalid(
            f"Use of Kafka internal topics {','.join(own)} in a Kafka Streams topology is"
            " prohibited."
        )
    bad = [name for name in names if not _is_name(name)]
    if bad:
        raise _invalid(f"Topic names {','.join(bad)} are not valid topic names.")


def _is_name(name: str) -> bool:
    try:
        check_name(name)
    except KafkaError:
        return False
    return True


def _invalid(message: str) -> GroupError:
    return GroupError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)


# --- its answer


def _say_more(result: HeartbeatResult, more: str) -> None:
    result.statuses = [
        GroupStatus(each.code, f"{each.detail}; {more}")
        if each.code is StatusCode.MISSING_INTERNAL_TOPICS
        else each
        for each in result.statuses
    ]


def _heartbeat_response(result: HeartbeatResult) -> StreamsGroupHeartbeatResponse:
    response = StreamsGroupHeartbeatResponse(
        error_code=int(result.error),
        error_message=result.message,
        member_id=result.member_id,
        member_epoch=result.epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        endpoint_information_epoch=result.endpoint_epoch,
    )
    response.status = [Status(int(each.code), short(each.detail)) for each in result.statuses]
    if result.tasks is not None:
        response.active_tasks = _task_ids(result.tasks.active)
        response.standby_tasks = _task_ids(result.tasks.standby)
        response.warmup_tasks = _task_ids(result.tasks.warmup)
    return response


def _tell_endpoints(
    response: StreamsGroupHeartbeatResponse, steps: Steps[list[GroupEndpoint]]
) -> Steps[None]:
    found = yield from steps
    response.partitions_by_user_endpoint = told = []
    for each in found:
        yield len(each.active) + len(each.standby)
        told.append(_endpoint(each))


def _task_ids(tasks: Mapping[str, Collection[int]]) -> list[TaskIds]:
    return [TaskIds(each, sorted(numbers)) for each, numbers in sorted(tasks.items())]


def _endpoint(endpoint: GroupEndpoint) -> EndpointToPartitions:
    return EndpointToPartitions(
        Endpoint(endpoint.host, endpoint.port),
        [TopicPartition(*each) for each in endpoint.active.items()],
        [TopicPartition(*each) for each in endpoint.standby.items()],
    )
