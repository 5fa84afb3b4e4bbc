"""Committed offsets of one group. Pure: no clock, no loop.

The table holds what the log has acknowledged, and changes only in the log's order; so what was
committed is what a reload finds. Besides, it knows which keys have a record on its way
(`in_flight`): a deletion of the group must cover these too, and a reader that wants stable offsets
waits for them.

`unstable` is the place for offsets of open transactions (TxnOffsetCommit): keys that have a pending
transactional offset are not stable, and do not expire. Kafka's `pendingTransactionalOffsets`.

What expires (KIP-211):
- A group of consumers with members keeps the offsets of every topic that a member subscribes to;
  of others, those that are younger than the retention since their commit. Only while it is Stable:
  during a rebalance the subscription is about to change.
- A group that is empty keeps its offsets for the retention since it became empty.
- A simple consumer's (no protocol type ever) expire by the age of each commit.
- Other groups with members (Connect and the like) keep everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

from broker.groups.classic.types import GroupState

if TYPE_CHECKING:
    from broker.groups.classic.group import ClassicGroup

#: A partition as a group names it: (topic, partition).
OffsetKey = tuple[str, int]


@dataclass(slots=True, frozen=True)
class CommittedOffset:
    """One commit. `expire_timestamp_ms` is -1 unless an old client (v2-4) set a retention."""

    offset: int
    leader_epoch: int  # -1: unknown
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    topic_id: UUID | None = None

    def is_expired(self, base_timestamp_ms: int | None, now_ms: int, retention_ms: int) -> bool:
        """KIP-211: the retention counts from `base_timestamp_ms`, when the group became empty;
        None: from the commit itself. An explicit expiry stands above both."""
        if self.expire_timestamp_ms >= 0:
            return now_ms >= self.expire_timestamp_ms
        base_ms = self.commit_timestamp_ms if base_timestamp_ms is None else base_timestamp_ms
        return now_ms - base_ms >= retention_ms

    def is_of(self, topic_id: UUID | None) -> bool:
        """Whether it was committed for this topic, not for an earlier one of the same name.
        Who does not tell an id (None) means any."""
        return topic_id is None or self.topic_id is None or topic_id == self.topic_id


class GroupOffsets:
    """The table of one group."""

    __slots__ = ("_in_flight", "by_topic", "unstable")

    def __init__(self) -> None:
        self.by_topic: dict[str, dict[int, CommittedOffset]] = {}
        self.unstable: set[OffsetKey] = set()
        self._in_flight: dict[OffsetKey, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self.by_topic.values()))

    @property
    def is_unused(self) -> bool:
        """Holds nothing, and nothing is on its way."""
        return not self.by_topic and not self._in_flight and not self.unstable

    # --- records on their way

    def begin(self, topic: str, partition: int) -> None:
        """A record of this key was queued for the log."""
        key = (topic, partition)
        self._in_flight[key] = self._in_flight.get(key, 0) + 1

    def apply(self, topic: str, partition: int, value: CommittedOffset | None) -> None:
        """The log has this record: a commit, or a tombstone (None)."""
        if value is not None:
            self.by_topic.setdefault(topic, {})[partition] = value
            return
        self.unstable.discard((topic, partition))
        partitions = self.by_topic.get(topic)
        if partitions is not None:
            partitions.pop(partition, None)
            if not partitions:
                del self.by_topic[topic]

    def end(self, topic: str, partition: int) -> None:
        """A record that was begun is acknowledged (and applied) or has failed."""
        key = (topic, partition)
        left = self._in_flight[key] - 1
        if left:
            self._in_flight[key] = left
        else:
            del self._in_flight[key]

    @property
    def has_in_flight(self) -> bool:
        return bool(self._in_flight)

    # --- reading

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        partitions = self.by_topic.get(topic)
        return None if partitions is None else partitions.get(partition)

    def keys(self) -> Iterator[OffsetKey]:
        for topic, partitions in self.by_topic.items():
            for partition in partitions:
                yield topic, partition

    def keys_to_delete(self) -> list[OffsetKey]:
        """Every key that has an offset or will have one: a deletion writes a tombstone for each."""
        return list(dict.fromkeys([*self.keys(), *self._in_flight, *sorted(self.unstable)]))

    def knows(self, topic: str, partition: int) -> bool:
        """Whether a deletion of this key has anything to delete, now or soon."""
        key = (topic, partition)
        return (
            self.get(topic, partition) is not None or key in self._in_flight or key in self.unstable
        )


def expired_offsets(
    group: ClassicGroup, offsets: GroupOffsets, now_ms: int, retention_ms: int
) -> list[OffsetKey]:
    """The keys to write tombstones for. `now_ms` is wall-clock time, as commit timestamps are."""
    base_ms: int | None = None
    if group.protocol_type is not None:
        if group.state is GroupState.EMPTY:
            base_ms = group.state_timestamp_ms if group.state_timestamp_ms >= 0 else None
        elif group.state is not GroupState.STABLE or group.subscribed is None:
            return []
    return [
        (topic, partition)
        for topic, partitions in offsets.by_topic.items()
        if not group.is_subscribed_to(topic)
        for partition, committed in partitions.items()
        if (topic, partition) not in offsets.unstable
        and committed.is_expired(base_ms, now_ms, retention_ms)
    ]
