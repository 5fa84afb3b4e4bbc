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
- OffsetFetch: null topics (2+) mean all; `require_stable` (7+) waits for commits on their way, and
  answers UNSTABLE_OFFSET_COMMIT for offsets of open transactions; several groups from 8 on; topic
  ids in 10. Nothing committed is offset -1, epoch -1, metadata "". A group that is not there has
  nothing committed, which is no error.
  A group that was here until a moment ago is COORDINATOR_LOAD_IN_PROGRESS, where Kafka says
  NOT_COORDINATOR: librdkafka (2.16) asks no second time after that (its issue 5586).
- OffsetDelete: GROUP_SUBSCRIBED_TO_TOPIC for topics that a member of the group reads.

OffsetFetch is answered from memory, as Kafka's is. Where another broker took the group over, and
this one does not know it yet, memory is what was committed before that. With `require_stable` the
answer therefore comes behind an append: nobody who was told of a newer commit is then told an older
one. It costs one small append for all who ask in a turn, and is refused while the log of the
coordinator takes none. Without `require_stable` nothing is proven: assumed is that the client asks
again, or that its own next commit finds the coordinator deposed.

A member of a consumer group (KIP-848) commits from 9 on, by its epoch in the place of a generation;
below, UNSUPPORTED_VERSION. With an epoch that is over it may commit what it has had since
(KIP-1251), else STALE_MEMBER_EPOCH. From 9 on it may tell its id and epoch to OffsetFetch, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from broker.api import STEP_UNITS, Api, Reply, Request, Steps, all_steps, in_slices
from broker.groups.offsets.offsets_core import CommittedOffset, GroupOffsets
from runtime.config import LONG_MAX
from runtime.slices import Slices
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
    from collections.abc import Awaitable

    from broker.coordinator.ports import Catalog, Topic
    from broker.groups.coordinator import GroupCoordinator, OffsetToCommit
    from wire.kafka.message import Message

_TOPIC_IDS_FROM = 10
_EPOCHS_FROM = 9

#: Partitions that are committed, deleted or looked up at once: some 3 ms.
CHUNK_PARTITIONS = 250
GROUPS_AT_ONCE = 20
#: What a partition costs, in units of `Steps`, and characters of a group's id: it is hashed.
PARTITION_UNITS = 5
CHARACTERS_PER_UNIT = 20


class Parts(Reply):
    """A reply that is resolved when all of its parts are done, and one more when all were begun."""

    __slots__ = ("outstanding", "response")

    def __init__(self, response: Message) -> None:
        super().__init__()
        self.response = response
        self.outstanding = 1

    def one_done(self) -> None:
        self.outstanding -= 1
        if not self.outstanding:
            self.resolve(self.response)


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

    def commit(self, request: Request) -> Steps[Reply]:
        body: OffsetCommitRequest = request.body
        response = OffsetCommitResponse()
        parts = Parts(response)
        limit = self._coordinator.config.offset_metadata_max_bytes
        chunk: list[tuple[OffsetCommitResponsePartition, OffsetToCommit]] = []
        now_ms = self._coordinator.timers.wall_ms()
        retention_ms = body.retention_time_ms
        # A record holds an int64: what lies beyond it is never, and what is gone by is now.
        expire_ms = -1 if retention_ms == -1 else min(max(now_ms + retention_ms, 0), LONG_MAX)
        for asked in body.topics:
            yield PARTITION_UNITS
            topic, unknown = self._topic(request.version, asked.name, asked.topic_id)
            answers = OffsetCommitResponseTopic(asked.name, asked.topic_id, [])
            response.topics.append(answers)
            for partition in asked.partitions:
                yield PARTITION_UNITS
                number = partition.partition_index
                answer = OffsetCommitResponsePartition(number)
                answers.partitions.append(answer)
                if topic is None:
                    answer.error_code = unknown
                elif not 0 <= number < topic.partition_count:
                    answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif is_metadata_too_large(partition.committed_metadata, limit):
                    answer.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    value = _to_commit(partition, now_ms, expire_ms, topic.id)
                    chunk.append((answer, (topic.name, number, value)))
                    if len(chunk) == CHUNK_PARTITIONS:
                        self._commit_chunk(request, chunk, parts)
                        yield CHUNK_PARTITIONS * PARTITION_UNITS
                        chunk = []
        if chunk:
            self._commit_chunk(request, chunk, parts)
        parts.one_done()
        return parts

    def _commit_chunk(
        self,
        request: Request,
        chunk: list[tuple[OffsetCommitResponsePartition, OffsetToCommit]],
        parts: Parts,
    ) -> None:
        """One append's worth of offsets. Nearly always that is all of them; a request of more than
        a batch's worth is no single batch in Kafka either, which refuses it."""
        body: OffsetCommitRequest = request.body

        def done(error: ErrorCode) -> None:
            if error is ErrorCode.GROUP_ID_NOT_FOUND and request.version < 9:
                error = ErrorCode.ILLEGAL_GENERATION
            if error:
                for answer, _ in chunk:
                    answer.error_code = error
            parts.one_done()

        parts.outstanding += 1
        self._coordinator.commit(
            body.group_id,
            body.member_id,
            body.group_instance_id,
            body.generation_id_or_member_epoch,
            [offset for _, offset in chunk],
            done,
            speaks_epochs=request.version >= _EPOCHS_FROM,
        )

    # --- OffsetFetch

    def fetch(self, request: Request) -> Reply | Awaitable[OffsetFetchResponse]:
        body: OffsetFetchRequest = request.body
        asked = body.groups if request.version >= 8 else [_as_group(body)]
        if _is_large(asked):
            return self._fetch_in_task(request, asked)
        reply = Reply()
        answers: list[OffsetFetchResponseGroup | None] = [None] * len(asked)
        left = len(asked)

        def fetch_one(at: int, group: OffsetFetchRequestGroup) -> None:
            def done(error: ErrorCode, offsets: GroupOffsets | None) -> None:
                nonlocal left
                answer = OffsetFetchResponseGroup(group.group_id, [], error)
                if not error:
                    answer.topics = all_steps(self._fetched(request, group, offsets))
                answers[at] = answer
                left -= 1
                if not left:
                    reply.resolve(all_steps(_fetch_response(request.version, answers)))

            self._coordinator.fetch(
                group.group_id,
                body.require_stable,
                done,
                member_id=group.member_id,
                member_epoch=group.member_epoch,
            )

        for at, group in enumerate(asked):
            fetch_one(at, group)
        if not asked:
            reply.resolve(OffsetFetchResponse())
        return reply

    async def _fetch_in_task(
        self, request: Request, asked: list[OffsetFetchRequestGroup]
    ) -> OffsetFetchResponse:
        """The same for many partitions, in slices."""
        answers: list[OffsetFetchResponseGroup | None] = []
        slices = Slices(STEP_UNITS)
        for group in asked:
            if slices.due(PARTITION_UNITS + len(group.group_id) // CHARACTERS_PER_UNIT):
                await slices.turn()
            error, offsets = await self._table(request, group)
            answer = OffsetFetchResponseGroup(group.group_id, [], error)
            if not error:
                answer.topics = await in_slices(self._fetched(request, group, offsets))
            answers.append(answer)
        return await in_slices(_fetch_response(request.version, answers))

    async def _table(
        self, request: Request, group: OffsetFetchRequestGroup
    ) -> tuple[ErrorCode, GroupOffsets | None]:
        came = trio.Event()
        found: list[tuple[ErrorCode, GroupOffsets | None]] = []

        def done(error: ErrorCode, offsets: GroupOffsets | None) -> None:
            found.append((error, offsets))
            came.set()

        self._coordinator.fetch(
            group.group_id,
            request.body.require_stable,
            done,
            member_id=group.member_id,
            member_epoch=group.member_epoch,
        )
        if not found:
            await came.wait()
        return found[0]

    def _fetched(
        self, request: Request, group: OffsetFetchRequestGroup, offsets: GroupOffsets | None
    ) -> Steps[list[OffsetFetchResponseTopics]]:
        body: OffsetFetchRequest = request.body
        table = GroupOffsets() if offsets is None else offsets
        stable = body.require_stable
        if group.topics is None:
            return (yield from self._fetched_all(request.version, table, stable))
        topics = []
        for asked in group.topics:
            yield PARTITION_UNITS
            answer = OffsetFetchResponseTopics(asked.name, asked.topic_id, [])
            topics.append(answer)
            name, topic_id, is_known = asked.name, None, True
            if request.version >= _TOPIC_IDS_FROM:
                topic = self._catalog.get_by_id(asked.topic_id)
                is_known = topic is not None
                if topic is not None:
                    name, topic_id = topic.name, topic.id
            for number in asked.partition_indexes:
                yield 2
                answer.partitions.append(
                    _fetched_one(table, name, number, topic_id, stable)
                    if is_known
                    else OffsetFetchResponsePartitions(
                        number, -1, -1, "", ErrorCode.UNKNOWN_TOPIC_ID
                    )
                )
        return topics

    def _fetched_all(
        self, version: int, table: GroupOffsets, stable: bool
    ) -> Steps[list[OffsetFetchResponseTopics]]:
        topics = []
        for name, partitions in list(table.by_topic.items()):
            yield PARTITION_UNITS
            topic_id = ZERO_UUID
            if version >= _TOPIC_IDS_FROM:
                topic = self._catalog.get(name)
                if topic is None:
                    continue  # it is gone, and its offsets will be
                topic_id = topic.id
            answer = OffsetFetchResponseTopics(name, topic_id, [])
            topics.append(answer)
            for number in list(partitions):
                yield 2
                answer.partitions.append(_fetched_one(table, name, number, None, stable))
        return topics

    # --- OffsetDelete

    def delete(self, request: Request) -> Steps[Reply]:
        body: OffsetDeleteRequest = request.body
        response = OffsetDeleteResponse()
        parts = Parts(response)
        chunk: list[tuple[OffsetDeleteResponsePartition, tuple[str, int]]] = []
        is_first = True
        for asked in body.topics:
            yield PARTITION_UNITS
            topic = self._catalog.get(asked.name)
            answers = OffsetDeleteResponseTopic(asked.name, [])
            response.topics.append(answers)
            for partition in asked.partitions:
                yield PARTITION_UNITS
                number = partition.partition_index
                answer = OffsetDeleteResponsePartition(number)
                answers.partitions.append(answer)
                if topic is None or not 0 <= number < topic.partition_count:
                    answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    continue
                chunk.append((answer, (asked.name, number)))
                if len(chunk) == CHUNK_PARTITIONS:
                    self._delete_chunk(body.group_id, chunk, parts)
                    chunk, is_first = [], False
                    yield CHUNK_PARTITIONS * PARTITION_UNITS
        if chunk or is_first:  # an empty one, too, says whether there is such a group
            self._delete_chunk(body.group_id, chunk, parts)
        parts.one_done()
        return parts

    def _delete_chunk(
        self,
        group_id: str,
        chunk: list[tuple[OffsetDeleteResponsePartition, tuple[str, int]]],
        parts: Parts,
    ) -> None:
        def done(error: ErrorCode, errors: list[ErrorCode]) -> None:
            if error:
                parts.response = OffsetDeleteResponse(error_code=error)
            for (answer, _), each in zip(chunk, errors, strict=False):
                answer.error_code = each
            parts.one_done()

        parts.outstanding += 1
        self._coordinator.delete_offsets(group_id, [key for _, key in chunk], done)

    def _topic(
        self, version: int, name: str, topic_id: uuid.UUID
    ) -> tuple[Topic | None, ErrorCode]:
        if version >= _TOPIC_IDS_FROM:
            return self._catalog.get_by_id(topic_id), ErrorCode.UNKNOWN_TOPIC_ID
        return self._catalog.get(name), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def is_metadata_too_large(text: str | None, limit: int) -> bool:
    """Kafka counts UTF-16 units, not bytes, whatever the setting is called."""
    if text is None or len(text) * 2 <= limit:
        return False
    return len(text.encode("utf-16-le", "surrogatepass")) // 2 > limit


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


def _is_large(asked: list[OffsetFetchRequestGroup]) -> bool:
    """Whether the answer may have more partitions than are looked up at once."""
    partitions = 0
    for number, group in enumerate(asked):
        if group.topics is None or number >= GROUPS_AT_ONCE:
            return True
        for topic in group.topics:
            partitions += 1 + len(topic.partition_indexes)
            if partitions > CHUNK_PARTITIONS:
                return True
    return False


def _fetch_response(
    version: int, answers: list[OffsetFetchResponseGroup | None]
) -> Steps[OffsetFetchResponse]:
    groups = [answer for answer in answers if answer is not None]
    assert len(groups) == len(answers)
    if version >= 8:
        return OffsetFetchResponse(groups=groups)
    (group,) = groups
    response = OffsetFetchResponse(error_code=group.error_code)
    for topic in group.topics:
        answer = OffsetFetchResponseTopic(topic.name, [])
        response.topics.append(answer)
        for each in topic.partitions:
            yield 1
            answer.partitions.append(
                OffsetFetchResponsePartition(
                    each.partition_index,
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.metadata,
                    each.error_code,
                )
            )
    return response
