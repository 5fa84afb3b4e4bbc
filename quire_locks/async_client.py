"""AsyncClient: the client for programs that are written with asyncio.

All is the thread client's: `execute` and the application of records run in its threads, as most
drivers of databases block. What waits here waits without holding the loop.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from quire_locks.client import Client, Settings
from quire_locks.errors import TooBusyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from types import TracebackType
    from typing import Self

    from quire_locks.context import Completion, LogRecord, TransactionContext
    from quire_locks.store import Store
    from quire_locks.transport import Transport

Db = TypeVar("Db")


class AsyncClient(Generic[Db]):
    """Used as `async with`. One loop, the one that entered it."""

    def __init__(
        self,
        transport: Transport,
        store: Store[Db],
        apply: Callable[[Db, LogRecord], None],
        *,
        settings: Settings | None = None,
        partitions: Sequence[int] | None = None,
    ) -> None:
        """As of Client; nothing is asked or opened before `async with`."""
        self._settings = settings or Settings()
        self._make = lambda: Client(
            transport, store, apply, settings=self._settings, partitions=partitions
        )
        self._client: Client[Db] | None = None
        self._room = asyncio.Semaphore(self._settings.waiting_max)

    async def __aenter__(self) -> Self:
        """OtherLogError, HistoryGoneError, LocksError."""
        thread = ThreadPoolExecutor(1)
        making = thread.submit(self._make)
        thread.shutdown(wait=False)
        try:
            self._client = await asyncio.wrap_future(making)
        except asyncio.CancelledError:
            # It cannot be interrupted; what it makes would have nobody who closes it.
            making.add_done_callback(_close)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        await asyncio.to_thread(self._entered.close)

    @property
    def _entered(self) -> Client[Db]:
        if self._client is None:
            raise RuntimeError("AsyncClient is used by `async with`")
        return self._client

    async def submit(
        self,
        context: TransactionContext[Db],
        *,
        deadline_seconds: float | None = None,
        wait_seconds: float | None = None,
    ) -> Completion:
        """Until it is over; errors as of Client.submit and of its future. Who is cancelled does not
        wait any more; a transaction that is in work goes on, and may be written."""
        try:
            async with asyncio.timeout(wait_seconds):
                await self._room.acquire()
        except TimeoutError:
            text = f"{self._settings.waiting_max} transactions are under way"
            raise TooBusyError(text) from None
        try:
            # Never waits: there are as many places as in `_room`, and one is taken here first.
            future = self._entered.submit(context, deadline_seconds=deadline_seconds)
        except BaseException:
            self._room.release()
            raise
        loop = asyncio.get_running_loop()
        # Freed with the transaction's end, not with the waiter's: it may be cancelled before. A
        # loop that is closed by then has nobody who waits.
        future.add_done_callback(lambda _: _tell(loop, self._room.release))
        return await asyncio.wrap_future(future)

    async def wait_applied(self, partition: int, *, seconds: float = 30.0) -> int:
        """As of Client."""
        return await asyncio.to_thread(self._entered.wait_applied, partition, seconds=seconds)


def _close(made: Future[Client[Any]]) -> None:
    if not made.cancelled() and made.exception() is None:
        made.result().close()


def _tell(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)
