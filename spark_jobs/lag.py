"""Committed offsets and what they mean in time, read from ledgers.

Pieces, for an executor or this process: `read_commits(CommitsPiece)` reads some partitions of
`__consumer_offsets` whole and gives the last commit of each key in them; `find_times(TimesPiece)`
gives the time of the first record that is not committed, from the batch that has it: one read of
a few entries.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from broker.cluster.topic import OFFSETS_TOPIC, Topic
from ledger.errors import NoSuchLedgerError
from pyspark_quire.connection import run_within
from pyspark_quire.partitions import TopicGoneError, document_path, read_topics, read_view
from pyspark_quire.reading import Range, read_range
from spark_jobs.last_commits import BATCH_BYTES_MAX, LastCommits
from wire.kafka.records.batch import TimestampType, iter_records, scan_batches

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from pyspark_quire.connection import Connection, Where
    from pyspark_quire.partitions import PartitionView
    from pyspark_quire.reading import Send
    from wire.buffers import Buffer
    from wire.kafka.records.batch import BatchHeader

#: What a piece may take: a partition of offsets is small, since it is compacted.
PIECE_SECONDS = 600.0
NO_TIME = -1
LOOKS_MAX = 3

R = TypeVar("R")


@dataclass(slots=True, frozen=True)
class Committed:
    """`next_timestamp_ms`: of the first record from `offset` on; NO_TIME if it is not known, or
    there is none."""

    group: str
    topic: str
    partition: int
    offset: int
    next_timestamp_ms: int = NO_TIME


class _Found(Exception):  # no error
    """Enough was read."""


@dataclass(slots=True, frozen=True)
class CommitsPiece:
    where: Where
    topic: Topic
    partitions: tuple[int, ...]


@dataclass(slots=True, frozen=True)
class TimesPiece:
    where: Where
    committed: tuple[Committed, ...]


def read_commits(piece: CommitsPiece) -> list[Committed]:
    """LedgerError, MetadataError, UnreachableError."""

    async def work(connection: Connection) -> list[Committed]:
        found: list[Committed] = []
        for partition in piece.partitions:
            look = partial(_commits_of, connection, piece.topic, partition)
            found += await _looked_again(look)
        return found

    return run_within(piece.where, PIECE_SECONDS, work)


async def _looked_again(look: Callable[[], Awaitable[R]]) -> R:
    """Anew if a ledger is gone that the chain had: the cleaner or retention took it meanwhile, and
    what took its place is in the chain now."""
    for _ in range(LOOKS_MAX - 1):
        with suppress(NoSuchLedgerError):
            return await look()
    return await look()


async def _commits_of(connection: Connection, topic: Topic, partition: int) -> list[Committed]:
    try:
        await connection.store.sync(document_path(topic, partition))
        view = await read_view(connection, topic, partition)
    except TopicGoneError:
        return []
    return await _last_commits(connection, view)


async def _last_commits(connection: Connection, view: PartitionView) -> list[Committed]:
    commits = LastCommits()

    async def take(bodies: list[Buffer], _position: int) -> None:
        for header, batch in _batches(bodies):
            commits.feed(header, batch)

    await _read(connection, view, view.log_start_offset, view.end_offset, take)
    return [Committed(*place, offset) for place, offset in commits.found().items()]


def _batches(bodies: Iterable[Buffer]) -> Iterator[tuple[BatchHeader, memoryview]]:
    for body in bodies:
        view, position = memoryview(body), 0
        for header in scan_batches(view):
            yield header, view[position : position + header.size]
            position += header.size


async def _read(
    connection: Connection, view: PartitionView, start: int, end: int, take: Send
) -> None:
    for info in view.chain.ledgers:
        last = end if info.is_open else min(info.end_offset, end)
        first = max(info.base_offset, start)
        if first >= last:
            continue
        reader = view.reader if info.is_open else None
        if reader is None:
            reader = await connection.ledgers.open_ledger(info.ledger_id, recover=False)
        await read_range(reader, Range(first, last, info.is_compacted), take)


def find_times(piece: TimesPiece) -> list[Committed]:
    """The same, with times where a record waits. LedgerError, MetadataError, UnreachableError."""

    async def work(connection: Connection) -> list[Committed]:
        topics = await read_topics(connection.store)
        found = []
        for each in piece.committed:
            topic = topics.get(each.topic)
            if topic is not None and each.partition < topic.partition_count:
                each = await _looked_again(partial(_with_time, connection, topic, each))
            found.append(each)
        return found

    return run_within(piece.where, PIECE_SECONDS, work)


async def _with_time(connection: Connection, topic: Topic, committed: Committed) -> Committed:
    try:
        view = await read_view(connection, topic, committed.partition)
    except TopicGoneError:
        return committed
    start = max(committed.offset, view.log_start_offset)
    if start >= view.end_offset:
        return committed
    times: list[int] = []

    async def take(bodies: list[Buffer], _position: int) -> None:
        times.extend(_first_times(bodies, start))
        if times:
            raise _Found

    # The batch that has the record, or the next one where compaction left a hole or a marker is.
    with suppress(_Found):
        await _read(connection, view, start, view.end_offset, take)
    return replace(committed, next_timestamp_ms=times[0]) if times else committed


def _first_times(bodies: Iterable[Buffer], start: int) -> Iterator[int]:
    for header, batch in _batches(bodies):
        if header.is_control or header.last_offset < start or not header.record_count:
            continue
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            yield header.max_timestamp
            return
        for record in iter_records(batch, header, size_max=BATCH_BYTES_MAX):
            if header.base_offset + record.offset_delta >= start:
                yield header.base_timestamp + record.timestamp_delta
                return


def commit_pieces(where: Where, topic: Topic | None, count: int) -> list[CommitsPiece]:
    """Of `__consumer_offsets`, if that is there; `count` at most."""
    if topic is None:
        return []
    assert topic.name == OFFSETS_TOPIC
    numbers = range(topic.partition_count)
    return [
        CommitsPiece(where, topic, tuple(numbers[start::count]))
        for start in range(min(count, topic.partition_count))
    ]


def times_pieces(where: Where, committed: Sequence[Committed], count: int) -> list[TimesPiece]:
    return [
        TimesPiece(where, tuple(committed[start::count]))
        for start in range(min(count, len(committed)))
    ]
