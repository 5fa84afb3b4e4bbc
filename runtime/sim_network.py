"""SimNetwork: what is between the hosts of a simulation (runtime/sim_net.py).

Carries segments, cuts and heals directions, breaks connections; every choice comes from the given
entropy, every wait from the given Timers.
"""

from __future__ import annotations

import errno
from functools import partial
from typing import TYPE_CHECKING

import trio

from runtime.sim_net import SimNet, SimTransport, net_error
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.env import Rng
    from runtime.sim_net import SimListener
    from runtime.timers import Timers
    from runtime.turn import Turn

#: Arrivals are at multiples of it, so that some coincide and are served in one burst.
TICK_SECONDS = 50e-6
EPHEMERAL_PORT_MIN = 40_000


@dataclass(slots=True)
class NetFaults:
    """What the network is like; may be changed at any time."""

    #: A segment travels for a time from this range, in seconds.
    latency_seconds: tuple[float, float] = (100e-6, 500e-6)
    #: What one direction of a connection takes before its receiver has read it.
    buffer_bytes: int = 256 << 10
    #: Share of sends that are cut in two at a random place.
    cut_share: float = 0.25


class SimNetwork:
    """Between the hosts. Start its Timers' `run`."""

    def __init__(
        self,
        rng: Rng,
        timers: Timers,
        faults: NetFaults | None = None,
        *,
        observe: Callable[[str, str, str], None] | None = None,
        enter: Callable[[str], None] | None = None,
    ) -> None:
        """`observe(host, event, detail)` is told what happens, before it does; `enter(host)` whose
        code runs from now on ("": nobody's)."""
        self.timers = timers
        self.faults = faults if faults is not None else NetFaults()
        self.observe = observe if observe is not None else lambda _host, _event, _detail: None
        self.enter = enter if enter is not None else lambda _host: None
        self._rng = rng
        self._hosts: dict[str, SimNet] = {}
        self._listeners: dict[tuple[str, int], SimListener] = {}
        self._cut: set[tuple[str, str]] = set()
        self._clogged: dict[tuple[str, str], float] = {}
        #: Ends whose segments wait for a cut to heal, with how many.
        self._held: dict[SimTransport, int] = {}
        self._port = EPHEMERAL_PORT_MIN
        self._numbers = 0
        self.sent_bytes = 0
        self.segment_count = 0

    # -- hosts --------------------------------------------------------------------------------

    def host(self, name: str, turn: Turn) -> SimNet:
        """A new life of that host. Who sent to the last one learns now that it ended."""
        old = self._hosts.get(name)
        assert old is None or old.is_dead, f"{name} lives"
        net = SimNet(self, name, turn)
        self._hosts[name] = net
        for sender in list(self._held):
            if sender.other is not None and sender.other.net is old:
                del self._held[sender]
                self.reset_later(sender)
        return net

    def is_down(self, name: str) -> bool:
        """Without power: it does not even refuse."""
        net = self._hosts.get(name)
        return net is not None and net.is_dead and net.is_silent

    @property
    def connections(self) -> list[SimTransport]:
        """One end of each that is open, in an order that is the same in each run."""
        ends = [end for net in self._hosts.values() for end in net.transports]
        return [end for end in ends if end.peer.endswith(":listener")]

    # -- faults -------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """One way; nothing from `source` arrives at `target` until `heal`."""
        self._cut.add((source, target))

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut

    def heal(self) -> None:
        """All directions; what was held arrives."""
        self._cut.clear()
        self._clogged.clear()
        held, self._held = self._held, {}
        for sender, count in held.items():
            if (
                sender.other is not None
                and sender.other.net.is_dead
                and self.is_down(sender.other.net.name)
            ):
                self._held[sender] = count
                continue
            for _ in range(count):
                delay = self.delay_seconds(sender.net.name, self._target(sender))
                self.timers.after(delay, partial(self._arrive, sender))

    def clog(self, source: str, target: str, seconds: float) -> None:
        """What is sent from now on arrives after so long at the earliest."""
        self._clogged[source, target] = trio.current_time() + seconds

    def reset(self, end: SimTransport) -> None:
        """Both ends of the connection learn, each in its time, that it is broken."""
        for each in (end, end.other):
            if each is not None:
                each.travelling.clear()
                self.reset_later(each)

    # -- what transports ask ------------------------------------------------------------------

    @property
    def buffer_bytes(self) -> int:
        return self.faults.buffer_bytes

    def free_port(self) -> int:
        self._port += 1
        return self._port

    def add_listener(self, listener: SimListener) -> SimListener:
        if listener.address in self._listeners:
            raise net_error(errno.EADDRINUSE, *listener.address)
        self._listeners[listener.address] = listener
        return listener

    def remove_listener(self, listener: SimListener) -> None:
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    def stop_listeners(self, net: SimNet) -> None:
        for listener in list(self._listeners.values()):
            if listener.net is net:
                self.remove_listener(listener)

    def listener(self, address: tuple[str, int]) -> SimListener | None:
        return self._listeners.get(address)

    def pair(self, caller: SimNet, listener: SimListener) -> SimTransport:
        """A connection, accepted; the caller's end, which nobody holds yet."""
        self._numbers += 1
        host, port = listener.address
        near = SimTransport(caller, f"{host}:{port}:listener", self._numbers)
        far = SimTransport(listener.net, f"{caller.name}:{self.free_port()}", self._numbers)
        near.other, far.other = far, near
        far.net.adopt(far)
        self.observe(host, "accept", f"c{self._numbers} from {caller.name}")

        far.net.soon(partial(listener.accept, far))
        return near

    def delay_seconds(self, source: str, target: str) -> float:
        low, high = self.faults.latency_seconds
        clogged = self._clogged.get((source, target), 0.0) - trio.current_time()
        seconds = max(clogged, 0.0) + low + (high - low) * self._rng.random()
        return round(seconds / TICK_SECONDS) * TICK_SECONDS

    def send(self, sender: SimTransport, data: bytes | None) -> None:
        """`data` (None: the end) goes on its way; it may be cut in two."""
        pieces: list[bytes | None] = [data]
        if data is not None:
            self.sent_bytes += len(data)
            if len(data) > 1 and self._rng.random() < self.faults.cut_share:
                at = 1 + self._rng.randrange(len(data) - 1)
                pieces = [data[:at], data[at:]]
        target = self._target(sender)
        now = trio.current_time()
        for piece in pieces:
            self.segment_count += 1
            arrival = now + self.delay_seconds(sender.net.name, target)
            arrival = max(round(arrival / TICK_SECONDS) * TICK_SECONDS, sender.last_arrival)
            sender.last_arrival = arrival
            sender.travelling.append(piece)
            # Each takes the oldest that is under way, so the order does not depend on rounding.
            self.timers.after(arrival - now, partial(self._arrive, sender))

    def reset_later(self, end: SimTransport) -> None:
        """A reset is on its way to that end."""

        def arrive() -> None:
            if end.is_open:
                self.observe(end.net.name, "reset", f"c{end.number}")
                end.net.soon(end.broken)

        self.timers.after(self.delay_seconds(self._target(end), end.net.name), arrive)

    @staticmethod
    def _target(sender: SimTransport) -> str:
        assert sender.other is not None
        return sender.other.net.name

    def _arrive(self, sender: SimTransport) -> None:
        receiver = sender.other
        assert receiver is not None
        if not sender.travelling:
            return  # a reset overtook it
        source, target = sender.net.name, receiver.net.name
        if (source, target) in self._cut or (receiver.net.is_dead and self.is_down(target)):
            self._held[sender] = self._held.get(sender, 0) + 1
            return
        segment = sender.travelling.popleft()
        if not receiver.is_open or receiver.net.is_dead:
            if segment is not None and sender.is_open and not self.is_cut(target, source):
                self.reset_later(sender)
            return
        what = "end" if segment is None else f"{len(segment)} bytes {segment[:48].hex()}"
        self.observe(target, "receive", f"c{sender.number} from {source} {what}")
        if receiver.is_open:  # the observer may have ended it
            receiver.receive(segment)
