"""Many connections: what one costs while it rests, and requests of 1 kB over all of them.

    python -m bench.connections [--counts 100,1000,10000] [--servers kafka,quire] [--rounds 1]
                                [--seconds 5] [--rate 0.5] [--directory DIR]

For each count a new server with one partition. Each connection sends one request first; then they
rest, for `--seconds`; then each sends `--rate` requests a second, the connections in turn, and a
latency counts from the moment the request was due. «All at once»: other connections, with one
request under way on each, as in bench.load. `--directory`: for the data.
"""

import argparse
import contextlib
import select
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench import clients, frames, load, rounds
from bench.servers import Kafka, KafkaFlushing, Quire, Server

SERVERS = {"kafka": Kafka, "flush": KafkaFlushing, "quire": Quire}
TOPIC = "connections"
PARTITION = range(1)
TOGETHER = 32
US = 1e6


@contextlib.contextmanager
def opened(server: Server, count: int) -> Iterator[list[socket.socket]]:
    """Connections on each of which one request was answered; some are made at a time, as a server
    accepts so many that wait (Kafka's socket.listen.backlog.size is 50)."""
    ring = load.Ring(TOPIC, PARTITION, load.KILOBYTE, 1)
    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = []
        while len(sockets) < count:
            some = range(min(TOGETHER, count - len(sockets)))
            made = [stack.enter_context(load.connect(server.address)) for _ in some]
            for sock in made:
                sock.sendall(ring.take(1)[0])
            for sock in made:
                replies = frames.ProduceReplies(TOPIC)
                while not load.receive(sock, replies):
                    pass
            sockets += made
        yield sockets


def resting_and_paced(
    server: Server, count: int, seconds: float, rate: float
) -> Iterator[rounds.Figure]:
    what = f"{count:,} connections"
    before, start = server.memory_mb(), time.monotonic()
    with opened(server, count) as sockets:
        yield f"{what}: opened, one request on each", "s", time.monotonic() - start
        yield f"{what}: memory of one", "kB", (server.memory_mb() - before) * 1000 / count
        cpu = server.cpu_seconds()
        time.sleep(seconds)
        yield f"{what} rest: CPU", "ms/s", (server.cpu_seconds() - cpu) / seconds * 1000
        cpu = server.cpu_seconds()
        latencies = pace(sockets, seconds, rate)
        spent = server.cpu_seconds() - cpu
    what += f", {rate * count:,.0f} requests/s"
    for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        yield f"{what}: {name}", "ms", load.percentile_ms(latencies, share)
    yield f"{what}: CPU", "us/request", spent * US / max(1, len(latencies))
    time.sleep(1)  # they are closed


def all_at_once(server: Server, count: int, seconds: float) -> Iterator[rounds.Figure]:
    what = f"{count:,} connections, all at once"
    cpu = server.cpu_seconds()
    result = load.produce_connections(
        server.address, TOPIC, PARTITION, load.KILOBYTE, count, seconds
    )
    yield what, "requests/s", result.requests_per_second
    yield f"{what}: p50", "ms", result.percentile_ms(0.5)
    yield f"{what}: p99", "ms", result.percentile_ms(0.99)
    # With the connecting, and the requests of the warm-up.
    spent = server.cpu_seconds() - cpu
    yield f"{what}: CPU", "us/request", spent * US / max(1, result.requests)


def pace(sockets: list[socket.socket], seconds: float, rate: float) -> list[float]:
    """Seconds from when each request was due until its answer."""
    ring = load.Ring(TOPIC, PARTITION, load.KILOBYTE, 1)
    readers = {sock.fileno(): (sock, frames.ProduceReplies(TOPIC)) for sock in sockets}
    due_at: dict[int, float] = {}
    latencies: list[float] = []
    step = 1 / (rate * len(sockets))
    total = int(seconds / step)
    sent, start = 0, time.perf_counter()
    poll = select.epoll()
    try:
        for sock in sockets:
            poll.register(sock, select.EPOLLIN)
        while len(latencies) < total:
            now = time.perf_counter()
            while sent < total and start + sent * step <= now:
                sock = sockets[sent % len(sockets)]
                if sock.fileno() in due_at:
                    raise SystemExit(f"an answer took more than {1 / rate:g} s: lower --rate")
                due_at[sock.fileno()] = start + sent * step
                sock.sendall(ring.take(1)[0])
                sent += 1
            wait = start + sent * step - now if sent < total else load.TIMEOUT_SECONDS
            events = poll.poll(max(0.0, wait))
            if not events and sent == total:
                raise RuntimeError(f"no reply in {load.TIMEOUT_SECONDS} s")
            for number, _ in events:
                sock, replies = readers[number]
                if load.receive(sock, replies):
                    latencies.append(time.perf_counter() - due_at.pop(number))
    finally:
        poll.close()
    return latencies


def measure(server: Server, count: int, options: argparse.Namespace) -> Iterator[rounds.Figure]:
    clients.create_topic(server, TOPIC, 1)
    load.produce_count(server.address, TOPIC, PARTITION, load.KILOBYTE, options.warm_up, 20)
    yield from resting_and_paced(server, count, options.seconds, options.rate)
    yield from all_at_once(server, count, options.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counts", default="100,1000,10000")
    parser.add_argument("--servers", default="kafka,quire", help="of kafka, flush, quire")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rate", type=float, default=0.5, help="requests a second of each")
    parser.add_argument("--warm-up", type=int, default=20_000, help="requests before")
    parser.add_argument("--directory", default=None)
    options = parser.parse_args()
    kinds = [SERVERS[name] for name in options.servers.split(",")]
    table = rounds.Table([kind.name for kind in kinds], mine="quire")
    for _ in range(options.rounds):
        for count in map(int, options.counts.split(",")):
            for kind in kinds:
                with tempfile.TemporaryDirectory(dir=options.directory) as directory:
                    server = kind(Path(directory) / "server")
                    server.start()
                    try:
                        for figure in measure(server, count, options):
                            table.add(kind.name, figure)
                    finally:
                        server.discard()
    print(table.markdown())


if __name__ == "__main__":
    main()
