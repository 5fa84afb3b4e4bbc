"""What members of a share group (KIP-932) were given and have acknowledged, and what must never be
true of it.

- *delivered again*: a record whose acknowledgement was answered is given to somebody who asked
  later, by the partition's leader of now;
- *two holders*: a record is given while another member has it, in one leader's time and within the
  lock's;
- *unseen*: the group is done with a record that nobody was given, or that nobody has
  acknowledged although it had not been given often.
A leader that was deposed and does not know it may give what its successor saw acknowledged, as
Kafka's does; it learns of it when it writes the state. And a client may know an older epoch of the
leader that it asks than that has, as after its restart, with which all locks are gone. So what is
judged is given by a leader in the epoch that the client knows and the metadata have.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sim.history import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sim.history import Partition

#: Deliveries after which a record may be given up: some have been lost on their way.
FEW_DELIVERIES = 3


@dataclass(slots=True)
class _Hold:
    member: str
    leader_epoch: int
    safe_until: float


@dataclass(slots=True)
class ShareHistory:
    #: Offsets whose acknowledgement was answered, and when; of those without an answer: never.
    _done: dict[tuple[Partition, int], float] = field(default_factory=dict)
    _maybe_done: set[tuple[Partition, int]] = field(default_factory=set)
    _holds: dict[tuple[Partition, int], _Hold] = field(default_factory=dict)
    #: The highest delivery count that anybody was told.
    _deliveries: dict[tuple[Partition, int], int] = field(default_factory=dict)
    #: Once nobody writes any more: partitions of which the group has nothing left to do.
    done: set[Partition] = field(default_factory=set)
    acknowledged_count: int = 0

    def given(
        self,
        member: str,
        partition: Partition,
        offset: int,
        delivery_count: int,
        *,
        leader_epoch: int,
        is_leader: bool,
        asked_at: float,
        now: float,
        lock_seconds: float,
    ) -> None:
        """`leader_epoch` is the client's; `is_leader`: when it asked, the metadata had the same."""
        key = partition, offset
        self._deliveries[key] = max(delivery_count, self._deliveries.get(key, 0))
        done_at = self._done.get(key)
        if is_leader and done_at is not None and done_at < asked_at:
            raise Violation(
                "delivered again",
                f"{partition} offset {offset} was acknowledged at {done_at:.3f}; {member} asked at"
                f" {asked_at:.3f}",
            )
        if not is_leader:
            return
        hold = self._holds.get(key)
        if (
            hold is not None
            and hold.member != member
            and hold.leader_epoch == leader_epoch
            and now < min(hold.safe_until, asked_at + lock_seconds)
        ):
            raise Violation(
                "two holders",
                f"{partition} offset {offset} is {hold.member}'s until {hold.safe_until:.3f}, and"
                f" {member}'s at {now:.3f}",
            )
        self._holds[key] = _Hold(member, leader_epoch, asked_at + lock_seconds)

    def let_go(self, member: str, partition: Partition, offsets: Iterable[int]) -> None:
        """It acknowledges them now, in whatever way."""
        for offset in offsets:
            hold = self._holds.get((partition, offset))
            if hold is not None and hold.member == member:
                del self._holds[partition, offset]

    def let_all_go(self, member: str) -> None:
        """Its session may be over."""
        for key in [key for key, hold in self._holds.items() if hold.member == member]:
            del self._holds[key]

    def acknowledging(self, partition: Partition, offsets: Iterable[int]) -> None:
        """Sent: that these are done with."""
        self._maybe_done.update((partition, offset) for offset in offsets)

    def acknowledged(self, partition: Partition, offsets: Iterable[int], now: float) -> None:
        for offset in offsets:
            self.acknowledged_count += 1
            self._done.setdefault((partition, offset), now)

    def are_acknowledged(self, partition: Partition, start: int, end: int) -> bool:
        """Whether the acknowledgement of each offset from `start` on, below `end`, was answered."""
        return all((partition, offset) in self._done for offset in range(start, end))

    def is_done(self, partitions: Sequence[Partition]) -> bool:
        return self.done.issuperset(partitions)

    def check(self, final: Mapping[Partition, tuple[int, Sequence[tuple[int, bytes]]]]) -> None:
        """`final`: of each partition the log start, and all (offset, value) from it on."""
        for partition, (_, records) in final.items():
            if partition not in self.done:
                continue
            for offset, value in records:
                key = partition, offset
                if key in self._done or key in self._maybe_done:
                    continue
                count = self._deliveries.get(key, 0)
                if count < FEW_DELIVERIES:
                    raise Violation(
                        "unseen",
                        f"the share group is done with offset {offset} of {partition}, {value!r},"
                        f" which was given {count} times and never acknowledged",
                    )
