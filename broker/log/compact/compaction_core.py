"""Compaction by key: which offsets a log still needs (map pass), and the bytes of what stays (copy
pass). Kafka's Cleaner and MemoryRecords.filterTo; KIP-534 (delete horizon), KIP-98 (transactions).

A pass maps the keys of the *dirty* part of a log to their newest offsets, then goes over *all* of
the log up to the last mapped offset's ledger, from the oldest ledger on, and writes what is left:

    mapping = Mapping(key_map, TransactionPass(entries), ...)
    for each batch of the dirty part: mapping.add(batch, header)   until it is full
    copying = Filter(PassRules(last_mapped=mapping.last_mapped, ...), key_map, TransactionPass(...))
    for each batch from the log's first on: kept = copying.keep(batch, header, ...)

`add` and `keep` are generators of steps (steps.py): who drives them counts the units, lets others
have the loop in between, and runs Work on a thread if it is large.

| record at offset o | fate |
|--|--|
| o below the log start | dropped |
| data of an aborted transaction | dropped, whatever its key |
| o > last mapped | kept, whatever it is |
| no key | dropped |
| o < the offset that the map has for its key | dropped |
| else, value not null | kept |
| else, a tombstone | kept while its batch has no horizon or now < horizon, else dropped |

Untouched batches are views of the source. A batch that lost records keeps base offset, last offset
delta, producer, sequence, leader epoch, codec and flags, and every record its offset and timestamp.
The first pass that keeps a batch's tombstones stamps it with a delete horizon (attribute bit 6,
base timestamp := now + delete.retention.ms); it stays over further rewrites. A marker gets its
horizon in the first pass that saw none of its transaction's data.

A producer can set bit 6 itself, so it is trusted only in ledgers that a pass wrote; elsewhere it is
cleared.

Pure: `now` is a number, the key map and the entries of the aborted index are given.
"""

from __future__ import annotations

from array import array
from dataclasses import field, replace
from typing import TYPE_CHECKING, NamedTuple

from broker.log.compact.thinning import (
    as_int64,
    check_batch,
    empty,
    read_marker,
    read_spans,
    rebuild,
    units_of,
    unpack,
    with_short_keys,
    without_horizon,
)
from wire.dataclass import dataclass
from wire.kafka.records.batch import NO_TIMESTAMP, TIMESTAMP_TYPE_MASK
from wire.kafka.records.walk import INT64_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Mapping as MappingOf

    from broker.log.compact.aborted import TransactionPass
    from broker.log.compact.key_map import KeyMap
    from broker.log.compact.steps import Steps
    from broker.log.transactions.aborted_index import AbortedTransaction
    from wire.buffers import Buffer
    from wire.kafka.records.batch import BatchHeader
    from wire.kafka.records.walk import Span


class Mapping:
    """The map pass over [start offset, …): key -> newest offset of committed data."""

    __slots__ = (
        "_end_offset",
        "_key_map",
        "_size_max",
        "_start_offset",
        "_transactions",
        "is_full",
        "last_mapped",
        "records_mapped",
        "records_seen",
    )

    def __init__(
        self,
        key_map: KeyMap,
        transactions: TransactionPass,
        *,
        start_offset: int,
        size_max: int,
    ) -> None:
        """Records below `start_offset` are not mapped; its ledger is given from its first batch on.
        `size_max`: bytes of a batch's records, decompressed, above which it is damage.
        """
        self._key_map = key_map
        self._transactions = transactions
        self._start_offset = start_offset
        self._size_max = size_max
        self._end_offset = 0  # of the last batch
        #: The map is full: of what lies behind `last_mapped` nothing is mapped.
        self.is_full = False
        #: Up to here (inclusive) everything is in the map; `start_offset` - 1 at first.
        self.last_mapped = start_offset - 1
        #: Records with a look at their key, and those of them that were put into the map.
        self.records_seen = 0
        self.records_mapped = 0

    def add(self, batch: memoryview, header: BatchHeader) -> Steps[bool]:
        """The next batch in the order of offsets, whole and with its own header. Returns whether it
        is mapped wholly; if not, the map is full and no further batch may come.

        CompactionError if the batch is damaged.
        """
        assert not self.is_full, "a full map takes no batch"
        check_batch(batch, header, self._end_offset)
        yield 1
        if header.is_control:
            ends, marker = read_marker(batch, header)
            if ends:
                self._transactions.end(header, marker)
        elif not self._transactions.is_aborted(header) and header.last_offset >= self._start_offset:
            yield from self._map(batch, header)
        self._end_offset = header.last_offset + 1
        is_whole = not self.is_full
        if is_whole:
            self.last_mapped = max(self.last_mapped, header.last_offset)
        return is_whole

    def _map(self, batch: memoryview, header: BatchHeader) -> Steps[None]:
        """The records of one batch, until the map is full."""
        data = yield from unpack(batch, header, self._size_max)
        base, start, key_map = header.base_offset, self._start_offset, self._key_map
        for found in read_spans(header, data):
            short = yield from with_short_keys(found, key_map.shorten)
            for _, _, _, _, delta, key, _ in short:
                offset = base + delta
                if key is None or offset < start:
                    continue
                if key_map.is_full:
                    self.is_full = True
                    self.last_mapped = max(self.last_mapped, offset - 1)
                    return
                key_map.put(key, offset)
                self.records_mapped += 1
            self.records_seen += len(found)
            yield units_of(found)


@dataclass(slots=True, frozen=True)
class PassRules:
    """What is the same for all batches of a copy pass.

    now_ms, delete_retention_ms: of the clock (`Filter.begin_group`) and the topic. last_mapped: of
    the Mapping; in a horizon pass any number. log_start, high_watermark: the partition's.
    last_data_offsets: for each active producer that has data in the log the last offset of its last
    data batch; marker_epochs: for those that have markers only, their epoch. size_max: bytes of a
    batch's records, decompressed, above which it is damage (not max.message.bytes: that may have
    been lowered).
    """

    now_ms: int
    delete_retention_ms: int
    last_mapped: int
    high_watermark: int
    size_max: int
    log_start: int = 0
    last_data_offsets: MappingOf[int, int] = field(default_factory=dict)
    marker_epochs: MappingOf[int, int] = field(default_factory=dict)


class Kept(NamedTuple):
    """What stays of a batch.

    `data`: None if nothing; the given view itself if it stays as it is; else new bytes.
    `is_changed`: whether `data` is anything else than the given batch; a ledger without such a
    batch need not be written.
    `last_offset`: of the batch that stays, as in its header; -1 if none does.
    `record_count`: records left (0: an empty header). `records_dropped`, `tombstones` (left).
    `is_stamped`: this pass gave it its horizon. `horizon_ms`: from when on a pass has something to
    drop here; -1 if it holds no tombstone or marker that waits for a horizon.
    `max_timestamp` (ms, -1 if no record has one) is that of the records left, and
    `max_timestamp_offset` the first of them that has it.
    """

    data: Buffer | None
    is_changed: bool
    last_offset: int = -1
    record_count: int = 0
    records_dropped: int = 0
    tombstones: int = 0
    is_stamped: bool = False
    horizon_ms: int = -1
    max_timestamp: int = -1
    max_timestamp_offset: int = -1


@dataclass(slots=True)
class LedgerFacts:
    """What the chain says of a ledger that a pass writes, added up over what was kept for it.

    `min_horizon_ms`: when a pass has something to drop from it; -1 for never.
    """

    record_count: int = 0
    batch_count: int = 0
    size_bytes: int = 0
    records_dropped: int = 0
    is_changed: bool = False
    min_horizon_ms: int = -1
    max_timestamp: int = -1
    max_timestamp_offset: int = -1

    def add(self, kept: Kept) -> None:
        """One batch more, in the order of offsets."""
        self.records_dropped += kept.records_dropped
        self.is_changed = self.is_changed or kept.is_changed
        if kept.data is None:
            return
        self.batch_count += 1
        self.record_count += kept.record_count
        self.size_bytes += len(kept.data)
        if kept.horizon_ms >= 0:
            known = self.min_horizon_ms
            self.min_horizon_ms = kept.horizon_ms if known < 0 else min(known, kept.horizon_ms)
        if kept.max_timestamp > self.max_timestamp:
            self.max_timestamp = kept.max_timestamp
            self.max_timestamp_offset = kept.max_timestamp_offset


class _Fates:
    """What the records of one batch come to: those that stay, and what is known of them. A batch
    may have as many records as a seventh of its bytes, so of each there are four numbers and no
    object."""

    __slots__ = (
        "count", "has_late_tombstone", "max_timestamp", "max_timestamp_offset", "places",
        "tombstones",
    )  # fmt: skip

    def __init__(self) -> None:
        self.count = 0
        self.places = array("q")  # the first four numbers of their Spans
        self.tombstones = 0
        self.has_late_tombstone = False  # behind what is mapped
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = -1


class Filter:
    """The copy pass. Every batch of the log comes once, in the order of offsets, from the first
    ledger's first on: which markers may go depends on all that came before.

    Without a key map it is a *horizon pass* over ledgers in which only horizons are due: tombstones
    and markers past theirs go, nothing is stamped, no marker is judged by the data before it, no
    data by the aborted index, and the caller copies the index.
    """

    __slots__ = ("_end_offset", "_key_map", "_rules", "_transactions")

    def __init__(
        self, rules: PassRules, key_map: KeyMap | None, transactions: TransactionPass
    ) -> None:
        self._rules = rules
        self._key_map = key_map
        self._transactions = transactions
        self._end_offset = 0  # of the last batch

    def begin_group(self, now_ms: int) -> None:
        """Horizons count from now on: a pass may take hours, and readers have delete.retention.ms
        from when what a tombstone deletes is gone."""
        self._rules = replace(self._rules, now_ms=now_ms)

    def keep(
        self, batch: memoryview, header: BatchHeader, *, is_compacted: bool, is_range_end: bool
    ) -> Steps[Kept]:
        """What stays of the next batch. `is_compacted`: a pass wrote its ledger, so that attribute
        bit 6 is ours. `is_range_end`: it is the last batch of the ledger that is being written; it
        stays at least as an empty header, so that the ledger ends where its sources ended.

        CompactionError if the batch is damaged; the pass is over then.
        """
        check_batch(batch, header, self._end_offset)
        self._end_offset = header.last_offset + 1
        yield 1
        is_aborted = (
            self._key_map is not None
            and not header.is_control
            and self._transactions.is_aborted(header)
        )
        kept = None
        if header.is_control:
            kept = yield from self._keep_control(batch, header, is_compacted)
        elif not is_aborted and header.record_count and header.last_offset >= self._rules.log_start:
            kept = yield from self._keep_data(batch, header, is_compacted)
        return kept or self._emptied(batch, header, is_range_end)

    def _keep_data(
        self, batch: memoryview, header: BatchHeader, is_compacted: bool
    ) -> Steps[Kept | None]:
        """None if no record stays."""
        rules = self._rules
        data = yield from unpack(batch, header, rules.size_max)
        horizon_ms = header.delete_horizon_ms if is_compacted else None
        is_expired = horizon_ms is not None and rules.now_ms >= horizon_ms
        fates = _Fates()
        for found in read_spans(header, data):
            if self._key_map is None:
                self._judge_horizon(header, found, is_expired, fates)
            else:
                short = yield from with_short_keys(found, self._key_map.shorten)
                self._judge(header, short, self._key_map, is_expired, fates)
            yield units_of(found)
        if not fates.count:
            return None
        is_stamped = (
            horizon_ms is None
            and self._key_map is not None
            and fates.tombstones > 0
            and not fates.has_late_tombstone
        )
        if is_stamped:
            horizon_ms = self._new_horizon_ms()
        is_whole = fates.count == header.record_count
        result: Buffer = batch
        if is_stamped or not is_whole:
            result = yield from self._rebuilt(header, data, fates, horizon_ms)
        elif header.delete_horizon_ms is not None and not is_compacted:
            result = yield from without_horizon(batch, header)
        return Kept(
            result,
            result is not batch,
            last_offset=header.last_offset,
            record_count=fates.count,
            records_dropped=header.record_count - fates.count,
            tombstones=fates.tombstones,
            is_stamped=is_stamped,
            horizon_ms=-1 if horizon_ms is None or not fates.tombstones else horizon_ms,
            max_timestamp=fates.max_timestamp,
            max_timestamp_offset=fates.max_timestamp_offset,
        )

    def _judge(
        self,
        header: BatchHeader,
        found: list[Span],
        key_map: KeyMap,
        is_expired: bool,
        fates: _Fates,
    ) -> None:
        """Some records of one batch, by what the map knows of their keys."""
        base, log_start = header.base_offset, self._rules.log_start
        last_mapped, get = self._rules.last_mapped, key_map.get
        for span in found:
            _, _, _, _, delta, key, has_value = span
            offset = base + delta
            if offset < log_start:
                continue
            if offset <= last_mapped:
                if key is None or offset < get(key) or (is_expired and not has_value):
                    continue
            elif not has_value:
                fates.has_late_tombstone = True
            _note(header, span, fates)

    def _judge_horizon(
        self, header: BatchHeader, found: list[Span], is_expired: bool, fates: _Fates
    ) -> None:
        """Some records of one batch, by their horizon alone."""
        for span in found:
            if header.base_offset + span[4] < self._rules.log_start:
                continue
            # What has no value has a key: a batch with a keyless one of these gets no horizon
            # before a pass has dropped that.
            if span[6] or not is_expired:
                _note(header, span, fates)

    def _keep_control(
        self, batch: memoryview, header: BatchHeader, is_compacted: bool
    ) -> Steps[Kept | None]:
        """None if no record stays."""
        rules = self._rules
        ends, marker = read_marker(batch, header)
        is_idle = False  # nothing that it ends was seen
        if ends and self._key_map is not None:
            is_idle = not self._transactions.end(header, marker)
        if not header.record_count or header.last_offset < rules.log_start:
            return None
        horizon_ms = header.delete_horizon_ms if is_compacted else None
        is_judged = ends and (
            self._key_map is None or (is_idle and header.last_offset <= rules.last_mapped)
        )
        if is_judged and horizon_ms is not None and rules.now_ms >= horizon_ms:
            return None
        is_stamped = is_judged and horizon_ms is None and self._key_map is not None
        data = yield from unpack(batch, header, rules.size_max)
        fates = _Fates()
        for found in read_spans(header, data):
            for span in found:
                _note(header, span, fates)
        result: Buffer = batch
        if is_stamped:
            horizon_ms = self._new_horizon_ms()
            result = yield from self._rebuilt(header, data, fates, horizon_ms)
        elif header.delete_horizon_ms is not None and not is_compacted:
            result = yield from without_horizon(batch, header)
        return Kept(
            result,
            result is not batch,
            last_offset=header.last_offset,
            record_count=header.record_count,
            is_stamped=is_stamped,
            horizon_ms=-1 if horizon_ms is None else horizon_ms,
            max_timestamp=fates.max_timestamp,
            max_timestamp_offset=fates.max_timestamp_offset,
        )

    def _rebuilt(
        self, header: BatchHeader, data: Buffer, fates: _Fates, horizon_ms: int | None
    ) -> Steps[bytearray]:
        return rebuild(
            header, data, fates.places, max_timestamp=fates.max_timestamp, horizon_ms=horizon_ms
        )

    def _new_horizon_ms(self) -> int:
        return min(self._rules.now_ms + self._rules.delete_retention_ms, INT64_MAX)

    def _emptied(self, batch: memoryview, header: BatchHeader, is_range_end: bool) -> Kept:
        """No record stays: the header does if something hangs on it."""
        is_retained = self._is_retained(header)
        if not is_retained and not is_range_end:
            return Kept(None, True, records_dropped=header.record_count)
        header_only = empty(header, keeps_producer=is_retained)
        is_changed = header_only != batch
        return Kept(
            header_only if is_changed else batch,
            is_changed,
            last_offset=header.last_offset,
            records_dropped=header.record_count,
        )

    def _is_retained(self, header: BatchHeader) -> bool:
        """Whether it tells an active producer's last sequence or epoch (KAFKA-5490, by offset:
        KAFKA-8335), or where the log ends (KAFKA-17076)."""
        rules = self._rules
        if header.last_offset + 1 == rules.high_watermark:
            return True
        producer_id = header.producer_id
        if producer_id < 0:
            return False
        last_data_offset = rules.last_data_offsets.get(producer_id)
        if last_data_offset is not None:
            return header.last_offset == last_data_offset
        return header.is_control and rules.marker_epochs.get(producer_id) == header.producer_epoch

    def take_aborted(self, of_sources: Iterable[AbortedTransaction]) -> list[AbortedTransaction]:
        """The aborted index of the ledger that was written since the last call: entries whose
        marker was kept and whose data was seen. A horizon pass does not look at data: it copies
        those `of_sources`, whose markers it has all kept."""
        taken = of_sources if self._key_map is None else self._transactions.take_aborted()
        log_start = self._rules.log_start
        return [one for one in taken if one.last_offset >= log_start]


def _note(header: BatchHeader, span: Span, fates: _Fates) -> None:
    """A record that stays."""
    fates.count += 1
    fates.places.extend(span[:4])
    if not span[6]:
        fates.tombstones += 1
    if header.attributes & TIMESTAMP_TYPE_MASK:
        timestamp = header.max_timestamp
    else:
        timestamp = as_int64(header.base_timestamp + span[3])
    if timestamp > fates.max_timestamp:
        fates.max_timestamp = timestamp
        fates.max_timestamp_offset = header.base_offset + span[4]
