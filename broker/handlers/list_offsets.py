"""ListOffsets (key 2), versions 1-11, and OffsetForLeaderEpoch (key 23), versions 2-4.

| timestamp | answer |
|---|---|
| -1 latest | high watermark; for read_committed (isolation level 1) the last stable offset |
| -2 earliest, -4 earliest local | log start |
| -3 max timestamp (KIP-734) | offset and timestamp of the record with the largest timestamp |
| -5 latest tiered, -6 earliest pending upload | -1: there is no tiered storage |
| other negative ones, and these before their version | UNSUPPORTED_VERSION |
| >= 0 | first record with that timestamp or a later one; -1 without one |

For read_committed a record (-3, >= 0) is found only below the last stable offset, else -1.

From version 10 on a partition that is not found out within `timeout_ms` gets REQUEST_TIMED_OUT: one
that is being taken over, or whose records have to be read.

The request's leader epochs are checked (KIP-320); the answer names the epoch that wrote the record.
A partition that a ListOffsets names twice is answered once, with INVALID_REQUEST, as in Kafka.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from broker.api import Api, Request
from broker.handlers.fetch import check_leader_epoch
from broker.log.partition import State
from runtime.slices import Slices
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.list_offsets import (
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from broker.log.manager import LogManager
    from broker.log.partition import PartitionLog

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

UNKNOWN = -1
PARTITIONS_PER_TURN = 100
#: Of a request, that are looked at for such as come twice before others have the loop.
NAMED_PER_TURN = 2_000

#: The version with which a special timestamp came; before it, it means nothing.
TIMESTAMP_VERSIONS = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


class ListOffsetsHandler:
    def __init__(self, logs: LogManager) -> None:
        self._logs = logs

    def apis(self) -> list[Api]:
        return [
            Api(ApiKey.LIST_OFFSETS, 1, 11, self.list_offsets),
            Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, self.offset_for_leader_epoch),
        ]

    async def list_offsets(self, request: Request) -> ListOffsetsResponse:
        body: ListOffsetsRequest = request.body
        response = ListOffsetsResponse()
        deadline = math.inf
        if body.timeout_ms > 0:  # 0 before version 10
            deadline = trio.current_time() + body.timeout_ms / 1000
        repeated, told = await _repeated(body), set[tuple[str, int]]()
        slices = Slices(PARTITIONS_PER_TURN)
        for topic in body.topics:
            if slices.due():
                await slices.turn()
            result = ListOffsetsTopicResponse(name=topic.name)
            response.topics.append(result)
            for wanted in topic.partitions:
                if slices.due():
                    await slices.turn()
                place = topic.name, wanted.partition_index
                if place not in repeated:
                    answer = await self._answer(topic.name, wanted, request, deadline)
                elif place not in told:
                    told.add(place)
                    answer = ListOffsetsPartitionResponse(error_code=int(ErrorCode.INVALID_REQUEST))
                else:
                    continue
                answer.partition_index = wanted.partition_index
                result.partitions.append(answer)
        return response

    async def _answer(
        self, topic: str, wanted: ListOffsetsPartition, request: Request, deadline: float
    ) -> ListOffsetsPartitionResponse:
        committed = request.body.isolation_level != 0
        try:
            with trio.move_on_at(deadline):
                log = self._logs.get(topic, wanted.partition_index)
                if log.state is State.LOADING:
                    await log.wait_loaded()
                return await self._offset(log, wanted, request.version, committed=committed)
        except KafkaError as error:
            return ListOffsetsPartitionResponse(error_code=int(error.code))
        return ListOffsetsPartitionResponse(error_code=int(ErrorCode.REQUEST_TIMED_OUT))

    async def _offset(
        self, log: PartitionLog, wanted: ListOffsetsPartition, version: int, *, committed: bool
    ) -> ListOffsetsPartitionResponse:
        check_leader_epoch(log, wanted.current_leader_epoch)
        log.check_online()
        timestamp = wanted.timestamp
        if timestamp < 0 and version < TIMESTAMP_VERSIONS.get(timestamp, version + 1):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
        found: tuple[int, int] | None
        if timestamp == LATEST:
            found = log.readable_end(committed=committed), UNKNOWN
            epoch = log.leader_epoch
        elif timestamp in (EARLIEST, EARLIEST_LOCAL):
            found = log.log_start_offset, UNKNOWN
            epoch = log.epoch_of(log.log_start_offset)
        elif timestamp == MAX_TIMESTAMP:
            found = _decided(log, await log.reader.max_timestamp_offset(), committed=committed)
            epoch = UNKNOWN if found is None else log.epoch_of(found[0])
        elif timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            found, epoch = None, UNKNOWN
        else:
            found = _decided(
                log, await log.reader.offset_for_timestamp(timestamp), committed=committed
            )
            epoch = UNKNOWN if found is None else log.epoch_of(found[0])
        if found is None:
            return ListOffsetsPartitionResponse(leader_epoch=epoch)
        return ListOffsetsPartitionResponse(timestamp=found[1], offset=found[0], leader_epoch=epoch)

    async def offset_for_leader_epoch(self, request: Request) -> OffsetForLeaderEpochResponse:
        body: OffsetForLeaderEpochRequest = request.body
        response = OffsetForLeaderEpochResponse()
        slices = Slices(PARTITIONS_PER_TURN)
        for topic in body.topics:
            if slices.due():
                await slices.turn()
            result = OffsetForLeaderTopicResult(topic=topic.topic)
            response.topics.append(result)
            for wanted in topic.partitions:
                if slices.due():
                    await slices.turn()
                answer = EpochEndOffset(partition=wanted.partition)
                result.partitions.append(answer)
                try:
                    log = self._logs.get(topic.topic, wanted.partition)
                    if log.state is State.LOADING:
                        await log.wait_loaded()
                    log.check_online()
                    check_leader_epoch(log, wanted.current_leader_epoch)
                    answer.leader_epoch, answer.end_offset = log.end_offset_for_epoch(
                        wanted.leader_epoch
                    )
                except KafkaError as error:
                    answer.error_code = int(error.code)
        return response


async def _repeated(body: ListOffsetsRequest) -> set[tuple[str, int]]:
    """Topic and partition of those that are named more than once."""
    slices = Slices(NAMED_PER_TURN)
    named: set[tuple[str, int]] = set()
    repeated: set[tuple[str, int]] = set()
    for topic in body.topics:
        for wanted in topic.partitions:
            if slices.due():
                await slices.turn()
            place = topic.name, wanted.partition_index
            if place in named:
                repeated.add(place)
            named.add(place)
    return repeated


def _decided(
    log: PartitionLog, found: tuple[int, int] | None, *, committed: bool
) -> tuple[int, int] | None:
    """None for what a reader of committed records does not come to yet."""
    if found is None or (committed and found[0] >= log.last_stable_offset):
        return None
    return found
