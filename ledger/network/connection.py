"""One connection to a bookie: made when it is first needed, made anew after it broke.

Requests that come while it connects wait for it, in order; if it cannot connect, or breaks, all
that wait are told EIO, which is no outcome. What is under way, and how answers are recognised, is
the subclasses' (a channel for each protocol version).

Owner: the event loop's thread.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import trio

from ledger.network.greeting import NotAuthenticatedError, WrongBookieError, connect_greeted
from runtime.logs import kv
from runtime.receive import FrameReceiver, FrameTooLargeError
from wire.bookkeeper.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.bookie_watcher import Place
    from ledger.network.config import NetworkConfig
    from runtime.env import Env
    from runtime.net import Transport
    from runtime.receive import ReceiveChunks
    from runtime.tls import Tls
    from wire.bookkeeper.frames import Protocol
    from wire.buffers import Buffers

    Resolve = Callable[[], Place | None]

logger = logging.getLogger(__name__)


class BookieConnection(ABC):
    """`resolve()` gives the bookie's address at the time, None if unknown.

    A connection is used if the other end proved to be that bookie (greeting.py), or if it does not
    tell and the bookie, and no other one, is registered at that address."""

    protocol: ClassVar[Protocol]

    def __init__(
        self,
        bookie: str,
        resolve: Resolve,
        env: Env,
        chunks: ReceiveChunks,
        config: NetworkConfig,
        spawn: Callable[[BookieConnection], bool],
        tls: Tls | None = None,
    ) -> None:
        """`spawn(channel)` runs `channel.connect()` in a task; false if nobody is there to. With
        `tls`, START_TLS comes first, then AUTH with `config.sasl`."""
        self.bookie = bookie
        self._resolve = resolve
        self._env = env
        self._chunks = chunks
        self._config = config
        self._spawn = spawn
        self._tls = tls
        self._transport: Transport | None = None
        #: What it is connected to.
        self._place: Place | None = None
        #: The other end proved to be the bookie.
        self._is_proven = False
        self._receiver = FrameReceiver(chunks, config.frame_bytes_max, self._on_frame)
        self._is_connecting = False
        #: What was asked before there was a connection.
        self._unsent: list[Buffers] = []
        self._unsent_bytes = 0
        #: No new try to connect before this time.
        self._rest_until = 0.0
        self._failures = 0
        self.wrong_bookie_count = 0
        #: Whether bytes came since the last `close_if_hanging`.
        self._has_received = False

    @abstractmethod
    def _on_frame(self, frame: memoryview) -> bool:
        """An answer; false if there is no connection any more. WireError."""

    @abstractmethod
    def _fail_all(self) -> None:
        """Everything under way is told EIO; calls `_forget_unsent`."""

    @abstractmethod
    def give_up_before(self, time: float) -> None:
        """Adds that were sent before it are told EIO; their answers, should they come, are nobody's
        then."""

    def _send(self, frame: Buffers) -> bool:
        if self._transport is not None:
            self._transport.write(frame)
            return True
        return self._queue(frame)

    def _queue(self, frame: Buffers) -> bool:
        """Until there is a connection; false if there will be none soon, or too much waits."""
        if self._unsent_bytes > self._config.unsent_bytes_max:
            return False
        if not self._is_connecting:
            if self._env.clock.monotonic() < self._rest_until or not self._spawn(self):
                return False
            self._is_connecting = True
        self._unsent.append(frame)
        self._unsent_bytes += sum(map(len, frame))
        return True

    async def connect(self) -> None:
        """One try. What waited is sent, or told EIO."""
        place = self._resolve()
        error: object = "its address is not known"
        if place is not None:
            try:
                await self._open(place)
            except WrongBookieError as failure:
                self.wrong_bookie_count += 1
                logger.warning("wrong_bookie", kv(bookie=self.bookie, error=failure))
                error = failure
            except NotAuthenticatedError as failure:
                logger.error("not_authenticated", kv(bookie=self.bookie, error=failure))
                error = failure
            except (OSError, trio.TooSlowError) as failure:
                error = failure or "no answer in time"
            else:
                self._send_unsent()
                return
        logger.info("bookie_unreachable", kv(bookie=self.bookie, address=place, error=error))
        self._failures += 1
        pause_ms = self._config.reconnect_backoff_ms << min(self._failures - 1, 10)
        pause_ms = min(pause_ms, self._config.reconnect_backoff_max_ms)
        self._rest_until = self._env.clock.monotonic() + pause_ms / 1000
        self._is_connecting = False
        self._fail_all()

    async def _open(self, place: Place) -> None:
        """OSError; trio.TooSlowError."""
        env = self._env
        transport, is_proven = await connect_greeted(
            env,
            (place.host, place.port),
            self._chunks,
            self.protocol,
            self._config,
            self._tls,
            self.bookie,
        )
        if not is_proven and not (place.is_certain and self._resolve() == place):
            transport.close()
            raise WrongBookieError("it does not tell which bookie it is, and may be another one")
        self._place, self._is_proven = place, is_proven
        transport.attach(self._connected(transport))

    def check_place(self) -> None:
        """To be called when addresses have changed: a connection to where this bookie is no more is
        closed; what waits is told EIO. So is one to where another bookie is registered by now, if
        the other end did not prove which one it is: whoever proved it is that one as long as the
        connection lives, whatever others say of the address. One whose bookie is not registered at
        all goes on: it may still serve."""
        connected = self._place
        if self._transport is None or connected is None:
            return
        place = self._resolve()
        if place is None or place.is_contested:
            is_left = not self._is_proven
        else:
            is_left = place[:2] != connected[:2]
        if is_left:
            logger.info("bookie_moved", kv(bookie=self.bookie, was=connected, now=place))
            self.close()

    def _connected(self, transport: Transport) -> BookieConnection:
        self._transport = transport
        self._is_connecting = False
        self._failures = 0
        self._receiver = FrameReceiver(self._chunks, self._config.frame_bytes_max, self._on_frame)
        return self

    def _send_unsent(self) -> None:
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        if self._transport is None:
            return  # it broke at once, and everybody was told
        for frame in unsent:
            self._transport.write(frame)

    def _forget_unsent(self) -> None:
        self._unsent.clear()
        self._unsent_bytes = 0

    def receive_buffer(self) -> memoryview:
        return self._receiver.buffer()

    def received(self, count: int) -> None:
        self._has_received = True
        try:
            self._receiver.received(count)
        except (FrameTooLargeError, WireError) as error:
            logger.warning("bad_answer", kv(bookie=self.bookie, error=error))
            self.close()

    def drained(self) -> None:
        return

    def closed(self) -> None:
        self._transport = None
        self._fail_all()

    def close_if_hanging(self) -> None:
        """To be called now and then: what a bookie that hangs does not take is kept in memory only
        up to a limit."""
        transport = self._transport
        if transport is None:
            return
        if not self._has_received and transport.unsent_bytes > self._config.unsent_bytes_max:
            logger.warning(
                "bookie_hangs", kv(bookie=self.bookie, unsent_bytes=transport.unsent_bytes)
            )
            self.close()
        self._has_received = False

    def close(self) -> None:
        """What waits is told EIO."""
        if self._transport is not None:
            self._transport.close()
