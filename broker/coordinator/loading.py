"""A coordinator partition's log, read from its start to its end in slices.

Records are walked before they are decoded, some thousands ahead: what has a later record of its key
among them need not be told to a shard of which the topic says so (a compacted one, where the last
record of each key is all that anybody may count on). A ledger that no compaction has seen yet is
mostly such records, and to decode one costs twenty times as much as to walk it. Not passed over:

- what belongs to a transaction, which counts when its marker comes, or never;
- tombstones: they are few, and end what others may still hold pending.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import trio

from runtime.slices import Slices
from wire.kafka.errors import ErrorCode, KafkaError, WireError
from wire.kafka.records.batch import (
    BATCH_OVERHEAD,
    NO_PRODUCER_ID,
    iter_records,
    records_data,
    scan_batches,
)
from wire.kafka.records.compression import Compression
from wire.kafka.records.control import decode_end_transaction_marker
from wire.kafka.records.record import read_records
from wire.kafka.records.walk import Fault, spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.coordinator.ports import Log
    from runtime.env import Env
    from wire.buffers import Buffer
    from wire.kafka.records.batch import BatchHeader
    from wire.kafka.records.walk import Span

#: What is done before others have the loop, in units of about a microsecond.
_UNITS_PER_TURN = 1500
#: A batch; a record that is walked; one that is told; a record that is told counts once more for
#: each so many bytes, by their logarithm: 2 KiB.
_BATCH_UNITS, _WALKED_UNITS, _TOLD_UNITS = 6, 1, 10
_RECORD_SIZE_BITS = 11
#: So many that are passed over are one, and so many keys that are forgotten.
_PASSED_PER_UNIT = 6
#: Records, and their bytes, that are walked in one step.
_STEP_RECORDS, _STEP_BYTES = 256, 64 << 10
#: Records and bytes that are walked before the first of them is told: some 20 MB of memory.
_AHEAD_RECORDS, _AHEAD_BYTES = 65_536, 16 << 20
#: The table of their keys is made of so many, as one of all would grow, and be given back, in one
#: step of some ms.
_TABLES = 32
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
    last_counts: bool = False,
) -> None:
    """Tells the shard of each record and each marker that the log has now, in its order, until that
    is done or no longer wanted. `last_counts`: of each key the last one is enough. KafkaError: the
    log is not online, or cannot be read. WireError: it holds what no coordinator wrote."""
    await log.wait_loaded()
    if log.state.value != "online":
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    offset, end = log.log_start_offset, log.high_watermark
    loader = _Loader(shard, env, last_counts=last_counts)
    while offset < end and is_wanted():
        result = await log.read(offset, read_bytes_max)
        # Joined, since a batch that spans several entries comes in as many parts.
        await loader.load(memoryview(b"".join(result.parts)))
        if result.next_offset <= offset:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"nothing to read at {offset}")
        offset = result.next_offset
        await trio.lowlevel.checkpoint()


class _Some(NamedTuple):
    """Records of a batch that were walked; none: it is a marker."""

    header: BatchHeader
    #: The batch's records, decompressed; of a marker the batch.
    data: bytes | memoryview
    producer_id: int
    found: list[Span]


class _Loader:
    """Owner of what was walked and is not told yet; of one load. A batch may have one record, as
    whoever commits every message writes them, so that what is done for each batch counts."""

    def __init__(self, shard: Loaded, env: Env, *, last_counts: bool) -> None:
        self._shard = shard
        self._env = env
        self._last_counts = last_counts
        self._slices = Slices(_UNITS_PER_TURN)
        self._ahead: deque[_Some] = deque()
        self._ahead_records = self._ahead_bytes = 0
        #: By key, the offset of the last record of no transaction among them.
        self._lasts: list[dict[bytes | None, int]] = [{} for _ in range(_TABLES)]

    async def load(self, batches: memoryview) -> None:
        """Whole batches, one behind the other. All of it is told."""
        at, slices = 0, self._slices
        for header in scan_batches(batches):
            batch = batches[at : at + header.size]
            at += header.size
            if slices.due(_BATCH_UNITS):
                await slices.turn()
            if header.is_control:
                self._ahead.append(_Some(header, batch, header.producer_id, []))
                continue
            if header.compression is Compression.NONE:
                data = bytes(batch[BATCH_OVERHEAD:])
            else:
                unpack = partial(records_data, batch, header, size_max=_BATCH_SIZE_MAX)
                data = await self._env.disk.run(unpack)
            for some in self._walk(header, data):
                if slices.due(_WALKED_UNITS * len(some.found)):
                    await slices.turn()
                if self._ahead_records >= _AHEAD_RECORDS or self._ahead_bytes >= _AHEAD_BYTES:
                    await self._tell()
        await self._tell()

    def _walk(self, header: BatchHeader, data: bytes) -> Iterator[_Some]:
        """Puts the batch's records behind the others, a step's worth at a time. WireError."""
        producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
        is_noted = self._last_counts and producer_id == NO_PRODUCER_ID
        base, lasts = header.base_offset, self._lasts
        position, left = 0, header.record_count
        while left > 0:
            start = position
            fault, position, found = spans(data, position, min(left, _STEP_RECORDS), _STEP_BYTES)
            if fault:
                raise WireError(f"record at byte {position}: {Fault(fault).name.lower()}")
            left -= len(found)
            if is_noted:
                for span in found:
                    key = span[5]
                    lasts[hash(key) % _TABLES][key] = base + span[4]
            some = _Some(header, data, producer_id, found)
            self._ahead.append(some)
            self._ahead_records += len(found)
            self._ahead_bytes += position - start
            yield some
        if position != len(data):
            raise WireError(f"{len(data) - position} bytes follow the last record")

    async def _tell(self) -> None:
        """The shard, of all that was walked."""
        apply, slices, ahead = self._shard.apply, self._slices, self._ahead
        while ahead:
            some = ahead.popleft()
            header, data, producer_id, found = some
            if slices.due(1 + len(found) // _PASSED_PER_UNIT):
                await slices.turn()
            if not found:
                for _ in _apply_marker(data, header, self._shard):
                    await slices.turn()
                continue
            for first, end in self._runs(some):
                run = bytes(data[found[first][0] : found[end - 1][2]])
                for record in read_records(run, end - first):
                    key, value = record.key, record.value
                    size = 0 if value is None else len(value)
                    if slices.due(_TOLD_UNITS * (1 + (size >> _RECORD_SIZE_BITS))):
                        await slices.turn()
                    if key is not None:
                        apply(key, value, header.base_offset + record.offset_delta, producer_id)
        self._ahead_records = self._ahead_bytes = 0
        for at, table in enumerate(self._lasts):
            if slices.due(len(table) // _PASSED_PER_UNIT):
                await slices.turn()
            self._lasts[at] = {}

    def _runs(self, some: _Some) -> list[tuple[int, int]]:
        """From where to where, in `found`, there are records to be told of."""
        found = some.found
        if not self._last_counts or some.producer_id != NO_PRODUCER_ID:
            return [(0, len(found))]
        lasts, base = self._lasts, some.header.base_offset
        runs = []
        first = -1
        for at, span in enumerate(found):
            key = span[5]
            if span[6] and lasts[hash(key) % _TABLES][key] != base + span[4]:
                if first >= 0:
                    runs.append((first, at))
                    first = -1
            elif first < 0:
                first = at
        if first >= 0:
            runs.append((first, len(found)))
        return runs


def _apply_marker(batch: Buffer, header: BatchHeader, shard: Loaded) -> Iterator[None]:
    """Yields wherever others may have the loop. What is no transaction's end, or was emptied by
    compaction, changes nothing."""
    for record in iter_records(batch, header, size_max=_CONTROL_BYTES_MAX):
        marker = decode_end_transaction_marker(record)
        if marker is not None:
            yield from shard.end_transaction(header.producer_id, committed=marker.committed)
