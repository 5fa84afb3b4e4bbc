"""Where a bookie's host is: `/region/rack`, from a table or from a script.

A table is a file with `host=/region/rack` (or `host /region/rack`) on each line, `#` for comments.
A script is given hosts as arguments and prints a location for each, as BookKeeper's
networkTopologyScriptFileName (ScriptBasedMapping.java). Hosts that neither knows are at
`/default-region/default-rack`.
"""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import trio

from ledger.placement.policy import DEFAULT_LOCATION
from runtime.logs import kv

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger(__name__)

#: networkTopologyScriptNumberArgs: hosts per call of the script.
SCRIPT_HOSTS_MAX = 100
SCRIPT_SECONDS_MAX = 30.0


class TopologyError(Exception):
    """A table or script that cannot be read; names it, and the line."""


class Topology(Protocol):
    async def locations(self, hosts: Sequence[str]) -> list[str]:
        """A location for each. TopologyError."""


class DefaultTopology:
    """All are in one rack."""

    async def locations(self, hosts: Sequence[str]) -> list[str]:
        return [DEFAULT_LOCATION] * len(hosts)


def checked_location(text: str, where: str) -> str:
    """TopologyError unless it is an absolute path with names in it."""
    location = text.rstrip("/")
    if not location.startswith("/") or "" in location.split("/")[1:]:
        raise TopologyError(f"{where}: {text!r} is no location such as /region/rack")
    return location


def parse_table(text: str, name: str) -> dict[str, str]:
    """Host -> location. TopologyError with the line's number."""
    found: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        host, separator, location = line.partition("=")
        words = [host.strip(), location.strip()] if separator else line.split()
        if len(words) != 2 or not words[0]:
            raise TopologyError(f"{name}, line {number}: {raw!r} is not host=/region/rack")
        found[words[0]] = checked_location(words[1], f"{name}, line {number}")
    return found


class TableTopology:
    """The file is read for every question: it is small, and questions come when bookies do."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def locations(self, hosts: Sequence[str]) -> list[str]:
        try:
            text = await trio.Path(self._path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TopologyError(f"{self._path}: {error}") from error
        table = parse_table(text, self._path)
        return [table.get(host, DEFAULT_LOCATION) for host in hosts]


class ScriptTopology:
    def __init__(self, path: str) -> None:
        self._path = path

    async def locations(self, hosts: Sequence[str]) -> list[str]:
        found: list[str] = []
        for start in range(0, len(hosts), SCRIPT_HOSTS_MAX):
            found += await self._ask(list(hosts[start : start + SCRIPT_HOSTS_MAX]))
        return found

    async def _ask(self, hosts: list[str]) -> list[str]:
        name = Path(self._path).name
        try:
            with trio.fail_after(SCRIPT_SECONDS_MAX):
                done = await trio.run_process([self._path, *hosts], capture_stdout=True)
        except (OSError, subprocess.CalledProcessError, trio.TooSlowError) as error:
            raise TopologyError(f"{name}: {error or 'no answer in time'}") from error
        words = done.stdout.decode(errors="replace").split()
        if len(words) != len(hosts):
            raise TopologyError(f"{name}: {len(words)} locations for {len(hosts)} hosts")
        return [checked_location(word, name) for word in words]


async def locations_or_default(topology: Topology, hosts: Sequence[str]) -> list[str]:
    """A topology that fails is no reason to write nothing."""
    try:
        return await topology.locations(hosts)
    except TopologyError as error:
        logger.warning("topology_failed", kv(error=error, hosts=len(hosts)))
        return [DEFAULT_LOCATION] * len(hosts)
