"""What happens to a share group: one event for each record of `__consumer_offsets`.

An event is a key and what is in force under it from now on; `value` None is a tombstone. A group's
state is what its events in the log's order come to (group.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from broker.groups.share.types import Current, Member, StatePartitions, Target


@dataclass(slots=True, frozen=True)
class MemberSet:
    """Type 10."""

    member_id: str
    value: Member | None


@dataclass(slots=True, frozen=True)
class GroupEpoch:
    """Type 11. The group epoch, and the hash of its topics' metadata (0: of none)."""

    value: tuple[int, int] | None


@dataclass(slots=True, frozen=True)
class TargetEpoch:
    """Type 12. The epoch that the targets are of, and when they were made (0: nobody made them)."""

    value: tuple[int, int] | None


@dataclass(slots=True, frozen=True)
class TargetSet:
    """Type 13."""

    member_id: str
    value: Target | None


@dataclass(slots=True, frozen=True)
class CurrentSet:
    """Type 14."""

    member_id: str
    value: Current | None


@dataclass(slots=True, frozen=True)
class StateSet:
    """Type 15."""

    value: StatePartitions | None


Event = MemberSet | GroupEpoch | TargetEpoch | TargetSet | CurrentSet | StateSet
