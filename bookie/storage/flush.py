"""The flush: a generation of the write cache goes to the entry log, sorted, then to the index.

Large entries may stay where the journal has them (bookie/storage/adopted.py): of those only the
index is told.

The order is that of invariant S2: entry log written, its data synced, then the index's batches,
then the index synced. Who calls it persists the mark after that.

What it may not do is get in the journal's way. Dirty pages are bounded: after every
`flush_entry_log_bytes` the log is synced and the index of that part written; a sync of the journal
that falls behind a larger one waits for it (7 ms for 2 MiB, 12 ms for 4 MiB). And the loop stays
free: copying and syncing run on worker threads without the interpreter's lock, what is Python runs
on the loop's thread in slices of a few hundred entries (on a worker it would hold the lock for
milliseconds each time the loop lets go of it).
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import field
from typing import TYPE_CHECKING

import trio

from bookie.storage.sorting import sort_in_slices
from runtime.disk import is_full
from runtime.histogram import LatencyHistogram
from runtime.slices import Slices
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from bookie.config import BookieConfig
    from bookie.storage.adopted import AdoptedJournals
    from bookie.storage.entry_log import EntryLog
    from bookie.storage.entry_log_writer import EntryLogWriter
    from bookie.storage.index import EntryIndex
    from bookie.storage.write_cache import Generation, LedgerRun
    from runtime.disk import Disk
    from wire.buffers import Buffer

_unpack_length = struct.Struct(">i").unpack_from
LENGTH_SIZE = 4
_OFFSET_MASK = 0xFFFFFFFF

#: Handed to one `pwritev`, in a thread.
CHUNK_SIZE_BYTES = 1 << 20
CHUNK_BUFFERS_MAX = 1000
#: Entries that are prepared, or put into the index, before the loop gets its turn.
SLICE_COUNT = 200
#: What a ledger costs besides its entries, in those.
LEDGER_UNITS = 10


@dataclass(slots=True)
class FlushStatistics:
    flushes: int = 0
    entries: int = 0
    written_bytes: int = 0
    #: Of records that stayed in the journal.
    kept_bytes: int = 0
    seconds: float = 0.0
    #: Per checkpoint, with the wait for the journal and the files of the mark.
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)


class KeptEntries:
    """Of one ledger, in one journal."""

    __slots__ = ("end", "entry_ids", "locations", "size_bytes")

    def __init__(self) -> None:
        self.entry_ids = array("q")
        self.locations = array("q")
        self.size_bytes = 0
        self.end = 0


class Flusher:
    __slots__ = (
        "_adopted",
        "_buffers",
        "_chunk_bytes",
        "_chunk_size",
        "_config",
        "_counted",
        "_disk",
        "_index",
        "_kept",
        "_kept_by_ledger",
        "_kept_count",
        "_kept_min",
        "_position",
        "_window",
        "_window_bytes",
        "_window_start",
        "_writer",
        "quiet",
        "statistics",
    )

    def __init__(
        self,
        config: BookieConfig,
        disk: Disk,
        writer: EntryLogWriter,
        index: EntryIndex,
        adopted: AdoptedJournals,
    ) -> None:
        self._adopted = adopted
        self._config = config
        self._disk = disk
        self._writer = writer
        self._index = index
        self._chunk_size = min(CHUNK_SIZE_BYTES, config.entry_log_size_limit_bytes // 4)
        # Of the flush under way: slices for the next write, and what was placed in the log but is
        # not in the index yet, by ledger: entry ids and locations.
        self._buffers: list[Buffer] = []
        self._chunk_bytes = 0
        self._position = 0
        self._window: list[tuple[int, array[int], array[int]]] = []
        self._window_bytes = 0
        # To undo a window that found no space: where it starts in the log, its bytes by ledger.
        self._window_start = 0
        self._counted: dict[int, int] = {}
        # Journals, by their ids, in which large entries stay; and of those that do, by journal and
        # ledger, ids and locations, and the records' bytes. Told to the index at the end.
        self._kept: dict[int, EntryLog] = {}
        self._kept_min = config.journal_kept_entry_min_bytes
        self._kept_by_ledger: dict[tuple[int, int], KeptEntries] = {}
        self._kept_count = 0
        #: Ledgers of which somebody wants to know whether they get entries: one of which entries
        #: are flushed is taken out.
        self.quiet: set[int] = set()
        self.statistics = FlushStatistics()

    async def flush(self, generation: Generation) -> None:
        """Writes all of it; durable on return, log and index. OSError: the bookie ends, unless
        `is_full` says that there was no space. Then it may be called again with the same
        generation, all of which is written again."""
        assert not self._buffers
        assert not self._window
        try:
            await self._flush(generation)
        except OSError as error:
            if is_full(error):
                self._take_back()
            raise

    def _take_back(self) -> None:
        """As if the window had not been started, and nothing stayed in the journal. If its
        locations are being put into the index, its bytes are durable and stay: the next try makes
        them superfluous."""
        self._kept_by_ledger = {}
        self._buffers.clear()
        self._chunk_bytes = self._window_bytes = 0
        if not self._window:
            return
        self._window = []
        log = self._writer.current
        assert log is not None
        assert log.ledgers is not None
        for ledger_id, size in self._counted.items():
            if (left := log.ledgers.get(ledger_id, 0) - size) > 0:
                log.ledgers[ledger_id] = left
            else:
                log.ledgers.pop(ledger_id, None)
        self._writer.take_back(self._window_start)

    async def _flush(self, generation: Generation) -> None:
        statistics = self.statistics
        entries_before, bytes_before = statistics.entries, statistics.written_bytes
        self._kept = await self._adopted.keep(generation)
        self._start_window()
        await self._roll_unless_room(0)
        slices = Slices(SLICE_COUNT)
        for ledger_id in await sort_in_slices(generation.runs):
            run = generation.runs.get(ledger_id)
            if run is not None:  # else it was deleted meanwhile
                if slices.due(LEDGER_UNITS + min(len(run.places), SLICE_COUNT // 2)):
                    await slices.turn()
                self.quiet.discard(ledger_id)
                await self._flush_run(generation, ledger_id, run)
        await self._end_window()
        await self._index_kept()
        # Fewer, if entries came twice or a ledger was deleted.
        assert statistics.entries - entries_before <= generation.entry_count
        assert statistics.written_bytes - bytes_before <= generation.record_size_bytes
        await self._disk.run(self._index.sync)
        self._count_kept()
        statistics.flushes += 1

    async def _flush_run(self, generation: Generation, ledger_id: int, run: LedgerRun) -> None:
        assert self._writer.current is not None
        segments = generation.segments
        log = self._writer.current
        entry_ids, locations = self._placed(ledger_id)
        segment_index = -1
        slice_start = slice_end = 0
        self._position = log.size_bytes + self._chunk_bytes
        for entry_id, place in await run.sorted_places():
            start = place & _OFFSET_MASK
            (size,) = _unpack_length(segments[place >> 32].view, start - LENGTH_SIZE)
            is_large = self._kept and size >= self._kept_min
            if is_large and self._keep(generation, ledger_id, entry_id, place, size):
                if self._kept_count % SLICE_COUNT == 0:
                    await trio.lowlevel.checkpoint()
                continue
            # Records that follow each other in memory too are one slice.
            if place >> 32 != segment_index or start - LENGTH_SIZE != slice_end:
                self._add_slice(generation, segment_index, slice_start, slice_end)
                segment_index = place >> 32
                slice_start = start - LENGTH_SIZE
            slice_end = start + size
            entry_ids.append(entry_id)
            locations.append(log.log_id << 32 | (self._position + LENGTH_SIZE))
            self._position += LENGTH_SIZE + size
            pending = self._chunk_bytes + slice_end - slice_start
            if (
                pending >= self._chunk_size
                or len(self._buffers) >= CHUNK_BUFFERS_MAX
                or len(entry_ids) >= SLICE_COUNT
            ):
                self._add_slice(generation, segment_index, slice_start, slice_end)
                segment_index = -1
                await self._end_slice(pending)
                log = self._writer.current
                self._position = log.size_bytes + self._chunk_bytes
                entry_ids, locations = self._placed(ledger_id)
        self._add_slice(generation, segment_index, slice_start, slice_end)

    def _keep(
        self, generation: Generation, ledger_id: int, entry_id: int, place: int, size: int
    ) -> bool:
        """False if the entry is to be copied."""
        start = place & _OFFSET_MASK
        assert generation.kept is not None
        found = generation.kept.find(place >> 32, start - LENGTH_SIZE, start + size)
        if found is None or (log := self._kept.get(found[0])) is None:
            return False
        key = found[0], ledger_id
        kept = self._kept_by_ledger.get(key)
        if kept is None:
            kept = self._kept_by_ledger[key] = KeptEntries()
        kept.entry_ids.append(entry_id)
        kept.locations.append(log.log_id << 32 | (found[1] + LENGTH_SIZE))
        kept.size_bytes += LENGTH_SIZE + size
        kept.end = max(kept.end, found[1] + LENGTH_SIZE + size)
        self._kept_count += 1
        return True

    async def _index_kept(self) -> None:
        slices = Slices(SLICE_COUNT)
        for (_, ledger_id), kept in self._kept_by_ledger.items():
            for start in range(0, len(kept.entry_ids), SLICE_COUNT):
                entry_ids = kept.entry_ids[start : start + SLICE_COUNT]
                if slices.due(LEDGER_UNITS + len(entry_ids)):
                    await slices.turn()
                self._index.put(ledger_id, entry_ids, kept.locations[start : start + SLICE_COUNT])
                self.statistics.entries += len(entry_ids)

    def _count_kept(self) -> None:
        """The index points at them, durably."""
        kept_by_ledger, self._kept_by_ledger = self._kept_by_ledger, {}
        for (journal_id, ledger_id), kept in kept_by_ledger.items():
            log = self._kept[journal_id]
            self._adopted.count(log, ledger_id, kept.size_bytes, kept.end)
            self.statistics.kept_bytes += kept.size_bytes

    def _start_window(self) -> None:
        assert self._writer.current is not None
        self._window_start = self._writer.current.size_bytes
        self._counted = {}

    def _placed(self, ledger_id: int) -> tuple[array[int], array[int]]:
        """Lists for the next slice of a ledger's entries, in the window."""
        entry_ids, locations = array("q"), array("q")
        self._window.append((ledger_id, entry_ids, locations))
        return entry_ids, locations

    def _add_slice(self, generation: Generation, segment_index: int, start: int, end: int) -> None:
        if segment_index >= 0:
            self._buffers.append(generation.segments[segment_index].view[start:end])
            self._chunk_bytes += end - start
            log = self._writer.current
            assert log is not None
            assert log.ledgers is not None
            ledger_id = self._window[-1][0]
            log.ledgers[ledger_id] = log.ledgers.get(ledger_id, 0) + end - start
            self._counted[ledger_id] = self._counted.get(ledger_id, 0) + end - start

    async def _end_slice(self, pending_bytes: int) -> None:
        """Between two entries: writes, syncs and rolls if it is time; lets the loop run."""
        if await self._roll_unless_room(pending_bytes):
            return
        if self._window_bytes + pending_bytes >= self._config.flush_entry_log_bytes:
            await self._end_window()
        elif len(self._buffers) >= CHUNK_BUFFERS_MAX or pending_bytes >= self._chunk_size:
            await self._write_chunk()
        else:
            await trio.lowlevel.checkpoint()

    async def _roll_unless_room(self, pending_bytes: int) -> bool:
        """The next slice, with its last entry of whatever size, has to fit into the log."""
        slice_max = self._chunk_size + self._config.entry_size_max_bytes + LENGTH_SIZE
        if self._writer.has_room(pending_bytes + slice_max):
            return False
        await self._end_window()
        await self._writer.start_log()
        self._start_window()
        return True

    async def _write_chunk(self) -> None:
        buffers, self._buffers = self._buffers, []
        size, self._chunk_bytes = self._chunk_bytes, 0
        if buffers:
            await self._writer.write(buffers, size)
            self._window_bytes += size
            self.statistics.written_bytes += size

    async def _end_window(self) -> None:
        """All that was placed becomes durable, then it goes to the index."""
        await self._write_chunk()
        if self._window_bytes:
            await self._writer.sync()
            self._window_bytes = 0
        window, self._window = self._window, []
        self._start_window()
        slices = Slices(SLICE_COUNT)
        for ledger_id, entry_ids, locations in window:
            if entry_ids:
                if slices.due(LEDGER_UNITS + len(entry_ids)):
                    await slices.turn()
                assert len(entry_ids) == len(locations)
                assert entry_ids[0] <= entry_ids[-1], "in the order of ids"
                assert locations[0] <= locations[-1], "and so in the log"
                self._index.put(ledger_id, entry_ids, locations)
                self.statistics.entries += len(entry_ids)
