"""Offsets that a transaction commits.

| key | API | versions |
|---|---|---|
| 28 | TxnOffsetCommit | 0-5 |

Behaviour: Kafka 4.3's. The offsets are stored at once, and count when the transaction is committed;
until then OffsetFetch tells who requires stable offsets UNSTABLE_OFFSET_COMMIT.
- Partitions that do not exist get UNKNOWN_TOPIC_OR_PARTITION, metadata beyond
  offset.metadata.max.bytes characters OFFSET_METADATA_TOO_LARGE; the rest of the request is one
  append, as with OffsetCommit.
- The group's partition of `__consumer_offsets` is part of the transaction: up to 4 by an
  AddOffsetsToTxn, which is verified, from 5 on by this request.
- 3+ name the group's member, who must be one of its generation (KIP-447). Up to 2, and without a
  generation, anybody may commit. A group that is not there is made, unless there is a generation:
  ILLEGAL_GENERATION.
- INVALID_PRODUCER_EPOCH for a producer that was replaced: PRODUCER_FENCED, which is fatal, comes
  from its coordinator. INVALID_TXN_STATE and, from 4 on, TRANSACTION_ABORTABLE if the transaction
  has no such partition or has ended; CONCURRENT_TRANSACTIONS while the one before ends.
- COORDINATOR_LOAD_IN_PROGRESS (COORDINATOR_NOT_AVAILABLE up to 1) also while the transaction's
  coordinator cannot be reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api import Api, Reply, Request, Steps
from broker.groups.offsets.offsets_core import CommittedOffset
from broker.groups.transactional import IMPLICIT_ADD_SINCE, TxnCommit, told
from broker.handlers.offsets import CHUNK_PARTITIONS, PARTITION_UNITS, Parts, is_metadata_too_large
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode
from wire.kafka.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from broker.coordinator.ports import Catalog
    from broker.groups.coordinator import GroupCoordinator, OffsetToCommit

    Asked = tuple[TxnOffsetCommitResponsePartition, OffsetToCommit]


class TxnOffsetsHandler:
    """Between the messages and the coordinator; keeps nothing."""

    def __init__(self, coordinator: GroupCoordinator, catalog: Catalog) -> None:
        self._coordinator = coordinator
        self._catalog = catalog

    def apis(self) -> list[Api]:
        return [Api(ApiKey.TXN_OFFSET_COMMIT, 0, 5, self.commit)]

    def commit(self, request: Request) -> Steps[Reply]:
        body: TxnOffsetCommitRequest = request.body
        response = TxnOffsetCommitResponse()
        parts = Parts(response)
        chunk: list[Asked] = []
        now_ms = self._coordinator.timers.wall_ms()
        limit = self._coordinator.config.offset_metadata_max_bytes
        for asked in body.topics:
            yield PARTITION_UNITS
            topic = self._catalog.get(asked.name)
            answers = TxnOffsetCommitResponseTopic(asked.name, [])
            response.topics.append(answers)
            for partition in asked.partitions:
                yield PARTITION_UNITS
                number, metadata = partition.partition_index, partition.committed_metadata
                answer = TxnOffsetCommitResponsePartition(number)
                answers.partitions.append(answer)
                if topic is None or not 0 <= number < topic.partition_count:
                    answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif is_metadata_too_large(metadata, limit):
                    answer.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    value = CommittedOffset(
                        partition.committed_offset,
                        partition.committed_leader_epoch,
                        metadata or "",
                        now_ms,
                        topic_id=topic.id,
                    )
                    chunk.append((answer, (topic.name, number, value)))
                    if len(chunk) == CHUNK_PARTITIONS:
                        self._commit_chunk(request, chunk, parts)
                        yield CHUNK_PARTITIONS * PARTITION_UNITS
                        chunk = []
        if chunk:
            self._commit_chunk(request, chunk, parts)
        parts.one_done()
        return parts

    def _commit_chunk(self, request: Request, chunk: list[Asked], parts: Parts) -> None:
        """One append's worth of offsets; what becomes of several the transaction decides."""
        body: TxnOffsetCommitRequest = request.body

        def done(error: ErrorCode) -> None:
            if error:
                for answer, _ in chunk:
                    answer.error_code = told(error, request.version)
            parts.one_done()

        parts.outstanding += 1
        who = TxnCommit(
            body.transactional_id,
            body.producer_id,
            body.producer_epoch,
            body.group_id,
            body.member_id,
            body.group_instance_id,
            body.generation_id,
            adds=request.version >= IMPLICIT_ADD_SINCE,
        )
        offsets = [offset for _, offset in chunk]
        self._coordinator.transactions.commit(who, offsets, done)
