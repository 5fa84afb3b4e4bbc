"""`quire-spark audit`: every copy of every entry of every ledger, on each bookie of its write set.

The driver plans from the ledgers' own metadata, those that no partition names included, in pieces
of bounded bytes; a piece is looked at on all its bookies, so that copies are compared where they
are read. A ledger that is open is looked at as far as it is confirmed. A ledger that is deleted
while the audit runs is left out, and so is a copy that was moved to another bookie: that it is gone
is no fault.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from broker.log.life.chain import ChainFormatError
from ledger.errors import LedgerError, NoSuchLedgerError
from ledger.ledger_walk import walk_ledger_ids
from ledger.metadata import ledger_path
from pyspark_quire.connection import run_within
from pyspark_quire.partitions import TopicGoneError, document_path, read_chains
from spark_jobs.audit_findings import SILENT, AuditPiece, cut, is_expected, joined
from spark_jobs.audit_task import check_piece
from spark_jobs.facts import METADATA_BATCH, read_facts
from wire.bookkeeper.ledger_metadata import MetadataFormatError, parse, serialize

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping

    from pyspark_quire.connection import Connection, Where
    from spark_jobs.audit_findings import Finding
    from spark_jobs.facts import ClusterFacts
    from spark_jobs.runner import Run
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

#: Of one copy: a task's work is this, times the copies.
PIECE_BYTES = 256 << 20
PLAN_SECONDS = 600.0
APPLICATION = b"quire"


@dataclass(slots=True)
class Plan:
    pieces: list[AuditPiece] = field(default_factory=list)
    #: Ledgers that cannot be looked at, with the reason.
    unreadable: dict[int, str] = field(default_factory=dict)
    #: Partitions whose ledgers are not known, in words.
    problems: list[str] = field(default_factory=list)
    ledgers: int = 0

    @property
    def entries(self) -> int:
        return sum(piece.entry_count for piece in self.pieces)


@dataclass(slots=True)
class AuditReport:
    ledgers: int
    entries: int = 0
    copies: int = 0
    bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    unreadable: dict[int, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def has_faults(self) -> bool:
        """Whether a copy is certain to be bad."""
        return any(each.verdict != SILENT for each in self.findings)

    @property
    def is_whole(self) -> bool:
        """Whether all was looked at."""
        if self.unreadable or self.problems:
            return False
        return all(each.verdict != SILENT for each in self.findings)


@dataclass(slots=True, frozen=True)
class AuditOptions:
    """`topics`, `ledgers`: only these, all if neither is given. `piece_bytes`: of one copy.
    `bytes_per_second`: what a task reads at most; 0: as quickly as it can."""

    topics: tuple[str, ...] = ()
    ledgers: tuple[int, ...] = ()
    piece_bytes: int = PIECE_BYTES
    bytes_per_second: int = 0


def make_audit(
    where: Where, run: Run, options: AuditOptions, start: Callable[[int], Callable[[int], None]]
) -> AuditReport:
    """`start(entries)` gives what is told of each piece's entries. ClickException, LedgerError,
    MetadataError, UnreachableError."""
    plan = run_within(where, PLAN_SECONDS, lambda connection: make_plan(connection, where, options))
    report = AuditReport(plan.ledgers, unreadable=plan.unreadable, problems=plan.problems)
    step = start(plan.entries)
    findings: list[Finding] = []
    for piece, audited in run(check_piece, plan.pieces):
        report.entries += audited.entries
        report.copies += audited.copies
        report.bytes += audited.bytes
        findings += audited.findings
        step(piece.entry_count)
    doubted = {each.ledger for each in findings}
    if doubted:
        now = run_within(where, PLAN_SECONDS, lambda connection: _metadata_of(connection, doubted))
        findings = [
            each for each in findings if each.ledger in now and is_expected(each, now[each.ledger])
        ]
    report.findings = joined(findings)
    return report


async def make_plan(connection: Connection, where: Where, options: AuditOptions) -> Plan:
    plan = Plan()
    only = set(options.ledgers)
    if options.topics or not only:
        facts = await read_facts(connection, options.topics)
        plan.problems = facts.problems
        plan.unreadable = await _lost(connection, facts)
        if options.topics:
            only |= {each.info.ledger_id for each in facts.ledgers}
    addresses = connection.addresses()
    seen = set()
    async for ledger_id, data in _ledgers(connection, only if options.topics or only else None):
        seen.add(ledger_id)
        try:
            plan.pieces += await _pieces(connection, where, options, addresses, ledger_id, data)
        except NoSuchLedgerError:
            continue  # deleted meanwhile
        except (LedgerError, ValueError) as error:
            plan.unreadable[ledger_id] = str(error)
        plan.ledgers += 1
    for ledger_id in set(options.ledgers) - seen:
        plan.unreadable[ledger_id] = "there is no such ledger"
    return plan


async def _pieces(
    connection: Connection,
    where: Where,
    options: AuditOptions,
    addresses: Mapping[str, tuple[str, int]],
    ledger_id: int,
    data: bytes,
) -> list[AuditPiece]:
    """Of one ledger, whose stored metadata are `data`. ValueError: they do not tell what to check;
    LedgerError: its end could not be asked for."""
    metadata, size_bytes = parse(data), 0
    last_entry = metadata.last_entry_id
    if metadata.is_closed:
        size_bytes = metadata.length
    else:
        # As far as it is confirmed, which nobody fences; of its bytes nobody has counted.
        # Where its entries are may have changed since, with what is confirmed.
        reader = await connection.ledgers.open_ledger(ledger_id, recover=False)
        metadata, last_entry = reader.metadata, reader.last_add_confirmed
        data = serialize(metadata)
    if metadata.digest_type is None or metadata.password is None:
        raise MetadataFormatError("its metadata does not tell how to check a digest")
    named = {bookie for _, ensemble in metadata.segments for bookie in ensemble}
    places = tuple((b, *addresses[b]) for b in sorted(named) if b in addresses)
    return [
        AuditPiece(
            *(where, ledger_id, _owner(metadata), data, first, last, places),
            is_ours=metadata.custom_metadata.get("application") == APPLICATION,
            bytes_per_second=options.bytes_per_second,
        )
        for first, last in cut(last_entry, size_bytes, options.piece_bytes)
    ]


async def _ledgers(
    connection: Connection, only: Collection[int] | None
) -> AsyncIterator[tuple[int, bytes]]:
    """Id and stored metadata of all ledgers, or of those."""
    if only is not None:
        async for each in _read(connection, sorted(only)):
            yield each
        return
    async with aclosing(walk_ledger_ids(connection.store, connection.root)) as portions:
        async for ids in portions:
            async for each in _read(connection, list(ids)):
                yield each


async def _read(connection: Connection, ids: list[int]) -> AsyncIterator[tuple[int, bytes]]:
    for start in range(0, len(ids), METADATA_BATCH):
        chunk = ids[start : start + METADATA_BATCH]
        nodes = await connection.store.get_many([ledger_path(connection.root, i) for i in chunk])
        for ledger_id, node in zip(chunk, nodes, strict=True):
            if node is not None:
                yield ledger_id, node.data


async def _lost(connection: Connection, facts: ClusterFacts) -> dict[int, str]:
    """Ledgers that a partition names still, and that have no metadata: nobody finds their copies;
    or whose metadata have fewer entries than the partition has in them. One that retention or the
    cleaner took is not named any more when its metadata go."""
    found = {}
    for each in facts.ledgers:
        metadata, info = each.metadata, each.info
        if metadata is not None:
            if metadata.is_closed and metadata.last_entry_id + 1 < info.entry_count:
                found[info.ledger_id] = (
                    f"{each.name} has {info.entry_count} entries in it, and by its metadata it ends"
                    f" with entry {metadata.last_entry_id}"
                )
            continue
        if each.raw:
            continue
        await connection.store.sync(document_path(each.topic, each.partition))
        try:
            chains = await read_chains(connection.store, each.topic, [each.partition])
        except (TopicGoneError, ChainFormatError):
            continue
        ledger_id = each.info.ledger_id
        named = any(info.ledger_id == ledger_id for info in chains[each.partition].ledgers)
        if named and not [None async for _ in _read(connection, [ledger_id])]:
            found[ledger_id] = f"{each.name} has it, and there are no metadata of it"
    return found


def _owner(metadata: LedgerMetadata) -> str:
    custom = metadata.custom_metadata
    topic, partition = custom.get("topic"), custom.get("partition")
    if topic is not None and partition is not None:
        return f"{topic.decode(errors='replace')}-{partition.decode(errors='replace')}"
    return custom.get("application", b"").decode(errors="replace")


async def _metadata_of(
    connection: Connection, ids: Collection[int]
) -> dict[int, LedgerMetadata | None]:
    """Of those that are there; None: they cannot be read."""
    found: dict[int, LedgerMetadata | None] = {}
    async for ledger_id, data in _read(connection, sorted(ids)):
        try:
            found[ledger_id] = parse(data)
        except MetadataFormatError:
            found[ledger_id] = None
    return found
