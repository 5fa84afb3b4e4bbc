"""FaultyStore: a session on a MemoryTree whose ensemble is far away, and not always there.

For simulations. Each call travels there and back; on the way a fault may meet it:
- *unavailable*: it never arrives (MetadataUnavailableError);
- *lost reply*: it may have been done, and nobody says so (MetadataUnknownOutcomeError); a read is
  unavailable then;
- *conflict*: somebody else has put the same data a moment before;
- a watch tells late;
- the server that it reads from is behind (metadata/follower.py).
While `is_reachable` is false calls wait, and fail when the session's time is up; the world ends a
session that was cut off for longer (`expire`). After `die` nothing of this life reaches the tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import trio

from metadata import rules
from metadata.follower import Follower
from metadata.memory import MemoryStore
from metadata.rules import ROOT
from metadata.store import (
    ANY_VERSION,
    MetadataError,
    MetadataUnavailableError,
    MetadataUnknownOutcomeError,
    Node,
    Op,
    SessionState,
)
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from metadata.memory import MemoryTree
    from metadata.rules import Change
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
    #: Reads that saw what was not true any more; counted here.
    stale_read_count: int = 0


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
        #: See `suspend`, and `end_session`.
        self._is_suspended = self._is_session_over = False
        self._reachable = trio.Event()
        self._reachable.set()
        self._rng = rng
        self._tree = tree
        self.follower = Follower(tree, rng)
        #: The session has seen this transaction: what it reads is no older.
        self._seen = tree.transaction_number
        self._store = MemoryStore(tree, self.follower)
        self._observe = observe if observe is not None else lambda _event, _detail: None

    # What the simulation does to it.

    @property
    def is_reachable(self) -> bool:
        return self._reachable.is_set()

    def cut(self) -> None:
        if self._reachable.is_set():
            self._reachable = trio.Event()

    def suspend(self) -> None:
        """As `cut`, and the client hears that its connection is gone: nobody answers at all."""
        if not self._is_suspended:
            self._is_suspended = True
            self.cut()
            self._store.tell(SessionState.SUSPENDED)

    def end_session(self) -> None:
        """The ephemeral nodes vanish. A client that is suspended hears of it at the heal."""
        if not self._is_suspended:
            self.expire()
            return
        self._store.end_session()
        self._is_session_over = True

    def heal(self) -> None:
        if not self._reachable.is_set():
            self._connected_anew()
        self._reachable.set()
        if self._is_suspended and not self.is_dead:
            self._is_suspended = False
            if self._is_session_over:
                self._is_session_over = False
                self._store.tell_expired()
            else:
                self._store.tell(SessionState.CONNECTED)

    def die(self) -> None:
        """The process ended; its session does not know yet (`expire`)."""
        self.is_dead = True
        self._reachable.set()
        self.follower.leave()

    def expire(self) -> None:
        """Its time is up: ephemeral nodes vanish, and a living client gets a new session."""
        self._store.expire_session()
        self._connected_anew()

    def _connected_anew(self) -> None:
        """The first that is sent on a new connection is a sync (see `MetadataStore.sync`)."""
        self._seen = self._tree.transaction_number

    # The store.

    async def _change(self, event: str, path: str, function: Callable[[], Awaitable[T]]) -> T:
        is_lost = await self._arrive(path)
        if is_lost and self._rng.random() < 0.5:
            self._connected_anew()
            raise MetadataUnknownOutcomeError(path, "the connection was lost")
        self._observe(event, path)
        if self.is_dead:
            raise MetadataUnavailableError(path, "the process ended")
        try:
            result = await function()
        except MetadataError:
            # A refusal, too, comes through the follower, behind all that led to it.
            await self._see_all()
            raise
        if is_lost:
            self._connected_anew()
            raise MetadataUnknownOutcomeError(path, "the answer was lost")
        await self._see_all()
        await self._travel()
        return result

    async def _read(self, path: str, function: Callable[[], Awaitable[T]], *read: Change) -> T:
        """`read`: what of the tree the answer tells of."""
        is_lost = await self._arrive(path)
        await self.follower.reached(self._seen)
        result = await function()
        if self.follower.is_stale(read):
            self.faults.stale_read_count += 1
        if is_lost:
            self._connected_anew()
            raise MetadataUnavailableError(path, "the answer was lost")
        await self._travel()
        return result

    async def _see_all(self) -> None:
        """Of what the leader has: the answer that is on its way comes behind it."""
        self._connected_anew()
        await self.follower.reached(self._seen)

    async def _arrive(self, path: str) -> bool:
        """Whether the answer will be lost. MetadataUnavailableError."""
        await self._travel()
        await self._wait_reachable(path)
        faults = self.faults
        fate = self._rng.random()
        if fate < faults.unavailable_share:
            self._connected_anew()
            raise MetadataUnavailableError(path, "the connection was lost on the way there")
        return fate - faults.unavailable_share < faults.lost_reply_share

    async def _travel(self) -> None:
        low, high = self.faults.latency_seconds
        await trio.sleep((low + (high - low) * self._rng.random()) / 2)

    async def _wait_reachable(self, path: str) -> None:
        with trio.move_on_after(self.session_timeout_seconds):
            await self._reachable.wait()
        if self.is_dead or not self._reachable.is_set():
            raise MetadataUnavailableError(path, "the ensemble cannot be reached")

    async def get(self, path: str) -> Node:
        return await self._read(path, lambda: self._store.get(path), ("node", path))

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return await self._read(
            paths[0] if paths else ROOT,
            lambda: self._store.get_many(paths),
            *(("node", path) for path in paths),
        )

    async def exists(self, path: str) -> bool:
        return await self._read(path, lambda: self._store.exists(path), ("node", path))

    async def sync(self, path: str) -> None:
        async def sync() -> None:
            await self._store.sync(path)
            await self._see_all()

        await self._read(path, sync)

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
    ) -> str:
        return await self._change(
            "create",
            path,
            lambda: self._store.create(
                path, data, ephemeral=ephemeral, sequence=sequence, make_parents=make_parents
            ),
        )

    async def take_numbers(self, path: str, count: int) -> list[int]:
        return await self._change("numbers", path, lambda: self._store.take_numbers(path, count))

    async def put(self, path: str, data: bytes, version: int) -> int:
        async def put() -> int:
            if version != ANY_VERSION and self._rng.random() < self.faults.conflict_share:
                row = rules.get(self._tree.table, path)
                self._observe("conflict", path)
                await self._store.put(path, row.data, ANY_VERSION)
            return await self._store.put(path, data, version)

        return await self._change("put", path, put)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._change("delete", path, lambda: self._store.delete(path, version))

    async def children(self, path: str) -> list[str]:
        return await self._read(path, lambda: self._store.children(path), ("children", path))

    async def multi(self, ops: Sequence[Op]) -> None:
        await self._change("multi", " ".join(op.path for op in ops), lambda: self._store.multi(ops))

    def watch(self, path: str) -> LateWatch:
        return LateWatch(self._store.watch(path), self._rng, self.faults.watch_seconds)

    def watch_children(self, path: str) -> LateWatch:
        return LateWatch(self._store.watch_children(path), self._rng, self.faults.watch_seconds)

    def subscribe(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        return self._store.subscribe(listener)

    async def owns(self, path: str) -> bool:
        return await self._read(path, lambda: self._store.owns(path), ("node", path))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await self.follower.run()

    async def aclose(self) -> None:
        if not self.is_dead:
            await self._store.aclose()
            self.follower.leave()
        await trio.lowlevel.checkpoint()
