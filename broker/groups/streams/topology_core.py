"""What follows from a topology and the topics that there are: how many tasks each subtopology has,
which internal topics are missing and with how many partitions, or why nothing can be assigned
(Kafka's `InternalTopicManager`). Pure.

- A repartition topic whose partitions are not given has as many as the widest topic that the
  subtopologies read which write to it. Those may be repartition topics themselves, so they are
  decided along the topology; if they are in a circle, by what is known of it.
- Topics that are joined (copartition groups) have equally many partitions: as many as the topics
  that are not ours to make, or as those that say how many, or as the widest.
- A changelog topic has as many as the widest topic that its subtopology reads, and so many tasks
  there are.

Deviations: a topology that comes to more than TASKS_MAX tasks, or READ_MAX partitions that are
read, is INCORRECTLY_PARTITIONED_TOPICS; Kafka has no limit. Kafka decides repartition topics in
passes over the subtopologies, so that a topic with several writers may be decided by the first that
is known; here it waits for all of them.
"""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import field
from typing import TYPE_CHECKING

from broker.groups.streams.types import (
    GroupError,
    InternalTopic,
    Status,
    StatusCode,
    Subtopology,
    Topics,
    Topology,
)
from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

#: Names of topics that a message tells, at most.
NAMES_TOLD = 10
#: Tasks that a topology may come to: a member that has all of them is brought to its target in some
#: 3 ms. And partitions that they read.
TASKS_MAX = 10_000
READ_MAX = 100_000


@dataclass(slots=True, frozen=True)
class ConfiguredSubtopology:
    """`read`: partition counts of the topics that its tasks read."""

    subtopology: Subtopology
    task_count: int
    read: Mapping[str, int]
    repartition: tuple[InternalTopic, ...]
    changelog: tuple[InternalTopic, ...]


@dataclass(slots=True, frozen=True)
class Configured:
    """A topology in this cluster. `problem`: why there can be no assignment now; internal topics
    that are `missing` are one. Without `subtopologies` their counts are not known.
    `metadata_hash`: of the topics that it was made from."""

    epoch: int
    metadata_hash: int = 0
    subtopologies: Mapping[str, ConfiguredSubtopology] = field(default_factory=dict)
    missing: Mapping[str, InternalTopic] = field(default_factory=dict)
    problem: Status | None = None

    @property
    def is_ready(self) -> bool:
        return self.problem is None


class _WronglyPartitionedError(Exception):
    pass


def required_topics(topology: Topology) -> set[str]:
    """Names of all topics that have to be there."""
    names: set[str] = set()
    for each in topology.subtopologies:
        names.update(each.read_topics())
        names.update(topic.name for topic in each.changelog_topics)
    return names


def metadata_hash(names: Iterable[str], topics: Topics) -> int:
    """Of what an assignment depends on: ids and partition counts. A signed 64-bit number, 0 for no
    topics. Topics that do not exist count as none. Kafka's are XXH3-64 of the same and more; a hash
    is only ever compared with one that this server made, so after a change of servers there is one
    assignment more."""
    found = [topic for topic in map(topics.get, names) if topic is not None]
    if not found:
        return 0
    parts = sorted(b"%s%d" % (topic.id.bytes, topic.partition_count) for topic in found)
    digest = hashlib.blake2b(b"".join(parts), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def element_count(topology: Topology) -> int:
    """What `configure` walks over."""
    return sum(
        1
        + len(each.source_topics)
        + len(each.repartition_sink_topics)
        + len(each.repartition_source_topics)
        + len(each.changelog_topics)
        + sum(
            1 + len(group.source_topics) + len(group.repartition_source_topics)
            for group in each.copartition_groups
        )
        for each in topology.subtopologies
    )


def configure(topology: Topology, topics: Topics) -> Configured:
    """GroupError STREAMS_INVALID_TOPOLOGY: no topics could make it work."""
    found = metadata_hash(required_topics(topology), topics)
    missing = sorted(
        {name for each in topology.subtopologies for name in each.source_topics
         if topics.get(name) is None}
    )  # fmt: skip
    if missing:
        detail = f"Source topics {_told(missing)} are missing."
        return _problem(topology, found, StatusCode.MISSING_SOURCE_TOPICS, detail)
    try:
        counts = _Counts(topology, topics)
        subtopologies = {
            each.subtopology_id: _configured(each, counts) for each in topology.subtopologies
        }
        _check_size(subtopologies.values())
        to_create = _missing_internal(subtopologies.values(), topics)
    except _WronglyPartitionedError as error:
        return _problem(topology, found, StatusCode.INCORRECTLY_PARTITIONED_TOPICS, str(error))
    problem = None
    if to_create:
        problem = Status(
            StatusCode.MISSING_INTERNAL_TOPICS,
            f"Internal topics are missing: {_told(sorted(to_create))}",
        )
    return Configured(topology.epoch, found, subtopologies, to_create, problem)


class _Counts:
    """Partition counts of all topics of a topology whose source topics are there."""

    def __init__(self, topology: Topology, topics: Topics) -> None:
        self._topics = topics
        self.decided: dict[str, int] = {}
        repartition = {
            topic.name: topic.partitions
            for each in topology.subtopologies
            for topic in each.repartition_source_topics
        }
        self.decided.update((name, count) for name, count in repartition.items() if count > 0)
        self._decide(topology, repartition)
        fixed = set(self.decided_by_hand(repartition))
        for each in topology.subtopologies:
            for names in _copartitioned(each):
                self._even(names, repartition, fixed)
        for each in topology.subtopologies:
            if each.changelog_topics:
                own = _own_changelog(each)
                self.decided.update(dict.fromkeys((topic.name for topic in own), self.widest(each)))

    @staticmethod
    def decided_by_hand(repartition: Mapping[str, int]) -> list[str]:
        return [name for name, count in repartition.items() if count > 0]

    def of(self, name: str) -> int | None:
        """A topic that is there has the partitions that it has."""
        topic = self._topics.get(name)
        return self.decided.get(name) if topic is None else topic.partition_count

    def widest(self, subtopology: Subtopology) -> int:
        names = subtopology.read_topics()
        if not names:
            raise GroupError(
                ErrorCode.STREAMS_INVALID_TOPOLOGY,
                f"Subtopology {subtopology.subtopology_id} reads no topics.",
            )
        return max(self.of(name) or 0 for name in names)

    def _decide(self, topology: Topology, repartition: Mapping[str, int]) -> None:
        """Of repartition topics that do not say how many, along the topology. Each subtopology is
        looked at when it is known of all topics that it reads, or of the first one."""
        order = _Order(topology, repartition)
        for name, count in self.decided.items():
            order.decided(name, count)
        for each in topology.subtopologies:
            for name in each.source_topics:
                order.knows(each.subtopology_id, self.of(name) or 0)
        order.begin()
        while order.waiting:
            name = order.next()
            count = order.count_of(name)
            if not count:
                raise GroupError(
                    ErrorCode.STREAMS_INVALID_TOPOLOGY,
                    f"The number of partitions of repartition topic {name} does not follow from"
                    " anything: no subtopology that reads a topic writes to it.",
                )
            self.decided[name] = count
            order.decided(name, count)

    def _even(self, names: set[str], repartition: Mapping[str, int], fixed: set[str]) -> None:
        """Equally many partitions for topics that are joined."""
        counts: dict[str, int] = {}
        for name in names:
            decided = self.decided.get(name, 0) if name in repartition else self.of(name)
            counts[name] = decided or 0
        ours = {name for name in names if name in repartition and name not in fixed}
        others = {name: counts[name] for name in sorted(names - ours)}
        wanted = set(others.values())
        if len(wanted) > 1:
            raise _WronglyPartitionedError(
                f"Following topics do not have the same number of partitions: [{_told(others)}]"
            )
        count = wanted.pop() if wanted else max(counts.values())
        self.decided.update(dict.fromkeys(ours, count))


class _Order:
    """In which order repartition topics are decided. Every reading and every writing is looked at
    once, so the time is that of the topology's size, whatever its form."""

    def __init__(self, topology: Topology, repartition: Mapping[str, int]) -> None:
        self._writers: dict[str, list[str]] = {}
        self._readers: dict[str, list[str]] = {}
        self._sinks: dict[str, list[str]] = {}
        #: Of a subtopology: how many topics it reads that are not decided, the most partitions of
        #: those that are, and whether what it writes has `_begun`.
        self._lacks: dict[str, int] = {}
        self._widest: dict[str, int] = {}
        self._is_begun: set[str] = set()
        for each in topology.subtopologies:
            name_of = each.subtopology_id
            sinks = [name for name in dict.fromkeys(each.repartition_sink_topics)
                     if name in repartition]  # fmt: skip
            sources = dict.fromkeys(topic.name for topic in each.repartition_source_topics)
            self._sinks[name_of], self._lacks[name_of], self._widest[name_of] = sinks, 0, 0
            for sink in sinks:
                self._writers.setdefault(sink, []).append(name_of)
            for source in sources:
                self._readers.setdefault(source, []).append(name_of)
            self._lacks[name_of] = len(sources)
        #: Those that are not decided, and how many of their writers lack something.
        self.waiting = {
            name: sum(1 for writer in self._writers.get(name, ()) if self._lacks[writer])
            for name, count in repartition.items()
            if count <= 0
        }
        self._ready: deque[str] = deque()
        #: Topics in a circle of which something is known.
        self._begun: deque[str] = deque()

    def knows(self, subtopology_id: str, count: int) -> None:
        """It reads a topic with so many partitions."""
        self._widest[subtopology_id] = max(self._widest[subtopology_id], count)

    def begin(self) -> None:
        self._ready.extend(name for name, count in self.waiting.items() if not count)
        self._begun.extend(name for name in self.waiting if self.count_of(name))
        self._is_begun.update(each for each, count in self._widest.items() if count)

    def count_of(self, name: str) -> int:
        """The most of what is known; 0: nothing is."""
        return max((self._widest[each] for each in self._writers.get(name, ())), default=0)

    def next(self) -> str:
        """One that waits for nothing; of a circle the first topic that anything is known of; of
        none, the first there is."""
        for names in (self._ready, self._begun):
            while names:
                name = names.popleft()
                if name in self.waiting:
                    return name
        return next(iter(self.waiting))

    def decided(self, name: str, count: int) -> None:
        self.waiting.pop(name, None)
        for reader in self._readers.get(name, ()):
            self.knows(reader, count)
            self._lacks[reader] -= 1
            if reader not in self._is_begun:
                self._is_begun.add(reader)
                self._begun.extend(self._sinks[reader])
            if not self._lacks[reader]:
                self._is_complete(reader)

    def _is_complete(self, subtopology_id: str) -> None:
        for sink in self._sinks[subtopology_id]:
            if sink in self.waiting:
                self.waiting[sink] -= 1
                if not self.waiting[sink]:
                    self._ready.append(sink)


def _copartitioned(subtopology: Subtopology) -> list[set[str]]:
    """GroupError: an index that is none."""
    repartition = subtopology.repartition_source_topics
    groups = []
    for group in subtopology.copartition_groups:
        if not (
            all(0 <= at < len(subtopology.source_topics) for at in group.source_topics)
            and all(0 <= at < len(repartition) for at in group.repartition_source_topics)
        ):
            raise GroupError(
                ErrorCode.STREAMS_INVALID_TOPOLOGY,
                f"A copartition group of subtopology {subtopology.subtopology_id} names topics"
                " that it does not read.",
            )
        names = {subtopology.source_topics[at] for at in group.source_topics}
        names.update(repartition[at].name for at in group.repartition_source_topics)
        if names:
            groups.append(names)
    return groups


def _configured(subtopology: Subtopology, counts: _Counts) -> ConfiguredSubtopology:
    def of(topic: InternalTopic) -> InternalTopic:
        count = counts.decided[topic.name]
        return InternalTopic(topic.name, count, topic.replication_factor, topic.configs)

    return ConfiguredSubtopology(
        subtopology,
        counts.widest(subtopology),
        {name: counts.of(name) or 0 for name in subtopology.read_topics()},
        tuple(of(topic) for topic in subtopology.repartition_source_topics),
        tuple(of(topic) for topic in _own_changelog(subtopology)),
    )


def _own_changelog(subtopology: Subtopology) -> list[InternalTopic]:
    """Without those that are read: a table's source may be its changelog."""
    read = set(subtopology.source_topics)
    return [topic for topic in subtopology.changelog_topics if topic.name not in read]


def _check_size(subtopologies: Collection[ConfiguredSubtopology]) -> None:
    tasks = sum(each.task_count for each in subtopologies)
    read = sum(sum(each.read.values()) for each in subtopologies)
    if tasks > TASKS_MAX or read > READ_MAX:
        raise _WronglyPartitionedError(
            f"The topology comes to {tasks} tasks that read {read} partitions, and this server"
            f" assigns {TASKS_MAX} tasks and {READ_MAX} partitions at most."
        )


def _missing_internal(
    subtopologies: Iterable[ConfiguredSubtopology], topics: Topics
) -> dict[str, InternalTopic]:
    missing: dict[str, InternalTopic] = {}
    for each in subtopologies:
        for wanted in (*each.repartition, *each.changelog):
            topic = topics.get(wanted.name)
            if topic is None:
                missing[wanted.name] = wanted
            elif topic.partition_count != wanted.partitions:
                raise _WronglyPartitionedError(
                    f"Existing topic {wanted.name} has different number of partitions:"
                    f" expected {wanted.partitions}, found {topic.partition_count}"
                )
    return missing


def _problem(topology: Topology, found: int, code: StatusCode, detail: str) -> Configured:
    return Configured(topology.epoch, found, problem=Status(code, detail))


def _told(names: Sequence[str] | Mapping[str, int]) -> str:
    """The first ones, as a topology may have very many."""
    if isinstance(names, dict):
        texts = [f"{name}: {count}" for name, count in names.items()]
    else:
        texts = list(names)
    more = len(texts) - NAMES_TOLD
    return ", ".join(texts[:NAMES_TOLD]) + (f" and {more} more" if more > 0 else "")
