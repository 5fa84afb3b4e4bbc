"""BookieServer: the listener, and what all its connections share."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

import trio

from bookie.server.admission import AdmissionLimits, Door, Entrance
from bookie.server.connection import BookieConnection
from bookie.server.processor import Processor
from bookie.server.request_limits import ProcessorSettings
from runtime.aside import Aside
from runtime.receive import ReceiveChunks
from runtime.renewed_tls import RenewedTls
from runtime.spread import Spread
from runtime.timers import Timers
from runtime.tls import HANDSHAKE_TIMEOUT_MS, Tls
from wire.bookkeeper.frames import FRAME_SIZE_MAX_BYTES, SIZE_BYTES
from wire.dataclass import dataclass

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from bookie.bookie import Bookie
    from bookie.server.auth import AuthProvider
    from bookie.server.request_limits import RequestCounts
    from runtime.env import Env
    from runtime.net import Listener, Transport

#: How often ledgers whose LAC nobody asks for any more are looked for.
FOLLOWED_LOOK_SECONDS = 60.0
#: Of the turn (runtime/turn.py): a handshake with a key of RSA's 2,048 bits.
HANDSHAKE_UNITS = 1_300


@dataclass(slots=True)
class BookieServerSettings:
    """bookiePort and the host to listen on; nettyMaxFrameSizeBytes."""

    host: str = "127.0.0.1"
    port: int = 3181
    frame_bytes_max: int = FRAME_SIZE_MAX_BYTES - SIZE_BYTES
    processor: ProcessorSettings = field(default_factory=ProcessorSettings)
    #: For START_TLS; None: it is refused.
    tls: ssl.SSLContext | RenewedTls | None = None
    #: None: everybody is served.
    auth: AuthProvider | None = None
    admission: AdmissionLimits = field(default_factory=AdmissionLimits)


class BookieServer:
    """Serves a running bookie until cancelled; its requests end before the bookie does."""

    def __init__(
        self,
        bookie: Bookie,
        env: Env,
        settings: BookieServerSettings,
        disk_space: Callable[[], tuple[int, int]],
    ) -> None:
        self._bookie = bookie
        self._env = env
        self._settings = settings
        self._disk_space = disk_space
        self._chunks = ReceiveChunks()
        #: In the order in which they came: a set's would be that of memory addresses.
        self._connections: dict[BookieConnection, None] = {}
        self._processor: Processor | None = None

    @property
    def connection_count(self) -> int:
        """For tests: those that are open."""
        return sum(not each.is_closed for each in self._connections)

    @property
    def counts(self) -> RequestCounts | None:
        return self._processor.counts if self._processor is not None else None

    async def run(
        self, *, task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """`started` with the bound address. OSError if it cannot be bound."""
        timers = Timers()
        listener: Listener | None = None
        try:
            async with trio.open_nursery() as nursery:
                self._processor = Processor(
                    self._bookie,
                    self._env.turn,
                    timers,
                    nursery,
                    self._disk_space,
                    self._settings.processor,
                    Entrance(self._tls(timers), self._door(timers)),
                )
                await nursery.start(timers.run)
                if isinstance(self._settings.tls, RenewedTls):
                    nursery.start_soon(self._settings.tls.run)
                listener = self._env.net.listen(
                    self._settings.host, self._settings.port, self._connected
                )
                task_status.started(listener.address)
                await self._look_after()
        finally:
            if listener is not None:
                listener.close()
            for connection in list(self._connections):
                connection.close()

    def _door(self, timers: Timers) -> Door | None:
        provider = self._settings.auth
        if provider is None:
            return None
        return Door(provider, self._settings.admission, timers, self._env.rng.randbytes)

    def _tls(self, timers: Timers) -> Tls | None:
        context = self._settings.tls
        if context is None:
            return None
        turn = self._env.turn
        line, aside = Spread(turn, HANDSHAKE_UNITS), Aside("bookie-handshake")
        return Tls(context, turn, timers, HANDSHAKE_TIMEOUT_MS, line, aside)

    def _connected(self, transport: Transport) -> BookieConnection:
        assert self._processor is not None
        connection = BookieConnection(
            transport, self._processor, self._chunks, self._settings.frame_bytes_max
        )
        self._connections[connection] = None
        return connection

    async def _look_after(self) -> None:
        while True:
            await trio.sleep(FOLLOWED_LOOK_SECONDS)
            self._bookie.lacs.drop_idle()
            self._connections = {each: None for each in self._connections if not each.is_closed}
