"""The write cache: entries between the journal and the entry log (feature 32).

Two generations. Adds go to the active one; the other is being flushed, or there is none. Both
answer reads. A generation is a list of segments, plain memory that entries are copied into once,
as the records `[length i32][entry]` that the journal and the entry log also consist of. So the
journal writes slices of these segments and the flush writes slices of them, and nothing copies.

Owner: the event loop's thread.

Invariants:
- what was put is not changed until the generation was flushed;
- memory is bounded: the two generations together hold at most `write_cache_size_bytes` of
  segments. A segment that a reader's view still looks into when its generation was flushed is set
  aside, counted as pinned, until the view is gone; when too much is pinned, readers get copies.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING

import trio

from bookie.storage.sorting import sort_in_slices
from runtime.slices import Slices
from runtime.spare_memory import is_free_of_views
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bookie.config import BookieConfig
    from bookie.storage.kept_runs import KeptRuns
    from wire.buffers import Buffers

_LENGTH = struct.Struct(">i")
_pack_length = _LENGTH.pack
_pack_length_into = _LENGTH.pack_into
_unpack_length = _LENGTH.unpack_from
LENGTH_SIZE = 4

#: Up to this size, joining the pieces and copying the whole is cheaper than copying each.
JOIN_SIZE_MAX_BYTES = 4096
#: Ledgers of a flushed generation that are freed in one turn of the loop.
FREED_PER_TURN = 5000
#: Entries of which the sizes are read, in one turn.
MEASURED_PER_TURN = 2000
#: What an entry costs in the index of its generation, with room for the array to grow.
INDEX_ENTRY_SIZE_BYTES = 16

_OFFSET_MASK = 0xFFFFFFFF


class Segment:
    """A piece of memory and two views of all of it: to write, and to hand out."""

    __slots__ = ("data", "readable", "size", "view")

    def __init__(self, size: int) -> None:
        # A place has 32 bits for the offset.
        assert 0 < size <= _OFFSET_MASK
        self.data = bytearray(size)
        self.size = size
        self.view = memoryview(self.data)
        self.readable = self.view.toreadonly()

    def is_free_of_views(self) -> bool:
        """Whether nobody holds a slice; then it can be used again. Call it on a segment that is
        out of use only: it makes the views anew."""
        self.readable.release()
        self.view.release()
        is_free = is_free_of_views(self.data)
        self.view = memoryview(self.data)
        self.readable = self.view.toreadonly()
        assert len(self.readable) == self.size
        return is_free


class SegmentPool:
    """Segments of one size, made on demand, used again, never more than needed at the peak."""

    __slots__ = ("_free", "_pinned", "_segment_size", "pinned_size_bytes")

    def __init__(self, segment_size: int) -> None:
        self._segment_size = segment_size
        self._free: list[Segment] = []
        self._pinned: list[Segment] = []
        self.pinned_size_bytes = 0

    def take(self, size: int) -> Segment:
        """A segment for at least `size` bytes."""
        if size > self._segment_size:
            return Segment(size)
        segment = self._free.pop() if self._free else Segment(self._segment_size)
        assert segment.size == self._segment_size
        return segment

    def fill(self, count: int) -> None:
        """Makes segments ahead, to hold `count` free ones."""
        while len(self._free) < count:
            self._free.append(Segment(self._segment_size))

    def give_back(self, segments: list[Segment]) -> None:
        """Takes back a flushed generation's segments, and what readers let go of meanwhile."""
        candidates = self._pinned + segments
        self._pinned = []
        for segment in candidates:
            if not segment.is_free_of_views():
                self._pinned.append(segment)
            elif segment.size == self._segment_size:
                self._free.append(segment)
        assert len(self._pinned) <= len(candidates)
        self.pinned_size_bytes = sum(segment.size for segment in self._pinned)


class LedgerRun:
    """One ledger's entries in one generation: where each is.

    A place is `segment index << 32 | offset of the entry, after its length`. Entries that come in
    order, as nearly all do, cost one array element; what leaves gaps (striping) or comes again
    goes to a dictionary."""

    __slots__ = ("extra", "first_entry_id", "last_entry_id", "next_entry_id", "places")

    def __init__(self, first_entry_id: int) -> None:
        assert first_entry_id >= 0
        self.first_entry_id = first_entry_id
        self.next_entry_id = first_entry_id
        self.last_entry_id = first_entry_id
        self.places = array("Q")
        self.extra: dict[int, int] | None = None

    def put_out_of_order(self, entry_id: int, place: int) -> None:
        assert entry_id != self.next_entry_id, "the next in order goes to `places`"
        self._check()
        if self.first_entry_id <= entry_id < self.next_entry_id:
            self.places[entry_id - self.first_entry_id] = place
            return
        if self.extra is None:
            self.extra = {}
        self.extra[entry_id] = place
        if entry_id > self.last_entry_id:
            self.last_entry_id = entry_id

    def _check(self) -> None:
        """What `WriteCache.commit` keeps with each entry, where a run is read as a whole."""
        assert len(self.places) == self.next_entry_id - self.first_entry_id
        assert self.last_entry_id >= self.next_entry_id - 1 or not self.places

    def place(self, entry_id: int) -> int:
        """-1 if it is not here."""
        if self.first_entry_id <= entry_id < self.next_entry_id:
            # Also if `extra` has it: what is there is then an older copy.
            return self.places[entry_id - self.first_entry_id]
        return self.extra.get(entry_id, -1) if self.extra is not None else -1

    async def sorted_places(self) -> Iterator[tuple[int, int]]:
        """(entry id, place) of all, by entry id; each id once, its newest copy. Of a run to which
        nothing is added meanwhile."""
        self._check()
        if not self.extra:
            return enumerate(self.places, self.first_entry_id)
        return self._merged(self.extra, await sort_in_slices(self.extra))

    def _merged(self, extra: dict[int, int], extra_ids: Iterator[int]) -> Iterator[tuple[int, int]]:
        first, end = self.first_entry_id, self.first_entry_id + len(self.places)
        assert end == self.next_entry_id
        entry_id = next(extra_ids, -1)
        while 0 <= entry_id < first:
            yield entry_id, extra[entry_id]
            entry_id = next(extra_ids, -1)
        yield from enumerate(self.places, first)
        while entry_id >= 0:
            if entry_id >= end:  # else what is there is an older copy
                yield entry_id, extra[entry_id]
            entry_id = next(extra_ids, -1)

    def __contains__(self, entry_id: int) -> bool:
        return self.place(entry_id) >= 0


class Generation:
    """Freed in slices (`empty`) if it had many ledgers."""

    __slots__ = (
        "entry_count",
        "kept",
        "record_size_bytes",
        "runs",
        "segment_size_bytes",
        "segments",
    )

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.runs: dict[int, LedgerRun] = {}
        self.segment_size_bytes = 0
        self.record_size_bytes = 0
        self.entry_count = 0
        #: Where the journals have it, once it is being flushed (bookie/storage/adopted.py).
        self.kept: KeptRuns | None = None

    async def empty(self) -> None:
        """Once it is flushed and nobody reads it: the memory of thousands of runs is not given
        back in one turn of the loop."""
        slices = Slices(FREED_PER_TURN)
        while self.runs:
            self.runs.popitem()
            if slices.due():
                await slices.turn()

    def check(self) -> None:
        """What was counted with each entry, where the whole is handed on."""
        assert 0 <= self.record_size_bytes <= self.segment_size_bytes
        assert self.entry_count * LENGTH_SIZE <= self.record_size_bytes
        assert bool(self.entry_count) <= bool(self.segments)

    async def has_bytes_of(self, size_min: int, wanted: int) -> bool:
        """Whether entries of at least `size_min` bytes have `wanted` bytes. Of a generation of
        large entries, to which nothing is added meanwhile."""
        slices = Slices(MEASURED_PER_TURN)
        for run in list(self.runs.values()):
            for place in (*run.places, *(run.extra or {}).values()):
                if slices.due():
                    await slices.turn()
                offset = (place & _OFFSET_MASK) - LENGTH_SIZE
                (size,) = _unpack_length(self.segments[place >> 32].view, offset)
                if size >= size_min:
                    wanted -= size
            if wanted <= 0:
                return True
        return False

    def entry(self, place: int) -> memoryview:
        """The entry at a place, a read-only view of it."""
        segment = self.segments[place >> 32]
        start = place & _OFFSET_MASK
        (size,) = _unpack_length(segment.view, start - LENGTH_SIZE)
        assert 0 <= size <= segment.size - start, "a record ends in its segment"
        return segment.readable[start : start + size]


@dataclass(slots=True)
class WriteCacheStatistics:
    size_bytes: int
    entry_count: int
    pinned_size_bytes: int
    copied_reads: int


class WriteCache:
    """`put` fills `view[start:position]`; see the module's docstring."""

    __slots__ = (
        "_copied_reads",
        "_generation_size_max",
        "_pinned_size_max",
        "_pool",
        "_preallocated_size",
        "_segment_base",
        "_segment_size",
        "active",
        "drop_count",
        "flushing",
        "position",
        "view",
    )

    def __init__(self, config: BookieConfig) -> None:
        self._segment_size = config.write_cache_segment_size_bytes
        self._generation_size_max = config.write_cache_size_bytes // 2
        self._preallocated_size = config.write_cache_preallocated_size_bytes
        self._pinned_size_max = config.write_cache_pinned_size_max_bytes
        self._pool = SegmentPool(self._segment_size)
        self._copied_reads = 0
        assert self._segment_size <= self._generation_size_max
        self.active = Generation()
        self.flushing: Generation | None = None
        #: How many ledgers were dropped: what is known of places of entries may be wrong since.
        self.drop_count = 0
        #: The segment that is being filled, how far, and its index in the generation, shifted.
        self.view = memoryview(bytearray())
        self.position = 0
        self._segment_base = 0

    async def allocate(self) -> None:
        """Makes memory before the first add: the first touch of a page costs several times what
        copying into it does, and that of a whole segment would stop the loop."""
        wanted = min(self._preallocated_size, 2 * self._generation_size_max)
        for count in range(1, wanted // self._segment_size + 1):
            self._pool.fill(count)
            await trio.lowlevel.checkpoint()

    def put(self, ledger_id: int, entry_id: int, pieces: Buffers, size: int) -> int:
        """Copies an entry of `size` bytes and returns where its record starts in `self.view` (it
        ends at `self.position`), or -1 if the active generation is full.

        It is not to be found before `commit`, and the next `put` overwrites it without one."""
        start = self.position
        view = self.view
        end = start + LENGTH_SIZE + size
        if end > len(view):
            if not self._next_segment(LENGTH_SIZE + size):
                return -1
            start = 0
            view = self.view
            end = LENGTH_SIZE + size
        if len(pieces) == 1:
            _pack_length_into(view, start, size)
            view[start + LENGTH_SIZE : end] = pieces[0]
        elif size <= JOIN_SIZE_MAX_BYTES:
            view[start:end] = b"".join((_pack_length(size), *pieces))
        else:
            at = start + LENGTH_SIZE
            view[start:at] = _pack_length(size)
            for piece in pieces:
                start_of_piece = at
                at += len(piece)
                view[start_of_piece:at] = piece
            assert at == end, "the pieces are as long as was said"
        return start

    def commit(self, ledger_id: int, entry_id: int, start: int, size: int) -> int:
        """Makes the entry that was just put visible; returns its record's end."""
        assert start == self.position, "not what was put last"
        end = self.position = start + LENGTH_SIZE + size
        assert end <= len(self.view), "`put` found room for it"
        active = self.active
        active.entry_count += 1
        active.record_size_bytes += LENGTH_SIZE + size
        run = active.runs.get(ledger_id)
        if run is None:
            run = active.runs[ledger_id] = LedgerRun(entry_id)
        place = self._segment_base | (start + LENGTH_SIZE)
        if entry_id == run.next_entry_id:
            run.places.append(place)
            run.next_entry_id = entry_id + 1
            if entry_id > run.last_entry_id:
                run.last_entry_id = entry_id
        else:
            run.put_out_of_order(entry_id, place)
        return end

    def _next_segment(self, size: int) -> bool:
        active = self.active
        assert self.position + size > len(self.view), "there is room in this segment"
        wanted = max(size, self._segment_size)
        used = active.segment_size_bytes + active.entry_count * INDEX_ENTRY_SIZE_BYTES
        if active.segments and used + wanted > self._generation_size_max:
            return False
        segment = self._pool.take(size)
        assert segment.size >= size
        active.segments.append(segment)
        active.segment_size_bytes += segment.size
        self._segment_base = (len(active.segments) - 1) << 32
        self.view = segment.view
        self.position = 0
        return True

    def swap(self) -> Generation:
        """The active generation becomes the one being flushed, which there must not be yet."""
        assert self.flushing is None
        assert self.position <= len(self.view)
        self.active.check()
        self.flushing = self.active
        self.active = Generation()
        self.view = memoryview(bytearray())
        self.position = 0
        return self.flushing

    def flushed(self) -> None:
        """The generation being flushed is on disk, and in the index: its memory is free."""
        generation = self.flushing
        assert generation is not None
        assert generation is not self.active
        generation.check()
        self.flushing = None
        self._pool.give_back(generation.segments)

    def drop_ledger(self, ledger_id: int) -> None:
        """Forgets a ledger's entries; the memory comes back with the flush."""
        self.drop_count += 1
        self.active.runs.pop(ledger_id, None)
        if self.flushing is not None:
            self.flushing.runs.pop(ledger_id, None)

    def last_entry_id(self, ledger_id: int) -> int:
        """The highest entry id here, -1 if there is none."""
        last = -1
        for generation in (self.active, self.flushing):
            if generation is not None and (run := generation.runs.get(ledger_id)) is not None:
                last = max(last, run.last_entry_id)
        return last

    def runs(self, ledger_id: int) -> list[LedgerRun]:
        """What is here of a ledger, in each generation."""
        generations = (self.active, self.flushing)
        found = [each.runs.get(ledger_id) for each in generations if each is not None]
        return [run for run in found if run is not None]

    def read(
        self,
        ledger_id: int,
        first_entry_id: int,
        count_max: int,
        size_max: int,
        entries: list[memoryview],
    ) -> int:
        """Appends consecutive entries from `first_entry_id`, until `count_max` are appended, until
        their bytes are about to exceed `size_max` (the first always goes), or up to the first that
        is not here. Returns their bytes."""
        total = 0
        entry_id = first_entry_id
        end = first_entry_id + count_max
        copies = self._pool.pinned_size_bytes > self._pinned_size_max
        while entry_id < end:
            generation = self.active
            run = generation.runs.get(ledger_id)
            place = run.place(entry_id) if run is not None else -1
            if place < 0:
                if self.flushing is None:
                    break
                generation = self.flushing
                run = generation.runs.get(ledger_id)
                place = run.place(entry_id) if run is not None else -1
                if place < 0:
                    break
            assert run is not None
            # All that follow in the same dense part need no further look-up.
            index = entry_id - run.first_entry_id
            if 0 <= index < len(run.places):
                places: Sequence[int] = run.places
                stop = min(len(places), index + end - entry_id)
            else:
                places, index, stop = (place,), 0, 1
            segments = generation.segments
            assert stop <= len(places)
            for i in range(index, stop):
                place = places[i]
                segment = segments[place >> 32]
                start = place & _OFFSET_MASK
                (size,) = _unpack_length(segment.view, start - LENGTH_SIZE)
                if total + size > size_max and entry_id > first_entry_id:
                    return total
                entry = segment.readable[start : start + size]
                if copies:
                    entry = memoryview(bytes(entry))
                    self._copied_reads += 1
                entries.append(entry)
                total += size
                entry_id += 1
        return total

    def statistics(self) -> WriteCacheStatistics:
        active, flushing = self.active, self.flushing
        return WriteCacheStatistics(
            size_bytes=active.record_size_bytes + (flushing.record_size_bytes if flushing else 0),
            entry_count=active.entry_count + (flushing.entry_count if flushing else 0),
            pinned_size_bytes=self._pool.pinned_size_bytes,
            copied_reads=self._copied_reads,
        )
