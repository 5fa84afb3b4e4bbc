"""Reads partitions from their leaders, a part at a time, for `quire locks`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from quire.tools.groups.client import check
from wire.kafka.errors import WireError
from wire.kafka.messages import FetchRequest, ListOffsetsRequest, MetadataRequest
from wire.kafka.messages.fetch import FetchPartition, FetchTopic
from wire.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsTopic
from wire.kafka.messages.metadata import MetadataRequestTopic
from wire.kafka.records.batch import iter_records, scan_batches

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from quire.tools.groups.client import Address, KafkaClient
    from wire.kafka.records.record import Record

METADATA, LIST_OFFSETS, FETCH = 12, 6, 11
EARLIEST, LATEST = -2, -1
PART_BYTES = 4 << 20
#: Of one batch, unpacked: none that a broker takes is larger.
BATCH_BYTES_MAX = 1 << 30


class Bounds(NamedTuple):
    """Of a partition: its leader, its first offset, and where what any reader may see ends."""

    partition: int
    leader: Address
    first: int
    end: int


def bounds(client: KafkaClient, name: str) -> tuple[str, list[Bounds]]:
    """The topic that `name` is, TOPIC or TOPIC-N, and its partitions, or the one. A topic of the
    whole name comes first. ClickException, also if one of them has no leader: what was not read is
    not to be told as valid."""
    topic, _, number = name.rpartition("-")
    leaders = _leaders(client, name)
    only = None
    if leaders is None and topic and number.isascii() and number.isdigit():
        name, only, leaders = topic, int(number), _leaders(client, topic)
    if leaders is None:
        raise click.ClickException(f"there is no topic {name}")
    wanted = sorted(leaders) if only is None else [only]
    return name, [_bounds(client, name, partition, leaders.get(partition)) for partition in wanted]


def _bounds(client: KafkaClient, topic: str, partition: int, leader: Address | None) -> Bounds:
    if leader is None:
        raise click.ClickException(f"{topic}-{partition} is not there, or has no leader")
    first, end = (_offset(client, leader, topic, partition, which) for which in (EARLIEST, LATEST))
    return Bounds(partition, leader, first, end)


def _leaders(client: KafkaClient, topic: str) -> dict[int, Address | None] | None:
    """Of all partitions, None for one without; None: there is no such topic."""
    body = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    answer = client.ask(client.bootstrap, body, METADATA)
    brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
    (found,) = answer.topics
    if found.error_code:
        return None
    return {each.partition_index: brokers.get(each.leader_id) for each in found.partitions}


def _offset(client: KafkaClient, leader: Address, topic: str, partition: int, which: int) -> int:
    asked = ListOffsetsTopic(topic, [ListOffsetsPartition(partition, timestamp=which)])
    answer = client.ask(leader, ListOffsetsRequest(replica_id=-1, topics=[asked]), LIST_OFFSETS)
    (result,) = answer.topics[0].partitions
    check(result.error_code, f"{topic}-{partition}")
    offset: int = result.offset
    return offset


def read(client: KafkaClient, topic: str, of: Bounds) -> Iterator[tuple[int, Record]]:
    """(offset, record) of all that was there when its bounds were asked for, without markers of
    transactions. ClickException."""
    at = of.first
    while at < of.end:
        data = fetch(client, topic, of, at)
        try:
            reached = yield from records_in(data, at, of.end)
        except WireError as error:
            raise click.ClickException(f"{topic}-{of.partition} at {at}: {error}") from error
        if reached == at:
            raise click.ClickException(f"{topic}-{of.partition} at {at}: nothing more comes")
        at = reached


def fetch(
    client: KafkaClient, topic: str, of: Bounds, at: int, *, wait_ms: int = 500
) -> memoryview:
    """Batches from the one that has offset `at`; none if none came in the time. ClickException."""
    asked = FetchPartition(partition=of.partition, fetch_offset=at, partition_max_bytes=PART_BYTES)
    body = FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=[asked])]
    )
    answer = client.ask(of.leader, body, FETCH)
    check(answer.error_code, topic)
    result = answer.responses[0].partitions[0]
    check(result.error_code, f"{topic}-{of.partition} at {at}")
    return memoryview(bytes(result.records or b""))


def records_in(data: memoryview, first: int, end: int) -> Generator[tuple[int, Record], None, int]:
    """(offset, record) from `first` up to `end`; returns the offset behind the last batch, or
    `first`. WireError."""
    place, reached = 0, first
    for header in scan_batches(data):
        batch = data[place : place + header.size]
        place += header.size
        reached = header.last_offset + 1
        if header.is_control:
            continue
        for record in iter_records(batch, header, size_max=BATCH_BYTES_MAX):
            offset = header.base_offset + record.offset_delta
            if first <= offset < end:
                yield offset, record
    return reached
