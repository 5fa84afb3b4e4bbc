"""Store: the database of a program, and in it the positions up to which it has applied partitions.

Position and data change in one transaction of the database, so that a crash at any place loses
nothing and applies nothing twice. Several programs may share one database: whoever finds the
position changed applies nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from quire_locks.context import LogRecord

Db_co = TypeVar("Db_co", covariant=True)


class Store(Protocol[Db_co]):
    def open(self, topic: str, topic_id: str, partitions: Sequence[int]) -> None:
        """Called before all else: positions that are not there begin at 0. OtherLogError if one is
        of a topic of that name with another id; LocksError if it follows another topic, since a
        client closes its store."""

    def position(self, partition: int) -> int:
        """The next offset to be applied."""

    def snapshot(self, partition: int) -> AbstractContextManager[tuple[Db_co, int]]:
        """For reading: the database and its position, of one moment. DatabaseLostError if the
        connection is lost while it is read."""

    def apply(
        self,
        partition: int,
        start: int,
        end: int,
        records: Sequence[LogRecord],
        function: Callable[[Db_co, LogRecord], None],
    ) -> bool:
        """Calls `function(db, record)` for each and moves the position from `start` to `end`, all
        in one transaction. False, and nothing was done: the position is another."""

    def close(self) -> None:
        """Nothing else is called any more."""
