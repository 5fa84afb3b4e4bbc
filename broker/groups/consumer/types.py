"""Values of consumer groups: what is stored of a member, what a heartbeat says and is answered.

Everything that a group holds is immutable: an event (events.py) replaces it, so two states of one
group share what they have in common.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Protocol

from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode, short

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from uuid import UUID

    from broker.coordinator.ports import Topic
    from broker.groups.classic.members import Protocols

#: Topic id -> partition -> the epoch in which its member was given it. Never changed in place.
Assigned = dict["UUID", dict[int, int]]
#: Topic id -> partitions that a member says it owns.
Owned = dict["UUID", set[int]]

#: Epochs of a request that are none.
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
STATIC_LEAVE_EPOCH = -2


class ConsumerState(Enum):
    """States of a consumer group, by their names in ConsumerGroupDescribe and ListGroups."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberState(IntEnum):
    """Where a member is on its way to its target, by the numbers of Kafka's records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    #: Of a record that a newer server wrote.
    UNKNOWN = 127


class Sight(Protocol):
    """The rights of a member's client (broker/rights.py)."""

    @property
    def who(self) -> object:
        """Two of the same see the same."""

    def describes_topic(self, name: str) -> bool: ...


@dataclass(slots=True, frozen=True)
class ClassicPart:
    """Of a member that speaks the classic protocol: what JoinGroup said."""

    session_timeout_ms: int
    protocols: Protocols


@dataclass(slots=True, frozen=True)
class Member:
    """What a member said of itself."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    #: Sorted, each once.
    topics: tuple[str, ...] = ()
    #: Empty: none.
    regex: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    #: None: it speaks the consumer protocol.
    classic: ClassicPart | None = None


@dataclass(slots=True, frozen=True)
class Current:
    """What a member has: `assigned`, and `pending` that it has still to give back."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assigned = field(default_factory=dict)
    pending: Assigned = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class ResolvedRegex:
    """What a pattern stands for; `version` is that of the topics that it was matched with."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


class Topics(Protocol):
    """The cluster's topics as they are now."""

    def get(self, name: str, /) -> Topic | None: ...
    def get_by_id(self, topic_id: UUID, /) -> Topic | None: ...


@dataclass(slots=True, frozen=True)
class GroupTimes:
    """A group's own settings, in ms."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000


@dataclass(slots=True)
class Context:
    """What a core must know beside the group and the request."""

    topics: Topics
    times: GroupTimes
    #: Wall-clock time: that of records.
    now_ms: int
    #: The names of the assignors that are offered, the default first.
    assignors: tuple[str, ...] = ("uniform", "range")
    members_max: int = 2**31 - 1
    #: A topic was created, changed or deleted since the group's metadata hash was last compared.
    topics_changed: bool = True
    #: Why a pattern is none, or None.
    regex_error: Callable[[str], str | None] = lambda pattern: None


@dataclass(slots=True)
class HeartbeatInput:
    """One ConsumerGroupHeartbeat. None: as it was told before. `topics` are sorted, each once."""

    member_id: str
    epoch: int
    client_id: str
    client_host: str
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    server_assignor: str | None = None
    owned: Owned | None = None
    #: Which topics its client may see; None: all, as nobody is asked.
    sight: Sight | None = None

    @property
    def is_full(self) -> bool:
        """It says everything, as a client does that does not know what the server has."""
        return (
            self.rebalance_timeout_ms != -1
            and (self.topics is not None or self.regex is not None)
            and self.owned is not None
        )


@dataclass(slots=True)
class HeartbeatResult:
    """`assignment` None: as it was told before."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Mapping[UUID, Collection[int]] | None = None


class GroupError(Exception):
    """A request that is refused; nothing of it is in force."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = short(message)
