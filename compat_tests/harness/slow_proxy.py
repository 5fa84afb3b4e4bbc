"""A TCP proxy that is a long line: what goes through comes later, each way, in order. It can reset
all that is connected, and needs no privileges.
"""

import contextlib
import queue
import random
import socket
import struct
import threading
import time

from harness.servers import HOST

PART_BYTES = 65536
#: Parts under way, at most, each way; then the sender waits.
WAITING_MAX = 1000


class SlowProxy:
    """In front of `target` (host, port); `address` is what clients connect to. `delay_ms` and
    `jitter_ms` may be changed at any time, for what comes from then on."""

    def __init__(
        self, target: tuple[str, int], port: int = 0, *, answers_only: bool = False
    ) -> None:
        """`answers_only`: what clients send goes through at once."""
        self.target = target
        self.answers_only = answers_only
        self.delay_ms = self.jitter_ms = 0.0
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server((HOST, port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def reset(self) -> int:
        """Every connection ends with a reset; how many did."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            for one in pair:
                _reset(one)
        return len(pairs)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self.target)
                except OSError:
                    _reset(client)
                    continue
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._pairs.add((client, server))
                self._start(client, server, is_late=not self.answers_only)
                self._start(server, client, is_late=True)

    def _start(self, source: socket.socket, sink: socket.socket, *, is_late: bool) -> None:
        line: queue.Queue[tuple[float, bytes]] = queue.Queue(WAITING_MAX)
        threading.Thread(target=self._take, args=[source, line, is_late], daemon=True).start()
        threading.Thread(target=self._give, args=[line, source, sink], daemon=True).start()

    def _take(self, source: socket.socket, line: queue.Queue, is_late: bool) -> None:
        part = b"-"
        while part:
            try:
                part = source.recv(PART_BYTES)
            except OSError:
                part = b""
            late_ms = is_late * (self.delay_ms + random.uniform(0, self.jitter_ms))
            line.put((time.monotonic() + late_ms / 1000, part))

    def _give(self, line: queue.Queue, source: socket.socket, sink: socket.socket) -> None:
        while True:
            due, part = line.get()
            time.sleep(max(due - time.monotonic(), 0))
            try:
                if not part:
                    break
                sink.sendall(part)
            except OSError:
                break
        # One way has ended: the other has nothing more to say either.
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._pairs -= {(source, sink), (sink, source)}
        while part:
            _, part = line.get()
        # Both of its threads are done with it.
        source.close()


def _reset(one: socket.socket) -> None:
    """RST, not FIN. The threads that wait for it find out."""
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.shutdown(socket.SHUT_RD)
        one.close()
