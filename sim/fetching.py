"""One fetch of one partition, and what it tells the judges about the partition's ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from sim.client import Unanswered
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import FetchRequest, FetchResponse
from wire.kafka.messages.fetch import FetchTopic

if TYPE_CHECKING:
    from sim.client import KafkaClient
    from sim.history import Partition
    from sim.world import World
    from wire.kafka.messages.fetch import FetchPartition, PartitionData

#: Pause of a client after an error, in seconds.
RETRY_SECONDS = 0.1


async def fetch_and_tell(
    world: World,
    name: str,
    client: KafkaClient,
    partition: Partition,
    data: FetchPartition,
    isolation_level: int = 0,
) -> tuple[PartitionData, ErrorCode] | None:
    """What the leader answered to `name`; None, after a pause, without an answer. The histories are
    told the high watermark and the last stable offset of an answer without an error."""
    request = FetchRequest(
        max_wait_ms=200,
        min_bytes=1,
        isolation_level=isolation_level,
        session_epoch=-1,
        topics=[FetchTopic(topic=partition[0], partitions=[data])],
    )
    try:
        answer = await client.ask_leader(*partition, request, FetchResponse)
    except Unanswered:
        await trio.sleep(RETRY_SECONDS)
        return None
    result = answer.responses[0].partitions[0]
    code = ErrorCode(result.error_code)
    if code is ErrorCode.NONE:
        # Judges hold each broker to what it said to the same client.
        teller = f"{name} of {client.leader(*partition)}"
        end, stable = result.high_watermark, result.last_stable_offset
        world.history.high_watermark(teller, partition, end)
        world.txns.stable(
            teller, partition, stable, end, result.log_start_offset, data.current_leader_epoch
        )
    return result, code


def records_of(result: PartitionData) -> bytes:
    records = b"" if result.records is None else result.records
    assert isinstance(records, (bytes, bytearray, memoryview))
    return bytes(records)
