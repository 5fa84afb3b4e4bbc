"""A piece of an audit: every copy of some entries, read from its bookie and compared.

What says whether a copy is there and whole is the server's own check of a ledger
(ledger/ledger_check.py). Beside that, each copy's payload is compared with that of the first one
that is seen, and the content of the first is looked at: an entry of a partition has a header, and
record batches whose checksums are right.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import trio
from crc32c import crc32c

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
from broker.log.append.producer_snapshot import decode_snapshot
from broker.log.read.offset_index import IndexFormatError, OffsetIndex
from broker.log.transactions.aborted_index import AbortedFormatError, decode_aborted
from ledger.ledger_check import LedgerChecker
from ledger.network.client import NetworkBookieClient
from pyspark_quire.connection import single_error, start_env
from pyspark_quire.reading import BATCH_BYTES_MAX
from runtime.env import real_env
from runtime.running import running
from spark_jobs.audit_findings import DIFFERS, RECORDS, Audited, of_entries, of_missing
from wire.bookkeeper.ledger_metadata import parse
from wire.kafka.errors import WireError
from wire.kafka.records.batch import check_crc, records_data, scan_batches

if TYPE_CHECKING:
    from broker.log.append.entry_format import EntryHeader
    from spark_jobs.audit_findings import AuditPiece

#: Entries that are looked at together; of each a few numbers are kept until then.
STEP_ENTRIES = 1000
#: The first step of a task that is not to read more than so many bytes in a second: it tells how
#: large entries are.
FIRST_ENTRIES = 8


class Copies:
    """The payloads of a piece's good copies, as numbers."""

    def __init__(self, *, is_ours: bool) -> None:
        self._is_ours = is_ours
        #: Entry -> (size, checksum) of the first copy.
        self._first: dict[int, tuple[int, int]] = {}
        self.size_bytes = 0
        #: (entry, bookie, reason)
        self.differing: list[tuple[int, str, str]] = []
        self.unreadable: list[tuple[int, str, str]] = []

    def step_is_over(self) -> None:
        """All copies of the entries so far were seen."""
        self._first.clear()

    def add(self, bookie: str, entry_id: int, payload: memoryview) -> None:
        seen = len(payload), crc32c(payload)
        self.size_bytes += len(payload)
        first = self._first.setdefault(entry_id, seen)
        if first is seen:
            if self._is_ours and (reason := content_fault(payload)) is not None:
                self.unreadable.append((entry_id, bookie, reason))
        elif first != seen:
            self.differing.append((entry_id, bookie, "another payload than the first copy's"))


def content_fault(payload: memoryview) -> str | None:
    """Why an entry of a partition cannot be read; None if it can, or is a part of a batch that is
    larger than an entry."""
    try:
        header = parse_header(payload)
        if header.flags & ~(FLAG_CONTINUES | FLAG_CONTINUED):
            return f"unknown flags {header.flags:#x}"
        body = payload[HEADER_SIZE:]
        if header.kind == KIND_BATCHES:
            return None if header.flags else _batches_fault(header, body)
        if header.kind == KIND_INDEX:
            OffsetIndex.from_bytes(body)
        elif header.kind == KIND_ABORTED:
            list(decode_aborted(body))
        elif header.kind == KIND_SNAPSHOT:
            list(decode_snapshot(body)[1])
        else:
            return f"unknown kind {header.kind}"
    except (EntryFormatError, IndexFormatError, AbortedFormatError, WireError) as error:
        return str(error)
    return None


def _batches_fault(header: EntryHeader, body: memoryview) -> str | None:
    """WireError. Compaction leaves offsets out, and so batches with fewer records than offsets."""
    end, position, expected = header.first_offset + header.record_count, 0, header.first_offset
    batches = scan_batches(body)
    if not batches:
        return "no batch"
    for batch in batches:
        data = body[position : position + batch.size]
        if not check_crc(data, batch):
            return f"the checksum of the batch at offset {batch.base_offset} does not match"
        if batch.base_offset < expected or batch.last_offset < batch.base_offset:
            return f"a batch of offset {batch.base_offset} behind {expected}"
        if batch.compression:
            records_data(data, batch, size_max=BATCH_BYTES_MAX)
        expected = batch.last_offset + 1
        position += batch.size
    if batches[0].base_offset != header.first_offset or expected != end:
        return f"offsets {header.first_offset} to {end}, and batches up to {expected}"
    return None


def check_piece(piece: AuditPiece) -> Audited:
    """LedgerMetadataError if the metadata does not tell how to check a digest. What bookies do not
    answer is `silent`, and no error."""
    try:
        return trio.run(_check, piece)
    except BaseExceptionGroup as group:
        raise single_error(group) from None


def _step(size_bytes: int, entries: int, bytes_per_second: int) -> int:
    """About as many entries as may be read in a second."""
    each = max(size_bytes // entries, 1)
    return min(max(bytes_per_second // each, 1), STEP_ENTRIES)


async def _check(piece: AuditPiece) -> Audited:
    env = real_env()
    addresses = {bookie: (host, port) for bookie, host, port in piece.addresses}
    copies = Copies(is_ours=piece.is_ours)
    async with AsyncExitStack() as stack:
        await start_env(env, stack)
        bookies = NetworkBookieClient(env, addresses.get, piece.where.network())
        await stack.enter_async_context(running(bookies.run))
        checker = LedgerChecker(bookies, piece.ledger, parse(piece.metadata), copies.add)
        entries = copies_count = 0
        findings = []
        started, first = trio.current_time(), piece.first_entry
        step = FIRST_ENTRIES if piece.bytes_per_second else STEP_ENTRIES
        while first <= piece.last_entry:
            last = min(first + step - 1, piece.last_entry)
            found = await checker.check(last, first_entry_id=first)
            copies.step_is_over()
            entries += found.entries
            copies_count += found.copies
            findings += of_missing(piece, found.missing)
            first = last + 1
            if piece.bytes_per_second:
                step = _step(copies.size_bytes, first - piece.first_entry, piece.bytes_per_second)
                await trio.sleep_until(started + copies.size_bytes / piece.bytes_per_second)
    findings += of_entries(piece, DIFFERS, copies.differing)
    findings += of_entries(piece, RECORDS, copies.unreadable)
    return Audited(entries, copies_count, copies.size_bytes, tuple(findings))
