"""TLS as a layer between a connection and its transport; neither knows of the other side's bytes.

`TlsTransport` is the `Connection` of the transport below (bytes of TLS) and the `Transport` of the
connection above (plain bytes). It works over any driver, since `ssl.MemoryBIO` needs no socket:

    upgrade(transport, connection, tls)                                     from now on (START_TLS)
    net.listen(host, port, tls_factory(factory, tls, server_side=True))     all of a listener

Plain buffers are kept by reference until they are encrypted, and that is done at the end of the
turn, joined to records of 16 KiB, and only while the transport below has less than
ENCRYPTED_BYTES_MAX to send: a slow peer costs no more than that. What is encrypted and decrypted
counts against the turn (0.4 ms a mebibyte), and when that is spent the rest comes later. A
connection that pauses reading pauses the transport; what was decrypted for it is what it asked for.
A close sends close_notify behind all that was written, as long as the peer takes it. Renegotiation
is off, and a handshake that takes longer than its time-out ends the connection.

A handshake takes the loop half a millisecond and more. Where `Tls.handshakes` is given, as many go
on in a turn as it has room for; meanwhile nothing more is read from those that wait. What a client
says in its handshake has a limit, as each certificate of its chain costs 0.1 ms before it is known
whose it is. A step with more than HANDSHAKE_INLINE_BYTES of them is made by a thread where
`Tls.aside` is given; until it is done nothing here touches what that step uses.

Owner: the event loop's thread.
"""

from __future__ import annotations

import logging
import ssl
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from runtime.logs import kv
from runtime.renewed_tls import RenewedTls
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    import outcome

    from runtime.aside import Aside
    from runtime.net import Connection, ConnectionFactory, Transport
    from runtime.spread import Spread
    from runtime.timers import Timers
    from runtime.turn import Turn
    from wire.buffers import Buffer, Buffers

logger = logging.getLogger(__name__)

RECORD_BYTES = 16 << 10
ENCRYPTED_BYTES_MAX = 1 << 20
#: Of a large buffer, encrypted at once.
PIECE_BYTES = 256 << 10
RECEIVE_BYTES = 64 << 10
HANDSHAKE_TIMEOUT_MS = 10_000
#: Answers of TLS itself, to new keys that the peer asks for, behind what it does not read.
UNREAD_ANSWERS_BYTES_MAX = 16 << 10
#: Of a client. Java has 8 certificates, and 32 KiB for a message; OpenSSL 100 KB, which is 20 ms.
HANDSHAKE_BYTES_MAX = 16 << 10
#: What a step of a handshake may have received if the loop is to make it: a hello, or the two or
#: three certificates that a client has. Forty of them, in 16 KiB, would take 6 ms.
HANDSHAKE_INLINE_BYTES = 5 << 10
#: The first byte of whatever a client of TLS says first.
_HANDSHAKE_RECORD = 0x16
#: Bytes that are encrypted or decrypted in a unit of the turn: half of what was measured.
_UNIT_SHIFT = 10
#: What `on_failed` is told if either side closed the connection meanwhile.
HANDSHAKE_CLOSED = "closed"


@dataclass(slots=True, frozen=True)
class Tls:
    """What the layers of one process share."""

    #: A `RenewedTls` has another one for new connections once its files have changed.
    context: ssl.SSLContext | RenewedTls
    turn: Turn
    timers: Timers
    handshake_timeout_ms: int = HANDSHAKE_TIMEOUT_MS
    #: By whom handshakes of a server go on; None: at once.
    handshakes: Spread | None = None
    #: By whom the long steps of them are made; None: by the loop, like all others.
    aside: Aside | None = None

    @property
    def newest_context(self) -> ssl.SSLContext:
        context = self.context
        return context.context if isinstance(context, RenewedTls) else context


class TlsTransport:
    """runtime.net.Transport above, runtime.net.Connection below."""

    #: Filled and emptied within one call of the driver, hence one for all.
    _received = memoryview(bytearray(RECEIVE_BYTES))

    def __init__(
        self, below: Transport, tls: Tls, *, server_side: bool, server_hostname: str | None = None
    ) -> None:
        self._below = below
        self._turn = tls.turn
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = tls.newest_context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_side,
            server_hostname=server_hostname,
        )
        self._above: Connection | None = None
        self.on_established: Callable[[], None] | None = None
        #: Called once, with the reason, if the handshake comes to no end; instead of a line in the
        #: log, where there is one.
        self.on_failed: Callable[[str], None] | None = None
        self._plain: deque[Buffer] = deque()
        self._plain_bytes = 0
        self._is_established = False
        self._is_broken = False
        self._is_paused = False
        self._is_closing = False
        self._is_closed = False
        self._is_deferred = False
        #: It is to encrypt more in a later turn.
        self._is_put_off = False
        self._must_read = False
        self._unread_answers_bytes = 0
        self._handshakes = tls.handshakes if server_side else None
        self._aside = tls.aside
        #: A thread makes a step of the handshake, or is to make it: `_tls` and both of its ends are
        #: that one's. The number of the step is `_asked`.
        self._is_aside = False
        self._asked = -1
        #: Its handshake is to go on, or a thread is at it: nothing is read.
        self._is_in_line = False
        #: Of a server, before anything was received.
        self._is_first = server_side
        #: What the peer may still say before the handshake is done, and what came beyond.
        self._handshake_room_bytes = HANDSHAKE_BYTES_MAX if server_side else 1 << 62
        self._beyond_handshake = bytearray()
        self._timer = tls.timers.after(tls.handshake_timeout_ms / 1000, self._handshake_late)

    def attach(self, connection: Connection) -> None:
        """The connection above. A client says hello at the end of the turn."""
        self._above = connection
        self._defer()

    # -- the connection above ----------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self._below.peer

    @property
    def unsent_bytes(self) -> int:
        return self._plain_bytes + self._below.unsent_bytes

    @property
    def is_blocked(self) -> bool:
        return self._below.is_blocked

    @property
    def peer_certificate(self) -> dict[str, Any] | None:
        """As `ssl.SSLSocket.getpeercert`; None before the handshake, or if the peer has none."""
        return self._tls.getpeercert() if self._is_established else None

    @property
    def is_established(self) -> bool:
        """For tests: whether the handshake is done."""
        return self._is_established

    @property
    def peer_certificate_der(self) -> bytes | None:
        """The same as it was sent."""
        return self._tls.getpeercert(binary_form=True) if self._is_established else None

    def write(self, buffers: Buffers) -> None:
        if self._is_closing or self._is_closed:
            return
        self._plain.extend(buffers)
        self._plain_bytes += sum(map(len, buffers))
        self._defer()

    def pause_reading(self) -> None:
        self._is_paused = True
        self._below.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            # What came before the pause is still to be decrypted, but not within this call.
            self._must_read = True
            self._defer()
            if not self._is_in_line:
                self._below.resume_reading()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._forget_aside()
            self._defer()

    # -- the transport below -----------------------------------------------------------------------

    def receive_buffer(self) -> memoryview:
        return self._received

    def received(self, count: int) -> None:
        if self._is_broken:
            return
        assert not self._is_aside, "who has paused reading is given nothing"
        if self._is_first:
            self._is_first = False
            if self._received[0] != _HANDSHAKE_RECORD:
                self._failed("plain bytes where TLS is spoken")
                self._fail()
                return
        if self._is_established:
            self._incoming.write(self._received[:count])
        else:
            room = min(count, self._handshake_room_bytes)
            self._handshake_room_bytes -= room
            self._incoming.write(self._received[:room])
            self._beyond_handshake += self._received[room:count]
        if self._is_established or self._handshakes is None:
            self._advance(self._tls.do_handshake)
        elif not self._is_in_line:
            self._is_in_line = True
            self._handshakes.add([self._shake])
            if self._is_in_line:
                self._below.pause_reading()

    def _shake(self) -> None:
        """The handshake's turn has come."""
        if self._is_closed or self._is_broken:
            self._is_in_line = False
        elif self._aside is not None and self._incoming.pending > HANDSHAKE_INLINE_BYTES:
            self._is_aside = True
            self._asked = self._aside.add(self._tls.do_handshake, self._shaken)
        else:
            self._leave_line(self._tls.do_handshake)

    def _shaken(self, result: outcome.Outcome[None]) -> None:
        """A thread has made a step of the handshake."""
        self._is_aside = False
        if self._is_closed:
            return
        self._leave_line(result.unwrap)
        if self._is_closing:
            self._defer()  # it was asked for meanwhile

    def _forget_aside(self) -> None:
        """Nobody wants the step any more; one that a thread has begun is made nevertheless."""
        if self._is_aside and self._aside is not None and self._aside.forget(self._asked):
            self._is_aside = self._is_in_line = False

    def _leave_line(self, step: Callable[[], None]) -> None:
        self._is_in_line = False
        self._advance(step)
        if not self._is_paused:
            self._below.resume_reading()

    def drained(self) -> None:
        if not self._is_established:
            return
        if self._plain:
            self._encrypt()
        elif self._above is not None and not self._is_closed:
            self._above.drained()

    def closed(self) -> None:
        self._timer.cancel()
        self._forget_aside()
        self._give_up(HANDSHAKE_CLOSED)
        above, self._above = self._above, None
        self._is_closed = True
        self._plain.clear()
        self._plain_bytes = 0
        if above is not None:
            above.closed()

    # -- TLS ---------------------------------------------------------------------------------------

    def _defer(self) -> None:
        if not self._is_deferred:
            self._is_deferred = True
            self._turn.defer(self._at_end_of_turn)

    def _at_end_of_turn(self) -> None:
        self._is_deferred = False
        if self._is_closed or self._is_aside:
            return
        if not self._is_broken and (self._must_read or not self._is_established):
            self._must_read = False
            if self._is_established or self._handshakes is None:
                self._advance(self._tls.do_handshake)
        if self._is_established:
            self._encrypt()
        if self._is_closing and not self._is_closed:
            self._finish()

    def _advance(self, shake_hands: Callable[[], None]) -> None:
        """Goes on with the handshake, then decrypts what was received."""
        try:
            if not self._is_established:
                shake_hands()
                self._is_established = True
                self.on_failed = None
                self._timer.cancel()
                self._incoming.write(self._beyond_handshake)
                self._beyond_handshake = bytearray()
                logger.debug("tls", kv(peer=self.peer, version=self._tls.version()))
                if self._plain:
                    self._defer()
                if self.on_established is not None:
                    self.on_established()
            self._decrypt()
        except ssl.SSLWantReadError:
            if not self._is_established and not self._handshake_room_bytes:
                self._failed(f"a handshake of more than {HANDSHAKE_BYTES_MAX} bytes")
                self._fail()
        except ssl.SSLZeroReturnError:
            self.close()  # the peer said goodbye
        except ssl.SSLError as error:
            self._failed(str(error))
            self._fail()
        if self._is_established and self._outgoing.pending:
            self._answering()
        self._send()

    def _answering(self) -> None:
        """TLS itself answers, and that no limit of the connection's knows of: who asks on and reads
        nothing is given up."""
        if self._below.unsent_bytes <= ENCRYPTED_BYTES_MAX:
            self._unread_answers_bytes = 0
            return
        self._unread_answers_bytes += self._outgoing.pending
        if self._unread_answers_bytes > UNREAD_ANSWERS_BYTES_MAX:
            self._failed("asks for new keys, and reads nothing")
            self._fail()

    def _failed(self, reason: str) -> None:
        if self._is_established or self.on_failed is None:
            logger.info("tls_failed", kv(peer=self.peer, error=reason))
        else:
            self._give_up(reason)

    def _give_up(self, reason: str) -> None:
        """The handshake comes to no end."""
        told, self.on_failed = self.on_failed, None
        if told is not None:
            told(reason)

    def _fail(self) -> None:
        """There is no speaking to the peer any more but for the alert that is to be sent."""
        self._is_established = False
        self._is_broken = self._is_closing = True
        self._plain.clear()
        self._plain_bytes = 0
        self._defer()

    def _decrypt(self) -> None:
        """SSLWantReadError when there is nothing left; returns when nobody wants more."""
        while not self._is_paused and not self._is_closing:
            above = self._above
            if above is None:
                return
            buffer = above.receive_buffer()
            # typeshed knows only the form that returns the bytes
            count: Any = self._tls.read(len(buffer), buffer)
            if count == 0:
                raise ssl.SSLZeroReturnError(ssl.SSL_ERROR_ZERO_RETURN, "end of TLS")
            self._turn.spent_units += count >> _UNIT_SHIFT
            above.received(count)

    def _go_on(self) -> None:
        """In a later turn."""
        self._is_put_off = False
        if not self._is_established or self._is_closed:
            return
        if self._is_closing and self._below.unsent_bytes:
            if self._below.is_blocked:
                # As with a plain one, nobody waits for a peer to leave.
                self._below.close()
            else:
                self._put_off()
            return
        self._encrypt()
        if self._is_closing:
            self._finish()

    def _put_off(self) -> None:
        if not self._is_put_off:
            self._is_put_off = True
            self._turn.later(self._go_on)

    def _encrypt(self) -> None:
        plain, turn = self._plain, self._turn
        while plain and self._below.unsent_bytes + self._outgoing.pending < ENCRYPTED_BYTES_MAX:
            if turn.is_spent:
                self._put_off()
                break
            if len(plain[0]) >= RECORD_BYTES:
                data = memoryview(plain.popleft())
                # A large buffer goes piece by piece, so that the limit holds.
                if len(data) > PIECE_BYTES:
                    plain.appendleft(data[PIECE_BYTES:])
                    data = data[:PIECE_BYTES]
            else:
                data = memoryview(self._join())
            if data:  # zero bytes would be the end of TLS
                self._tls.write(data)
                self._plain_bytes -= len(data)
                turn.spent_units += len(data) >> _UNIT_SHIFT
        self._send()

    def _join(self) -> bytes:
        """Small buffers, as many as make a record: each record costs 22 bytes and a cipher run."""
        plain, parts, size = self._plain, [], 0
        while plain and size + len(plain[0]) <= RECORD_BYTES:
            part = plain.popleft()
            parts.append(part)
            size += len(part)
        return b"".join(parts)

    def _send(self) -> None:
        if self._outgoing.pending and not self._is_closed:
            self._below.write([self._outgoing.read()])

    def _finish(self) -> None:
        """Goodbye behind all that is left, and the end; not before all is encrypted, which takes a
        turn for each ENCRYPTED_BYTES_MAX."""
        if self._is_established:
            if self._plain:
                self._put_off()
                return
            with suppress(ssl.SSLError):  # the peer's goodbye is not waited for
                self._tls.unwrap()
        self._send()
        self._below.close()

    def _handshake_late(self) -> None:
        self._failed("no handshake in time")
        self._below.close()


def tls_factory(
    factory: ConnectionFactory,
    tls: Tls,
    *,
    server_side: bool,
    server_hostname: str | None = None,
) -> ConnectionFactory:
    """For tests, with `Net.listen` and `Net.connect`: the same connections, over TLS. The
    product's begin plain: `upgrade`."""

    def make(below: Transport) -> Connection:
        layer = TlsTransport(below, tls, server_side=server_side, server_hostname=server_hostname)
        layer.attach(factory(layer))
        return layer

    return make


def upgrade(
    below: Transport,
    connection: Connection,
    tls: Tls,
    *,
    server_side: bool = True,
    server_hostname: str | None = None,
    on_established: Callable[[], None] | None = None,
) -> TlsTransport:
    """START_TLS: from now on bytes are TLS. What was written to `below` is sent as it was; the
    connection goes on with the transport that this gives. `on_established` is called once, when the
    handshake is done."""
    layer = TlsTransport(below, tls, server_side=server_side, server_hostname=server_hostname)
    layer.on_established = on_established
    below.attach(layer)
    layer.attach(connection)
    return layer
