"""Record batches -> one Arrow batch, in bulk.

`Decoder.feed(body)` takes an entry's batches, back to back, as they are; `take()` unpacks as many
as make an Arrow batch, and gives their rows. So no more than one batch is unpacked beyond
BATCH_BYTES, however well it was compressed. A Python loop runs only over the records' lengths
(pyspark_quire/varints.py); all else is done in vectors over the batches together, so some ten
thousand records should come together.

What is left out: control batches, batches of aborted transactions (read_committed), offsets out of
`OffsetBounds`, times out of `TimeBounds`. The offsets of a batch are what its base offset and its
records say: compaction leaves gaps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from pyspark_quire.columns import HEADERS
from pyspark_quire.reading import BATCH_BYTES_MAX
from pyspark_quire.varints import PADDING, read_varint, read_varints, record_ends
from wire.kafka.errors import WireError
from wire.kafka.records.batch import (
    TimestampType,
    check_crc,
    records_data,
    scan_batches,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.log.transactions.aborted_index import AbortedTransaction
    from pyspark_quire.columns import ColumnSet
    from pyspark_quire.varints import Bytes, Numbers
    from wire.buffers import Buffer
    from wire.kafka.records.batch import BatchHeader

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
#: Of one Arrow batch: fewer cost more for each, more hold memory in Python and in the JVM.
BATCH_RECORDS = 25_000
BATCH_BYTES = 16 << 20
#: Places in Arrow's views have 32 bits with a sign.
_PLACES_MAX = 2**31 - 1
#: Arrow's short views hold so many bytes themselves.
_INLINE = 12


@dataclass(slots=True, frozen=True)
class Bounds:
    """Offsets `start` to `end`, the latter excluded; times in ms, both ends included."""

    start: int = 0
    end: int = INT64_MAX
    min_timestamp: int = INT64_MIN
    max_timestamp: int = INT64_MAX


class Decoder:
    """Of one partition. `aborted`: the transactions whose records are not to be shown."""

    def __init__(
        self,
        topic: str,
        partition: int,
        columns: ColumnSet,
        bounds: Bounds,
        *,
        aborted: Iterable[AbortedTransaction] = (),
        checks_crc: bool = True,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._columns = columns
        self._schema = columns.arrow
        #: In force when `take` is called; may be narrowed.
        self.bounds = bounds
        self._checks_crc = checks_crc
        #: By producer, ascending: its transactions do not overlap.
        self._aborted: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for row in aborted:
            self._aborted[row.producer_id].append((row.first_offset, row.last_offset))
        for rows in self._aborted.values():
            rows.sort()
        self._pending: deque[tuple[BatchHeader, memoryview]] = deque()
        #: Of the batches that wait for `take`: records, those that bounds leave out included, and
        #: bytes as they are stored.
        self.pending_records = 0
        self.pending_bytes = 0
        #: One past the last offset that was fed.
        self.next_offset = bounds.start

    def feed(self, body: Buffer) -> None:
        """Batches back to back. WireError names the place if one is damaged."""
        view = memoryview(body)
        position = 0
        try:
            for header in scan_batches(view):
                size = header.size
                self._feed_batch(header, view[position : position + size])
                position += size
        except WireError as error:
            raise self._named(error, self.next_offset) from None

    @property
    def is_due(self) -> bool:
        """Whether `take` has enough for an Arrow batch."""
        return self.pending_records >= BATCH_RECORDS or self.pending_bytes >= BATCH_BYTES

    def _named(self, error: WireError, offset: int) -> WireError:
        return WireError(f"{self._topic}-{self._partition}: batch at offset {offset}: {error}")

    def _feed_batch(self, header: BatchHeader, batch: memoryview) -> None:
        if header.record_count < 0 or header.last_offset < header.base_offset:
            raise WireError(
                f"{header.record_count} records, of offsets {header.base_offset} to"
                f" {header.last_offset}"
            )
        bounds = self.bounds
        self.next_offset = max(self.next_offset, header.last_offset + 1)
        if header.last_offset < bounds.start or header.base_offset >= bounds.end:
            return
        if self._checks_crc and not check_crc(batch, header):
            raise WireError(f"the checksum of the batch at offset {header.base_offset} is wrong")
        if header.is_control or not header.record_count or self._is_aborted(header):
            return
        if header.max_timestamp < bounds.min_timestamp:
            return
        self._pending.append((header, batch))
        self.pending_records += header.record_count
        self.pending_bytes += len(batch)

    def _is_aborted(self, header: BatchHeader) -> bool:
        if not header.is_transactional:
            return False
        rows = self._aborted.get(header.producer_id)
        if not rows:
            return False
        offset = header.base_offset
        number = bisect_right(rows, offset, key=_first) - 1
        return number >= 0 and offset <= rows[number][1]

    def take(self) -> pa.RecordBatch | None:
        """The rows of what was fed, as many as make an Arrow batch; None when nothing is left that
        has any. WireError names the place."""
        while self._pending:
            first = self._pending[0][0].base_offset
            try:
                rows = self._unpacked()
                rows.keep(self.bounds)
                if rows.count:
                    arrays = [self._array(name, rows) for name in self._columns.names]
                    return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
            except WireError as error:
                raise self._named(error, first) from None
        return None

    def _unpacked(self) -> _Rows:
        """Of batches that have BATCH_RECORDS or BATCH_BYTES together, or of all. WireError."""
        parts: list[bytes] = []
        ends: list[Numbers] = []
        headers: list[BatchHeader] = []
        size = count = 0
        while self._pending and size < BATCH_BYTES and count < BATCH_RECORDS:
            header, batch = self._pending.popleft()
            self.pending_records -= header.record_count
            self.pending_bytes -= len(batch)
            data = records_data(batch, header, size_max=BATCH_BYTES_MAX)
            ends.append(np.asarray(record_ends(data, header.record_count), np.int64) + size)
            parts.append(data)
            headers.append(header)
            size += len(data)
            count += header.record_count
        counts = np.asarray([header.record_count for header in headers], np.int64)
        whole = np.frombuffer(b"".join([*parts, bytes(PADDING)]), np.uint8)
        return _Rows(whole, np.concatenate(ends), headers, counts)

    def _array(self, name: str, rows: _Rows) -> pa.Array:
        if name == "key":
            return rows.binary(rows.keys, rows.key_sizes)
        if name == "value":
            return rows.binary(rows.values, rows.value_sizes)
        if name == "topic":
            return pa.repeat(pa.scalar(self._topic, pa.string()), rows.count)
        if name == "partition":
            return pa.array(np.full(rows.count, self._partition, np.int32))
        if name == "offset":
            return pa.array(rows.offsets)
        if name == "timestamp":
            # As the JVM: beyond what 64 bits of microseconds have it wraps around, without an error
            micros = rows.timestamps * 1000
            return pa.array(micros).cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))
        if name == "timestampType":
            return pa.array(rows.timestamp_types)
        assert name == HEADERS
        return rows.headers(self._schema.field(HEADERS).type)


class _Rows:
    """Columns of records as vectors of numbers and places in `data`."""

    def __init__(
        self, data: Bytes, ends: Numbers, headers: list[BatchHeader], counts: Numbers
    ) -> None:
        self._data = data
        self.count = ends.size
        starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
        _, positions = read_varints(data, starts)
        deltas, positions = read_varints(data, positions + 1)  # behind the attributes
        offset_deltas, positions = read_varints(data, positions)
        self.key_sizes, self.keys = read_varints(data, positions)
        positions = _behind(self.keys, self.key_sizes, ends, "key")
        self.value_sizes, self.values = read_varints(data, positions)
        positions = _behind(self.values, self.value_sizes, ends, "value")
        self.header_counts, self._header_starts = read_varints(data, positions)
        is_plain = self.header_counts == 0
        _check(bool((self.header_counts >= 0).all()), "number of headers")
        _check(bool((self._header_starts[is_plain] == ends[is_plain]).all()), "length")
        self._ends = ends
        is_append = np.asarray(
            [header.timestamp_type is TimestampType.LOG_APPEND_TIME for header in headers]
        )
        bases = np.asarray(
            [
                header.max_timestamp if append else header.base_timestamp
                for header, append in zip(headers, is_append, strict=True)
            ],
            np.int64,
        )
        of_record = np.repeat(is_append, counts)
        self.timestamps = np.repeat(bases, counts) + np.where(of_record, 0, deltas)
        self.timestamp_types = of_record.astype(np.int32)
        offsets = np.asarray([header.base_offset for header in headers], np.int64)
        lasts = np.asarray([header.last_offset for header in headers], np.int64)
        self.offsets = np.repeat(offsets, counts) + offset_deltas
        # Ascending from batch to batch, too: those do not overlap (pyspark_quire/reading.py).
        within = (offset_deltas >= 0) & (self.offsets <= np.repeat(lasts, counts))
        _check(bool(within.all() and (np.diff(self.offsets) > 0).all()), "offset")

    def keep(self, bounds: Bounds) -> None:
        """Only what is within."""
        offsets, times = self.offsets, self.timestamps
        wanted = (offsets >= bounds.start) & (offsets < bounds.end)
        if bounds.min_timestamp != INT64_MIN or bounds.max_timestamp != INT64_MAX:
            wanted &= (times >= bounds.min_timestamp) & (times <= bounds.max_timestamp)
        if wanted.all():
            return
        for name in (
            "key_sizes", "keys", "value_sizes", "values", "header_counts", "_header_starts",
            "_ends", "timestamps", "timestamp_types", "offsets",
        ):  # fmt: skip
            setattr(self, name, getattr(self, name)[wanted])
        self.count = self.offsets.size

    def binary(self, positions: Numbers, sizes: Numbers) -> pa.Array:
        """Views of what lies there, then copied by Arrow in one call; a size of -1 is null."""
        data, count = self._data, self.count
        if data.size > _PLACES_MAX:
            raise WireError(f"{data.size} bytes of records in one Arrow batch")
        is_null = sizes < 0
        lengths = np.where(is_null, 0, sizes).astype(np.int32)
        views = np.zeros((count, 4), np.int32)
        views[:, 0] = lengths
        is_long = lengths > _INLINE
        # A short one is in its view; of a long one that has the first four bytes.
        places = np.minimum(positions[:, None] + np.arange(_INLINE), data.size - 1)
        inline = data[places]
        inline[np.arange(_INLINE) >= lengths[:, None]] = 0
        views[:, 1:] = np.ascontiguousarray(inline).view(np.int32).reshape(count, 3)
        views[is_long, 2] = 0
        views[is_long, 3] = positions[is_long]
        validity = None
        if is_null.any():
            validity = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
        buffers = [validity, pa.py_buffer(views), pa.py_buffer(data)]
        array = pa.Array.from_buffers(pa.binary_view(), count, buffers)
        return array.cast(pa.binary())

    def headers(self, kind: pa.DataType) -> pa.Array:
        """A list for each record, null for one without headers, as the JVM's source has it."""
        data = self._data.tobytes()
        keys: list[str] = []
        values: list[bytes | None] = []
        offsets = [0]
        for number, position in enumerate(self._header_starts.tolist()):
            for _ in range(int(self.header_counts[number])):
                size, position = read_varint(data, position)
                end = position + size
                _check(size >= 0 and end < len(data), "header key")
                keys.append(data[position:end].decode("utf-8", "replace"))
                size, position = read_varint(data, end)
                _check(size >= -1 and position + size < len(data), "header value")
                values.append(None if size < 0 else data[position : position + size])
                position += max(size, 0)
            _check(position == self._ends[number], "length")
            offsets.append(len(keys))
        structs = pa.StructArray.from_arrays(
            [pa.array(keys, pa.string()), pa.array(values, pa.binary())],
            fields=list(kind.value_type),
        )
        mask = pa.array(self.header_counts == 0)
        return pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), structs, type=kind, mask=mask
        )


def _first(row: tuple[int, int]) -> int:
    return row[0]


def _behind(starts: Numbers, sizes: Numbers, ends: Numbers, what: str) -> Numbers:
    """Where fields of these sizes end; each must leave a byte in its record. WireError."""
    _check(bool((sizes >= -1).all() and (sizes < ends - starts).all()), what)
    return starts + np.maximum(sizes, 0)


def _check(is_whole: bool, what: str) -> None:
    if not is_whole:
        raise WireError(f"a record has an impossible {what}")
