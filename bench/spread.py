"""Raw load on all brokers of a cluster at once: each partition's requests go to its leader.

`produce` drives all connections from one process; `consume` has a process for each consumer.
"""

import multiprocessing
import select
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench import frames, load

Led = Mapping[tuple[str, int], list[int]]


@dataclass(slots=True)
class Stream:
    """A connection, and what it sends: its broker's partitions in turn."""

    sock: socket.socket
    ring: load.Ring
    replies: frames.ProduceReplies

    def send(self, count: int) -> None:
        for part in self.ring.take(count):
            self.sock.sendall(part)


def produce(
    led: Led, topic: str, batch: bytes, connections: int, in_flight: int, seconds: float
) -> load.Result:
    """`connections` to each broker, with `in_flight` requests under way on each."""
    streams: dict[int, Stream] = {}
    poll = select.epoll()
    try:
        for address, partitions in led.items():
            ring = load.Ring(topic, partitions, batch, in_flight)
            for number in range(connections):
                sock = load.connect(address)
                stream = Stream(sock, ring, frames.ProduceReplies(topic))
                streams[sock.fileno()] = stream
                poll.register(sock, select.EPOLLIN)
                if not number:
                    load.until_accepted(sock, ring, stream.replies)
        for stream in streams.values():
            stream.send(in_flight)
        _run(poll, streams, load.WARM_UP_SECONDS)
        count, elapsed = _run(poll, streams, seconds)
        for stream in streams.values():
            left = in_flight
            while left:
                left -= load.receive(stream.sock, stream.replies)
        return load.Result(count, count * len(batch), elapsed)
    finally:
        poll.close()
        for stream in streams.values():
            stream.sock.close()


def _run(poll: select.epoll, streams: dict[int, Stream], seconds: float) -> tuple[int, float]:
    count = 0
    start = now = time.perf_counter()
    while now - start < seconds:
        events = poll.poll(load.TIMEOUT_SECONDS)
        if not events:
            raise RuntimeError(f"no reply in {load.TIMEOUT_SECONDS} s")
        for number, _ in events:
            stream = streams[number]
            if done := load.receive(stream.sock, stream.replies):
                count += done
                stream.send(done)
        now = time.perf_counter()
    return count, now - start


def consume(
    parts: Sequence[tuple[tuple[str, int], list[int]]], topic: str, seconds: float
) -> load.Result:
    """A consumer for each of these reads the partitions of that broker from their starts, again and
    again."""
    context = multiprocessing.get_context("fork")
    results, barrier = context.Queue(), context.Barrier(len(parts))
    workers = [
        context.Process(
            target=_consumer, args=(address, topic, partitions, seconds, barrier, results)
        )
        for address, partitions in parts
    ]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=seconds + load.TIMEOUT_SECONDS) for _ in workers]
    for worker in workers:
        worker.join()
    for each in found:
        if isinstance(each, str):
            raise RuntimeError(each)
    rate = sum(size / elapsed for _, size, elapsed in found)
    total = sum(size for _, size, _ in found)
    return load.Result(sum(batches for batches, _, _ in found), total, total / rate)


def _consumer(address, topic, partitions, seconds, barrier, results) -> None:
    batches = size = 0
    try:
        barrier.wait(load.TIMEOUT_SECONDS)
        start = now = time.perf_counter()
        while now - start < seconds:
            read = load.fetch_all(address, topic, partitions)
            batches, size = batches + read.requests, size + read.bytes
            now = time.perf_counter()
        results.put((batches, size, now - start))
    except (OSError, RuntimeError) as error:
        results.put(f"{address[1]}: {error}")
