"""A consumer group in a running coordinator: its state, what of it is stored, and its deadlines.

What is in force and what is stored, and how the one follows the other: broker/groups/in_units.py.

Deadlines are not stored: after a load every member has its whole session timeout. A heartbeat only
moves one away; `tick` looks at all of them once in a session timeout.

Pure: no clock, no loop. Owner: service.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.consumer.events import CurrentSet, Event, GroupEpoch, MemberSet, RegexSet
from broker.groups.consumer.group import NOTHING_ASSIGNED, ConsumerGroup
from broker.groups.consumer.types import ConsumerState, GroupTimes, MemberState
from broker.groups.in_units import InUnits
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Container, Iterable
    from uuid import UUID

    from broker.groups.classic.group import ClassicGroup
    from broker.groups.consumer.types import Sight
    from broker.groups.in_units import Unit

#: A deadline that does not come.
NEVER_MS = 2**63 - 1


class LiveGroup(InUnits[ConsumerGroup, Event]):
    """See above; the names that ClassicGroup has too mean the same."""

    __slots__ = (
        "armed_at_ms",
        "group_id",
        "is_computing",
        "is_resolving",
        "join_deadlines",
        "origin",
        "rebalance",
        "regexes_resolved_at_ms",
        "regexes_version",
        "revocation_deadlines",
        "session_deadlines",
        "sights",
        "sync_deadlines",
        "target_at_ms",
        "topics_version",
        "wanted_at_ms",
    )

    #: What ListGroups calls its type.
    kind = "consumer"
    #: What an empty group's offsets expire by: each by its own commit.
    state_timestamp_ms = -1
    protocol_type = "consumer"
    is_of_consumers = True

    def __init__(self, group_id: str, origin: ClassicGroup | None = None) -> None:
        """`origin`: the group of the classic protocol that this one replaces once it is stored."""
        super().__init__(ConsumerGroup(group_id), ConsumerGroup(group_id))
        self.group_id = group_id
        self.origin = origin
        #: Why the group's epoch was last raised, and when; None: it was not since this server has
        #: the group.
        self.rebalance: tuple[str, int] | None = None
        # Deadlines, in ms of the timers' clock, by member id:
        self.session_deadlines: dict[str, int] = {}
        self.revocation_deadlines: dict[str, int] = {}
        self.join_deadlines: dict[str, int] = {}
        self.sync_deadlines: dict[str, int] = {}
        self.target_at_ms = NEVER_MS
        #: When the timer is armed for, and the earliest deadline that was set since.
        self.armed_at_ms = NEVER_MS
        self.wanted_at_ms = NEVER_MS
        #: Which topics there were when the metadata hash, and the patterns, were last looked at.
        self.topics_version = -1
        self.regexes_version = -1
        self.regexes_resolved_at_ms = -NEVER_MS
        self.is_computing = False
        self.is_resolving = False
        #: What members' clients may see, by member id, of those who were heard of here.
        self.sights: dict[str, Sight] = {}

    def heard_with(self, member_id: str, sight: Sight) -> None:
        """A member that was not heard of before may see less than the others: patterns are matched
        anew."""
        if member_id not in self.sights:
            self.regexes_version = -1
        self.sights[member_id] = sight

    def sights_of(self, regex: str) -> list[Sight]:
        """Of the members that subscribe by it, each client's once."""
        members = self.applied.members
        for member_id in [each for each in self.sights if each not in members]:
            del self.sights[member_id]
        found = {
            sight.who: sight
            for member_id, sight in self.sights.items()
            if members[member_id].regex == regex
        }
        return list(found.values())

    # --- what others read

    def blame(self, words: str) -> None:
        """Says better why the epoch was raised by the unit that was taken last."""
        if self.rebalance is not None:
            self.rebalance = (words, self.rebalance[1])

    @property
    def state(self) -> ConsumerState:
        return self.stored.state

    @property
    def is_there(self) -> bool:
        """The log knows it."""
        return self.stored.epoch > 0

    @property
    def is_empty(self) -> bool:
        return not self.applied.members

    @property
    def is_forgettable(self) -> bool:
        return not self.applied.members and not self.pending

    def is_subscribed_to(self, topic: str) -> bool:
        return self.applied.is_subscribed_to(topic)

    def is_classic_member(self, member_id: str) -> bool:
        member = self.applied.members.get(member_id)
        return member is not None and member.classic is not None

    def commit_error(
        self,
        member_id: str,
        epoch: int,
        partitions: Iterable[tuple[UUID | None, int]],
        *,
        speaks_epochs: bool,
    ) -> ErrorCode:
        """Whether this member may commit offsets of these partitions. `speaks_epochs`: by an API
        that knows of member epochs.

        A commit with an epoch that is over counts for partitions that the member has, or is still
        to give back, if they were its own by then (KIP-1251)."""
        group = self.applied
        if epoch < 0 and not group.members:
            return ErrorCode.NONE
        member = group.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if member.classic is None and not speaks_epochs:
            return ErrorCode.UNSUPPORTED_VERSION
        current = group.current.get(member_id, NOTHING_ASSIGNED)
        if epoch == current.epoch:
            return ErrorCode.NONE
        if member.classic is not None:
            return ErrorCode.ILLEGAL_GENERATION
        if epoch > current.epoch or epoch < 0:
            return ErrorCode.STALE_MEMBER_EPOCH
        for topic_id, partition in partitions:
            since = None
            if topic_id is not None:
                since = current.assigned.get(topic_id, {}).get(partition)
                if since is None:
                    since = current.pending.get(topic_id, {}).get(partition)
            if since is None or epoch < since:
                return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    def fetch_error(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether this member may read the group's offsets."""
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self.stored.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == self.stored.current.get(member.member_id, NOTHING_ASSIGNED).epoch:
            return ErrorCode.NONE
        if member.classic is not None:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.STALE_MEMBER_EPOCH

    # --- events on their way

    def take(self, unit: Unit[Event], now_ms: int) -> None:
        super().take(unit, now_ms)
        if any(isinstance(event, GroupEpoch) for event in unit.events):
            self.rebalance = (reason_of(unit.events, self.stored.members), now_ms)

    # --- deadlines

    def start(self, times: GroupTimes, now_ms: int) -> None:
        """After a load: everybody has to be heard of within its timeout."""
        for member_id in self.applied.members:
            self.touch(member_id, times, now_ms)
        self._derive_deadlines(now_ms)

    def expect_again(self, times: GroupTimes, now_ms: int) -> None:
        """A write failed: who is a member again, as its end was not stored, has its whole timeout.
        (Else nobody would ever end a member that is silent.)"""
        for member_id in self.applied.members:
            if member_id not in self.session_deadlines:
                self.touch(member_id, times, now_ms)

    def touch(self, member_id: str, times: GroupTimes, now_ms: int) -> None:
        """A member was heard of."""
        member = self.applied.members.get(member_id)
        if member is not None:
            timeout_ms = times.session_timeout_ms
            if member.classic is not None:
                timeout_ms = member.classic.session_timeout_ms
            self._set(self.session_deadlines, member_id, now_ms + timeout_ms)

    def await_join(self, member_id: str, now_ms: int) -> None:
        """A classic member was told to join again."""
        member = self.applied.members.get(member_id)
        if member is not None and member_id not in self.join_deadlines:
            at_ms = now_ms + max(member.rebalance_timeout_ms, 0)
            self._set(self.join_deadlines, member_id, at_ms)

    def await_sync(self, member_id: str, now_ms: int) -> None:
        """It has joined, and is to ask for what it has."""
        self.join_deadlines.pop(member_id, None)
        member = self.applied.members.get(member_id)
        if member is not None:
            at_ms = now_ms + max(member.rebalance_timeout_ms, 0)
            self._set(self.sync_deadlines, member_id, at_ms)

    def overdue(self, now_ms: int) -> list[str]:
        """Members whose time is up."""
        late: dict[str, None] = {}
        for deadlines in self._deadlines():
            late.update((each, None) for each, at_ms in deadlines.items() if at_ms <= now_ms)
        return list(late)

    def lateness(self, member_id: str, now_ms: int) -> str:
        """What a member did not do in time."""
        for deadlines, words in (
            (self.session_deadlines, "was not heard of within its session timeout"),
            (self.revocation_deadlines, "did not give partitions back within its rebalance time"),
            (self.join_deadlines, "did not join again within its rebalance time"),
            (self.sync_deadlines, "did not ask for its assignment within its rebalance time"),
        ):
            if deadlines.get(member_id, NEVER_MS) <= now_ms:
                return words
        return "is late"

    def next_deadline_ms(self) -> int:
        return min(
            self.target_at_ms,
            *(min(deadlines.values(), default=NEVER_MS) for deadlines in self._deadlines()),
        )

    def _deadlines(self) -> tuple[dict[str, int], ...]:
        return (
            self.session_deadlines,
            self.revocation_deadlines,
            self.join_deadlines,
            self.sync_deadlines,
        )

    def _follow(self, event: Event, now_ms: int) -> None:
        if isinstance(event, CurrentSet):
            current = event.value
            if current is None or current.state is not MemberState.UNREVOKED_PARTITIONS:
                self.revocation_deadlines.pop(event.member_id, None)
            else:
                self._await_revocation(event.member_id, now_ms)
        elif isinstance(event, MemberSet) and event.value is None:
            for deadlines in self._deadlines():
                deadlines.pop(event.member_id, None)
            self.sights.pop(event.member_id, None)

    def _await_revocation(self, member_id: str, now_ms: int) -> None:
        member = self.applied.members.get(member_id)
        if member is not None:
            at_ms = now_ms + max(member.rebalance_timeout_ms, 0)
            self._set(self.revocation_deadlines, member_id, at_ms)

    def _set(self, deadlines: dict[str, int], member_id: str, at_ms: int) -> None:
        deadlines[member_id] = at_ms
        self.wanted_at_ms = min(self.wanted_at_ms, at_ms)

    def _derive_deadlines(self, now_ms: int) -> None:
        """From the state alone: of members that are not there, none."""
        members = self.applied.members
        for deadlines in self._deadlines():
            for member_id in [each for each in deadlines if each not in members]:
                del deadlines[member_id]
        self.revocation_deadlines.clear()
        for member_id, current in self.applied.current.items():
            if current.state is MemberState.UNREVOKED_PARTITIONS:
                self._await_revocation(member_id, now_ms)


def reason_of(events: Iterable[Event], known: Container[str]) -> str:
    """Why the group's epoch is raised by what comes with it; `known`: who was a member before."""
    joined = changed = left = regexes = 0
    last = ""
    for event in events:
        if isinstance(event, MemberSet):
            last = event.member_id
            if event.value is None:
                left += 1
            elif event.member_id in known:
                changed += 1
            else:
                joined += 1
        elif isinstance(event, RegexSet):
            regexes += 1
    for count, words in ((left, "left"), (joined, "joined"), (changed, "subscribed anew")):
        if count:
            return f"{last} {words}" if count == 1 else f"{count} members {words}"
    if regexes:
        return "a pattern stands for other topics"
    return "topics that members are subscribed to were created, changed or deleted"
