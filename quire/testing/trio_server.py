"""Server: `quire standalone` in the user's own trio run, for the time of an `async with` block.

Owner of all state: the task that entered the block. What the server needs is put aside on the way
in and given back on the way out, however the block ends: the port, the temporary directory, its
tasks.

The port is *reserved* by a socket that is bound to it and does not listen. Nobody else is given it
while the server is down, and the server's own listener may still take it (SO_REUSEADDR), so clients
find a restarted server where it was.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import socket
import tempfile
from typing import TYPE_CHECKING

import trio

from quire.options import StandaloneOptions
from quire.standalone import run
from quire.testing.settings import overrides, text_of
from quire.testing.topic_client import create_topics

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from bookie.bookie import Bookie

HOST = "127.0.0.1"

# Logging is the user's to set up. Without that, Python would print our warnings on stderr.
for _room in ("bookie", "broker", "ledger", "metadata", "quire", "runtime", "wire"):
    logging.getLogger(_room).addHandler(logging.NullHandler())


class _Life:
    """From one start to the next stop."""

    __slots__ = ("bookie", "ended", "scope", "was_killed")

    def __init__(self) -> None:
        self.scope = trio.CancelScope()
        self.ended = trio.Event()
        self.bookie: Bookie | None = None
        self.was_killed = False

    def on_bookie(self, bookie: Bookie) -> None:
        self.bookie = bookie


class Server:
    """A durable Kafka server in this process, on a free port of 127.0.0.1.

    If the server fails while the block runs (its disk, say), the block is cancelled and the
    failure is raised in its place; a test that has failed on its own account is its context."""

    def __init__(
        self,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        config: Mapping[str, object] | None = None,
        topics: Mapping[str, int] | None = None,
        port: int = 0,
    ) -> None:
        """`data_dir`: kept, and may be of an earlier server; a temporary one, removed at the end,
        if None. `config`: settings by Kafka's and BookKeeper's names, over the test preset.
        `topics`: name -> partitions, made at the start unless they exist. `port`: 0 for a free one.

        ValueError for a setting that is not the user's."""
        self._overrides = overrides(config)
        self._topics = dict(topics or {})
        self._wanted_port = port
        self._kept_directory = None if data_dir is None else os.path.abspath(data_dir)
        self._directory: str | None = None
        self._reserved: socket.socket | None = None
        self._manager = trio.open_nursery(strict_exception_groups=True)
        self._nursery: trio.Nursery | None = None
        self._life: _Life | None = None

    @property
    def host(self) -> str:
        return HOST

    @property
    def port(self) -> int:
        """The same over restarts. RuntimeError before the block is entered."""
        if self._reserved is None:
            raise RuntimeError("the server has no port outside of its `with` block")
        port: int = self._reserved.getsockname()[1]
        return port

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:port`, as clients want it."""
        return f"{HOST}:{self.port}"

    @property
    def data_dir(self) -> str:
        """The same over restarts. RuntimeError before the block is entered."""
        if self._directory is None:
            raise RuntimeError("the server has no directory outside of its `with` block")
        return self._directory

    @property
    def is_running(self) -> bool:
        return self._life is not None and not self._life.ended.is_set()

    async def __aenter__(self) -> Self:
        """OSError (port, directory, disk), ConfigError, BookieStartError, KafkaError (topics)."""
        assert self._nursery is None, "a Server is entered once"
        self._reserved = _reserve(self._wanted_port)
        try:
            self._directory = self._kept_directory or tempfile.mkdtemp(prefix="quire-testing-")
            self._nursery = await self._manager.__aenter__()
        except BaseException:
            self._give_back()
            raise
        try:
            await self.start()
            if self._topics:
                await create_topics((HOST, self.port), self._topics, {}, exist_ok=True)
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        where = self.bootstrap_servers
        failure: BaseException | None = None
        if self._life is not None:
            self._life.scope.cancel()
        try:
            return bool(await self._manager.__aexit__(kind, error, traceback))
        except BaseExceptionGroup as group:
            failures = [each for each in group.exceptions if each is not error]
            if failures:
                failure = sole(group.derive(failures))
        finally:
            self._give_back()
        if failure is not None:
            raise_failure(failure, where, error)
        return False  # what the block raised goes on as it is

    def _give_back(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
        if self._directory is not None and self._kept_directory is None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._directory = None

    async def start(self) -> None:
        """Starts it after a `stop` or `kill`, with its data and its port. Does nothing if it runs.

        Errors as on entering the block."""
        if self.is_running:
            return
        assert self._nursery is not None, "enter the `with` block first"
        options = StandaloneOptions(
            listen=(HOST, self.port), data_dir=self.data_dir, overrides=self._overrides
        )
        life = _Life()
        try:
            await self._nursery.start(self._live, life, options)
        except BaseExceptionGroup as group:
            raise sole(group) from None
        self._life = life

    async def _live(
        self,
        life: _Life,
        options: StandaloneOptions,
        *,
        task_status: trio.TaskStatus[tuple[str, int]],
    ) -> None:
        try:
            with life.scope:
                await run(options, on_bookie=life.on_bookie, task_status=task_status)
        except BaseException as error:
            if not (life.was_killed and _is_crash(error)):
                raise
        finally:
            life.ended.set()

    async def stop(self) -> None:
        """A clean stop. Until `start`, clients are refused at the port."""
        if self._life is not None:
            self._life.scope.cancel()
            await self._life.ended.wait()

    async def restart(self) -> None:
        """A clean stop and a start: the same port, the same data."""
        await self.stop()
        await self.start()

    async def kill(self) -> None:
        """The storage dies at once, as in a crash: nothing is flushed, nothing more is journaled
        and what was not acknowledged yet never is. The next start replays the journal."""
        life = self._life
        if life is not None and not life.ended.is_set():
            assert life.bookie is not None, "a server that serves has a bookie"
            life.was_killed = True
            life.bookie.crash()
            await life.ended.wait()

    async def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, object] | None = None
    ) -> None:
        """KafkaError if it is refused (TOPIC_ALREADY_EXISTS, INVALID_CONFIG, ...)."""
        configs = {key: text_of(value) for key, value in (config or {}).items()}
        await create_topics((HOST, self.port), {name: partitions}, configs)


def _reserve(port: int) -> socket.socket:
    """A socket that keeps a port of HOST from being given away. OSError if it is in use."""
    reserved = socket.socket()
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((HOST, port))
    except OSError as error:
        reserved.close()
        raise OSError(error.errno, f"{error.strerror}: {HOST}:{port}") from error
    return reserved


def sole(error: BaseException) -> BaseException:
    """The one error in a nest of groups, or the group if there are several."""
    found = _leaves(error)
    return found[0] if len(found) == 1 else error


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def _is_crash(error: BaseException) -> bool:
    """Whether all that was raised is what `Bookie.crash` raises."""
    return all(
        isinstance(leaf, OSError) and leaf.args == (errno.EIO, "crashed") for leaf in _leaves(error)
    )


def raise_failure(failure: BaseException, where: str, error: BaseException | None) -> None:
    """Raises why the server failed out of an `__exit__`, where Python makes `error`, the block's
    own, its context. What is no failure of the block (Ctrl-C, a test's outcome) is not replaced:
    it gets a note."""
    if error is None or isinstance(error, Exception | trio.Cancelled):
        failure.add_note(f"quire.testing: the server at {where} failed with this")
        raise failure
    error.add_note(f"quire.testing: the server at {where} failed, too: {failure!r}")
