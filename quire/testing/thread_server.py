"""SyncServer: `Server` in a trio run of its own, in a thread, for whoever does not use trio.

The thread is from trio's cache, as all of a server's worker threads are: daemons that end when they
were idle for some seconds. Between the user's threads and that one there is nothing but trio's way
in (`run_sync_soon`) and queues on the way out, so any thread may call, one of another trio run too.

Owner: the loop's thread, except for what is said to be the callers'.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

import trio

from quire.testing.trio_server import Server, raise_failure, sole

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType
    from typing import Self

    import outcome

T = TypeVar("T")

#: Calls that wait for the one under way; more callers than a test has.
CALLS_WAITING_MAX = 1000


class _Latch(Generic[T]):
    """Set once, by any thread; every `wait` returns the value. Ctrl-C gets through, and what it
    interrupts may be done again."""

    __slots__ = ("_values", "_wakes")

    def __init__(self) -> None:
        self._values: list[T] = []
        self._wakes: SimpleQueue[None] = SimpleQueue()

    def set(self, value: T) -> None:
        self._values.append(value)
        self._wakes.put(None)

    def wait(self) -> T:
        if not self._values:
            self._wakes.get()
            self._wakes.put(None)  # for whoever else waits
        return self._values[0]


class _Call:
    """What a thread asks the loop to do, and where the answer comes: an error or None."""

    __slots__ = ("answer", "function")

    def __init__(self, function: Callable[[], Awaitable[None]]) -> None:
        self.function = function
        self.answer: _Latch[BaseException | None] = _Latch()


class SyncServer:
    """A durable Kafka server in this process, on a free port of 127.0.0.1, while the `with` block
    runs.

    If the server fails while the block runs (its disk, say), every call here raises the failure,
    and so does the end of the block; a test that has failed on its own account is its context."""

    def __init__(
        self,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        config: Mapping[str, object] | None = None,
        topics: Mapping[str, int] | None = None,
        port: int = 0,
    ) -> None:
        """As `quire.testing.Server`."""
        self._server = Server(data_dir=data_dir, config=config, topics=topics, port=port)
        self._scope = trio.CancelScope()
        self._send, self._receive = trio.open_memory_channel[_Call](CALLS_WAITING_MAX)
        self._token: trio.lowlevel.TrioToken | None = None
        # One side sets its flag and then looks at the other's.
        self._must_stop = False
        self._has_begun = False
        self._started: _Latch[bool] = _Latch()
        #: Why the run ended, once it did.
        self._ended: _Latch[BaseException | None] = _Latch()
        self._is_over = False
        #: Calls without an answer yet; the callers' to add to.
        self._calls: set[_Call] = set()
        self._where = ""
        self._data_dir = ""

    @property
    def host(self) -> str:
        return self._server.host

    @property
    def port(self) -> int:
        """As `Server.port`."""
        return self._server.port

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:port`, as clients want it."""
        return self._server.bootstrap_servers

    @property
    def data_dir(self) -> str:
        """As `Server.data_dir`."""
        return self._server.data_dir

    @property
    def is_running(self) -> bool:
        return self._server.is_running

    def __enter__(self) -> Self:
        """Errors as `Server`'s."""
        assert self._token is None, "a SyncServer is entered once"
        try:
            trio.lowlevel.start_thread_soon(self._run, self._over, "quire-testing")
            is_started = self._started.wait()
        except BaseException:  # Ctrl-C
            self._stop_thread()
            raise
        if not is_started:
            failure = self._ended.wait()
            assert failure is not None, "a server that did not start says why"
            raise failure
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        failure = self._stop_thread()
        if failure is not None:
            raise_failure(failure, self._where, error)

    def start(self) -> None:
        """As `Server.start`; so are those that follow."""
        self._call(self._server.start)

    def stop(self) -> None:
        self._call(self._server.stop)

    def restart(self) -> None:
        self._call(self._server.restart)

    def kill(self) -> None:
        self._call(self._server.kill)

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, object] | None = None
    ) -> None:
        self._call(partial(self._server.create_topic, name, partitions, config))

    # On the callers' threads.

    def _call(self, function: Callable[[], Awaitable[None]]) -> None:
        if self._token is None:
            raise RuntimeError("enter the `with` block first")
        call = _Call(function)
        self._calls.add(call)
        # Looked at after the call was added: the end answers all that it finds there.
        if self._is_over:
            self._calls.discard(call)
            raise self._ended.wait() or RuntimeError("the `with` block is over")
        with suppress(trio.RunFinishedError):  # then the end answers
            self._token.run_sync_soon(self._send.send_nowait, call)
        error = call.answer.wait()
        if error is not None:
            raise error

    def _stop_thread(self) -> BaseException | None:
        """Waits for the end; why the server failed, if it did."""
        self._must_stop = True
        if not self._has_begun:
            return None  # nor will it: Ctrl-C came before there was a thread, or in front of it
        try:
            return self._ask_and_wait()
        except KeyboardInterrupt:
            # An impatient user. The stop is short, and nothing shall be left behind.
            self._ask_and_wait()
            raise

    def _ask_and_wait(self) -> BaseException | None:
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._scope.cancel)
        return self._ended.wait()

    # On the loop's thread.

    def _run(self) -> None:
        self._has_begun = True
        if not self._must_stop:
            trio.run(self._serve, strict_exception_groups=True)

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        if self._must_stop:  # Ctrl-C came before there was a token to stop with
            return
        with self._scope:
            async with self._server as server:
                self._where = server.bootstrap_servers
                self._started.set(True)
                async for call in self._receive:
                    await self._answer(call)

    async def _answer(self, call: _Call) -> None:
        try:
            await call.function()
        except Exception as error:  # the caller's, to whom it is raised
            answer: BaseException | None = error
        else:
            answer = None
        self._calls.discard(call)
        call.answer.set(answer)

    def _over(self, result: outcome.Outcome[None]) -> None:
        """The run ended: with it all that anybody may wait for."""
        failure = getattr(result, "error", None)
        if failure is not None:
            failure = sole(failure)
        self._ended.set(failure)
        self._is_over = True
        self._started.set(False)
        while self._calls:
            self._calls.pop().answer.set(failure or RuntimeError("the `with` block is over"))


def server(
    *,
    data_dir: str | os.PathLike[str] | None = None,
    config: Mapping[str, object] | None = None,
    topics: Mapping[str, int] | None = None,
    port: int = 0,
) -> SyncServer:
    """`with quire.testing.server() as server:`, as `SyncServer`."""
    return SyncServer(data_dir=data_dir, config=config, topics=topics, port=port)
