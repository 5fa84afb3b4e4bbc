"""Committed offsets of one group. Pure: no clock, no loop.

The table holds what the log has acknowledged, and changes only in the log's order; so what was
committed is what a reload finds. Besides, it knows which keys have a record on its way
(`in_flight`): a deletion of the group must cover these too, and a reader that wants stable offsets
waits for them.

What a transaction commits (TxnOffsetCommit) is pending by its producer until the transaction ends.
If that is committed, an offset moves into the table unless that has one from a later record: a
plain commit between the two is the newer one, which is also what compaction keeps. A tombstone
deletes what is pending, too. A key with something pending is not stable (`unstable`), and does not
expire; nor does its group. Nor does a key with a record on its way: its tombstone would lie behind
that, and delete what was never judged.

What expires (KIP-211):
- A group of consumers with members keeps the offsets of every topic that a member subscribes to;
  of others, those that are younger than the retention since their commit. Only while it is Stable:
  during a rebalance the subscription is about to change.
- A group that is empty keeps its offsets for the retention since it became empty.
- A simple consumer's (no protocol type ever) expire by the age of each commit.
- A group of the consumer protocol keeps the offsets of every topic that a member subscribes to;
  others expire by the age of each commit.
- Other groups with members (Connect and the like) keep everything.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from broker.groups.classic.types import GroupState
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

from broker.groups.classic.group import ClassicGroup

if TYPE_CHECKING:
    from broker.groups.consumer.live import LiveGroup
    from broker.groups.streams.live import LiveStreamsGroup

#: A partition as a group names it: (topic, partition).
OffsetKey = tuple[str, int]

#: Pending offsets of a producer that are settled before others may have the loop: 1 to 2 ms.
SETTLED_PER_STEP = 1_000


@dataclass(slots=True)
class CommittedOffset:
    """One commit. `expire_timestamp_ms` is -1 unless an old client (v2-4) set a retention.
    `record_offset` is known once the log has the record; nothing else ever changes."""

    offset: int
    leader_epoch: int  # -1: unknown
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    topic_id: UUID | None = None
    record_offset: int = field(default=-1, compare=False)

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

    __slots__ = ("_in_flight", "_pending", "by_topic", "unstable")

    def __init__(self) -> None:
        self.by_topic: dict[str, dict[int, CommittedOffset]] = {}
        #: The producers that have a pending offset of a key.
        self.unstable: dict[OffsetKey, set[int]] = {}
        #: By producer id.
        self._pending: dict[int, dict[OffsetKey, CommittedOffset]] = {}
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
        for producer_id in self.unstable.pop((topic, partition), ()):
            pending = self._pending.get(producer_id)
            if pending is not None:  # else it is being settled
                del pending[topic, partition]
                if not pending:
                    del self._pending[producer_id]
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

    # --- transactions

    def apply_pending(
        self, producer_id: int, topic: str, partition: int, value: CommittedOffset
    ) -> None:
        """The log has this commit, which counts once the producer's transaction is committed."""
        key = (topic, partition)
        self._pending.setdefault(producer_id, {})[key] = value
        self.unstable.setdefault(key, set()).add(producer_id)

    def end_transaction(self, producer_id: int, *, committed: bool) -> Iterator[None]:
        """The log has the end of that transaction. Yields after each SETTLED_PER_STEP keys: what
        is not settled yet is unstable, and a tombstone that comes in between deletes it."""
        pending = self._pending.pop(producer_id, {})
        for count, (key, value) in enumerate(pending.items(), 1):
            producers = self.unstable.get(key)
            if producers is not None and producer_id in producers:
                producers.remove(producer_id)
                if not producers:
                    del self.unstable[key]
                if committed:
                    self._settle(key, value)
            if not count % SETTLED_PER_STEP:
                yield

    def _settle(self, key: OffsetKey, value: CommittedOffset) -> None:
        topic, partition = key
        partitions = self.by_topic.setdefault(topic, {})
        there = partitions.get(partition)
        if there is None or value.record_offset > there.record_offset:
            partitions[partition] = value

    @property
    def has_in_flight(self) -> bool:
        return bool(self._in_flight)

    def is_in_flight(self, key: OffsetKey) -> bool:
        return key in self._in_flight

    # --- reading

    def get(self, topic: str, partition: int) -> CommittedOffset | None:
        partitions = self.by_topic.get(topic)
        return None if partitions is None else partitions.get(partition)

    def keys(self) -> Iterator[OffsetKey]:
        for topic, partitions in self.by_topic.items():
            for partition in partitions:
                yield topic, partition

    def of_topic(self, topic: str) -> Iterator[tuple[int, list[CommittedOffset]]]:
        """Of each partition of the topic: what is committed and what is pending."""
        found: dict[int, list[CommittedOffset]] = {
            partition: [committed] for partition, committed in self.by_topic.get(topic, {}).items()
        }
        for pending in self._pending.values():
            for (name, partition), value in pending.items():
                if name == topic:
                    found.setdefault(partition, []).append(value)
        yield from found.items()

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
    group: ClassicGroup | LiveGroup | LiveStreamsGroup,
    offsets: GroupOffsets,
    now_ms: int,
    retention_ms: int,
) -> list[OffsetKey]:
    """The keys to write tombstones for. `now_ms` is wall-clock time, as commit timestamps are."""
    base_ms: int | None = None
    if isinstance(group, ClassicGroup) and group.protocol_type is not None:
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
        and not offsets.is_in_flight((topic, partition))
        and committed.is_expired(base_ms, now_ms, retention_ms)
    ]
