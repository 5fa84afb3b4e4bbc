"""Logs for the tests of compaction: made, compacted pass by pass, and read as consumers do.

A log is a list of ledgers; a ledger a list of batches (bytes), whether a pass wrote it, and its
aborted index. `Oracle` says what a pass must leave, on plain lists, by the table of the fates.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from broker.log.compact.aborted import TransactionPass
from broker.log.compact.compaction_core import Filter, LedgerFacts, Mapping, PassRules
from broker.log.compact.steps import run_inline
from broker.log.transactions.aborted_index import AbortedTransaction
from wire.kafka.records.batch import (
    DELETE_HORIZON_MASK,
    TimestampType,
    build_batch,
    check_crc,
    iter_records,
    parse_header,
)
from wire.kafka.records.compression import Compression
from wire.kafka.records.control import (
    EndTransactionMarker,
    build_end_transaction_batch,
    decode_end_transaction_marker,
)
from wire.kafka.records.record import Record

SIZE_MAX = 1 << 20
BASE_MS = 1_800_000_000_000
RETENTION_MS = 1000


class DictKeyMap:
    """The model of a key map: exact, of `keys_max` keys."""

    def __init__(self, keys_max=10**9):
        self.keys = {}
        self.keys_max = keys_max

    is_full = property(lambda self: len(self.keys) >= self.keys_max)
    size_bytes = 0

    def __len__(self):
        return len(self.keys)

    def put(self, key, offset):
        assert not self.is_full
        self.keys[bytes(key)] = offset

    def get(self, key):
        return self.keys.get(bytes(key), -1)

    def shorten(self, key):
        return key


@dataclass
class Ledger:
    batches: list
    is_compacted: bool = False
    aborted: list = field(default_factory=list)

    @property
    def base(self):
        return parse_header(self.batches[0]).base_offset

    @property
    def last(self):
        return parse_header(self.batches[-1]).last_offset


class Row(NamedTuple):
    """A record as a reader sees it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple
    producer_id: int
    is_transactional: bool
    is_control: bool


def rows_of(batch):
    header = parse_header(batch)
    assert check_crc(batch, header)
    assert len(batch) == header.size
    return [
        Row(
            header.base_offset + record.offset_delta,
            header.timestamp_of(record),
            record.key,
            record.value,
            tuple(record.headers),
            header.producer_id,
            header.is_transactional,
            header.is_control,
        )
        for record in iter_records(batch, header, size_max=SIZE_MAX)
    ]


def rows(ledgers):
    return [row for ledger in ledgers for batch in ledger.batches for row in rows_of(batch)]


def headers(ledgers):
    return [parse_header(batch) for ledger in ledgers for batch in ledger.batches]


def batch_of(base_offset, *keyed, timestamps=None, deltas=None, **more):
    """A batch of (key, value) pairs from `base_offset` on."""
    records = [
        Record(
            n if deltas is None else deltas[n],
            n if timestamps is None else timestamps[n],
            key,
            value,
        )
        for n, (key, value) in enumerate(keyed)
    ]
    return build_batch(records, base_offset=base_offset, base_timestamp=BASE_MS, **more)


def transactional(base_offset, producer_id, *keyed, epoch=0, **more):
    more.setdefault("base_sequence", 0)
    return batch_of(
        base_offset,
        *keyed,
        producer_id=producer_id,
        producer_epoch=epoch,
        is_transactional=True,
        **more,
    )


def marker_of(base_offset, producer_id, *, committed, epoch=0):
    return build_end_transaction_batch(
        EndTransactionMarker(committed, 0),
        producer_id=producer_id,
        producer_epoch=epoch,
        timestamp_ms=BASE_MS,
        base_offset=base_offset,
    )


def marker_in(batch):
    header = parse_header(batch)
    (record,) = iter_records(batch, header, size_max=SIZE_MAX)
    return decode_end_transaction_marker(record)


def end_of(ledgers):
    return ledgers[-1].last + 1


def rules_for(ledgers, now_ms=BASE_MS, last_mapped=None, **more):
    more.setdefault("high_watermark", 10**9)
    more.setdefault("delete_retention_ms", RETENTION_MS)
    more.setdefault("size_max", SIZE_MAX)
    if last_mapped is None:
        last_mapped = end_of(ledgers) - 1
    return PassRules(now_ms=now_ms, last_mapped=last_mapped, **more)


def all_aborted(ledgers):
    return [entry for ledger in ledgers for entry in ledger.aborted]


def map_pass(ledgers, key_map, start_offset=0, ledger_count=None):
    mapping = Mapping(
        key_map, TransactionPass(all_aborted(ledgers)), start_offset=start_offset, size_max=SIZE_MAX
    )
    for ledger in ledgers[:ledger_count]:
        if ledger.last < start_offset:
            continue
        for batch in ledger.batches:
            if not run_inline(mapping.add(memoryview(batch), parse_header(batch))):
                return mapping
    return mapping


@dataclass
class Copied:
    """What a copy pass left, and what it said of each batch and each ledger that it wrote."""

    ledgers: list
    kept: list
    facts: list


def copy_pass(ledgers, rules, key_map, *, groups=None, groups_done=None, transactions=None):
    """`groups`: how many ledgers each group joins, the rest of the log is not copied; of these the
    first `groups_done` are swapped in. By default each ledger is a group."""
    groups = [1] * len(ledgers) if groups is None else groups
    transactions = transactions or TransactionPass(all_aborted(ledgers))
    copying = Filter(rules, key_map, transactions)
    out, kept_all, facts_all, position = [], [], [], 0
    for number, size in enumerate(groups):
        sources = ledgers[position : position + size]
        if groups_done is not None and number >= groups_done:
            break
        facts, left = LedgerFacts(), []
        for source in sources:
            for batch in source.batches:
                is_end = source is sources[-1] and batch is source.batches[-1]
                view = memoryview(batch)
                kept = run_inline(
                    copying.keep(
                        view,
                        parse_header(batch),
                        is_compacted=source.is_compacted,
                        is_range_end=is_end,
                    )
                )
                assert kept.is_changed == (kept.data is not view)
                facts.add(kept)
                kept_all.append(kept)
                if kept.data is not None:
                    left.append(bytes(kept.data))
        aborted = copying.take_aborted(all_aborted(sources))
        out.append(Ledger(left, True, aborted))
        assert (out[-1].last, facts.batch_count) == (sources[-1].last, len(left))
        facts_all.append(facts)
        position += size
    return Copied(out + ledgers[position:], kept_all, facts_all)


def compact(ledgers, key_map=None, *, start_offset=0, ledger_count=None, groups=None, **more):
    """One whole pass over the first `ledger_count` ledgers."""
    key_map = DictKeyMap() if key_map is None else key_map
    mapping = map_pass(ledgers, key_map, start_offset, ledger_count)
    if groups is None:
        groups = [1] * sum(ledger.base <= mapping.last_mapped for ledger in ledgers)
    rules = rules_for(ledgers, last_mapped=mapping.last_mapped, **more)
    return copy_pass(ledgers, rules, key_map, groups=groups)


def read_committed(ledgers, from_offset=0):
    """As a Java consumer does: a producer's data is dropped from an aborted entry's first offset
    on, until an abort marker of it is *seen*."""
    ahead = sorted(all_aborted(ledgers), key=lambda entry: entry.first_offset)
    ahead = [entry for entry in ahead if entry.last_offset >= from_offset]
    aborted, out = set(), []
    for ledger in ledgers:
        for batch in ledger.batches:
            header = parse_header(batch)
            if header.last_offset < from_offset:
                continue
            while ahead and ahead[0].first_offset <= header.last_offset:
                aborted.add(ahead.pop(0).producer_id)
            if header.is_control:
                if header.record_count and not marker_in(batch).committed:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                out += rows_of(batch)
    return out


def read_by_lists(ledgers, from_offset=0):
    """As librdkafka and franz-go do: a producer's data is dropped from the first of its aborted
    entries on; an abort marker at or behind that takes the entry off."""
    firsts = {}
    for entry in sorted(all_aborted(ledgers), key=lambda entry: entry.first_offset):
        if entry.last_offset >= from_offset:
            firsts.setdefault(entry.producer_id, []).append(entry.first_offset)
    out = []
    for ledger in ledgers:
        for batch in ledger.batches:
            header = parse_header(batch)
            if header.last_offset < from_offset:
                continue
            mine = firsts.get(header.producer_id)
            is_covered = header.is_transactional and mine and header.base_offset >= mine[0]
            if header.is_control:
                if is_covered and header.record_count and not marker_in(batch).committed:
                    mine.pop(0)
            elif not is_covered:
                out += rows_of(batch)
    return out


def table(read):
    """Key -> value of what was read; keyless records are in no table."""
    found = {}
    for row in read:
        if row.key is not None:
            found[row.key] = row.value
    return {key: value for key, value in found.items() if value is not None}


def is_covered(entries, row):
    return (
        row.is_transactional
        and not row.is_control
        and any(
            entry.producer_id == row.producer_id
            and entry.first_offset <= row.offset <= entry.last_offset
            for entry in entries
        )
    )


def expected_rows(ledgers, *, start_offset, last_mapped, now_ms, log_start=0):
    """The data that a copy pass leaves of the given ledgers, by the table, without any cleverness;
    `ledgers` must name all entries of the aborted index."""
    entries = all_aborted(ledgers)
    data = [row for row in rows(ledgers) if not row.is_control and not is_covered(entries, row)]
    mapped = [row for row in data if start_offset <= row.offset <= last_mapped]
    horizons = {}
    for ledger in ledgers:
        for batch in ledger.batches:
            header = parse_header(batch)
            if ledger.is_compacted and header.attributes & DELETE_HORIZON_MASK:
                horizons |= {row.offset: header.base_timestamp for row in rows_of(batch)}

    def stays(row):
        if row.offset < log_start:
            return False
        if row.offset > last_mapped:
            return True
        if row.key is None:
            return False
        if any(other.key == row.key and other.offset > row.offset for other in mapped):
            return False
        is_due = row.offset in horizons and now_ms >= horizons[row.offset]
        return row.value is not None or not is_due

    return [row for row in data if stays(row)]


KEYS = [b"", b"a", b"b", b"c", b"dd", b"e" * 70, None]
VALUES = [None, None, b"", b"1", b"22", b"v" * 200]


@dataclass
class LogMaker:
    """A log of random batches of a few producers, some of them with transactions."""

    rng: object
    offset: int = 0
    ledgers: list = field(default_factory=list)
    open: dict = field(default_factory=dict)  # producer -> first offset
    sequences: dict = field(default_factory=dict)
    batches: list = field(default_factory=list)
    aborted: list = field(default_factory=list)

    def data(self, producer_id=-1, is_transactional=False):
        rng, count = self.rng, self.rng.choice([1, 1, 2, 3, 6])
        records = [
            Record(
                n,
                rng.choice([0, n, 5, -3, 100_000]),
                rng.choice(KEYS),
                rng.choice(VALUES),
                rng.choice([[], [], [("h", b"x"), ("h", None)]]),
            )
            for n in range(count)
        ]
        codec = rng.choice([Compression.NONE, *Compression])
        append_time = rng.random() < 0.2
        sequence = self.sequences.get(producer_id, 0) if producer_id >= 0 else -1
        batch = build_batch(
            records,
            base_offset=self.offset,
            leader_epoch=3,
            compression=codec,
            base_timestamp=BASE_MS - rng.choice([0, 10**9]),
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
            is_transactional=is_transactional,
            timestamp_type=TimestampType(append_time),
            max_timestamp=BASE_MS + 7 if append_time else None,
            # A producer that sets bit 6 itself.
            delete_horizon_ms=BASE_MS - 5 if rng.random() < 0.1 else None,
        )
        if producer_id >= 0:
            self.sequences[producer_id] = sequence + count
        if is_transactional:
            self.open.setdefault(producer_id, self.offset)
        self.batches.append(batch)
        self.offset += count

    def end(self, producer_id, committed):
        self.batches.append(marker_of(self.offset, producer_id, committed=committed))
        first = self.open.pop(producer_id, None)
        if first is not None and not committed:
            stable = min(self.open.values(), default=self.offset + 1)
            self.aborted.append(AbortedTransaction(producer_id, first, self.offset, stable))
        self.offset += 1

    def roll(self):
        if self.batches:
            self.ledgers.append(Ledger(self.batches, False, self.aborted))
            self.batches, self.aborted = [], []

    def step(self):
        chance = self.rng.random()
        if chance < 0.4:
            self.data(self.rng.choice([-1, -1, 1]))
        elif chance < 0.7:
            self.data(self.rng.choice([10, 11, 12]), is_transactional=True)
        elif chance < 0.85:
            # Of some it ends nothing: such a marker raises an epoch only.
            self.end(self.rng.choice([10, 11, 12]), self.rng.random() < 0.5)
        else:
            self.roll()

    def make(self, steps):
        for _ in range(steps):
            self.step()
        for producer_id in list(self.open):
            self.end(producer_id, self.rng.random() < 0.5)
        self.data()
        self.roll()
        return self.ledgers
