"""Who owns which partition of a group, as its members were told: by heartbeats (KIP-848, KIP-1071:
there an active task of the partition), or by SyncGroup.

*two owners*: two members were told one partition in one member epoch; or one is told a partition of
another one that was answered by the same coordinator so lately that this cannot have removed it:
neither its session nor its time to give the partition up can be over. (A coordinator that was
deposed and does not know it answers heartbeats as before; so does Kafka's. Epochs tell then. Nor
does an answer tell anything that came so late that the coordinator may have given up on the member
which asked: it was true when it was made. Nor does the answer to a classic heartbeat after a
silence: while a coordinator loads it answers everybody well.) A generation is an epoch: they go on
through each change of the protocol while the group is in use. But an empty group of one protocol
makes place for a new one of the other, whose epochs begin anew, as Kafka's do; of a group that may
do so an epoch of who is not safe any more says nothing. A static member's successor has another id
and what the member had, in the same epoch: the two are one, as they are one process after the
other.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sim.history import Violation
from sim.names import MIGRATING_GROUP

if TYPE_CHECKING:
    from collections.abc import Collection

    from sim.history import Partition


@dataclass(slots=True)
class _Hold:
    """`coordinator`: who answered last; `safe_until`: until then it cannot have given up on the
    member, in virtual seconds."""

    coordinator: tuple[str, int]
    safe_until: float
    partitions: set[Partition]


@dataclass(slots=True)
class Owners:
    #: Whether an epoch may come back.
    begins_anew: bool = False
    #: By member id.
    _holds: dict[str, _Hold] = field(default_factory=dict)
    _by_epoch: dict[tuple[Partition, int], str] = field(default_factory=dict)
    #: Member id -> `group.instance.id`, of static members.
    _instances: dict[str, str] = field(default_factory=dict)
    #: So many were judged.
    told_count: int = 0

    def told(
        self,
        member_id: str,
        epoch: int,
        partitions: Collection[Partition],
        coordinator: tuple[str, int],
        *,
        instance: str | None = None,
        now: float,
        safe_until: float,
        heartbeat_at: float | None = None,
    ) -> None:
        """The member was answered: in this epoch these are its own. `heartbeat_at`: by SyncGroup
        before, and now well to a classic heartbeat, which it sent then."""
        if heartbeat_at is not None and self.may_be_gone(member_id, heartbeat_at):
            return
        if instance is not None:
            self._instances[member_id] = instance
        before = self._holds.get(member_id)
        for partition in partitions:
            self.told_count += 1
            self._judge_epoch(member_id, epoch, partition, now)
            is_late = safe_until <= now
            if not is_late and (before is None or partition not in before.partitions):
                self._judge_others(member_id, partition, coordinator, now)
        self._holds[member_id] = _Hold(coordinator, safe_until, set(partitions))

    def has_only(self, member_id: str, partitions: Collection[Partition]) -> None:
        """It gave up the others."""
        hold = self._holds.get(member_id)
        if hold is not None:
            hold.partitions.intersection_update(partitions)

    def over(self, member_id: str) -> None:
        """It reads nothing any more."""
        self._holds.pop(member_id, None)

    def may_be_gone(self, member_id: str, now: float) -> bool:
        """Whether the coordinator may have given up on it, by what it was told."""
        hold = self._holds.get(member_id)
        return hold is not None and hold.safe_until <= now

    def _is_same(self, member_id: str, other: str) -> bool:
        instance = self._instances.get(member_id)
        is_instance = instance is not None and instance == self._instances.get(other)
        return is_instance or member_id == other

    def _judge_epoch(self, member_id: str, epoch: int, partition: Partition, now: float) -> None:
        other = self._by_epoch.get((partition, epoch), member_id)
        is_same = self._is_same(member_id, other)
        if not is_same and self.begins_anew:
            hold = self._holds.get(other)
            if hold is None or hold.safe_until <= now:
                is_same = True
        self._by_epoch[partition, epoch] = member_id
        if not is_same:
            raise Violation("two owners", f"{partition} in epoch {epoch}: {other} and {member_id}")

    def _judge_others(
        self, member_id: str, partition: Partition, coordinator: tuple[str, int], now: float
    ) -> None:
        for other, hold in self._holds.items():
            if (
                not self._is_same(member_id, other)
                and partition in hold.partitions
                and hold.coordinator == coordinator
                and now < hold.safe_until
            ):
                raise Violation(
                    "two owners",
                    f"{partition} of {other}, which is safe until {hold.safe_until:.3f},"
                    f" is {member_id}'s at {now:.3f}",
                )


def owners_by_group() -> defaultdict[str, Owners]:
    """For the judge: of this group epochs may begin anew."""
    owners = defaultdict(Owners)
    owners[MIGRATING_GROUP] = Owners(begins_anew=True)
    return owners
