"""The driver's work: which partitions, which offsets, which splits.

    looks = await look_at(connection, options, await choose(connection, options))
    splits = await plan(connection, options, ranges)

Everything is of one look at the metadata: a `Look` has the chain as it was read, and where the log
ends. A plan that meets a ledger that is gone by then is made anew by the caller (`StalePlanError`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import trio

from broker.log.read.segment import Segment
from broker.log.settings import LogSettings
from ledger.errors import NoSuchLedgerError
from ledger.metadata import Versioned, ledger_path
from pyspark_quire.choose_core import StalePlanError, checked_range, chosen, for_each, resolved
from pyspark_quire.connection import Where, run_within
from pyspark_quire.leader_ends import leader_ends
from pyspark_quire.offsets_json import EARLIEST
from pyspark_quire.partitions import read_chains, read_topics, read_view
from pyspark_quire.plan_core import (
    Slots,
    SplitRules,
    cut,
    cuts_ledgers,
    interleaved,
    parts_of,
    split_counts,
)
from pyspark_quire.reading import read_index
from pyspark_quire.splits import LedgerFacts, Split
from pyspark_quire.transactions import read_committed
from wire.bookkeeper.ledger_metadata import parse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

    from broker.cluster.topic import Topic
    from ledger.reader import LedgerReader
    from pyspark_quire.connection import Connection
    from pyspark_quire.options_core import Border, ReadOptions
    from pyspark_quire.partitions import PartitionView
    from pyspark_quire.plan_core import Part
    from pyspark_quire.transactions import Committed

#: A plan is made again when a ledger vanished under it.
PLANS_MAX = 3
#: Ledgers, or partitions, that are looked at at the same time.
AT_ONCE = 32
METADATA_BATCH = 100


@dataclass(slots=True)
class Look:
    """`end_offset`: as far as this query may read: the last stable offset with read_committed."""

    view: PartitionView
    committed: Committed | None
    end_offset: int

    @property
    def place(self) -> tuple[str, int]:
        return self.view.topic.name, self.view.partition


@dataclass(slots=True, frozen=True)
class OffsetRange:
    look: Look
    start: int
    end: int


async def choose(connection: Connection, options: ReadOptions) -> list[tuple[Topic, int]]:
    """UnknownTopicError, MetadataError."""
    return chosen(await read_topics(connection.store), options.which)


async def look_at(
    connection: Connection, options: ReadOptions, partitions: Sequence[tuple[Topic, int]]
) -> list[Look]:
    """TopicGoneError, LedgerError, MetadataError, ChainFormatError; errors of `leader_ends`."""
    ends: dict[tuple[str, int], int] = {}
    if "bootstrap.servers" in options.kafka:
        ask = partial(
            leader_ends,
            options.kafka,
            [(topic.name, n) for topic, n in partitions],
            read_committed=options.read_committed,
            timeout_ms=options.metadata_timeout_ms,
        )
        ends = await trio.to_thread.run_sync(ask, abandon_on_cancel=True)
        for topic in {topic for topic, _ in partitions}:
            await connection.store.sync(f"/quire/topics/{topic.name}")
    return await _looks(
        connection, options, partitions, ends, needs_end="bootstrap.servers" not in options.kafka
    )


async def look_until(
    connection: Connection, options: ReadOptions, ends: dict[tuple[Topic, int], int]
) -> list[Look]:
    """As `look_at`, up to ends that an earlier look found: they were confirmed by then. Asks no
    leader."""
    by_place = {(topic.name, n): end for (topic, n), end in ends.items()}
    return await _looks(connection, options, list(ends), by_place, needs_end=False)


async def _looks(
    connection: Connection,
    options: ReadOptions,
    partitions: Sequence[tuple[Topic, int]],
    ends: dict[tuple[str, int], int],
    *,
    needs_end: bool,
) -> list[Look]:
    chains = {}
    for topic in dict.fromkeys(topic for topic, _ in partitions):
        numbers = [n for each, n in partitions if each is topic]
        for number, chain in (await read_chains(connection.store, topic, numbers)).items():
            chains[topic.name, number] = chain
    looks: list[Look | None] = [None] * len(partitions)
    limiter = trio.CapacityLimiter(AT_ONCE)

    async def one(position: int, topic: Topic, number: int) -> None:
        place = topic.name, number
        async with limiter:
            view = await read_view(
                connection, topic, number, chain=chains[place], high_watermark=ends.get(place)
            )
            committed = None
            if options.read_committed:
                committed = await read_committed(connection, view, needs_end=needs_end)
            last = view.end_offset if committed is None else committed.end_offset
            looks[position] = Look(view, committed, last)

    async with trio.open_nursery() as nursery:
        for position, (topic, number) in enumerate(partitions):
            nursery.start_soon(one, position, topic, number)
    return [look for look in looks if look is not None]


async def borders(
    connection: Connection, options: ReadOptions, looks: Sequence[Look], *, is_start: bool
) -> dict[tuple[str, int], int]:
    """Where to start or to end in each partition. ValueError if an option is not of these
    partitions, or no record has such a time; LedgerError."""
    border = options.starting if is_start else options.ending
    name = "startingOffsets" if is_start else "endingOffsets"
    places = [look.place for look in looks]
    times = _times(border, name, places)
    if times is not None:
        return {
            look.place: await _at_time(
                connection, look, times[look.place], options, is_start=is_start
            )
            for look in looks
        }
    offsets = dict.fromkeys(places, border.offset if border.offset is not None else EARLIEST)
    if border.offsets is not None:
        offsets = for_each(name, border.offsets, places)
    return {
        look.place: resolved(offsets[look.place], look.view.log_start_offset, look.end_offset)
        for look in looks
    }


def _times(
    border: Border, name: str, places: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], int] | None:
    if border.timestamp is not None:
        return dict.fromkeys(places, border.timestamp)
    if border.timestamps is not None:
        return for_each(f"{name}ByTimestamp", border.timestamps, places)
    return None


async def _at_time(
    connection: Connection, look: Look, time_ms: int, options: ReadOptions, *, is_start: bool
) -> int:
    """The offset of the first record of that time or later, as ListOffsets has it."""
    view = look.view
    for info in view.chain.ledgers:
        if not info.is_open and info.max_timestamp < time_ms:
            continue
        reader = view.reader if info.is_open else None
        segment = Segment(info, connection.ledgers, LogSettings(), reader=reader)
        found = await segment.find_timestamp(time_ms, view.log_start_offset)
        if found is not None and found[0] < look.end_offset:
            return found[0]
    if is_start and not options.unmatched_is_latest:
        raise ValueError(
            f"No offset matched from request of topic-partition {view.name} and timestamp"
            f" {time_ms}."
        )
    return look.end_offset


def planned(
    options: ReadOptions, work: Callable[[Connection], Awaitable[list[Split]]]
) -> list[Split]:
    """What `work` plans on a connection of its own, from code that is not async; anew if a ledger
    vanished under it. What `work` raises; UnreachableError."""
    where = Where(options.metadata, options.bookkeeper)
    for left in reversed(range(PLANS_MAX)):
        try:
            return run_within(where, options.metadata_timeout_ms / 1000, work)
        except (StalePlanError, NoSuchLedgerError):
            if not left:
                raise
    raise AssertionError("the last plan returns or raises")


def batch_splits(options: ReadOptions) -> list[Split]:
    """Of a whole batch query, from code that is not async. Errors as of `plan_batch`."""
    return planned(options, lambda connection: plan_batch(connection, options))


async def plan_batch(connection: Connection, options: ReadOptions) -> list[Split]:
    """What `read` of a whole batch query does. All errors of the above; DataLossError."""
    looks = await look_at(connection, options, await choose(connection, options))
    starts = await borders(connection, options, looks, is_start=True)
    ends = await borders(connection, options, looks, is_start=False)
    ranges = []
    for look in looks:
        start, end = checked_range(
            look.view.name,
            starts[look.place],
            ends[look.place],
            first=look.view.log_start_offset,
            last=look.end_offset,
            fails_on_data_loss=options.fails_on_data_loss,
        )
        ranges.append(OffsetRange(look, start, end))
    return await plan(connection, options, ranges)


async def plan(
    connection: Connection, options: ReadOptions, ranges: Sequence[OffsetRange]
) -> list[Split]:
    """The splits of these ranges, in the order in which they are to run. StalePlanError,
    LedgerError, MetadataError."""
    rules = SplitRules(
        options.min_partitions,
        options.max_records_per_partition,
        options.max_bytes_per_partition,
    )
    parts = [
        parts_of(
            each.look.view.chain.ledgers,
            each.start,
            each.end,
            min_timestamp=options.min_timestamp,
            max_timestamp=options.max_timestamp,
        )
        for each in ranges
    ]
    counts = split_counts(parts, rules)
    open_readers = {
        each.look.view.reader.ledger_id: each.look.view.reader
        for each in ranges
        if each.look.view.reader is not None
    }
    facts = await ledger_facts(
        connection, {part.ledger_id for run in parts for part in run}, open_readers
    )
    slots = await _slots(connection, ranges, parts, counts, facts)
    runs = [
        cut(of_partition, count, slots, max_records=options.max_records_per_partition)
        for of_partition, count in zip(parts, counts, strict=True)
    ]
    addresses = connection.addresses()
    return [
        await _split(ranges[number].look, run, facts, addresses)
        for number, run in interleaved(runs)
    ]


async def _split(
    look: Look,
    run: list[Part],
    facts: dict[int, LedgerFacts],
    addresses: dict[str, tuple[str, int]],
) -> Split:
    start, end = run[0].start, run[-1].end
    ledgers = {part.ledger_id: facts[part.ledger_id] for part in run}
    bookies = {
        bookie
        for each in ledgers.values()
        for _, ensemble in parse(each.metadata).segments
        for bookie in ensemble
    }
    aborted = [] if look.committed is None else await look.committed.aborted(start, end)
    topic = look.view.topic
    return Split(
        topic.name,
        str(topic.id),
        look.view.partition,
        start,
        end,
        tuple(run),
        ledgers,
        {bookie: addresses[bookie] for bookie in sorted(bookies) if bookie in addresses},
        tuple(aborted),
    )


async def ledger_facts(
    connection: Connection,
    ledger_ids: Collection[int],
    open_readers: dict[int, LedgerReader],
) -> dict[int, LedgerFacts]:
    """StalePlanError if one is gone; MetadataError."""
    ids = sorted(ledger_ids)
    found = {}
    for start in range(0, len(ids), METADATA_BATCH):
        chunk = ids[start : start + METADATA_BATCH]
        paths = [ledger_path(connection.root, ledger_id) for ledger_id in chunk]
        for ledger_id, node in zip(chunk, await connection.store.get_many(paths), strict=True):
            if node is None:
                raise StalePlanError(f"ledger {ledger_id} was deleted meanwhile")
            reader = open_readers.get(ledger_id)
            last_entry = -1 if reader is None else reader.last_add_confirmed
            found[ledger_id] = LedgerFacts(node.data, node.version, last_entry)
    return found


async def _slots(
    connection: Connection,
    ranges: Sequence[OffsetRange],
    parts: Sequence[Sequence[Part]],
    counts: Sequence[int],
    facts: dict[int, LedgerFacts],
) -> dict[int, Slots]:
    """The offset indexes of the ledgers that are cut."""
    entries = {
        info.ledger_id: info.index_entry
        for each in ranges
        for info in each.look.view.chain.ledgers
        if info.index_entry is not None and not info.is_open
    }
    wanted: Iterable[int] = {
        ledger_id
        for run, count in zip(parts, counts, strict=True)
        for ledger_id in cuts_ledgers(run, count)
        if ledger_id in entries
    }
    found: dict[int, Slots] = {}
    limiter = trio.CapacityLimiter(AT_ONCE)

    async def one(ledger_id: int) -> None:
        async with limiter:
            each = facts[ledger_id]
            versioned = Versioned(parse(each.metadata), each.version)
            reader = connection.ledgers.reader_of(ledger_id, versioned, each.last_entry)
            try:
                index = await read_index(reader, entries[ledger_id])
            except NoSuchLedgerError as error:
                raise StalePlanError(str(error)) from error
            found[ledger_id] = Slots(*index.columns())

    async with trio.open_nursery() as nursery:
        for ledger_id in sorted(wanted):
            nursery.start_soon(one, ledger_id)
    return found
