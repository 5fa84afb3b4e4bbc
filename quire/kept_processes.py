"""Processes of ours that the main one keeps running: bookies and brokers of `quire standalone`.

Each reaches our metadata over a socket (metadata/served.py), under its name. One that dies is
started again, at once the first time and then after pauses that double; its session, and with it
its registration, ends as soon as it is seen to be dead. None outlives this process
(runtime/processes.py). A clean stop asks all of them to end, and kills who has not after
STOP_SECONDS_MAX.
"""

from __future__ import annotations

import logging
import os
import sys
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import trio

from runtime.logs import kv
from runtime.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from metadata.served import MetadataServer

logger = logging.getLogger(__name__)

#: Of their sessions in our metadata.
SESSION_TIMEOUT_MS = 6_000
SOCKET_NAME = "metadata.sock"
READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0
RESTART_SECONDS_MIN = 0.1
RESTART_SECONDS_MAX = 10.0
#: Who ran for so long is started again at once.
STEADY_SECONDS = 30.0


class KeptProcesses(ABC):
    """Keeps them running while `run` runs. Who implements it tells each change of what `missing`
    says with `look_again`."""

    #: What one is called in the log.
    kind: ClassVar[str]
    #: What `run` raises if one does not start.
    start_error: ClassVar[type[Exception]]

    def __init__(self, names: Sequence[str], server: MetadataServer) -> None:
        self._names = names
        self._server = server
        self._changed = trio.Event()
        self._is_ready = False
        self._stopping = trio.Event()
        self._children: dict[str, ChildProcess] = {}

    @abstractmethod
    def prepare(self, name: str) -> None:
        """Before each start of it. ConfigError, OSError."""

    @abstractmethod
    def command(self, name: str) -> Sequence[str]:
        """How it is started."""

    @abstractmethod
    def missing(self) -> Collection[str]:
        """Those that are not registered."""

    def look_again(self) -> None:
        self._changed.set()

    @property
    def pids(self) -> Mapping[str, int]:
        """By name, of those that run."""
        return {name: child.pid for name, child in self._children.items()}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """`started` when all are registered. `start_error` if one ends before, or that takes too
        long; ConfigError, OSError."""
        for name in self._names:
            self.prepare(name)
        try:
            async with trio.open_nursery() as nursery:
                for name in self._names:
                    nursery.start_soon(self._keep, name)
                with trio.move_on_after(READY_SECONDS_MAX):
                    await self._wait_registered()
                    self._is_ready = True
                if not self._is_ready:
                    raise self.start_error(
                        f"no registration of {', '.join(sorted(self.missing()))} within "
                        f"{READY_SECONDS_MAX:.0f} s"
                    )
                task_status.started()
        finally:
            with trio.CancelScope(shield=True):
                await self._stop()

    async def _wait_registered(self) -> None:
        while self.missing():
            self._changed = trio.Event()
            await self._changed.wait()

    async def _keep(self, name: str) -> None:
        """Starts it, again and again."""
        pause = RESTART_SECONDS_MIN
        while not self._stopping.is_set():
            started_at = trio.current_time()
            try:
                child = self._start(name)
            except OSError as error:  # a full disk, say, and the others go on
                if not self._is_ready:
                    raise
                facts: dict[str, object] = {"error": error}
                event = "not_started"
            else:
                code = await child.wait()
                del self._children[name]
                await self._server.end_client(name)
                if self._stopping.is_set():
                    logger.info(f"{self.kind}_stopped", kv(**{self.kind: name}, code=code))
                    return
                if not self._is_ready:
                    raise self.start_error(
                        f"{name} ended with code {code} at the start; see its log"
                    )
                facts = {"pid": child.pid, "code": code}
                event = "died"
            if trio.current_time() - started_at > STEADY_SECONDS:
                pause = RESTART_SECONDS_MIN
            logger.warning(
                f"{self.kind}_{event}",
                kv(**{self.kind: name}, **facts, restart_in_ms=int(pause * 1000)),
            )
            await trio.sleep(pause)
            pause = min(2 * pause, RESTART_SECONDS_MAX)

    def _start(self, name: str) -> ChildProcess:
        """OSError, ConfigError."""
        if self._is_ready:
            self.prepare(name)
        child = self._children[name] = ChildProcess(self.command(name))
        logger.info(f"{self.kind}_started", kv(**{self.kind: name}, pid=child.pid))
        return child

    def ask_to_end(self) -> None:
        """All of them, and starts none again: the end of `run` waits for them."""
        if self._stopping.is_set():
            return  # a second SIGTERM would end them at once
        self._stopping.set()
        for child in self._children.values():
            child.terminate()

    async def _stop(self) -> None:
        self.ask_to_end()
        children = list(self._children.items())
        with trio.move_on_after(STOP_SECONDS_MAX):
            for _, child in children:
                await child.wait()
        for name, child in children:
            child.kill()
            logger.info(f"{self.kind}_stopped", kv(**{self.kind: name}, code=await child.wait()))
        self._children.clear()


def role_command(role: str, config_path: str, log_levels: str) -> list[str]:
    """`quire <role> --config <path>` as a child of this process."""
    # -P: a directory of the user's that is called as one of our packages is none of ours.
    program = [sys.executable, "-P", "-m", "quire.cli", role]
    options = ["--config", config_path, "--child-of", str(os.getpid()), "--log-level", log_levels]
    return [*program, *options]


def properties_lines(settings: Mapping[str, str]) -> list[str]:
    """Of a properties file that reads as `settings`."""
    return [f"{key}={_escaped(text)}\n" for key, text in settings.items()]


def _escaped(text: str) -> str:
    """As a value of a properties file."""
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{escaped}" if escaped[:1] in (" ", "\t", "\f") else escaped
