"""Assignments: which broker leads each partition of a topic, as one JSON document per topic.

Pure values, changed in metadata by compare-and-set only. A document plans; the right to write comes
from the take-over (broker/cluster/ownership.py).

    /quire/assignments/<topic id>
    {"format": 1, "topic": "orders", "partitions": [[leader, epoch, [replicas]], ...]}

`leader` is a broker's id, or -1; `epoch` the least leader epoch with which it may lead; `replicas`
the brokers that lead by preference, the preferred one first. A fourth element is there while a
reassignment is under way: the list before it. It ends when the leader has taken over.

Where a partition's copies are has nothing to do with it: those are on bookies, and any broker can
lead any partition.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Generator

ASSIGNMENTS_PATH = "/quire/assignments"
FORMAT = 1
NO_LEADER = -1
#: Partitions of a document that are read before others have the loop: 1 ms.
PARTITIONS_PER_STEP = 500


class AssignmentFormatError(ValueError):
    """The stored document is no assignment; says what is wrong."""


@dataclass(slots=True, frozen=True)
class Assigned:
    """One partition's. `before`: the replicas before the reassignment that is under way."""

    leader: int
    epoch: int
    replicas: tuple[int, ...]
    before: tuple[int, ...] = ()

    def led_by(self, leader: int) -> Assigned:
        """Another leader, with the next epoch; the same one stays as it is."""
        return self if leader == self.leader else replace(self, leader=leader, epoch=self.epoch + 1)

    def published(self, leader: int, epoch: int) -> Assigned:
        """After `leader` took over with `epoch`: unchanged if it is not to lead any more, or if
        that is known."""
        if leader != self.leader or (epoch <= self.epoch and not self.before):
            return self
        return replace(self, epoch=max(epoch, self.epoch), before=())


@dataclass(slots=True, frozen=True)
class Assignment:
    """A topic's: a partition's number is its place."""

    topic: str
    partitions: tuple[Assigned, ...]

    def with_partitions(self, changed: dict[int, Assigned]) -> Assignment:
        """The same object if nothing is different."""
        partitions = list(self.partitions)
        for number, assigned in changed.items():
            assert assigned.epoch >= partitions[number].epoch, "an epoch only rises"
            partitions[number] = assigned
        if tuple(partitions) == self.partitions:
            return self
        return replace(self, partitions=tuple(partitions))

    def grown(self, replicas: list[tuple[int, ...]]) -> Assignment:
        """With more partitions, each led by the first of its list."""
        return replace(self, partitions=self.partitions + tuple(map(first_assigned, replicas)))

    def to_bytes(self) -> bytes:
        document = {
            "format": FORMAT,
            "topic": self.topic,
            "partitions": [
                [one.leader, one.epoch, one.replicas, *([one.before] if one.before else ())]
                for one in self.partitions
            ],
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Assignment:
        """AssignmentFormatError unless it is a document of a format that we know."""
        steps = cls.parse(data)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                assignment: Assignment = end.value
                return assignment

    @classmethod
    def parse(cls, data: bytes) -> Generator[None, None, Assignment]:
        """As `from_bytes`, for a loop that is everybody's: yields wherever others may have it, of
        10,000 partitions after the text and then 20 times. AssignmentFormatError."""
        try:
            document = json.loads(data)
            if document["format"] != FORMAT:
                raise AssignmentFormatError(f"assignment of unknown format {document['format']}")
            topic, items = document["topic"], document["partitions"]
            if not isinstance(topic, str):
                raise AssignmentFormatError("assignment is damaged: the topic is no text")
            partitions: list[Assigned] = []
            for item in items:
                if len(partitions) % PARTITIONS_PER_STEP == PARTITIONS_PER_STEP - 1:
                    yield
                partitions.append(_assigned(*item))
            return cls(topic, tuple(partitions))
        except AssignmentFormatError:
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise AssignmentFormatError(f"assignment is damaged: {error!r}") from error


def first_assigned(replicas: tuple[int, ...]) -> Assigned:
    """Of a new partition."""
    return Assigned(replicas[0] if replicas else NO_LEADER, 0, replicas)


def new_assignment(topic: str, replicas: list[tuple[int, ...]]) -> Assignment:
    return Assignment(topic, tuple(map(first_assigned, replicas)))


#: Most partitions have one of few lists: memory holds each of them once.
_LISTS: dict[tuple[int, ...], tuple[int, ...]] = {}
_LISTS_MAX = 10_000


def _assigned(leader: object, epoch: object, replicas: object, before: object = ()) -> Assigned:
    return Assigned(_integer(leader), _integer(epoch), _node_ids(replicas), _node_ids(before))


def _node_ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise AssignmentFormatError(f"assignment is damaged: {value!r} is no list of brokers")
    ids = tuple(_integer(item) for item in value)
    if len(_LISTS) >= _LISTS_MAX:
        _LISTS.clear()
    return _LISTS.setdefault(ids, ids)


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise AssignmentFormatError(f"assignment is damaged: {value!r} is no integer")
    return value
