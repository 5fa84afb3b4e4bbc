"""SimNet: TCP in memory, under virtual time, with the faults of a real network.

The same seam as `RealNet` (one contract suite runs over both). A `SimNetwork` is the world between
the hosts; each life of a host has a `SimNet` on it. Bytes are cut into segments at places that the
entropy chooses, travel for a while, and arrive in order; what arrives at one moment at one host is
one burst (runtime.turn).

What may happen, as with TCP:
- a direction between two hosts is *cut*: nothing arrives until it is healed, then all does, late;
- a connection is *reset*: both ends learn it, at different moments, and what was under way is lost,
  in the middle of a frame or not;
- a host's process is killed: its peers see the connection closed behind what was under way; or its
  power fails: they see nothing, until they send to the host's next life, which answers «reset»;
- a receiver that does not read fills its buffer, and then the sender's grows (`unsent_bytes`).

Every choice comes from the given entropy, every wait from the given Timers.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Protocol

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.net import Connection, ConnectionFactory
    from runtime.timers import Timers
    from runtime.turn import Turn
    from wire.buffers import Buffer, Buffers

#: A call that nobody answers is tried again after this, and given up in the end.
CONNECT_RETRY_SECONDS = 0.25
CONNECT_TIMEOUT_SECONDS = 20.0
LOCAL_NAMES = ("127.0.0.1", "0.0.0.0", "localhost")


def net_error(number: int, host: str, port: int) -> OSError:
    return OSError(number, f"{os.strerror(number)}: {host}:{port}")


class Between(Protocol):
    """What hosts ask of the network that they are on (runtime/sim_network.py)."""

    timers: Timers
    #: Is told whose code runs from now on.
    enter: Callable[[str], None]

    @property
    def buffer_bytes(self) -> int:
        """What one direction of a connection takes before its receiver has read it."""

    def free_port(self) -> int: ...

    def add_listener(self, listener: SimListener) -> SimListener:
        """OSError if the address is in use."""

    def remove_listener(self, listener: SimListener) -> None: ...

    def stop_listeners(self, net: SimNet) -> None: ...

    def listener(self, address: tuple[str, int]) -> SimListener | None: ...

    def pair(self, caller: SimNet, listener: SimListener) -> SimTransport:
        """A connection, accepted; the caller's end, which nobody holds yet."""

    def send(self, sender: SimTransport, data: bytes | None) -> None:
        """`data` (None: the end) goes on its way."""

    def reset_later(self, end: SimTransport) -> None:
        """A reset is on its way to that end."""

    def delay_seconds(self, source: str, target: str) -> float: ...

    def is_cut(self, source: str, target: str) -> bool: ...

    def is_down(self, name: str) -> bool:
        """Without power: it does not even refuse."""


class SimTransport:
    """One end of a connection (runtime.net.Transport)."""

    __slots__ = (
        "_closing", "_connection", "_dirty", "_ended", "_fin_sent", "_incoming", "_output",
        "_paused", "in_flight_bytes", "last_arrival", "net", "number", "other", "peer",
        "travelling", "unsent_bytes",
    )  # fmt: skip

    def __init__(self, net: SimNet, peer: str, number: int) -> None:
        self.net = net
        self.peer = peer
        #: The connection's, for traces; both ends have the same.
        self.number = number
        self.other: SimTransport | None = None
        self.unsent_bytes = 0
        #: Sent by this end and not read by the other.
        self.in_flight_bytes = 0
        #: Sent by this end, under way; None is the end.
        self.travelling: deque[bytes | None] = deque()
        self.last_arrival = 0.0
        self._connection: Connection | None = None
        self._output: deque[Buffer] = deque()
        self._incoming: deque[memoryview | None] = deque()
        self._dirty = False
        self._paused = False
        self._closing = False
        self._fin_sent = False
        self._ended = False

    @property
    def is_open(self) -> bool:
        return not self._ended

    @property
    def is_blocked(self) -> bool:
        return bool(self._output) and not self._dirty

    def attach(self, connection: Connection) -> None:
        self._connection = connection
        if self._incoming:
            self.net.soon(self._read)

    def write(self, buffers: Buffers) -> None:
        if self._closing or self._ended or self.net.is_dead:
            return
        self._output.extend(buffers)
        self.unsent_bytes += sum(map(len, buffers))
        self._flush_later()

    def _flush_later(self) -> None:
        if not self._dirty:
            self._dirty = True
            self.net.flush_later(self)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        if self._incoming:
            self.net.soon(self._read)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._flush_later()

    # -- the driver ---------------------------------------------------------------------------

    def flush(self) -> None:
        """Hands what there is room for to the network."""
        self._dirty = False
        if self._ended or self._connection is None:
            return
        room = self.net.network.buffer_bytes - self.in_flight_bytes
        output = self._output
        pieces: list[Buffer] = []
        while output and room > 0:
            first = output.popleft()
            if len(first) > room:
                output.appendleft(memoryview(first)[room:])
                first = memoryview(first)[:room]
            pieces.append(first)
            room -= len(first)
        if pieces:
            data = b"".join(pieces)
            self.unsent_bytes -= len(data)
            self.in_flight_bytes += len(data)
            self.net.network.send(self, data)
        if not self.is_open:  # whoever watches the network ended this host just now
            return
        if self._closing:  # what the network does not take is dropped; nobody waits for a peer
            self.abort()
        elif not output:
            self._connection.drained()

    def receive(self, segment: bytes | None) -> None:
        """Something arrived (None: the peer's end)."""
        self._incoming.append(None if segment is None else memoryview(segment))
        if self._connection is not None and not self._paused:
            self.net.soon(self._read)

    def _read(self) -> None:
        incoming = self._incoming
        while incoming and not self._paused and not self._closing and not self._ended:
            connection = self._connection
            if connection is None:
                return
            segment = incoming[0]
            if segment is None:
                self.abort()
                return
            buffer = connection.receive_buffer()
            count = min(len(buffer), len(segment))
            buffer[:count] = segment[:count]
            if count == len(segment):
                incoming.popleft()
            else:
                incoming[0] = segment[count:]
            self._was_read(count)
            connection.received(count)

    def _was_read(self, count: int) -> None:
        sender = self.other
        assert sender is not None
        sender.in_flight_bytes -= count
        if sender._output and not sender._dirty and not sender.net.is_dead:
            sender._dirty = True
            sender.net.soon(sender.flush)

    def end(self) -> None:
        """The net stops: what can be sent is sent."""
        self.flush()
        self.abort()

    def abort(self) -> None:
        """Closes this end now; what was not sent is dropped, and the peer sees the end behind what
        was. If there is something that this end never read, the peer sees a reset instead."""
        if self._ended:
            return
        self._finish()
        other = self.other
        if other is not None and not self._fin_sent:
            self._fin_sent = True
            if any(segment is not None for segment in self._incoming):
                self.net.network.reset_later(other)
            else:
                self.net.network.send(self, None)

    def broken(self) -> None:
        """A reset arrived: both directions end here."""
        self._fin_sent = True
        self._finish()

    def _finish(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._closing = True
        self._output.clear()
        self.unsent_bytes = 0
        self.net.forget(self)
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.closed()


class SimListener:
    """See `runtime.net.Listener`."""

    __slots__ = ("_is_paused", "_net", "_waiting", "address", "factory")

    def __init__(self, net: SimNet, address: tuple[str, int], factory: ConnectionFactory) -> None:
        self._net = net
        self.address = address
        self.factory = factory
        self._is_paused = False
        self._waiting: list[SimTransport] = []  # to be accepted

    def accept(self, transport: SimTransport) -> None:
        if self._is_paused:
            self._waiting.append(transport)
        elif transport.is_open:
            transport.attach(self.factory(transport))

    def pause_accepting(self) -> None:
        self._is_paused = True

    def resume_accepting(self) -> None:
        self._is_paused = False
        waiting, self._waiting = self._waiting, []
        for transport in waiting:
            self._net.soon(partial(self.accept, transport))

    @property
    def net(self) -> SimNet:
        return self._net

    def close(self) -> None:
        self._net.stop_listening(self)


class SimNet:
    """One life of one host (runtime.net.Net)."""

    def __init__(self, network: Between, name: str, turn: Turn) -> None:
        self.network = network
        self.name = name
        self.is_dead = False
        #: It died without a word.
        self.is_silent = False
        #: Its process stands still: what arrives waits.
        self._is_halted = False
        self._turn = turn
        #: In the order in which they were opened.
        self._open: dict[SimTransport, None] = {}
        self._dirty: list[SimTransport] = []
        self._ready: list[Callable[[], None]] = []

    @property
    def place(self) -> str:
        return self.name

    @property
    def transports(self) -> list[SimTransport]:
        return list(self._open)

    @property
    def connection_count(self) -> int:
        """For tests: those that are open."""
        return len(self._open)

    def _host(self, host: str) -> str:
        return self.name if host in LOCAL_NAMES else host

    def listen(self, host: str, port: int, factory: ConnectionFactory) -> SimListener:
        name = self._host(host)
        if self.is_dead or name != self.name:
            raise net_error(errno.EADDRNOTAVAIL, host, port)
        if port == 0:
            port = self.network.free_port()
        return self.network.add_listener(SimListener(self, (name, port), factory))

    def stop_listening(self, listener: SimListener) -> None:
        self.network.remove_listener(listener)

    def _check_alive(self, host: str, port: int) -> None:
        if self.is_dead:
            raise net_error(errno.ENETDOWN, host, port)

    async def connect(self, host: str, port: int, factory: ConnectionFactory) -> Connection:
        self._check_alive(host, port)
        call = _Call(self.network, self, (self._host(host), port))
        try:
            transport = await call.answer()
            self._check_alive(host, port)
        except BaseException:
            call.abandon()
            raise
        self.adopt(transport)
        connection = factory(transport)
        transport.attach(connection)
        return connection

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            self.network.stop_listeners(self)
            for transport in self.transports:
                transport.end()

    def crash(self, *, is_silent: bool) -> None:
        """This life ends here, whatever its code is doing: nothing leaves it any more. With
        `is_silent` (power) its peers are told nothing."""
        if self.is_dead:
            return
        self.is_dead = True
        self.is_silent = is_silent
        self.network.stop_listeners(self)
        for transport in self.transports:
            other = transport.other
            if not is_silent and other is not None and other.is_open:
                transport._fin_sent = True
                self.network.send(transport, None)
            # In a moment of its own: its code may be in the middle of anything just now.
            self.network.timers.after(0, transport.broken)

    # -- called by transports and the network -------------------------------------------------

    def adopt(self, transport: SimTransport) -> None:
        self._open[transport] = None

    def forget(self, transport: SimTransport) -> None:
        self._open.pop(transport, None)

    def flush_later(self, transport: SimTransport) -> None:
        if not self._dirty:
            self._turn.defer(self._flush_dirty)
        self._dirty.append(transport)

    def _flush_dirty(self) -> None:
        dirty, self._dirty = self._dirty, []
        for transport in dirty:
            transport.flush()

    def soon(self, function: Callable[[], None]) -> None:
        """In the burst of this moment, with all else that is ready."""
        if not self._ready:
            self.network.timers.after(0, self._burst)
        self._ready.append(function)

    def halt(self) -> None:
        """Nothing of this host runs until `resume`."""
        self._is_halted = True

    def resume(self) -> None:
        self._is_halted = False
        if self._ready:
            self.network.timers.after(0, self._burst)

    def _burst(self) -> None:
        if self._is_halted:
            return  # `resume` does it
        ready, self._ready = self._ready, []
        self.network.enter(self.name)
        self._turn.begin()
        for function in ready:
            function()
        self._turn.run()
        self.network.enter("")


class _Call:
    """One attempt to connect: there, and back again."""

    def __init__(self, network: Between, net: SimNet, address: tuple[str, int]) -> None:
        self._network = network
        self._net = net
        self._address = address
        self._event = trio.Event()
        self._error: OSError | None = None
        self._transport: SimTransport | None = None
        self._abandoned = False
        self._deadline = trio.current_time() + CONNECT_TIMEOUT_SECONDS

    async def answer(self) -> SimTransport:
        self._later(self._net.name, self._address[0], self._arrive)
        await self._event.wait()
        if self._error is not None:
            raise self._error
        assert self._transport is not None
        return self._transport

    def abandon(self) -> None:
        self._abandoned = True
        if self._transport is not None and self._transport.other is not None:
            self._network.reset_later(self._transport.other)

    def _later(self, source: str, target: str, function: Callable[[], None]) -> None:
        network = self._network
        network.timers.after(network.delay_seconds(source, target), function)

    def _fail(self, number: int) -> None:
        self._error = net_error(number, *self._address)
        self._event.set()

    def _arrive(self) -> None:
        network, target = self._network, self._address[0]
        if self._abandoned or self._net.is_dead:
            self._fail(errno.ECONNABORTED)
            return
        if network.is_cut(self._net.name, target) or network.is_down(target):
            if trio.current_time() >= self._deadline:
                self._fail(errno.ETIMEDOUT)
            else:
                network.timers.after(CONNECT_RETRY_SECONDS, self._arrive)
            return
        listener = network.listener(self._address)
        if listener is None:
            self._later(target, self._net.name, partial(self._fail, errno.ECONNREFUSED))
            return
        self._transport = network.pair(self._net, listener)
        self._later(target, self._net.name, self._accepted)

    def _accepted(self) -> None:
        if self._abandoned:
            return
        if self._network.is_cut(self._address[0], self._net.name):
            if trio.current_time() >= self._deadline:
                self._fail(errno.ETIMEDOUT)
            else:
                self._network.timers.after(CONNECT_RETRY_SECONDS, self._accepted)
            return
        self._event.set()
