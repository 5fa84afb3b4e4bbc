"""Which share partitions the share coordinator keeps a state of for a group. Pure.

    nothing --begin--> initializing --initialized--> initialized
    initializing, initialized --begin_deletion--> deleting --deleted--> nothing

What is asked of the share coordinator is recorded before it is asked. So a group coordinator that
takes over knows what may have been begun, and begins it again; and who deletes the group deletes
that, too. A partition is begun with an epoch that is later than that of any attempt before, which
fences an attempt that comes late. Every function makes events (changes.py) and asks nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.share.events import GroupEpoch, StateSet, TargetEpoch
from broker.groups.share.types import StatePartitions, TopicPartitions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from uuid import UUID

    from broker.groups.consumer.types import Topics
    from broker.groups.share.changes import Changes
    from broker.groups.share.group import ShareGroup

#: A partition: topic id, number.
Key = tuple["UUID", int]
Partitions = dict["UUID", TopicPartitions]

#: Where a partition begins: the group's share.auto.offset.reset says where that is.
UNKNOWN_START = -1
#: Partitions that are begun together, about.
AT_ONCE = 500


def wanting(group: ShareGroup, topics: Topics, busy: Mapping[UUID, Collection[int]]) -> Partitions:
    """Partitions of topics that somebody is subscribed to and that are not initialized yet, but for
    those that somebody looks after just now. Of very many the first; whole topics, as what is
    begun later than the others counts as added.

    Each member that joins asks for this: of a topic whose partitions are all initialized, or all
    looked after, none is looked at."""
    found: Partitions = {}
    left = AT_ONCE
    for name in group.topic_members:
        topic = topics.get(name)
        if topic is None:
            continue
        known = group.partitions.initialized.get(topic.id)
        have: Collection[int] = () if known is None else known.partitions
        taken = busy.get(topic.id, ())
        if topic.partition_count <= max(len(have), len(taken)):
            continue
        missing = frozenset(
            each for each in range(topic.partition_count) if each not in have and each not in taken
        )
        if missing:
            found[topic.id] = TopicPartitions(name, missing)
            left -= len(missing)
            if left <= 0:
                break
    return found


def start_offsets(group: ShareGroup, wanted: Mapping[UUID, TopicPartitions]) -> dict[Key, int]:
    """Where each partition begins. One that was added to a topic which the group reads already
    begins at its first record, or those of the time between would be lost (KAFKA-20742)."""
    found: dict[Key, int] = {}
    for topic_id, (_, partitions) in wanted.items():
        known = group.partitions.initialized.get(topic_id)
        last = -1 if known is None else max(known.partitions, default=-1)
        for partition in sorted(partitions):
            is_added = 0 <= last < partition
            found[topic_id, partition] = 0 if is_added else UNKNOWN_START
    return found


def begin(
    changes: Changes, wanted: Mapping[UUID, TopicPartitions], topics: Topics, *, above: int
) -> None:
    """These are about to be begun. `above`: the epoch must be greater than this."""
    group = changes.group
    state = group.partitions
    is_again = any(
        not each.partitions.isdisjoint(state.initializing[topic_id].partitions)
        for topic_id, each in wanted.items()
        if topic_id in state.initializing
    )
    if is_again or group.epoch <= above:
        changes.bump(topics, above=above)
    changes.add(
        StateSet(
            StatePartitions(
                _merged(state.initializing, wanted),
                state.initialized,
                {each: name for each, name in state.deleting.items() if each not in wanted},
            )
        )
    )


def alter(
    changes: Changes, wanted: Mapping[UUID, TopicPartitions], topics: Topics, *, above: int
) -> None:
    """These are about to begin anew somewhere else. What is initialized stays so: if it comes to
    nothing, nothing has changed. The later epoch fences who still reads by the old state."""
    changes.bump(topics, above=above)
    begin(changes, wanted, topics, above=0)


def initialized(changes: Changes, keys: Iterable[Key], topics: Topics) -> None:
    """The share coordinator has begun these. If somebody reads them, they are to be assigned."""
    group = changes.group
    state = group.partitions
    done: dict[UUID, set[int]] = {}
    for topic_id, partition in keys:
        known = state.initializing.get(topic_id)
        if known is not None and partition in known.partitions:
            done.setdefault(topic_id, set()).add(partition)
    if not done:
        return
    moved = {
        topic_id: TopicPartitions(state.initializing[topic_id].name, frozenset(partitions))
        for topic_id, partitions in done.items()
    }
    changes.add(
        StateSet(
            StatePartitions(
                _without(state.initializing, moved),
                _merged(state.initialized, moved),
                state.deleting,
            )
        )
    )
    if any(group.is_subscribed_to(each.name) for each in moved.values()):
        changes.bump(topics)


def keys_of(state: StatePartitions, topics: Topics, ids: Iterable[UUID]) -> list[Key]:
    """All that there may be of these topics at the share coordinator. Of a topic whose deletion was
    begun before that is every partition that it has now; if it is gone, nobody knows."""
    found: list[Key] = []
    for topic_id in ids:
        partitions: set[int] = set()
        for part in (state.initializing, state.initialized):
            if topic_id in part:
                partitions |= part[topic_id].partitions
        topic = topics.get_by_id(topic_id) if topic_id in state.deleting else None
        if topic is not None:
            partitions.update(range(topic.partition_count))
        found += ((topic_id, partition) for partition in sorted(partitions))
    return found


def begin_deletion(changes: Changes, ids: Collection[UUID]) -> None:
    """These topics' states are about to be deleted."""
    state = changes.group.partitions
    deleting = dict(state.deleting)
    for topic_id in ids:
        for part in (state.initializing, state.initialized):
            if topic_id in part:
                deleting[topic_id] = part[topic_id].name
    changes.add(
        StateSet(
            StatePartitions(
                {each: known for each, known in state.initializing.items() if each not in ids},
                {each: known for each, known in state.initialized.items() if each not in ids},
                deleting,
            )
        )
    )


def deleted(changes: Changes, ids: Collection[UUID]) -> None:
    """They are, or were deleted with their topics."""
    state = changes.group.partitions
    left = {each: name for each, name in state.deleting.items() if each not in ids}
    if len(left) < len(state.deleting):
        changes.add(StateSet(StatePartitions(state.initializing, state.initialized, left)))


def forget_topic(changes: Changes, topic_id: UUID) -> None:
    """The topic is gone."""
    state = changes.group.partitions
    if any(topic_id in part for part in (state.initializing, state.initialized, state.deleting)):
        left = StatePartitions(
            dict(state.initializing), dict(state.initialized), dict(state.deleting)
        )
        left.initializing.pop(topic_id, None)
        left.initialized.pop(topic_id, None)
        left.deleting.pop(topic_id, None)
        changes.add(StateSet(left))


def end(changes: Changes) -> None:
    """Tombstones of a group without members, in the order that Kafka's go: 12, 15, 11."""
    assert not changes.group.members
    changes.add(TargetEpoch(None))
    changes.add(StateSet(None))
    changes.add(GroupEpoch(None))


def _merged(
    known: Mapping[UUID, TopicPartitions], more: Mapping[UUID, TopicPartitions]
) -> Partitions:
    merged = dict(known)
    for topic_id, (name, partitions) in more.items():
        before = merged.get(topic_id)
        if before is not None:
            partitions = partitions | before.partitions
        merged[topic_id] = TopicPartitions(name, partitions)
    return merged


def _without(
    known: Mapping[UUID, TopicPartitions], less: Mapping[UUID, TopicPartitions]
) -> Partitions:
    left = dict(known)
    for topic_id, (_, partitions) in less.items():
        name, before = left[topic_id]
        rest = before - partitions
        if rest:
            left[topic_id] = TopicPartitions(name, rest)
        else:
            del left[topic_id]
    return left
