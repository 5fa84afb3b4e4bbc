"""A streams group in a running coordinator: its state, what of it is stored (in_units.py), and its
deadlines.

Deadlines are not stored: after a load every member has its whole session timeout. Nor is what a
member asked of the others: that the application shuts down, and the epoch of their endpoints.

Pure: no clock, no loop. Owner: service.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.in_units import InUnits
from broker.groups.streams.events import CurrentSet, Event, MemberSet
from broker.groups.streams.group import NOTHING_HELD, StreamsGroup
from broker.groups.streams.types import MemberState, StreamsState, StreamsTimes
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from broker.groups.classic.group import ClassicGroup
    from broker.groups.in_units import Unit
    from broker.groups.streams.topology_core import Configured
    from broker.groups.streams.types import Current, Topics

#: A deadline that does not come.
NEVER_MS = 2**63 - 1


class LiveStreamsGroup(InUnits[StreamsGroup, Event]):
    """See above; the names that ClassicGroup has too mean the same."""

    __slots__ = (
        "configured",
        "delayed_until_ms",
        "endpoint_epoch",
        "group_id",
        "is_computing",
        "origin",
        "revocation_deadlines",
        "session_deadlines",
        "shutdown_by",
        "target_at_ms",
        "timer",
        "topics",
        "topics_version",
    )

    #: What ListGroups calls its type.
    kind = "streams"
    #: What an empty group's offsets expire by: each by its own commit.
    state_timestamp_ms = -1
    protocol_type = "streams"
    is_of_consumers = True

    def __init__(self, group_id: str, topics: Topics, origin: ClassicGroup | None = None) -> None:
        """`origin`: the empty group of the classic protocol that this one replaces once it is
        stored."""
        super().__init__(StreamsGroup(group_id), StreamsGroup(group_id))
        self.group_id = group_id
        self.topics = topics
        self.origin = origin
        # Deadlines, in ms of the timers' clock, by member id:
        self.session_deadlines: dict[str, int] = {}
        self.revocation_deadlines: dict[str, int] = {}
        self.target_at_ms = NEVER_MS
        #: Until then the group's first members wait for more.
        self.delayed_until_ms = -NEVER_MS
        self.timer = Alarm()
        #: What the applied topology comes to, with topics of that version.
        self.configured: Configured | None = None
        self.topics_version = -1
        self.is_computing = False
        self.endpoint_epoch = 0
        #: The member that wants the whole application to shut down.
        self.shutdown_by: str | None = None

    # --- what others read

    @property
    def state(self) -> StreamsState:
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

        A commit with an epoch that is over counts for tasks that the member has, or is still to
        give back, if they were its own by then (KIP-1251). A partition of that number is the
        task's, of every topic that its subtopology reads."""
        group = self.applied
        if epoch < 0 and not group.members:
            return ErrorCode.NONE
        if member_id not in group.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not speaks_epochs:
            return ErrorCode.UNSUPPORTED_VERSION
        current = group.current.get(member_id, NOTHING_HELD)
        if epoch == current.epoch:
            return ErrorCode.NONE
        if epoch > current.epoch or epoch < 0:
            return ErrorCode.STALE_MEMBER_EPOCH
        readers = group.readers
        for topic_id, partition in partitions:
            topic = None if topic_id is None else self.topics.get_by_id(topic_id)
            since = None
            if topic is not None and topic.name in readers:
                since = _held_since(current, readers[topic.name], partition)
            if since is None or epoch < since:
                return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    def fetch_error(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether this member may read the group's offsets."""
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        if (member_id or "") not in self.stored.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == self.stored.current.get(member_id or "", NOTHING_HELD).epoch:
            return ErrorCode.NONE
        return ErrorCode.STALE_MEMBER_EPOCH

    # --- events on their way

    def units_failed(self, now_ms: int) -> list[Unit[Event]]:
        self.configured = None
        return super().units_failed(now_ms)

    # --- deadlines

    def start(self, times: StreamsTimes, now_ms: int) -> None:
        """After a load: everybody has to be heard of within its timeout."""
        for member_id in self.applied.members:
            self.touch(member_id, times, now_ms)
        self._derive_deadlines(now_ms)

    def expect_again(self, times: StreamsTimes, now_ms: int) -> None:
        """A write failed: who is a member again, as its end was not stored, has its whole timeout.
        (Else nobody would ever end a member that is silent.)"""
        for member_id in self.applied.members:
            if member_id not in self.session_deadlines:
                self.touch(member_id, times, now_ms)

    def touch(self, member_id: str, times: StreamsTimes, now_ms: int) -> None:
        """A member was heard of."""
        if member_id in self.applied.members:
            self._set(self.session_deadlines, member_id, now_ms + times.session_timeout_ms)

    def overdue(self, now_ms: int) -> list[str]:
        """Members whose time is up."""
        late: dict[str, None] = {}
        for deadlines in (self.session_deadlines, self.revocation_deadlines):
            late.update((each, None) for each, at_ms in deadlines.items() if at_ms <= now_ms)
        return list(late)

    def next_deadline_ms(self) -> int:
        return min(
            self.target_at_ms,
            min(self.session_deadlines.values(), default=NEVER_MS),
            min(self.revocation_deadlines.values(), default=NEVER_MS),
        )

    def _follow(self, event: Event, now_ms: int) -> None:
        if isinstance(event, CurrentSet):
            current = event.value
            if current is None or current.state is not MemberState.UNREVOKED_TASKS:
                self.revocation_deadlines.pop(event.member_id, None)
            else:
                self._await_revocation(event.member_id, now_ms)
        elif isinstance(event, MemberSet) and event.value is None:
            self.session_deadlines.pop(event.member_id, None)
            self.revocation_deadlines.pop(event.member_id, None)
            if self.is_empty:
                self.shutdown_by = None

    def _await_revocation(self, member_id: str, now_ms: int) -> None:
        member = self.applied.members.get(member_id)
        if member is not None:
            at_ms = now_ms + max(member.rebalance_timeout_ms, 0)
            self._set(self.revocation_deadlines, member_id, at_ms)

    def _set(self, deadlines: dict[str, int], member_id: str, at_ms: int) -> None:
        deadlines[member_id] = at_ms
        self.timer.want(at_ms)

    def _derive_deadlines(self, now_ms: int) -> None:
        """From the state alone: of members that are not there, none."""
        members = self.applied.members
        for member_id in [each for each in self.session_deadlines if each not in members]:
            del self.session_deadlines[member_id]
        self.revocation_deadlines.clear()
        for member_id, current in self.applied.current.items():
            if current.state is MemberState.UNREVOKED_TASKS:
                self._await_revocation(member_id, now_ms)


class Alarm:
    """When the group's one timer is armed for, and the earliest deadline that was set since."""

    __slots__ = ("armed_at_ms", "wanted_at_ms")

    def __init__(self) -> None:
        self.armed_at_ms = NEVER_MS
        self.wanted_at_ms = NEVER_MS

    def want(self, at_ms: int) -> None:
        self.wanted_at_ms = min(self.wanted_at_ms, at_ms)

    def next_to_arm(self) -> int | None:
        """None: it is armed for that already, or for earlier."""
        at_ms, self.wanted_at_ms = self.wanted_at_ms, NEVER_MS
        if at_ms >= self.armed_at_ms:
            return None
        self.armed_at_ms = at_ms
        return at_ms


def _held_since(current: Current, subtopology_id: str, number: int) -> int | None:
    for held in (current.assigned, current.pending):
        since = held.active.get(subtopology_id, {}).get(number)
        if since is not None:
            return since
    return None
