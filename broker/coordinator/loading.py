"""A coordinator partition's log, read from its start to its end in slices."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio

from runtime.slices import Slices
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.records.batch import NO_PRODUCER_ID, iter_records, records_data, scan_batches
from wire.kafka.records.compression import Compression
from wire.kafka.records.control import decode_end_transaction_marker
from wire.kafka.records.record import read_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.coordinator.ports import Log
    from runtime.env import Env
    from wire.kafka.records.batch import BatchHeader

#: Records that are loaded before others have the loop: 1 to 2 ms.
_RECORDS_PER_TURN = 150
#: A large record counts as one for each of so many bytes, by their logarithm: 2 KiB.
_RECORD_SIZE_BITS = 11
#: Decompressed records of one batch, at most: more is no batch that a coordinator wrote.
_BATCH_SIZE_MAX = 256 * 1024 * 1024
#: A control record is some 20 bytes.
_CONTROL_BYTES_MAX = 64 * 1024


class Loaded(Protocol):
    """Whom the log is told to; Shard (partition) says what it means."""

    def apply(self, key: bytes, value: bytes | None, offset: int, producer_id: int, /) -> None: ...
    def end_transaction(self, producer_id: int, *, committed: bool) -> Iterator[None]: ...


async def load_records(
    log: Log,
    shard: Loaded,
    env: Env,
    *,
    read_bytes_max: int,
    is_wanted: Callable[[], bool],
) -> None:
    """Tells the shard of each record and each marker that the log has now, in its order, until that
    is done or no longer wanted. KafkaError: the log is not online, or cannot be read. WireError: it
    holds what no coordinator wrote."""
    await log.wait_loaded()
    if log.state.value != "online":
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    offset, end = log.log_start_offset, log.high_watermark
    while offset < end and is_wanted():
        result = await log.read(offset, read_bytes_max)
        # Joined, since a batch that spans several entries comes in as many parts.
        await _apply_batches(memoryview(b"".join(result.parts)), shard, env)
        if result.next_offset <= offset:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"nothing to read at {offset}")
        offset = result.next_offset
        await trio.lowlevel.checkpoint()


async def _apply_batches(batches: memoryview, shard: Loaded, env: Env) -> None:
    at = 0
    slices = Slices(_RECORDS_PER_TURN)
    apply = shard.apply
    for header in scan_batches(batches):
        batch = batches[at : at + header.size]
        at += header.size
        if header.is_control:
            if slices.due():
                await slices.turn()
            for _ in _apply_marker(batch, header, shard):
                await slices.turn()
            continue
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        unpack = partial(records_data, batch, header, size_max=_BATCH_SIZE_MAX)
        if header.compression is Compression.NONE:
            data = unpack()
        else:
            data = await env.disk.run(unpack)
        if slices.due():
            await slices.turn()
        for record in read_records(data, header.record_count):
            if slices.due(1 + (len(record.value or b"") >> _RECORD_SIZE_BITS)):
                await slices.turn()
            if record.key is not None:
                offset = header.base_offset + record.offset_delta
                apply(record.key, record.value, offset, producer_id)


def _apply_marker(batch: memoryview, header: BatchHeader, shard: Loaded) -> Iterator[None]:
    """Yields wherever others may have the loop. What is no transaction's end, or was emptied by
    compaction, changes nothing."""
    for record in iter_records(batch, header, size_max=_CONTROL_BYTES_MAX):
        marker = decode_end_transaction_marker(record)
        if marker is not None:
            yield from shard.end_transaction(header.producer_id, committed=marker.committed)
