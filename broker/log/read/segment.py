"""One ledger of a partition, for reading: offset -> entry -> batches.

A segment opens its ledger and loads its offset index on the first read that needs them; the open
segment's index is the one that the appender fills. Sequential readers do not use the index: the
place where one read stopped is remembered for the next (`_cursors`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from broker.log.append.entry_format import HEADER_SIZE
from broker.log.life.ledger_info import known_minimum
from broker.log.read.batch_walk import NO_END, Collected, collect
from broker.log.read.closed_ledger import open_closed
from broker.log.read.offset_index import INTERVAL_BYTES, IndexFormatError, OffsetIndex
from broker.log.read.scan import build_index, scan
from broker.log.settings import READ_ENTRIES_MAX
from runtime.logs import kv
from runtime.slices import Slices
from wire.kafka.errors import WireError
from wire.kafka.records.batch import BATCH_OVERHEAD, TimestampType, records_data
from wire.kafka.records.compression import Compression
from wire.kafka.records.walk import INT64_MAX, Fault, spans

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.log.life.ledger_info import LedgerInfo
    from broker.log.settings import LogSettings
    from broker.log.transactions.aborted_index import AbortedIndex
    from ledger.client import LedgerClient
    from ledger.reader import LedgerReader
    from wire.buffers import Buffer
    from wire.kafka.records.batch import BatchHeader
    from wire.kafka.records.walk import Span

logger = logging.getLogger(__name__)

CURSORS_MAX = 64
#: Of the entries of one read, some sixty: fewer bytes of many small ones are given.
HEADERS_BYTES = 4096
#: Records, and their bytes, of one step.
RECORDS_PER_STEP = 256
BYTES_PER_STEP = 256 << 10
#: Records, or batches that are not looked into, before others have the loop: 1 to 2 ms.
RECORDS_PER_TURN = 1000
DECOMPRESSED_BYTES_MAX = 256 << 20


class Segment:
    """`info` is what metadata knows of the ledger. While it is open its size and timestamps grow
    here, in plain attributes: they change with every entry."""

    __slots__ = (
        "_cursors", "_ledgers", "_settings", "aborted", "index", "index_entry", "info",
        "max_timestamp", "max_timestamp_offset", "min_timestamp", "reader", "size_bytes",
        "snapshot_entry",
    )  # fmt: skip

    def __init__(
        self,
        info: LedgerInfo,
        ledgers: LedgerClient,
        settings: LogSettings,
        *,
        reader: LedgerReader | None = None,
        index: OffsetIndex | None = None,
    ) -> None:
        self.info = info
        self.reader = reader
        self.index = index
        #: The index of its aborted transactions, while that is in memory. Of the open ledger the
        #: partition has it, until it is sealed.
        self.aborted: AbortedIndex | None = None
        self._ledgers = ledgers
        self._settings = settings
        self._cursors: OrderedDict[int, int] = OrderedDict()
        self.size_bytes = info.size_bytes
        self.max_timestamp = info.max_timestamp
        self.max_timestamp_offset = info.max_timestamp_offset
        #: Of what was appended: below 0 if it is not known, INT64_MAX before anything was.
        self.min_timestamp = INT64_MAX
        self.index_entry = info.index_entry
        self.snapshot_entry = info.snapshot_entry

    def closed_info(self, last_offset: int, entry_count: int) -> LedgerInfo:
        """What metadata is told when the ledger's end is final. The index of aborted transactions
        lies behind the offset index, if there are any."""
        aborted_count = 0 if self.aborted is None else len(self.aborted)
        assert not aborted_count or self.index_entry is not None
        return replace(
            self.info,
            last_offset=last_offset,
            entry_count=entry_count,
            size_bytes=self.size_bytes,
            max_timestamp=self.max_timestamp,
            max_timestamp_offset=self.max_timestamp_offset,
            min_timestamp=known_minimum(self.min_timestamp),
            index_entry=self.index_entry,
            snapshot_entry=self.snapshot_entry,
            aborted_entry=(self.index_entry or 0) + 1 if aborted_count else None,
            aborted_count=aborted_count,
        )

    async def open(self) -> LedgerReader:
        """LedgerError if it cannot be read, or not to the end that the chain has."""
        if self.reader is None:
            self.reader = await open_closed(self._ledgers, self.info)
        return self.reader

    async def prepare(self) -> None:
        """Opens the ledger and loads its index. LedgerError if it cannot be read."""
        reader = await self.open()
        if self.index is None:
            self.index = await self._load_index(reader)

    async def _load_index(self, reader: LedgerReader) -> OffsetIndex:
        if self.info.last_offset is not None and self.size_bytes < INTERVAL_BYTES:
            return OffsetIndex()  # it would send every reader to the start
        entry_id = self.index_entry
        if entry_id is not None:
            payloads = await reader.read(entry_id, count_max=1, size_max=1)
            try:
                return OffsetIndex.from_bytes(payloads[0][HEADER_SIZE:])
            except IndexFormatError as error:
                logger.warning("offset_index_unusable", kv(ledger=self.info.ledger_id, error=error))
        index = OffsetIndex()
        await build_index(reader, index)
        return index

    def read_nowait(
        self,
        offset: int,
        size_max: int,
        *,
        at_least_one: bool,
        end_offset: int = NO_END,
        entries_max: int = READ_ENTRIES_MAX,
    ) -> Collected | None:
        """Batches from `offset` on, and before `end_offset`, that are in memory or in the page
        cache; None: would wait. Of no more than `entries_max` entries, unless these have none."""
        reader, index = self.reader, self.index
        if reader is None or index is None:
            return None
        entry_id, wanted = self._start(offset, index, size_max)
        # From `entry_id` on: the entries of a batch of which not all were read yet, as there are
        # too many, the ensemble changes within it, or the next one's copy is damaged.
        payloads: list[memoryview] = []
        count_max, entries_read = min(self._settings.read_entries_max, entries_max), 0
        while entry_id + len(payloads) <= reader.last_add_confirmed:
            more = reader.read_nowait(
                entry_id + len(payloads), count_max=count_max, size_max=wanted
            )
            if more is None:
                return None
            payloads += more
            entries_read += len(more)
            got = collect(
                payloads, offset, size_max, at_least_one=at_least_one, end_offset=end_offset
            )
            entry_id += got.entries_used
            if got.next_offset >= 0 or got.full:
                self._remember(got.next_offset, entry_id)
                got.entries_read = entries_read
                return got
            del payloads[: got.entries_used]
            count_max = self._settings.read_entries_max
        return Collected(entries_read=entries_read)

    async def read(
        self, offset: int, size_max: int, *, at_least_one: bool, end_offset: int = NO_END
    ) -> Collected:
        """As `read_nowait`, waiting for the disk or the network. LedgerError."""
        await self.prepare()
        reader, index = self.reader, self.index
        assert reader is not None
        assert index is not None
        entry_id, wanted = self._start(offset, index, size_max)
        payloads: list[memoryview] = []
        entries_read = 0
        while entry_id + len(payloads) <= reader.last_add_confirmed:
            more = await reader.read(
                entry_id + len(payloads),
                count_max=self._settings.read_entries_max,
                size_max=wanted,
            )
            payloads += more
            entries_read += len(more)
            got = collect(
                payloads, offset, size_max, at_least_one=at_least_one, end_offset=end_offset
            )
            entry_id += got.entries_used
            if got.next_offset >= 0 or got.full:
                self._remember(got.next_offset, entry_id)
                got.entries_read = entries_read
                return got
            del payloads[: got.entries_used]
        return Collected(entries_read=entries_read)

    def _start(self, offset: int, index: OffsetIndex, size_max: int) -> tuple[int, int]:
        """The entry to read from, and how many bytes of entries to ask for: what a reader that goes
        on does not get is read again, so it is asked for little more than it wants."""
        slack = self._settings.read_slack_bytes
        entry_id = self._cursors.get(offset)
        if entry_id is None:
            return index.entry_for_offset(offset), size_max + slack
        return entry_id, size_max + min(slack, HEADERS_BYTES)

    def _remember(self, next_offset: int, entry_id: int) -> None:
        if next_offset < 0:
            return
        self._cursors[next_offset] = entry_id
        if len(self._cursors) > CURSORS_MAX:
            self._cursors.popitem(last=False)

    async def find_timestamp(self, timestamp_ms: int, offset_min: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record at or after both. LedgerError."""
        await self.prepare()
        assert self.reader is not None
        assert self.index is not None
        entry_id = self.index.entry_for_timestamp(timestamp_ms)
        slices = Slices(RECORDS_PER_TURN)
        while entry_id <= self.reader.last_add_confirmed:
            chunk = await scan(self.reader, entry_id)
            for entry in chunk.entries:
                for header, batch in entry.batches():
                    if slices.due():
                        await slices.turn()
                    if (
                        header.record_count
                        and header.max_timestamp >= timestamp_ms
                        and header.last_offset >= offset_min
                    ):
                        found = await self._first_record_at(
                            batch, header, timestamp_ms, offset_min, slices
                        )
                        if found is not None:
                            return found
            entry_id = chunk.next_entry_id
        return None

    async def _first_record_at(
        self,
        batch: memoryview,
        header: BatchHeader,
        timestamp_ms: int,
        offset_min: int,
        slices: Slices,
    ) -> tuple[int, int] | None:
        """(offset, timestamp) of the batch's first record with both or more. A batch of some
        hundred bytes may have a million of them."""
        has_append_time = header.timestamp_type == TimestampType.LOG_APPEND_TIME
        if has_append_time and header.record_count == header.last_offset_delta + 1:
            # All records have the batch's, and all are there.
            return max(header.base_offset, offset_min), header.max_timestamp
        for found in _some_spans(header, await self._unpacked(batch, header)):
            if slices.due(len(found)):
                await slices.turn()
            for span in found:
                offset, timestamp = _place_of(header, span)
                if timestamp >= timestamp_ms and offset >= offset_min:
                    return offset, timestamp
        return None

    async def _unpacked(self, batch: memoryview, header: BatchHeader) -> Buffer:
        if header.compression is Compression.NONE:
            return batch[BATCH_OVERHEAD : header.size]  # to copy a hundred megabytes takes 40 ms
        unpack = partial(records_data, batch, header, size_max=DECOMPRESSED_BYTES_MAX)
        return await self._ledgers.env.disk.run(unpack)

    async def find_max_timestamp(self, offset_min: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record that has the largest timestamp of those from
        `offset_min` on; None if there is no record, or none has a time. Reads all of the ledger.
        LedgerError, WireError."""
        best: tuple[int, int] | None = None
        entry_id, slices = 0, Slices(RECORDS_PER_TURN)
        reader = await self.open()
        while entry_id <= reader.last_add_confirmed:
            chunk = await scan(reader, entry_id)
            for entry in chunk.entries:
                for header, batch in entry.batches():
                    if slices.due():
                        await slices.turn()
                    wanted = 0 if best is None else best[1] + 1
                    if header.last_offset < offset_min or header.max_timestamp < wanted:
                        continue
                    for found in _some_spans(header, await self._unpacked(batch, header)):
                        if slices.due(len(found)):
                            await slices.turn()
                        for span in found:
                            offset, timestamp = _place_of(header, span)
                            if timestamp >= wanted and offset >= offset_min:
                                best, wanted = (offset, timestamp), timestamp + 1
            entry_id = chunk.next_entry_id
        return best


def _some_spans(header: BatchHeader, data: Buffer) -> Iterator[list[Span]]:
    """The batch's records, some at a time, their headers passed by: one may have a quarter of a
    million. WireError."""
    position = index = 0
    while index < header.record_count:
        count = min(header.record_count - index, RECORDS_PER_STEP)
        fault, position, found = spans(data, position, count, BYTES_PER_STEP)
        if fault:
            raise WireError(f"record {index + len(found)}: {Fault(fault).name.lower()}")
        index += len(found)
        yield found


def _place_of(header: BatchHeader, span: Span) -> tuple[int, int]:
    """(offset, timestamp)"""
    if header.timestamp_type == TimestampType.LOG_APPEND_TIME:
        return header.base_offset + span[4], header.max_timestamp
    return header.base_offset + span[4], header.base_timestamp + span[3]
