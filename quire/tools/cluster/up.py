"""`quire cluster up`: ZooKeeper, bookies and brokers as processes of one machine.

Started in that order, each kind once the one below it serves; stopped in the reverse order, each
kind asked (SIGTERM) and given STOP_SECONDS_MAX. Nothing is restarted: who dies is named, and stays
dead until `quire cluster start`. None outlives this process, however that ends.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from typing import TYPE_CHECKING, TextIO

import click
import trio

from quire.tools.cluster.layout import AUTORECOVERY, HOST, ZOOKEEPER, Layout
from runtime.env import real_env
from runtime.logs import kv
from runtime.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from quire.tools.cluster.layout import UpOptions

logger = logging.getLogger(__name__)

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
POLL_SECONDS = 0.05
#: What a process of ours logs once it serves (quire/role.py).
READY = b"event=ready"
#: Shown of the log of one that does not start.
TAIL_LINES = 12


class ClusterStartError(OSError):
    """A process ended, or did not serve in time, at the start; says which."""


class ClusterUp:
    def __init__(self, options: UpOptions, java: str, jars: Path) -> None:
        """ClickException, OSError: the directory cannot be used."""
        self._layout = Layout(options)
        self._java, self._jars = java, jars
        self._groups: list[list[str]] = [[ZOOKEEPER], self._layout.bookies]
        if options.autorecovery:
            self._groups.append([AUTORECOVERY])
        self._groups.append(self._layout.brokers)
        self._children: dict[str, ChildProcess] = {}
        self._is_stopping = False
        #: Set when one has ended.
        self._changed = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[tuple[str, int]]) -> None:
        """Until cancelled. ClusterStartError; OSError if another one runs in the directory."""
        path = str(self._layout.directory / "lock")
        try:
            unlock = real_env().disk.lock(path)
        except BlockingIOError as error:
            raise OSError(f"{self._layout.directory} is in use by another cluster") from error
        try:
            async with trio.open_nursery() as nursery:
                try:
                    for names in self._groups:
                        await self._start_group(names, nursery)
                    click.echo(self._description())
                    first = self._layout.brokers[0]
                    task_status.started((HOST, self._layout.ports[first]))
                    await trio.sleep_forever()
                finally:
                    with trio.CancelScope(shield=True):
                        await self._stop()
                    nursery.cancel_scope.cancel()
        finally:
            unlock()

    # -- starting --------------------------------------------------------------------------------

    async def _start_group(self, names: Sequence[str], nursery: trio.Nursery) -> None:
        async with trio.open_nursery() as starting:
            for name in names:
                offset = self._launch(name)
                nursery.start_soon(self._watch, name)
                starting.start_soon(self._wait_until_ready, name, offset)
                if name == "bookie-1":  # the first one lays out the tree that the others find
                    await self._wait_until_ready(name, offset)

    def _launch(self, name: str) -> int:
        """Starts the process; gives where its log begins."""
        self._layout.prepare(name)
        with self._layout.log_path(name).open("a") as log:
            offset = log.tell()
            self._children[name] = child = self._child(name, log)
        (self._layout.directory / name / "pid").write_text(f"{child.pid}\n")
        return offset

    def _child(self, name: str, log: TextIO) -> ChildProcess:
        return ChildProcess(self._layout.command(name, self._java, self._jars), errors=log)

    async def _wait_until_ready(self, name: str, offset: int) -> None:
        with trio.move_on_after(READY_SECONDS_MAX):
            while name in self._children:
                if self._is_ready(name, offset):
                    return
                await trio.sleep(POLL_SECONDS)
            raise self._start_error(name, "ended at the start")
        raise self._start_error(name, f"does not serve after {READY_SECONDS_MAX:.0f} s")

    def _is_ready(self, name: str, offset: int) -> bool:
        if name == ZOOKEEPER:
            return _is_zookeeper_ready(self._layout.ports[name])
        with self._layout.log_path(name).open("rb") as log:
            log.seek(offset)
            return READY in log.read()

    def _start_error(self, name: str, words: str) -> ClusterStartError:
        path = self._layout.log_path(name)
        lines = path.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        click.echo("\n".join([f"the end of {path}:", *lines]), err=True)
        return ClusterStartError(f"{name} {words}; its log is {path}")

    # -- while they run --------------------------------------------------------------------------

    async def _watch(self, name: str) -> None:
        """Says when it ends, and starts it again when it is asked to."""
        home = self._layout.directory / name
        request = home / "start"
        request.unlink(missing_ok=True)
        while True:
            with trio.CancelScope(shield=True):  # the stop is over when all have ended
                code = await self._children[name].wait()
            del self._children[name]
            self._changed.set()
            (home / "pid").unlink(missing_ok=True)
            if self._is_stopping:
                return
            click.echo(f"{name} {_how(code)}; the log is {self._layout.log_path(name)}")
            while not request.exists():  # noqa: ASYNC110  # a file of another process
                await trio.sleep(POLL_SECONDS)
            request.unlink()
            self._launch(name)
            click.echo(f"{name} is started again, as process {self._children[name].pid}")

    async def _stop(self) -> None:
        self._is_stopping = True
        for names in reversed(self._groups):
            children = [(name, self._children[name]) for name in names if name in self._children]
            for _, child in children:
                child.terminate()
                child.resume()  # one that was stopped by a signal hears of nothing else
            with trio.move_on_after(STOP_SECONDS_MAX):
                await self._wait_gone(names)
            for name, child in children:
                if name in self._children:
                    click.echo(f"{name} does not end; killing it")
                    child.kill()
            await self._wait_gone(names)
            logger.info("stopped", kv(processes=",".join(name for name, _ in children)))

    async def _wait_gone(self, names: Sequence[str]) -> None:
        while any(name in self._children for name in names):
            self._changed = trio.Event()
            await self._changed.wait()

    def _description(self) -> str:
        layout = self._layout
        lines = [
            f"brokers        {layout.bootstrap}",
            f"bookies        {', '.join(layout.bookies)}",
            f"metadata       {layout.service_uri}",
            f"directory      {layout.directory} (data and logs; they stay)",
            f"pid            {os.getpid()}",
            "",
            f"clients        bootstrap.servers={layout.bootstrap}",
            f"look at it     quire cluster status -u '{layout.service_uri}'",
            f"try faults     quire cluster kill|stop|start NAME --directory {layout.directory}",
            "end it         Ctrl-C, or SIGTERM",
        ]
        return "\n".join(lines)


def _how(code: int) -> str:
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with code {code}"


def _is_zookeeper_ready(port: int) -> bool:
    """It answers its four-letter word; on loopback that takes no time worth waiting for."""
    try:
        with socket.create_connection((HOST, port), 1) as connection:
            connection.sendall(b"ruok")
            return connection.recv(16) == b"imok"
    except OSError:
        return False
