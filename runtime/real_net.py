"""RealNet: plain TCP and Unix sockets, driven by the poller that all else of the process shares.

All sockets that are ready are read in one burst and their bytes handed to the connections, then the
turn runs once for all (runtime.turn), then the replies leave, one `sendmsg` for each connection. A
task per connection was measured at half the requests per second.

Sending is copying, a millisecond for half a megabyte where memory is cold, and many answers of
megabytes may be ready in one turn. So much leaves at once; the rest follows in later turns, short
answers first, and of long ones a part of each connection in its turn.

Owner of all state here: the event loop's thread.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import sys
from collections import deque
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import trio

from runtime.descriptors import accepted_below
from runtime.logs import kv

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runtime.net import Connection, ConnectionFactory
    from runtime.poller import Poller
    from wire.buffers import Buffer, Buffers

logger = logging.getLogger(__name__)

#: Bytes read from one socket in a burst: fairness between connections.
READ_PER_BURST_BYTES_MAX = 1 << 20
#: What a connection costs the turn that makes it, and the one that ends it: thousands may come, or
#: leave, together.
ACCEPT_UNITS, CLOSE_UNITS = 60, 20
#: Connections accepted in one burst; the backlog keeps the rest.
ACCEPTS_PER_BURST_MAX = 32
LISTEN_BACKLOG = 1024
#: Buffers for one sendmsg (IOV_MAX is 1024 on Linux), and the size up to which they are joined:
#: one copy of a few kilobytes is cheaper than many vector elements.
SEND_BUFFERS_MAX = 512
JOIN_BYTES_MAX = 16 << 10
#: More buffers than these, whose mean is smaller, are joined when they are written: what leaves in
#: a turn is counted in bytes, and an answer for thousands of partitions has several for each.
SMALL_BUFFERS_MIN, SMALL_BUFFER_BYTES = 64, 1 << 10
#: What leaves in one turn, and of one connection with an answer that is longer than
#: `SHORT_BYTES_MAX`.
PER_TURN_BYTES_MAX, LONG_PART_BYTES_MAX = 2 << 20, 512 << 10
SHORT_BYTES_MAX = 64 << 10
#: Sending so many bytes costs about a microsecond, the unit of a turn.
SENT_UNIT_BITS = 9
#: How long accepting rests when descriptors are short.
ACCEPT_REST_SECONDS = 0.1

#: What an IPv4 address begins with at an IPv6 socket.
_MAPPED = "::ffff:"
_READ = select.EPOLLIN | select.EPOLLRDHUP
_BROKEN = select.EPOLLERR | select.EPOLLHUP


def is_unix(host: str) -> bool:
    return host.startswith("/")


def _family(host: str) -> socket.AddressFamily:
    if is_unix(host):
        return socket.AF_UNIX
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _prepare(sock: socket.socket, address: Any) -> str:  # noqa: ANN401  # whatever accept() gives
    """Sets a connected socket's options; what logs call the peer."""
    sock.setblocking(False)
    if sock.family is socket.AF_UNIX:
        return "unix"
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    host = address[0]
    if host.startswith(_MAPPED) and "." in host:
        # Of an IPv6 listener; what is said of an address counts however its client came.
        host = host.removeprefix(_MAPPED)
    return f"{host}:{address[1]}"


@contextmanager
def _short_path(path: str) -> Iterator[str]:
    """The socket's path by way of its opened directory: an address has room for 107 bytes only."""
    directory = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{os.path.basename(path)}"
    finally:
        os.close(directory)


def _bind_unix(sock: socket.socket, path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
    with _short_path(path) as short:
        sock.bind(short)
    # Before `listen`: until then nobody gets in.
    os.chmod(path, 0o600)


class SocketTransport:
    """One connected socket (runtime.net.Transport)."""

    __slots__ = (
        "_closing", "_connection", "_dirty", "_fd", "_mask", "_net", "_output", "_paused",
        "_socket", "in_line_bytes", "is_unfinished", "peer", "unsent_bytes",
    )  # fmt: skip

    def __init__(self, net: RealNet, sock: socket.socket, peer: str) -> None:
        self._net = net
        self._socket = sock
        self._fd = sock.fileno()
        self._output: deque[Buffer] = deque()
        self._connection: Connection | None = None
        self._dirty = False
        self._paused = False
        self._closing = False
        self._mask = _READ
        self.peer = peer
        self.unsent_bytes = 0
        #: The last `flush` left something that the socket may take.
        self.is_unfinished = False
        #: What was there when it was put in line to be sent in parts; the net's.
        self.in_line_bytes = 0

    @property
    def is_blocked(self) -> bool:
        return bool(self._output) and not self._dirty

    def attach(self, connection: Connection) -> None:
        self._connection = connection
        self._update_mask()  # the factory may have paused it

    def write(self, buffers: Buffers) -> None:
        if self._closing:  # an end is one, too; the factory may write before there is a connection
            return
        if len(buffers) == 1:  # a reply to produce, mostly
            (buffer,) = buffers
            self._output.append(buffer)
            self.unsent_bytes += len(buffer)
        else:
            size = sum(map(len, buffers))
            if len(buffers) > SMALL_BUFFERS_MIN and size < len(buffers) * SMALL_BUFFER_BYTES:
                self._output.append(b"".join(buffers))
            else:
                self._output.extend(buffers)
            self.unsent_bytes += size
        if not self._dirty:
            self._dirty = True
            self._net.flush_later(self)

    def pause_reading(self) -> None:
        self._paused = True
        self._update_mask()

    def resume_reading(self) -> None:
        self._paused = False
        self._update_mask()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._update_mask()  # it may be a while in line
        if not self._dirty:
            self._dirty = True
            self._net.flush_later(self)

    # -- called by the driver ---------------------------------------------------------------

    def on_events(self, mask: int) -> None:
        if mask & _BROKEN:
            # A Unix socket is broken as soon as its peer closed it, with what the peer sent last
            # still to be read.
            if mask & select.EPOLLIN and not self._paused:
                self._read()
            self.abort()
            return
        if mask & select.EPOLLOUT and not self._dirty:
            self._dirty = True
            self._update_mask()  # it may be a while in line, and would be told in each burst
            self._net.flush_later(self)
        if mask & _READ and not self._paused:
            self._read()

    def _read(self) -> None:
        connection = self._connection
        budget = READ_PER_BURST_BYTES_MAX
        while connection is not None and budget > 0 and not self._paused and not self._closing:
            buffer = connection.receive_buffer()
            try:
                count = self._socket.recv_into(buffer)
            except BlockingIOError:
                return
            except OSError as error:
                logger.debug("read_failed", kv(peer=self.peer, error=error))
                self.abort()
                return
            if count == 0:
                self._peer_ended()
                return
            connection.received(count)
            if count < len(buffer):
                return
            budget -= count
            connection = self._connection

    def _peer_ended(self) -> None:
        """The peer sends no more. What waits for its turn here leaves nevertheless, as far as the
        peer takes it: nobody waits for a peer to leave."""
        if self._output and not self.is_blocked:
            self.close()
        else:
            self.abort()

    def flush(self, bytes_max: int) -> int:
        """Sends what the socket takes, at most so much; waits for EPOLLOUT if it takes no more. How
        much was sent; `is_unfinished` tells whether it would have taken more."""
        self._dirty = self.is_unfinished = False
        if self._connection is None:
            return 0
        before = self.unsent_bytes
        try:
            while self._output and (left := bytes_max - before + self.unsent_bytes) > 0:
                self._forget_sent(self._send_some(left))
        except BlockingIOError:
            sent = before - self.unsent_bytes
            if self._closing:  # the peer does not take it; nobody waits for a peer to leave
                self.abort()
            else:
                self._update_mask()
            return sent
        except OSError as error:
            logger.debug("write_failed", kv(peer=self.peer, error=error))
            self.abort()
            return 0
        if self._output:
            self._dirty = self.is_unfinished = True  # the net puts it in line
            self._update_mask()
            return bytes_max
        if self._closing:
            self.abort()
            return before
        if self._mask & select.EPOLLOUT:
            self._update_mask()
        self._connection.drained()
        return before

    def _forget_sent(self, sent: int) -> None:
        output = self._output
        self.unsent_bytes -= sent
        if not self.unsent_bytes:
            output.clear()
            return
        while sent:
            first = output[0]
            size = len(first)
            if size > sent:
                output[0] = memoryview(first)[sent:]
                break
            sent -= size
            output.popleft()
        while output and not len(output[0]):
            output.popleft()

    def _send_some(self, bytes_max: int) -> int:
        output = self._output
        if len(output) == 1:
            (buffer,) = output
            if len(buffer) > bytes_max:
                buffer = memoryview(buffer)[:bytes_max]
            return self._socket.send(buffer)
        if self.unsent_bytes <= JOIN_BYTES_MAX:
            joined = b"".join(output)
            output.clear()
            output.append(joined)
            return self._socket.send(joined) if joined else 0
        if self.unsent_bytes <= bytes_max and len(output) <= SEND_BUFFERS_MAX:
            return self._socket.sendmsg(output)
        parts: list[Buffer] = []
        for buffer in islice(output, SEND_BUFFERS_MAX):
            if len(buffer) >= bytes_max:
                parts.append(memoryview(buffer)[:bytes_max])
                break
            parts.append(buffer)
            bytes_max -= len(buffer)
        return self._socket.sendmsg(parts)

    def _update_mask(self) -> None:
        if self._connection is None:
            return
        mask = 0 if self._paused or self._closing else _READ
        if self._output and not self._dirty:
            mask |= select.EPOLLOUT
        if mask != self._mask:
            self._mask = mask
            self._net.modify(self._fd, mask)

    def end(self) -> None:
        """The net stops: what can be sent is sent."""
        self.flush(sys.maxsize)
        self.abort()

    def abort(self) -> None:
        """Closes the socket now; what was not sent is dropped."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._closing = True
        self._output.clear()
        self.unsent_bytes = 0
        self._net.forget(self, self._fd)
        self._net.spend(CLOSE_UNITS)
        self._socket.close()
        connection.closed()


class SocketListener:
    """One listening socket (runtime.net.Listener)."""

    __slots__ = ("_factory", "_is_paused", "_is_short", "_net", "_socket", "address", "fd")

    def __init__(
        self,
        net: RealNet,
        sock: socket.socket,
        address: tuple[str, int],
        factory: ConnectionFactory,
    ) -> None:
        self._net = net
        self._socket = sock
        self._factory = factory
        self._is_paused = False
        #: The last one that came was one too many, and that was told.
        self._is_short = False
        self.fd = sock.fileno()
        self.address = address

    def on_events(self, _mask: int) -> None:
        for _ in range(ACCEPTS_PER_BURST_MAX):
            if self._is_paused:
                return
            try:
                sock, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # A connection that was reset before it was accepted is no fault of ours. Without
                # descriptors the listener would be reported ready for ever: let it rest.
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    logger.warning("accept_failed", kv(error=error))
                    self._rest()
                return
            if sock.fileno() >= self._net.accepted_below:
                # What is left is for files (runtime/descriptors.py).
                sock.close()
                if not self._is_short:
                    logger.warning("descriptors_short", kv(most=self._net.accepted_below))
                self._is_short = True
                self._rest()
                return
            self._is_short = False
            peer = _prepare(sock, address)
            self._net.adopt(sock, peer, self._factory)

    def _rest(self) -> None:
        self._net.modify(self.fd, 0)
        self._net.rest(self)

    def wake(self) -> None:
        """Accepts again after a rest."""
        if self.fd >= 0 and not self._is_paused:
            self._net.modify(self.fd, select.EPOLLIN)

    def pause_accepting(self) -> None:
        self._is_paused = True
        if self.fd >= 0:
            self._net.modify(self.fd, 0)

    def resume_accepting(self) -> None:
        self._is_paused = False
        self.wake()

    def close(self) -> None:
        if self.fd >= 0:
            self._net.forget(self, self.fd)
            self._socket.close()
            self.fd = -1
            if is_unix(self.address[0]):
                with suppress(OSError):
                    os.unlink(self.address[0])

    def end(self) -> None:
        self.close()


def network_place() -> str:
    """This boot of this machine, and the network namespace (containers have their own)."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return ""


class RealNet:
    """The operating system's TCP (runtime.net.Net). Make it inside a trio run."""

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._turn = poller.turn
        self._open: set[SocketTransport | SocketListener] = set()
        self._dirty: list[SocketTransport] = []
        #: Those whose short answers wait for the next turn, and those whose leave in parts.
        self._short: deque[SocketTransport] = deque()
        self._long: deque[SocketTransport] = deque()
        self._is_line_due = False
        #: What may still leave in the turn of that number.
        self._turn_number, self._left = -1, 0
        self._resting: list[SocketListener] = []
        self.accepted_count = 0
        self.accepted_below = accepted_below()

    @property
    def place(self) -> str:
        return network_place()

    @property
    def connection_count(self) -> int:
        """For tests: those that are open."""
        return sum(isinstance(item, SocketTransport) for item in self._open)

    def listen(self, host: str, port: int, factory: ConnectionFactory) -> SocketListener:
        sock = socket.socket(_family(host), socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if is_unix(host):
                _bind_unix(sock, host)
            else:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((host, port))
                host, port = sock.getsockname()[:2]
            sock.listen(LISTEN_BACKLOG)
        except OSError as error:
            sock.close()
            raise OSError(error.errno, f"{os.strerror(error.errno or 0)}: {host}:{port}") from error
        listener = SocketListener(self, sock, (host, port), factory)
        self._open.add(listener)
        self._poller.register(listener.fd, select.EPOLLIN, listener.on_events)
        return listener

    async def connect(self, host: str, port: int, factory: ConnectionFactory) -> Connection:
        stream = trio.socket.socket(_family(host))
        try:
            if is_unix(host):
                with _short_path(host) as path:
                    await stream.connect(path)
            else:
                await stream.connect((host, port))
        except BaseException:
            stream.close()
            raise
        # The driver owns the descriptor from here on; trio's wrapper would only get in the way.
        sock = socket.socket(fileno=stream.detach())
        return self.adopt(sock, _prepare(sock, (host, port)), factory)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        try:
            while True:
                await trio.sleep(ACCEPT_REST_SECONDS)
                resting, self._resting = self._resting, []
                for listener in resting:
                    listener.wake()
        finally:
            for item in list(self._open):
                item.end()

    # -- called by transports and listeners ---------------------------------------------------

    def adopt(self, sock: socket.socket, peer: str, factory: ConnectionFactory) -> Connection:
        transport = SocketTransport(self, sock, peer)
        self._open.add(transport)
        self._poller.register(sock.fileno(), _READ, transport.on_events)
        self.accepted_count += 1
        self.spend(ACCEPT_UNITS)
        connection = factory(transport)
        transport.attach(connection)
        return connection

    def flush_later(self, transport: SocketTransport) -> None:
        if not self._dirty:
            self._turn.defer(self._flush_dirty)
        self._dirty.append(transport)

    def _left_bytes(self) -> int:
        """What may still leave in this turn."""
        number = self._turn.number
        if number != self._turn_number:
            self._turn_number = number
            self._left = PER_TURN_BYTES_MAX
        return self._left

    def _flush_dirty(self) -> None:
        dirty, self._dirty = self._dirty, []
        left = self._left_bytes()
        for transport in dirty:
            if transport.unsent_bytes <= SHORT_BYTES_MAX:
                if left > 0:
                    left -= transport.flush(SHORT_BYTES_MAX)
                else:
                    self._put_in_line(transport, self._short)
            elif left > 0 and not self._short and not self._long:
                left -= transport.flush(left)
                if transport.is_unfinished:
                    self._put_in_line(transport, self._long)
            else:
                self._put_in_line(transport, self._long)
        self._left = left

    def _put_in_line(self, transport: SocketTransport, line: deque[SocketTransport]) -> None:
        line.append(transport)
        transport.in_line_bytes = transport.unsent_bytes
        self._turn.unsent_bytes += transport.unsent_bytes
        self._see_to_line()

    def _see_to_line(self) -> None:
        if not self._is_line_due:
            self._is_line_due = True
            self._turn.later(self._send_line)

    def _send_line(self) -> None:
        """A turn's worth of what is in line, short answers first, and the rest in the next one."""
        self._is_line_due = False
        before = left = self._left_bytes()
        while left > 0 and (line := self._short or self._long):
            transport = line.popleft()
            self._turn.unsent_bytes -= transport.in_line_bytes
            sent = transport.flush(min(left, LONG_PART_BYTES_MAX))
            left -= max(sent, LONG_PART_BYTES_MAX >> 6)  # a call that sends nothing costs, too
            if transport.is_unfinished:
                self._put_in_line(transport, self._long)
        self._left = left
        self.spend((before - left) >> SENT_UNIT_BITS)
        if self._short or self._long:
            self._see_to_line()

    def spend(self, units: int) -> None:
        self._turn.spent_units += units

    def modify(self, fd: int, mask: int) -> None:
        self._poller.modify(fd, mask)

    def forget(self, item: SocketTransport | SocketListener, fd: int) -> None:
        if item in self._open:
            self._open.discard(item)
            self._poller.unregister(fd)

    def rest(self, listener: SocketListener) -> None:
        """Leaves a listener alone for a moment (out of descriptors)."""
        self._resting.append(listener)
