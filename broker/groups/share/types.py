"""Values of share groups: what is stored of a member, what a heartbeat says and is answered.

Everything that a group holds is immutable: an event (events.py) replaces it, so two states of one
group share what they have in common.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from uuid import UUID

    from broker.groups.consumer.types import Topics

#: Topic id -> partitions. Never changed in place.
Target = dict["UUID", frozenset[int]]

#: Epochs of a request that are none.
JOIN_EPOCH = 0
LEAVE_EPOCH = -1


class ShareGroupState(Enum):
    """States of a share group, by their names in ShareGroupDescribe and ListGroups."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(slots=True, frozen=True)
class Member:
    """What a member said of itself."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    #: Sorted, each once.
    topics: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class Current:
    """What a member has."""

    epoch: int = 0
    previous_epoch: int = 0
    assigned: Target = field(default_factory=dict)


class TopicPartitions(NamedTuple):
    """Some partitions of a topic, and the name that it has."""

    name: str
    partitions: frozenset[int]


@dataclass(slots=True, frozen=True)
class StatePartitions:
    """Of which partitions the share coordinator keeps a state for the group, by topic id. What is
    initialized may be assigned; what is initializing may have been begun by now; of what is
    deleting nothing is known but that it is to go."""

    initializing: dict[UUID, TopicPartitions] = field(default_factory=dict)
    initialized: dict[UUID, TopicPartitions] = field(default_factory=dict)
    deleting: dict[UUID, str] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class ShareTimes:
    """A group's own settings, in ms."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000


@dataclass(slots=True)
class Context:
    """What a core must know beside the group and the request."""

    topics: Topics
    times: ShareTimes
    #: Wall-clock time: that of records.
    now_ms: int
    members_max: int = 200
    #: A topic was created, changed or deleted since the group's metadata hash was last compared.
    topics_changed: bool = True


@dataclass(slots=True)
class HeartbeatInput:
    """One ShareGroupHeartbeat. None: as it was told before."""

    member_id: str
    epoch: int
    client_id: str
    client_host: str
    rack_id: str | None = None
    topics: tuple[str, ...] | None = None


@dataclass(slots=True)
class HeartbeatResult:
    """`assignment` None: as it was told before."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Mapping[UUID, Collection[int]] | None = None
