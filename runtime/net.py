"""Net: connections as sans-IO objects, fed by a driver.

A server gives `Net.listen` a factory; the driver makes one `Connection` (the protocol's side) for
each socket, hands it bytes and takes bytes from it. There is a driver for plain sockets (one task
over one epoll, all that is ready in one burst, see runtime.turn), one for the simulation, and a
layer over either for TLS (runtime/tls.py); no connection knows which one feeds it.

Reading: the connection says where the next bytes go (`receive_buffer`), so that a large frame lands
in memory of its own and is never copied. Writing: buffers are queued by reference and sent with one
`sendmsg` at the end of the turn; a buffer must not change until it was sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import trio

    from wire.buffers import Buffers


class Transport(Protocol):
    """The driver's side of one connection. Plain `def`s, on the loop's thread."""

    @property
    def peer(self) -> str:
        """host:port of the other side, for logs."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes queued and not yet taken by the operating system."""

    @property
    def is_blocked(self) -> bool:
        """Whether there are some because the peer does not take them. Others wait for their turn
        here, and are sent if nothing happens."""

    def write(self, buffers: Buffers) -> None:
        """Queues buffers, in order, by reference. Ignored once closed. May be called by the
        factory: what it writes goes first."""

    def attach(self, connection: Connection) -> None:
        """From now on `connection` is fed, instead of the one before (runtime/tls.py)."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None:
        """Closes after what is queued was sent, or at once if the peer does not take it. The
        connection's `closed` follows. Calling it again changes nothing."""


class Connection(Protocol):
    """The protocol's side of one connection. Plain `def`s: nothing here may block or await."""

    def receive_buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""

    def received(self, count: int) -> None:
        """The first `count` (> 0) bytes of the buffer were filled. May write and close; raises
        nothing that is the peer's fault."""

    def drained(self) -> None:
        """All that was written has been taken by the operating system."""

    def closed(self) -> None:
        """The last call: either side closed, or the connection broke."""


ConnectionFactory = Callable[[Transport], Connection]


class Listener(Protocol):
    @property
    def address(self) -> tuple[str, int]:
        """Host and port that are really bound (port 0 was asked for)."""

    def pause_accepting(self) -> None:
        """New connections wait in the backlog, until `resume_accepting`; then the system refuses
        them. May be called by the factory."""

    def resume_accepting(self) -> None: ...
    def close(self) -> None:
        """Accepts no more; connections that are open stay."""


class Net(Protocol):
    @property
    def place(self) -> str:
        """What this machine's network is known by: of two sockets that listen at one address in one
        place, the first was closed before the second was bound. Empty if it is not known."""

    async def run(self, *, task_status: trio.TaskStatus[None] = ...) -> None:
        """Keeps listeners and connections until cancelled, then closes them all. Start it before
        `listen` and `connect` are called; one per Net. (Who feeds them is the driver's affair: the
        Poller for sockets, the world's loop in a simulation.)"""

    def listen(self, host: str, port: int, factory: ConnectionFactory) -> Listener:
        """Binds and listens at once. OSError if the address cannot be bound.

        A host that is an absolute path («/data/metadata.sock») is a Unix socket's, here and in
        `connect`, and the port is 0. What lies at that path is replaced; only this user may
        connect."""

    async def connect(self, host: str, port: int, factory: ConnectionFactory) -> Connection:
        """Opens one connection; OSError if refused or unreachable."""
