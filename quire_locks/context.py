"""A transaction as a program writes it, and as it travels: headers of a record.

Pure. The names of headers are the broker's (docs/locks.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection

Db = TypeVar("Db")

Headers = list[tuple[str, bytes]]

POSITION, READ, WRITE, APPEND, TXN_ID = (
    "quire.position", "quire.lock.read", "quire.lock.write", "quire.lock.append", "quire.txn.id",
)  # fmt: skip
ID_BYTES_MAX = 255
#: Of the lock that a transaction without a WRITE lock gets, so that it is written once.
OWN_LOCK = b"quire.txn/"


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record of a partition, as it is applied."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def txn_id(self) -> bytes | None:
        return next((value for name, value in self.headers if name == TXN_ID), None)


@dataclass(frozen=True, slots=True)
class Completion:
    """`is_done`: it is in the log, at `offset`, and applied here; else `execute` gave it up.
    `attempts`: calls of `execute`."""

    is_done: bool
    offset: int
    attempts: int


class Draft:
    """What `execute` fills."""

    def __init__(self) -> None:
        self.key: bytes | None = None
        self.value: bytes | None = None
        self._locks: Headers = []
        self._others: Headers = []

    def read_lock(self, lock: bytes) -> None:
        """The decision depends on it."""
        self._lock(READ, lock)

    def write_lock(self, lock: bytes) -> None:
        """The decision depends on it and changes it."""
        self._lock(WRITE, lock)

    def append_lock(self, lock: bytes) -> None:
        """It is changed, whatever it is."""
        self._lock(APPEND, lock)

    def header(self, name: str, value: bytes) -> None:
        """ValueError for names of ours."""
        if name.startswith("quire."):
            raise ValueError(f"header {name!r} begins with quire.")
        self._others.append((name, value))

    def _lock(self, name: str, lock: bytes) -> None:
        if not 1 <= len(lock) <= ID_BYTES_MAX:
            raise ValueError(f"a lock id has 1 to {ID_BYTES_MAX} bytes, not {len(lock)}")
        self._locks.append((name, lock))

    def lock_count(self, guards: Collection[bytes] = ()) -> int:
        """With those that it gets."""
        return len(self._locks) + len(self._own(b"", guards))

    def guard(self, txn_id: bytes) -> bytes:
        """A lock that it WRITEs, whatever else it has."""
        return next(iter(self._written), OWN_LOCK + txn_id)

    @property
    def _written(self) -> list[bytes]:
        return [lock for name, lock in self._locks if name == WRITE]

    def _own(self, txn_id: bytes, guards: Collection[bytes]) -> Headers:
        written = self._written
        added = [guard for guard in sorted(guards) if guard not in written]
        if not written and not added:
            added = [OWN_LOCK + txn_id]
        return [(WRITE, lock) for lock in added]

    def headers(self, position: int, txn_id: bytes, guards: Collection[bytes] = ()) -> Headers:
        """`position`: of the snapshot that `execute` read. `guards`: locks that it WRITEs besides,
        those of its earlier tries that had no answer."""
        about: Headers = [(POSITION, b"%d" % position), (TXN_ID, txn_id)]
        return [*about, *self._locks, *self._own(txn_id, guards), *self._others]


class TransactionContext(ABC, Generic[Db]):
    """One transaction. Its methods are called in threads of the client. What those raise that are
    told something is logged, and changes nothing."""

    partition: int = 0

    @abstractmethod
    def execute(self, draft: Draft, db: Db) -> bool:
        """Reads `db`, a snapshot that nobody changes, and fills `draft`; False: there is nothing to
        be done. Called again with a newer snapshot after each conflict, so it does nothing else."""

    def on_application(self, record: LogRecord) -> None:
        """Its record was applied to this program's database."""

    def on_completion(self, completion: Completion) -> None:
        """It is over. Not called if it ends with an exception."""

    def on_conflict(self, attempts: int) -> None:
        """It was refused, and will be tried again."""
