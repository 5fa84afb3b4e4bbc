"""Which entries of a ledger a bookie has, of hundreds of thousands, without holding the loop.

What is in the write cache is looked at before the index and after it: a flush that ends meanwhile
moves entries from the one to the other, and none is missed.

Owner: the event loop's thread.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING

from bookie.storage.sorting import sort_in_slices
from runtime.slices import Slices
from wire.bookkeeper.entry_set import ENCODED_GROUPS, EntrySet, runs_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bookie.storage.index import EntryIndex
    from bookie.storage.write_cache import WriteCache

    Runs = list[tuple[int, int]]

#: Entries that are looked at before the loop gets its turn.
ENTRIES_PER_TURN = 1000


class EntryListing:
    __slots__ = ("_cache", "_index", "_slices")

    def __init__(self, cache: WriteCache, index: EntryIndex) -> None:
        self._cache = cache
        self._index = index
        self._slices = Slices(ENTRIES_PER_TURN)

    async def entries(self, ledger_id: int, without: Sequence[int] = ()) -> EntrySet:
        """All of the ledger that are here but `without`, which ascends. OSError."""
        slices = self._slices
        runs = [*await self._in_cache(ledger_id), await self._in_index(ledger_id)]
        runs += await self._in_cache(ledger_id)
        found = EntrySet()
        first = end = -1
        for next_first, size in merge(*runs):
            if slices.due():
                await slices.turn()
            if next_first > end:
                _add(found, first, end, without)
                first, end = next_first, next_first + size
            else:
                end = max(end, next_first + size)
        _add(found, first, end, without)
        return found

    async def encoded(self, entries: EntrySet) -> bytes:
        """As it is sent."""
        parts: list[bytes] = []
        for part in entries.encode_in_parts():
            if self._slices.due(ENCODED_GROUPS):
                await self._slices.turn()
            parts.append(part)
        return b"".join(parts)

    async def _in_cache(self, ledger_id: int) -> list[Runs]:
        found: list[Runs] = []
        for run in self._cache.runs(ledger_id):
            if run.places:
                found.append([(run.first_entry_id, len(run.places))])
            if run.extra:
                found.append(await self._runs(await sort_in_slices(run.extra)))
        return found

    async def _in_index(self, ledger_id: int) -> Runs:
        found: Runs = []
        after = -1
        while some := self._index.entry_ids(ledger_id, after, ENTRIES_PER_TURN):
            found += runs_of(some)
            after = some[-1]
            if self._slices.due(len(some)):
                await self._slices.turn()
        return found

    async def _runs(self, entry_ids: Iterator[int]) -> Runs:
        found: Runs = []
        while some := list(islice(entry_ids, ENTRIES_PER_TURN)):
            found += runs_of(some)
            if self._slices.due(len(some)):
                await self._slices.turn()
        return found


def _add(found: EntrySet, first: int, end: int, without: Sequence[int]) -> None:
    """The run from `first` to before `end`, in pieces where some of it is left out."""
    for index in range(bisect_left(without, first), len(without)):
        left_out = without[index]
        if left_out >= end:
            break
        if left_out > first:
            found.add(first, left_out - first)
        first = left_out + 1
    if end > first:
        found.add(first, end - first)
