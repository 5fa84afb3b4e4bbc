"""Committed offsets and what they mean in time, read from ledgers.

Pieces, for an executor or this process: `read_commits(CommitsPiece)` reads some partitions of
`__consumer_offsets` whole and gives the last commit of each key in them; `find_times(TimesPiece)`
gives the time of the first record that is not committed, from the batch that has it: one read of
a few entries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from broker.cluster.topic import OFFSETS_TOPIC, Topic
from pyspark_quire.connection import run_within
from pyspark_quire.partitions import TopicGoneError, read_chains, read_topics, read_view
from pyspark_quire.reading import Range, read_range
from wire.kafka.records.batch import TimestampType, iter_records, scan_batches
from wire.kafka.records.coordinator import (
    OffsetCommitKey,
    OffsetCommitValue,
    decode_group_key,
    decode_value,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark_quire.connection import Connection, Where
    from pyspark_quire.partitions import PartitionView
    from pyspark_quire.reading import Send
    from wire.buffers import Buffer
    from wire.kafka.records.batch import BatchHeader

#: What a piece may take: a partition of offsets is small, since it is compacted.
PIECE_SECONDS = 600.0
BATCH_BYTES_MAX = 1 << 28
NO_TIME = -1


@dataclass(slots=True, frozen=True)
class Committed:
    """`next_timestamp_ms`: of the first record from `offset` on; NO_TIME if it is not known, or
    there is none."""

    group: str
    topic: str
    partition: int
    offset: int
    next_timestamp_ms: int = NO_TIME


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
            try:
                view = await read_view(connection, piece.topic, partition)
            except TopicGoneError:
                continue
            found += await _last_commits(connection, view)
        return found

    return run_within(piece.where, PIECE_SECONDS, work)


async def _last_commits(connection: Connection, view: PartitionView) -> list[Committed]:
    last: dict[tuple[str, str, int], int] = {}

    async def take(bodies: list[Buffer], _position: int) -> None:
        for key, value in _records(bodies):
            parsed = decode_group_key(key)
            if not isinstance(parsed, OffsetCommitKey):
                continue
            place = parsed.group, parsed.topic, parsed.partition
            if value is None:
                last.pop(place, None)
                continue
            commit = decode_value(OffsetCommitValue, value)
            if commit is not None and parsed.partition >= 0:
                last[place] = commit.offset

    await _read(connection, view, view.log_start_offset, view.end_offset, take)
    return [Committed(*place, offset) for place, offset in last.items()]


def _records(bodies: Iterable[Buffer]) -> Iterator[tuple[bytes | None, bytes | None]]:
    for header, batch in _batches(bodies):
        if not header.is_control:
            for record in iter_records(batch, header, size_max=BATCH_BYTES_MAX):
                yield record.key, record.value


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
                each = await _with_time(connection, topic, each)
            found.append(each)
        return found

    return run_within(piece.where, PIECE_SECONDS, work)


async def _with_time(connection: Connection, topic: Topic, committed: Committed) -> Committed:
    try:
        chains = await read_chains(connection.store, topic, [committed.partition])
    except TopicGoneError:
        return committed
    view = await read_view(
        connection, topic, committed.partition, chain=chains[committed.partition]
    )
    start = max(committed.offset, view.log_start_offset)
    if start >= view.end_offset:
        return committed
    times: list[int] = []

    async def take(bodies: list[Buffer], _position: int) -> None:
        times.extend(_first_times(bodies, start))

    # The batch that has the record, or the next one where compaction left a hole.
    await _read(connection, view, start, start + 1, take)
    return replace(committed, next_timestamp_ms=times[0]) if times else committed


def _first_times(bodies: Iterable[Buffer], start: int) -> Iterator[int]:
    for header, batch in _batches(bodies):
        if header.is_control or header.last_offset < start:
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
