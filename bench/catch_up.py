"""Many consumers that catch up at once: what they are sent in a second, and what waits meanwhile.

    python -m bench.catch_up [--consumers 100] [--fetches 5] [--partitions 4] [--rounds 3]
                             [--directory DIR]

`quire standalone` of this tree; each consumer has a connection, one Fetch under way and 1 MiB for
each partition, and reads from the starts, which are in memory. One process with one thread reads
them all as fast as it can. «short»: answers of less than half of the longest. Meanwhile another
connection asks for ApiVersions, again and again: its times are how long others wait. CPU and peak
memory are the server's. To compare trees, run it in each, in turn.
"""

import argparse
import selectors
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from pathlib import Path

from bench import clients, frames, load
from bench.servers import Quire

TOPIC = "catch-up"
BATCH_BYTES = 64 << 10
BATCHES = 64
IN_FLIGHT = 20
RECEIVE_BYTES = 1 << 20


class Consumer:
    """Counts the bytes of its answers."""

    def __init__(self, server: Quire, frame: bytes, fetches: int) -> None:
        self.sock = load.connect(server.address)
        self.sizes: list[int] = []
        self._frame = frame
        self._left = fetches
        self._head = b""
        self._missing = 0

    def ask(self) -> bool:
        """Whether there is more to ask for."""
        if self._left == 0:
            return False
        self._left -= 1
        self.sock.sendall(self._frame)
        return True

    def read(self, buffer: bytearray) -> bool:
        """Some of an answer; whether the last one is whole."""
        if not self._missing:
            self._head += self.sock.recv(4 - len(self._head))
            if len(self._head) < 4:
                return False
            (self._missing,) = struct.unpack(">i", self._head)
            self._head = b""
            self.sizes.append(self._missing)
        count = self.sock.recv_into(buffer, min(self._missing, len(buffer)))
        if not count:
            raise load.ConnectionLostError("while an answer was read")
        self._missing -= count
        return not self._missing and not self.ask()


def catch_up(server: Quire, options: argparse.Namespace) -> tuple[list[int], float]:
    """Sizes of the answers, and seconds."""
    offsets = dict.fromkeys(range(options.partitions), 0)
    frame = frames.fetch_frame(TOPIC, offsets, 50 << 20, 1 << 20)
    buffer = bytearray(RECEIVE_BYTES)
    consumers = [Consumer(server, frame, options.fetches) for _ in range(options.consumers)]
    with selectors.DefaultSelector() as selector:
        for consumer in consumers:
            selector.register(consumer.sock, selectors.EVENT_READ, consumer)
        start = time.perf_counter()
        for consumer in consumers:
            consumer.ask()
        while selector.get_map():
            for key, _ in selector.select():
                if key.data.read(buffer):
                    selector.unregister(key.fileobj)
        elapsed = time.perf_counter() - start
    for consumer in consumers:
        consumer.sock.close()
    return [size for consumer in consumers for size in consumer.sizes], elapsed


def ask_all_the_while(address: tuple[str, int], pipe: Connection) -> None:
    """Until something comes from the pipe; then the seconds of each go there."""
    frame = frames.request(18, 0, b"")
    seconds: list[float] = []
    with load.connect(address) as sock:
        while not pipe.poll():
            start = time.perf_counter()
            sock.sendall(frame)
            (length,) = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))
            sock.recv(length, socket.MSG_WAITALL)
            seconds.append(time.perf_counter() - start)
            time.sleep(0.002)
    pipe.send(seconds)


@contextmanager
def asking(server: Quire) -> Iterator[list[float]]:
    """A process of its own asks meanwhile; afterwards the list has its seconds."""
    waits: list[float] = []
    ours, its = Pipe()
    process = Process(target=ask_all_the_while, args=(server.address, its))
    process.start()
    yield waits
    ours.send(None)
    waits += ours.recv()
    process.join()


def measure(server: Quire, options: argparse.Namespace) -> None:
    clients.create_topic(server, TOPIC, options.partitions)
    batch = frames.batch_of(BATCH_BYTES)
    count = BATCHES * options.partitions
    load.produce_count(server.address, TOPIC, range(options.partitions), batch, count, IN_FLIGHT)
    for _ in range(options.rounds):
        server.reset_peak()
        before = server.cpu_seconds()
        with asking(server) as waits:
            sizes, elapsed = catch_up(server, options)
        total, longest = sum(sizes), max(sizes)
        short = sum(size < longest // 2 for size in sizes)
        print(
            f"{total / 1e6:6,.0f} MB in {elapsed:.2f} s: {total / 1e6 / elapsed:5,.0f} MB/s,"
            f" {short} of {len(sizes)} short;"
            f" {(server.cpu_seconds() - before) / total * 1e9:.2f} s/GB,"
            f" peak {server.memory_mb('VmHWM'):,.0f} MB;"
            f" others wait {load.percentile_ms(waits, 0.5):.1f} ms,"
            f" p99 {load.percentile_ms(waits, 0.99):.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--consumers", type=int, default=100)
    parser.add_argument("--fetches", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        server = Quire(Path(directory) / "server")
        server.start()
        try:
            measure(server, options)
        finally:
            server.discard()


if __name__ == "__main__":
    main()
