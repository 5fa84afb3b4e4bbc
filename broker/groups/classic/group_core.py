"""The state machine of one classic consumer group. Pure: inputs and the time in, effects out.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable -> PreparingRebalance ...
    PreparingRebalance -> Empty (nobody is left), any -> Dead (the partition went elsewhere)

Behaviour is that of Kafka 4.3's group coordinator for groups of the classic type: KIP-62 (session
and rebalance timeouts), KIP-134 (initial delay), KIP-345 (static members), KIP-394 (member id
required), KIP-389 (size limit), KIP-814 (static leader skips the assignment).

Cooperative rebalancing (KIP-429) needs nothing here: members' metadata and assignments are opaque,
and what a member was assigned stays valid while the next rebalance is prepared.

The owner calls one method per input and carries out the effects that it returns, in order; see
group_types. `now_ms` never goes back. Nothing is done between calls, so time passes only in `tick`.

Stricter than Kafka in two points. A request that a later one of the same member supersedes, and a
SyncGroup whose member is removed, are answered; Kafka forgets them. And who asks for its assignment
again gets it once the generation is stored again: a broker that was deposed, and does not know it
yet, would let it go on from offsets that are not the group's last.
"""

from __future__ import annotations

import logging

from broker.groups.classic.group_base import (
    COMPLETING,
    DEAD,
    EMPTY,
    NEVER_MS,
    PREPARING,
    STABLE,
    GroupBase,
)
from broker.groups.classic.members import Member
from broker.groups.classic.types import (
    Answer,
    AssignmentStored,
    Continuation,
    Effect,
    JoinInput,
    JoinResult,
    LeavingMember,
    OwnershipShown,
    Persist,
    StaticMemberStored,
    SyncInput,
    SyncResult,
)
from runtime.logs import kv
from wire.kafka.errors import ErrorCode

logger = logging.getLogger(__name__)

#: Ids handed out and not yet used, at most; each lapses after one session timeout.
PENDING_JOIN_MAX = 10_000


class ClassicGroup(GroupBase):
    """One group. Plain reads are fine at any time; changes go through the inputs."""

    __slots__ = ()

    # --- inputs

    def join(self, token: object, request: JoinInput, now_ms: int) -> list[Effect]:
        """JoinGroup. Its `Answer` comes now, when the rebalance completes, or when a static
        member's new id is stored."""
        names = [name for name, _ in request.protocols]
        member_id = request.member_id
        if self.state is DEAD:
            self._refuse_join(token, member_id, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        elif not self._accepts(member_id):
            self._remove_refused(member_id, now_ms)
            self._refuse_join(token, "", ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif not self._supports(request.protocol_type, names):
            self._refuse_join(token, member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif not member_id:
            self._join_unknown(token, request, now_ms)
        elif member_id in self.pending_join and request.instance_id is None:
            self._add(token, request, member_id, now_ms)
        elif error := self._member_error(member_id, request.instance_id):
            self._refuse_join(token, member_id, error)
        else:
            self._rejoin(token, request, self.members.by_id[member_id], now_ms)
        return self._take()

    def sync(self, token: object, request: SyncInput, now_ms: int) -> list[Effect]:
        """SyncGroup. The leader's starts the generation once its assignment is stored."""
        error = self._sync_error(request)
        if error:
            self._effects.append(Answer(token, SyncResult(error)))
            return self._take()
        member = self.members.by_id[request.member_id]
        is_first = request.member_id in self.pending_sync
        self.pending_sync.discard(request.member_id)
        if not self.pending_sync:
            self._sync_deadline_ms = NEVER_MS
        if self.state is STABLE and is_first:
            self._effects.append(Answer(token, self._sync_result(member)))
            return self._take()
        self._answer_sync(member, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_token = token
        if self.state is STABLE:
            shown = OwnershipShown(token, member.member_id)
            self._effects.append(Persist(self.snapshot(), shown))
        elif request.member_id == self.members.leader_id:
            given = request.assignments
            assignments = {each: given.get(each, b"") for each in self.members.by_id}
            then = AssignmentStored(self.generation_id, assignments)
            self._effects.append(Persist(self.snapshot(assignments), then))
        return self._take()

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation_id: int, now_ms: int
    ) -> ErrorCode:
        """Heartbeat: the answer. It only moves a deadline further away, so there are no effects."""
        if self.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self._member_error(member_id, instance_id)
        if error:
            return error
        if generation_id != self.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        self._postpone(self.members.by_id[member_id], now_ms)
        if self.state is PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(
        self, leaving: list[LeavingMember], now_ms: int
    ) -> tuple[list[ErrorCode], list[Effect]]:
        """LeaveGroup (KIP-345: several at once): one error per member of the request, in order."""
        count_before = len(self.members)
        errors = [self._leave_one(each) for each in leaving]
        if self.state is PREPARING:
            self._maybe_complete_join(now_ms)
        elif len(self.members) < count_before:
            self._prepare_rebalance("members left by LeaveGroup", now_ms)
        return errors, self._take()

    def tick(self, now_ms: int) -> list[Effect]:
        """Time has passed: acts on every deadline up to `now_ms`, and arms the timer again."""
        self._armed_at_ms = NEVER_MS
        if self._join_deadline_ms <= now_ms:
            self._on_join_deadline(now_ms)
        if self._sync_deadline_ms <= now_ms:
            self._on_sync_deadline(now_ms)
        for member_id in [i for i, at_ms in self.pending_join.items() if at_ms <= now_ms]:
            logger.info("pending member lapsed", kv(group=self.group_id, member=member_id))
            del self.pending_join[member_id]
            self._complete_if_all_joined(now_ms)
        for member in list(self.members.by_id.values()):
            if member.session_deadline_ms > now_ms:
                continue
            if member.is_excused:
                # Its deadline starts anew when it is answered.
                member.session_deadline_ms = NEVER_MS
            elif self.members.by_id.get(member.member_id) is member:
                self._expire(member, now_ms)
        self._arm(self._next_deadline_ms())
        return self._take()

    def stored(self, then: Continuation, error: ErrorCode, now_ms: int) -> list[Effect]:
        """A `Persist` was acknowledged (NONE), or failed: `error` is what members are told."""
        if isinstance(then, AssignmentStored):
            self._on_assignment_stored(then, error, now_ms)
        elif isinstance(then, StaticMemberStored):
            self._on_static_member_stored(then, error, now_ms)
        elif isinstance(then, OwnershipShown):
            self._on_ownership_shown(then, error, now_ms)
        elif error:
            # An empty generation holds nobody back: the one before it has no live member either.
            logger.warning("empty generation not stored", kv(group=self.group_id, error=error.name))
        return self._take()

    def close(self, error: ErrorCode) -> list[Effect]:
        """The group is no longer this broker's: everybody who waits is told so."""
        self.state = DEAD
        for member in self.members.by_id.values():
            self._answer_join(member, JoinResult(error, member.member_id))
            self._answer_sync(member, SyncResult(error))
        return self._take()

    def start(self, now_ms: int) -> list[Effect]:
        """After `restore`: members have one session timeout to be heard of. A group that is over
        the size limit, which must have been lowered, rebalances."""
        for member in self.members.by_id.values():
            self._schedule(member, member.session_timeout_ms, now_ms)
        if len(self.members) > self._limits.members_max:
            self._prepare_rebalance("loaded over the size limit", now_ms)
        return self._take()

    # --- joining

    def _remove_refused(self, member_id: str, now_ms: int) -> None:
        self.pending_join.pop(member_id, None)
        member = self.members.by_id.get(member_id)
        if member is not None:
            self._drop(member, ErrorCode.GROUP_MAX_SIZE_REACHED)
        self._maybe_complete_join(now_ms)

    def _join_unknown(self, token: object, request: JoinInput, now_ms: int) -> None:
        """No member id: a new dynamic member, a new static one, or one that was restarted."""
        new_id = request.new_member_id
        if request.instance_id is not None:
            old_id = self.members.static_ids.get(request.instance_id)
            if old_id is None:
                self._add(token, request, new_id, now_ms)
            else:
                self._replace_static(token, request, old_id, now_ms)
        elif not request.requires_known_member_id:
            self._add(token, request, new_id, now_ms)
        elif len(self.pending_join) >= PENDING_JOIN_MAX:
            self._refuse_join(token, "", ErrorCode.GROUP_MAX_SIZE_REACHED)
        else:
            self.pending_join[new_id] = now_ms + request.session_timeout_ms
            self._arm(self.pending_join[new_id])
            self._refuse_join(token, new_id, ErrorCode.MEMBER_ID_REQUIRED)

    def _add(self, token: object, request: JoinInput, member_id: str, now_ms: int) -> None:
        member = Member(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.protocol_type,
            request.protocols,
            join_token=token,
            is_new=True,
        )
        if not self.members:
            self.protocol_type = request.protocol_type
        self.pending_join.pop(member_id, None)
        self.members.add(member)
        if self.state is PREPARING and self._is_initial:
            self._new_member_added = True
        self._schedule(member, self._limits.new_member_join_timeout_ms, now_ms)
        self._rebalance_or_complete(f"member {member_id} joins: {request.reason}", now_ms)

    def _rejoin(self, token: object, request: JoinInput, member: Member, now_ms: int) -> None:
        """A member that has its id joins (again)."""
        same = member.protocols == request.protocols
        leads = member.member_id == self.members.leader_id
        if self.state is EMPTY:
            self._refuse_join(token, member.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        elif same and (self.state is COMPLETING or (self.state is STABLE and not leads)):
            # The answer to its JoinGroup may be lost. A leader that rejoins a stable group wants a
            # rebalance: what it assigns (a topic's partitions) has changed.
            self._effects.append(Answer(token, self._join_result(member)))
        else:
            self._update(token, request, member)
            why = f"member {member.member_id} rejoins: {request.reason}"
            self._rebalance_or_complete(why, now_ms)

    def _update(self, token: object, request: JoinInput, member: Member) -> None:
        superseded = JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
        self._answer_join(member, superseded)
        self.members.set_protocols(member, request.protocols)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        self.members.set_join_token(member, token)

    def _replace_static(self, token: object, request: JoinInput, old_id: str, now_ms: int) -> None:
        """KIP-345: who was the instance before is fenced; while the group is stable and its
        protocol stays what it is, nobody else notices."""
        member = self.members.by_id[old_id]
        leader_before = self.members.leader_id or ""
        self._answer_join(member, JoinResult(ErrorCode.FENCED_INSTANCE_ID, old_id))
        self._answer_sync(member, SyncResult(ErrorCode.FENCED_INSTANCE_ID))
        then = StaticMemberStored(
            token,
            self.generation_id,
            old_id,
            request.new_member_id,
            leader_before,
            member.protocols,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            request.supports_skip_assignment,
        )
        self._rename(member, request.new_member_id)
        member.is_new = False
        self._update(token, request, member)
        self._schedule(member, member.session_timeout_ms, now_ms)
        why = f"static member {request.instance_id} rejoins: {request.reason}"
        if self.state is STABLE:
            if self.members.select_protocol() == self.protocol_name:
                self._effects.append(Persist(self.snapshot(), then))
            else:
                self._prepare_rebalance(why, now_ms)
        elif self.state is COMPLETING:
            # The leader may assign to the old id, so the new one would get nothing.
            self._prepare_rebalance(why, now_ms)
        else:
            self._maybe_complete_join(now_ms)

    def _on_static_member_stored(
        self, then: StaticMemberStored, error: ErrorCode, now_ms: int
    ) -> None:
        member = self.members.by_id.get(then.new_member_id)
        if member is None or member.join_token is not then.token:
            return  # answered meanwhile: it left, or was replaced in its turn
        if error:
            self.members.set_protocols(member, then.protocols_before)
            member.rebalance_timeout_ms = then.rebalance_timeout_before_ms
            member.session_timeout_ms = then.session_timeout_before_ms
            self._answer_join(member, JoinResult(error, leader_id=then.leader_before))
            self._rename(member, then.old_member_id)
            self._schedule(member, member.session_timeout_ms, now_ms)
            return
        if self.state is not STABLE or self.generation_id != then.generation_id:
            return  # its JoinGroup counts for the rebalance that began, and is answered by it
        result = self._join_result(member)
        if not then.supports_skip_assignment:
            # An older client that reads its own id as the leader's would assign, and SyncGroup in
            # a stable group ignores that: it must take itself for a follower.
            result.leader_id = then.leader_before
            result.members = []
        else:
            result.skip_assignment = member.member_id == self.members.leader_id
        self._answer_join(member, result)
        self._schedule(member, member.session_timeout_ms, now_ms)

    # --- rebalance

    def _rebalance_or_complete(self, reason: str, now_ms: int) -> None:
        if self.state is PREPARING:
            self._maybe_complete_join(now_ms)
        else:
            self._prepare_rebalance(reason, now_ms)

    def _prepare_rebalance(self, reason: str, now_ms: int) -> None:
        if self.state is COMPLETING:
            self._discard_assignments(ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        else:
            self._refuse_syncs(ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        self.pending_sync.clear()
        self._sync_deadline_ms = NEVER_MS
        self._is_initial = self.state is EMPTY
        logger.info(
            "rebalance begins",
            kv(group=self.group_id, state=self.state.value, generation=self.generation_id,
               reason=reason),
        )  # fmt: skip
        self._enter(PREPARING, now_ms)
        if self._is_initial:
            # More members are likely to follow the first: one rebalance for all of them.
            delay_ms = self._limits.initial_rebalance_delay_ms
            self._new_member_added = False
            self._initial_delay_ms = delay_ms
            self._initial_remaining_ms = max(self.members.rebalance_timeout_ms() - delay_ms, 0)
            self._set_join_deadline(now_ms + delay_ms)
        elif self._all_joined:
            self._complete_join(now_ms)
        else:
            self._set_join_deadline(now_ms + self.members.rebalance_timeout_ms())

    @property
    def _all_joined(self) -> bool:
        return len(self.members) == self.members.awaiting_join_count and not self.pending_join

    def _maybe_complete_join(self, now_ms: int) -> None:
        """Completes if nobody is missing; the initial rebalance always waits for its delay."""
        if not self._is_initial:
            self._complete_if_all_joined(now_ms)

    def _complete_if_all_joined(self, now_ms: int) -> None:
        if self.state is PREPARING and self._all_joined:
            self._complete_join(now_ms)

    def _on_join_deadline(self, now_ms: int) -> None:
        self._join_deadline_ms = NEVER_MS
        if self._is_initial and self._new_member_added and self._initial_remaining_ms:
            self._new_member_added = False
            delay_ms = min(self._limits.initial_rebalance_delay_ms, self._initial_remaining_ms)
            remaining_ms = self._initial_remaining_ms - self._initial_delay_ms
            self._initial_remaining_ms = max(remaining_ms, 0)
            self._initial_delay_ms = delay_ms
            self._set_join_deadline(now_ms + delay_ms)
        else:
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        """Nobody is waited for any longer: the next generation is who has joined, and static
        members, who are only removed when their session ends."""
        assert self.state is PREPARING
        self._join_deadline_ms = NEVER_MS
        for member in list(self.members.by_id.values()):
            if member.join_token is None and member.instance_id is None:
                logger.info(
                    "member did not rejoin", kv(group=self.group_id, member=member.member_id)
                )
                self._drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if self.members and not self.members.elect_joined_leader():
            # Only absent static members are left: wait until they join or their sessions end.
            self._is_initial = False
            self._set_join_deadline(now_ms + self.members.rebalance_timeout_ms())
            return
        self.generation_id += 1
        self._is_initial = False
        self.pending_sync.clear()
        if not self.members:
            self.protocol_name = None
            self.subscribed = self._compute_subscribed()
            self._enter(EMPTY, now_ms)
            logger.info(
                "generation is empty", kv(group=self.group_id, generation=self.generation_id)
            )
            self._effects.append(Persist(self.snapshot()))
            return
        self.protocol_name = self.members.select_protocol()
        self.subscribed = self._compute_subscribed()
        self._enter(COMPLETING, now_ms)
        logger.info(
            "generation begins",
            kv(group=self.group_id, generation=self.generation_id, members=len(self.members),
               protocol=self.protocol_name, leader=self.members.leader_id),
        )  # fmt: skip
        for member in self.members.by_id.values():
            self._answer_join(member, self._join_result(member))
            self._schedule(member, member.session_timeout_ms, now_ms)
            member.is_new = False
            self.pending_sync.add(member.member_id)
        self._sync_deadline_ms = now_ms + self.members.rebalance_timeout_ms()
        self._arm(self._sync_deadline_ms)

    def _on_assignment_stored(self, then: AssignmentStored, error: ErrorCode, now_ms: int) -> None:
        if self.state is not COMPLETING or self.generation_id != then.generation_id:
            return  # another rebalance has begun, and told the members so
        if error:
            self._discard_assignments(error, now_ms)
            self._prepare_rebalance(f"assignment not stored: {error.name}", now_ms)
            return
        self._enter(STABLE, now_ms)
        for member in self.members.by_id.values():
            member.assignment = then.assignments.get(member.member_id, b"")
            self._finish_sync(member, self._sync_result(member), now_ms)

    def _on_ownership_shown(self, then: OwnershipShown, error: ErrorCode, now_ms: int) -> None:
        member = self.members.by_id.get(then.member_id)
        if member is None or member.sync_token is not then.token:
            return  # answered meanwhile: by a rebalance that began, or a later SyncGroup
        result = SyncResult(error) if error else self._sync_result(member)
        self._finish_sync(member, result, now_ms)

    def _discard_assignments(self, error: ErrorCode, now_ms: int) -> None:
        for member in self.members.by_id.values():
            member.assignment = b""
        self._refuse_syncs(error, now_ms)

    def _on_sync_deadline(self, now_ms: int) -> None:
        """KAFKA-10288 and others: who joined and never asks for its assignment is removed."""
        self._sync_deadline_ms = NEVER_MS
        if self.state not in (COMPLETING, STABLE) or not self.pending_sync:
            return
        late = [m for i, m in self.members.by_id.items() if i in self.pending_sync]
        for member in late:
            self._drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._prepare_rebalance(f"{len(late)} members sent no SyncGroup", now_ms)

    # --- leaving

    def _leave_one(self, leaving: LeavingMember) -> ErrorCode:
        if self.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        member_id = leaving.member_id
        if not member_id:
            member_id = self.members.static_ids.get(leaving.instance_id or "", "")
            if not member_id:
                return ErrorCode.UNKNOWN_MEMBER_ID
        elif member_id in self.pending_join:
            del self.pending_join[member_id]
            return ErrorCode.NONE
        elif error := self._member_error(member_id, leaving.instance_id):
            return error
        logger.info(
            "member leaves", kv(group=self.group_id, member=member_id, reason=leaving.reason)
        )
        self._drop(self.members.by_id[member_id], ErrorCode.UNKNOWN_MEMBER_ID)
        return ErrorCode.NONE

    def _expire(self, member: Member, now_ms: int) -> None:
        logger.info("session expired", kv(group=self.group_id, member=member.member_id))
        self._drop(member, ErrorCode.UNKNOWN_MEMBER_ID)
        if self.state in (STABLE, COMPLETING):
            self._prepare_rebalance(f"session of {member.member_id} expired", now_ms)
        else:
            self._complete_if_all_joined(now_ms)
