"""All that can be read of an entry log, damaged or not: for an index that is made anew.

Records are followed from front to back. Where there is none, the next one is looked for: a length
that fits, the id of a ledger that is known, and then either a digest that matches or, where that
cannot be told, another such record right behind it. What is passed over is a gap.

A record whose digest does not match may not be what its ids say. It is believed only between
neighbours that agree: a flush sorts, so mostly the entry before it or behind it is next to it.

Blocks: for offline use, or on a worker thread.
"""

from __future__ import annotations

import re
import struct
from dataclasses import field
from typing import TYPE_CHECKING

from bookie.storage.entry_log_format import (
    HEADER_SIZE,
    LENGTH_SIZE,
    MAP_ENTRY_ID,
    MAP_LEDGER_ID,
    RECORD_START_SIZE,
)
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bookie.health.digest_guess import DigestGuess
    from runtime.disk import File

_unpack_record = struct.Struct(">iqq").unpack_from
CHUNK_SIZE_BYTES = 8 << 20
#: Header of an entry: shorter ones are none.
ENTRY_SIZE_MIN = 32
#: What follows the records of a chunk, if it is not one that needs a larger chunk.
NO_RECORD = -1
DAMAGED = -2
#: The start of a record: a length below 128 MiB, ids that are not negative and below 2^48. Or one
#: of a ledgers map.
_START = re.compile(rb"(?s)(?=[\x00-\x07]...(?:\x00\x00......\x00\x00|\xff{15}\xfe))")
_LENGTH_MIN = (20).to_bytes(LENGTH_SIZE, "big")


@dataclass(slots=True)
class Batch:
    """Records that follow each other, in columns; offsets are of entries, behind their lengths."""

    keys: list[tuple[int, int]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    #: Indexes of those whose digest does not match.
    damaged: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Salvage:
    """What came of a log."""

    #: Bytes by ledger of the records that are believed, lengths included.
    ledgers: dict[int, int] = field(default_factory=dict)
    records: int = 0
    #: (start, end) of what is no record, and of records that are not believed.
    gaps: list[tuple[int, int]] = field(default_factory=list)
    #: Where the last record ends.
    end: int = HEADER_SIZE


class LogSalvager:
    def __init__(
        self,
        file: File,
        end: int,
        known: set[int],
        guess: DigestGuess,
        on_progress: Callable[[int], None],
    ) -> None:
        """`end`: of the file's records, or of the file. `known`: ledgers that records may be of;
        those that are found are added."""
        self._file = file
        self._end = end
        self._known = known
        self._guess = guess
        self._on_progress = on_progress
        #: Of the last record that was believed.
        self._last_key: tuple[int, int] | None = None
        self.salvage = Salvage()

    def batches(self) -> Iterator[Batch]:
        """The records that are believed; at the end `salvage` says what was not."""
        position = HEADER_SIZE
        size = CHUNK_SIZE_BYTES
        while position < self._end:
            size = min(size, self._end - position)
            chunk = memoryview(self._file.pread(size, position))
            batch, used, needed = self._parse(chunk, position)
            if batch.keys:
                self._count(batch)
                yield batch
            position += used
            self._on_progress(used)
            size = max(CHUNK_SIZE_BYTES, needed)
            if needed == DAMAGED:
                damaged, position = self._damaged_record(position)
                if damaged is not None:
                    self._count(damaged)
                    yield damaged
            elif needed == NO_RECORD or needed > self._end - position:
                position = self._pass_over(position, position + 1)

    def _parse(self, chunk: memoryview, origin: int) -> tuple[Batch, int, int]:
        """The intact records in a chunk; how much of it they are; and what follows: how large a
        chunk has to be to hold one more, or NO_RECORD, or DAMAGED."""
        batch = Batch()
        keys, offsets, sizes = batch.keys, batch.offsets, batch.sizes
        matches = self._guess.matches
        #: Nothing could be said of their digests when they were met.
        untold: list[int] = []
        at, limit = 0, len(chunk)
        follows = 0
        while origin + at < self._end:
            if at + RECORD_START_SIZE > limit:
                follows = RECORD_START_SIZE
                break
            size, ledger_id, entry_id = _unpack_record(chunk, at)
            end = at + LENGTH_SIZE + size
            is_map = ledger_id == MAP_LEDGER_ID and entry_id == MAP_ENTRY_ID
            is_entry = ledger_id >= 0 and entry_id >= 0 and size >= ENTRY_SIZE_MIN
            if not (is_entry or (is_map and size > 0)) or origin + end > self._end:
                follows = NO_RECORD
                break
            if end > limit:
                follows = LENGTH_SIZE + size
                break
            if not is_map:
                intact = matches(ledger_id, chunk, at + LENGTH_SIZE, size)
                if intact is False:
                    follows = DAMAGED
                    break
                if intact is None:
                    untold.append(len(keys))
                keys.append((ledger_id, entry_id))
                offsets.append(origin + at + LENGTH_SIZE)
                sizes.append(size)
            at = end
        for i in untold:
            start = offsets[i] - origin
            if matches(keys[i][0], chunk, start, sizes[i]) is False:
                # What comes behind is looked at again from there.
                del keys[i:], offsets[i:], sizes[i:]
                return batch, start - LENGTH_SIZE, DAMAGED
        return batch, at, follows

    def _count(self, batch: Batch) -> None:
        salvage = self.salvage
        ledgers = salvage.ledgers
        for (ledger_id, _), size in zip(batch.keys, batch.sizes, strict=True):
            ledgers[ledger_id] = ledgers.get(ledger_id, 0) + LENGTH_SIZE + size
        salvage.records += len(batch.keys)
        self._known.update(ledgers)
        salvage.end = batch.offsets[-1] + batch.sizes[-1]
        self._last_key = batch.keys[-1]

    def _damaged_record(self, start: int) -> tuple[Batch | None, int]:
        """Of a record with a wrong digest: itself, if it is believed, and where the next one is."""
        size, ledger_id, entry_id = _unpack_record(self._file.pread(RECORD_START_SIZE, start))
        end = start + LENGTH_SIZE + size
        # A wrong length may have swallowed good records.
        inside = self._find(start + 1, end)
        if inside is None and (end == self._end or self._is_plausible(end)):
            before = self._last_key if self.salvage.end == start else None
            behind = self._key_at(end)
            if before == (ledger_id, entry_id - 1) or behind == (ledger_id, entry_id + 1):
                self._on_progress(end - start)
                key = (ledger_id, entry_id)
                return Batch([key], [start + LENGTH_SIZE], [size], [0]), end
            self.salvage.gaps.append((start, end))
            self._on_progress(end - start)
            return None, end
        if inside is not None:
            self.salvage.gaps.append((start, inside))
            self._on_progress(inside - start)
            return None, inside
        return None, self._pass_over(start, end)

    def _key_at(self, position: int) -> tuple[int, int] | None:
        start = self._file.pread(RECORD_START_SIZE, position)
        if len(start) < RECORD_START_SIZE or position + RECORD_START_SIZE > self._end:
            return None
        _, ledger_id, entry_id = _unpack_record(start)
        return ledger_id, entry_id

    def _is_plausible(self, position: int) -> bool:
        """Whether what starts here can be a record, or zeros."""
        start = self._file.pread(RECORD_START_SIZE, position)
        if not any(start) or self._is_record(position, is_intact=False):
            return True
        return self._is_record(position)

    def _find(self, start: int, end: int) -> int | None:
        """The first record from `start` on and before `end`."""
        position = start
        while position < end:
            size = min(CHUNK_SIZE_BYTES, end - position)
            # A record's start may lie across the seam.
            data = self._file.pread(size + RECORD_START_SIZE, position)
            for match in _START.finditer(data):
                found = position + match.start()
                if data[match.start() : match.start() + LENGTH_SIZE] < _LENGTH_MIN:
                    continue  # as in a region of zeros
                if found < end and self._is_record(found):
                    return found
            position += size
        return None

    def _pass_over(self, start: int, search_from: int) -> int:
        """Where the next record starts behind what is none at `start`, or the end. Zeros up to the
        end are space that was never used."""
        found = self._find(search_from, self._end)
        if found is None:
            if not self._is_zero(start):
                self.salvage.gaps.append((start, self._end))
            found = self._end
        else:
            self.salvage.gaps.append((start, found))
        self._on_progress(found - start)
        return found

    def _is_zero(self, start: int) -> bool:
        while start < self._end:
            data = self._file.pread(min(CHUNK_SIZE_BYTES, self._end - start), start)
            if not data or data.count(0) != len(data):
                return False
            start += len(data)
        return True

    def _is_record(self, position: int, *, is_intact: bool = True, depth: int = 2) -> bool:
        """Whether a record starts here, as far as that can be told. `is_intact`: its digest has to
        match."""
        start = self._file.pread(RECORD_START_SIZE, position)
        if len(start) < RECORD_START_SIZE:
            return False
        size, ledger_id, entry_id = _unpack_record(start)
        end = position + LENGTH_SIZE + size
        if size <= 0 or end > self._end:
            return False
        if (ledger_id, entry_id) == (MAP_LEDGER_ID, MAP_ENTRY_ID):
            return True
        is_known = ledger_id in self._known
        if ledger_id < 0 or entry_id < 0 or size < ENTRY_SIZE_MIN:
            return False
        if not is_intact:
            return is_known
        entry = memoryview(self._file.pread(size, position + LENGTH_SIZE))
        matches = self._guess.matches(ledger_id, entry, 0, size)
        if matches is not None:
            return matches
        if not is_known:
            return False
        return end == self._end or depth == 0 or self._is_record(end, depth=depth - 1)
