"""Follower: a server of the ensemble that is behind its leader, as a session of it sees it.

For simulations. ZooKeeper serves reads from the server that a session is connected to, which may be
up to `syncLimit` (10 s, as it is shipped) behind. What it promises is kept here, and nothing more:
- transactions are applied in the leader's order, each as a whole, and watches fire with them: who
  is told of a change reads a state that has it;
- a session never reads what is older than something it has read, has been told of, or has written
  itself, be it refused (`FaultyStore` says how far it has to be, `reached`);
- a `sync` waits until all is applied that the leader had when the sync came there.

While it does not lag it has no nodes of its own: then it is the leader's tree.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple

import trio

from metadata.watches import WatchRegistry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metadata.memory import MemoryTable, MemoryTree
    from metadata.rules import Change, Row
    from runtime.env import Rng


class _Transaction(NamedTuple):
    due: float
    number: int
    changes: Sequence[Change]
    #: Of each node that was touched, in the changes' order: what it is after the transaction.
    rows: Sequence[tuple[str, Row | None]]


class Follower:
    """`table` and `watches` are what a session on it reads and is told by."""

    def __init__(self, tree: MemoryTree, rng: Rng) -> None:
        self._tree = tree
        self._rng = rng
        self.watches = WatchRegistry()
        self._table: MemoryTable | None = None
        self._pending: deque[_Transaction] = deque()
        self._pending_changes: Counter[Change] = Counter()
        self._applied = tree.transaction_number
        self._lag_seconds = 0.0
        self._does_wait = False
        self._moved = trio.Event()
        tree.followers[self] = None

    @property
    def table(self) -> MemoryTable:
        return self._tree.table if self._table is None else self._table

    def is_stale(self, changes: Sequence[Change]) -> bool:
        """Whether a read of any of these sees what is not true any more."""
        return any(self._pending_changes[change] for change in changes)

    def lag(self, seconds: float, *, does_wait: bool) -> None:
        """It is up to so much behind from now on. `does_wait`: who has to see what is not applied
        yet (after a change of its own, or a sync) waits for it; else the follower catches up then,
        and falls behind again."""
        if self._table is None:
            self._table = self._tree.table.copy()
            self._applied = self._tree.transaction_number
        self._lag_seconds, self._does_wait = seconds, does_wait

    def end_lag(self) -> None:
        self._apply(self._tree.transaction_number)
        self._table = None

    def leave(self) -> None:
        """Nobody reads here any more."""
        self._tree.followers.pop(self, None)
        self.end_lag()

    # -- transactions ----------------------------------------------------------------------------

    def committed(self, number: int, changes: Sequence[Change]) -> None:
        """By the leader, when they are made."""
        if self._table is None:
            self._applied = number
            self.watches.notify(changes)
            return
        find = self._tree.table.find
        rows = [(path, find(path)) for kind, path in changes if kind == "node"]
        due = trio.current_time() + self._lag_seconds * (0.5 + 0.5 * self._rng.random())
        if self._pending:
            due = max(due, self._pending[-1].due)
        self._pending.append(_Transaction(due, number, tuple(changes), rows))
        self._pending_changes.update(changes)
        self._moved.set()

    def _apply(self, number: int) -> None:
        """All up to this transaction."""
        while self._pending and self._pending[0].number <= number:
            transaction = self._pending.popleft()
            self._pending_changes.subtract(transaction.changes)
            assert self._table is not None
            for path, row in transaction.rows:
                _set_row(self._table, path, row)
            self._applied = transaction.number
            self.watches.notify(transaction.changes)
        self._moved.set()

    def advance(self) -> None:
        """Applies what is due."""
        now = trio.current_time()
        due = [each.number for each in self._pending if each.due <= now]
        if due:
            self._apply(due[-1])

    async def reached(self, number: int) -> None:
        """Returns when all up to this transaction is applied."""
        self.advance()
        while self._pending and self._applied < number:
            if not self._does_wait:
                self._apply(number)
                return
            await self._move()

    async def _move(self) -> None:
        if self._moved.is_set():
            self._moved = trio.Event()
        await self._moved.wait()

    async def run(self) -> None:
        """Applies what is due, when it is."""
        while True:
            if self._pending:
                await trio.sleep(max(self._pending[0].due - trio.current_time(), 0.0))
                self.advance()
            else:
                await self._move()


def _set_row(table: MemoryTable, path: str, row: Row | None) -> None:
    old = table.find(path)
    if old is not None and (row is None or row.owner != old.owner):
        table.remove(path)
        old = None
    if row is not None:
        if old is None:
            table.insert(path, row)
        else:
            table.update(path, row)
