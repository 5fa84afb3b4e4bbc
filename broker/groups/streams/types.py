"""Values of streams groups: what is stored of a member and of the application's topology, what a
heartbeat says and is answered.

Everything that a group holds is immutable: an event (events.py) replaces it, so two states of one
group share what they have in common.

A *task* is a partition of a subtopology: (subtopology id, number). It is active at one member of
the group, which computes; standby tasks keep a copy of its state elsewhere. A *process* is an
instance of the application, and may have several members: its threads. They share its disk, so a
task is on a process once, whatever it is there.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import field
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Protocol, TypeVar

from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode, short

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

#: Subtopology id -> numbers; never changed in place.
Tasks = dict[str, frozenset[int]]
#: Subtopology id -> number -> the epoch in which its member was given the task. Likewise.
DatedTasks = dict[str, dict[int, int]]

T = TypeVar("T")
#: Work in steps: yields what each cost, in units of about a microsecond.
Steps = Generator[int, None, T]

#: Epochs of a request that are none.
JOIN_EPOCH = 0
LEAVE_EPOCH = -1


class StreamsState(Enum):
    """States of a streams group, by their names in StreamsGroupDescribe and ListGroups."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class MemberState(IntEnum):
    """Where a member is on its way to its target, by the numbers of Kafka's records."""

    STABLE = 0
    UNREVOKED_TASKS = 1
    UNRELEASED_TASKS = 2
    #: Of a record that a newer server wrote.
    UNKNOWN = 127


class StatusCode(IntEnum):
    """What a heartbeat's answer says of the group beside tasks."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


@dataclass(slots=True, frozen=True)
class Status:
    code: StatusCode
    detail: str


# --- the topology, as a member tells it


@dataclass(slots=True, frozen=True)
class InternalTopic:
    """0 partitions: as many as follow from the others; replication factor 0: the default."""

    name: str
    partitions: int = 0
    replication_factor: int = 0
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True, frozen=True)
class CopartitionGroup:
    """Indices into the subtopology's lists: topics that have to have equally many partitions."""

    source_topics: tuple[int, ...] = ()
    repartition_source_topics: tuple[int, ...] = ()


@dataclass(slots=True, frozen=True)
class Subtopology:
    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    repartition_sink_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[InternalTopic, ...] = ()
    changelog_topics: tuple[InternalTopic, ...] = ()
    copartition_groups: tuple[CopartitionGroup, ...] = ()

    def read_topics(self) -> list[str]:
        """What its tasks read: a task has the same partition of each."""
        return [*self.source_topics, *(each.name for each in self.repartition_source_topics)]

    @property
    def is_stateful(self) -> bool:
        return bool(self.changelog_topics)


@dataclass(slots=True, frozen=True)
class Topology:
    """`subtopologies` sorted by their ids."""

    epoch: int
    subtopologies: tuple[Subtopology, ...] = ()


# --- what a group has of a member


@dataclass(slots=True, frozen=True)
class Member:
    """What a member said of itself."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    #: Host and port where the application answers queries of its state.
    user_endpoint: tuple[str, int] | None = None
    #: Sorted by their keys.
    client_tags: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True, frozen=True)
class Target:
    """What a member is to have. Nobody is given warm-up tasks yet, as in Kafka 4.3."""

    active: Tasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    warmup: Tasks = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Held:
    """Tasks that a member has. Only active ones commit offsets, so only they have epochs."""

    active: DatedTasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    warmup: Tasks = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.active or self.standby or self.warmup)


@dataclass(slots=True, frozen=True)
class Current:
    """What a member has: `assigned`, and `pending` that it has still to give back."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Held = field(default_factory=Held)
    pending: Held = field(default_factory=Held)


@dataclass(slots=True, frozen=True)
class GroupMetadata:
    """`metadata_hash` of the topics of the topology; `validated_topology_epoch` -1: they are not as
    they have to be; `configs`: what the assignor was given, sorted."""

    epoch: int
    metadata_hash: int = 0
    validated_topology_epoch: int = -1
    configs: tuple[tuple[str, str], ...] = ()


# --- around it


class TopicInfo(Protocol):
    @property
    def id(self) -> UUID: ...
    @property
    def name(self) -> str: ...
    @property
    def partition_count(self) -> int: ...


class Topics(Protocol):
    """The cluster's topics as they are now."""

    def get(self, name: str, /) -> TopicInfo | None: ...
    def get_by_id(self, topic_id: UUID, /) -> TopicInfo | None: ...


@dataclass(slots=True, frozen=True)
class StreamsTimes:
    """A group's own settings; times in ms."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    initial_rebalance_delay_ms: int = 3_000
    num_standby_replicas: int = 0

    @property
    def assignor_configs(self) -> tuple[tuple[str, str], ...]:
        """What an assignment depends on, as it is kept in the log."""
        return (("num.standby.replicas", str(self.num_standby_replicas)),)


@dataclass(slots=True)
class Context:
    """What a core must know beside the group and the request."""

    topics: Topics
    times: StreamsTimes
    #: Wall-clock time: that of records.
    now_ms: int
    members_max: int = 2**31 - 1
    #: The first members of a group wait for more: nothing is assigned before that is over.
    is_delayed: bool = False


@dataclass(slots=True)
class HeartbeatInput:
    """One StreamsGroupHeartbeat. None: as it was told before."""

    member_id: str
    epoch: int
    client_id: str
    client_host: str
    endpoint_epoch: int = 0
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topology: Topology | None = None
    owned: Target | None = None
    process_id: str | None = None
    user_endpoint: tuple[str, int] | None = None
    client_tags: tuple[tuple[str, str], ...] | None = None
    shuts_down: bool = False


@dataclass(slots=True)
class Endpoint:
    """Where a member answers queries, and of which partitions by topic."""

    host: str
    port: int
    active: dict[str, list[int]]
    standby: dict[str, list[int]]


@dataclass(slots=True)
class HeartbeatResult:
    """`tasks` None: as it was told before; `endpoints`, which are made in steps, likewise.
    `to_create`: internal topics that are missing, with their partition counts."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str = ""
    epoch: int = 0
    heartbeat_interval_ms: int = 0
    tasks: Held | None = None
    statuses: list[Status] = field(default_factory=list)
    endpoint_epoch: int = 0
    endpoints: Steps[list[Endpoint]] | None = None
    to_create: Mapping[str, InternalTopic] = field(default_factory=dict)


class GroupError(Exception):
    """A request that is refused; nothing of it is in force."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = short(message)
