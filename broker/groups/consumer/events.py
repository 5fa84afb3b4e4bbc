"""What happens to a consumer group: one event for each record of `__consumer_offsets`.

An event is a key and what is in force under it from now on; `value` None is a tombstone. A group's
state is what its events in the log's order come to (group.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from broker.groups.classic.types import GroupSnapshot
    from broker.groups.consumer.assignors.input import Target
    from broker.groups.consumer.types import Current, Member, ResolvedRegex


@dataclass(slots=True, frozen=True)
class GroupEpoch:
    """Type 3. The group epoch, and the hash of its topics' metadata (0: of none)."""

    value: tuple[int, int] | None


@dataclass(slots=True, frozen=True)
class MemberSet:
    """Type 5."""

    member_id: str
    value: Member | None


@dataclass(slots=True, frozen=True)
class TargetEpoch:
    """Type 6. The epoch that the targets are of, and when they were made (0: nobody made them)."""

    value: tuple[int, int] | None


@dataclass(slots=True, frozen=True)
class TargetSet:
    """Type 7."""

    member_id: str
    value: Target | None


@dataclass(slots=True, frozen=True)
class CurrentSet:
    """Type 8."""

    member_id: str
    value: Current | None


@dataclass(slots=True, frozen=True)
class RegexSet:
    """Type 16."""

    regex: str
    value: ResolvedRegex | None


@dataclass(slots=True, frozen=True)
class ClassicSet:
    """Type 2: the group becomes one of the classic protocol, or, without a value, is none."""

    value: GroupSnapshot | None


Event = GroupEpoch | MemberSet | TargetEpoch | TargetSet | CurrentSet | RegexSet | ClassicSet
