"""`quire cluster kill|stop|start NAME`: one process of a running `quire cluster up`.

Ends it through its process id, and asks `up` to start it by a file in its directory
(quire/tools/cluster/layout.py)."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import click
import trio

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WAIT_SECONDS_MAX = 40.0
POLL_SECONDS = 0.05


def kill(directory: Path, name: str) -> None:
    """SIGKILL; waits until it is gone. ClickException."""
    pid = _pid(directory, name)
    os.kill(pid, signal.SIGKILL)
    _wait(lambda: not _is_known(directory, name, pid), f"{name} (process {pid}) is still there")
    click.echo(f"{name} was process {pid}")


def stop(directory: Path, name: str) -> None:
    """SIGTERM; waits until it is gone. ClickException."""
    pid = _pid(directory, name)
    os.kill(pid, signal.SIGTERM)
    _wait(lambda: not _is_known(directory, name, pid), f"{name} (process {pid}) is still there")
    click.echo(f"{name} was process {pid}")


def start(directory: Path, name: str) -> None:
    """Asks for it, and waits until there is a process (its log tells when it serves)."""
    home = _home(directory, name)
    if (home / "pid").exists():
        raise click.ClickException(f"{name} runs, as process {(home / 'pid').read_text().strip()}")
    (home / "start").touch()
    try:
        _wait((home / "pid").exists, f"{directory}: no `quire cluster up` runs there")
    finally:
        (home / "start").unlink(missing_ok=True)
    click.echo(f"{name} is process {(home / 'pid').read_text().strip()}")


def _home(directory: Path, name: str) -> Path:
    home = directory / name
    if not (directory / "cluster.json").exists():
        raise click.ClickException(f"{directory} is no directory of `quire cluster up`")
    if "/" in name or not home.is_dir():
        names = sorted(path.name for path in directory.iterdir() if (path / "log").exists())
        raise click.ClickException(f"there is no {name!r} in {directory}, but {', '.join(names)}")
    return home


def _pid(directory: Path, name: str) -> int:
    try:
        return int((_home(directory, name) / "pid").read_text())
    except FileNotFoundError as error:
        raise click.ClickException(f"{name} does not run") from error


def _is_known(directory: Path, name: str, pid: int) -> bool:
    try:
        return int((directory / name / "pid").read_text()) == pid
    except (FileNotFoundError, ValueError):
        return False


def _wait(condition: Callable[[], bool], words: str) -> None:
    async def wait() -> bool:
        with trio.move_on_after(WAIT_SECONDS_MAX):
            while not condition():  # noqa: ASYNC110  # a file of another process: nobody tells us
                await trio.sleep(POLL_SECONDS)
            return True
        return False

    if not trio.run(wait):
        raise click.ClickException(words)
