"""Take-over: from a partition's metadata to a state that can serve (docs/architecture.md).

1. recover (fence and close) the last ledger if it is open; read what its tail holds;
2. rebuild producer state from the newest snapshot and what follows it, and the index of aborted
   transactions of the ledger that was recovered;
3. raise the leader epoch with the compare-and-set that also records the recovered end, and us as
   the owner.

Nothing is served before 3 succeeded. Losing that compare-and-set means that another broker was
quicker: the caller steps back.

One fence is enough. BookKeeper fences the last two where a writer may still be on the
second-last while it adds the last; ours closes a ledger in the ledger's own metadata before it
makes the next, and puts nothing into that before the chain has it. So a writer from before step 3
is either on the ledger that is fenced here, or waits for a compare-and-set that it has lost.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from broker.log.append.entry_format import (
    FLAG_CONTINUES,
    HEADER_SIZE,
    KIND_SNAPSHOT,
    EntryFormatError,
    parse_header,
)
from broker.log.append.producer_state import STEP_PRODUCERS, ProducerState
from broker.log.life.document import read_chain, write_chain
from broker.log.life.ledger_info import NO_TIMESTAMP, TIMESTAMP_MAX, known_minimum
from broker.log.read.closed_ledger import open_closed
from broker.log.read.offset_index import OffsetIndex
from broker.log.read.scan import BATCHES_PER_TURN, ScannedFact, scan
from broker.log.read.segment import Segment
from broker.log.transactions.aborted_scan import AbortedScan
from broker.log.transactions.markers import marker_of
from runtime.logs import kv
from runtime.slices import Slices
from wire.dataclass import dataclass
from wire.kafka.errors import WireError
from wire.kafka.records.batch import TimestampType

if TYPE_CHECKING:
    from broker.cluster.ownership import Incarnation
    from broker.log.life.chain import Chain
    from broker.log.life.ledger_info import LedgerInfo
    from broker.log.settings import LogSettings
    from ledger.client import LedgerClient
    from ledger.reader import LedgerReader
    from metadata.shared_writes import SharedWrites
    from metadata.store import MetadataStore, Node
    from wire.kafka.records.batch import BatchHeader

logger = logging.getLogger(__name__)

SEGMENTS_PER_TURN = 500


@dataclass(frozen=True, slots=True)
class Claim:
    """Which partition, by the path of its document, and the life of a broker that takes it over
    and is its owner from then on."""

    path: str
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class ChainStores:
    """Where chains are: their documents in metadata, their ledgers on bookies; and the limits of
    both. A broker's partitions share one."""

    store: MetadataStore
    ledgers: LedgerClient
    settings: LogSettings
    #: Of the same store; what documents are written by.
    writes: SharedWrites


class TakenOver:
    """What `take_over` gives: the chain as it is now in metadata, and the state of its end."""

    __slots__ = ("chain", "found_deleting", "producers", "segments", "version")

    def __init__(
        self,
        chain: Chain,
        version: int,
        segments: list[Segment],
        producers: ProducerState,
        found_deleting: tuple[int, ...] = (),
    ) -> None:
        self.chain = chain
        #: Ledgers that a former owner left to be deleted.
        self.found_deleting = found_deleting
        self.version = version
        self.segments = segments
        self.producers = producers


async def take_over(
    claim: Claim,
    stores: ChainStores,
    *,
    now_ms: int,
    epoch_min: int = 0,
    node: Node | None = None,
) -> TakenOver:
    """The leader epoch becomes one more than it was, or `epoch_min` if that is more. `node` is the
    partition's document if it was read already; if it is old the compare-and-set is lost.

    NoNodeError if the partition is gone, BadVersionError if another broker was quicker,
    LedgerError if its ledgers cannot be recovered, ChainFormatError."""
    ledgers, settings = stores.ledgers, stores.settings
    before, version = await read_chain(stores.store, claim.path, node)
    chain = before
    producers = ProducerState(producers_max=settings.producers_max)
    recovered: Segment | None = None
    if chain.ledgers and chain.ledgers[-1].is_open:
        chain, recovered = await _recover_last(chain, ledgers, settings, producers, now_ms)
    else:
        await _load_producers(chain, len(chain.ledgers), ledgers, producers, now_ms)
    while producers.expire(now_ms, settings.producer_expiration_ms) >= STEP_PRODUCERS:
        await trio.lowlevel.checkpoint()
    chain = chain.with_epoch(max(chain.leader_epoch + 1, epoch_min), claim.incarnation)
    chain, version = await write_chain(stores.writes, claim.path, before, chain, version, settings)
    segments = []
    slices = Slices(SEGMENTS_PER_TURN)
    for info in chain.ledgers:
        if slices.due():
            await slices.turn()
        segments.append(Segment(info, ledgers, settings))
    if recovered is not None and segments and segments[-1].info == recovered.info:
        segments[-1] = recovered
    return TakenOver(chain, version, segments, producers, before.all_deleting)


async def _recover_last(
    chain: Chain,
    ledgers: LedgerClient,
    settings: LogSettings,
    producers: ProducerState,
    now_ms: int,
) -> tuple[Chain, Segment | None]:
    """Closes the ledger that its writer left open, and learns what it holds."""
    info = chain.ledgers[-1]
    reader = await ledgers.open_ledger(info.ledger_id, recover=True)
    restored = info.snapshot_entry is not None and await _restore(
        reader, info.snapshot_entry, producers
    )
    if not restored:
        await _load_producers(chain, len(chain.ledgers) - 1, ledgers, producers, now_ms)
    replay_from = info.snapshot_entry if restored and info.snapshot_entry is not None else 0
    index = OffsetIndex()
    # What was open at the ledger's start; if a snapshot in it was used, entries before that tell.
    aborted = AbortedScan(info.ledger_id, {} if restored else producers.open_transactions())
    closed = await _scan_tail(reader, info, index, producers, aborted, replay_from, now_ms)
    logger.info(
        "ledger_recovered",
        kv(
            ledger=info.ledger_id,
            base_offset=info.base_offset,
            last_offset=closed.last_offset,
            entries=closed.entry_count,
        ),
    )
    if closed.end_offset == info.base_offset:  # nothing was ever acknowledged in it
        return chain.without_last(), None
    rows = await aborted.index()
    closed = replace(closed, aborted_count=len(rows))
    segment = Segment(closed, ledgers, settings, reader=reader, index=index)
    segment.aborted = rows
    return chain.with_last(closed), segment


async def _scan_tail(
    reader: LedgerReader,
    info: LedgerInfo,
    index: OffsetIndex,
    producers: ProducerState,
    aborted: AbortedScan,
    replay_from: int,
    now_ms: int,
) -> LedgerInfo:
    """Reads the whole ledger once: index, end, timestamps, aborted transactions; producers from
    `replay_from` on.

    Producers count as active now: a record's own timestamp may be anything, and one that expired
    too early would let a retry in twice."""
    end, size = info.base_offset, 0
    max_timestamp, max_timestamp_offset = -1, -1
    min_timestamp = TIMESTAMP_MAX
    entry_id = 0
    slices = Slices(BATCHES_PER_TURN)
    while entry_id <= reader.last_add_confirmed:
        chunk = await scan(reader, entry_id)
        for entry in chunk.in_order():
            if isinstance(entry, ScannedFact):
                if slices.due(aborted.units(entry)):
                    await slices.turn()
                aborted.fact(entry.header, entry.content)
                continue
            index.add(entry.entry_id, entry.header.first_offset, entry.size_bytes, max_timestamp)
            size += entry.size_bytes
            for header, batch in entry.batches():
                if slices.due():
                    await slices.turn()
                marker = marker_of(header, batch) if header.is_control else None
                aborted.batch(header, marker)
                if entry.entry_id >= replay_from:
                    producers.append(header, header.base_offset, now_ms, marker=marker)
                if header.max_timestamp > max_timestamp:
                    max_timestamp = header.max_timestamp
                    max_timestamp_offset = header.base_offset
                min_timestamp = min(min_timestamp, _earliest(header))
                end = header.last_offset + 1
        entry_id = chunk.next_entry_id
    return replace(
        info,
        last_offset=end - 1,
        entry_count=reader.last_add_confirmed + 1,
        size_bytes=size,
        max_timestamp=max_timestamp,
        max_timestamp_offset=max_timestamp_offset,
        min_timestamp=known_minimum(min_timestamp),
    )


def _earliest(header: BatchHeader) -> int:
    """The earliest timestamp of its records as far as the header tells, else NO_TIMESTAMP: any
    record may be earlier than the first, and a take-over does not unpack what is compressed."""
    if header.record_count == 1 or header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return header.max_timestamp
    return NO_TIMESTAMP


async def _load_producers(
    chain: Chain, count: int, ledgers: LedgerClient, producers: ProducerState, now_ms: int
) -> None:
    """The producers' state at the end of the first `count` ledgers: the newest snapshot among
    them, then every batch after it. A closed ledger ends with one, so mostly one entry is read."""
    start = count
    while start > 0:
        info = chain.ledgers[start - 1]
        if info.snapshot_entry is not None:
            reader = await open_closed(ledgers, info)
            if await _restore(reader, info.snapshot_entry, producers):
                await _replay(reader, info.snapshot_entry + 1, producers, now_ms)
                break
        start -= 1
    for info in chain.ledgers[start:count]:
        await _replay(await open_closed(ledgers, info), 0, producers, now_ms)


async def _restore(reader: LedgerReader, entry_id: int, producers: ProducerState) -> bool:
    """Whether the snapshot was there and whole. A recovered ledger may end before it, or in it."""
    parts: list[memoryview] = []
    try:
        while True:
            if entry_id > reader.last_add_confirmed:
                return False
            [payload] = await reader.read(entry_id, count_max=1, size_max=1)
            header = parse_header(payload)
            if header.kind != KIND_SNAPSHOT:
                raise EntryFormatError(f"entry of kind {header.kind} where a snapshot goes on")
            parts.append(payload[HEADER_SIZE:])
            entry_id += 1
            if not header.flags & FLAG_CONTINUES:
                break
        for _ in producers.restoring(parts):
            await trio.lowlevel.checkpoint()
    except (EntryFormatError, WireError, ValueError) as error:
        logger.warning(
            "snapshot_unusable", kv(ledger=reader.ledger_id, entry=entry_id, error=error)
        )
        return False
    return True


async def _replay(
    reader: LedgerReader, entry_id: int, producers: ProducerState, now_ms: int
) -> None:
    slices = Slices(BATCHES_PER_TURN)
    while entry_id <= reader.last_add_confirmed:
        chunk = await scan(reader, entry_id)
        for entry in chunk.entries:
            for header, batch in entry.batches():
                if slices.due():
                    await slices.turn()
                marker = marker_of(header, batch) if header.is_control else None
                producers.append(header, header.base_offset, now_ms, marker=marker)
        entry_id = chunk.next_entry_id
