"""One client's connection to a bookie: frames in, answers out in whatever order they come.

Sans-IO (runtime.net.Connection). Which protocol version it speaks is told by its first frame, for
good (wire/bookkeeper/frames.py). Answers are collected and written once per turn: a burst of adds
that one sync made durable is one send.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from runtime.logs import kv
from runtime.receive import FrameReceiver, FrameTooLargeError
from runtime.tls import TlsTransport, upgrade
from wire.bookkeeper.errors import UnsupportedVersionError, WireError
from wire.bookkeeper.frames import Protocol, server_codec

if TYPE_CHECKING:
    from bookie.server.processor import Processor
    from runtime.net import Transport
    from runtime.receive import ReceiveChunks
    from runtime.tls import Tls
    from wire.bookkeeper.frames import ServerCodec
    from wire.bookkeeper.responses import Response
    from wire.buffers import Buffer

logger = logging.getLogger(__name__)

#: Requests of one connection that may wait for their answers; then it is read no further. A client
#: that writes fast has some thousands of adds under way.
REQUESTS_IN_FLIGHT_MAX = 20_000
#: Bytes of answers that a slow reader may leave with us before it is read no further.
UNSENT_BYTES_MAX = 16 << 20


class BookieConnection:
    __slots__ = (
        "_answers",
        "_codec",
        "_is_closing",
        "_is_flush_deferred",
        "_is_paused",
        "_processor",
        "_receiver",
        "_tls",
        "_transport",
        "in_flight",
        "is_closed",
    )

    def __init__(
        self,
        transport: Transport,
        processor: Processor,
        chunks: ReceiveChunks,
        frame_bytes_max: int,
    ) -> None:
        self._transport = transport
        self._processor = processor
        self._receiver = FrameReceiver(chunks, frame_bytes_max, self._on_frame)
        self._codec: ServerCodec | None = None
        self._answers: list[Buffer] = []
        self._is_flush_deferred = False
        self._is_paused = False
        self._is_closing = False
        #: What to go on with once the answer to START_TLS was written.
        self._tls: Tls | None = None
        self.in_flight = 0
        self.is_closed = False

    @property
    def peer(self) -> str:
        return self._transport.peer

    @property
    def is_v3(self) -> bool:
        return self._codec is not None and self._codec.protocol is Protocol.V3

    @property
    def is_encrypted(self) -> bool:
        return isinstance(self._transport, TlsTransport)

    # -- the driver's side ---------------------------------------------------------------------

    def receive_buffer(self) -> memoryview:
        return self._receiver.buffer()

    def received(self, count: int) -> None:
        try:
            self._receiver.received(count)
        except FrameTooLargeError as error:
            self._refuse(error)
        if self._is_paused:
            self._transport.pause_reading()

    def drained(self) -> None:
        if self._is_paused:
            self._maybe_resume()

    def closed(self) -> None:
        self.is_closed = self._is_closing = True
        self._answers.clear()
        self._processor.connection_closed(self)

    # -- the processor's side ------------------------------------------------------------------

    def _on_frame(self, frame: memoryview) -> bool:
        """Whether the next frame may be handled, too."""
        codec = self._codec
        try:
            if codec is None:
                codec = self._codec = server_codec(frame)
            request = codec.decode_request(frame)
        except UnsupportedVersionError as error:
            self._transport.write([error.answer])
            self._refuse(error)
            return False
        except WireError as error:
            self._refuse(error)
            return False
        self.in_flight += 1
        self._processor.process(self, request)
        if (
            self.in_flight < REQUESTS_IN_FLIGHT_MAX
            and self._transport.unsent_bytes <= UNSENT_BYTES_MAX
        ):
            return not self._is_closing and self._tls is None
        self._is_paused = True
        return False

    def start_tls(self, tls: Tls) -> None:
        """After START_TLS was answered: what follows the answer is TLS, both ways."""
        self._tls = tls

    def answer(self, response: Response) -> None:
        """Sends it, at the end of the turn. One for each request, in any order."""
        self.in_flight -= 1
        if self.is_closed:
            return
        assert self._codec is not None
        self._answers += self._codec.encode_response(response)
        if not self._is_flush_deferred:
            self._is_flush_deferred = True
            self._processor.turn.defer(self._flush)

    def _flush(self) -> None:
        self._is_flush_deferred = False
        answers, self._answers = self._answers, []
        self._transport.write(answers)
        if self._tls is not None:
            self._upgrade(self._tls)
        if self._is_paused:
            self._maybe_resume()

    def _upgrade(self, tls: Tls) -> None:
        self._tls = None
        if self._receiver.held_bytes:
            # Sent without waiting for the answer: nobody knows whether it is TLS.
            self._refuse(WireError("bytes between START_TLS and its answer"))
        elif not self._is_closing:
            self._transport = upgrade(self._transport, self, tls)

    def _maybe_resume(self) -> None:
        """Goes on with what was received already, then with reading, once well below the limits."""
        if (
            self._is_closing
            or self.in_flight >= REQUESTS_IN_FLIGHT_MAX // 2
            or self._transport.unsent_bytes > UNSENT_BYTES_MAX // 2
        ):
            return
        self._is_paused = False
        try:
            self._receiver.go_on()
        except FrameTooLargeError as error:
            self._refuse(error)
        if not self._is_paused:
            self._transport.resume_reading()

    def _refuse(self, error: Exception) -> None:
        logger.warning("bad_frame", kv(peer=self._transport.peer, error=error))
        self.close()

    def close(self) -> None:
        self._is_closing = True
        self._transport.close()
