"""Ownership: which partitions this broker is to lead, and since which epoch.

What broker/log asks and broker/cluster answers. Being the owner is a plan, not a right to write:
the right comes from the take-over, whose compare-and-set on the chain and whose fencing of the last
ledger let only one writer acknowledge anything, whatever two brokers believe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID


@dataclass(slots=True, frozen=True)
class Incarnation:
    """One life of a broker: two with the same node id are told apart by `token`."""

    node_id: int
    token: str  # 32 hexadecimal digits, new for each start


class Ownership(Protocol):
    """Reads are plain memory; only `confirm` asks metadata."""

    @property
    def incarnation(self) -> Incarnation:
        """This broker's."""

    def assigned_epoch(self, topic_id: UUID, partition: int) -> int | None:
        """The least leader epoch with which this broker is to lead the partition; None if it is
        not to lead it."""

    def is_alive(self, incarnation: Incarnation) -> bool:
        """Whether that life of that broker is registered, as far as is known here."""

    async def confirm(self, topic_id: UUID, partition: int) -> bool:
        """Whether the partition is assigned to this broker in metadata itself, and this broker is
        registered there. Asked before a take-over that follows a lost one. MetadataError."""

    async def publish(self, topic_id: UUID, partition: int, leader_epoch: int) -> None:
        """To be called after every take-over, whatever its epoch: clients of other brokers are to
        be told the epoch, and a reassignment ends here. Costs nothing if the assignment says so
        already, or has moved on. Returns at once; it is written in the background, what comes
        together in one write, and again until it is written."""

    def is_sweeper(self) -> bool:
        """Whether this broker does what one of the cluster should do from time to time. Two may
        believe it of themselves."""

    def subscribe(self, listener: Callable[[UUID], None]) -> None:
        """`listener(topic id)` after an assignment of that topic changed; also after a life of a
        broker ended, for each topic of which this broker leads a partition (its last owner may be
        that one: `is_alive`), and after this broker registered."""


class SoleOwner:
    """One broker that is the whole cluster: it leads everything."""

    __slots__ = ("_incarnation",)

    def __init__(self, incarnation: Incarnation) -> None:
        self._incarnation = incarnation

    @property
    def incarnation(self) -> Incarnation:
        return self._incarnation

    def assigned_epoch(self, topic_id: UUID, partition: int) -> int | None:
        return 0

    def is_alive(self, incarnation: Incarnation) -> bool:
        return incarnation == self._incarnation

    async def confirm(self, topic_id: UUID, partition: int) -> bool:
        return True

    async def publish(self, topic_id: UUID, partition: int, leader_epoch: int) -> None:
        return

    def is_sweeper(self) -> bool:
        return True

    def subscribe(self, listener: Callable[[UUID], None]) -> None:
        return
