"""KafkaServer: listeners, connections and their limits.

Sees to what no single connection can: the number of them, in all and by address, those that went
idle (connections.max.idle.ms), the memory that all requests together may hold.

How many there may be, and how fast they may come, is broker/connection_quotas.py: beyond
max.connections and max.connection.creation.rate new ones wait in the listener's backlog; beyond
max.connections.per.ip they are closed.
"""

from __future__ import annotations

import heapq
import logging
from dataclasses import field
from itertools import count
from typing import TYPE_CHECKING, Protocol

import trio

from broker.api import ConnectionInfo
from broker.connection import KafkaConnection
from broker.connection_quotas import ConnectionLimits, ConnectionQuotas
from broker.quotas.rates import Windows
from broker.security.listener import ListenerSecurity
from broker.unsent import UnsentAnswers
from runtime.logs import kv
from runtime.receive import ReceiveChunks
from runtime.request_memory import RequestMemory
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from broker.dispatch import Dispatcher
    from runtime.net import Connection, Listener, Net, Transport
    from runtime.timers import Timers

logger = logging.getLogger(__name__)

#: Everybody is User:ANONYMOUS, and nothing is encrypted.
PLAIN = ListenerSecurity()
UNFINISHED_LOOK_SECONDS = 1.0
#: Connections that nothing is read from, and that wait to be closed.
DELAYED_MAX = 1000
#: That a listener is full is said this often.
TELL_SECONDS = 60.0
#: Idle connections are looked for this many times within connections.max.idle.ms.
IDLE_LOOKS = 4


@dataclass(slots=True, frozen=True)
class ServerSettings:
    """Kafka's names: socket.request.max.bytes, queued.max.request.bytes, connections.max.idle.ms
    (<= 0: never). `protected_listener`: where brokers meet; if there are others, it accepts
    whatever max.connections says. `windows`: what rates of connections are measured over."""

    frame_bytes_max: int = 100 << 20
    request_memory_bytes: int = 128 << 20
    connections_idle_ms: int = 600_000
    protected_listener: str = ""
    windows: Windows = field(default_factory=Windows)


class ConnectionRates(Protocol):
    """How fast an address may connect (broker/quotas/quotas.py)."""

    @property
    def is_for_addresses(self) -> bool:
        """Whether there are limits."""

    @property
    def timers(self) -> Timers: ...

    def connection_wait(self, host: str) -> float:
        """Of one more connection from there: 0.0, or the seconds after which it is closed."""


class KafkaServer:
    def __init__(
        self,
        net: Net,
        dispatcher: Dispatcher,
        settings: ServerSettings,
        limits: ConnectionLimits | None = None,
        rates: ConnectionRates | None = None,
        answers: UnsentAnswers | None = None,
    ) -> None:
        """`rates`: None limits nobody's. `answers`: those that who answers fetches looks at."""
        self._net = net
        self._dispatcher = dispatcher
        self._settings = settings
        self.quotas = ConnectionQuotas(
            limits or ConnectionLimits(), settings.windows, settings.protected_listener
        )
        self._rates = rates
        self._delayed_count = 0
        self._chunks = ReceiveChunks()
        self._numbers = count()
        self._listeners: dict[str, Listener] = {}
        #: Those that accept nobody now, and of these who do so for the rate.
        self._paused: set[str] = set()
        self._slowed: set[str] = set()
        self._is_open = True
        self._is_making_room = False
        #: When it was said last that a listener is full.
        self._told: dict[str, float] = {}
        self.memory = RequestMemory(settings.request_memory_bytes)
        self.answers = answers or UnsentAnswers()
        self.refused_count = 0
        self.throttled_count = 0
        self.slowed_count = 0
        self.excess_closed_count = 0
        self.idle_closed_count = 0
        self.overdue_closed_count = 0
        dispatcher.on_closed = self._closed

    @property
    def place(self) -> str:
        """`runtime.net.Net.place`."""
        return self._net.place

    def listen(
        self, host: str, port: int, listener: str, security: ListenerSecurity = PLAIN
    ) -> Listener:
        """Serves Kafka's protocol there at once. OSError if the address cannot be bound."""

        def make(transport: Transport) -> Connection:
            return self._connected(transport, listener, security)

        self.quotas.add_listener(listener)
        opened = self._listeners[listener] = self._net.listen(host, port, make)
        self._look_at_room()
        return opened

    def turn_away(self) -> None:
        """Closes each connection that comes, until `accept`: as if nobody listened yet, so that a
        client goes on to another broker. It may take long, and who waited would not."""
        self._is_open = False

    def accept(self) -> None:
        """Serves whoever comes from now on."""
        self._is_open = True

    def set_limits(self, limits: ConnectionLimits) -> None:
        """From now on. As in Kafka those that are beyond the broker's max.connections go; nobody
        does for another limit."""
        self.quotas.limits = limits
        self._look_at_room()

    def _connected(
        self, transport: Transport, listener: str, security: ListenerSecurity
    ) -> Connection:
        """What the driver feeds: the connection, or its TLS."""
        tls = security.tls
        if tls is None:
            connection = self._made(transport, listener)
            if self._admit(connection):
                self._begin_login(connection, security)
            return connection
        layer = tls.layer(transport)
        protected = self._made(layer, listener)
        if self._admit(protected):
            tls.begin(layer, protected, lambda: self._begin_login(protected, security))
        else:
            layer.attach(protected)
        return layer

    def _made(self, transport: Transport, listener: str) -> KafkaConnection:
        host, _, port = transport.peer.rpartition(":")
        info = ConnectionInfo(
            id=f"{transport.peer}-{next(self._numbers)}",
            peer_host=host,
            listener=listener,
            peer_port=port,
            close=transport.close,
        )
        return KafkaConnection(
            transport,
            self._dispatcher,
            self.memory,
            self._chunks,
            info,
            self._settings.frame_bytes_max,
            self.answers,
        )

    def _begin_login(self, connection: KafkaConnection, security: ListenerSecurity) -> None:
        if security.sasl is not None:
            connection.dispatcher = security.sasl.begin(connection, self._dispatcher)

    def _admit(self, connection: KafkaConnection) -> bool:
        """Counts it, or closes it where there are too many: before it takes a place among those who
        shake hands or log in, which is somebody else's."""
        if not self._is_open:
            connection.refuse()
            return False
        host = connection.info.peer_host
        self._slow_down(connection.info.listener)
        if self._rates is not None and self._rates.is_for_addresses:
            wait = self._rates.connection_wait(host)
            if wait > 0:
                self._close_later(connection, wait, self._rates.timers)
                return False
        if self.quotas.is_host_full(host):
            # As Kafka: counted by address, whatever the listener, and told.
            self.refused_count += 1
            logger.info(
                "connection_refused",
                kv(
                    peer=connection.peer,
                    reason="max.connections.per.ip",
                    max=self.quotas.limits.of(host),
                ),
            )
            connection.refuse()
            return False
        self.quotas.opened(host, connection.info.listener)
        self._dispatcher.connection_opened(connection)
        self._look_at_room()
        return True

    def _close_later(self, connection: KafkaConnection, seconds: float, timers: Timers) -> None:
        """One too many in its time (connection_creation_rate): as in Kafka nothing is read, and it
        is closed when its client may come again, so that one which tries at once is slowed down.
        At once beyond DELAYED_MAX."""
        self.throttled_count += 1
        if self._delayed_count >= DELAYED_MAX:
            connection.refuse()
            return

        def close() -> None:
            self._delayed_count -= 1
            connection.close()

        self._delayed_count += 1
        connection.rest()
        timers.after(seconds, close)

    # -- room for connections ----------------------------------------------------------------------

    def _slow_down(self, listener: str) -> None:
        """One came; those behind it wait if that was faster than max.connection.creation.rate."""
        wait = self.quotas.accepted(listener, trio.current_time())
        if wait <= 0 or self._rates is None:
            return

        def go_on() -> None:
            self._slowed.discard(listener)
            self._look_at_room()

        self.slowed_count += 1
        if listener not in self._slowed:
            self._slowed.add(listener)
            self._rates.timers.after(wait, go_on)
        self._look_at_room()

    def _look_at_room(self) -> None:
        """Listeners without room rest: who connects waits until somebody leaves."""
        quotas = self.quotas
        for name, listener in self._listeners.items():
            has_slot = quotas.has_slot(name)
            if has_slot and name not in self._slowed:
                if name in self._paused:
                    self._paused.discard(name)
                    listener.resume_accepting()
            elif name not in self._paused:
                self._paused.add(name)
                listener.pause_accepting()
                if not has_slot:
                    self._tell_full(name)
        if quotas.excess and not self._is_making_room:
            self._is_making_room = True
            self._dispatcher.turn.defer(self._make_room)

    def _tell_full(self, listener: str) -> None:
        """Not each time: at the limit one comes for each that leaves."""
        now, quotas = trio.current_time(), self.quotas
        if now - self._told.get(listener, -TELL_SECONDS) < TELL_SECONDS:
            return
        self._told[listener] = now
        logger.warning(
            "connections_full",
            kv(
                listener=listener,
                connections=quotas.count,
                max_connections=quotas.limits.connections_max,
                of_listener=quotas.connections_of(listener),
                max_of_listener=quotas.limits.of_listener(listener).connections_max,
            ),
        )

    def _make_room(self) -> None:
        """A broker came although there are too many, or the limit was lowered: others go, those who
        were silent for longest."""
        self._is_making_room = False
        others = [
            connection
            for connection in self._dispatcher.connections
            if not self.quotas.is_protected(connection.info.listener)
        ]
        for connection in heapq.nsmallest(
            self.quotas.excess, others, key=lambda connection: connection.last_use
        ):
            self.excess_closed_count += 1
            connection.close()

    def _closed(self, connection: KafkaConnection) -> None:
        self.quotas.closed(connection.info.peer_host, connection.info.listener)
        self._look_at_room()

    # -- connections that are given up -------------------------------------------------------------

    async def reap_unfinished(self) -> None:
        """Closes connections whose large frames are not finished while others wait for the memory
        that they hold (runtime/request_memory.py); never returns."""
        while True:
            await trio.sleep(UNFINISHED_LOOK_SECONDS)
            for holder in self.memory.overdue():
                assert isinstance(holder, KafkaConnection)
                self.overdue_closed_count += 1
                logger.warning("unfinished_request", kv(peer=holder.peer))
                holder.close()

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
