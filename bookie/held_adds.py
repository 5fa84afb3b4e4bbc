"""Adds that found no room in the write cache or the journal's queue, and wait for it in order.

Bounded by count and bytes; beyond that adds are refused (ETOOMANYREQUESTS), so memory never grows.
While anything is held, every later add waits behind it: the order of a ledger's adds is its
writer's.

From half of the bounds until a quarter is left (`is_crowded`) the bookie stops reading connections
that write (bookie/server/connection.py). With Qa < Qw nothing else slows a writer down for the
slowest bookie, and each refused add costs the writer an ensemble change. Connections that only
read are read on, so that a recovery can fence while writers wait.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from wire.bookkeeper.status import Status
    from wire.buffers import Buffers


class HeldAdd(NamedTuple):
    """What `Bookie.add_entry` was given, and the entry's size in bytes."""

    ledger_id: int
    entry_id: int
    master_key: bytes
    entry: Buffers
    flags: int
    done: Callable[[Status], None]
    size_bytes: int


class HeldAdds:
    """First in, first out. Whoever can make the senders wait looks at `is_crowded`, and is told by
    `on_relief` when to let them go on: so a bookie that is behind refuses nothing."""

    __slots__ = (
        "_adds",
        "_count_max",
        "_size_max_bytes",
        "is_crowded",
        "on_relief",
        "refused_count",
        "size_bytes",
    )

    def __init__(self, count_max: int, size_max_bytes: int) -> None:
        self._adds: deque[HeldAdd] = deque()
        self._count_max = count_max
        self._size_max_bytes = size_max_bytes
        self.size_bytes = 0
        self.refused_count = 0
        #: From half of what may be held until a quarter is left.
        self.is_crowded = False
        self.on_relief: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._adds)

    def hold(self, add: HeldAdd) -> bool:
        """False if there are too many, or too much of them."""
        if (
            len(self._adds) >= self._count_max
            or self.size_bytes + add.size_bytes > self._size_max_bytes
        ):
            self.refused_count += 1
            return False
        self._adds.append(add)
        self.size_bytes += add.size_bytes
        if self.size_bytes * 2 > self._size_max_bytes or len(self._adds) * 2 > self._count_max:
            self.is_crowded = True
        return True

    def first(self) -> HeldAdd:
        return self._adds[0]

    def release_first(self) -> None:
        self.size_bytes -= self._adds.popleft().size_bytes
        if self.is_crowded:
            self._look()

    def release_all(self) -> list[HeldAdd]:
        adds = list(self._adds)
        self._adds.clear()
        self.size_bytes = 0
        if self.is_crowded:
            self._look()
        return adds

    def _look(self) -> None:
        if self.size_bytes * 4 <= self._size_max_bytes and len(self._adds) * 4 <= self._count_max:
            self.is_crowded = False
            if self.on_relief is not None:
                self.on_relief()
