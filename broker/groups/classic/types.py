"""Values that go into and come out of a group's state machine (group_core).

Inputs are what a request says. Outputs are effects, to be carried out by the shell in the order
given:
- `Answer`: reply to the request that a token stands for; every token is answered exactly once;
- `ArmTimer`: call `tick` at that time or later; one timer per group, an earlier time replaces a
  later one; a call that comes too early or twice does no harm;
- `Persist`: append the snapshot to the group's partition; when it is acknowledged or failed, call
  `stored(then, error)`. Persists of one group are acknowledged in their order.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING

from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from broker.groups.classic.members import Protocols


class GroupState(Enum):
    """States of a classic group, by their names in DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True, frozen=True)
class GroupLimits:
    """What a group must know of the configuration."""

    initial_rebalance_delay_ms: int = 3_000
    members_max: int = 2**31 - 1
    #: How long a new member's first JoinGroup may wait: it cannot prove by heartbeats that it is
    #: still there (Kafka has the same five minutes, and no setting for it).
    new_member_join_timeout_ms: int = 300_000


@dataclass(slots=True)
class JoinInput:
    """One JoinGroup. `new_member_id` is used if the request names no member."""

    member_id: str
    new_member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    #: v4+: a dynamic member gets its id first, and joins by it (KIP-394).
    requires_known_member_id: bool = True
    #: v9+: a static leader may be told to skip the assignment (KIP-814).
    supports_skip_assignment: bool = True
    reason: str | None = None


@dataclass(slots=True)
class SyncInput:
    """One SyncGroup; `assignments` is the leader's."""

    member_id: str
    instance_id: str | None
    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: dict[str, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class LeavingMember:
    """Who leaves: by member id, or, for an administrator, by instance id and no member id."""

    member_id: str
    instance_id: str | None = None
    reason: str | None = None


@dataclass(slots=True)
class JoinResult:
    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    skip_assignment: bool = False
    #: For the leader alone: (member id, instance id, metadata of the selected protocol).
    members: list[tuple[str, str | None, bytes]] = field(default_factory=list)


@dataclass(slots=True)
class SyncResult:
    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(slots=True, frozen=True)
class MemberSnapshot:
    """One member as it is stored: `subscription` is its metadata for the selected protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(slots=True, frozen=True)
class GroupSnapshot:
    """A generation as it is stored in `__consumer_offsets` (Kafka's GroupMetadataValue)."""

    group_id: str
    protocol_type: str  # "" while nobody ever joined
    generation_id: int
    protocol_name: str | None
    leader_id: str | None
    state_timestamp_ms: int  # -1: unknown
    members: tuple[MemberSnapshot, ...] = ()


@dataclass(slots=True)
class Answer:
    token: object
    result: JoinResult | SyncResult


@dataclass(slots=True)
class ArmTimer:
    at_ms: int


@dataclass(slots=True)
class AssignmentStored:
    """Then: the leader's assignment is durable, the generation may start."""

    generation_id: int
    assignments: dict[str, bytes]


@dataclass(slots=True)
class StaticMemberStored:
    """Then: a static member's new id is durable; what it was before, should the append fail."""

    token: object
    generation_id: int
    old_member_id: str
    new_member_id: str
    leader_before: str
    protocols_before: Protocols
    rebalance_timeout_before_ms: int
    session_timeout_before_ms: int
    supports_skip_assignment: bool


@dataclass(slots=True)
class OwnershipShown:
    """Then: this broker led the group when the member asked for its assignment once more."""

    token: object
    member_id: str


Continuation = AssignmentStored | StaticMemberStored | OwnershipShown | None


@dataclass(slots=True)
class Persist:
    snapshot: GroupSnapshot
    then: Continuation = None


Effect = Answer | ArmTimer | Persist
