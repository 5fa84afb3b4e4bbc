"""A MetadataStore's calls as actions on a `rules.Table`, for stores that run them in transactions.

`TransactionSession` is one session: the owner of ephemeral nodes and of watches. What runs the
actions, all or nothing and one after the other, is the subclass's `_submit`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from metadata import rules
from metadata.rules import NO_OWNER, ROOT, Change
from metadata.store import ANY_VERSION, NUMBERS_MAX, Node, Op, SessionState
from metadata.watches import Listeners, LocalWatch, WatchRegistry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metadata.rules import Table

T = TypeVar("T")

#: What a call does in the transaction.
Action = Callable[["Table", list[Change]], object]


class TransactionSession(ABC):
    """All of `metadata.store.MetadataStore` but `run` and `aclose`."""

    def __init__(self, owner: int, watches: WatchRegistry) -> None:
        self.owner = owner
        self._watches = watches
        self._listeners = Listeners()

    @abstractmethod
    async def _submit(
        self, path: str, action: Callable[[Table, list[Change]], T], *, checked: bool = False
    ) -> T:
        """Runs the action and gives its result once that is durable. MetadataError. `path` is
        checked unless it was."""

    async def get(self, path: str) -> Node:
        row = await self._submit(path, lambda table, _: rules.get(table, path))
        return Node(row.data, row.version)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        for path in paths:
            rules.check_path(path)
        rows = await self._submit(ROOT, lambda table, _: list(map(table.find, paths)))
        return [None if row is None else Node(row.data, row.version) for row in rows]

    async def exists(self, path: str) -> bool:
        return await self._submit(path, lambda table, _: table.find(path) is not None)

    async def sync(self, path: str) -> None:
        """As a read: transactions come one after the other, and there is one copy."""
        await self._submit(path, lambda _table, _changes: None)

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
    ) -> str:
        rules.check_path(path + "0" if sequence else path)

        def action(table: Table, changes: list[Change]) -> str:
            return rules.create(
                table,
                path,
                data,
                changes,
                owner=self.owner if ephemeral else NO_OWNER,
                sequence=sequence,
                make_parents=make_parents,
            )

        return await self._submit(path, action, checked=True)

    async def take_numbers(self, path: str, count: int) -> list[int]:
        assert 0 < count <= NUMBERS_MAX
        rules.check_path(path + "0")
        return await self._submit(
            path,
            lambda table, changes: rules.take_numbers(table, path, count, changes),
            checked=True,
        )

    async def put(self, path: str, data: bytes, version: int) -> int:
        return await self._submit(
            path, lambda table, changes: rules.put(table, path, data, version, changes)
        )

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._submit(path, lambda table, changes: rules.delete(table, path, version, changes))

    async def children(self, path: str) -> list[str]:
        return await self._submit(path, lambda table, _: rules.children(table, path))

    async def multi(self, ops: Sequence[Op]) -> None:
        for op in ops:
            rules.check_path(op.path)
        await self._submit(
            ROOT, lambda table, changes: rules.multi(table, ops, self.owner, changes)
        )

    def watch(self, path: str) -> LocalWatch:
        rules.check_path(path)
        return self._watches.add(("node", path), self.owner)

    def watch_children(self, path: str) -> LocalWatch:
        rules.check_path(path)
        return self._watches.add(("children", path), self.owner)

    def subscribe(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        return self._listeners.add(listener)

    async def owns(self, path: str) -> bool:
        def action(table: Table, _: list[Change]) -> bool:
            row = table.find(path)
            return row is not None and row.owner == self.owner

        return await self._submit(path, action)

    def ended(self) -> None:
        """Tells all who watch and listen; the ephemeral nodes are the subclass's to delete."""
        self._watches.session_ended(self.owner)
        self._listeners.tell(SessionState.LOST)
