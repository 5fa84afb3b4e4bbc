"""One client's connection: bytes in, frames to dispatch, replies out in the order of requests.

Sans-IO (runtime.net.Connection): a driver feeds it. A request that is answered at once is written
at once; one that is not takes a place in line, and everything behind it waits for it, as clients
match replies by order.
"""

from __future__ import annotations

import logging
from collections import deque
from itertools import count
from struct import Struct
from typing import TYPE_CHECKING

from broker.api import ELEMENTS_INLINE, AnyReply, Reply, let_go, while_open
from broker.unsent import COUNTED_FROM_BYTES
from runtime.logs import kv
from runtime.receive import FrameReceiver, FrameTooLargeError, ReceiveChunks
from wire.kafka.primitives import ManyElementsError

if TYPE_CHECKING:
    from broker.api import ConnectionInfo, Handling, Route
    from broker.unsent import UnsentAnswers
    from runtime.net import Transport
    from runtime.request_memory import RequestMemory
    from runtime.timers import Timer, Timers
    from wire.kafka.message import Message

logger = logging.getLogger(__name__)

#: Requests of one connection that may wait for their replies; then it is read no further.
REQUESTS_IN_FLIGHT_MAX = 1000
#: Bytes of replies that a slow reader may leave with us before it is read no further.
UNSENT_BYTES_MAX = 16 << 20

#: What it costs to give up a reply: mostly a task is woken to end. Thousands may be given up as
#: clients leave together, each with a pipeline of fetches.
ABANDONED_UNITS = 50

#: The order in which connections were last heard of, of all in the process.
_USES = count(1)

#: API key and version, at the front of every request.
_KEY_AND_VERSION = Struct(">hh")


class KafkaConnection:
    __slots__ = (
        "_answers",
        "_holds",
        "_is_closing",
        "_is_counted",
        "_is_paused",
        "_is_sending",
        "_line",
        "_line_bytes",
        "_muted",
        "_receiver",
        "_resume_deferred",
        "_send_deferred",
        "_transport",
        "active",
        "dispatcher",
        "info",
        "is_closed",
        "is_known",
        "last_use",
        "memory",
        "receive_buffer",
    )  # fmt: skip

    def __init__(
        self,
        transport: Transport,
        dispatcher: Handling,
        memory: RequestMemory,
        chunks: ReceiveChunks,
        info: ConnectionInfo,
        frame_bytes_max: int,
        answers: UnsentAnswers,
    ) -> None:
        self._transport = transport
        self._answers = answers
        #: Whether `answers` know of something that is left here.
        self._is_counted = False
        self._receiver = FrameReceiver(chunks, frame_bytes_max, self._on_frame, self)
        #: The driver asks for it before each read.
        self.receive_buffer = self._receiver.buffer
        #: Requests that are worked on in slices, and responses that are encoded so.
        self._holds = 0
        self._line: deque[AnyReply] = deque()
        #: Of replies that are encoded, and wait for one before them.
        self._line_bytes = 0
        self._is_sending = False
        self._send_deferred = False
        #: A limit is reached: nothing more is read or handled until `_resume`.
        self._is_paused = False
        self._is_closing = False
        self._resume_deferred = False
        #: Until then its client is to wait, for it used more than its quota.
        self._muted: Timer | None = None
        self.dispatcher = dispatcher
        self.memory = memory
        self.info = info
        self.is_closed = False
        #: It has made a request that was understood.
        self.is_known = False
        #: Set by every byte, cleared by the reaper of idle connections.
        self.active = True
        #: The greater, the later it was that bytes came.
        self.last_use = next(_USES)

    # -- the driver's side ---------------------------------------------------------------------

    def received(self, count: int) -> None:
        self.active = True
        self.last_use = next(_USES)
        try:
            self._receiver.received(count)
        except FrameTooLargeError as error:
            self._refuse_frame(error)
        if self._receiver.is_stalled:
            self._is_paused = True
        if self._is_paused:
            self._transport.pause_reading()

    def drained(self) -> None:
        if self._is_counted:
            self._note_unsent()
        if self._is_paused:
            self._maybe_resume()
        if self._line and self._line[0].on_turn is not None and not self._send_deferred:
            self._send_deferred = True
            self.dispatcher.turn.defer(self._send_on)

    def memory_free(self) -> None:
        self._maybe_resume()

    def closed(self) -> None:
        self.is_closed = self._is_closing = True
        if self._is_counted:
            self._is_counted = False
            self._answers.note(self, 0)
        self.memory.forget(self)
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None
        line, self._line = self._line, deque()
        turn = self.dispatcher.turn
        for reply in line:
            reply.on_turn = None
            # What is still worked on keeps its memory until it is resolved; what is given up may
            # never be.
            if reply.abandon():
                self.give_memory(reply)
                turn.spent_units += ABANDONED_UNITS
        self.dispatcher.connection_closed(self)

    # -- large frames (runtime.receive.LargeFrames) ----------------------------------------------

    @property
    def frame_bytes_received(self) -> int:
        return self._receiver.large_bytes

    def check_large(self, size: int, head: memoryview) -> None:
        key, version = _KEY_AND_VERSION.unpack_from(head)
        limit = self.dispatcher.frame_bytes_max(key, version, is_known=self.is_known)
        if size > limit:
            raise FrameTooLargeError(
                f"frame of {size} bytes; a request of API key {key}, version {version},"
                f" may have {limit} here"
            )

    def take_large(self, size: int) -> bool:
        return self.memory.take_unfinished(self, size)

    def give_large(self) -> None:
        self.memory.give_unfinished(self)

    # -- dispatch's side -----------------------------------------------------------------------

    def _on_frame(self, frame: memoryview) -> bool:
        """Whether the next frame may be handled, too: one client's pipeline must neither outgrow
        its limits nor keep the loop from everybody else."""
        is_turned_away = self._is_closing
        if is_turned_away:
            return False  # it never got to the login of its listener
        self.dispatcher.dispatch(self, frame)
        if self._is_closing:
            return False
        memory = self.memory
        is_full = memory.is_full
        if (
            not is_full
            and not self._holds
            and len(self._line) < REQUESTS_IN_FLIGHT_MAX
            and self._transport.unsent_bytes + self._line_bytes <= UNSENT_BYTES_MAX
        ):
            turn = self.dispatcher.turn
            if not turn.is_spent:
                return True
            self._resume_deferred = True
            turn.later(self._resume)
        self._is_paused = True
        if is_full:
            memory.wait(self)
        return False

    def hold(self, size_bytes: int) -> None:
        """No more requests are handled until `release`; `size_bytes` of the present one count."""
        self._holds += 1
        self.memory.take(size_bytes)

    def release(self, size_bytes: int) -> None:
        self._holds -= 1
        self.memory.give(size_bytes)
        if self._is_paused:
            self._maybe_resume()

    def throttle(self, seconds: float, timers: Timers) -> None:
        """`broker.api.Throttled`. Replies leave as ever."""
        if self._is_closing:
            return
        muted = self._muted
        self._muted = timers.after(seconds, self._unmute)
        if muted is None:
            self._holds += 1
        else:
            later = max(self._muted, muted, key=lambda timer: timer.deadline)
            (muted if later is self._muted else self._muted).cancel()
            self._muted = later
        self._is_paused = True
        self._transport.pause_reading()

    def _unmute(self) -> None:
        self._muted = None
        self.release(0)

    def _refuse_frame(self, error: FrameTooLargeError) -> None:
        logger.warning("bad_frame", kv(peer=self._transport.peer, error=error))
        self.close()

    @property
    def peer(self) -> str:
        return self._transport.peer

    @property
    def waits_here(self) -> bool:
        """What it has written waits for its turn here, and not for its client."""
        return self._transport.unsent_bytes > 0 and not self._transport.is_blocked

    @property
    def waiting_count(self) -> int:
        """Requests that its client waits for. One whose client is to wait may be idle, as in Kafka:
        while nothing is read, nobody sees that it left."""
        return len(self._line) + self._holds - (self._muted is not None)

    def reply_now(self, route: Route, correlation_id: int, message: Message) -> None:
        """A response that is there already: sent at once, or after those before it."""
        reply = Reply()
        reply.message = message
        reply.route = route
        reply.correlation_id = correlation_id
        if self._encode(reply):
            if not self._line:
                assert reply.parts is not None
                self._transport.write(reply.parts)
                if self._transport.unsent_bytes > COUNTED_FROM_BYTES:
                    self._note_unsent()
                return
            self._count(reply)
        elif self._is_closing:
            return
        self._line.append(reply)

    def reply_later(
        self, reply: AnyReply, route: Route, correlation_id: int, size_bytes: int
    ) -> None:
        """A place in line for a response that will be there later (or is there by now); the
        request's memory is held until then."""
        reply.line = self
        reply.route = route
        reply.correlation_id = correlation_id
        if not reply.is_silent:
            self._line.append(reply)
        if reply.message is None and reply.parts is None:
            reply.size_bytes = size_bytes
            self.memory.take(size_bytes)
        else:
            self.reply_resolved(reply)

    def reply_resolved(self, reply: AnyReply) -> None:
        """Stage 2: the response is there; encode it, if it is not, and send what is ready."""
        self.give_memory(reply)
        if self.is_closed or reply.is_silent:
            return
        if reply.parts is None and not self._encode(reply):
            return
        if self._line[0] is reply:
            self._send_ready()
        else:
            self._count(reply)

    def _count(self, reply: AnyReply) -> None:
        """Its bytes wait for a reply before it, and count as those that a client leaves here."""
        assert reply.parts is not None
        reply.parts_bytes = sum(map(len, reply.parts))
        self._line_bytes += reply.parts_bytes
        if self._line_bytes > COUNTED_FROM_BYTES:
            self._note_unsent()

    def _note_unsent(self) -> None:
        held_bytes = self._transport.unsent_bytes + self._line_bytes
        self._is_counted = held_bytes > COUNTED_FROM_BYTES and not self._is_closing
        self._answers.note(self, held_bytes if self._is_counted else 0)

    def has_turn(self, reply: AnyReply) -> bool:
        line = self._line
        return (
            bool(line)
            and line[0] is reply
            and self._transport.unsent_bytes <= UNSENT_BYTES_MAX
            and not self.is_closed
        )

    def wait_turn(self, reply: AnyReply) -> None:
        if self._line and self._line[0] is reply:
            self._send_ready()

    def _encode(self, reply: AnyReply) -> bool:
        """Whether the reply has its bytes now. A long one gets them later, and the connection is
        held; one that cannot be said in its version is a handler's bug, which may cost its client
        the connection, but not everybody the server."""
        assert reply.message is not None
        try:
            reply.parts = reply.route.encode(reply.message, reply.correlation_id, ELEMENTS_INLINE)
        except ManyElementsError:
            if self.dispatcher.is_stopped:
                self.close()
                return False
            self.hold(0)
            name = reply.route.name
            self.dispatcher.start(self._encode_sliced, reply, name=name)
            return False
        except Exception:  # a handler's bug, as in dispatch
            # Not in one place with `_encode_sliced`: that one awaits, and what could hold both,
            # a context manager, would be paid for by each reply.
            self._encoding_failed(reply)
            return False
        return True

    async def _encode_sliced(self, reply: AnyReply) -> None:
        assert reply.message is not None
        steps = reply.route.encode_sliced(reply.message, reply.correlation_id)
        try:
            try:
                reply.parts = await while_open(self, steps)
            except Exception:  # as in `_encode`
                self._encoding_failed(reply)
            if reply.parts is not None:
                if self._line and self._line[0] is reply:
                    self._send_ready()
                elif not self.is_closed:
                    self._count(reply)
        finally:
            self.release(0)
        await let_go(reply.message)

    def _encoding_failed(self, reply: AnyReply) -> None:
        logger.exception(
            "handler_failed",
            kv(
                response=type(reply.message).__name__,
                correlation_id=reply.correlation_id,
                connection=self.info.id,
            ),
        )
        self.close()

    def give_memory(self, reply: AnyReply) -> None:
        if reply.size_bytes:
            self.memory.give(reply.size_bytes)
            reply.size_bytes = 0

    def _send_ready(self) -> None:
        if self._is_sending:
            return  # a reply was made, below
        line = self._line
        self._is_sending = True
        try:
            while line:
                reply = line[0]
                if reply.parts is None:
                    make = reply.on_turn
                    if make is None or not self._may_make():
                        break
                    reply.on_turn = None
                    make()
                    if reply.parts is None:
                        break  # by a task
                line.popleft()
                self._line_bytes -= reply.parts_bytes
                self._transport.write(reply.parts)
                if self._transport.unsent_bytes > COUNTED_FROM_BYTES:
                    self._note_unsent()
        finally:
            self._is_sending = False
        if self._is_paused:
            self._maybe_resume()

    def _may_make(self) -> bool:
        """Whether the next reply may be made now; if not, `_send_on` follows."""
        if self._transport.unsent_bytes > UNSENT_BYTES_MAX:
            return False  # until `drained`
        turn = self.dispatcher.turn
        if not turn.is_spent:
            return True
        if not self._send_deferred:
            self._send_deferred = True
            turn.later(self._send_on)
        return False

    def _send_on(self) -> None:
        self._send_deferred = False
        self._send_ready()

    def _maybe_resume(self) -> None:
        """Goes on with what was received already, then with reading, once well below the limits."""
        if (
            self._is_closing
            or self._holds
            or len(self._line) >= REQUESTS_IN_FLIGHT_MAX // 2
            or self._transport.unsent_bytes + self._line_bytes > UNSENT_BYTES_MAX // 2
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
        if self._is_closing or self._holds:
            return
        self._is_paused = False
        try:
            self._receiver.go_on()
        except FrameTooLargeError as error:
            self._refuse_frame(error)
        if self._receiver.is_stalled:
            self._is_paused = True
        if not self._is_paused:
            self._transport.resume_reading()

    def close(self) -> None:
        """Whatever else the client sent is not looked at."""
        self._is_closing = True
        self._transport.close()

    def rest(self) -> None:
        """Nothing is read, and nothing was."""
        self._is_closing = True
        self._transport.pause_reading()

    def refuse(self) -> None:
        """Closes before anything was read."""
        self.rest()
        self.close()
