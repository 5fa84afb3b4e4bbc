"""A share group in a running coordinator: its state, what of it is stored, and its deadlines.

What is in force and what is stored, and how the one follows the other: broker/groups/in_units.py.

Deadlines are not stored: after a load every member has its whole session timeout. Nor is what was
asked of the share coordinator and not answered yet: after a load it is asked again.

Pure: no clock, no loop. Owner: service.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.groups.in_units import InUnits
from broker.groups.share.events import Event, MemberSet
from broker.groups.share.group import ShareGroup
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from broker.groups.share.state_core import Key
    from broker.groups.share.types import ShareGroupState, ShareTimes

#: A deadline that does not come.
NEVER_MS = 2**63 - 1


class Attempt(NamedTuple):
    """What the share coordinator was asked to begin a partition with."""

    epoch: int
    start_offset: int


class LiveShareGroup(InUnits[ShareGroup, Event]):
    """See above; the names that ClassicGroup has too mean the same."""

    __slots__ = (
        "armed_at_ms",
        "attempts",
        "begin_at_ms",
        "busy",
        "epoch_floor",
        "group_id",
        "is_computing",
        "session_deadlines",
        "target_at_ms",
        "topics_version",
        "wanted_at_ms",
    )

    #: What ListGroups calls its type.
    kind = "share"
    state_timestamp_ms = -1
    protocol_type = "share"
    is_of_consumers = False

    def __init__(self, group_id: str) -> None:
        super().__init__(ShareGroup(group_id), ShareGroup(group_id))
        self.group_id = group_id
        #: In ms of the timers' clock, by member id.
        self.session_deadlines: dict[str, int] = {}
        self.target_at_ms = NEVER_MS
        #: When the timer is armed for, and the earliest deadline that was set since.
        self.armed_at_ms = NEVER_MS
        self.wanted_at_ms = NEVER_MS
        #: Which topics there were when the metadata hash was last looked at.
        self.topics_version = -1
        self.is_computing = False
        #: Partitions that somebody looks after, by topic: until when they are left to him.
        #: The least of it.
        self.busy: dict[UUID, dict[int, int]] = {}
        self.begin_at_ms = NEVER_MS
        #: The last attempt at each that is not known to have succeeded.
        self.attempts: dict[Key, Attempt] = {}
        #: The share coordinator has a state of an epoch like this.
        self.epoch_floor = 0

    # --- what others read

    @property
    def state(self) -> ShareGroupState:
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

    @property
    def offsets_error(self) -> ErrorCode:
        """Offsets are committed by consumer groups."""
        return ErrorCode.GROUP_ID_NOT_FOUND

    # --- partitions at the share coordinator

    def occupy(self, keys: Iterable[Key], until_ms: int) -> None:
        for topic_id, partition in keys:
            self.busy.setdefault(topic_id, {})[partition] = until_ms
        self.begin_at_ms = self._next_free_ms()
        self.wanted_at_ms = min(self.wanted_at_ms, self.begin_at_ms)

    def release(self, keys: Iterable[Key]) -> None:
        for topic_id, partition in keys:
            mine = self.busy.get(topic_id)
            if mine is not None and mine.pop(partition, None) is not None and not mine:
                del self.busy[topic_id]
        self.begin_at_ms = self._next_free_ms()

    def _next_free_ms(self) -> int:
        return min((min(mine.values()) for mine in self.busy.values()), default=NEVER_MS)

    def begin_soon(self, now_ms: int) -> None:
        """There may be something to begin that no heartbeat will look for."""
        if self.applied.members:
            self.begin_at_ms = now_ms
            self.wanted_at_ms = min(self.wanted_at_ms, now_ms)

    def release_overdue(self, now_ms: int) -> None:
        self.release(
            [
                (topic_id, partition)
                for topic_id, mine in self.busy.items()
                for partition, until_ms in mine.items()
                if until_ms <= now_ms
            ]
        )

    # --- deadlines

    def start(self, times: ShareTimes, now_ms: int) -> None:
        """After a load: everybody has to be heard of within its timeout."""
        for member_id in self.applied.members:
            self.touch(member_id, times, now_ms)
        if self.applied.partitions.initializing:
            self.begin_soon(now_ms)

    def expect_again(self, times: ShareTimes, now_ms: int) -> None:
        """A write failed: who is a member again, as its end was not stored, has its whole timeout.
        (Else nobody would ever end a member that is silent.)"""
        for member_id in self.applied.members:
            if member_id not in self.session_deadlines:
                self.touch(member_id, times, now_ms)

    def touch(self, member_id: str, times: ShareTimes, now_ms: int) -> None:
        """A member was heard of."""
        if member_id in self.applied.members:
            at_ms = now_ms + times.session_timeout_ms
            self.session_deadlines[member_id] = at_ms
            self.wanted_at_ms = min(self.wanted_at_ms, at_ms)

    def overdue(self, now_ms: int) -> list[str]:
        """Members whose time is up."""
        return [each for each, at_ms in self.session_deadlines.items() if at_ms <= now_ms]

    def next_deadline_ms(self) -> int:
        return min(
            self.target_at_ms,
            self.begin_at_ms,
            min(self.session_deadlines.values(), default=NEVER_MS),
        )

    def _follow(self, event: Event, now_ms: int) -> None:
        if isinstance(event, MemberSet) and event.value is None:
            self.session_deadlines.pop(event.member_id, None)

    def _derive_deadlines(self, now_ms: int) -> None:
        members = self.applied.members
        for member_id in [each for each in self.session_deadlines if each not in members]:
            del self.session_deadlines[member_id]
