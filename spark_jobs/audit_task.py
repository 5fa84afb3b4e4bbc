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

from broker.log.append.entry_format import HEADER_SIZE, KIND_BATCHES, EntryFormatError, parse_header
from ledger.ledger_check import LedgerChecker
from ledger.network.client import NetworkBookieClient
from pyspark_quire.connection import single_error, start_env
from runtime.env import real_env
from runtime.running import running
from spark_jobs.audit_findings import DIFFERS, RECORDS, Audited, of_entries, of_missing
from wire.bookkeeper.ledger_metadata import parse
from wire.kafka.errors import WireError
from wire.kafka.records.batch import check_crc, scan_batches

if TYPE_CHECKING:
    from spark_jobs.audit_findings import AuditPiece

#: Entries that are looked at together; of each a few numbers are kept until then.
STEP_ENTRIES = 1000


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
        if header.kind != KIND_BATCHES or header.flags:
            return None
        body = payload[HEADER_SIZE:]
        position = 0
        for batch in scan_batches(body):
            if not check_crc(body[position : position + batch.size], batch):
                return f"the checksum of the batch at offset {batch.base_offset} does not match"
            position += batch.size
    except (EntryFormatError, WireError) as error:
        return str(error)
    return None


def check_piece(piece: AuditPiece) -> Audited:
    """LedgerMetadataError if the metadata does not tell how to check a digest. What bookies do not
    answer is `silent`, and no error."""
    try:
        return trio.run(_check, piece)
    except BaseExceptionGroup as group:
        raise single_error(group) from None


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
        started = trio.current_time()
        for first in range(piece.first_entry, piece.last_entry + 1, STEP_ENTRIES):
            last = min(first + STEP_ENTRIES - 1, piece.last_entry)
            found = await checker.check(last, first_entry_id=first)
            entries += found.entries
            copies_count += found.copies
            findings += of_missing(piece, found.missing)
            if piece.bytes_per_second:
                await trio.sleep_until(started + copies.size_bytes / piece.bytes_per_second)
    findings += of_entries(piece, DIFFERS, copies.differing)
    findings += of_entries(piece, RECORDS, copies.unreadable)
    return Audited(entries, copies_count, copies.size_bytes, tuple(findings))
