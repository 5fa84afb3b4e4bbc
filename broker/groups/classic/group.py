"""What a classic group is, apart from what happens to it: its state, its stored form, its way to
give effects. Its inputs are functions (group_core). Pure; owner as there.
"""

from __future__ import annotations

from typing import Self

from broker.groups.classic.members import PROTOCOLS_MAX, Member, Members
from broker.groups.classic.subscription import subscribed_topics
from broker.groups.classic.types import (
    Answer,
    ArmTimer,
    Effect,
    GroupLimits,
    GroupSnapshot,
    GroupState,
    JoinResult,
    MemberSnapshot,
    SyncInput,
    SyncResult,
)
from wire.kafka.errors import ErrorCode

EMPTY = GroupState.EMPTY
PREPARING = GroupState.PREPARING_REBALANCE
COMPLETING = GroupState.COMPLETING_REBALANCE
STABLE = GroupState.STABLE
DEAD = GroupState.DEAD

#: Which states may come before each. DEAD is for good, and is not entered but set (`close`).
_ENTERED_FROM = {
    EMPTY: (PREPARING,),
    PREPARING: (EMPTY, COMPLETING, STABLE),
    COMPLETING: (PREPARING,),
    STABLE: (COMPLETING,),
}

#: The protocol type of groups whose members are consumers of topics.
CONSUMER_PROTOCOL_TYPE = "consumer"

#: A deadline that does not come.
NEVER_MS = 2**63 - 1


class ClassicGroup:
    """One group. Plain reads are fine at any time; only group_core and its parts change it."""

    __slots__ = (
        "armed_at_ms",
        "effects",
        "generation_id",
        "group_id",
        "initial_delay_ms",
        "initial_remaining_ms",
        "is_initial",
        "is_unshared",
        "join_deadline_ms",
        "limits",
        "members",
        "new_member_added",
        "pending_join",
        "pending_sync",
        "protocol_name",
        "protocol_type",
        "rebalance",
        "state",
        "state_timestamp_ms",
        "subscribed",
        "sync_deadline_ms",
    )

    #: What ListGroups calls its type.
    kind = "classic"

    def __init__(self, group_id: str, limits: GroupLimits) -> None:
        self.group_id = group_id
        self.state = EMPTY
        self.state_timestamp_ms = -1
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.members = Members()
        #: Member ids that were handed out and not yet joined by -> when they lapse.
        self.pending_join: dict[str, int] = {}
        #: Members of this generation that did not yet ask for their assignment.
        self.pending_sync: set[str] = set()
        #: Why the last rebalance began, and when; None: none has since this server has the group.
        self.rebalance: tuple[str, int] | None = None
        #: Topics of all members' subscriptions; None: not known, or not a group of consumers.
        self.subscribed: frozenset[str] | None = None
        self.limits = limits
        #: What the input that is under way has left so far; it takes them with it when it ends.
        self.effects: list[Effect] = []
        self.armed_at_ms = NEVER_MS
        self.join_deadline_ms = NEVER_MS
        self.sync_deadline_ms = NEVER_MS
        self.is_initial = False
        self.initial_delay_ms = 0
        self.initial_remaining_ms = 0
        self.new_member_added = False
        #: What was stored last is another kind of group's end: its members' partitions were not
        #: shared among those of now.
        self.is_unshared = False

    # --- what others read

    def commit_error(
        self,
        member_id: str,
        instance_id: str | None,
        generation_id: int,
        *,
        in_transaction: bool = False,
    ) -> ErrorCode:
        """Whether this member may commit offsets now; NONE if so.

        Who gives no generation and no member id manages partitions itself (a simple consumer, the
        admin client): that is fine while the group has no members. In a transaction it is always,
        as older producers (TxnOffsetCommit up to 2) do not know their consumer's; and so is a
        rebalance that completes."""
        if self.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if generation_id < 0 and self.state is EMPTY:
            return ErrorCode.NONE
        if generation_id < 0 and not member_id and instance_id is None:
            return ErrorCode.NONE if in_transaction else ErrorCode.UNKNOWN_MEMBER_ID
        error = self.member_error(member_id, instance_id)
        if error:
            return error
        if generation_id != self.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        if self.state is COMPLETING and not in_transaction:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    @property
    def is_empty(self) -> bool:
        return self.state is EMPTY

    @property
    def is_forgettable(self) -> bool:
        """Empty, and no id was handed out by which somebody is about to join."""
        return self.state is EMPTY and not self.pending_join

    @property
    def is_of_consumers(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member may read this topic; of consumers whose subscription cannot be read,
        any."""
        if self.subscribed is not None:
            return topic in self.subscribed
        return self.is_of_consumers

    def snapshot(self, assignments: dict[str, bytes] | None = None) -> GroupSnapshot:
        """What is stored of this generation, with these assignments instead of the members'."""
        assert assignments is None or assignments.keys() == self.members.by_id.keys()
        members = []
        for member in self.members.by_id.values():
            assert self.protocol_name is not None
            members.append(
                MemberSnapshot(
                    member.member_id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.rebalance_timeout_ms,
                    member.session_timeout_ms,
                    member.metadata(self.protocol_name),
                    member.assignment if assignments is None else assignments[member.member_id],
                )
            )
        return GroupSnapshot(
            self.group_id,
            self.protocol_type or "",
            self.generation_id,
            self.protocol_name,
            self.members.leader_id,
            self.state_timestamp_ms,
            tuple(members),
        )

    @classmethod
    def restore(cls, snapshot: GroupSnapshot, limits: GroupLimits) -> Self:
        """The group as its last stored generation left it; its clock starts with `start`."""
        group = cls(snapshot.group_id, limits)
        group.state = STABLE if snapshot.members else EMPTY
        group.state_timestamp_ms = snapshot.state_timestamp_ms
        group.generation_id = snapshot.generation_id
        group.protocol_type = snapshot.protocol_type or None
        group.protocol_name = snapshot.protocol_name
        for stored in snapshot.members:
            protocols = ((snapshot.protocol_name or "", stored.subscription),)
            member = Member(
                stored.member_id,
                stored.instance_id,
                stored.client_id,
                stored.client_host,
                stored.session_timeout_ms,
                stored.rebalance_timeout_ms,
                snapshot.protocol_type,
                protocols,
                stored.assignment,
                session_deadline_ms=NEVER_MS,
            )
            group.members.add(member)
        if snapshot.leader_id in group.members.by_id:
            group.members.leader_id = snapshot.leader_id
        group.is_unshared = snapshot.leader_id is None
        group.subscribed = group.compute_subscribed()
        assert (group.state is STABLE) == bool(group.members)
        return group

    @property
    def all_joined(self) -> bool:
        """Nobody is missing in the rebalance that is prepared."""
        return len(self.members) == self.members.awaiting_join_count and not self.pending_join

    # --- small parts

    def accepts(self, member_id: str) -> bool:
        """KIP-389. While a rebalance is prepared those count who wait: then, if the limit was
        lowered, the last to rejoin are left out."""
        limit = self.limits.members_max
        member = self.members.by_id.get(member_id)
        if self.state is PREPARING:
            waits = member is not None and member.join_token is not None
            return waits or self.members.awaiting_join_count < limit
        if self.state in (COMPLETING, STABLE):
            return member is not None or len(self.members) < limit
        return True

    def supports(self, protocol_type: str, names: list[str]) -> bool:
        if not protocol_type or not 0 < len(names) <= PROTOCOLS_MAX:
            return False
        if self.state is EMPTY or not self.members:
            return True
        return self.protocol_type == protocol_type and self.members.supports_any(names)

    def member_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if instance_id is not None:
            known = self.members.static_ids.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members.by_id else ErrorCode.UNKNOWN_MEMBER_ID

    def sync_error(self, request: SyncInput) -> ErrorCode:
        if self.state is DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.member_error(request.member_id, request.instance_id)
        if error:
            return error
        if request.generation_id != self.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        if _differs(request.protocol_type, self.protocol_type) or _differs(
            request.protocol_name, self.protocol_name
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is PREPARING:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def join_result(self, member: Member) -> JoinResult:
        assert self.protocol_name is not None
        assert self.members.by_id.get(member.member_id) is member
        result = JoinResult(
            ErrorCode.NONE,
            member.member_id,
            self.generation_id,
            self.protocol_type,
            self.protocol_name,
            self.members.leader_id or "",
        )
        if member.member_id == self.members.leader_id:
            result.members = [
                (each.member_id, each.instance_id, each.metadata(self.protocol_name))
                for each in self.members.by_id.values()
            ]
        return result

    def sync_result(self, member: Member) -> SyncResult:
        assert self.state is STABLE, "nobody is told an assignment that is not in force"
        return SyncResult(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment)

    def refuse_join(self, token: object, member_id: str, error: ErrorCode) -> None:
        self.effects.append(Answer(token, JoinResult(error, member_id)))

    def answer_join(self, member: Member, result: JoinResult) -> None:
        if member.join_token is not None:
            self.effects.append(Answer(member.join_token, result))
            self.members.set_join_token(member, None)

    def answer_sync(self, member: Member, result: SyncResult) -> None:
        if member.sync_token is not None:
            self.effects.append(Answer(member.sync_token, result))
            member.sync_token = None

    def refuse_syncs(self, error: ErrorCode, now_ms: int) -> None:
        for member in self.members.by_id.values():
            self.finish_sync(member, SyncResult(error), now_ms)

    def finish_sync(self, member: Member, result: SyncResult, now_ms: int) -> None:
        if member.sync_token is not None:
            self.answer_sync(member, result)
            # While it waited its deadline may have passed, and been excused.
            self.schedule(member, member.session_timeout_ms, now_ms)

    def drop(self, member: Member, error: ErrorCode) -> None:
        assert self.members.by_id.get(member.member_id) is member
        # A new member may lapse while its JoinGroup waits; if it still lives, it tries again.
        self.answer_join(member, JoinResult(error))
        self.answer_sync(member, SyncResult(error))
        self.members.remove(member.member_id)
        self.pending_sync.discard(member.member_id)
        assert len(self.pending_sync) <= len(self.members)

    def rename(self, member: Member, new_id: str) -> None:
        assert self.members.by_id.get(member.member_id) is member
        assert new_id not in self.members.by_id
        if member.member_id in self.pending_sync:
            self.pending_sync.remove(member.member_id)
            self.pending_sync.add(new_id)
        self.members.replace_static(member.member_id, new_id)

    def compute_subscribed(self) -> frozenset[str] | None:
        if not self.is_of_consumers:
            return None
        topics: set[str] = set()
        # Most say the same.
        for metadata in {m.metadata(self.protocol_name or "") for m in self.members.by_id.values()}:
            parsed = subscribed_topics(metadata)
            if parsed is None:
                return None
            topics |= parsed
        return frozenset(topics)

    def enter(self, state: GroupState, now_ms: int) -> None:
        assert self.state in _ENTERED_FROM[state], f"from {self.state} to {state}"
        assert bool(self.members) == (state is not EMPTY) or state is PREPARING
        self.state = state
        self.state_timestamp_ms = now_ms

    def postpone(self, member: Member, now_ms: int) -> None:
        """Moves the deadline away without arming: the timer is armed for where it was, and `tick`
        looks again. A member that is excused is armed for when it is answered."""
        member.session_deadline_ms = now_ms + member.session_timeout_ms

    def schedule(self, member: Member, timeout_ms: int, now_ms: int) -> None:
        member.session_deadline_ms = now_ms + timeout_ms
        self.arm(member.session_deadline_ms)

    def set_join_deadline(self, at_ms: int) -> None:
        assert self.state is PREPARING
        self.join_deadline_ms = at_ms
        self.arm(at_ms)

    def arm(self, at_ms: int) -> None:
        if at_ms < self.armed_at_ms:
            self.armed_at_ms = at_ms
            self.effects.append(ArmTimer(at_ms))
        assert self.armed_at_ms <= at_ms

    def next_deadline_ms(self) -> int:
        sessions = (member.session_deadline_ms for member in self.members.by_id.values())
        return min(
            self.join_deadline_ms,
            self.sync_deadline_ms,
            min(self.pending_join.values(), default=NEVER_MS),
            min(sessions, default=NEVER_MS),
        )

    def check(self) -> None:
        """What holds between inputs, as far as it can be told without looking at each member;
        `enter` has what holds in passing. See also `Members.check`."""
        members, state = self.members, self.state
        assert 0 <= members.awaiting_join_count <= len(members)
        assert (members.leader_id is None) == (not members)
        assert state is not EMPTY or not members
        assert members or state in (EMPTY, PREPARING, DEAD)
        assert self.protocol_name is not None or state is not COMPLETING
        assert len(self.pending_sync) <= len(members)
        assert not self.pending_sync or state in (COMPLETING, STABLE, DEAD)
        assert self.sync_deadline_ms == NEVER_MS or state in (COMPLETING, STABLE, DEAD)
        assert state is DEAD or (self.join_deadline_ms == NEVER_MS) == (state is not PREPARING)

    def take_effects(self) -> list[Effect]:
        self.check()
        effects, self.effects = self.effects, []
        return effects


def _differs(given: str | None, own: str | None) -> bool:
    return given is not None and own is not None and given != own
