"""One connection to a bookie: made when it is first needed, made anew after it broke.

Requests that come while it connects wait for it, in order; if it cannot connect, or breaks, all
that wait are told EIO, which is no outcome. What is under way, and how answers are recognised, is
the subclasses' (a channel for each protocol version).

Owner: the event loop's thread.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import trio

from runtime.logs import kv
from runtime.receive import FrameReceiver, FrameTooLargeError
from wire.bookkeeper.errors import WireError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.network.config import NetworkConfig
    from runtime.env import Env
    from runtime.net import Transport
    from runtime.receive import ReceiveChunks
    from wire.buffers import Buffers

    Resolve = Callable[[], tuple[str, int] | None]

logger = logging.getLogger(__name__)


class BookieConnection(ABC):
    """`resolve()` gives the bookie's address at the time, None if unknown."""

    def __init__(
        self,
        bookie: str,
        resolve: Resolve,
        env: Env,
        chunks: ReceiveChunks,
        config: NetworkConfig,
        spawn: Callable[[BookieConnection], bool],
    ) -> None:
        """`spawn(channel)` runs `channel.connect()` in a task; false if nobody is there to."""
        self.bookie = bookie
        self._resolve = resolve
        self._env = env
        self._chunks = chunks
        self._config = config
        self._spawn = spawn
        self._transport: Transport | None = None
        self._receiver = FrameReceiver(chunks, config.frame_bytes_max, self._on_frame)
        self._is_connecting = False
        #: What was asked before there was a connection.
        self._unsent: list[Buffers] = []
        #: No new try to connect before this time.
        self._rest_until = 0.0
        self._failures = 0

    @abstractmethod
    def _on_frame(self, frame: memoryview) -> bool:
        """An answer; false if there is no connection any more. WireError."""

    @abstractmethod
    def _fail_all(self) -> None:
        """Everything under way is told EIO; `_unsent` is dropped."""

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
        """Until there is a connection; false if there will be none soon."""
        if not self._is_connecting:
            if self._env.clock.monotonic() < self._rest_until or not self._spawn(self):
                return False
            self._is_connecting = True
        self._unsent.append(frame)
        return True

    async def connect(self) -> None:
        """One try. What waited is sent, or told EIO."""
        address = self._resolve()
        error: object = "its address is not known"
        if address is not None:
            try:
                with trio.fail_after(self._config.connect_timeout_ms / 1000):
                    await self._env.net.connect(*address, self._connected)
            except (OSError, trio.TooSlowError) as failure:
                error = failure or "no answer in time"
            else:
                self._send_unsent()
                return
        logger.info("bookie_unreachable", kv(bookie=self.bookie, address=address, error=error))
        self._failures += 1
        pause_ms = self._config.reconnect_backoff_ms << min(self._failures - 1, 10)
        pause_ms = min(pause_ms, self._config.reconnect_backoff_max_ms)
        self._rest_until = self._env.clock.monotonic() + pause_ms / 1000
        self._is_connecting = False
        self._fail_all()

    def _connected(self, transport: Transport) -> BookieConnection:
        self._transport = transport
        self._is_connecting = False
        self._failures = 0
        self._receiver = FrameReceiver(self._chunks, self._config.frame_bytes_max, self._on_frame)
        return self

    def _send_unsent(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._transport is None:
            return  # it broke at once, and everybody was told
        for frame in unsent:
            self._transport.write(frame)

    def receive_buffer(self) -> memoryview:
        return self._receiver.buffer()

    def received(self, count: int) -> None:
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

    def close(self) -> None:
        """What waits is told EIO."""
        if self._transport is not None:
            self._transport.close()
