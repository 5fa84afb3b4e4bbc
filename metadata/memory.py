"""MetadataStore in memory, for simulations and tests; it forgets all when the process ends.

A `MemoryTree` is the shared state (what a ZooKeeper ensemble would be); each `MemoryStore` is one
session on it. Several nodes of a simulated cluster have one tree and a store each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

from metadata import rules
from metadata.rules import NO_OWNER, ROOT, Change, Row, split_path
from metadata.store import ANY_VERSION, NUMBERS_MAX, MetadataClosedError, Node, Op, SessionState
from metadata.watches import Listeners, LocalWatch, WatchRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class MemoryTable:
    """`rules.Table` as a dictionary, with an undo log for savepoints."""

    __slots__ = ("_children", "_owned", "_rows", "_undo")

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {ROOT: rules.EMPTY_ROW}
        self._children: dict[str, set[str]] = {ROOT: set()}
        self._owned: dict[int, set[str]] = {}
        self._undo: list[Callable[[], None]] | None = None

    def find(self, path: str) -> Row | None:
        return self._rows.get(path)

    def insert(self, path: str, row: Row) -> None:
        parent, name = split_path(path)
        self._rows[path] = row
        self._children[path] = set()
        self._children[parent].add(name)
        if row.owner != NO_OWNER:
            self._owned.setdefault(row.owner, set()).add(path)
        if self._undo is not None:
            self._undo.append(lambda: self.remove(path))

    def update(self, path: str, row: Row) -> None:
        old = self._rows[path]
        self._rows[path] = row
        if self._undo is not None:
            self._undo.append(lambda: self.update(path, old))

    def remove(self, path: str) -> None:
        row = self._rows.pop(path)
        del self._children[path]
        parent, name = split_path(path)
        self._children[parent].discard(name)
        if row.owner != NO_OWNER:
            self._owned[row.owner].discard(path)
        if self._undo is not None:
            self._undo.append(lambda: self.insert(path, row))

    def children(self, path: str) -> list[str]:
        return sorted(self._children[path])

    def has_children(self, path: str) -> bool:
        return bool(self._children[path])

    def owned(self, owner: int) -> list[str]:
        return sorted(self._owned.get(owner, ()))

    def copy(self) -> MemoryTable:
        """As it is now; not between a savepoint and its end."""
        assert self._undo is None
        other = MemoryTable()
        other._rows = dict(self._rows)
        other._children = {path: set(names) for path, names in self._children.items()}
        other._owned = {owner: set(paths) for owner, paths in self._owned.items()}
        return other

    def savepoint(self) -> None:
        assert self._undo is None, "savepoints do not nest"
        self._undo = []

    def rollback(self) -> None:
        undo, self._undo = self._undo, None
        assert undo is not None
        for action in reversed(undo):
            action()

    def release(self) -> None:
        self._undo = None


class Follower(Protocol):
    """Who hears of every transaction, and may know of it later than the tree: what its sessions
    read, and who is told of changes there (metadata/follower.py)."""

    watches: WatchRegistry

    @property
    def table(self) -> MemoryTable: ...

    def committed(self, number: int, changes: Sequence[Change]) -> None:
        """By the leader, when they are made."""


class MemoryTree:
    """The nodes, the watches and the numbers given to sessions; what a leader knows."""

    __slots__ = ("_session_count", "followers", "table", "transaction_number", "watches")

    def __init__(self) -> None:
        self.table = MemoryTable()
        self.watches = WatchRegistry()
        #: Of the last one that changed something.
        self.transaction_number = 0
        #: In the order in which they came.
        self.followers: dict[Follower, None] = {}
        self._session_count = 0

    def commit(self, changes: Sequence[Change]) -> None:
        """Tells of a transaction that the table has."""
        self.transaction_number += 1
        self.watches.notify(changes)
        for follower in self.followers:
            follower.committed(self.transaction_number, changes)

    def new_session(self) -> int:
        self._session_count += 1
        return self._session_count


class MemoryStore:
    """One session on a MemoryTree; implements `metadata.store.MetadataStore`.

    Every call is a checkpoint *before* it acts: a cancelled call has changed nothing."""

    __slots__ = ("_closed", "_listeners", "_session", "_view", "_watcher", "tree")

    def __init__(self, tree: MemoryTree | None = None, follower: Follower | None = None) -> None:
        """Reads are the `follower`'s answers, and watches tell when it knows; else the tree's."""
        self.tree = tree if tree is not None else MemoryTree()
        self._view = self.tree if follower is None else follower
        self._session = self.tree.new_session()
        #: Who watches is the store, whatever its session's number is by now.
        self._watcher = self._session
        self._closed = False
        self._listeners = Listeners()

    async def get(self, path: str) -> Node:
        await self._enter(path)
        row = rules.get(self._view.table, path)
        return Node(row.data, row.version)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        await self._enter(*paths)
        rows = map(self._view.table.find, paths)
        return [None if row is None else Node(row.data, row.version) for row in rows]

    async def exists(self, path: str) -> bool:
        await self._enter(path)
        return self._view.table.find(path) is not None

    async def sync(self, path: str) -> None:
        """There is one copy, and every read is of it (a follower's is for `FaultyStore`)."""
        await self._enter(path)

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
    ) -> str:
        await self._enter(path + "0" if sequence else path)
        changes: list[Change] = []
        made = rules.create(
            self.tree.table,
            path,
            data,
            changes,
            owner=self._session if ephemeral else NO_OWNER,
            sequence=sequence,
            make_parents=make_parents,
        )
        self.tree.commit(changes)
        return made

    async def take_numbers(self, path: str, count: int) -> list[int]:
        assert 0 < count <= NUMBERS_MAX
        await self._enter(path + "0")
        changes: list[Change] = []
        numbers = rules.take_numbers(self.tree.table, path, count, changes)
        self.tree.commit(changes)
        return numbers

    async def put(self, path: str, data: bytes, version: int) -> int:
        await self._enter(path)
        changes: list[Change] = []
        new_version = rules.put(self.tree.table, path, data, version, changes)
        self.tree.commit(changes)
        return new_version

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._enter(path)
        changes: list[Change] = []
        rules.delete(self.tree.table, path, version, changes)
        self.tree.commit(changes)

    async def children(self, path: str) -> list[str]:
        await self._enter(path)
        return rules.children(self._view.table, path)

    async def multi(self, ops: Sequence[Op]) -> None:
        await self._enter(*(op.path for op in ops))
        changes: list[Change] = []
        rules.multi(self.tree.table, ops, self._session, changes)
        self.tree.commit(changes)

    def watch(self, path: str) -> LocalWatch:
        rules.check_path(path)
        return self._view.watches.add(("node", path), self._watcher)

    def watch_children(self, path: str) -> LocalWatch:
        rules.check_path(path)
        return self._view.watches.add(("children", path), self._watcher)

    def subscribe(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        return self._listeners.add(listener)

    async def owns(self, path: str) -> bool:
        await self._enter(path)
        row = self._view.table.find(path)
        return row is not None and row.owner == self._session

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    def expire_session(self) -> None:
        """What ZooKeeper does to a client that it has not heard of: the ephemeral nodes vanish,
        all watches of the session fire, and it goes on with a new session."""
        self.end_session()
        self.tell_expired()

    def end_session(self) -> None:
        """The half of `expire_session` that the servers do: the ephemeral nodes vanish."""
        changes: list[Change] = []
        rules.end_session(self.tree.table, self._session, changes)
        self._session = self.tree.new_session()
        self.tree.commit(changes)

    def tell_expired(self) -> None:
        """The other half: the client is connected again, and hears of it."""
        self._tell_lost()
        self._listeners.tell(SessionState.CONNECTED)

    def tell(self, state: SessionState) -> None:
        """For simulations: what a client hears of its connection."""
        self._listeners.tell(state)

    def _tell_lost(self) -> None:
        self._view.watches.session_ended(self._watcher)
        self._listeners.tell(SessionState.LOST)

    async def aclose(self) -> None:
        if not self._closed:
            self.end_session()
            self._tell_lost()
            self._closed = True
        await trio.lowlevel.checkpoint()

    async def _enter(self, *paths: str) -> None:
        for path in paths:
            rules.check_path(path)
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise MetadataClosedError(paths[0] if paths else ROOT, "the store is closed")
