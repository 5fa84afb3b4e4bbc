"""Aborted transactions of one partition: from the markers of its open ledger to a fetch's list.

Rows of the ledger that is open, and of batches that wait for the next one, are in memory. Those of
closed ledgers are read at the first fetch that needs them, and forgotten when the broker holds too
many of them (AbortedCache): the index that a sealed ledger has; of a recovered one, which has none,
what its batches tell (broker/log/transactions/aborted_scan.py).

A fetch walks the ledgers from its own forward: a transaction is listed where its marker is, and
that may be ledgers behind its data. It ends where a row says that all later ones begin behind what
the fetch returns. Ledgers without a row cost nothing.

Owner of the state: the partition's log.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import OrderedDict
from heapq import merge
from operator import attrgetter
from typing import TYPE_CHECKING

import trio

from broker.log.append.entry_format import FLAG_CONTINUES, HEADER_SIZE, KIND_ABORTED, parse_header
from broker.log.append.producer_snapshot import decode_snapshot
from broker.log.transactions.aborted_index import (
    AbortedFormatError,
    AbortedIndex,
    AbortedTransaction,
    decode_aborted,
)
from broker.log.transactions.aborted_scan import rebuild_aborted
from runtime.logs import kv
from runtime.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.log.life.ledger_info import LedgerInfo
    from broker.log.read.segment import Segment
    from ledger.reader import LedgerReader

logger = logging.getLogger(__name__)

#: Of all partitions of a broker, 32 bytes each.
CACHED_ROWS_MAX = 1_000_000
#: That are looked at without giving others the loop, 0.5 ms.
NOWAIT_ROWS = 500
#: That `walk` looks at in one turn of the loop, 0.5 ms.
WALK_ROWS = 500
#: What an index counts for beside its rows.
INDEX_ROWS = 32


class AbortedCache:
    """Which indexes of closed ledgers a broker holds: those that were used last."""

    __slots__ = ("_rows", "_rows_max", "_segments")

    def __init__(self, rows_max: int = CACHED_ROWS_MAX) -> None:
        self._rows_max = rows_max
        self._rows = 0
        self._segments: OrderedDict[Segment, int] = OrderedDict()

    def used(self, segment: Segment) -> None:
        """Its index is used now; those that were not for the longest may have to go."""
        segments = self._segments
        if segment in segments:
            segments.move_to_end(segment)
            return
        assert segment.aborted is not None
        segments[segment] = rows = len(segment.aborted) + INDEX_ROWS
        self._rows += rows
        while self._rows > self._rows_max and len(segments) > 1:
            oldest, rows = segments.popitem(last=False)
            self._rows -= rows
            oldest.aborted = None


class AbortedLists:
    """Of one partition. `segments` is its list of ledgers, which changes; whoever changes it, or
    the facts of one of them, calls `segments_changed`."""

    __slots__ = ("_cache", "_listed", "_segments", "_written", "open")

    def __init__(self, cache: AbortedCache) -> None:
        self._cache = cache
        self._segments: list[Segment] = []
        #: Closed ledgers that have rows, in order.
        self._listed: list[Segment] = []
        #: What no sealed ledger has.
        self.open = AbortedIndex()
        #: So many of them are in the open ledger's entries.
        self._written = 0

    def segments_changed(self, segments: list[Segment]) -> None:
        self._segments = segments
        self._listed = [each for each in segments if each.info.aborted_count]

    # -- from markers to entries -----------------------------------------------------------------

    def take_new(self) -> list[bytes]:
        """The contents of entries with all rows since the last call; they are written now."""
        parts = self.open.parts(self._written)
        self._written = len(self.open)
        return parts

    def take_all(self) -> list[bytes]:
        """The same with all rows of the ledger, which is sealed now; rows that come are the next
        one's."""
        parts = self.open.parts()
        if parts:
            self._segments[-1].aborted = self.open
            self._listed.append(self._segments[-1])
            self.open = AbortedIndex()
        self._written = 0
        return parts

    # -- from entries to a fetch -----------------------------------------------------------------

    def find_nowait(self, offset: int, end_offset: int) -> list[AbortedTransaction] | None:
        """Of all whose marker is at or behind `offset`, and which begin before `end_offset`, by
        their first offsets. None: some have to be read, or they are more than NOWAIT_ROWS
        (`find`)."""
        if (not self._listed and not self.open) or end_offset <= offset:
            return []
        found: list[AbortedTransaction] = []
        at, left, is_all = offset, NOWAIT_ROWS, False
        while not is_all:
            segment = self._next(at)
            index = self.open if segment is None else segment.aborted
            if index is None or left <= 0:
                return None
            self._used(segment)
            rows, next_at, is_all = index.some(at, end_offset, left)
            found += rows
            if is_all or (next_at < 0 and segment is None):
                break
            if next_at >= 0:
                return None
            assert segment is not None
            at = _end_of(segment, index)
            left -= 1 + len(rows)
        return sorted(found, key=_first_offset)

    async def find(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """As `find_nowait`, of any number, in slices. LedgerError, EntryFormatError, WireError."""
        runs: list[list[AbortedTransaction]] = []
        await self.walk(offset, end_offset, runs.append)
        for rows in runs:
            rows.sort(key=_first_offset)
        found: list[AbortedTransaction] = []
        slices = Slices(WALK_ROWS)
        for row in merge(*runs, key=_first_offset):
            if slices.due():
                await slices.turn()
            found.append(row)
        return found

    async def walk(
        self, offset: int, end_offset: int, take: Callable[[list[AbortedTransaction]], None]
    ) -> None:
        """`take(rows)` for what `find` gives, in the order of the markers, WALK_ROWS at a time with
        a turn of the loop in between. What `find` raises."""
        at = offset
        while offset < end_offset:
            segment = self._next(at)
            index = self.open if segment is None else segment.aborted
            if index is None:
                assert segment is not None
                index = await self._load(segment)
            self._used(segment)
            rows, next_at, is_all = index.some(at, end_offset, WALK_ROWS)
            take(rows)
            if is_all or (next_at < 0 and segment is None):
                return
            at = next_at if segment is None or next_at >= 0 else _end_of(segment, index)
            await trio.lowlevel.checkpoint()

    def _next(self, offset: int) -> Segment | None:
        """The first ledger with rows that has a marker at or behind `offset`, or may have one; None
        if that is the open one, which is not listed."""
        listed = self._listed
        start = max(bisect_right(listed, offset, key=_base_offset) - 1, 0)
        while start < len(listed):
            segment = listed[start]
            last_offset = segment.info.last_offset
            if last_offset is None:  # sealed, and not closed yet
                assert segment.aborted is not None
                last_offset = segment.aborted.last_marker
            if last_offset >= offset:
                return segment
            start += 1
        return None

    def _used(self, segment: Segment | None) -> None:
        """Not of the open one: it is not in its ledger yet, and cannot be read again."""
        if segment is not None and not segment.info.is_open:
            self._cache.used(segment)

    async def _load(self, segment: Segment) -> AbortedIndex:
        reader = await segment.open()
        info = segment.info
        index: AbortedIndex | None = None
        if info.aborted_entry is not None:
            index = await _read_index(reader, info.aborted_entry, info.aborted_count)
        if index is None:
            index = await rebuild_aborted(reader, await self._open_before(segment))
        segment.aborted = index
        return index

    async def _open_before(self, segment: Segment) -> dict[int, int]:
        """What was open at the segment's start, if the ledger before was sealed; after a recovered
        one the segment's own first entry says it."""
        position = bisect_right(self._segments, segment.info.base_offset, key=_base_offset) - 2
        if position < 0 or not is_sealed(before := self._segments[position].info):
            return {}
        assert before.snapshot_entry is not None
        return await open_at(await self._segments[position].open(), before.snapshot_entry)


def is_sealed(info: LedgerInfo) -> bool:
    """Whether the ledger was closed in order: with an offset index and a snapshot behind it."""
    return info.index_entry is not None and info.snapshot_entry is not None


async def _read_index(reader: LedgerReader, entry_id: int, count: int) -> AbortedIndex | None:
    """`count` rows from that entry on; None if it is damaged. LedgerError."""
    index = AbortedIndex()
    try:
        while len(index) < count:
            [payload] = await reader.read(entry_id, count_max=1, size_max=1)
            header = parse_header(payload)
            if header.kind != KIND_ABORTED:
                raise AbortedFormatError(f"entry {entry_id} is of kind {header.kind}")
            for row in decode_aborted(payload[HEADER_SIZE:]):
                index.add(row)
            entry_id += 1
    except ValueError as error:  # WireError, EntryFormatError and AbortedFormatError are
        logger.warning("aborted_index_unusable", kv(ledger=reader.ledger_id, error=error))
        return None
    return index


async def open_at(reader: LedgerReader, entry_id: int) -> dict[int, int]:
    """The transactions that a snapshot tells of. LedgerError, EntryFormatError, WireError."""
    found = {}
    while True:
        [payload] = await reader.read(entry_id, count_max=1, size_max=1)
        header = parse_header(payload)
        for producer_id, transaction_start, _ in decode_snapshot(payload[HEADER_SIZE:])[1]:
            if transaction_start >= 0:
                found[producer_id] = transaction_start
        entry_id += 1
        if not header.flags & FLAG_CONTINUES:
            return found


def _end_of(segment: Segment, index: AbortedIndex) -> int:
    """Behind the ledger; or, if it is not closed yet, behind its last row."""
    last_offset = segment.info.last_offset
    return 1 + (index.last_marker if last_offset is None else last_offset)


_first_offset = attrgetter("first_offset")


def _base_offset(segment: Segment) -> int:
    return segment.info.base_offset
