"""Which entries of a ledger a bookie has, of hundreds of thousands, without holding the loop.

What is in the write cache is looked at before the index and after it: a flush that ends meanwhile
moves entries from the one to the other, and none is missed.

A walk through the index ends at a damaged block. There the entries are looked up one by one, and
those of which the index cannot be read are left out: another bookie's copies are to take their
place, and a walk that gave up would let the whole ledger's damage be overlooked, as an auditor then
reads the first entry and the last.

Owner: the event loop's thread.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING

import trio

from bookie.errors import IndexReadError
from bookie.health.index_lookup import look_up
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
#: Entry ids that are looked up in front of a place from which the walk can go on.
LOOK_UPS_MAX = 100_000
LOOK_UPS_AT_A_TIME = 200


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
                await self._add(found, first, end, without)
                first, end = next_first, next_first + size
            else:
                end = max(end, next_first + size)
        await self._add(found, first, end, without)
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
        while True:
            try:
                some = self._index.entry_ids(ledger_id, after, ENTRIES_PER_TURN)
            except IndexReadError as error:
                reached = await self._past_damage(ledger_id, after, found, error)
                if reached is None:
                    return found
                after = reached
                continue
            if not some:
                return found
            found += runs_of(some)
            after = some[-1]
            if self._slices.due(len(some)):
                await self._slices.turn()

    async def _past_damage(
        self, ledger_id: int, after: int, found: Runs, error: IndexReadError
    ) -> int | None:
        """Adds to `found` what can be looked up behind `after`; the entry id behind which a walk
        can go on, None at the ledger's end. IndexReadError if that is too far, or not known."""
        last = self._index.last_entry_id(ledger_id)
        for first in range(after + 1, after + 1 + LOOK_UPS_MAX, LOOK_UPS_AT_A_TIME):
            if first > last:
                return None
            ids = range(first, min(first + LOOK_UPS_AT_A_TIME, last + 1))
            locations, _ = await look_up(self._index, [(ledger_id, each) for each in ids])
            here = [each for each, place in zip(ids, locations, strict=True) if place > 0]
            if here:
                found += runs_of(here)
            await trio.lowlevel.checkpoint()
            try:
                self._index.entry_ids(ledger_id, ids[-1], 1)
            except IndexReadError:
                continue
            return ids[-1]
        raise error

    async def _runs(self, entry_ids: Iterator[int]) -> Runs:
        found: Runs = []
        while some := list(islice(entry_ids, ENTRIES_PER_TURN)):
            found += runs_of(some)
            if self._slices.due(len(some)):
                await self._slices.turn()
        return found

    async def _add(self, found: EntrySet, first: int, end: int, without: Sequence[int]) -> None:
        """The run from `first` to before `end`, in pieces where some of it is left out."""
        for index in range(bisect_left(without, first), len(without)):
            left_out = without[index]
            if left_out >= end:
                break
            if self._slices.due():
                await self._slices.turn()
            if left_out > first:
                found.add(first, left_out - first)
            first = left_out + 1
        if end > first:
            found.add(first, end - first)
