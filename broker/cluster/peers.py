"""Other brokers, asked over the listener that they have for each other, in Kafka's own protocol.

One connection for each broker, made when it is first needed, and made anew when it is needed again
after it broke. Requests are pipelined: they are answered in their order. What is on its way when
the connection breaks is told None, as is everything while a broker cannot be reached: whoever asks
knows best when to ask again, and of whom. A broker that could not be reached is not tried again
before a pause of 100 ms, which doubles up to 1 s.

A connection to a machine that lost its power, or was cut off, or to a process that stands still,
stays silent and does not break. So it is given up when the broker's registration goes (`ended`),
which is known long before ANSWER_SECONDS, or is of another address (`moved`): markers that wait on
it hold back all readers of their partitions. Whether the requests on it were heard is as little
known as when it breaks by itself. Assumed: a registration outlives its broker by the session's
timeout at most, and every question may be asked twice.

Where brokers meet over TLS, or log in to each other, a connection is there once that is done
(`_Below`). A login that ends after some time is not made anew on its connection: there is another
connection for what is asked next, and the old one is closed when it has answered.

Owner: the event loop's thread. `run` has the tasks that connect.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio

from broker.cluster.peer_login import LOGIN_SECONDS, SESSION_SHARE, LoginRefusedError, Talk
from runtime.logs import kv
from runtime.receive import FrameReceiver, FrameTooLargeError, ReceiveChunks
from wire.kafka.errors import WireError
from wire.kafka.headers import decode_response, encode_request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.cluster.peer_login import Login
    from runtime.env import Env
    from runtime.net import Connection, Transport
    from runtime.tls import TlsTransport
    from wire.kafka.message import Message

logger = logging.getLogger(__name__)

#: What a question came to; None: it is not known whether it was heard.
Answered = Callable[["Message | None"], None]
#: What makes TLS of a connection to a host.
Secure = Callable[["Transport", str], "TlsTransport"]
_Start = Callable[[], Awaitable[None]]

CONNECT_SECONDS = 5.0
#: Nobody waits longer for an answer: the connection is given up, and with it all that is on it.
ANSWER_SECONDS = 30.0
PAUSE_SECONDS = 0.1
PAUSE_SECONDS_MAX = 1.0
FRAME_BYTES_MAX = 16 << 20
#: Bytes that wait for one broker to take them; more is told None at once.
UNSENT_BYTES_MAX = 16 << 20


class Endpoint(Protocol):
    @property
    def node_id(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...


class _Peer:
    """The connection to one broker at one address, as the driver sees it (runtime/net.py)."""

    def __init__(self, owner: BrokerPeers, node_id: int, address: tuple[str, int]) -> None:
        self.node_id = node_id
        self.address = address
        self.transport: Transport | None = None
        self.is_connecting = False
        self.is_dropped = False
        #: Nothing new is asked here; it is closed once all is answered.
        self.is_old = False
        self.session_ends = math.inf
        self.rest_until = 0.0
        self.failures = 0
        #: On their way, in order: (key, version, correlation id, since when, who is told).
        self.asked: deque[tuple[int, int, int, float, Answered]] = deque()
        self._owner = owner
        self._unsent: list[bytes] = []
        self._talk: Talk | None = None
        self._correlation_id = 0
        self._receiver = FrameReceiver(owner.chunks, FRAME_BYTES_MAX, self._on_frame)

    def ask(self, message: Message, version: int, answered: Answered) -> None:
        now = self._owner.now()
        transport = self.transport
        if transport is None and not self.is_connecting:
            if now < self.rest_until or not self._owner.connect(self):
                answered(None)
                return
            self.is_connecting = True
        waiting = sum(map(len, self._unsent)) if transport is None else transport.unsent_bytes
        if waiting > UNSENT_BYTES_MAX:
            answered(None)
            return
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        frame = encode_request(message, version, self._correlation_id, self._owner.client_id)
        self.asked.append((message.INFO.key, version, self._correlation_id, now, answered))
        if transport is None:
            self._unsent.append(frame)
        else:
            transport.write([frame])

    def connected(self, below: Transport) -> Connection:
        secure = self._owner.secure
        if secure is None:
            self._opened(below)
            return self if self._owner.login is None else _Below(self, below)
        layer = secure(below, self.address[0])
        layer.on_established = partial(self._opened, layer)
        layer.on_failed = self.failed
        layer.attach(_Below(self, layer))
        return layer

    def _opened(self, transport: Transport) -> None:
        login = self._owner.login
        if login is None:
            self.established(transport)
            return
        self._receiver = FrameReceiver(self._owner.chunks, FRAME_BYTES_MAX, self._on_frame)
        self._talk = Talk(transport, self._owner.client_id)
        self._owner.start(partial(self._log_in, login, self._talk))

    async def _log_in(self, login: Login, talk: Talk) -> None:
        seconds: float | None = None
        refused: str | None = None
        try:
            with trio.fail_after(LOGIN_SECONDS):
                seconds = await login(talk.ask)
        except LoginRefusedError as error:
            refused = str(error)
        except trio.TooSlowError:
            refused = "no answer in time"
        finally:
            self._talk = None
        if refused is not None:
            logger.warning(
                "broker_login_failed", kv(broker=self.node_id, to=self.address, reason=refused)
            )
            talk.transport.close()
            self.failed(refused)
            return
        self.session_ends = math.inf
        if seconds is not None:
            self.session_ends = self._owner.now() + seconds * SESSION_SHARE
        self.established(talk.transport)

    def is_above(self, transport: Transport) -> bool:
        """Whether this is its connection now."""
        return transport is (self.transport if self._talk is None else self._talk.transport)

    def established(self, transport: Transport) -> None:
        self.transport = transport
        self.is_connecting = False
        self.failures = 0
        self._receiver = FrameReceiver(self._owner.chunks, FRAME_BYTES_MAX, self._on_frame)
        unsent, self._unsent = self._unsent, []
        if unsent:
            transport.write(unsent)
        if self.is_dropped:
            transport.close()

    def failed(self, error: object) -> None:
        """It cannot be reached now."""
        logger.info("broker_unreachable", kv(broker=self.node_id, to=self.address, error=error))
        pause = min(PAUSE_SECONDS * 2 ** min(self.failures, 10), PAUSE_SECONDS_MAX)
        self.failures += 1
        self.rest_until = self._owner.now() + pause
        self.is_connecting = False
        self._fail_all()

    def close_if_hanging(self) -> None:
        """An answer that does not come is given up."""
        if self.asked and self.asked[0][3] + ANSWER_SECONDS < self._owner.now():
            logger.warning("broker_does_not_answer", kv(broker=self.node_id, to=self.address))
            self.close()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()
        elif self._talk is not None:
            self._talk.transport.close()
        else:
            self._fail_all()

    def retire(self) -> None:
        """Nothing new is asked here, and what was is answered."""
        self.is_old = True
        if not self.asked:
            self.close()

    def drop(self) -> None:
        """Nobody asks it again: whoever waits is told now, whatever the connection still does."""
        self.is_dropped = True
        self.close()
        self._fail_all()

    def _fail_all(self) -> None:
        self._unsent.clear()
        asked, self.asked = self.asked, deque()
        for *_, answered in asked:
            answered(None)

    def _on_frame(self, frame: memoryview) -> bool:
        if self._talk is not None:
            self._talk.answered(frame)
            return True
        if not self.asked:
            raise WireError("an answer to nothing")
        key, version, expected, _, answered = self.asked[0]
        correlation_id, message = decode_response(key, version, frame)
        if correlation_id != expected:
            raise WireError(f"an answer to request {correlation_id}, expected {expected}")
        self.asked.popleft()
        answered(message)
        if self.is_old and not self.asked:
            self.close()
        return self.transport is not None

    # --- as the driver sees it

    def receive_buffer(self) -> memoryview:
        return self._receiver.buffer()

    def received(self, count: int) -> None:
        try:
            self._receiver.received(count)
        except (FrameTooLargeError, WireError) as error:
            logger.warning("bad_answer", kv(broker=self.node_id, to=self.address, error=error))
            self.close()

    def drained(self) -> None:
        return

    def closed(self) -> None:
        if self._talk is not None:
            self._talk.ended()  # whoever logs in tells the rest
            return
        self.transport = None
        self.session_ends = math.inf
        self._fail_all()


class _Below:
    """What a connection is to its peer while TLS or a login are made. One that failed is told so,
    and no end of a connection: there may be another by then."""

    def __init__(self, peer: _Peer, layer: Transport) -> None:
        self._peer = peer
        self._layer = layer
        self.receive_buffer = peer.receive_buffer
        self.received = peer.received
        self.drained = peer.drained

    def closed(self) -> None:
        if self._peer.is_above(self._layer):
            self._peer.closed()


class BrokerPeers:
    """`run` it once; constructors start nothing."""

    def __init__(
        self,
        env: Env,
        client_id: str,
        secure: Secure | None = None,
        login: Login | None = None,
    ) -> None:
        """`secure`: None where brokers meet without TLS; `login`: None where nobody logs in."""
        self.client_id = client_id
        self.secure = secure
        self.login = login
        self.chunks = ReceiveChunks()
        self._env = env
        self._peers: dict[int, _Peer] = {}
        #: Whose login is about to end.
        self._old: dict[_Peer, None] = {}
        self._is_running = False
        # At most one entry per peer is in the channel.
        self._to_start, self._starts = trio.open_memory_channel[_Start](math.inf)

    def ask(self, endpoint: Endpoint, message: Message, version: int, answered: Answered) -> None:
        """`answered(response)` exactly once, or `answered(None)`, possibly before this returns."""
        address = (endpoint.host, endpoint.port)
        peer = self._peers.get(endpoint.node_id)
        is_over = peer is not None and peer.session_ends < self.now()
        if peer is None or peer.address != address or is_over:
            if peer is not None and peer.address != address:
                peer.drop()  # it came back elsewhere
            elif peer is not None and peer.transport is not None:
                self._old[peer] = None
                peer.retire()
            peer = self._peers[endpoint.node_id] = _Peer(self, endpoint.node_id, address)
        peer.ask(message, version, answered)

    def ended(self, node_ids: Iterable[int]) -> None:
        """These brokers' lives are over, as far as metadata knows: whoever waits for an answer is
        told None before this returns. One that is there again is connected to anew."""
        for node_id in node_ids:
            for old in [each for each in self._old if each.node_id == node_id]:
                old.drop()
            peer = self._peers.pop(node_id, None)
            if peer is not None:
                logger.info("broker_gone", kv(broker=node_id, to=peer.address))
                peer.drop()

    def moved(self, address_of: Callable[[int], tuple[str, int] | None]) -> None:
        """Brokers may be reached elsewhere: what was asked at an address that is not a broker's any
        more is told None. `address_of(node id)`: as it is registered; None if it is not."""
        for peer in list(self._peers.values()):
            address = address_of(peer.node_id)
            if address is not None and address != peer.address:
                self.ended([peer.node_id])

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Never returns. Cancelled: connections are closed, and who waits is told None."""
        try:
            async with trio.open_nursery() as nursery:
                self._is_running = True
                nursery.start_soon(self._look_for_ever)
                task_status.started()
                async for function in self._starts:
                    nursery.start_soon(function)
        finally:
            self._is_running = False
            for peer in (*self._peers.values(), *self._old):
                peer.close()

    def now(self) -> float:
        return self._env.clock.monotonic()

    def connect(self, peer: _Peer) -> bool:
        """False: nobody is there to."""
        if self._is_running:
            self.start(partial(self._connect, peer))
        return self._is_running

    def start(self, function: _Start) -> None:
        """In a task of `run`."""
        self._to_start.send_nowait(function)

    async def _connect(self, peer: _Peer) -> None:
        try:
            with trio.fail_after(CONNECT_SECONDS):
                await self._env.net.connect(*peer.address, partial(_Peer.connected, peer))
        except (OSError, trio.TooSlowError) as error:
            peer.failed(error or "no answer in time")
            return
        if peer.is_dropped:
            peer.close()

    async def _look_for_ever(self) -> None:
        while True:
            await trio.sleep(1.0)
            for peer in (*self._peers.values(), *self._old):
                peer.close_if_hanging()
            self._old = {peer: None for peer in self._old if peer.transport is not None}
