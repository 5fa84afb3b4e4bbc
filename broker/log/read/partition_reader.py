"""PartitionReader: what is read of a partition's log, ledger by ledger.

A log is read up to its high watermark, or, of what is committed, up to its last stable offset. What
needs no waiting is given at once (`read_nowait`); the rest waits for disk or network, and by then
anything may have changed: what is looked at before a wait is looked at again.

- Compaction may have put another ledger in the place of one that is read: it is tried instead.
- Retention or DeleteRecords may have dropped it: OFFSET_OUT_OF_RANGE.
- The partition may be another broker's: NOT_LEADER_OR_FOLLOWER.
- A ledger that the chain names and that cannot be read is never taken for empty:
  KAFKA_STORAGE_ERROR.

Keeps nothing of its own. On the event loop's thread.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Protocol

import trio

from broker.log.append.entry_format import EntryFormatError
from broker.log.read.batch_walk import NO_END
from broker.log.settings import READ_ENTRIES_MAX
from ledger.errors import LedgerError
from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode, KafkaError, WireError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.log.read.batch_walk import Collected
    from broker.log.read.segment import Segment
    from broker.log.transactions.aborted_index import AbortedTransaction
    from broker.log.transactions.acceptance import TransactionAcceptance

#: Aborted transactions that a read lists, unless it has fewer bytes of records than that, or one
#: batch.
ABORTED_PER_READ_MAX = 20_000
ABORTED_READ_BYTES_MIN = 1 << 16
#: What an entry costs that is read, whatever its size, in units of a turn: 4 us, for its view, its
#: two digests, and its walk.
ENTRY_UNITS = 4
#: Of a run of more parts than a few, whose mean is smaller, one is made: each would cost once more
#: when it is encoded and sent, and keep an object of 200 bytes. Larger ones are sent as they are
#: for less.
PARTS_FEW, SMALL_PART_BYTES = 8, 1 << 10


@dataclass(slots=True)
class ReadResult:
    """Whole batches from the wanted offset on, as views, small ones copied together; empty at the
    high watermark. Without records only if there are none up to the high watermark."""

    parts: list[memoryview]
    size_bytes: int
    next_offset: int
    #: Else there are batches that compaction emptied, at most.
    has_records: bool = False
    #: For all this, and in vain.
    entries_read: int = 0

    def is_nearly(self, size_max: int) -> bool:
        """Whether so little is left of it that a whole entry, of up to 1 MB, would be read for a
        part of it, and again for the next fetch."""
        return 4 * self.size_bytes >= 3 * size_max

    def add(self, got: Collected) -> None:
        """What was found next, if anything."""
        parts = got.parts
        if len(parts) > PARTS_FEW and got.size_bytes < len(parts) * SMALL_PART_BYTES:
            self.parts.append(memoryview(b"".join(parts)))
        else:
            self.parts += parts
        self.entries_read += got.entries_read
        self.size_bytes += got.size_bytes
        self.next_offset = max(self.next_offset, got.next_offset)
        self.has_records |= got.has_records


class ReadableLog(Protocol):
    """The partition, as far as its reader needs it (broker/log/partition.py)."""

    @property
    def segments(self) -> Sequence[Segment]: ...
    @property
    def transactions(self) -> TransactionAcceptance: ...
    @property
    def swap_count(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...

    def readable_end(self, *, committed: bool) -> int:
        """Up to where a fetch reads."""

    def position_of(self, offset: int) -> int:
        """In `segments`, of the one that the offset lies in, or would."""

    def check_readable(self, offset: int) -> None:
        """KafkaError unless the offset may be read, here and now."""


class PartitionReader:
    def __init__(self, log: ReadableLog) -> None:
        self._log = log

    def read_nowait(
        self,
        offset: int,
        size_max: int,
        *,
        at_least_one: bool = True,
        committed: bool = False,
        entries_max: int = READ_ENTRIES_MAX,
    ) -> ReadResult | None:
        """Batches from `offset` up to the high watermark, or the last stable offset if `committed`,
        if that needs no waiting, else None. What was aborted is among them (`aborted`). After so
        many entries no more are read, but for those that have nothing for the first batch.
        KafkaError: OFFSET_OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR."""
        log = self._log
        log.check_readable(offset)
        result = ReadResult([], 0, offset)
        position = log.position_of(offset)
        end_offset = log.readable_end(committed=committed)
        try:
            while result.next_offset < end_offset and position < len(log.segments):
                got = log.segments[position].read_nowait(
                    result.next_offset,
                    max(size_max - result.size_bytes, 0),
                    at_least_one=at_least_one and not result.has_records,
                    end_offset=end_offset if committed else NO_END,
                    entries_max=entries_max - result.entries_read,
                )
                if got is None or got.is_cut:
                    return result if result.has_records else None  # `read` goes on
                result.add(got)
                if got.full or (result.has_records and result.is_nearly(size_max)):
                    break
                if result.entries_read >= entries_max:
                    if not result.has_records:
                        return None
                    break
                last = log.segments[position].info.last_offset
                if last is not None and (got.next_offset < 0 or got.next_offset > last):
                    position += 1
                    if position < len(log.segments):
                        base = log.segments[position].info.base_offset
                        result.next_offset = max(result.next_offset, base)
                elif got.next_offset < 0:
                    break
        except LedgerError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        return self._unless_emptied(result, offset, end_offset)

    async def read(
        self, offset: int, size_max: int, *, at_least_one: bool = True, committed: bool = False
    ) -> ReadResult:
        """As `read_nowait`, waiting for disk or network where it must."""
        log = self._log
        result = self.read_nowait(offset, size_max, at_least_one=at_least_one, committed=committed)
        if result is not None:
            return result
        result = ReadResult([], 0, offset)
        may_repeat = True
        end_offset = log.readable_end(committed=committed)
        while result.next_offset < end_offset:
            segment = log.segments[log.position_of(result.next_offset)]
            try:
                got = await segment.read(
                    result.next_offset,
                    max(size_max - result.size_bytes, 0),
                    at_least_one=at_least_one,
                    end_offset=end_offset if committed else NO_END,
                )
            except LedgerError as error:
                log.check_readable(result.next_offset)
                self._check_replaced(segment, error, may_repeat=may_repeat)
                may_repeat = False
                continue
            result.add(got)
            if result.has_records or got.full:
                break
            if got.entries_read:
                await trio.lowlevel.checkpoint()
            # A hole up to the ledger's end, or batches that compaction emptied.
            last = segment.info.last_offset
            if last is not None and (got.next_offset < 0 or got.next_offset > last):
                result.next_offset = max(result.next_offset, last + 1)
            elif got.next_offset < 0:
                break
            log.check_readable(result.next_offset)
        return self._unless_emptied(result, offset, end_offset)

    def _unless_emptied(self, result: ReadResult, offset: int, end_offset: int) -> ReadResult:
        """Batches without records are given with others, or if nothing else is left."""
        if result.parts and not result.has_records and result.next_offset < end_offset:
            return ReadResult([], 0, offset)
        return result

    def _check_replaced(self, segment: Segment, error: LedgerError, *, may_repeat: bool) -> None:
        """Of a ledger that could not be read: returns if others are in its place by now, which may
        be tried instead. One that the chain names is never taken for empty: KafkaError
        KAFKA_STORAGE_ERROR."""
        log = self._log
        if not may_repeat or segment in log.segments:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    def read_bytes_max(self, offset: int) -> int:
        """No `read` from there gives more at once, but for `at_least_one`. In bytes; 0 of what
        cannot be read."""
        log = self._log
        position = log.position_of(offset)
        return log.segments[position].size_bytes if 0 <= position < len(log.segments) else 0

    async def read_committed(
        self, offset: int, size_max: int, *, at_least_one: bool = True
    ) -> tuple[ReadResult, list[AbortedTransaction]]:
        """`read` of what is committed, and which transactions among it were aborted, both of the
        same ledgers: the records of one that compaction replaced meanwhile and the index of its
        replacement, which no longer has them, would show what was aborted. KafkaError, and
        OFFSET_OUT_OF_RANGE if the log begins behind `offset` by the time that both are known.

        Of very many that were aborted less is read: they take more memory than their batches."""
        log = self._log
        least = sys.maxsize
        while True:
            before = log.swap_count
            result = await self.read(offset, size_max, at_least_one=at_least_one, committed=True)
            aborted = await self.read_aborted(offset, result.next_offset)
            if log.swap_count != before:
                continue
            # Nor does anybody know what was aborted in a ledger that retention or DeleteRecords has
            # dropped meanwhile.
            log.check_readable(offset)
            is_least = not ABORTED_READ_BYTES_MIN <= result.size_bytes < least
            if len(aborted) <= ABORTED_PER_READ_MAX or is_least:
                return result, aborted
            least, size_max = result.size_bytes, result.size_bytes // 2

    async def read_aborted(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """What readers of committed records have to drop of what lies between, sorted by first
        offset (`aborted.find_nowait`, if that needs no waiting). KafkaError as `read`."""
        log = self._log
        try:
            return await log.transactions.aborted.find(offset, end_offset)
        except (LedgerError, EntryFormatError, WireError) as error:
            log.check_readable(offset)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    async def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record at or after that time, None without one.
        KafkaError as `read`, and CORRUPT_MESSAGE if a batch's inside is not what it says."""
        log = self._log
        log.check_readable(log.log_start_offset)
        waiting, may_repeat = deque(log.segments), True
        while waiting:
            segment = waiting.popleft()
            if segment.max_timestamp < timestamp_ms:
                continue
            try:
                found = await segment.find_timestamp(timestamp_ms, log.log_start_offset)
            except LedgerError as error:
                log.check_readable(log.log_start_offset)
                self._check_replaced(segment, error, may_repeat=may_repeat)
                waiting, may_repeat = deque(log.segments), False
                continue
            except (
                WireError
            ) as error:  # our coordinators' batches are not walked, nor were old ones
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
            if found is not None and found[0] < log.high_watermark:
                return found
        return None

    async def max_timestamp_offset(self) -> tuple[int, int] | None:
        """(offset, timestamp) of the record with the largest timestamp (KIP-734). KafkaError."""
        log = self._log
        start = log.log_start_offset
        best: tuple[int, int] | None = None
        for segment in log.segments:
            # Only the first ones may have records below the log start, and mostly none does.
            if segment.info.base_offset >= start:
                break
            if segment.info.end_offset_or(start + 1) > start and segment.max_timestamp >= 0:
                best = await self._max_timestamp_of(segment, start)
        behind = [each for each in log.segments if each.info.base_offset >= start]
        latest = max(behind, key=lambda segment: segment.max_timestamp, default=None)
        if latest is not None and latest.max_timestamp > (-1 if best is None else best[1]):
            return await self.offset_for_timestamp(latest.max_timestamp)
        return best

    async def _max_timestamp_of(self, segment: Segment, start: int) -> tuple[int, int] | None:
        """Of its records from `start` on, which lies in it."""
        log = self._log
        try:
            found = await segment.find_timestamp(segment.max_timestamp, start)
            if found is None:  # it is below the log start
                found = await segment.find_max_timestamp(start)
        except LedgerError as error:
            log.check_readable(log.log_start_offset)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        except WireError as error:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        return found if found is not None and found[0] < log.high_watermark else None
