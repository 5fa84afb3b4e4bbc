"""Committed offsets of groups.

| key | API | versions |
|---|---|---|
| 8 | OffsetCommit | 2-10 |
| 9 | OffsetFetch | 1-10 |
| 47 | OffsetDelete | 0 |

Behaviour: Kafka 4.3's.
- OffsetCommit: partitions that do not exist get UNKNOWN_TOPIC_OR_PARTITION, topic ids that are not
  known (10) UNKNOWN_TOPIC_ID, metadata beyond offset.metadata.max.bytes characters
  OFFSET_METADATA_TOO_LARGE; the rest of the request is one append, answered when it is durable. 2-4
  may carry a retention, which overrides the broker's. For a group that is not there and a
  generation: GROUP_ID_NOT_FOUND from 9 on, ILLEGAL_GENERATION before.
- OffsetFetch: null topics (2+) mean all; `require_stable` (7+) waits for commits on their way and
  answers UNSTABLE_OFFSET_COMMIT for offsets of open transactions; several groups from 8 on; topic
  ids in 10. Nothing committed is offset -1, epoch -1, metadata "". A group that is not there has
  nothing committed, which is no error.
- OffsetDelete: GROUP_SUBSCRIBED_TO_TOPIC for topics that a member of the group reads.

Known deviations: a commit's optional member epoch of KIP-848 is read as a generation: all groups
here are classic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api import Api, Reply, Request
from broker.groups.offsets_core import CommittedOffset, GroupOffsets
from runtime.config import LONG_MAX
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode
from wire.kafka.message import ZERO_UUID
from wire.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

if TYPE_CHECKING:
    import uuid

    from broker.groups.coordinator import GroupCoordinator, OffsetToCommit
    from broker.groups.ports import Catalog, Topic

_TOPIC_IDS_FROM = 10


class OffsetsHandler:
    """Between the messages and the coordinator; keeps nothing."""

    def __init__(self, coordinator: GroupCoordinator, catalog: Catalog) -> None:
        self._coordinator = coordinator
        self._catalog = catalog

    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.OFFSET_COMMIT, 2, 10, self.commit),
            Api(ApiKey.OFFSET_FETCH, 1, 10, self.fetch),
            Api(ApiKey.OFFSET_DELETE, 0, 0, self.delete),
        ]

    # --- OffsetCommit

    def commit(self, request: Request) -> Reply:
        body: OffsetCommitRequest = request.body
        reply = Reply()
        response = OffsetCommitResponse()
        offsets: list[OffsetToCommit] = []
        waiting: list[OffsetCommitResponsePartition] = []
        now_ms = self._coordinator.timers.wall_ms()
        retention_ms = body.retention_time_ms
        # A record holds an int64: what lies beyond it is never, and what is gone by is now.
        expire_ms = -1 if retention_ms == -1 else min(max(now_ms + retention_ms, 0), LONG_MAX)
        for asked in body.topics:
            topic, unknown = self._topic(request.version, asked.name, asked.topic_id)
            answers = OffsetCommitResponseTopic(asked.name, asked.topic_id, [])
            response.topics.append(answers)
            for partition in asked.partitions:
                number = partition.partition_index
                answer = OffsetCommitResponsePartition(number)
                answers.partitions.append(answer)
                if topic is None:
                    answer.error_code = unknown
                elif not 0 <= number < topic.partition_count:
                    answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif self._is_too_large(partition):
                    answer.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    waiting.append(answer)
                    value = _to_commit(partition, now_ms, expire_ms, topic.id)
                    offsets.append((topic.name, number, value))
        if not offsets:
            reply.resolve(response)
            return reply

        def done(error: ErrorCode) -> None:
            if error is ErrorCode.GROUP_ID_NOT_FOUND and request.version < 9:
                error = ErrorCode.ILLEGAL_GENERATION
            if error:
                for answer in waiting:
                    answer.error_code = error
            reply.resolve(response)

        self._coordinator.commit(
            body.group_id,
            body.member_id,
            body.group_instance_id,
            body.generation_id_or_member_epoch,
            offsets,
            done,
        )
        return reply

    def _is_too_large(self, partition: OffsetCommitRequestPartition) -> bool:
        # Kafka counts UTF-16 units, not bytes, whatever the setting is called.
        text = partition.committed_metadata
        limit = self._coordinator.config.offset_metadata_max_bytes
        if text is None or len(text) * 2 <= limit:
            return False
        return len(text.encode("utf-16-le", "surrogatepass")) // 2 > limit

    # --- OffsetFetch

    def fetch(self, request: Request) -> Reply:
        body: OffsetFetchRequest = request.body
        reply = Reply()
        asked = body.groups if request.version >= 8 else [_as_group(body)]
        answers: list[OffsetFetchResponseGroup | None] = [None] * len(asked)
        left = len(asked)

        def fetch_one(at: int, group: OffsetFetchRequestGroup) -> None:
            def done(error: ErrorCode, offsets: GroupOffsets | None) -> None:
                nonlocal left
                answer = OffsetFetchResponseGroup(group.group_id, [], error)
                if not error:
                    answer.topics = self._fetched(request, group, offsets)
                answers[at] = answer
                left -= 1
                if not left:
                    reply.resolve(_fetch_response(request.version, answers))

            self._coordinator.fetch(group.group_id, body.require_stable, done)

        for at, group in enumerate(asked):
            fetch_one(at, group)
        if not asked:
            reply.resolve(OffsetFetchResponse())
        return reply

    def _fetched(
        self, request: Request, group: OffsetFetchRequestGroup, offsets: GroupOffsets | None
    ) -> list[OffsetFetchResponseTopics]:
        body: OffsetFetchRequest = request.body
        table = GroupOffsets() if offsets is None else offsets
        stable = body.require_stable
        if group.topics is None:
            return self._fetched_all(request.version, table, stable)
        topics = []
        for asked in group.topics:
            answer = OffsetFetchResponseTopics(asked.name, asked.topic_id, [])
            topics.append(answer)
            name, topic_id = asked.name, None
            if request.version >= _TOPIC_IDS_FROM:
                topic = self._catalog.get_by_id(asked.topic_id)
                if topic is None:
                    answer.partitions = [
                        OffsetFetchResponsePartitions(each, -1, -1, "", ErrorCode.UNKNOWN_TOPIC_ID)
                        for each in asked.partition_indexes
                    ]
                    continue
                name, topic_id = topic.name, topic.id
            for number in asked.partition_indexes:
                answer.partitions.append(_fetched_one(table, name, number, topic_id, stable))
        return topics

    def _fetched_all(
        self, version: int, table: GroupOffsets, stable: bool
    ) -> list[OffsetFetchResponseTopics]:
        topics = []
        for name, partitions in table.by_topic.items():
            topic_id = ZERO_UUID
            if version >= _TOPIC_IDS_FROM:
                topic = self._catalog.get(name)
                if topic is None:
                    continue  # it is gone, and its offsets will be
                topic_id = topic.id
            answers = [_fetched_one(table, name, each, None, stable) for each in partitions]
            topics.append(OffsetFetchResponseTopics(name, topic_id, answers))
        return topics

    # --- OffsetDelete

    def delete(self, request: Request) -> Reply:
        body: OffsetDeleteRequest = request.body
        reply = Reply()
        response = OffsetDeleteResponse()
        keys: list[tuple[str, int]] = []
        waiting: list[OffsetDeleteResponsePartition] = []
        for asked in body.topics:
            topic = self._catalog.get(asked.name)
            answers = OffsetDeleteResponseTopic(asked.name, [])
            response.topics.append(answers)
            for partition in asked.partitions:
                number = partition.partition_index
                answer = OffsetDeleteResponsePartition(number)
                answers.partitions.append(answer)
                if topic is None or not 0 <= number < topic.partition_count:
                    answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    keys.append((asked.name, number))
                    waiting.append(answer)

        def done(error: ErrorCode, errors: list[ErrorCode]) -> None:
            if error:
                reply.resolve(OffsetDeleteResponse(error_code=error))
                return
            for answer, each in zip(waiting, errors, strict=True):
                answer.error_code = each
            reply.resolve(response)

        self._coordinator.delete_offsets(body.group_id, keys, done)
        return reply

    def _topic(
        self, version: int, name: str, topic_id: uuid.UUID
    ) -> tuple[Topic | None, ErrorCode]:
        if version >= _TOPIC_IDS_FROM:
            return self._catalog.get_by_id(topic_id), ErrorCode.UNKNOWN_TOPIC_ID
        return self._catalog.get(name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _to_commit(
    partition: OffsetCommitRequestPartition, now_ms: int, expire_ms: int, topic_id: uuid.UUID
) -> CommittedOffset:
    return CommittedOffset(
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.committed_metadata or "",
        now_ms,
        expire_ms,
        topic_id,
    )


def _fetched_one(
    table: GroupOffsets, topic: str, partition: int, topic_id: uuid.UUID | None, stable: bool
) -> OffsetFetchResponsePartitions:
    if stable and (topic, partition) in table.unstable:
        error = ErrorCode.UNSTABLE_OFFSET_COMMIT
        return OffsetFetchResponsePartitions(partition, -1, -1, "", error)
    committed = table.get(topic, partition)
    if committed is None or not committed.is_of(topic_id):
        return OffsetFetchResponsePartitions(partition, -1, -1, "")
    return OffsetFetchResponsePartitions(
        partition, committed.offset, committed.leader_epoch, committed.metadata
    )


def _as_group(body: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    """The one group of versions up to 7 in the form of later ones."""
    topics = body.topics
    return OffsetFetchRequestGroup(
        group_id=body.group_id,
        topics=None
        if topics is None
        else [
            OffsetFetchRequestTopics(each.name, partition_indexes=each.partition_indexes)
            for each in topics
        ],
    )


def _fetch_response(
    version: int, answers: list[OffsetFetchResponseGroup | None]
) -> OffsetFetchResponse:
    groups = [answer for answer in answers if answer is not None]
    assert len(groups) == len(answers)
    if version >= 8:
        return OffsetFetchResponse(groups=groups)
    (group,) = groups
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                topic.name,
                [
                    OffsetFetchResponsePartition(
                        each.partition_index,
                        each.committed_offset,
                        each.committed_leader_epoch,
                        each.metadata,
                        each.error_code,
                    )
                    for each in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )
