"""The path of a read: what a bookie answers (invariants B).

«No such entry» and «no such ledger» are said only when that is certain: what is damaged is EIO, and
a ledger in limbo, of which nobody knows whether all of it is here, is EUNKNOWNLEDGERSTATE.

Owner: the event loop's thread.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import trio

from bookie.entry_listing import EntryListing
from bookie.errors import DamagedRecordError
from bookie.health.damage import UNKNOWN_ID
from bookie.read_ahead import ReadAhead
from bookie.start import ledger_directory
from wire.bookkeeper.status import (
    FLAG_DO_FENCING,
    FLAG_HIGH_PRIORITY,
    LAST_ADD_CONFIRMED_ENTRY,
    Status,
)

if TYPE_CHECKING:
    from bookie.ledger_operations import LedgerOperations
    from bookie.parts import BookieParts
    from bookie.storage.reader import Reader
    from wire.bookkeeper.entry_set import EntrySet

_EMPTY = memoryview(b"")
#: A read gives so many entries at most, as if there were no more room: they may be tiny.
ENTRIES_PER_READ_MAX = 1000
#: Of a ledger all of whose entries are read to know which are sound.
LISTING_READ_SIZE_BYTES = 1 << 20
#: A recovery's: a ledger, and so a partition, waits for them.
URGENT_FLAGS = FLAG_DO_FENCING | FLAG_HIGH_PRIORITY


def _limited(count_max: int) -> int:
    return min(count_max, ENTRIES_PER_READ_MAX) if count_max > 0 else ENTRIES_PER_READ_MAX


class ReadPath:
    __slots__ = (
        "_ahead",
        "_cache",
        "_clock",
        "_damages",
        "_directory",
        "_ended",
        "_index",
        "_ledger",
        "_operations",
        "_reader",
        "damaged_records",
    )

    def __init__(
        self,
        parts: BookieParts,
        reader: Reader,
        operations: LedgerOperations,
        ended: trio.Event,
    ) -> None:
        """`ended`: from then on every answer is EIO."""
        self._directory = ledger_directory(parts.config)
        self._clock = parts.env.clock
        self._reader = reader
        self._ahead = ReadAhead(reader, parts.env.turn)
        self._cache = parts.cache
        self._index = parts.index
        self._ledger = parts.table.get
        self._operations = operations
        self._damages = parts.damages
        self._ended = ended
        #: Answers EIO for what is damaged.
        self.damaged_records = 0

    async def read_entry(
        self, ledger_id: int, entry_id: int, *, flags: int = 0, master_key: bytes | None = None
    ) -> tuple[Status, memoryview]:
        """One entry; LAST_ADD_CONFIRMED_ENTRY is the one with the highest id. FLAG_DO_FENCING
        fences first, and answers when that is durable (invariants B1, B2)."""
        if flags & FLAG_DO_FENCING:
            status = await self._operations.fence(ledger_id, master_key)
            if status is not Status.EOK:
                return status, _EMPTY
        if entry_id == LAST_ADD_CONFIRMED_ENTRY and self._ledger(ledger_id) is not None:
            if (status := self._nothing(ledger_id)) is not Status.ENOENTRY:
                return status, _EMPTY
            try:
                entry_id = self._reader.last_entry_id(ledger_id)
            except OSError as error:
                return self._unreadable(ledger_id, entry_id, error), _EMPTY
            if entry_id < 0:
                return Status.ENOENTRY, _EMPTY
        is_urgent = bool(flags & URGENT_FLAGS)
        status, entries = await self.read_entries(ledger_id, entry_id, 1, 0, is_urgent=is_urgent)
        return status, entries[0] if entries else _EMPTY

    def read_entry_nowait(
        self, ledger_id: int, entry_id: int
    ) -> tuple[Status, list[memoryview]] | None:
        """One entry, or none; None if it would wait for the disk."""
        if self._ledger(ledger_id) is None or self._ended.is_set():
            return (Status.EIO if self._ended.is_set() else Status.ENOLEDGER), []
        try:
            entries = self._ahead.read(ledger_id, entry_id)
        except (DamagedRecordError, OSError) as error:
            return self._unreadable(ledger_id, entry_id, error), []
        if entries:
            return Status.EOK, entries
        return None if entries is None else (self._nothing(ledger_id), [])

    def read_entries_nowait(
        self, ledger_id: int, first_entry_id: int, count_max: int, size_max: int
    ) -> tuple[Status, list[memoryview]] | None:
        """Consecutive entries; at least one if the first exists, even if it is larger than
        `size_max` bytes. `count_max` <= 0: ENTRIES_PER_READ_MAX, the most that one read gives. None
        if it would wait for the disk."""
        if self._ledger(ledger_id) is None or self._ended.is_set():
            return (Status.EIO if self._ended.is_set() else Status.ENOLEDGER), []
        try:
            entries = self._reader.read_nowait(
                ledger_id, first_entry_id, _limited(count_max), size_max
            )
        except (DamagedRecordError, OSError) as error:
            return self._unreadable(ledger_id, first_entry_id, error), []
        if entries is None:
            return None
        return (Status.EOK if entries else self._nothing(ledger_id)), entries

    async def read_entries(
        self,
        ledger_id: int,
        first_entry_id: int,
        count_max: int,
        size_max: int,
        *,
        is_urgent: bool = False,
    ) -> tuple[Status, list[memoryview]]:
        """As `read_entries_nowait`, waiting for the disk where that is needed; a read of a
        recovery (`is_urgent`) in front of the others."""
        answer = self.read_entries_nowait(ledger_id, first_entry_id, count_max, size_max)
        if answer is not None:
            return answer
        start = self._clock.monotonic()
        try:
            entries = await self._reader.read(
                ledger_id,
                first_entry_id,
                _limited(count_max),
                size_max,
                is_urgent=is_urgent,
            )
        except (DamagedRecordError, OSError) as error:
            return self._unreadable(ledger_id, first_entry_id, error), []
        self._reader.statistics.miss_latency.record(self._clock.monotonic() - start)
        return (Status.EOK if entries else self._nothing(ledger_id)), entries

    async def read_one(self, ledger_id: int, entry_id: int) -> tuple[Status, memoryview]:
        return await self.read_entry(ledger_id, entry_id)

    async def entries(self, ledger_id: int) -> EntrySet | None:
        """All entries of the ledger that are here; None if it is unknown. OSError."""
        if self._ledger(ledger_id) is None:
            return None
        return await EntryListing(self._cache, self._index).entries(ledger_id)

    async def sound_entries(self, ledger_id: int) -> EntrySet | None:
        """As `entries`, without those that were found damaged and still are: another bookie's copy
        is to take their place (ledger/autorecovery/repair.py). OSError."""
        if self._ledger(ledger_id) is None:
            self._damages.forget_ledger(ledger_id)
            return None
        listing = EntryListing(self._cache, self._index)
        unlisted = self._damages.unlisted_of(ledger_id)
        if unlisted:
            damaged = await self._all_damaged(ledger_id, await listing.entries(ledger_id))
            self._damages.all_were_read(ledger_id, unlisted)
        else:
            damaged = array("q")
            for entry_id in self._damages.entries_of(ledger_id):
                if await self._count_sound(ledger_id, entry_id, 1) == 0:
                    damaged.append(entry_id)
        return await listing.entries(ledger_id, damaged)

    async def _all_damaged(self, ledger_id: int, entries: EntrySet) -> array[int]:
        """Of a ledger with more damage than is listed: ids, ascending, of those of `entries` that
        cannot be read. All are read, from the disk where need be."""
        damaged = array("q")
        after = -1
        for entry_id in entries:
            if entry_id <= after:
                continue
            count = await self._count_sound(ledger_id, entry_id, ENTRIES_PER_READ_MAX)
            if count == 0:
                damaged.append(entry_id)
            after = entry_id + max(count, 1) - 1
        return damaged

    async def _count_sound(self, ledger_id: int, first_entry_id: int, count_max: int) -> int:
        """How many consecutive entries can be read, at most `count_max`; 0 if the first is
        damaged."""
        status, entries = await self.read_entries(
            ledger_id, first_entry_id, count_max, LISTING_READ_SIZE_BYTES if count_max > 1 else 0
        )
        await trio.lowlevel.checkpoint()
        if status is Status.EIO:
            return 0
        self._damages.are_sound(ledger_id, first_entry_id, len(entries))
        return max(len(entries), 1)

    async def encoded_entries(self, ledger_id: int) -> tuple[Status, bytes]:
        """The same, as an EntrySet's encoding: what a bookie says that it has. ENOLEDGER; EIO where
        the index cannot be read."""
        try:
            entries = await self.sound_entries(ledger_id)
        except OSError as error:
            return self._unreadable(ledger_id, UNKNOWN_ID, error), b""
        if entries is None:
            return Status.ENOLEDGER, b""
        return Status.EOK, await EntryListing(self._cache, self._index).encoded(entries)

    def _nothing(self, ledger_id: int) -> Status:
        """What is said of an entry that is not here."""
        state = self._ledger(ledger_id)
        is_limbo = state is not None and state.limbo
        return Status.EUNKNOWNLEDGERSTATE if is_limbo else Status.ENOENTRY

    def _unreadable(self, ledger_id: int, entry_id: int, error: Exception) -> Status:
        self.damaged_records += 1
        if isinstance(error, DamagedRecordError):
            self._damages.report(error.path, error.offset, ledger_id, entry_id, error.reason)
        else:
            self._damages.report(self._directory, UNKNOWN_ID, ledger_id, entry_id, str(error))
        return Status.EIO
