"""A coordinator partition's log, read from its start to its end in slices."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio

from runtime.logs import kv
from runtime.slices import Slices
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.records.batch import records_data, scan_batches
from wire.kafka.records.compression import Compression
from wire.kafka.records.record import read_records

if TYPE_CHECKING:
    from broker.coordinator.ports import Log
    from runtime.env import Env

logger = logging.getLogger(__name__)

#: A record's key and value; None is a tombstone.
Apply = Callable[[bytes, "bytes | None"], None]

#: Records that are loaded before others have the loop: 1 to 2 ms.
_RECORDS_PER_TURN = 150
#: Decompressed records of one batch, at most: more is no batch that a coordinator wrote.
_BATCH_SIZE_MAX = 256 * 1024 * 1024


async def load_records(
    log: Log,
    apply: Apply,
    env: Env,
    *,
    read_bytes_max: int,
    is_wanted: Callable[[], bool],
    told: Mapping[str, object],
) -> None:
    """Calls `apply(key, value)` for each record that the log has now, in its order, until that is
    done or no longer wanted. `told` says in the server's log which partition it is. KafkaError: the
    log is not online, or cannot be read. WireError: it holds what no coordinator wrote."""
    await log.wait_loaded()
    if log.state.value != "online":
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    offset, end = log.log_start_offset, log.high_watermark
    while offset < end and is_wanted():
        result = await log.read(offset, read_bytes_max)
        # Joined, since a batch that spans several entries comes in as many parts.
        await _apply_batches(memoryview(b"".join(result.parts)), apply, env, told)
        if result.next_offset <= offset:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"nothing to read at {offset}")
        offset = result.next_offset
        await trio.lowlevel.checkpoint()


async def _apply_batches(
    batches: memoryview, apply: Apply, env: Env, told: Mapping[str, object]
) -> None:
    at = 0
    slices = Slices(_RECORDS_PER_TURN)
    for header in scan_batches(batches):
        batch = batches[at : at + header.size]
        at += header.size
        if header.is_control or header.is_transactional:
            # Nothing here writes either; a log that another server wrote may hold them.
            logger.warning("transactional batch not applied", kv(**told, offset=header.base_offset))
            continue
        unpack = partial(records_data, batch, header, size_max=_BATCH_SIZE_MAX)
        if header.compression is Compression.NONE:
            data = unpack()
        else:
            data = await env.disk.run(unpack)
        if slices.due():
            await slices.turn()
        for record in read_records(data, header.record_count):
            if slices.due():
                await slices.turn()
            if record.key is not None:
                apply(record.key, record.value)
