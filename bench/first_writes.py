"""What partitions cost that are many: made, written first, there after a restart, read first.

    python -m bench.first_writes [--partitions 10,100,1000,10000] [--servers kafka,quire] [--kill]

One topic of so many partitions on a server of its own, with its data in a new directory. Of each
step the seconds until its last partition was answered, and the CPU seconds of the server's
processes. Between the steps, resident memory.

    create       CreateTopics, until every partition has answered a ListOffsets
    first write  one record of 100 B to each: requests for CHUNK partitions, all in flight at once
    restart      from the command to a connection; the server was stopped before, or killed
    ready        from there until every partition has answered a ListOffsets
    first read   each from offset 0, until every record came
    next write   as the first write

Raw sockets and frames of bench.frames: a client library's own work for 10,000 partitions is more
than a server's.
"""

import argparse
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench import clients, frames, load, rounds
from bench.rounds import Figure
from bench.servers import SERVERS, Server

#: Partitions in a request.
CHUNK = 250
TOPIC = "growth"
BATCH = frames.record_batch([bytes(100)])
TIMEOUT_SECONDS = 240.0
#: What a partition may say that is not there yet: as bench.probe, and OFFSET_NOT_AVAILABLE.
NOT_YET = {3, 5, 6, 19, 20, 78}
PAUSE_SECONDS = 0.02


def list_offsets_frame(topic: str, partitions: list[int]) -> bytes:
    """ListOffsets v6 of the latest offsets."""
    each = b"".join(struct.pack(">iiq", number, -1, -1) + b"\0" for number in partitions)
    topic_data = frames.compact(topic.encode()) + frames.uvarint(len(partitions) + 1) + each
    head = struct.pack(">ib", -1, 0)
    return frames.request(2, 6, head + frames.uvarint(2) + topic_data + b"\0\0")


def parse_list_offsets(data: memoryview) -> list[tuple[int, int]]:
    """(partition, error) of a ListOffsets v6 response for one topic, without its size."""
    at = frames.skip_tags(data, 4) + 4
    _, at = frames.read_uvarint(data, at)
    size, at = frames.read_uvarint(data, at)
    count, at = frames.read_uvarint(data, at + size - 1)
    found = []
    for _ in range(count - 1):
        found.append(struct.unpack_from(">ih", data, at))
        at = frames.skip_tags(data, at + 4 + 2 + 8 + 8 + 4)
    return found


def reads(data: memoryview) -> list[tuple[int, int]]:
    """(partition, error) of a Fetch, of those that gave their record or an error."""
    return [
        (index, error) for index, error, _, records in frames.parse_fetch(data) if error or records
    ]


def replies(sock, count: int) -> Iterator[memoryview]:
    data = bytearray()
    while count:
        received = sock.recv(1 << 20)
        if not received:
            raise load.ConnectionLostError("a server that should stay closed a connection")
        data += received
        at = 0
        while len(data) >= at + 4:
            end = at + 4 + struct.unpack_from(">i", data, at)[0]
            if len(data) < end:
                break
            yield memoryview(bytes(data[at + 4 : end]))
            count -= 1
            at = end
        del data[:at]


def answered(
    server: Server,
    count: int,
    frame_of: Callable[[list[int]], bytes],
    parse: Callable[[memoryview], list[tuple[int, int]]],
) -> None:
    """Asks for all partitions, and again for those that could not answer."""
    pending = list(range(count))
    deadline = time.monotonic() + TIMEOUT_SECONDS
    with load.connect(server.address) as sock:
        sock.settimeout(TIMEOUT_SECONDS)
        while pending:
            chunks = [pending[first : first + CHUNK] for first in range(0, len(pending), CHUNK)]
            for chunk in chunks:
                sock.sendall(frame_of(chunk))
            done = set()
            for reply in replies(sock, len(chunks)):
                for partition, error in parse(reply):
                    if not error:
                        done.add(partition)
                    elif error not in NOT_YET:
                        raise RuntimeError(f"partition {partition}: error {error}")
            pending = [partition for partition in pending if partition not in done]
            if pending and time.monotonic() > deadline:
                raise RuntimeError(f"{len(pending)} partitions do not answer")
            if pending:
                time.sleep(PAUSE_SECONDS)


def ready(server: Server, count: int) -> None:
    answered(server, count, lambda some: list_offsets_frame(TOPIC, some), parse_list_offsets)


def write(server: Server, count: int) -> None:
    def frame(some: list[int]) -> bytes:
        return frames.produce_many_frame(TOPIC, some, BATCH)

    answered(server, count, frame, frames.parse_produce)


def read(server: Server, count: int) -> None:
    def frame(some: list[int]) -> bytes:
        return frames.fetch_frame(TOPIC, dict.fromkeys(some, 0), 50 << 20, 1 << 20)

    answered(server, count, frame, reads)


def create(server: Server, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap, **clients.QUIET})
    config = {"retention.ms": "-1"}  # the frames' records are from 2023
    new = NewTopic(TOPIC, count, 1, config=config)
    admin.create_topics([new], operation_timeout=TIMEOUT_SECONDS)[TOPIC].result(TIMEOUT_SECONDS)
    ready(server, count)


def timed(server: Server, what: str, step: Callable[[Server, int], None], count: int):
    cpu, start = server.cpu_seconds(), time.monotonic()
    step(server, count)
    yield what, "s", time.monotonic() - start
    yield f"{what}: CPU", "s", server.cpu_seconds() - cpu


def measure(server: Server, count: int, *, kill: bool) -> Iterator[Figure]:
    what = f"{count:,} partitions"
    server.start()
    before = server.memory_mb()
    yield from timed(server, f"{what}: create", create, count)
    yield f"{what}: memory, idle", "MB", server.memory_mb() - before
    yield from timed(server, f"{what}: first write", write, count)
    yield f"{what}: memory, written", "MB", server.memory_mb() - before
    start = time.monotonic()
    if kill:
        server.kill()
    else:
        server.stop()
        yield f"{what}: stop", "s", time.monotonic() - start
    start = time.monotonic()
    server.start()
    yield f"{what}: restart", "s", time.monotonic() - start
    yield f"{what}: restart: CPU", "s", server.cpu_seconds()
    yield from timed(server, f"{what}: ready", ready, count)
    yield from timed(server, f"{what}: first read", read, count)
    yield from timed(server, f"{what}: next write", write, count)
    yield f"{what}: memory, read", "MB", server.memory_mb() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", default="10,100,1000,10000")
    parser.add_argument("--servers", default="quire", help="of kafka, quire")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--kill", action="store_true", help="not stopped before the restart")
    options = parser.parse_args()
    kinds = [SERVERS[name] for name in options.servers.split(",")]
    table = rounds.Table([kind.name for kind in kinds], mine="quire")
    for _ in range(options.rounds):
        for count in map(int, options.partitions.split(",")):
            for kind in kinds:
                directory = Path(tempfile.mkdtemp(prefix="quire-growth-"))
                server = kind(directory / "server")
                try:
                    for figure in measure(server, count, kill=options.kill):
                        table.add(kind.name, figure)
                finally:
                    server.discard()
                    shutil.rmtree(directory, ignore_errors=True)
    print(table.markdown())


if __name__ == "__main__":
    main()
