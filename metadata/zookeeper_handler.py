"""The kazoo side of the ZooKeeper store: its one thread, and the way from it to trio's loop.

kazoo is told by a «handler» (kazoo.interfaces.IHandler) how to make threads, sockets and results.
This one lets it run a single thread, the connection's: replies, watch events and changes of state
are put into an `Inbox` from there, and the loop takes all that is in it at one wake-up. kazoo's own
handler has three threads, and a lock with a condition for each request.

It also mends what kazoo leaves to its handler:
- The loop must never block. kazoo wakes its thread by a byte in a socket pair for each request,
  which blocks the caller when the buffer is full (278 requests); an eventfd counts instead.
- kazoo reads a reply in two parts, and polls before each: `_Buffered` reads what there is at once.
- What was read or decrypted already is not seen by poll; it is looked for here.
- A connection attempt that fails closes its socket.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

logger = logging.getLogger(__name__)

_READ_SIZE_BYTES = 65_536


class Inbox:
    """Calls on their way from kazoo's thread to the loop, in order; one wake-up for a burst.

    Bounded by the requests and watches that were asked for: nothing comes unasked but changes of
    the connection's state.
    """

    __slots__ = ("_calls", "_scheduled", "_token", "wakeup_count")

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self._token = token
        self._calls: deque[Callable[[], object]] = deque()
        self._scheduled = False
        self.wakeup_count = 0

    def put(self, call: Callable[[], object]) -> None:
        """From any thread."""
        self._calls.append(call)
        # Either we see False, or the drain that is to come sees the call: it clears first.
        if not self._scheduled:
            self._scheduled = True
            try:
                self._token.run_sync_soon(self._drain)
            except trio.RunFinishedError:
                logger.debug("the loop has ended, %r is dropped", call)

    def _drain(self) -> None:
        self._scheduled = False
        self.wakeup_count += 1
        calls = self._calls
        # What arrives meanwhile has scheduled a drain of its own: the loop gets its turn.
        for _ in range(len(calls)):
            calls.popleft()()


class Result:
    """kazoo.interfaces.IAsyncResult without waiting: callbacks run on the thread that sets it."""

    __slots__ = ("_callbacks", "_lock", "_ready", "exception", "value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready = False
        self._callbacks: list[Callable[[Result], object]] = []
        self.value: Any = None
        self.exception: Exception | None = None

    def ready(self) -> bool:
        return self._ready

    def successful(self) -> bool:
        return self._ready and self.exception is None

    def set(self, value: object = None) -> None:
        self._settle(value, None)

    def set_exception(self, exception: Exception) -> None:
        self._settle(None, exception)

    def _settle(self, value: object, exception: Exception | None) -> None:
        with self._lock:
            # kazoo may fail a request that it has answered, when the connection ends between.
            if self._ready:
                return
            self.value, self.exception, self._ready = value, exception, True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def rawlink(self, callback: Callable[[Result], object]) -> None:
        with self._lock:
            if not self._ready:
                self._callbacks.append(callback)
                return
        callback(self)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:  # noqa: ANN401
        """kazoo's completions call it on results that are ready; nobody may wait here."""
        assert self._ready, "waiting would block the thread"
        if self.exception is not None:
            raise self.exception
        return self.value


class _Signal:
    """One end of what kazoo believes to be a socket pair: an eventfd that counts requests."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def send(self, data: bytes) -> int:
        os.eventfd_write(self._fd, len(data))
        return len(data)

    def recv(self, size_bytes: int) -> bytes:
        """One request's byte; BlockingIOError if there is none, which kazoo expects."""
        os.eventfd_read(self._fd)
        return b"\0"

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Buffered:
    """The part of a socket that kazoo uses. It does not poll while `pending` tells of bytes."""

    __slots__ = ("_buffer", "_socket", "_start", "is_silent")

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        #: Nothing was received yet: the answer to the session's request is still to come.
        self.is_silent = True
        self._buffer = b""
        self._start = 0

    def pending(self) -> int:
        count = len(self._buffer) - self._start
        if count == 0 and isinstance(self._socket, ssl.SSLSocket):
            return self._socket.pending()
        return count

    def recv(self, size_bytes: int) -> bytes:
        self.is_silent = False
        if self._start == len(self._buffer):
            if size_bytes >= _READ_SIZE_BYTES:
                return self._socket.recv(size_bytes)
            self._buffer, self._start = self._socket.recv(_READ_SIZE_BYTES), 0
        part = self._buffer[self._start : self._start + size_bytes]
        self._start += len(part)
        return part

    def send(self, data: bytes) -> int:
        return self._socket.send(data)

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:
        self._socket.setblocking(flag)

    def shutdown(self, how: int) -> None:
        self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()


class HandlerTimeoutError(Exception):
    """What kazoo raises and catches when a peer does not answer in time."""


class Handler:
    """kazoo.interfaces.IHandler. `tls` makes every connection a TLS one; `ended(error)` is called
    on kazoo's thread when that ends, whatever the reason."""

    name = "quire"
    timeout_exception = HandlerTimeoutError
    sleep_func = staticmethod(time.sleep)
    running = True

    def __init__(
        self,
        inbox: Inbox,
        tls: ssl.SSLContext | None,
        ended: Callable[[Exception | None], None],
        connect_timeout_s: float,
    ) -> None:
        self._inbox = inbox
        self._tls = tls
        self._ended = ended
        self._connect_timeout_s = connect_timeout_s

    def start(self) -> None:
        """There is nothing to start: no thread but the connection's."""

    def stop(self) -> None:
        """As `start`."""

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], _: object, timeout: float | None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """select.select for any descriptor number, and for what is in a buffer. A new connection is
        left if nothing comes: kazoo would wait for the whole session's time if there is only one
        server, and one that is just starting can forget whom it has accepted."""
        pending = []
        for one in readers:
            if isinstance(one, _Buffered):
                if one.pending():
                    pending.append(one)
                if one.is_silent and timeout is not None:
                    timeout = min(timeout, self._connect_timeout_s)
        poller = select.poll()
        for one in readers:
            poller.register(one, select.POLLIN)
        for one in writers:
            poller.register(one, select.POLLOUT)
        timeout_ms = None if timeout is None else int(timeout * 1000) + 1
        ready = {fd for fd, _ in poller.poll(0 if pending else timeout_ms)}
        readable = [one for one in readers if one.fileno() in ready or one in pending]
        return readable, [one for one in writers if one.fileno() in ready], []

    def create_connection(
        self,
        address: tuple[str, int],
        hostname: str | None = None,
        **_: object,
    ) -> _Buffered:
        """OSError, also for TLS. The timeout is for each of connect and handshake."""
        connection = socket.create_connection(address, self._connect_timeout_s)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_hostname=hostname)
        except BaseException:
            connection.close()
            raise
        return _Buffered(connection)

    def create_socket_pair(self) -> tuple[_Signal, _Signal]:
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
        # Each end closes its own descriptor.
        return _Signal(fd), _Signal(os.dup(fd))

    def event_object(self) -> threading.Event:
        return threading.Event()

    def lock_object(self) -> threading.Lock:
        return threading.Lock()

    def async_result(self) -> Result:
        return Result()

    def spawn(self, function: Callable[..., object], *args: object) -> threading.Thread:
        def run() -> None:
            error: Exception | None = None
            try:
                function(*args)
            # Whatever ends kazoo's thread, the session's owner is told, and begins anew.
            except Exception as raised:
                error = raised
            self._ended(error)

        thread = threading.Thread(target=run, name="zookeeper", daemon=True)
        thread.start()
        return thread

    def dispatch_callback(self, callback: Any) -> None:  # noqa: ANN401
        """A watch's event. `callback` has the function, and the event as its only argument."""
        self._inbox.put(partial(callback.func, *callback.args))
