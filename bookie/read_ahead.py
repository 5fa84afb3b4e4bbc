"""ReadAhead: single reads of one ledger that come in one burst, read as a batch.

Most clients of BookKeeper read entry by entry, hundreds of requests at a time, and of a striped
ledger each bookie is asked for every third entry. To look each of them up costs more than to follow
the entries as they lie one behind the other. So the second read of a ledger in a turn, and those
after it, bring what follows along, and the next ones find it here. It is forgotten when the turn
ends: nothing of it has to be kept true.

Owner: the event loop's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bookie.storage.reader import Reader
    from runtime.turn import Turn

#: Entries that may lie between two reads of a client that goes forward: it reads the others from
#: the ensemble's other bookies.
STRIDE_MAX = 8
#: The first time; each time after it four times as many, up to the maximum.
COUNT_MIN = 16
COUNT_MAX = 256
SIZE_MAX_BYTES = 64 << 10


class ReadAhead:
    __slots__ = ("_count", "_entries", "_first", "_is_in_cache", "_ledger_id", "_reader", "_turn")

    def __init__(self, reader: Reader, turn: Turn) -> None:
        self._reader = reader
        self._turn = turn
        self._ledger_id = -1
        self._first = 0
        self._entries: list[memoryview] = []
        self._is_in_cache = False
        self._count = COUNT_MIN

    def read(self, ledger_id: int, entry_id: int) -> list[memoryview] | None:
        """As `Reader.read_nowait` of one entry: it, or nothing; None if it is not in memory."""
        if ledger_id != self._ledger_id:
            return self._begin(ledger_id, entry_id)
        at = entry_id - self._first
        entries = self._entries
        if not 0 <= at < len(entries):
            if not 0 <= at - len(entries) < STRIDE_MAX:
                return self._begin(ledger_id, entry_id)
            found = self._bring(entry_id)
            if not found:
                return found
            at, entries = 0, found
        entry = entries[at]
        statistics = self._reader.statistics
        if self._is_in_cache:
            statistics.cache_entries += 1
        else:
            statistics.log_entries += 1
        statistics.entry_bytes += len(entry)
        return [entry]

    def _begin(self, ledger_id: int, entry_id: int) -> list[memoryview] | None:
        found = self._reader.read_nowait(ledger_id, entry_id, 1, 0)
        if found:
            if self._ledger_id < 0:
                self._turn.defer(self._forget)
            self._ledger_id, self._first, self._entries = ledger_id, entry_id, found
            self._count = COUNT_MIN
        return found

    def _bring(self, entry_id: int) -> list[memoryview] | None:
        statistics = self._reader.statistics
        before = statistics.cache_entries, statistics.log_entries, statistics.entry_bytes
        found = self._reader.read_nowait(self._ledger_id, entry_id, self._count, SIZE_MAX_BYTES)
        if found:
            # Counted as they are asked for.
            self._is_in_cache = statistics.cache_entries > before[0]
            statistics.cache_entries, statistics.log_entries, statistics.entry_bytes = before
            self._first, self._entries = entry_id, found
            self._count = min(4 * self._count, COUNT_MAX)
        return found

    def _forget(self) -> None:
        self._ledger_id = -1
        self._entries = []
