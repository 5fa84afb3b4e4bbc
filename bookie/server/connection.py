"""One client's connection to a bookie: frames in, answers out in whatever order they come.

Sans-IO (runtime.net.Connection). Which protocol version it speaks is told by its first frame, for
good (wire/bookkeeper/frames.py). Answers are collected and written once per turn: a burst of adds
that one sync made durable is one send.
"""

from __future__ import annotations

import logging
import typing
from typing import TYPE_CHECKING, Any

from bookie.server import admission
from runtime.logs import kv
from runtime.receive import FrameReceiver, FrameTooLargeError
from runtime.tls import TlsTransport, upgrade
from wire.bookkeeper.errors import UnsupportedVersionError, WireError
from wire.bookkeeper.frames import Protocol, failed_add, server_codec
from wire.bookkeeper.requests import AddRequest

if TYPE_CHECKING:
    from bookie.held_adds import HeldAdds
    from bookie.server.admission import Door
    from bookie.server.request_limits import RequestCounts
    from runtime.net import Transport
    from runtime.receive import ReceiveChunks
    from runtime.tls import Tls
    from runtime.turn import Turn
    from wire.bookkeeper.frames import DecodeAdd, DecodeRead, ServerCodec
    from wire.bookkeeper.requests import Request
    from wire.bookkeeper.responses import Response
    from wire.bookkeeper.status import Status
    from wire.buffers import Buffer, Buffers

logger = logging.getLogger(__name__)

#: Requests of one connection that may wait for their answers; then it is read no further. A client
#: that writes fast has some thousands of adds under way.
REQUESTS_IN_FLIGHT_MAX = 20_000
#: Bytes of answers that a slow reader may leave with us before it is read no further.
UNSENT_BYTES_MAX = 16 << 20
#: Answers that wait for the turn's end, in buffers, before their bytes are counted as unsent.
ANSWERS_HELD_MAX = 64


def no_short_way(frame: memoryview) -> None:
    """For a connection whose adds and reads have none."""


class Requests(typing.Protocol):
    """Where a connection's requests go, with what all connections share
    (bookie/server/processor.py)."""

    turn: Turn
    held_adds: HeldAdds
    counts: RequestCounts
    #: None: everybody is served.
    door: Door | None

    def process(self, connection: BookieConnection, request: Request) -> None:
        """Answers it on `connection`, now or later, exactly once."""

    def add(
        self,
        connection: BookieConnection,
        flags: int,
        master_key: bytes,
        ledger_id: int,
        entry_id: int,
        entry: Buffers,
        answer: bytes,
    ) -> None:
        """As `process`, for a PlainAdd."""

    def read(self, connection: BookieConnection, ledger_id: int, entry_id: int) -> None:
        """As `process`, for a read of version 2 that does not fence."""

    def wait_for_room(self, connection: BookieConnection) -> None:
        """Calls `connection.has_room` when adds may be read again."""

    def connection_closed(self, connection: BookieConnection) -> None: ...


class BookieConnection:
    __slots__ = (
        "_answers",
        "_codec",
        "_counts",
        "_decode_add",
        "_decode_read",
        "_frame_bytes_max",
        "_held_adds",
        "_is_closing",
        "_is_flush_deferred",
        "_is_paused",
        "_processor",
        "_receiver",
        "_tls",
        "_transport",
        "_unsent_bytes_max",
        "_waits_for_room",
        "in_flight",
        "is_admitted",
        "is_closed",
        "is_judged",
    )

    def __init__(
        self,
        transport: Transport,
        processor: Requests,
        chunks: ReceiveChunks,
        frame_bytes_max: int,
    ) -> None:
        self._transport = transport
        self._processor = processor
        self._frame_bytes_max = frame_bytes_max
        self._unsent_bytes_max = UNSENT_BYTES_MAX
        #: Whether its requests are served (bookie/server/admission.py).
        self.is_admitted = processor.door is None
        self.is_judged = False
        if not self.is_admitted:
            self._unsent_bytes_max = admission.UNSENT_BYTES_MAX
            frame_bytes_max = min(frame_bytes_max, admission.FRAME_BYTES_MAX)
        self._receiver = FrameReceiver(chunks, frame_bytes_max, self._on_frame)
        self._codec: ServerCodec | None = None
        self._decode_add: DecodeAdd = no_short_way
        self._decode_read: DecodeRead = no_short_way
        self._waits_for_room = False
        self._held_adds = processor.held_adds
        self._counts = processor.counts
        self._answers: list[Buffer] = []
        self._is_flush_deferred = False
        self._is_paused = False
        self._is_closing = False
        #: What to go on with once the answer to START_TLS was written.
        self._tls: Tls | None = None
        self.in_flight = 0
        self.is_closed = False
        if processor.door is not None:
            processor.door.came(self)

    @property
    def peer(self) -> str:
        return self._transport.peer

    @property
    def is_v3(self) -> bool:
        return self._codec is not None and self._codec.protocol is Protocol.V3

    @property
    def is_encrypted(self) -> bool:
        return isinstance(self._transport, TlsTransport)

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The peer's, verified; None without one."""
        transport = self._transport
        return transport.peer_certificate if isinstance(transport, TlsTransport) else None

    # -- the driver's side ---------------------------------------------------------------------

    def receive_buffer(self) -> memoryview:
        return self._receiver.buffer()

    def received(self, count: int) -> None:
        if self._tls is not None:
            self._refuse_early()
            return
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
        add = self._decode_add(frame)
        if add is not None:
            self.in_flight += 1
            self._processor.add(self, *add)
            if (
                len(self._answers) < ANSWERS_HELD_MAX
                and self.in_flight < REQUESTS_IN_FLIGHT_MAX
                and not self._held_adds.is_crowded
                and not self._transport.unsent_bytes
                and not self._is_closing
            ):
                return True  # as _may_go_on says where nothing is in the way
            return self._may_go_on(is_add=True)
        read = self._decode_read(frame)
        if read is not None:
            self.in_flight += 1
            self._processor.read(self, *read)
            return self._may_go_on(is_add=False)
        codec = self._codec
        try:
            if codec is None:
                codec = self._codec = server_codec(frame)
                # The first frame takes the long way; it may be an add of version 2 already.
                if self.is_admitted:
                    self._open_short_ways(codec)
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
        return self._may_go_on(is_add=type(request) is AddRequest)

    def _may_go_on(self, *, is_add: bool) -> bool:
        if len(self._answers) >= ANSWERS_HELD_MAX:
            # One read from the socket may hold thousands of requests that are answered at once.
            self._hand_over()
        if is_add and self._held_adds.is_crowded:
            # Who only reads goes on: recovery fences and reads while writers wait.
            self._processor.wait_for_room(self)
            self._waits_for_room = True
        elif (
            self.in_flight < REQUESTS_IN_FLIGHT_MAX
            and self._transport.unsent_bytes <= self._unsent_bytes_max
        ):
            return not self._is_closing and self._tls is None
        self._is_paused = True
        return False

    def admit(self) -> None:
        """From the next frame on its requests are served."""
        self.is_admitted = True
        self._unsent_bytes_max = UNSENT_BYTES_MAX
        self._receiver.frame_bytes_max = self._frame_bytes_max
        if self._codec is not None:
            self._open_short_ways(self._codec)

    def _open_short_ways(self, codec: ServerCodec) -> None:
        self._decode_add = codec.decode_add or no_short_way
        self._decode_read = codec.decode_read or no_short_way

    def close_with(self, response: Response | None) -> None:
        """Closes after what was answered, and this, was sent."""
        if response is not None:
            assert self._codec is not None
            self._answers += self._codec.encode_response(response)
        self._hand_over()
        self.close()

    def start_tls(self, tls: Tls) -> None:
        """After START_TLS was answered: what follows the answer is TLS, both ways."""
        self._tls = tls

    def answer(self, response: Response) -> None:
        """Sends it, at the end of the turn. One for each request, in any order."""
        assert self._codec is not None
        self.answer_encoded(self._codec.encode_response(response))

    def fail_add(self, answer: bytes, status: Status) -> None:
        """Sends what says so, instead of the `answer` of a PlainAdd."""
        assert self._codec is not None
        self.answer_encoded(failed_add(self._codec, answer, status))

    def added(self, answer: bytes, status: Status) -> None:
        """A PlainAdd is done; `answer` is sent if all is well."""
        counts = self._counts
        counts.adds_in_progress -= 1
        counts.adds += 1
        if status:
            counts.adds_failed += 1
            self.fail_add(answer, status)
            return
        # As answer_encoded; a call less for each add.
        self.in_flight -= 1
        if self.is_closed:
            return
        self._answers.append(answer)
        if not self._is_flush_deferred:
            self._is_flush_deferred = True
            self._processor.turn.defer(self._flush)

    def answer_encoded(self, frame: list[Buffer]) -> None:
        self.in_flight -= 1
        if self.is_closed:
            return
        self._answers += frame
        if not self._is_flush_deferred:
            self._is_flush_deferred = True
            self._processor.turn.defer(self._flush)

    def _hand_over(self) -> None:
        answers, self._answers = self._answers, []
        self._transport.write(answers)

    def _flush(self) -> None:
        self._is_flush_deferred = False
        self._hand_over()
        if self._tls is not None:
            self._upgrade(self._tls)
        if self._is_paused:
            self._maybe_resume()

    def _upgrade(self, tls: Tls) -> None:
        self._tls = None
        if self._receiver.held_bytes:
            self._refuse_early()
        elif not self._is_closing:
            if self._processor.door is not None:
                self.is_admitted = self.is_judged = False
                self._processor.door.renew(self)
            self._transport = upgrade(
                self._transport, self, tls, on_established=self._tls_established
            )
            # What follows may be v2's: START_TLS is v3's alone. Nor is anybody served before the
            # door has judged him again.
            self._codec = None
            self._decode_add = self._decode_read = no_short_way

    def _tls_established(self) -> None:
        if self._processor.door is not None:
            # Now, not with its first request: who asks nothing for a while is not to be closed.
            self._processor.door.judge(self)

    def has_room(self) -> None:
        """What `Processor.wait_for_room` promised: adds are taken again."""
        self._waits_for_room = False
        if self._is_paused:
            self._maybe_resume()

    def _maybe_resume(self) -> None:
        """Goes on with what was received already, then with reading, once well below the limits."""
        if (
            self._is_closing
            or self._tls is not None
            or self._waits_for_room
            or self.in_flight >= REQUESTS_IN_FLIGHT_MAX // 2
            or self._transport.unsent_bytes > self._unsent_bytes_max // 2
        ):
            return
        self._is_paused = False
        try:
            self._receiver.go_on()
        except FrameTooLargeError as error:
            self._refuse(error)
        if not self._is_paused:
            self._transport.resume_reading()

    def _refuse_early(self) -> None:
        # Sent without waiting for the answer: nobody knows whether it is TLS.
        self._refuse(WireError("bytes between START_TLS and its answer"))

    def _refuse(self, error: Exception) -> None:
        logger.warning("bad_frame", kv(peer=self._transport.peer, error=error))
        self.close()

    def close(self) -> None:
        self._is_closing = True
        self._transport.close()
