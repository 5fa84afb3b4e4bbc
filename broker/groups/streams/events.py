"""What happens to a streams group: one event for each record of `__consumer_offsets`.

An event is a key and what is in force under it from now on; `value` None is a tombstone. A group's
state is what its events in the log's order come to (group.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from broker.groups.streams.types import Current, GroupMetadata, Member, Target, Topology


@dataclass(slots=True, frozen=True)
class GroupSet:
    """Type 17."""

    value: GroupMetadata | None


@dataclass(slots=True, frozen=True)
class MemberSet:
    """Type 19."""

    member_id: str
    value: Member | None


@dataclass(slots=True, frozen=True)
class TargetEpoch:
    """Type 20. The epoch that the targets are of, and when they were made (0: nobody made them)."""

    value: tuple[int, int] | None


@dataclass(slots=True, frozen=True)
class TargetSet:
    """Type 21."""

    member_id: str
    value: Target | None


@dataclass(slots=True, frozen=True)
class CurrentSet:
    """Type 22."""

    member_id: str
    value: Current | None


@dataclass(slots=True, frozen=True)
class TopologySet:
    """Type 23."""

    value: Topology | None


@dataclass(slots=True, frozen=True)
class ClassicGone:
    """Type 2, a tombstone: an empty group of the classic protocol had the id before."""


Event = GroupSet | MemberSet | TargetEpoch | TargetSet | CurrentSet | TopologySet | ClassicGone
