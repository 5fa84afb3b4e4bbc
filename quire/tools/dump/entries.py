"""Ledger entries, wherever they are kept: ids, LAC, length, digest; and what quire puts in them."""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from broker.log.append.entry_format import (
    FLAG_CONTINUED,
    FLAG_CONTINUES,
    HEADER_SIZE,
    KIND_ABORTED,
    KIND_BATCHES,
    KIND_INDEX,
    KIND_SNAPSHOT,
    EntryFormatError,
    parse_header,
)
from broker.log.append.producer_snapshot import decode_snapshot, unpack_producer
from broker.log.read.offset_index import IndexFormatError, OffsetIndex
from broker.log.transactions.aborted_index import AbortedFormatError, decode_aborted
from quire.tools.dump.batches import BatchDump, batch_fields, header_of_part
from wire.bookkeeper.entry import (
    HEADER_SIZE as ENTRY_HEADER_SIZE,
)
from wire.bookkeeper.entry import (
    MAC_SIZE,
    Digest,
    DigestMismatchError,
    DigestType,
    crc32c_matches,
)
from wire.bookkeeper.entry import parse_header as parse_entry_header
from wire.dataclass import dataclass
from wire.kafka.errors import WireError

if TYPE_CHECKING:
    from quire.tools.dump.options import EntryOptions
    from quire.tools.output import Output

KIND_NAMES = {
    KIND_BATCHES: "batches",
    KIND_INDEX: "index",
    KIND_SNAPSHOT: "snapshot",
    KIND_ABORTED: "aborted",
}
#: Parts of batches that span several entries, while the next part is awaited.
SPANNING_SIZE_MAX = 64 * 1024 * 1024
_INDEX_HEAD_SIZE = 8

#: What `--digest` may be, beside «auto» and «none».
DIGEST_TYPES = {
    "crc32c": DigestType.CRC32C,
    "crc32": DigestType.CRC32,
    "hmac": DigestType.HMAC,
    "dummy": DigestType.DUMMY,
}


class DigestChecker:
    """Entries do not say which digest they have: «auto» tries one after the other."""

    __slots__ = ("_digests", "_is_auto", "_mode")

    def __init__(self, mode: str, password: bytes) -> None:
        self._mode = mode
        self._is_auto = mode == "auto"
        types = {
            "auto": [DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC],
            "none": [],
        }.get(mode, [DIGEST_TYPES[mode]] if mode in DIGEST_TYPES else [])
        self._digests = [Digest(each, password) for each in types]

    @property
    def can_tell(self) -> bool:
        """Whether a wrong entry is recognised at all."""
        return self._mode not in ("none", "dummy")

    def check(self, entry: memoryview, ledger_id: int, entry_id: int) -> tuple[str, str | None]:
        """("ok", type), ("bad", None), ("short", None) for less than a header, or ("unchecked",
        None)."""
        if self._is_auto and crc32c_matches(entry, 0, len(entry)):
            return "ok", "crc32c"
        if len(entry) < ENTRY_HEADER_SIZE:
            return "short", None
        if not self.can_tell:
            return "unchecked", None
        for digest in self._digests:
            try:
                digest.open(entry, ledger_id, entry_id)
            except DigestMismatchError:
                continue
            return "ok", digest.digest_type.name.lower()
        return "bad", None

    def payload_start(self, digest_type: str | None) -> int:
        if digest_type is None:
            digest_type = self._mode if self._mode in DIGEST_TYPES else "crc32c"
        return ENTRY_HEADER_SIZE + MAC_SIZE[DIGEST_TYPES[digest_type]]


class LedgerTotals:
    """How many entries of which ledgers there are, and how many bytes they have."""

    __slots__ = ("_ledgers",)

    def __init__(self) -> None:
        #: entries, first entry id, last, bytes
        self._ledgers: dict[int, list[int]] = {}

    def add(self, ledger_id: int, entry_id: int, size: int) -> None:
        seen = self._ledgers.get(ledger_id)
        if seen is None:
            self._ledgers[ledger_id] = [1, entry_id, entry_id, size]
            return
        seen[0] += 1
        if entry_id > seen[2]:
            seen[2] = entry_id
        elif entry_id < seen[1]:
            seen[1] = entry_id
        seen[3] += size

    def show(self, out: Output, level: int, in_map: dict[int, int] | None = None) -> None:
        """`ledger` rows; with what an entry log's map says of each, if there is one."""
        for ledger_id, (count, first, last, size) in sorted(self._ledgers.items()):
            fields: dict[str, Any] = {
                "ledger": ledger_id,
                "entries": count,
                "first_entry": first,
                "last_entry": last,
                "bytes": size,
            }
            if in_map is not None:
                fields["mapped_bytes"] = in_map.get(ledger_id)
            out.row("ledger", fields, level)


@dataclass(slots=True)
class _Spanning:
    """The parts so far of a batch that is larger than an entry."""

    next_entry_id: int
    size: int
    first_position: int
    parts: list[bytes]


class EntryDump:
    """Shows entries of one file."""

    __slots__ = ("_checker", "_file", "_options", "_out", "_spanning", "_spanning_size")

    def __init__(self, out: Output, options: EntryOptions, file: str) -> None:
        self._out = out
        self._options = options
        self._file = file
        self._checker = DigestChecker(options.digest, options.password)
        self._spanning: OrderedDict[int, _Spanning] = OrderedDict()
        self._spanning_size = 0

    @property
    def checker(self) -> DigestChecker:
        return self._checker

    def show(
        self,
        ledger_id: int,
        entry_id: int,
        entry: memoryview,
        offset: int,
        level: int,
        checked: tuple[str, str | None] | None = None,
    ) -> None:
        """`offset` is the entry's in the file, after its length."""
        options = self._options
        digest, digest_type = checked or self._checker.check(entry, ledger_id, entry_id)
        start = self._checker.payload_start(digest_type)
        payload = entry[start:]
        if options.payload_kinds and _kind_of(payload) not in options.payload_kinds:
            return
        fields: dict[str, Any] = {
            "offset": offset,
            "ledger": ledger_id,
            "entry": entry_id,
            "size": len(entry),
        }
        if options.decoded or options.payload:
            fields |= {"digest": digest, "digest_type": digest_type, "lac": None, "length": None}
            if len(entry) >= ENTRY_HEADER_SIZE:
                header = parse_entry_header(entry)
                fields["lac"] = header.last_add_confirmed
                fields["length"] = header.length
        self._out.row("entry", fields, level)
        if digest in ("bad", "short") and (options.decoded or options.payload):
            words = "the digest does not match" if digest == "bad" else "it is too short"
            self._out.damage(
                self._file, offset, f"ledger {ledger_id} entry {entry_id}: {words}", level + 1
            )
        elif options.payload:
            self.show_payload(ledger_id, entry_id, payload, offset + start, level + 1)

    def show_payload(
        self, ledger_id: int, entry_id: int, payload: memoryview, position: int, level: int
    ) -> bool:
        """What other programs put into their entries is no damage: it is told what it is not, and
        False returned."""
        try:
            header = parse_header(payload)
            if header.kind not in KIND_NAMES:
                raise EntryFormatError(f"entry payload of unknown kind {header.kind}")
        except EntryFormatError as error:
            fields = {"kind": "unknown", "size": len(payload), "reason": str(error)}
            self._out.row("payload", fields, level)
            return False
        fields = {
            "kind": KIND_NAMES[header.kind],
            "size": len(payload),
            "records": header.record_count,
            "first_offset": header.first_offset,
            "continued": bool(header.flags & FLAG_CONTINUED),
            "continues": bool(header.flags & FLAG_CONTINUES),
        }
        self._out.row("payload", fields, level)
        content = payload[HEADER_SIZE:]
        position += HEADER_SIZE
        if header.kind == KIND_INDEX:
            show_offset_index(self._out, content, self._file, position, level + 1)
        elif header.kind == KIND_SNAPSHOT:
            show_snapshot(self._out, content, self._file, position, level + 1)
        elif header.kind == KIND_ABORTED:
            show_aborted(self._out, content, self._file, position, level + 1)
        elif header.flags:
            self._show_part(ledger_id, entry_id, header.flags, content, position, level + 1)
        else:
            self._batch_dump().show_all(content, position, level + 1)
        return True

    def _batch_dump(self) -> BatchDump:
        return BatchDump(self._out, self._options.batches, self._file)

    def _show_part(
        self,
        ledger_id: int,
        entry_id: int,
        flags: int,
        content: memoryview,
        position: int,
        level: int,
    ) -> None:
        """The batch is shown whole with its last part, if all parts came by in order, and were not
        too many; else its header is shown where that is."""
        spanning = self._spanning.pop(ledger_id, None)
        if spanning is not None:
            self._spanning_size -= spanning.size
        if not flags & FLAG_CONTINUED:
            spanning = _Spanning(entry_id, 0, position, [])
            for header in header_of_part(content):
                self._out.row("batch", batch_fields(header, position, None), level)
        if spanning is None or spanning.next_entry_id != entry_id:
            return
        spanning.parts.append(bytes(content))
        spanning.size += len(content)
        spanning.next_entry_id += 1
        if not flags & FLAG_CONTINUES:
            data = memoryview(b"".join(spanning.parts))
            self._batch_dump().show_all(data, spanning.first_position, level)
            return
        self._spanning[ledger_id] = spanning
        self._spanning_size += spanning.size
        while self._spanning_size > SPANNING_SIZE_MAX:
            _, oldest = self._spanning.popitem(last=False)
            self._spanning_size -= oldest.size


def _kind_of(payload: memoryview) -> int | None:
    try:
        return parse_header(payload).kind
    except EntryFormatError:
        return None


def show_aborted(out: Output, content: memoryview, file: str, position: int, level: int) -> None:
    """Rows of an index of aborted transactions: `aborted` rows."""
    try:
        rows = decode_aborted(content)
    except AbortedFormatError as error:
        out.damage(file, position, str(error), level)
        return
    for row in rows:
        out.row("aborted", row._asdict(), level)


def show_offset_index(
    out: Output, content: memoryview, file: str, position: int, level: int
) -> None:
    """An offset index: `slot` rows."""
    try:
        count = len(OffsetIndex.from_bytes(content))
    except IndexFormatError as error:
        out.damage(file, position, str(error), level)
        return
    column = struct.Struct(f">{count}q")
    columns = [
        column.unpack_from(content, _INDEX_HEAD_SIZE + number * column.size) for number in range(3)
    ]
    out.row("index", {"position": position, "slots": count}, level)
    for entry_id, first_offset, max_timestamp in zip(*columns, strict=True):
        fields = {
            "entry": entry_id,
            "first_offset": first_offset,
            "max_timestamp_before": max_timestamp,
        }
        out.row("slot", fields, level + 1)


def show_snapshot(out: Output, content: memoryview, file: str, position: int, level: int) -> None:
    """A snapshot of a partition's producers: `producer` rows."""
    try:
        end_offset, packed = decode_snapshot(content)
        producers = {producer_id: unpack_producer(data) for producer_id, _, data in packed}
    except WireError as error:
        out.damage(file, position, str(error), level)
        return
    fields: dict[str, Any] = {
        "position": position,
        "end_offset": end_offset,
        "producers": len(producers),
        "open_transactions": sum(
            producer.transaction_start_offset >= 0 for producer in producers.values()
        ),
    }
    out.row("snapshot", fields, level)
    for producer_id, producer in producers.items():
        fields = {
            "producer_id": producer_id,
            "epoch": producer.epoch,
            "coordinator_epoch": producer.coordinator_epoch,
            "last_sequence": producer.last_sequence,
            "run_length": producer.run_length,
            "last_timestamp": producer.last_timestamp,
            "last_append_ms": producer.last_append_ms,
            "transaction_start_offset": producer.transaction_start_offset,
            "unsequenced_offset": producer.unsequenced_offset,
            "batches": [each._asdict() for each in producer.batches],
        }
        out.row("producer", fields, level + 1)
