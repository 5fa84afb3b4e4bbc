"""Which partitions a read is of, and at which offsets it starts and ends, as far as that needs no
look at the log. As Spark's KafkaOffsetReaderAdmin. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pyspark_quire.offsets_json import EARLIEST, LATEST
from pyspark_quire.topic_pattern import matcher

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from broker.cluster.topic import Topic
    from pyspark_quire.offsets_json import PerPartition
    from pyspark_quire.options_core import Which

V = TypeVar("V")


class DataLossError(Exception):
    """Records that the query asks for are not there any more; names topic, partition, offsets."""


class StalePlanError(Exception):
    """The metadata were others while a plan was made: a ledger was deleted, or closed."""


class UnknownTopicError(Exception):
    """A topic or partition that was named is not there; says which."""


def chosen(topics: Mapping[str, Topic], which: Which) -> list[tuple[Topic, int]]:
    """In the order of topics and partitions. UnknownTopicError for what is named and is not there;
    a pattern may match nothing, and never matches internal topics."""
    if which.pattern is not None:
        matches = matcher(which.pattern)
        names = [n for n, t in topics.items() if not t.internal and matches(n)]
        return _all_of(topics, names)
    if which.subscribe is not None:
        return _all_of(topics, dict.fromkeys(which.subscribe))
    assert which.assign is not None
    found = []
    for name, partitions in sorted(which.assign.items()):
        topic = _topic(topics, name)
        for partition in sorted(set(partitions)):
            if not 0 <= partition < topic.partition_count:
                raise UnknownTopicError(f"topic {name} has no partition {partition}")
            found.append((topic, partition))
    return found


def _all_of(topics: Mapping[str, Topic], names: Collection[str]) -> list[tuple[Topic, int]]:
    found = [_topic(topics, name) for name in sorted(names)]
    return [(topic, partition) for topic in found for partition in range(topic.partition_count)]


def _topic(topics: Mapping[str, Topic], name: str) -> Topic:
    if name not in topics:
        raise UnknownTopicError(f"topic {name} is not there")
    return topics[name]


def for_each(
    option: str, given: PerPartition, partitions: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """What `option` says of each of the partitions that are read. ValueError unless it is of
    exactly these."""
    found = {(topic, n): value for topic, each in given.items() for n, value in each.items()}
    if found.keys() != set(partitions):
        told = sorted(f"{topic}-{n}" for topic, n in found)
        read = sorted(f"{topic}-{n}" for topic, n in partitions)
        raise ValueError(
            f"If {option} contains specific values, you must specify all TopicPartitions. Use -1"
            f" for latest, -2 for earliest. Specified: {told} Assigned: {read}"
        )
    return found


def resolved(offset: int, first: int, end: int) -> int:
    """EARLIEST and LATEST stand for an offset. What bookies know as the end may be before the
    start: records are deleted up to an end that only the broker knows to be confirmed."""
    return {EARLIEST: first, LATEST: max(first, end)}.get(offset, offset)


def checked_range(
    name: str, start: int, end: int, *, first: int, last: int, fails_on_data_loss: bool
) -> tuple[int, int]:
    """`start` to `end` of a log that has offsets from `first` to `last`, the latter excluded.
    DataLossError if there is less than was asked for and that is to fail."""
    if start < first or end > last:
        if fails_on_data_loss and start < end:
            raise DataLossError(
                f"{name}: offsets {start} to {end} are asked for, and the log has {first} to"
                f" {last}. Some data may have been lost. Set failOnDataLoss to false to go on"
                " with what is there"
            )
        start, end = max(start, first), min(end, last)
    return start, max(start, end)
