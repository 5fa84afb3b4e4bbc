"""The index of a simulated bookie: in memory, with a crash's loss and a disk's damage.

What damage does is what RocksDB's checksums make of it: the database is not opened, or the blocks
of one ledger cannot be read. A wrong value is never given.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from bookie.errors import BookieStartError
from bookie.storage.index import MemoryIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

DAMAGED = "the index is damaged"


class NodeIndex(MemoryIndex):
    """The index of one life."""

    __slots__ = ("_is_refused", "_unreadable")

    def __init__(self) -> None:
        super().__init__()
        self._is_refused = False
        self._unreadable: frozenset[int] = frozenset()

    def survivor(self) -> NodeIndex:
        """What the next life finds after a crash: a value of its own, since what is left of this
        life may still write here."""
        other = NodeIndex()
        other._durable = self._durable.copy()
        other._tables = self._durable.copy()
        other._is_refused, other._unreadable = self._is_refused, self._unreadable
        return other

    def durable_ledger(self, ledger_id: int) -> bytes | None:
        """The ledger's state, as the next life would find it after a power failure now."""
        return self._durable.ledgers.get(ledger_id)

    def damage(self, *, is_told_at_start: bool) -> None:
        """It is not opened any more, or one ledger's places cannot be read."""
        if is_told_at_start:
            self._is_refused = True
        elif ids := sorted(self._durable.locations):
            self._unreadable |= {ids[len(ids) // 2]}

    def _check(self, ledger_id: int) -> None:
        if ledger_id in self._unreadable:
            raise OSError(errno.EIO, DAMAGED)

    def open(self, *, must_exist: bool = False) -> None:
        if self._is_refused:
            raise BookieStartError(DAMAGED)

    def get(self, ledger_id: int, entry_id: int) -> int:
        self._check(ledger_id)
        return super().get(ledger_id, entry_id)

    def last_entry_id(self, ledger_id: int) -> int:
        self._check(ledger_id)
        return super().last_entry_id(ledger_id)

    def entry_ids(self, ledger_id: int, after: int, count_max: int) -> list[int]:
        self._check(ledger_id)
        return super().entry_ids(ledger_id, after, count_max)

    def get_many(self, keys: Sequence[tuple[int, int]]) -> list[int]:
        return [self.get(ledger_id, entry_id) for ledger_id, entry_id in keys]
