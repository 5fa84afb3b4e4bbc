"""Groups of the consumer protocol (KIP-848).

| key | API | versions |
|---|---|---|
| 68 | ConsumerGroupHeartbeat | 0-1 |
| 69 | ConsumerGroupDescribe | 0-1 |

Behaviour: Kafka 4.3's; what a heartbeat does is consumer_core's contract. Here is its form:
- group id, and instance id, rack id and assignor if they are given, are not empty; the epoch is -2
  or more, and -2 only with an instance id. Version 0 may join without a member id and is given one;
  otherwise the member id is the client's (KIP-1082).
- who joins (epoch 0) gives a rebalance timeout, a subscription, and an empty list of partitions.
All of that is INVALID_REQUEST; an assignor that is not configured UNSUPPORTED_ASSIGNOR; everything
UNSUPPORTED_VERSION while not every broker of the cluster serves the protocol.

ConsumerGroupDescribe tells what is stored. An empty group id is INVALID_GROUP_ID, a group that is
not there, or of another type, GROUP_ID_NOT_FOUND.

With an authorizer a pattern stands for the topics that each member may see who subscribes by it.
Known deviations: in Kafka for those that whoever came first may see. A member, and all members of a
group together, can name NAMES_MAX topics (INVALID_REQUEST); Kafka has no limit but that of a
record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api import Api, Reply, Request, Steps, all_steps, each_once
from broker.authorization import ALL_OPERATIONS, ResourceType
from broker.groups.consumer.group import NOTHING_ASSIGNED
from broker.groups.consumer.live import LiveGroup
from broker.groups.consumer.names import names_problem
from broker.groups.consumer.types import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    HeartbeatInput,
    HeartbeatResult,
)
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, short
from wire.kafka.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeResponseAssignment,
    ConsumerGroupDescribeResponseTopicPartitions,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    ConsumerGroupHeartbeatResponseAssignment,
    ConsumerGroupHeartbeatResponseTopicPartitions,
    DescribedGroup,
    Member,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from uuid import UUID

    from broker.coordinator.ports import Catalog
    from broker.groups.consumer.group import ConsumerGroup
    from broker.groups.coordinator import GroupCoordinator

#: What a group costs, in units of `Steps`, and characters of its id that cost one: it is hashed.
GROUP_UNITS = 8
MEMBER_UNITS = 20
CHARACTERS_PER_UNIT = 20
#: Topics and partitions of a heartbeat; with more it is handled in slices.
ELEMENTS_AT_ONCE = 500
#: Of the former so many are sorted in a microsecond; the others are looked at so many at a time.
NAMES_PER_UNIT = 1
NUMBERS_AT_ONCE, NUMBERS_UNITS = 1_000, 100

_MEMBER_TYPE_CLASSIC, _MEMBER_TYPE_CONSUMER = 0, 1


class ConsumerGroupsHandler:
    """Between the messages and the coordinator; keeps nothing."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        catalog: Catalog,
        is_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_on`: whether the protocol is served: the cluster's `group.version` and this broker's
        group.coordinator.rebalance.protocols allow it."""
        self._coordinator = coordinator
        self._catalog = catalog
        self._is_on = is_on

    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, self.heartbeat),
            Api(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, self.describe),
        ]

    # --- ConsumerGroupHeartbeat

    def heartbeat(
        self, request: Request
    ) -> ConsumerGroupHeartbeatResponse | Reply | Steps[ConsumerGroupHeartbeatResponse | Reply]:
        body: ConsumerGroupHeartbeatRequest = request.body
        if not self._is_on():
            return ConsumerGroupHeartbeatResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION))
        offered = self._coordinator.consumers.settings.group_consumer_assignors
        problem = _form_problem(body, request.version)
        if problem is not None:
            return ConsumerGroupHeartbeatResponse(
                error_code=int(ErrorCode.INVALID_REQUEST), error_message=problem
            )
        if body.server_assignor is not None and body.server_assignor not in offered:
            return ConsumerGroupHeartbeatResponse(
                error_code=int(ErrorCode.UNSUPPORTED_ASSIGNOR),
                error_message=short(
                    f"ServerAssignor {body.server_assignor} is not supported."
                    f" Supported assignors: {', '.join(offered)}."
                ),
            )
        steps = self._heartbeat(request)
        return steps if _is_long(body) else all_steps(steps)

    def _heartbeat(self, request: Request) -> Steps[Reply]:
        body: ConsumerGroupHeartbeatRequest = request.body
        reply = Reply()
        names, owned = body.subscribed_topic_names, body.topic_partitions
        topics = None
        if names is not None:
            topics = tuple(sorted(set(names)))
            yield len(names) // NAMES_PER_UNIT
        numbers: dict[UUID, set[int]] = {}
        for each in owned or ():
            mine, told = numbers.setdefault(each.topic_id, set()), each.partitions
            yield 1
            for start in range(0, len(told), NUMBERS_AT_ONCE):
                mine.update(told[start : start + NUMBERS_AT_ONCE])
                yield NUMBERS_UNITS
        given = HeartbeatInput(
            body.member_id or str(self._coordinator.env.new_uuid()),
            body.member_epoch,
            request.client_id,
            f"/{request.connection.peer_host}",
            body.instance_id,
            body.rack_id,
            body.rebalance_timeout_ms,
            topics,
            body.subscribed_topic_regex,
            body.server_assignor,
            None if owned is None else numbers,
            request.rights,
        )
        self._coordinator.consumer_heartbeat(
            body.group_id, given, lambda result: reply.resolve(_heartbeat_response(result))
        )
        return reply

    # --- ConsumerGroupDescribe

    def describe(self, request: Request) -> Steps[ConsumerGroupDescribeResponse]:
        body: ConsumerGroupDescribeRequest = request.body
        response = ConsumerGroupDescribeResponse()
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
        if entry is None or not isinstance(entry.group, LiveGroup):
            described.error_code = int(error or ErrorCode.GROUP_ID_NOT_FOUND)
            if described.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                described.error_message = short(f"Group {group_id} not found.")
            return described
        group = entry.group.stored
        described.group_state = group.state.value
        described.group_epoch = group.epoch
        described.assignment_epoch = group.assignment_epoch
        described.assignor_name = group.assignor(
            self._coordinator.consumers.settings.group_consumer_assignors
        )
        for member_id in list(group.members):
            yield MEMBER_UNITS
            if member_id in group.members:
                described.members.append(self._member(group, member_id))
        return described

    def _member(self, group: ConsumerGroup, member_id: str) -> Member:
        member = group.members[member_id]
        current = group.current.get(member_id, NOTHING_ASSIGNED)
        # What it has still to give back is its own, too (KAFKA-20431).
        assigned = {topic_id: set(parts) for topic_id, parts in current.assigned.items()}
        for topic_id, partitions in current.pending.items():
            assigned.setdefault(topic_id, set()).update(partitions)
        return Member(
            member_id,
            member.instance_id,
            member.rack_id,
            current.epoch,
            member.client_id,
            member.client_host,
            list(member.topics),
            member.regex,
            self._assignment(assigned),
            self._assignment(group.targets.get(member_id, {})),
            _MEMBER_TYPE_CONSUMER if member.classic is None else _MEMBER_TYPE_CLASSIC,
        )

    def _assignment(
        self, partitions: Mapping[UUID, Collection[int]]
    ) -> ConsumerGroupDescribeResponseAssignment:
        """Without topics that are no longer there: they have no names."""
        found = [
            (topic, partitions[topic_id])
            for topic_id in sorted(partitions)
            if (topic := self._catalog.get_by_id(topic_id)) is not None
        ]
        return ConsumerGroupDescribeResponseAssignment(
            [
                ConsumerGroupDescribeResponseTopicPartitions(topic.id, topic.name, sorted(numbers))
                for topic, numbers in found
            ]
        )


def _is_long(body: ConsumerGroupHeartbeatRequest) -> bool:
    """Whether it is to be handled in slices."""
    names, owned = body.subscribed_topic_names or (), body.topic_partitions or ()
    if len(names) + len(owned) > ELEMENTS_AT_ONCE:
        return True
    return sum(len(each.partitions) for each in owned) > ELEMENTS_AT_ONCE


def _form_problem(body: ConsumerGroupHeartbeatRequest, version: int) -> str | None:
    """What is wrong with a request whatever the group is."""
    if not body.group_id:
        return "GroupId can't be empty."
    for name, value in (
        ("InstanceId", body.instance_id),
        ("RackId", body.rack_id),
        ("ServerAssignor", body.server_assignor),
    ):
        if value is not None and not value.strip():
            return f"{name} can't be empty."
    problem = names_problem(body.subscribed_topic_names)
    if problem is not None:
        return problem
    epoch = body.member_epoch
    if not body.member_id and (version >= 1 or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH):
        return "MemberId can't be empty."
    if epoch < STATIC_LEAVE_EPOCH:
        return "MemberEpoch is invalid."
    if epoch == STATIC_LEAVE_EPOCH and body.instance_id is None:
        return "InstanceId can't be null."
    if epoch == JOIN_EPOCH:
        if body.rebalance_timeout_ms == -1:
            return "RebalanceTimeoutMs must be provided in first request."
        if body.topic_partitions is None or body.topic_partitions:
            return "TopicPartitions must be empty when (re-)joining."
        if body.subscribed_topic_names is None and body.subscribed_topic_regex is None:
            return "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null."
    return None


def _heartbeat_response(result: HeartbeatResult) -> ConsumerGroupHeartbeatResponse:
    assignment = None
    if result.assignment is not None:
        assignment = ConsumerGroupHeartbeatResponseAssignment(
            [
                ConsumerGroupHeartbeatResponseTopicPartitions(topic_id, sorted(partitions))
                for topic_id, partitions in sorted(result.assignment.items())
            ]
        )
    return ConsumerGroupHeartbeatResponse(
        error_code=int(result.error),
        error_message=result.message,
        member_id=result.member_id,
        member_epoch=result.epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        assignment=assignment,
    )
