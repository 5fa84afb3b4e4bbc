"""Requests about share groups: they find the group's partition, and what they may do with it.

Beside members' heartbeats: what an operator sees and changes of where a share group reads, the
start offsets of its partitions, which the share coordinator keeps.

A change is first recorded in the group, then asked of the share coordinator, then recorded as done:
what a call leaves undone is known, and done by the next one. Only of a group without members
something may be changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.share import state_core
from broker.groups.share.changes import Changes
from broker.groups.share.live import LiveShareGroup
from broker.groups.share.types import HeartbeatResult
from broker.share.ports import ShareKey
from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from broker.coordinator.coordinator import Coordinator
    from broker.groups.shard import GroupEntry, GroupShard
    from broker.groups.share.ports import ShareNeighbours
    from broker.groups.share.service import ShareMembership
    from broker.groups.share.state_core import Key, Partitions
    from broker.groups.share.types import HeartbeatInput
    from broker.share.ports import ShareState


@dataclass(slots=True, frozen=True)
class StartOffset:
    """Where a group reads a partition. -1: nothing is known of it."""

    start_offset: int = -1
    leader_epoch: int = 0
    #: Records that it has still to deliver, or acknowledge.
    lag: int = -1
    error: ErrorCode = ErrorCode.NONE


class ShareRequests:
    """About all share groups of a broker; keeps nothing."""

    def __init__(
        self,
        base: Coordinator[GroupShard],
        membership: ShareMembership,
        neighbours: ShareNeighbours,
    ) -> None:
        self._base = base
        self._membership = membership
        self._neighbours = neighbours

    def heartbeat(
        self, group_id: str, request: HeartbeatInput, reply: Callable[[HeartbeatResult], None]
    ) -> None:
        """ShareGroupHeartbeat: `reply(result)`, now or once what it changed is stored."""
        shard, error = self._base.find(group_id)
        if shard is None:
            reply(HeartbeatResult(error))
        else:
            answer = self._membership.answers.to(reply)
            self._membership.heartbeat(shard, group_id, request, answer)
            answer.waits = True

    # --- reading

    @property
    def assignor(self) -> str:
        """The one that all groups have."""
        return self._membership.settings.group_share_assignors[0]

    def find(self, group_id: str) -> tuple[LiveShareGroup | None, ErrorCode]:
        """GROUP_ID_NOT_FOUND also of a group of another kind, and of one that is not stored yet."""
        shard, error = self._base.find(group_id)
        if shard is None:
            return None, error
        entry = shard.groups.get(group_id)
        if entry is None or not isinstance(entry.group, LiveShareGroup) or not entry.group.is_there:
            return None, ErrorCode.GROUP_ID_NOT_FOUND
        return entry.group, ErrorCode.NONE

    def is_member(self, group_id: str, member_id: str) -> bool | None:
        """As broker/share/ports.py has it."""
        shard, _ = self._base.find(group_id)
        if shard is None:
            return None
        entry = shard.groups.get(group_id)
        return (
            entry is not None
            and isinstance(entry.group, LiveShareGroup)
            and member_id in entry.group.applied.members
        )

    def known(self, group_id: str) -> tuple[ErrorCode, Partitions]:
        """All partitions that the group has begun; of a group that is not there, none."""
        live, error = self.find(group_id)
        if live is None:
            return (ErrorCode.NONE if error is ErrorCode.GROUP_ID_NOT_FOUND else error), {}
        return ErrorCode.NONE, live.stored.partitions.initialized

    async def read(
        self, group_id: str, names: Mapping[UUID, str], keys: Sequence[Key]
    ) -> dict[Key, StartOffset]:
        """What the share coordinator has of these, and what is left of them. As in Kafka, what
        cannot be read counts as nothing known."""
        if not keys:
            return {}
        found = await self._neighbours.persister.read_summary(
            [ShareKey(group_id, *key) for key in keys]
        )
        states: dict[Key, ShareState] = {}
        for key in keys:
            state = found.get(ShareKey(group_id, *key))
            if state is not None and not state.error:
                states[key] = state
        counted = [
            (names[topic_id], partition)
            for (topic_id, partition), state in states.items()
            if state.start_offset >= 0 and state.delivery_complete_count >= 0
        ]
        ends = await self._neighbours.ends.read(counted) if counted else {}
        told: dict[Key, StartOffset] = {}
        for key in keys:
            state = states.get(key)
            if state is None:
                told[key] = StartOffset()
                continue
            lag = -1
            place = (names[key[0]], key[1])
            if state.start_offset >= 0 and state.delivery_complete_count >= 0:
                if place not in ends:
                    told[key] = StartOffset(error=ErrorCode.LEADER_NOT_AVAILABLE)
                    continue
                lag = max(ends[place] - state.start_offset - state.delivery_complete_count, 0)
            told[key] = StartOffset(state.start_offset, state.leader_epoch, lag)
        return told

    # --- changes

    def alter(
        self,
        group_id: str,
        wanted: Partitions,
        offsets: Mapping[Key, int],
        reply: Callable[[ErrorCode, Mapping[Key, ErrorCode]], None],
    ) -> None:
        """The group begins these partitions anew: `reply(error of all, errors by partition)`. A
        group that is not there is made."""
        shard, error = self._base.find(group_id)
        if shard is None:
            reply(error, {})
            return
        membership = self._membership
        entry = shard.groups.get(group_id)
        if entry is None:
            if not wanted:
                reply(ErrorCode.NONE, {})
                return
            live = LiveShareGroup(group_id)
            entry = shard.install(live)
        elif isinstance(entry.group, LiveShareGroup):
            live = entry.group
        else:
            reply(ErrorCode.GROUP_ID_NOT_FOUND, {})
            return
        if not live.is_empty:
            reply(ErrorCode.NON_EMPTY_GROUP, {})
            return
        if not wanted:
            reply(ErrorCode.NONE, {})
            return
        changes = Changes(live.applied)
        state_core.alter(changes, wanted, membership.topics, above=live.epoch_floor)
        begun = membership.attempt(live, offsets)
        membership.commit_begun(entry, live, changes, begun, reply)

    def delete(
        self,
        group_id: str,
        ids: Sequence[UUID],
        reply: Callable[[ErrorCode, Mapping[UUID, ErrorCode]], None],
    ) -> None:
        """The group forgets these topics: `reply(error of all, errors by topic)`;
        UNKNOWN_TOPIC_OR_PARTITION of one that it knows nothing of."""
        entry, live, error = self._of_empty_group(group_id)
        if entry is None or live is None:
            reply(error, {})
            return
        state = live.applied.partitions
        parts = (state.initializing, state.initialized, state.deleting)
        known = [each for each in dict.fromkeys(ids) if any(each in part for part in parts)]
        unknown = {each: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for each in ids if each not in known}

        def deleted(errors: Mapping[UUID, ErrorCode], error: ErrorCode) -> None:
            reply(error, {} if error else {**errors, **unknown})

        self._membership.delete_states(entry, live, known, deleted)

    def _of_empty_group(
        self, group_id: str
    ) -> tuple[GroupEntry | None, LiveShareGroup | None, ErrorCode]:
        shard, error = self._base.find(group_id)
        if shard is None:
            return None, None, error
        entry = shard.groups.get(group_id)
        if entry is None or not isinstance(entry.group, LiveShareGroup):
            return None, None, ErrorCode.GROUP_ID_NOT_FOUND
        if not entry.group.is_empty:
            return None, None, ErrorCode.NON_EMPTY_GROUP
        return entry, entry.group, ErrorCode.NONE
