"""A real server for other people's tests: in their process, durable, on a free port.

    async with quire.testing.Server() as server:  # trio
        use(server.bootstrap_servers)

    with quire.testing.server() as server:  # no trio: asyncio, threads, unittest
        use(server.bootstrap_servers)

With pytest there are fixtures instead (quire.testing.pytest_plugin). docs/testing.md says how each
is used. It is the server that `quire standalone` runs, with settings that suit small tests.

Names are imported on first use: pytest loads the plugin, and so this package, in every run of
everybody who has it installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.testing.thread_server import SyncServer, server
    from quire.testing.trio_server import Server

__all__ = ["Server", "SyncServer", "server"]


def __getattr__(name: str) -> object:
    if name == "Server":
        from quire.testing.trio_server import Server

        return Server
    if name in ("SyncServer", "server"):
        from quire.testing import thread_server

        return getattr(thread_server, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
