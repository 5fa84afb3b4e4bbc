"""Share groups (KIP-932): members, and where a group reads.

| key | API | versions |
|---|---|---|
| 76 | ShareGroupHeartbeat | 1 |
| 77 | ShareGroupDescribe | 1 |
| 90 | DescribeShareGroupOffsets | 0-1 |
| 91 | AlterShareGroupOffsets | 0 |
| 92 | DeleteShareGroupOffsets | 0 |

Behaviour: Kafka 4.3's; what a heartbeat does is share_group_core's contract. Here is its form:
group id and member id are not empty, nor is the rack id if it is given; the epoch is -1 or more;
who joins (epoch 0) names topics. All of that is INVALID_REQUEST; everything UNSUPPORTED_VERSION
while not every broker of the cluster serves share groups.

- ShareGroupDescribe tells what is stored. An empty group id is INVALID_GROUP_ID, a group that is
  not there, or of another type, GROUP_ID_NOT_FOUND.
- DescribeShareGroupOffsets: null topics mean all that the group has begun. What nothing is known of
  has start offset -1 and no error: a topic that does not exist, a partition that was not begun, one
  whose share coordinator cannot be asked. From version 1 on there is a lag, -1 if it is not known;
  LEADER_NOT_AVAILABLE if it would be but for the partition's end.
- AlterShareGroupOffsets makes a group that is not there. NON_EMPTY_GROUP;
  UNKNOWN_TOPIC_OR_PARTITION by partition.
- DeleteShareGroupOffsets: GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP; UNKNOWN_TOPIC_OR_PARTITION by topic,
  also of one that the group knows nothing of.

Known deviations: AlterShareGroupOffsets refuses start offsets below -1 (INVALID_REQUEST), and
raises the group's epoch, so that whoever reads by the old state is fenced. A member, and all
members of a group together, can name NAMES_MAX topics (INVALID_REQUEST).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api import STEP_UNITS, Api, Reply, Request, Steps, all_steps, each_once
from broker.authorization import ALL_OPERATIONS, ResourceType
from broker.groups.consumer.names import names_problem
from broker.groups.share.group import NOTHING_ASSIGNED
from broker.groups.share.state_core import UNKNOWN_START
from broker.groups.share.types import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    HeartbeatInput,
    HeartbeatResult,
    TopicPartitions,
)
from runtime.slices import Slices
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, short
from wire.kafka.messages.share_groups import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
    DescribedGroup,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
    Member,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupDescribeResponseAssignment,
    ShareGroupDescribeResponseTopicPartitions,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
    ShareGroupHeartbeatResponseAssignment,
    ShareGroupHeartbeatResponseTopicPartitions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from uuid import UUID

    from broker.coordinator.ports import Catalog, Topic
    from broker.groups.share.group import ShareGroup
    from broker.groups.share.requests import ShareRequests, StartOffset
    from broker.groups.share.state_core import Key

#: What a group costs, in units of `Steps`, and characters of its id that cost one: it is hashed.
GROUP_UNITS = 8
MEMBER_UNITS = 20
PARTITION_UNITS = 5
CHARACTERS_PER_UNIT = 20
#: With more the request is handled in slices.
NAMES_AT_ONCE = 500


class ShareGroupsHandler:
    """Between the messages and the coordinator; keeps nothing."""

    def __init__(
        self,
        groups: ShareRequests,
        catalog: Catalog,
        is_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """`is_on`: whether share groups are served: the cluster's `share.version` allows it."""
        self._groups = groups
        self._catalog = catalog
        self._is_on = is_on

    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.SHARE_GROUP_HEARTBEAT, 1, 1, self.heartbeat),
            Api(ApiKey.SHARE_GROUP_DESCRIBE, 1, 1, self.describe),
            Api(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 0, 1, self.describe_offsets),
            Api(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, 0, self.alter_offsets),
            Api(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, 0, self.delete_offsets),
        ]

    # --- ShareGroupHeartbeat

    def heartbeat(
        self, request: Request
    ) -> ShareGroupHeartbeatResponse | Reply | Steps[ShareGroupHeartbeatResponse | Reply]:
        body: ShareGroupHeartbeatRequest = request.body
        if not self._is_on():
            return ShareGroupHeartbeatResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION))
        problem = _form_problem(body)
        if problem is not None:
            return ShareGroupHeartbeatResponse(
                error_code=int(ErrorCode.INVALID_REQUEST), error_message=problem
            )
        steps = self._heartbeat(request)
        return steps if len(body.subscribed_topic_names or ()) > NAMES_AT_ONCE else all_steps(steps)

    def _heartbeat(self, request: Request) -> Steps[Reply]:
        body: ShareGroupHeartbeatRequest = request.body
        reply = Reply()
        names, topics = body.subscribed_topic_names, None
        if names is not None:
            topics = tuple(sorted(set(names)))
            yield len(names)
        given = HeartbeatInput(
            body.member_id,
            body.member_epoch,
            request.client_id,
            f"/{request.connection.peer_host}",
            body.rack_id,
            topics,
        )
        self._groups.heartbeat(
            body.group_id, given, lambda result: reply.resolve(_heartbeat_response(result))
        )
        return reply

    # --- ShareGroupDescribe

    def describe(self, request: Request) -> Steps[ShareGroupDescribeResponse]:
        body: ShareGroupDescribeRequest = request.body
        response = ShareGroupDescribeResponse()
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
        live, error = self._groups.find(group_id)
        if live is None:
            described.error_code = int(error)
            if error is ErrorCode.GROUP_ID_NOT_FOUND:
                described.error_message = short(f"Group {group_id} not found.")
            return described
        group = live.stored
        described.group_state = group.state.value
        described.group_epoch = group.epoch
        described.assignment_epoch = group.assignment_epoch
        described.assignor_name = self._groups.assignor
        for member_id in list(group.members):
            if member_id in group.members:
                member = self._member(group, member_id)
                described.members.append(member)
                parts = member.assignment.topic_partitions
                yield MEMBER_UNITS + sum(1 + len(each.partitions) for each in parts)
        return described

    def _member(self, group: ShareGroup, member_id: str) -> Member:
        member = group.members[member_id]
        current = group.current.get(member_id, NOTHING_ASSIGNED)
        # Topics that are no longer there have no names.
        found = [
            (topic, current.assigned[topic_id])
            for topic_id in sorted(current.assigned)
            if (topic := self._catalog.get_by_id(topic_id)) is not None
        ]
        return Member(
            member_id,
            member.rack_id,
            current.epoch,
            member.client_id,
            member.client_host,
            list(member.topics),
            ShareGroupDescribeResponseAssignment(
                [
                    ShareGroupDescribeResponseTopicPartitions(topic.id, topic.name, sorted(numbers))
                    for topic, numbers in found
                ]
            ),
        )

    # --- DescribeShareGroupOffsets

    async def describe_offsets(self, request: Request) -> DescribeShareGroupOffsetsResponse:
        body: DescribeShareGroupOffsetsRequest = request.body
        slices = Slices(STEP_UNITS)
        response = DescribeShareGroupOffsetsResponse()
        for group in body.groups:
            if slices.due(GROUP_UNITS + len(group.group_id) // CHARACTERS_PER_UNIT):
                await slices.turn()
            response.groups.append(await self._described_offsets(group, slices))
        return response

    async def _described_offsets(
        self, asked: DescribeShareGroupOffsetsRequestGroup, slices: Slices
    ) -> DescribeShareGroupOffsetsResponseGroup:
        answer = DescribeShareGroupOffsetsResponseGroup(group_id=asked.group_id)
        if not self._is_on():
            answer.error_code = int(ErrorCode.UNSUPPORTED_VERSION)
            return answer
        wanted: list[tuple[str, Iterable[int], Topic | None]] = []
        error, known = self._groups.known(asked.group_id)
        if error:
            answer.error_code = int(error)
            return answer
        if asked.topics is None:
            for topic_id in sorted(known):
                topic = self._catalog.get_by_id(topic_id)
                if topic is not None:
                    wanted.append((topic.name, sorted(known[topic_id].partitions), topic))
        else:
            for each in asked.topics:
                found = self._catalog.get(each.topic_name)
                wanted.append((each.topic_name, dict.fromkeys(each.partitions), found))
        keys: dict[Key, None] = {}
        for _, partitions, topic in wanted:
            if topic is not None:
                for partition in partitions:
                    if slices.due(PARTITION_UNITS):
                        await slices.turn()
                    keys[topic.id, partition] = None
        names = {topic.id: topic.name for _, _, topic in wanted if topic is not None}
        offsets = await self._groups.read(asked.group_id, names, list(keys))
        for name, partitions, topic in wanted:
            told = DescribeShareGroupOffsetsResponseTopic(topic_name=name)
            answer.topics.append(told)
            if topic is not None:
                told.topic_id = topic.id
            for partition in partitions:
                if slices.due(PARTITION_UNITS):
                    await slices.turn()
                found_offset = None if topic is None else offsets[topic.id, partition]
                told.partitions.append(_described_partition(partition, found_offset))
        return answer

    # --- AlterShareGroupOffsets

    def alter_offsets(self, request: Request) -> Steps[AlterShareGroupOffsetsResponse | Reply]:
        body: AlterShareGroupOffsetsRequest = request.body
        refused = self._refusal(body.group_id)
        if refused:
            return AlterShareGroupOffsetsResponse(error_code=int(refused))
        response = AlterShareGroupOffsetsResponse()
        answers: dict[Key, AlterShareGroupOffsetsResponsePartition] = {}
        offsets: dict[Key, int] = {}
        numbers: dict[UUID, set[int]] = {}
        names: dict[UUID, str] = {}
        for asked in body.topics:
            yield PARTITION_UNITS
            topic = self._catalog.get(asked.topic_name)
            told = AlterShareGroupOffsetsResponseTopic(topic_name=asked.topic_name)
            response.responses.append(told)
            if topic is not None:
                told.topic_id, names[topic.id] = topic.id, topic.name
            for partition in asked.partitions:
                yield PARTITION_UNITS
                number = partition.partition_index
                answer = AlterShareGroupOffsetsResponsePartition(number)
                told.partitions.append(answer)
                if topic is None or not 0 <= number < topic.partition_count:
                    answer.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                elif partition.start_offset < UNKNOWN_START:
                    answer.error_code = int(ErrorCode.INVALID_REQUEST)
                else:
                    key = (topic.id, number)
                    answers[key], offsets[key] = answer, partition.start_offset
                    numbers.setdefault(topic.id, set()).add(number)
        wanted = {
            topic_id: TopicPartitions(names[topic_id], frozenset(each))
            for topic_id, each in numbers.items()
        }
        reply = Reply()

        def done(error: ErrorCode, errors: Mapping[Key, ErrorCode]) -> None:
            if error:
                reply.resolve(AlterShareGroupOffsetsResponse(error_code=int(error)))
                return
            for key, each in errors.items():
                answers[key].error_code = int(each)
            reply.resolve(response)

        self._groups.alter(body.group_id, wanted, offsets, done)
        return reply

    # --- DeleteShareGroupOffsets

    def delete_offsets(self, request: Request) -> Steps[DeleteShareGroupOffsetsResponse | Reply]:
        body: DeleteShareGroupOffsetsRequest = request.body
        refused = self._refusal(body.group_id)
        if refused:
            return DeleteShareGroupOffsetsResponse(error_code=int(refused))
        response = DeleteShareGroupOffsetsResponse()
        ids: dict[UUID, DeleteShareGroupOffsetsResponseTopic] = {}
        for name in (yield from each_once(each.topic_name for each in body.topics)):
            yield PARTITION_UNITS
            topic = self._catalog.get(name)
            told = DeleteShareGroupOffsetsResponseTopic(topic_name=name)
            response.responses.append(told)
            if topic is None:
                told.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                told.topic_id, ids[topic.id] = topic.id, told
        reply = Reply()

        def done(error: ErrorCode, errors: Mapping[UUID, ErrorCode]) -> None:
            if error:
                reply.resolve(DeleteShareGroupOffsetsResponse(error_code=int(error)))
                return
            for topic_id, each in errors.items():
                ids[topic_id].error_code = int(each)
                if each is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    ids[topic_id].error_message = "There is no offset information to delete."
            reply.resolve(response)

        self._groups.delete(body.group_id, list(ids), done)
        return reply

    def _refusal(self, group_id: str) -> ErrorCode:
        if not self._is_on():
            return ErrorCode.UNSUPPORTED_VERSION
        return ErrorCode.NONE if group_id else ErrorCode.INVALID_GROUP_ID


def _form_problem(body: ShareGroupHeartbeatRequest) -> str | None:
    """What is wrong with a request whatever the group is."""
    if not body.member_id.strip():
        return "MemberId can't be empty."
    if not body.group_id.strip():
        return "GroupId can't be empty."
    if body.rack_id is not None and not body.rack_id.strip():
        return "RackId can't be empty."
    if body.member_epoch < LEAVE_EPOCH:
        return "MemberEpoch is invalid."
    problem = names_problem(body.subscribed_topic_names)
    if problem is not None:
        return problem
    if body.member_epoch == JOIN_EPOCH and not body.subscribed_topic_names:
        return "SubscribedTopicNames must be set in first request."
    return None


def _heartbeat_response(result: HeartbeatResult) -> ShareGroupHeartbeatResponse:
    assignment = None
    if result.assignment is not None:
        assignment = ShareGroupHeartbeatResponseAssignment(
            [
                ShareGroupHeartbeatResponseTopicPartitions(topic_id, sorted(partitions))
                for topic_id, partitions in sorted(result.assignment.items())
            ]
        )
    return ShareGroupHeartbeatResponse(
        error_code=int(result.error),
        error_message=result.message,
        member_id=result.member_id,
        member_epoch=result.epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        assignment=assignment,
    )


def _described_partition(
    partition: int, found: StartOffset | None
) -> DescribeShareGroupOffsetsResponsePartition:
    if found is None:
        return DescribeShareGroupOffsetsResponsePartition(partition, UNKNOWN_START)
    return DescribeShareGroupOffsetsResponsePartition(
        partition, found.start_offset, found.leader_epoch, found.lag, int(found.error)
    )
