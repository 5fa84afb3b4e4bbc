"""DeleteRecords (key 21), versions 0-2 (KIP-107).

Raises a partition's log start, to the high watermark for offset -1. The records are unreadable when
the answer leaves; whole ledgers before the new start are deleted after it. Partitions that are not
done within `timeout_ms` get REQUEST_TIMED_OUT; what was begun goes on.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from broker.api import Api, Request
from broker.log.partition import State
from runtime.slices import Slices
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from broker.log.manager import LogManager

TO_HIGH_WATERMARK = -1
PARTITIONS_PER_TURN = 100


class DeleteRecordsHandler:
    def __init__(self, logs: LogManager) -> None:
        self._logs = logs

    def apis(self) -> list[Api]:
        return [Api(ApiKey.DELETE_RECORDS, 0, 2, self.delete_records)]

    async def delete_records(self, request: Request) -> DeleteRecordsResponse:
        body: DeleteRecordsRequest = request.body
        response = DeleteRecordsResponse()
        # Kafka's time-out is for the other replicas: without any, 0 does not fail.
        limit_seconds = body.timeout_ms / 1000 if body.timeout_ms > 0 else math.inf
        deadline = trio.current_time() + limit_seconds
        slices = Slices(PARTITIONS_PER_TURN)
        for topic in body.topics:
            if slices.due():
                await slices.turn()
            result = DeleteRecordsTopicResult(name=topic.name)
            response.topics.append(result)
            for wanted in topic.partitions:
                if slices.due():
                    await slices.turn()
                answer = DeleteRecordsPartitionResult(
                    partition_index=wanted.partition_index, low_watermark=-1
                )
                result.partitions.append(answer)
                try:
                    with trio.move_on_at(deadline) as scope:
                        answer.low_watermark = await self._delete(topic.name, wanted)
                    if scope.cancelled_caught:
                        # It was begun, and goes on: as in Kafka, only the answer does not wait.
                        raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
                except KafkaError as error:
                    answer.error_code = int(error.code)
        return response

    async def _delete(self, topic: str, wanted: DeleteRecordsPartition) -> int:
        """The new log start. KafkaError."""
        log = self._logs.get(topic, wanted.partition_index)
        if log.state is State.LOADING:
            await log.wait_loaded()
        if log.topic.internal:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        if "delete" not in log.config.cleanup_policy:
            raise KafkaError(ErrorCode.POLICY_VIOLATION)
        if wanted.offset < TO_HIGH_WATERMARK:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        return await self._logs.delete_records(topic, wanted.partition_index, wanted.offset)
