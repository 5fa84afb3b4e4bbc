"""FaultyStore: a session on a MemoryTree whose ensemble is far away, and not always there.

For simulations. Each call travels there and back; on the way a fault may meet it:
- *unavailable*: it never arrives (MetadataUnavailableError);
- *lost reply*: it may have been done, and nobody says so (MetadataUnknownOutcomeError); a read is
  unavailable then;
- *conflict*: somebody else has put the same data a moment before;
- a watch tells late.
While `is_reachable` is false calls wait, and fail when the session's time is up; the world ends a
session that was cut off for longer (`expire`). After `die` nothing of this life reaches the tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import trio

from metadata import rules
from metadata.memory import MemoryStore
from metadata.rules import ROOT
from metadata.store import (
    ANY_VERSION,
    MetadataUnavailableError,
    MetadataUnknownOutcomeError,
    Node,
    Op,
    SessionState,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from metadata.memory import MemoryTree
    from metadata.watches import LocalWatch
    from runtime.env import Rng

T = TypeVar("T")


@dataclass(slots=True)
class StoreFaults:
    """Shares of calls that a fault meets; may be changed at any time."""

    latency_seconds: tuple[float, float] = (100e-6, 1e-3)
    unavailable_share: float = 0.0
    lost_reply_share: float = 0.0
    conflict_share: float = 0.0
    #: A watch tells so much later.
    watch_seconds: tuple[float, float] = (0.0, 0.0)


class LateWatch:
    """A `metadata.store.Watch` that takes its time."""

    __slots__ = ("_rng", "_seconds", "_watch")

    def __init__(self, watch: LocalWatch, rng: Rng, seconds: tuple[float, float]) -> None:
        self._watch = watch
        self._rng = rng
        self._seconds = seconds

    async def changed(self) -> None:
        await self._watch.changed()
        low, high = self._seconds
        if high > 0:
            try:
                await trio.sleep(low + (high - low) * self._rng.random())
            except trio.Cancelled:
                self._watch.fire()  # who asks next is told
                raise

    def close(self) -> None:
        self._watch.close()


class FaultyStore:
    """See `metadata.store.MetadataStore`."""

    def __init__(
        self,
        tree: MemoryTree,
        rng: Rng,
        faults: StoreFaults | None = None,
        *,
        session_timeout_seconds: float = 10.0,
        observe: Callable[[str, str], None] | None = None,
    ) -> None:
        """`observe(event, detail)` is told of each change when it arrives, before it is made."""
        self.faults = faults if faults is not None else StoreFaults()
        self.session_timeout_seconds = session_timeout_seconds
        self.is_dead = False
        self._reachable = trio.Event()
        self._reachable.set()
        self._rng = rng
        self._store = MemoryStore(tree)
        self._observe = observe if observe is not None else lambda _event, _detail: None

    # What the simulation does to it.

    @property
    def is_reachable(self) -> bool:
        return self._reachable.is_set()

    def cut(self) -> None:
        if self._reachable.is_set():
            self._reachable = trio.Event()

    def heal(self) -> None:
        self._reachable.set()

    def die(self) -> None:
        """The process ended; its session does not know yet (`expire`)."""
        self.is_dead = True
        self._reachable.set()

    def expire(self) -> None:
        """Its time is up: ephemeral nodes vanish, and a living client gets a new session."""
        self._store.expire_session()

    # The store.

    async def _call(
        self, event: str, path: str, function: Callable[[], Awaitable[T]], *, is_change: bool
    ) -> T:
        await self._travel()
        await self._wait_reachable(path)
        faults, rng = self.faults, self._rng
        fate = rng.random()
        if fate < faults.unavailable_share:
            raise MetadataUnavailableError(path, "the connection was lost on the way there")
        fate -= faults.unavailable_share
        is_lost = fate < faults.lost_reply_share
        if is_change and is_lost and rng.random() < 0.5:
            raise MetadataUnknownOutcomeError(path, "the connection was lost")
        if is_change:
            self._observe(event, path)
            if self.is_dead:
                raise MetadataUnavailableError(path, "the process ended")
        result = await function()
        if is_lost:
            if is_change:
                raise MetadataUnknownOutcomeError(path, "the answer was lost")
            raise MetadataUnavailableError(path, "the answer was lost")
        await self._travel()
        return result

    async def _travel(self) -> None:
        low, high = self.faults.latency_seconds
        await trio.sleep((low + (high - low) * self._rng.random()) / 2)

    async def _wait_reachable(self, path: str) -> None:
        with trio.move_on_after(self.session_timeout_seconds):
            await self._reachable.wait()
        if self.is_dead or not self._reachable.is_set():
            raise MetadataUnavailableError(path, "the ensemble cannot be reached")

    async def get(self, path: str) -> Node:
        return await self._call("get", path, lambda: self._store.get(path), is_change=False)

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return await self._call(
            "get", paths[0] if paths else ROOT, lambda: self._store.get_many(paths), is_change=False
        )

    async def exists(self, path: str) -> bool:
        return await self._call("exists", path, lambda: self._store.exists(path), is_change=False)

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
    ) -> str:
        return await self._call(
            "create",
            path,
            lambda: self._store.create(
                path, data, ephemeral=ephemeral, sequence=sequence, make_parents=make_parents
            ),
            is_change=True,
        )

    async def put(self, path: str, data: bytes, version: int) -> int:
        async def put() -> int:
            if version != ANY_VERSION and self._rng.random() < self.faults.conflict_share:
                row = rules.get(self._store.tree.table, path)
                self._observe("conflict", path)
                await self._store.put(path, row.data, ANY_VERSION)
            return await self._store.put(path, data, version)

        return await self._call("put", path, put, is_change=True)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._call("delete", path, lambda: self._store.delete(path, version), is_change=True)

    async def children(self, path: str) -> list[str]:
        return await self._call(
            "children", path, lambda: self._store.children(path), is_change=False
        )

    async def multi(self, ops: Sequence[Op]) -> None:
        await self._call(
            "multi", " ".join(op.path for op in ops), lambda: self._store.multi(ops), is_change=True
        )

    def watch(self, path: str) -> LateWatch:
        return LateWatch(self._store.watch(path), self._rng, self.faults.watch_seconds)

    def watch_children(self, path: str) -> LateWatch:
        return LateWatch(self._store.watch_children(path), self._rng, self.faults.watch_seconds)

    def subscribe(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        return self._store.subscribe(listener)

    async def owns(self, path: str) -> bool:
        return await self._call("owns", path, lambda: self._store.owns(path), is_change=False)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    async def aclose(self) -> None:
        if not self.is_dead:
            await self._store.aclose()
        await trio.lowlevel.checkpoint()
