"""One client's connection: bytes in, frames to dispatch, replies out in the order of requests.

Sans-IO (runtime.net.Connection): a driver feeds it. A request that is answered at once is written
at once; one that is not takes a place in line, and everything behind it waits for it, as clients
match replies by order.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from broker.api import Reply
from runtime.logs import kv
from runtime.receive import FrameReceiver, FrameTooLargeError, ReceiveChunks

if TYPE_CHECKING:
    from broker.api import ConnectionInfo, Handling, Route
    from runtime.net import Transport
    from runtime.request_memory import RequestMemory
    from wire.buffers import Buffer
    from wire.kafka.message import Message

logger = logging.getLogger(__name__)

#: Requests of one connection that may wait for their replies; then it is read no further.
REQUESTS_IN_FLIGHT_MAX = 1000
#: Bytes of replies that a slow reader may leave with us before it is read no further.
UNSENT_BYTES_MAX = 16 << 20


class KafkaConnection:
    __slots__ = (
        "_is_closing", "_is_paused", "_line", "_receiver", "_resume_deferred", "_transport",
        "active", "dispatcher", "info", "is_closed", "memory",
    )  # fmt: skip

    def __init__(
        self,
        transport: Transport,
        dispatcher: Handling,
        memory: RequestMemory,
        chunks: ReceiveChunks,
        info: ConnectionInfo,
        frame_bytes_max: int,
    ) -> None:
        self._transport = transport
        self._receiver = FrameReceiver(chunks, frame_bytes_max, self._on_frame)
        self._line: deque[Reply] = deque()
        #: A limit is reached: nothing more is read or handled until `_resume`.
        self._is_paused = False
        self._is_closing = False
        self._resume_deferred = False
        self.dispatcher = dispatcher
        self.memory = memory
        self.info = info
        self.is_closed = False
        #: Set by every byte, cleared by the reaper of idle connections.
        self.active = True

    # -- the driver's side ---------------------------------------------------------------------

    def receive_buffer(self) -> memoryview:
        return self._receiver.buffer()

    def received(self, count: int) -> None:
        self.active = True
        try:
            self._receiver.received(count)
        except FrameTooLargeError as error:
            self._refuse_frame(error)
        if self._is_paused:
            self._transport.pause_reading()

    def drained(self) -> None:
        if self._is_paused:
            self._maybe_resume()

    def memory_free(self) -> None:
        self._maybe_resume()

    def closed(self) -> None:
        self.is_closed = self._is_closing = True
        self.memory.forget(self)
        line, self._line = self._line, deque()
        for reply in line:
            # What is still worked on keeps its memory until it is resolved; what is given up may
            # never be.
            if reply.abandon():
                self.give_memory(reply)
        self.dispatcher.connection_closed(self)

    # -- dispatch's side -----------------------------------------------------------------------

    def _on_frame(self, frame: memoryview) -> bool:
        """Whether the next frame may be handled, too: one client's pipeline must neither outgrow
        its limits nor keep the loop from everybody else."""
        self.dispatcher.dispatch(self, frame)
        if self._is_closing:
            return False
        memory = self.memory
        if (
            memory.used_bytes < memory.limit_bytes
            and len(self._line) < REQUESTS_IN_FLIGHT_MAX
            and self._transport.unsent_bytes <= UNSENT_BYTES_MAX
        ):
            return True
        self._is_paused = True
        if memory.is_full:
            self.memory.wait(self)
        return False

    def _refuse_frame(self, error: FrameTooLargeError) -> None:
        logger.warning("bad_frame", kv(peer=self._transport.peer, error=error))
        self.close()

    @property
    def peer(self) -> str:
        return self._transport.peer

    @property
    def waiting_count(self) -> int:
        return len(self._line)

    def reply_now(self, route: Route, correlation_id: int, message: Message) -> None:
        """A response that is there already: sent at once, or after those before it."""
        parts = self._encode(route, message, correlation_id)
        if parts is None:
            return
        if not self._line:
            self._transport.write(parts)
            return
        reply = Reply()
        reply.message = message
        reply.parts = parts
        self._line.append(reply)

    def reply_later(self, reply: Reply, route: Route, correlation_id: int, size_bytes: int) -> None:
        """A place in line for a response that will be there later (or is there by now); the
        request's memory is held until then."""
        reply.line = self
        reply.route = route
        reply.correlation_id = correlation_id
        if not reply.is_silent:
            self._line.append(reply)
        if reply.message is None:
            reply.size_bytes = size_bytes
            self.memory.take(size_bytes)
        else:
            self.reply_resolved(reply)

    def reply_resolved(self, reply: Reply) -> None:
        """Stage 2: the response is there; encode it and send what is ready."""
        self.give_memory(reply)
        if self.is_closed or reply.is_silent:
            return
        assert reply.message is not None
        reply.parts = self._encode(reply.route, reply.message, reply.correlation_id)
        if self._line[0] is reply:
            self._send_ready()

    def _encode(self, route: Route, message: Message, correlation_id: int) -> list[Buffer] | None:
        """None if the message cannot be said in that version: a handler's bug, which may cost its
        client the connection, but not everybody the server (design.md §6)."""
        try:
            return route.encode(message, correlation_id)
        except Exception:  # a handler's bug, as in dispatch
            logger.exception(
                "handler_failed",
                kv(
                    response=type(message).__name__,
                    correlation_id=correlation_id,
                    connection=self.info.id,
                ),
            )
            self.close()
            return None

    def give_memory(self, reply: Reply) -> None:
        if reply.size_bytes:
            self.memory.give(reply.size_bytes)
            reply.size_bytes = 0

    def _send_ready(self) -> None:
        line = self._line
        while line:
            parts = line[0].parts
            if parts is None:
                break
            line.popleft()
            self._transport.write(parts)
        if self._is_paused:
            self._maybe_resume()

    def _maybe_resume(self) -> None:
        """Goes on with what was received already, then with reading, once well below the limits."""
        if (
            self._is_closing
            or len(self._line) >= REQUESTS_IN_FLIGHT_MAX // 2
            or self._transport.unsent_bytes > UNSENT_BYTES_MAX // 2
        ):
            return
        if self.memory.is_full:
            self.memory.wait(self)
            return
        if not self._resume_deferred:
            self._resume_deferred = True
            self.dispatcher.turn.defer(self._resume)

    def _resume(self) -> None:
        """At the end of the turn: what resolves a reply must not find itself handling requests."""
        self._resume_deferred = False
        if self._is_closing:
            return
        self._is_paused = False
        try:
            self._receiver.go_on()
        except FrameTooLargeError as error:
            self._refuse_frame(error)
        if not self._is_paused:
            self._transport.resume_reading()

    def close(self) -> None:
        """Whatever else the client sent is not looked at."""
        self._is_closing = True
        self._transport.close()

    def refuse(self) -> None:
        """Closes before anything was read."""
        self._transport.pause_reading()
        self.close()
