"""A bookie behind its server on a port of its own, for tests over sockets."""

import trio

from bookie.bookie import Bookie
from bookie.server.server import BookieServer, BookieServerSettings
from tests.ledger.bookie_configs import small_bookie


class Node:
    """A bookie with its server, in a nursery of its own that `stop` ends."""

    def __init__(self, env, directory, name, port=0):
        self.bookie = Bookie(small_bookie(directory, name), env)
        self.server = BookieServer(
            self.bookie, env, BookieServerSettings(port=port), lambda: (1000, 500)
        )
        self.address = None
        self._scope = trio.CancelScope()
        self._ended = trio.Event()

    async def run(self, *, task_status):
        with self._scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.bookie.run)
                self.address = await nursery.start(self.server.run)
                task_status.started()
        self._ended.set()

    async def stop(self):
        """Returns when it is gone: nothing is answered any more."""
        self.address = None
        self._scope.cancel()
        await self._ended.wait()

    def freeze(self):
        """Takes requests, and answers none, as a process that was stopped (SIGSTOP)."""
        self.server._processor.process = lambda connection, request: None
        self.server._processor.add = lambda connection, *request: None

    def break_connections(self):
        for connection in list(self.server._connections):
            connection.close()
