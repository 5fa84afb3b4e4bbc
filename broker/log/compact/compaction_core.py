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

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping as MappingOf

    from broker.log.compact.aborted import AbortedTransaction, TransactionPass
    from broker.log.compact.steps import Steps
    from broker.log.compact.key_map import KeyMap
    from wire.buffers import Buffer
    from wire.kafka.records.batch import BatchHeader


class Mapping:
    """The map pass over [start offset, …): key -> newest offset of committed data."""

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

    #: The map took a record less than there were: nothing at or behind `last_mapped` + 1 is mapped.
    is_full: bool = False
    #: Up to here (inclusive) everything is in the map; `start_offset` - 1 at first.
    last_mapped: int = -1
    #: Counts, for metrics.
    records_seen: int = 0
    records_mapped: int = 0

    def add(self, batch: memoryview, header: BatchHeader) -> Steps[bool]:
        """The next batch in the order of offsets, whole and with its own header. Returns whether it
        is mapped wholly; if not, the map is full and no further batch may come.

        CompactionError if the batch is damaged.
        """

    def end_at(self, last_mapped: int) -> None:
        """The pass ends at an earlier offset than the map does: the last ledger's end that is
        mapped wholly. What the map knows beyond is still true: a newer record of the key exists."""


@dataclass(slots=True, frozen=True)
class PassRules:
    """What is the same for all batches of a copy pass.

    now_ms, delete_retention_ms: of the clock and the topic. last_mapped: of the Mapping; in a
    horizon pass any number. log_start, high_watermark: the partition's. last_data_offsets: for each
    active producer that has data in the log the last offset of its last data batch; marker_epochs:
    for those that have markers only, their epoch. size_max: bytes of a batch's records,
    decompressed, above which it is damage (not max.message.bytes: that may have been lowered).
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


class Filter:
    """The copy pass. Every batch of the log comes once, in the order of offsets, from the first
    ledger's first on: which markers may go depends on all that came before.

    Without a key map it is a *horizon pass* over ledgers in which only horizons are due: tombstones
    and markers past theirs go, nothing is stamped, no marker is judged by the data before it, and
    the aborted index of the source is copied by the caller.
    """

    def __init__(
        self, rules: PassRules, key_map: KeyMap | None, transactions: TransactionPass
    ) -> None: ...

    def keep(
        self, batch: memoryview, header: BatchHeader, *, is_compacted: bool, is_range_end: bool
    ) -> Steps[Kept]:
        """What stays of the next batch. `is_compacted`: a pass wrote its ledger, so that attribute
        bit 6 is ours. `is_range_end`: it is the last batch of the ledger that is being written; it
        stays at least as an empty header, so that the ledger ends where its sources ended.

        CompactionError if the batch is damaged; the pass is over then.
        """
        raise ValueError("not built yet")

    def take_aborted(self) -> list[AbortedTransaction]:
        """The aborted index of the ledger that was written since the last call: entries whose
        marker was kept and whose data was seen. Not in a horizon pass."""
        return []
