"""The audit rule of optimistic locks: of a record at offset o with position p and a READ or WRITE
lock x, no record from p up to o has WRITE or APPEND of x (docs/locks.md).

It needs to know nothing of tables and hashes. Pure. Memory: an entry for each lock that is ever
written.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

POSITION, READ, WRITE, APPEND = (
    "quire.position", "quire.lock.read", "quire.lock.write", "quire.lock.append",
)  # fmt: skip
#: As brokers take it.
_POSITION = re.compile(rb"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Violation:
    """`written`: the offset of what the record could not know; -1: of its headers' own fault."""

    offset: int
    position: int
    lock: str
    written: int
    reason: str


@dataclass(slots=True)
class Audit:
    """Of one partition, whose records are given in the order of their offsets."""

    records: int = 0
    locked: int = 0
    _written: dict[bytes, int] = field(default_factory=dict)

    def look(self, offset: int, headers: Sequence[tuple[str, bytes | None]]) -> list[Violation]:
        """What is wrong with the record at `offset`."""
        self.records += 1
        locks = [
            (name, value) for name, value in headers if name in (READ, WRITE, APPEND) and value
        ]
        self.locked += bool(locks)
        found = []
        if any(name != APPEND for name, _ in locks):
            found = self._test(offset, headers, locks)
        for name, lock in locks:
            if name != READ:
                self._written[lock] = offset
        return found

    def _test(
        self,
        offset: int,
        headers: Sequence[tuple[str, bytes | None]],
        locks: Sequence[tuple[str, bytes]],
    ) -> list[Violation]:
        positions = [value for name, value in headers if name == POSITION]
        if len(positions) != 1 or not _POSITION.fullmatch(positions[0] or b""):
            return [Violation(offset, -1, "", -1, "it has locks and no position, or several")]
        position = int(positions[0] or b"")
        if position > offset:
            return [Violation(offset, position, "", -1, "its position is beyond itself")]
        found = []
        for lock in dict.fromkeys(lock for name, lock in locks if name != APPEND):
            written = self._written.get(lock, -1)
            if written >= position:
                text = lock.decode("utf-8", "backslashreplace")
                reason = "the lock was written since its position"
                found.append(Violation(offset, position, text, written, reason))
        return found
