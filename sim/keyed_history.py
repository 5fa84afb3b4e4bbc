"""What must hold of a partition that is compacted by key, whoever reads it and whenever.

Checked while it is made:
- *diverging*: two reads of an offset differ, or a read and an ack;
- *phantom*: a key has a value that nobody sent for it;
- *duplicated*: a value is at two offsets.
Of each reading of the whole partition, from its start to its end:
- *lost*: of a key's records the newest that is known is not there, nor a newer one, and neither it
  nor a later one is a tombstone, which may have come and gone while the reading went on;
- *resurrected*: the newest is a tombstone and is gone, and an older record of the key is there;
- *reordered*: offsets do not ascend.
A record that is gone has therefore a newer one of its key, which is there or was a tombstone.

Whoever deletes a key and is not answered may have succeeded: while that is not known, the key may
be gone (`uncertain`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from sim.history import Violation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.history import Partition

Pair = tuple[bytes, bytes | None]


class Keyed(NamedTuple):
    offset: int
    key: bytes
    value: bytes | None


@dataclass(slots=True)
class KeyedHistory:
    """Of one partition. A value is sent once."""

    partition: Partition
    #: Value -> its key.
    sent: dict[bytes, bytes] = field(default_factory=dict)
    #: Tombstones that were sent and of whose place nothing is known, by key.
    uncertain: Counter[bytes] = field(default_factory=Counter)
    #: Every record that was acknowledged or read.
    known: dict[int, Pair] = field(default_factory=dict)
    _places: dict[bytes, int] = field(default_factory=dict)
    ack_count: int = 0

    def send(self, pairs: Sequence[Pair]) -> None:
        for key, value in pairs:
            if value is None:
                self.uncertain[key] += 1
            else:
                self.sent[value] = key

    def ack(self, base_offset: int, pairs: Sequence[Pair]) -> None:
        """-1: it is there, nobody knows where."""
        self.ack_count += len(pairs)
        if base_offset < 0:
            return
        for offset, (key, value) in enumerate(pairs, base_offset):
            if value is None:
                self.uncertain[key] -= 1
            self._learn(offset, key, value)

    def withdraw(self, pairs: Sequence[Pair]) -> None:
        """They were sent, and never count: their transaction is aborted."""
        for key, value in pairs:
            if value is None:
                self.uncertain[key] -= 1

    def see(self, record: Keyed) -> None:
        offset, key, value = record
        if value is not None and self.sent.get(value) != key:
            raise Violation("phantom", f"{self.partition} offset {offset}: {key!r} has {value!r}")
        self._learn(offset, key, value)

    def _learn(self, offset: int, key: bytes, value: bytes | None) -> None:
        other = self.known.setdefault(offset, (key, value))
        if other != (key, value):
            raise Violation(
                "diverging", f"{self.partition} offset {offset} was {other}, and is {(key, value)}"
            )
        if value is not None and self._places.setdefault(value, offset) != offset:
            raise Violation(
                "duplicated", f"{self.partition}: {value!r} at {self._places[value]} and {offset}"
            )

    def newest_below(self, end_offset: int) -> dict[bytes, int]:
        """Key -> offset, of what is known."""
        newest: dict[bytes, int] = {}
        for offset, (key, _) in self.known.items():
            if offset < end_offset:
                newest[key] = max(offset, newest.get(key, -1))
        return newest

    def _deleted_at(self) -> dict[bytes, int]:
        """Key -> offset of its newest tombstone that is known."""
        return {key: at for at, (key, value) in sorted(self.known.items()) if value is None}

    def check_reading(
        self,
        records: Sequence[Keyed],
        *,
        log_start: int,
        known_before: int,
        keeps_up: bool = True,
    ) -> None:
        """`records`: all from the log start to the end, as one reader saw them, which took a while.
        `log_start`: as it was afterwards. `known_before`: the high watermark when it began.
        `keeps_up`: it took less than delete.retention.ms. Who takes longer may see a value, and
        find its tombstone gone (KIP-534)."""
        offsets = [record.offset for record in records]
        if offsets != sorted(set(offsets)):
            raise Violation("reordered", f"{self.partition}: {offsets}")
        there: dict[bytes, list[int]] = {}
        for record in records:
            there.setdefault(record.key, []).append(record.offset)
        deleted_at = self._deleted_at()
        for key, needed in self.newest_below(known_before).items():
            found = there.get(key, [])
            if needed < log_start or (found and found[-1] >= needed):
                continue
            if deleted_at.get(key, -1) < needed and not self.uncertain[key]:
                raise Violation(
                    "lost", f"{self.partition}: {key!r} at {needed}: {self.known[needed]}"
                )
            is_there = bool(found) and found[-1] >= log_start
            if keeps_up and is_there and self.known[needed][1] is None:
                raise Violation(
                    "resurrected",
                    f"{self.partition}: {key!r} was deleted at {needed}, {found[-1]} is there",
                )
