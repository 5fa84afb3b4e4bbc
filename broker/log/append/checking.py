"""When and where batches are checked whole: at once on the loop, or in line for a worker thread.

What a check costs is estimated before it begins, from bytes, records and codecs; how long it took
is not measured, so that a simulation does the same each time. One turn of the loop spends
TURN_NS_MAX on checks; what does not fit waits in its partition's line, and everything of that
partition behind it, so that the order of a partition's requests is that of its offsets. (A
connection answers in the order of its requests whatever partitions do.)

Lines are served in three lanes, by what the first batch of each is expected to cost:

    turns   on the loop, in later turns: what fits into a turn of its own
    thread  on a worker thread, one at a time: up to THREAD_NS_MAX and THREAD_BYTES_MAX
    long    on another one, one at a time: all else

So nobody waits for a check that is longer than those of his lane. Which of a lane's lines is next,
`ShortestFirst` says: whose batch costs least, and now and then who has waited longest. So of all
that cost more than it does a batch waits for the one that is being checked and one that is older,
however many lines they are spread over; of those that cost as much, for who came before. Turns by
line, or a small part of each batch checked first to see how long it is, would have everybody wait
for as many turns or parts as there are lines.

For that the cost has to be known before anything is decompressed: the batch's format is asked how
much comes out (wire/kafka/records/declared_size.py). A format may lie. So what is not long is only
decompressed up to the size that gave it its place, and is long if more comes out.

So all that checks hold beside requests is DECOMPRESSED_BYTES_MAX and THREAD_BYTES_MAX of
decompressed bytes, twice at most. The line itself is requests, which are counted as long as they
are unanswered.

Owner of the state: the event loop's thread. The worker looks into a batch's own bytes and changes
its header; they are nobody else's until it is done, whatever becomes of partition and connection.
"""

from __future__ import annotations

import logging
from struct import Struct
from typing import TYPE_CHECKING, Protocol

import trio

from broker.log.append.shortest_first import ShortestFirst
from broker.log.append.validation import (
    COMPRESSION_MASK,
    COMPRESSION_OF_PRODUCER,
    DECOMPRESSED_BYTES_MAX,
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
from wire.kafka.records.declared_size import declared_size
from wire.kafka.records.walk import IS_COMPILED, RECORD_BYTES_MIN, whole_batch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.cluster.config import TopicConfig
    from broker.log.append.queue import Append
    from runtime.env import Env

logger = logging.getLogger(__name__)

#: What all checks of one turn of the loop may take, and so one of them.
TURN_NS_MAX = 2_000_000
#: Header, producer's state and what else each batch costs.
BATCH_NS = 2_000
#: To see what a batch in line will cost, and where it belongs.
PLACE_NS = 10_000
#: A check that is expected to take more, or to hold more decompressed bytes, is long. This is what
#: one that is not may wait for, beside its equals: twice.
THREAD_NS_MAX = 50_000_000
THREAD_BYTES_MAX = 8 << 20
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
#: The walk of a byte in records that are as small as may be.
_WALKED_BYTE_NS = RECORD_NS // RECORD_BYTES_MIN + 1
#: A batch that has lied about its size.
_LONGEST_NS = DECOMPRESSED_BYTES_MAX * max(_DECOMPRESSED_NS.values())
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


class _Lane:
    """Lines whose first batches are checked one after the other, each with the most bytes that may
    come out of it."""

    def __init__(self) -> None:
        self._lines: ShortestFirst[tuple[Line, int]] = ShortestFirst()
        self._called = trio.Event()

    def put(self, line: Line, bytes_max: int, cost_ns: int) -> None:
        self._lines.put((line, bytes_max), cost_ns)
        self._called.set()

    async def next(self) -> tuple[Line, int]:
        while (found := self._lines.pop()) is None:
            self._called = trio.Event()
            await self._called.wait()
        return found


class BatchChecks:
    """All checks of a broker's partitions. `run` has to be under way for what is long."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._left_ns = TURN_NS_MAX
        self._is_reset_deferred = False
        self._turns, self._thread, self._long = _Lane(), _Lane(), _Lane()
        #: Batches checked on the loop in their own turn, in a later one, and on a worker thread.
        self.inline_count = self.delayed_count = self.threaded_count = 0
        self.lock_counts = LockCounts()

    def check_now(
        self,
        records: memoryview,
        config: TopicConfig,
        *,
        internal: bool,
        decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    ) -> Checked | None:
        """None if that does not fit into this turn, or more than `decompressed_bytes_max` come out:
        then it is for the line. KafkaError."""
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
            bytes_max = min((left_ns - known_ns) // byte_ns, decompressed_bytes_max)
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
        head = line.unchecked_head()
        if head is None:
            return
        append, config, internal = head
        self._spend(PLACE_NS)
        size = _size_inside(append.records, internal=internal)
        turn_ns, thread_ns = _expected_ns(append.records, config, size, internal=internal)
        if turn_ns <= TURN_NS_MAX:
            self._turns.put(line, size, turn_ns)
        elif thread_ns <= THREAD_NS_MAX and size <= THREAD_BYTES_MAX:
            self._thread.put(line, size, thread_ns)
        else:
            self._long.put(line, DECOMPRESSED_BYTES_MAX, thread_ns)

    async def run(self) -> None:
        """Serves the lines; never returns."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve, self._turns, self._check_in_turn)
            nursery.start_soon(self._serve, self._thread, self._check_on_thread)
            nursery.start_soon(self._serve, self._long, self._check_on_thread)

    async def _serve(
        self,
        lane: _Lane,
        check: Callable[[memoryview, TopicConfig, bool, int], Awaitable[Checked | None]],
    ) -> None:
        while True:
            line, bytes_max = await lane.next()
            head = line.unchecked_head()
            if head is None:  # the partition went offline and refused them all
                continue
            append, config, internal = head
            outcome: Checked | KafkaError | None
            try:
                outcome = await check(append.records, config, internal, bytes_max)
            except KafkaError as error:
                outcome = error
            except Exception:  # a codec's bug, or no memory: as in dispatch, one client's affair
                logger.exception("check_failed", kv(size=len(append.records)))
                outcome = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
            if outcome is None:
                self._move_on(line, lane, bytes_max)
            elif line.was_checked(append, outcome):
                self.call(line)

    def _move_on(self, line: Line, lane: _Lane, bytes_max: int) -> None:
        """The first of `line` was more than its lane took it for."""
        if lane is self._turns:  # by its locks, or by what its format did not tell
            self._thread.put(line, bytes_max, TURN_NS_MAX)
        else:
            self._long.put(line, DECOMPRESSED_BYTES_MAX, _LONGEST_NS)

    async def _check_in_turn(
        self, records: memoryview, config: TopicConfig, internal: bool, bytes_max: int
    ) -> Checked | None:
        # `bytes_max` is what the batch says that it becomes: nothing is begun that will not fit.
        turn_ns, _ = _expected_ns(records, config, bytes_max, internal=internal)
        if self._left_ns < turn_ns:
            await self._begin_turn()
        is_whole_turn = self._left_ns == TURN_NS_MAX
        checked = self._check_later(records, config, internal, bytes_max)
        if checked is None and config.quire_locks != OFF and not is_whole_turn:
            # What locks cost is not known before they are read.
            await self._begin_turn()
            checked = self._check_later(records, config, internal, bytes_max)
        return checked

    async def _begin_turn(self) -> None:
        await trio.lowlevel.checkpoint()
        self._left_ns = TURN_NS_MAX

    def _check_later(
        self, records: memoryview, config: TopicConfig, internal: bool, bytes_max: int
    ) -> Checked | None:
        checked = self.check_now(
            records, config, internal=internal, decompressed_bytes_max=bytes_max
        )
        if checked is not None:
            self.inline_count -= 1
            self.delayed_count += 1
        return checked

    async def _check_on_thread(
        self, records: memoryview, config: TopicConfig, internal: bool, bytes_max: int
    ) -> Checked | None:
        """None if more than `bytes_max` come out."""
        self.threaded_count += 1
        now_ms = self._env.clock.time_ms()
        run = self._env.disk.run
        try:
            return await run(_check_whole, records, config, now_ms, internal, bytes_max)
        except SizeLimitError:
            self.threaded_count -= 1
            return None
        except LockHeadersError:
            self.lock_counts.malformed += 1
            raise


def _check_whole(
    records: memoryview, config: TopicConfig, now_ms: int, internal: bool, bytes_max: int
) -> Checked:
    return checked_batch(
        records, config, now_ms, internal=internal, decompressed_bytes_max=bytes_max
    )


def _size_inside(records: memoryview, *, internal: bool) -> int:
    """Bytes that are decompressed at most, as far as the batch tells; never less than its own."""
    size = len(records)
    if internal or size < BATCH_OVERHEAD:
        return size
    codec = _CODECS.get(records[_ATTRIBUTES_LOW_BYTE] & COMPRESSION_MASK, Compression.NONE)
    if codec is Compression.NONE:
        return size
    return max(size, min(declared_size(codec, records[BATCH_OVERHEAD:]), DECOMPRESSED_BYTES_MAX))


def _expected_ns(
    records: memoryview, config: TopicConfig, size: int, *, internal: bool
) -> tuple[int, int]:
    """Of a batch that becomes `size` bytes: what `check_now` holds it to cost, and what it does.
    That takes each record to be as small as may be; this has the header's count."""
    byte_ns, known_ns = _costs(records, config, internal=internal)
    turn_ns = known_ns + size * byte_ns
    if byte_ns and records[_ATTRIBUTES_LOW_BYTE] & COMPRESSION_MASK:
        return turn_ns, turn_ns - size * _WALKED_BYTE_NS + RECORD_NS * _count_of(records, size)
    return turn_ns, turn_ns


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
        return 0, base_ns + RECORD_NS * _count_of(records, size)
    codec = _CODECS.get(codec_number, Compression.NONE)
    byte_ns = _DECOMPRESSED_NS[codec]
    if wanted != COMPRESSION_OF_PRODUCER and (target := codec_of(wanted)) is not codec:
        byte_ns += _COMPRESSED_NS[target]
    if codec is not Compression.NONE:
        # Nobody has counted yet what comes out: as many records as there may be.
        return byte_ns + _WALKED_BYTE_NS, base_ns
    return byte_ns, base_ns + RECORD_NS * _count_of(records, size)


def _count_of(records: memoryview, size: int) -> int:
    """How many records a walk may meet: none if `size` bytes have no place for so many."""
    count: int = _COUNT.unpack_from(records, _COUNT_OFFSET)[0]
    return count if 0 <= count * RECORD_BYTES_MIN <= size else 0
