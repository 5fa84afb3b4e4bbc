"""AsyncClient: `Client` for programs that run in asyncio. The same client works behind it, in its
own threads; here is only the way to and from the loop, which nothing here blocks.

    async with AsyncClient(lambda: Client(transport, store, apply)) as client:
        done = await client.submit(Transfer(...))

`execute` and the other methods of a context are called in the client's threads, as databases'
drivers block.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, TypeVar

from quire_locks.errors import LocksError, TooBusyError

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from types import TracebackType
    from typing import Self

    from quire_locks.client import Client
    from quire_locks.context import Completion, TransactionContext

Db = TypeVar("Db")
Result = TypeVar("Result")


class AsyncClient(Generic[Db]):
    """Of one event loop; used as an asynchronous context manager."""

    def __init__(self, make: Callable[[], Client[Db]]) -> None:
        """`make` is called in a thread, once: it looks at the topic and opens the database."""
        self._make = make
        self._client: Client[Db] | None = None
        self._room: asyncio.Semaphore | None = None
        # Of its own, so that what blocks here does not take the loop's threads from others.
        self._threads = ThreadPoolExecutor(1, "quire-locks-async")

    async def __aenter__(self) -> Self:
        """What `Client` raises."""
        try:
            self._client = await self._in_thread(self._make)
        except BaseException:
            self._threads.shutdown(wait=False)
            raise
        self._room = asyncio.Semaphore(self._client.settings.waiting_max)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        await self.close()

    async def submit(
        self,
        context: TransactionContext[Db],
        *,
        deadline_seconds: float | None = None,
        wait_seconds: float | None = None,
    ) -> Completion:
        """Raises what the future of `Client.submit` does; TooBusyError if there was no room for
        `wait_seconds` (None: for ever). If the task is cancelled a transaction that is in work goes
        on, and one that waits for its turn is not begun."""
        client, room = self._opened()
        try:
            await asyncio.wait_for(room.acquire(), wait_seconds)
        except TimeoutError:
            most = client.settings.waiting_max
            raise TooBusyError(f"{most} transactions are under way") from None
        loop = asyncio.get_running_loop()
        try:
            future = client.submit(context, deadline_seconds=deadline_seconds, wait_seconds=0)
        except BaseException:
            room.release()
            raise
        future.add_done_callback(lambda _: self._leave(loop, room))
        return await asyncio.wrap_future(future)

    async def wait_applied(self, partition: int, *, seconds: float = 30.0) -> int:
        """As `Client.wait_applied`."""
        client, _ = self._opened()
        return await self._in_thread(lambda: client.wait_applied(partition, seconds=seconds))

    async def close(self) -> None:
        """After what is in work."""
        client, self._client = self._client, None
        if client is not None:
            await self._in_thread(client.close)
            self._threads.shutdown()

    def _opened(self) -> tuple[Client[Db], asyncio.Semaphore]:
        if self._client is None or self._room is None:
            raise LocksError("the client is not open")
        return self._client, self._room

    @staticmethod
    def _leave(loop: asyncio.AbstractEventLoop, room: asyncio.Semaphore) -> None:
        """In any thread, after the client has its own place back."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(room.release)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        future: Future[Result] = self._threads.submit(work)
        return await asyncio.wrap_future(future)
