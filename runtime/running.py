"""What every role's composition uses: parts that run around a block, and an ordered end."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Protocol

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


class Spawn(Protocol):
    """Runs an async function in a task that outlives the caller; False if there is nobody to."""

    def __call__(self, function: Callable[[], Awaitable[None]], /) -> bool: ...


@asynccontextmanager
async def running(
    service: Callable[..., Awaitable[object]], *, needs_start: bool = True
) -> AsyncIterator[object]:
    """Runs a service's `run` around the block, and gives what it was started with; leaving the
    block cancels the service and waits."""
    started: object = None
    async with trio.open_nursery() as nursery:
        if needs_start:
            started = await nursery.start(service)
        else:
            nursery.start_soon(service)
        yield started
        nursery.cancel_scope.cancel()


async def serve_until_cancelled(
    start: Callable[[AsyncExitStack], Awaitable[tuple[str, int]]],
    task_status: trio.TaskStatus[tuple[str, int]],
) -> None:
    """`start(stack)` starts the parts in order and returns the address that they serve at. When
    this is cancelled they are stopped one after the other, the last one first: a cancellation must
    not reach all at once."""
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_set_when_cancelled, stop)
        with trio.CancelScope(shield=True):
            async with AsyncExitStack() as stack:
                task_status.started(await start(stack))
                await stop.wait()
        nursery.cancel_scope.cancel()


async def _set_when_cancelled(stop: trio.Event) -> None:
    try:
        await trio.sleep_forever()
    finally:
        stop.set()
