"""One client's connection: bytes in, frames to dispatch, replies out in the order of requests.

Sans-IO (runtime.net.Connection): a driver feeds it. A request that is answered at once is written
at once; one that is not takes a place in line, and everything behind it waits for it, as clients
match replies by order.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from broker.receive import FrameReceiver, FrameTooLargeError, ReceiveChunks
from runtime.logs import kv
from wire.kafka.api_keys import ApiKey
from wire.kafka.headers import encode_response, encode_response_bytes

if TYPE_CHECKING:
    from broker.api import ConnectionInfo, Reply
    from broker.dispatch import Dispatcher
    from broker.request_memory import RequestMemory
    from runtime.net import Transport
    from wire.buffers import Buffer
    from wire.kafka.headers import RequestHeader
    from wire.kafka.message import Message

logger = logging.getLogger(__name__)

#: Requests of one connection that may wait for their replies; then it is read no further.
REQUESTS_IN_FLIGHT_MAX = 1000
#: Bytes of replies that a slow reader may leave with us before it is read no further.
UNSENT_BYTES_MAX = 16 << 20


class Slot:
    """A place in the line of replies, with what is needed to encode the one that goes there."""

    __slots__ = ("connection", "header", "parts", "reply", "size_bytes")

    def __init__(self, connection: KafkaConnection, header: RequestHeader, size_bytes: int) -> None:
        self.connection = connection
        self.header = header
        self.size_bytes = size_bytes
        self.parts: list[Buffer] | None = None
        self.reply: Reply | None = None

    def resolved(self, message: Message) -> None:
        """Stage 2: the response is there; encode it and send what is ready."""
        connection = self.connection
        self.give_memory()
        if connection.is_closed:
            return
        self.parts = encode_reply(self.header, message)
        if connection.first_slot is self:
            connection.send_ready()

    def give_memory(self) -> None:
        if self.size_bytes:
            self.connection.memory.give(self.size_bytes)
            self.size_bytes = 0


def encode_reply(header: RequestHeader, message: Message) -> list[Buffer]:
    """A response frame; only those of Fetch carry records that are worth not copying."""
    if header.api_key == ApiKey.FETCH:
        return encode_response(message, header.api_key, header.api_version, header.correlation_id)
    return [
        encode_response_bytes(message, header.api_key, header.api_version, header.correlation_id)
    ]


class KafkaConnection:
    __slots__ = (
        "_paused_for_line", "_receiver", "_slots", "_transport", "active", "dispatcher", "info",
        "is_closed", "memory",
    )  # fmt: skip

    def __init__(
        self,
        transport: Transport,
        dispatcher: Dispatcher,
        memory: RequestMemory,
        chunks: ReceiveChunks,
        info: ConnectionInfo,
        frame_bytes_max: int,
    ) -> None:
        self._transport = transport
        self._receiver = FrameReceiver(chunks, frame_bytes_max, self._on_frame)
        self._slots: deque[Slot] = deque()
        self._paused_for_line = False
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
            logger.warning("bad_frame", kv(peer=self._transport.peer, error=error))
            self._transport.close()
            return
        if self.memory.is_full:
            self.memory.pause(self._transport)
        if (
            len(self._slots) >= REQUESTS_IN_FLIGHT_MAX
            or self._transport.unsent_bytes > UNSENT_BYTES_MAX
        ):
            self._paused_for_line = True
            self._transport.pause_reading()

    def drained(self) -> None:
        self._maybe_resume()

    def closed(self) -> None:
        self.is_closed = True
        self.memory.forget(self._transport)
        slots, self._slots = self._slots, deque()
        for slot in slots:
            # What is still worked on keeps its memory until it is resolved; what is given up may
            # never be.
            if slot.parts is None and slot.reply is not None and slot.reply.abandon():
                slot.give_memory()
        self.dispatcher.connection_closed(self)

    # -- dispatch's side -----------------------------------------------------------------------

    def _on_frame(self, frame: memoryview) -> bool:
        self.dispatcher.dispatch(self, frame)
        return not self.is_closed

    @property
    def peer(self) -> str:
        return self._transport.peer

    @property
    def waiting_count(self) -> int:
        return len(self._slots)

    @property
    def first_slot(self) -> Slot | None:
        return self._slots[0] if self._slots else None

    def reply_now(self, header: RequestHeader, message: Message) -> None:
        """A response that is there already: sent at once, or after those before it."""
        parts = encode_reply(header, message)
        if not self._slots:
            self._transport.write(parts)
            return
        slot = Slot(self, header, 0)
        slot.parts = parts
        self._slots.append(slot)

    def reply_later(self, header: RequestHeader, size_bytes: int) -> Slot:
        """A place in line for a response that will be there later; the request's memory is held
        until then."""
        self.memory.take(size_bytes)
        slot = Slot(self, header, size_bytes)
        self._slots.append(slot)
        return slot

    def send_ready(self) -> None:
        slots = self._slots
        while slots:
            parts = slots[0].parts
            if parts is None:
                break
            slots.popleft()
            self._transport.write(parts)
        self._maybe_resume()

    def _maybe_resume(self) -> None:
        if (
            self._paused_for_line
            and len(self._slots) < REQUESTS_IN_FLIGHT_MAX // 2
            and self._transport.unsent_bytes <= UNSENT_BYTES_MAX // 2
        ):
            self._paused_for_line = False
            self._transport.resume_reading()

    def close(self) -> None:
        self._transport.close()

    def refuse(self) -> None:
        """Closes before anything was read."""
        self._transport.pause_reading()
        self._transport.close()
