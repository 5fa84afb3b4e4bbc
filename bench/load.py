"""A load generator that is lighter than any server: raw sockets and frames made in advance.

    python -m bench.load 127.0.0.1:9092 --case produce_1k_pipelined --seconds 5
    python -m bench.load --self-check          # how fast it is against a sink that does nothing

Every reply is counted and its error code checked. The topic must exist. A driver runs for a given
time after a short warm-up, and returns a Result. A request's latency is from when it was handed to
the socket until its reply was seen; with many in flight that is mostly how many there are.
"""

import argparse
import multiprocessing
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import repeat

from bench import frames
from quire.tools.locks.bench_core import percentile

RECEIVE_SIZE_BYTES = 1 << 18
WARM_UP_SECONDS = 0.3
TIMEOUT_SECONDS = 30


@dataclass
class Result:
    """What one driver did in `seconds`; `bytes` are those of record batches, `latencies` seconds of
    each request, where the driver takes them."""

    requests: int
    bytes: int
    seconds: float
    latencies: list[float] = field(default_factory=list)

    @property
    def requests_per_second(self) -> float:
        return self.requests / self.seconds

    @property
    def megabytes_per_second(self) -> float:
        return self.bytes / self.seconds / 1e6

    def percentile_ms(self, share: float) -> float:
        return percentile_ms(self.latencies, share)


def percentile_ms(latencies: Iterable[float], share: float) -> float:
    """The smallest of these, in seconds, that at least this share of them does not exceed; in
    ms."""
    return percentile(sorted(latencies), share) * 1000


class ConnectionLostError(RuntimeError):
    """The server closed a connection with requests under way."""


def connect(address: tuple[str, int]) -> socket.socket:
    sock = socket.create_connection(address, timeout=TIMEOUT_SECONDS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class Ring:
    """Frames of equal length for the partitions in turn, sent from one buffer with correlation ids
    patched in place. `take(n)` gives the next n, as one slice where they do not wrap."""

    def __init__(self, topic: str, partitions: range, batch: bytes, at_least: int) -> None:
        made = [frames.produce_frame(topic, partition, batch) for partition in partitions]
        count = -(-max(at_least, len(made)) // len(made)) * len(made)
        self.frame_size = len(made[0])
        self.count = count
        self.partition_count = len(made)
        self.buffer = bytearray(b"".join(made) * (count // len(made)))
        self.view = memoryview(self.buffer)
        self.next = 0
        self.correlation_id = 0
        self.attempts = 0

    def peek(self) -> memoryview:
        """The next frame, which stays the next."""
        at = self.next * self.frame_size
        return self.view[at : at + self.frame_size]

    def take(self, count: int) -> list[memoryview]:
        size, at = self.frame_size, self.next
        slices = []
        while count:
            part = min(count, self.count - at)
            for index in range(at, at + part):
                struct.pack_into(
                    ">i", self.buffer, index * size + frames.CORRELATION_OFFSET, self.correlation_id
                )
                self.correlation_id = (self.correlation_id + 1) & 0x7FFFFFFF
            slices.append(self.view[at * size : (at + part) * size])
            count -= part
            at = (at + part) % self.count
        self.next = at
        return slices


class Sent:
    """When requests of one connection were sent, which are answered in their order; by bursts, as
    the load must cost less than what it measures."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self._bursts: deque[tuple[float, int]] = deque()

    def add(self, now: float, count: int) -> None:
        if count:
            self._bursts.append((now, count))

    def answered(self, now: float, count: int) -> None:
        while count:
            at, waiting = self._bursts.popleft()
            if waiting > count:
                self._bursts.appendleft((at, waiting - count))
                waiting = count
            self.latencies.extend(repeat(now - at, waiting))
            count -= waiting


def produce_pipelined(
    address: tuple[str, int],
    topic: str,
    partitions: range,
    batch: bytes,
    in_flight: int,
    seconds: float,
) -> Result:
    """One connection with up to `in_flight` requests under way."""
    ring = Ring(topic, partitions, batch, in_flight)
    replies = frames.ProduceReplies(topic)
    with connect(address) as sock:
        until_accepted(sock, ring, replies)
        outstanding = 0
        sent = Sent()

        def run(duration: float) -> float:
            nonlocal outstanding
            start = now = time.perf_counter()
            while now - start < duration:
                count = in_flight - outstanding
                for part in ring.take(count):
                    sock.sendall(part)
                sent.add(now, count)
                count = receive(sock, replies)
                now = time.perf_counter()
                sent.answered(now, count)
                outstanding = in_flight - count
            return now - start

        run(WARM_UP_SECONDS)
        sent.latencies.clear()
        elapsed = run(seconds)
        latencies = sent.latencies
        while outstanding:
            outstanding -= receive(sock, replies)
    return Result(len(latencies), len(latencies) * len(batch), elapsed, latencies)


def produce_connections(
    address: tuple[str, int],
    topic: str,
    partitions: range,
    batch: bytes,
    connections: int,
    seconds: float,
) -> Result:
    """Many connections with one request under way on each."""
    ring = Ring(topic, partitions, batch, connections)
    poll = select.epoll()
    sockets = {}
    for _ in range(connections):
        sock = connect(address)
        sockets[sock.fileno()] = (sock, frames.ProduceReplies(topic))
        poll.register(sock, select.EPOLLIN)
    first = next(iter(sockets.values()))
    until_accepted(*first[:1], ring, first[1])
    latencies: list[float] = []
    sent = dict.fromkeys(sockets, time.perf_counter())
    for sock, _ in sockets.values():
        sock.sendall(ring.take(1)[0])

    def run(duration: float) -> float:
        start = now = time.perf_counter()
        while now - start < duration:
            events = poll.poll(TIMEOUT_SECONDS)
            if not events:
                raise RuntimeError(f"no reply in {TIMEOUT_SECONDS} s")
            for number, _ in events:
                sock, replies = sockets[number]
                if receive(sock, replies):
                    now = time.perf_counter()
                    latencies.append(now - sent[number])
                    sent[number] = now
                    sock.send(ring.take(1)[0])
            now = time.perf_counter()
        return now - start

    try:
        run(WARM_UP_SECONDS)
        latencies.clear()
        elapsed = run(seconds)
    finally:
        poll.close()
        for sock, _ in sockets.values():
            sock.close()
    return Result(len(latencies), len(latencies) * len(batch), elapsed, latencies)


def produce_latency(
    address: tuple[str, int], topic: str, partitions: range, batch: bytes, seconds: float
) -> Result:
    """One connection, one request under way: how long each takes."""
    ring = Ring(topic, partitions, batch, 1)
    replies = frames.ProduceReplies(topic)
    latencies = []
    with connect(address) as sock:
        until_accepted(sock, ring, replies)
        start = time.perf_counter()
        warm = start + WARM_UP_SECONDS
        while (sent := time.perf_counter()) < warm + seconds:
            sock.sendall(ring.take(1)[0])
            while not receive(sock, replies):
                pass
            if sent >= warm:
                latencies.append(time.perf_counter() - sent)
    return Result(len(latencies), len(latencies) * len(batch), seconds, latencies)


def fetch_all(
    address: tuple[str, int],
    topic: str,
    partitions: range,
    *,
    max_bytes: int = 50 << 20,
    partition_max_bytes: int = 1 << 20,
    isolation: int = 0,
    check: Callable[[int, memoryview, int], None] | None = None,
) -> Result:
    """Reads the partitions from their starts to the high watermarks they have at the first reply;
    one request under way. `requests` counts batches. `check` sees the whole batches of each
    partition of each reply, and the offset that was asked for."""
    offsets = dict.fromkeys(partitions, 0)
    ends: dict[int, int] = {}
    batches = size = 0
    with connect(address) as sock:
        fetcher = Fetcher(sock)
        start = time.perf_counter()
        while offsets:
            frame = frames.fetch_frame(topic, offsets, max_bytes, partition_max_bytes, isolation)
            for index, high_watermark, records in fetcher.fetch(frame):
                ends.setdefault(index, high_watermark)
                count, used, next_offset = frames.count_batches(records)
                batches += count
                size += used
                if check is not None:
                    check(index, records[:used], offsets[index])
                if count:
                    offsets[index] = next_offset
                if offsets[index] >= ends[index]:
                    del offsets[index]
        elapsed = time.perf_counter() - start
    return Result(batches, size, elapsed)


class Fetcher:
    """One Fetch at a time on one connection, into one buffer that grows."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = bytearray(1 << 20)

    def fetch(self, frame: bytes) -> Iterator[tuple[int, int, memoryview]]:
        """(partition, high watermark, records): views that the next call overwrites. RuntimeError
        for a partition's error."""
        self.sock.sendall(frame)
        (length,) = struct.unpack(">i", self.sock.recv(4, socket.MSG_WAITALL))
        if length > len(self.buffer):
            self.buffer = bytearray(length)
        view = memoryview(self.buffer)[:length]
        received = 0
        while received < length:
            received += self.sock.recv_into(view[received:], length - received, socket.MSG_WAITALL)
        for index, error, high_watermark, records in frames.parse_fetch(view):
            if error:
                raise RuntimeError(f"Fetch of partition {index} failed: {error}")
            yield index, high_watermark, records


def produce_count(
    address: tuple[str, int],
    topic: str,
    partitions: range,
    batch: bytes,
    count: int,
    in_flight: int,
) -> None:
    """Fills a topic with `count` batches at least."""
    ring = Ring(topic, partitions, batch, in_flight)
    replies = frames.ProduceReplies(topic)
    with connect(address) as sock:
        until_accepted(sock, ring, replies)
        outstanding = 0
        left = max(0, count - ring.partition_count)
        while left or outstanding:
            burst = min(left, in_flight - outstanding)
            for part in ring.take(burst):
                sock.sendall(part)
            left -= burst
            outstanding += burst
            outstanding -= receive(sock, replies)


def receive(sock: socket.socket, replies: frames.ProduceReplies) -> int:
    """Waits for some bytes; how many replies they complete. ConnectionLostError, ProduceError."""
    data = sock.recv(RECEIVE_SIZE_BYTES)
    if not data:
        raise ConnectionLostError("the server closed the connection")
    return replies.feed(data)


def until_accepted(sock: socket.socket, ring: Ring, replies: frames.ProduceReplies) -> None:
    """Sends until every partition accepted once: new leaders may take a moment. How often it sent
    is in `ring.attempts`."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    accepted = 0
    while accepted < ring.partition_count:
        ring.attempts += 1
        sock.sendall(ring.peek())
        try:
            while not receive(sock, replies):
                pass
            accepted += 1
            ring.take(1)
        except frames.ProduceError:
            if time.monotonic() > deadline:
                raise
            replies.rest = b""
            time.sleep(0.01)


def wait_all_ready(address: tuple[str, int], topic: str, partitions: range, batch: bytes) -> int:
    """Returns once each partition has acknowledged one batch; connects as often as it takes. Gives
    the number of batches sent, of which more than that may have been written."""
    ring = Ring(topic, partitions, batch, 1)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            with connect(address) as sock:
                until_accepted(sock, ring, frames.ProduceReplies(topic))
                return ring.attempts
        except (OSError, ConnectionLostError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def wait_first_ack(address: tuple[str, int], topic: str) -> None:
    """Returns once a record of partition 0 is acknowledged."""
    wait_all_ready(address, topic, range(1), KILOBYTE)


Case = Callable[[tuple[str, int], str, float], Result]

KILOBYTE = frames.batch_of(1024 - 100, 1024)
#: Name -> (partitions the topic needs, driver).
CASES: dict[str, tuple[int, Case]] = {
    "produce 1 kB, 50 in flight, 1 connection": (
        1,
        lambda at, topic, s: produce_pipelined(at, topic, range(1), KILOBYTE, 50, s),
    ),
    "produce 1 kB, 32 connections": (
        1,
        lambda at, topic, s: produce_connections(at, topic, range(1), KILOBYTE, 32, s),
    ),
    "produce 1 kB, 32 connections, 16 partitions": (
        16,
        lambda at, topic, s: produce_connections(at, topic, range(16), KILOBYTE, 32, s),
    ),
    "produce 64 kB, 5 in flight, 1 partition": (
        1,
        lambda at, topic, s: produce_pipelined(at, topic, range(1), frames.batch_of(65_536), 5, s),
    ),
    "produce 64 kB, 5 in flight, 16 partitions": (
        16,
        lambda at, topic, s: produce_pipelined(at, topic, range(16), frames.batch_of(65_536), 5, s),
    ),
    "produce 1 MB, 5 in flight": (
        1,
        lambda at, topic, s: produce_pipelined(
            at, topic, range(1), frames.batch_of(1_000_000), 5, s
        ),
    ),
    "produce 1 kB, 1 in flight": (
        1,
        lambda at, topic, s: produce_latency(at, topic, range(1), KILOBYTE, s),
    ),
}


def _sink(listener: socket.socket, frame_size: int, reply: bytes) -> None:
    """Answers every `frame_size` bytes with `reply`, and looks at nothing."""
    while True:
        sock, _ = listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        rest = 0
        while data := sock.recv(1 << 20):
            whole, rest = divmod(rest + len(data), frame_size)
            if whole:
                sock.sendall(reply * whole)
        sock.close()


def self_check(seconds: float = 1.0) -> Result:
    """The generator's own limit: one connection, 1 kB, 50 in flight, against the sink."""
    topic = "sink"
    replies = frames.ProduceReplies(topic)
    reply = bytearray(replies.size)
    reply[:4] = replies.prefix
    frame_size = len(frames.produce_frame(topic, 0, KILOBYTE))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        context = multiprocessing.get_context("fork")
        sink = context.Process(target=_sink, args=(listener, frame_size, bytes(reply)), daemon=True)
        sink.start()
        try:
            address = listener.getsockname()[:2]
            return produce_pipelined(address, topic, range(1), KILOBYTE, 50, seconds)
        finally:
            sink.terminate()
            sink.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("address", nargs="?", help="HOST:PORT")
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--topic", default="bench")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--self-check", action="store_true")
    options = parser.parse_args()
    if options.self_check:
        result = self_check(options.seconds)
        print(f"sink: {result.requests_per_second:,.0f} requests/s")
        return
    if options.address is None:
        parser.error("HOST:PORT is missing")
    host, _, port = options.address.rpartition(":")
    for name in options.case or CASES:
        result = CASES[name][1]((host, int(port)), options.topic, options.seconds)
        line = (
            f"{name}: {result.requests_per_second:,.0f}/s {result.megabytes_per_second:,.1f} MB/s"
        )
        if result.latencies:
            line += (
                f" p50 {result.percentile_ms(0.5):.3f} ms p99 {result.percentile_ms(0.99):.3f} ms"
            )
        print(line, flush=True)


if __name__ == "__main__":
    main()
