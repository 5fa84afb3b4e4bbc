"""Classic calls of a consumer group's members: to their core, and to the log.

Timers: a member that is told REBALANCE_IN_PROGRESS has its rebalance timeout to join, and as long
again, from its JoinGroup on, to ask for what it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.classic.types import JoinResult, SyncResult
from broker.groups.consumer import mixed_core
from broker.groups.consumer.types import GroupError
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.groups.classic.types import JoinInput, LeavingMember, SyncInput
    from broker.groups.consumer.live import LiveGroup
    from broker.groups.consumer.service import ConsumerGroups
    from broker.groups.shard import GroupEntry


class MixedGroups:
    """One per group coordinator; keeps nothing."""

    def __init__(self, consumers: ConsumerGroups) -> None:
        self._consumers = consumers

    def join(
        self,
        entry: GroupEntry,
        live: LiveGroup,
        request: JoinInput,
        reply: Callable[[JoinResult], None],
    ) -> ErrorCode:
        """JoinGroup: an error is returned, or `reply` is called once it is stored."""
        consumers = self._consumers
        if not (consumers.settings.may_upgrade or consumers.settings.may_downgrade):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        try:
            changes, result = mixed_core.join(live.applied, request, consumers.context(live))
        except GroupError as error:
            if error.code is not ErrorCode.MEMBER_ID_REQUIRED:
                return error.code
            reply(JoinResult(error.code, request.new_member_id))
            return ErrorCode.NONE
        live.topics_version = consumers.topics_version
        consumers.heard_of(live, result.member_id)
        live.await_sync(result.member_id, consumers.now_ms())

        def done(error: ErrorCode) -> None:
            reply(JoinResult(error, request.member_id) if error else result)

        consumers.finish(entry, live, changes.events, done)
        return ErrorCode.NONE

    def sync(
        self,
        entry: GroupEntry,
        live: LiveGroup,
        request: SyncInput,
        reply: Callable[[SyncResult], None],
    ) -> ErrorCode:
        consumers = self._consumers
        try:
            result = mixed_core.sync(live.applied, request, consumers.context(live))
        except GroupError as error:
            if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
                self._await_join(entry, live, request.member_id)
            return error.code
        consumers.heard_of(live, request.member_id)
        live.sync_deadlines.pop(request.member_id, None)
        consumers.commit(
            entry, live, (), lambda error: reply(SyncResult(error) if error else result)
        )
        return ErrorCode.NONE

    def heartbeat(
        self,
        entry: GroupEntry,
        live: LiveGroup,
        member_id: str,
        instance_id: str | None,
        generation_id: int,
    ) -> ErrorCode:
        try:
            error = mixed_core.heartbeat(live.applied, member_id, instance_id, generation_id)
        except GroupError as refusal:
            return refusal.code
        self._consumers.heard_of(live, member_id)
        if error:
            self._await_join(entry, live, member_id)
        return error

    def _await_join(self, entry: GroupEntry, live: LiveGroup, member_id: str) -> None:
        live.await_join(member_id, self._consumers.now_ms())
        self._consumers.look_ahead(entry, live)

    def leave(
        self,
        entry: GroupEntry,
        live: LiveGroup,
        members: list[LeavingMember],
        reply: Callable[[ErrorCode, list[ErrorCode]], None],
    ) -> None:
        """LeaveGroup: `reply(error of all, errors by member)` once it is stored."""
        consumers = self._consumers
        changes, errors = mixed_core.leave(live.applied, members, consumers.context(live))
        consumers.finish(
            entry, live, changes.events, lambda error: reply(error, [] if error else errors)
        )
