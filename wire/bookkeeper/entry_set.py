"""EntrySet: which entries of a ledger a bookie has, small enough to be sent.

The answer to GET_LIST_OF_ENTRIES_OF_LEDGER (AvailabilityOfEntriesOfLedger.java; docs/formats.md):
64 bytes of header (i32 version 0, i32 number of groups, zeros), then 24 bytes for each group:

    i64 first entry, i64 first entry of the last run, i32 run size, i32 period

A group is runs of equal size at equal distances, which is what striping (write quorum smaller than
the ensemble) leaves on a bookie; a period of 0 is a single run. Java groups nothing and writes one
group for each run, but reads ours.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING

from wire.bookkeeper.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wire.buffers import Buffer

HEADER_SIZE = 64
GROUP_SIZE = 24
VERSION = 0

_HEADER = Struct(">ii56x")
_GROUP = Struct(">qqii")
#: In one part of the encoding: some 0.3 ms.
ENCODED_GROUPS = 1000
_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1


class EntrySet:
    """Immutable once made (`add`). Takes 24 bytes of memory for each group."""

    __slots__ = ("_firsts", "_lasts", "_periods", "_sizes", "count")

    def __init__(self) -> None:
        """Empty; see `of_entries`, `of_runs` and `decode`."""
        self._firsts = array("q")
        self._lasts = array("q")
        self._sizes = array("i")
        self._periods = array("i")
        #: Number of entries.
        self.count = 0

    @classmethod
    def of_entries(cls, entry_ids: Iterable[int]) -> EntrySet:
        """For tests. `entry_ids` ascend; the same one may come twice. ValueError."""
        return cls.of_runs(runs_of(entry_ids))

    @classmethod
    def of_runs(cls, runs: Iterable[tuple[int, int]]) -> EntrySet:
        """(first entry id, number of entries) each, ascending. ValueError if they overlap."""
        made = cls()
        for first, size in _joined(runs):
            made.add(first, size)
        return made

    def add(self, first: int, size: int) -> None:
        """While it is made: a run behind all others, that does not touch the last one."""
        self.count += size
        while size > _INT32_MAX:
            self._append(first, _INT32_MAX)
            first += _INT32_MAX
            size -= _INT32_MAX
        self._append(first, size)

    def _append(self, first: int, size: int) -> None:
        """One run, to the last group if it goes on there."""
        lasts, periods = self._lasts, self._periods
        if lasts and self._sizes[-1] == size:
            distance = first - lasts[-1]
            # Runs that touch stay apart: Java takes one entry too many for there, if the period
            # is the run's size.
            is_next = periods[-1] in (0, distance)
            if is_next and size < distance <= _INT32_MAX:
                periods[-1] = distance
                lasts[-1] = first
                return
        self._firsts.append(first)
        lasts.append(first)
        self._sizes.append(size)
        periods.append(0)

    @property
    def group_count(self) -> int:
        return len(self._firsts)

    def __contains__(self, entry_id: int) -> bool:
        index = bisect_right(self._firsts, entry_id) - 1
        if index < 0 or entry_id >= self._lasts[index] + self._sizes[index]:
            return False
        distance = entry_id - self._firsts[index]
        if period := self._periods[index]:
            distance %= period
        return distance < self._sizes[index]

    def runs(self) -> Iterator[tuple[int, int]]:
        """(first entry id, number of entries), ascending."""
        for first, last, size, period in self._groups():
            for start in range(first, last + 1, period or 1):
                yield start, size

    def __iter__(self) -> Iterator[int]:
        for first, size in self.runs():
            yield from range(first, first + size)

    def __eq__(self, other: object) -> bool:
        """Of the same groups; sets made by `of_entries` or `of_runs` are, if their entries are."""
        return isinstance(other, EntrySet) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]

    def _groups(self) -> Iterator[tuple[int, int, int, int]]:
        return zip(self._firsts, self._lasts, self._sizes, self._periods, strict=True)

    def encode(self) -> bytes:
        return b"".join(self.encode_in_parts())

    def encode_in_parts(self) -> Iterator[bytes]:
        """The same, ENCODED_GROUPS groups at a time."""
        yield _HEADER.pack(VERSION, self.group_count)
        groups = self._groups()
        while part := b"".join(_GROUP.pack(*group) for group in islice(groups, ENCODED_GROUPS)):
            yield part


def decode_entry_set(data: Buffer) -> EntrySet:
    """WireError if there are not the announced groups, or they are no ascending runs."""
    view = memoryview(data)
    if len(view) < HEADER_SIZE:
        raise WireError(f"entry set of {len(view)} bytes is shorter than its header (64 bytes)")
    version, group_count = _HEADER.unpack_from(view)
    if version != VERSION:
        raise WireError(f"entry set of version {version}, known is {VERSION}")
    if group_count < 0 or len(view) != HEADER_SIZE + group_count * GROUP_SIZE:
        raise WireError(
            f"entry set of {len(view)} bytes does not hold {group_count} groups of {GROUP_SIZE}"
        )
    found = EntrySet()
    end = 0
    for index, (first, last, size, period) in enumerate(_GROUP.iter_unpack(view[HEADER_SIZE:])):
        distance = last - first
        is_regular = distance == 0 or (period >= max(size, 1) and distance > 0 == distance % period)
        if first < end or size < 1 or period < 0 or not is_regular or last + size - 1 > _INT64_MAX:
            raise WireError(
                f"entry set: group {index} (from {first} to {last}, runs of {size} every {period})"
                f" after entry {end - 1} is none"
            )
        end = last + size
        found._firsts.append(first)
        found._lasts.append(last)
        found._sizes.append(size)
        found._periods.append(period if distance else 0)
        found.count += (distance // period + 1 if distance else 1) * size
    return found


def runs_of(entry_ids: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Ascending ids, each once or more, as (first entry id, number of entries)."""
    first = end = -1
    for entry_id in entry_ids:
        if entry_id == end:
            end += 1
        elif entry_id != end - 1 or first < 0:
            if first >= 0:
                yield first, end - first
            first, end = entry_id, entry_id + 1
    if first >= 0:
        yield first, end - first


def _joined(runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The same with those that touch made one. ValueError."""
    first, end = 0, 0
    for next_first, size in runs:
        if next_first < end or size < 1 or next_first + size - 1 > _INT64_MAX:
            raise ValueError(f"a run of {size} entries from {next_first} on, after entry {end - 1}")
        if next_first > end:
            if end > first:
                yield first, end - first
            first = next_first
        end = next_first + size
    if end > first:
        yield first, end - first
