"""KafkaServer: listeners, connections and their limits.

Sees to what no single connection can: the number of them (max.connections), those that went idle
(connections.max.idle.ms), the memory that all requests together may hold.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import trio

from broker.api import ConnectionInfo
from broker.connection import KafkaConnection
from runtime.logs import kv
from runtime.receive import ReceiveChunks
from runtime.request_memory import RequestMemory

if TYPE_CHECKING:
    from broker.dispatch import Dispatcher
    from runtime.net import Listener, Net, Transport

logger = logging.getLogger(__name__)

#: Idle connections are looked for this many times within connections.max.idle.ms.
IDLE_LOOKS = 4


@dataclass(slots=True, frozen=True)
class ServerSettings:
    """Kafka's names: socket.request.max.bytes, queued.max.request.bytes, max.connections,
    connections.max.idle.ms (<= 0: never)."""

    frame_bytes_max: int = 100 << 20
    request_memory_bytes: int = 128 << 20
    connections_max: int = (1 << 31) - 1
    connections_idle_ms: int = 600_000


class KafkaServer:
    def __init__(self, net: Net, dispatcher: Dispatcher, settings: ServerSettings) -> None:
        self._net = net
        self._dispatcher = dispatcher
        self._settings = settings
        self._chunks = ReceiveChunks()
        self._numbers = count()
        self.memory = RequestMemory(settings.request_memory_bytes)
        self.refused_count = 0
        self.idle_closed_count = 0

    @property
    def place(self) -> str:
        """`runtime.net.Net.place`."""
        return self._net.place

    def listen(self, host: str, port: int, listener: str) -> Listener:
        """Serves Kafka's protocol there at once. OSError if the address cannot be bound."""

        def make(transport: Transport) -> KafkaConnection:
            return self._connected(transport, listener)

        return self._net.listen(host, port, make)

    def _connected(self, transport: Transport, listener: str) -> KafkaConnection:
        info = ConnectionInfo(
            id=f"{transport.peer}-{next(self._numbers)}",
            peer_host=transport.peer.rpartition(":")[0],
            listener=listener,
            close=transport.close,
        )
        connection = KafkaConnection(
            transport,
            self._dispatcher,
            self.memory,
            self._chunks,
            info,
            self._settings.frame_bytes_max,
        )
        if len(self._dispatcher.connections) >= self._settings.connections_max:
            self.refused_count += 1
            logger.warning("connection_refused", kv(peer=transport.peer, reason="max.connections"))
            connection.refuse()
        else:
            self._dispatcher.connection_opened(connection)
        return connection

    async def reap_idle(self) -> None:
        """Closes connections that sent nothing for connections.max.idle.ms; never returns."""
        idle_ms = self._settings.connections_idle_ms
        if idle_ms <= 0:
            await trio.sleep_forever()
        looks: dict[KafkaConnection, int] = {}
        while True:
            await trio.sleep(idle_ms / 1000 / IDLE_LOOKS)
            idle: dict[KafkaConnection, int] = {}
            for connection in list(self._dispatcher.connections):
                # A client that waits for us is not idle.
                if connection.active or connection.waiting_count:
                    connection.active = False
                    continue
                idle[connection] = looks.get(connection, 0) + 1
                if idle[connection] >= IDLE_LOOKS:
                    self.idle_closed_count += 1
                    connection.close()
            looks = idle
