"""A group goes from the classic to the consumer protocol and back while it has members. Pure.

Upgrade: every classic member becomes one of the new group with what it has; its generation is its
epoch, and it goes on by JoinGroup, SyncGroup and Heartbeat (mixed_core.py). Downgrade: once no
member speaks the consumer protocol, the classic group takes over with what they have, and
rebalances.

Who may still have a partition keeps it through a change, so that no two read it and no offset goes
back; Kafka's takes it for free. Downgrade: one that is not done with giving it back. Upgrade: a
cooperative consumer (KIP-429) that said it owns it when it joined, while the generation gives it to
nobody: it is about to give it up, and says so when it joins again, which it is told to do.

All events of a change are one unit: stored together or not at all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from broker.groups.classic.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from broker.groups.classic.types import GroupSnapshot, GroupState, MemberSnapshot
from broker.groups.consumer.changes import NO_TOPICS_HASH, metadata_hash
from broker.groups.consumer.classic_bytes import (
    assignment_bytes,
    assignment_of,
    by_id,
    owned_by,
    subscription_of,
)
from broker.groups.consumer.events import (
    ClassicSet,
    CurrentSet,
    Event,
    GroupEpoch,
    MemberSet,
    RegexSet,
    TargetEpoch,
    TargetSet,
)
from broker.groups.consumer.group import NOTHING_ASSIGNED
from broker.groups.consumer.names import NAMES_MAX
from broker.groups.consumer.types import (
    Assigned,
    ClassicPart,
    Current,
    GroupError,
    Member,
    MemberState,
    Owned,
    Topics,
)
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from uuid import UUID

    from broker.groups.classic.members import Member as OldMember
    from broker.groups.classic.types import GroupLimits
    from broker.groups.consumer.changes import Changes
    from wire.kafka.records.consumer_group import ConsumerProtocolSubscription


# --- up


def upgraded(classic: ClassicGroup, members_max: int, topics: Topics) -> list[Event]:
    """The events that make a consumer group of a classic one with members. GroupError
    GROUP_ID_NOT_FOUND: it cannot be one."""
    if classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise _refused(classic, f"its protocol type is {classic.protocol_type}")
    if len(classic.members) > members_max:
        raise _refused(classic, f"it has more than {members_max} members")
    epoch = max(classic.generation_id, 1)
    members: list[Member] = []
    given: list[Owned] = []
    kept: list[tuple[int, Owned]] = []
    names: set[str] = set()
    for old in classic.members.by_id.values():
        member, subscription, owned = _upgraded_member(classic, old, topics)
        names.update(member.topics)
        if len(names) > NAMES_MAX:
            raise _refused(classic, f"its members subscribe to more than {NAMES_MAX} topics")
        members.append(member)
        given.append(owned)
        kept.append((subscription.generation_id, _kept(subscription, topics)))
    currents = [
        Current(epoch, epoch, MemberState.STABLE, share) for share in _shares(epoch, given, kept)
    ]
    # Else what the classic group's leader did not know of yet, or gave to nobody, would stay so,
    # and a rebalance under way would be forgotten: a static member that takes its own place raises
    # no epoch. What members keep until they join again is given to nobody.
    is_whole = classic.state is GroupState.STABLE and _are_whole(members, given, names, topics)
    return [
        ClassicSet(None),
        *(MemberSet(member.member_id, member) for member in members),
        GroupEpoch((epoch, metadata_hash(names, topics) if is_whole else NO_TOPICS_HASH)),
        *(
            TargetSet(member.member_id, {t: frozenset(p) for t, p in current.assigned.items()})
            for member, current in zip(members, currents, strict=True)
        ),
        TargetEpoch((epoch, 0)),
        *(
            CurrentSet(member.member_id, current)
            for member, current in zip(members, currents, strict=True)
        ),
    ]


def _shares(
    epoch: int, given: Sequence[Owned], kept: Sequence[tuple[int, Owned]]
) -> list[Assigned]:
    """What each member has then, each partition once: what the generation gives somebody goes
    before what others had until then (`kept`, with the generation in which they had it), and of
    that the later one. How old that is says nothing: a member may be behind, or not tell."""
    taken: dict[UUID, set[int]] = {}
    shares: list[Assigned] = [{} for _ in given]
    later_first = sorted(range(len(kept)), key=lambda number: kept[number][0], reverse=True)
    claims = [*enumerate(given), *((number, kept[number][1]) for number in later_first)]
    for number, owned in claims:
        for topic_id, partitions in owned.items():
            others = taken.setdefault(topic_id, set())
            mine = dict.fromkeys(sorted(partitions - others), epoch)
            others.update(mine)
            if mine:
                shares[number].setdefault(topic_id, {}).update(mine)
    return shares


def _are_whole(
    members: Iterable[Member], given: Iterable[Owned], names: Iterable[str], topics: Topics
) -> bool:
    """Whether each partition of these topics is given to a member that subscribes to it."""
    found: dict[UUID, set[int]] = {}
    for member, owned in zip(members, given, strict=True):
        for topic in filter(None, map(topics.get, member.topics)):
            found.setdefault(topic.id, set()).update(owned.get(topic.id, ()))
    return all(
        found[topic.id].issuperset(range(topic.partition_count))
        for topic in filter(None, map(topics.get, names))
    )


def _kept(subscription: ConsumerProtocolSubscription, topics: Topics) -> Owned:
    """What it said it owns when it joined last, of what it subscribes to."""
    subscribed = {topic.id: topic for topic in map(topics.get, subscription.topics) if topic}
    return {
        topic_id: there
        for topic_id, partitions in owned_by(subscription, topics).items()
        if topic_id in subscribed
        if (there := {p for p in partitions if 0 <= p < subscribed[topic_id].partition_count})
    }


def _upgraded_member(
    classic: ClassicGroup, old: OldMember, topics: Topics
) -> tuple[Member, ConsumerProtocolSubscription, Owned]:
    """It, what it said when it joined, and what it was given."""
    names = [name for name, _ in old.protocols]
    protocol = classic.protocol_name if classic.protocol_name in names else names[0]
    assert protocol is not None
    owned: Owned = {}
    has_own_data = False
    try:
        subscription = subscription_of(old.metadata(protocol))
        if old.assignment:
            assignment = assignment_of(old.assignment)
            has_own_data = bool(assignment.user_data)
            owned = by_id(assignment.assigned_partitions, topics)
    except GroupError as error:
        raise _refused(
            classic, f"what member {old.member_id} has cannot be read: {error}"
        ) from None
    if has_own_data:
        raise _refused(classic, "an assignment has data of the assignor's own")
    member = Member(
        old.member_id,
        old.instance_id,
        subscription.rack_id,
        old.client_id,
        old.client_host,
        tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=old.rebalance_timeout_ms,
        classic=ClassicPart(old.session_timeout_ms, old.protocols),
    )
    return member, subscription, owned


def _refused(classic: ClassicGroup, why: str) -> GroupError:
    return GroupError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Group {classic.group_id} is a classic group and cannot be upgraded: {why}.",
    )


# --- down


def downgrade(changes: Changes, limits: GroupLimits, now_ms: int, topics: Topics) -> ClassicGroup:
    """Ends a group whose members all speak the classic protocol; the group that follows it. It has
    what they have, and is about to rebalance."""
    group = changes.group
    assert group.is_all_classic
    snapshot = _snapshot(changes, now_ms, topics)
    parts = {member_id: member.classic for member_id, member in group.members.items()}
    for member_id in list(group.current):
        changes.add(CurrentSet(member_id, None))
    for member_id in list(group.targets):
        changes.add(TargetSet(member_id, None))
    changes.add(TargetEpoch(None))
    for member_id in list(group.members):
        changes.add(MemberSet(member_id, None))
    for regex in list(group.regexes):
        changes.add(RegexSet(regex, None))
    changes.add(GroupEpoch(None))
    # Without a leader: whoever loads it knows by that, too, that it is about to rebalance.
    changes.add(ClassicSet(replace(snapshot, leader_id=None)))
    classic = ClassicGroup.restore(snapshot, limits)
    for member_id, part in parts.items():
        assert part is not None
        classic.members.set_protocols(classic.members.by_id[member_id], part.protocols)
    return classic


def _snapshot(changes: Changes, now_ms: int, topics: Topics) -> GroupSnapshot:
    group = changes.group
    protocol = common_protocol(group.members.values())
    assert protocol is not None, "who joins must support one that all others do"
    members = []
    for member_id, member in group.members.items():
        assert member.classic is not None
        metadata = dict(member.classic.protocols)[protocol]
        current = group.current.get(member_id, NOTHING_ASSIGNED)
        members.append(
            MemberSnapshot(
                member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.classic.session_timeout_ms,
                metadata,
                assignment_bytes(_held(current), metadata, topics),
            )
        )
    return GroupSnapshot(
        group.group_id,
        CONSUMER_PROTOCOL_TYPE,
        # Members that are at the last assignment go on with their generation.
        max(current.epoch for current in group.current.values()),
        protocol,
        members[0].member_id,
        now_ms,
        tuple(members),
    )


def _held(current: Current) -> dict[UUID, set[int]]:
    """With what it has still to give back: if the group goes to the newer protocol again before the
    member has joined, nobody else is given that meanwhile."""
    held = {topic_id: set(partitions) for topic_id, partitions in current.assigned.items()}
    for topic_id, partitions in current.pending.items():
        held.setdefault(topic_id, set()).update(partitions)
    return held


def common_protocol(members: Iterable[Member]) -> str | None:
    """The first of the first classic member's that all classic members support."""
    lists = [
        [name for name, _ in member.classic.protocols]
        for member in members
        if member.classic is not None
    ]
    if not lists:
        return None
    return next((name for name in lists[0] if all(name in each for each in lists)), None)
