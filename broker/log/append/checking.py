"""When and where batches are checked whole: at once on the loop, or in line for a worker thread.

What a check costs is estimated before it begins, from bytes, records and codecs; how long it took
is not measured, so that a simulation does the same each time. One turn of the loop spends
TURN_NS_MAX on checks; what does not fit waits in its partition's line, and everything of that
partition behind it, so that the order of a partition's requests is that of its offsets. (A
connection answers in the order of its requests whatever partitions do.)

One task serves all lines, a batch of each in turn: what is short it checks on the loop, in later
turns; what is long, one at a time, on a worker thread. So all that checks hold beside requests is
one batch's decompressed bytes, twice DECOMPRESSED_BYTES_MAX at most. The line itself is requests,
which are counted as long as they are unanswered.

Owner of the state: the event loop's thread. The worker looks into a batch's own bytes and changes
its header; they are nobody else's until it is done, whatever becomes of partition and connection.
"""

from __future__ import annotations

import logging
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Protocol

import trio

from broker.log.append.validation import (
    COMPRESSION_MASK,
    COMPRESSION_OF_PRODUCER,
    Checked,
    checked_batch,
    checked_whole,
    codec_of,
)
from broker.log.locks.lock_headers_core import OFF, LockBudgetError, LockHeadersError
from broker.log.locks.partition_locks import LockCounts
from runtime.logs import kv
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.records.batch import BATCH_OVERHEAD
from wire.kafka.records.compression import Compression, SizeLimitError
from wire.kafka.records.walk import IS_COMPILED, RECORD_BYTES_MIN, whole_batch

if TYPE_CHECKING:
    from broker.cluster.config import TopicConfig
    from broker.log.append.queue import Append
    from runtime.env import Env

logger = logging.getLogger(__name__)

#: What all checks of one turn of the loop may take, and so one of them.
TURN_NS_MAX = 2_000_000
#: Header, producer's state and what else each batch costs.
BATCH_NS = 2_000
#: A record that is walked, and a byte of the checksum.
RECORD_NS = 15 if IS_COMPILED else 1_500
BYTE_EIGHTHS_NS = 1
#: A byte that is looked at for headers with locks; what is found there is counted when it is read.
LOCK_SEARCH_EIGHTHS_NS = 4
#: A byte that comes out of a codec, and one that goes into it; on the slow side.
_DECOMPRESSED_NS = {
    Compression.NONE: 0,
    Compression.GZIP: 6,
    Compression.SNAPPY: 2,
    Compression.LZ4: 2,
    Compression.ZSTD: 3,
}
_COMPRESSED_NS = {
    Compression.NONE: 1,
    Compression.GZIP: 60,
    Compression.SNAPPY: 10,
    Compression.LZ4: 6,
    Compression.ZSTD: 15,
}
#: Up to here one step is quicker than several (wire/kafka/records/walk.py), whose checksum is.
WHOLE_BYTES_MAX = 16 << 10
_CODECS = {int(codec): codec for codec in Compression}
_ATTRIBUTES_LOW_BYTE = 22
_COUNT = Struct(">i")
_COUNT_OFFSET = 57


class Line(Protocol):
    """One partition's batches that wait to be checked (broker/log/append/line.py)."""

    def unchecked_head(self) -> tuple[Append, TopicConfig, bool] | None:
        """The first one, the topic's settings, and whether it is internal; None: there is none."""

    def was_checked(self, append: Append, outcome: Checked | KafkaError) -> bool:
        """Of the first one. Whether more are in line."""


class BatchChecks:
    """All checks of a broker's partitions. `run` has to be under way for what is long."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._left_ns = TURN_NS_MAX
        self._is_reset_deferred = False
        self._waiting: deque[Line] = deque()
        self._called = trio.Event()
        #: Batches checked on the loop in their own turn, in a later one, and on a worker thread.
        self.inline_count = self.delayed_count = self.threaded_count = 0
        self.lock_counts = LockCounts()

    def check_now(
        self, records: memoryview, config: TopicConfig, *, internal: bool
    ) -> Checked | None:
        """None if that does not fit into this turn: then it is for the line. KafkaError."""
        left_ns = self._left_ns
        if left_ns <= 0:
            return None
        if whole_batch is not None and len(records) <= WHOLE_BYTES_MAX and not internal:
            # As `_costs`: the usual batch on a topic with the usual settings.
            left_for_records_ns = left_ns - BATCH_NS - (len(records) * BYTE_EIGHTHS_NS >> 3)
            whole = whole_batch(records, left_for_records_ns // RECORD_NS)
            if whole is not None:
                checked = checked_whole(whole, records, config, self._env.clock.time_ms())
                if checked is not None:
                    left_for_records_ns -= RECORD_NS * checked.header.record_count
                    self._spend(left_ns - left_for_records_ns)
                    self.inline_count += 1
                    return checked
        byte_ns, known_ns = _costs(records, config, internal=internal)
        bytes_max = size = len(records)
        if byte_ns:
            bytes_max = (left_ns - known_ns) // byte_ns
        if known_ns > left_ns or bytes_max < size:  # hardly any codec makes bytes more
            return None
        self._spend(known_ns + size * byte_ns)
        now_ms = self._env.clock.time_ms()
        try:
            checked = checked_batch(
                records,
                config,
                now_ms,
                internal=internal,
                decompressed_bytes_max=bytes_max,
                locks_ns_max=self._left_ns,
            )
        except (SizeLimitError, LockBudgetError):
            self._left_ns = 0
            return None
        except KafkaError as error:
            if byte_ns or (config.quire_locks != OFF and not internal):
                # Nobody has counted what was unpacked, or read of locks, before it was refused.
                self._left_ns = 0
            self.lock_counts.malformed += isinstance(error, LockHeadersError)
            raise
        self._left_ns -= max(checked.walked_bytes - size, 0) * byte_ns
        if checked.locks is not None:
            self._left_ns -= checked.locks.cost_ns
        self.inline_count += 1
        return checked

    def _spend(self, cost_ns: int) -> None:
        if not self._is_reset_deferred:
            self._is_reset_deferred = True
            self._env.turn.defer(self._reset)
        self._left_ns -= cost_ns

    def _reset(self) -> None:
        self._is_reset_deferred = False
        self._left_ns = TURN_NS_MAX

    def call(self, line: Line) -> None:
        """`line` has something unchecked now: it is served until it has not."""
        self._waiting.append(line)
        self._called.set()

    async def run(self) -> None:
        """Serves the lines; never returns."""
        while True:
            while self._waiting:
                line = self._waiting.popleft()
                head = line.unchecked_head()
                if head is None:  # the partition went offline and refused them all
                    continue
                append, config, internal = head
                outcome = await self._check_in_turn(append, config, internal)
                if line.was_checked(append, outcome):
                    self._waiting.append(line)
            self._called = trio.Event()
            await self._called.wait()

    async def _check_in_turn(
        self, append: Append, config: TopicConfig, internal: bool
    ) -> Checked | KafkaError:
        records = append.records
        try:
            checked = self.check_now(records, config, internal=internal)
            if checked is None and self._left_ns < TURN_NS_MAX:
                await trio.lowlevel.checkpoint()
                self._left_ns = TURN_NS_MAX
                checked = self.check_now(records, config, internal=internal)
            if checked is not None:
                self.inline_count -= 1
                self.delayed_count += 1
                return checked
            return await self._check_on_thread(records, config, internal)
        except KafkaError as error:
            return error
        except Exception:  # a codec's bug, or no memory: as in dispatch, one client's affair
            logger.exception("check_failed", kv(size=len(records)))
            return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)

    async def _check_on_thread(
        self, records: memoryview, config: TopicConfig, internal: bool
    ) -> Checked:
        self.threaded_count += 1
        now_ms = self._env.clock.time_ms()
        try:
            return await self._env.disk.run(_check_whole, records, config, now_ms, internal)
        except LockHeadersError:
            self.lock_counts.malformed += 1
            raise


def _check_whole(records: memoryview, config: TopicConfig, now_ms: int, internal: bool) -> Checked:
    return checked_batch(records, config, now_ms, internal=internal)


def _costs(records: memoryview, config: TopicConfig, *, internal: bool) -> tuple[int, int]:
    """(ns for each byte that comes out of a codec or goes into one, 0 without any; ns for what can
    be counted before)."""
    size = len(records)
    base_ns = BATCH_NS + (size * BYTE_EIGHTHS_NS >> 3)
    if internal or size < BATCH_OVERHEAD:
        return 0, base_ns
    if config.quire_locks != OFF:
        base_ns += size * LOCK_SEARCH_EIGHTHS_NS >> 3
    codec_number = records[_ATTRIBUTES_LOW_BYTE] & COMPRESSION_MASK
    wanted = config.compression_type
    if not codec_number and wanted == COMPRESSION_OF_PRODUCER:  # the usual case, made short
        return 0, base_ns + RECORD_NS * _count_of(records)
    codec = _CODECS.get(codec_number, Compression.NONE)
    byte_ns = _DECOMPRESSED_NS[codec]
    if wanted != COMPRESSION_OF_PRODUCER and (target := codec_of(wanted)) is not codec:
        byte_ns += _COMPRESSED_NS[target]
    if codec is not Compression.NONE:
        # Nobody has counted yet what comes out: as many records as there may be.
        return byte_ns + RECORD_NS // RECORD_BYTES_MIN + 1, base_ns
    return byte_ns, base_ns + RECORD_NS * _count_of(records)


def _count_of(records: memoryview) -> int:
    """How many records a walk may meet: none if there is no place for so many."""
    count: int = _COUNT.unpack_from(records, _COUNT_OFFSET)[0]
    return count if 0 <= count * RECORD_BYTES_MIN <= len(records) else 0
