"""A TCP proxy in front of ZooKeeper that loses chosen requests or replies, and cuts the connection.

It reads the frames of both directions (length, then xid and type in requests, xid in replies), so
that it can say exactly which one is lost: «after» lets the server carry the request out and keeps
its reply; «before» keeps the request itself.
"""

import contextlib
import socket
import struct
import threading

from harness.servers import HOST

CREATE, DELETE, GET_DATA, SET_DATA, MULTI = 1, 2, 4, 5, 14


class _Connection:
    def __init__(self, proxy: "Proxy", client: socket.socket, server: socket.socket) -> None:
        self.proxy = proxy
        self.client = client
        self.server = server
        self.lost_xid: int | None = None

    def cut(self) -> None:
        for one in (self.client, self.server):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def pump(self, source, sink, pass_on) -> None:
        is_first = True
        with contextlib.suppress(OSError, ConnectionError):
            while True:
                frame = _read_frame(source)
                if not is_first and not pass_on(frame):
                    break
                is_first = False
                sink.sendall(frame)
        self.cut()

    def request(self, frame: bytes) -> bool:
        xid, kind = struct.unpack_from(">ii", frame, 4)
        lost = self.proxy.take(kind)
        if lost == "after":
            self.lost_xid = xid
        return lost != "before"

    def reply(self, frame: bytes) -> bool:
        (xid,) = struct.unpack_from(">i", frame, 4)
        if xid > 0 and self.proxy.garble.is_set():
            self.proxy.garble.clear()
            self.client.sendall(frame[:4] + struct.pack(">i", xid + 1000) + frame[8:])
            return False
        if xid != self.lost_xid:
            return True
        self.proxy.done.set()
        return False


def _read_frame(source: socket.socket) -> bytes:
    """With its length in front. ConnectionError at the end."""
    frame = _read(source, 4)
    return frame + _read(source, int.from_bytes(frame, "big"))


def _read(source: socket.socket, size_bytes: int) -> bytes:
    data = b""
    while len(data) < size_bytes:
        part = source.recv(size_bytes - len(data))
        if not part:
            raise ConnectionError("closed")
        data += part
    return data


class Proxy:
    """`lose(kind, when)` arms it for one request. With `hold` nobody is let in again until
    `release()`. `done` is set when it has happened: then the server has carried it out, or it will
    never see it. `garble` spoils the number of one reply."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.done = threading.Event()
        self.garble = threading.Event()
        self._open = threading.Event()
        self._open.set()
        self._lock = threading.Lock()
        self._armed: tuple[int, str, bool, int] | None = None
        self._connections: list[_Connection] = []
        self._listener = socket.create_server((HOST, 0))
        self.hosts = f"{HOST}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, kind: int, when: str, *, hold: bool = False, times: int = 1) -> None:
        self.done.clear()
        self._armed = (kind, when, hold, times)

    def take(self, kind: int) -> str:
        with self._lock:
            if self._armed is None or self._armed[0] != kind:
                return ""
            _, when, hold, times = self._armed
            self._armed = (kind, when, hold, times - 1) if times > 1 else None
            if hold:
                self._open.clear()
            if when == "before":
                self.done.set()
            return when

    def cut(self, *, hold: bool = False) -> None:
        if hold:
            self._open.clear()
        # A copy: a connection that ends takes itself out, and the next one must not be passed over.
        for one in list(self._connections):
            one.cut()

    def release(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._open.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._open.wait()
        with (
            client,
            contextlib.suppress(OSError),
            socket.create_connection((HOST, self.target)) as server,
        ):
            connection = _Connection(self, client, server)
            self._connections.append(connection)
            back = threading.Thread(
                target=connection.pump, args=[server, client, connection.reply], daemon=True
            )
            back.start()
            connection.pump(client, server, connection.request)
            back.join()
            self._connections.remove(connection)
