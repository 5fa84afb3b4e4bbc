"""Hours of load, with stops and kills: is anything acknowledged lost, does anything grow?

    python -m bench.soak [--minutes 60] [--server quire] [--seed 1]

A cycle: a new topic, load on all its partitions for a few seconds, with a clean stop or a kill in
the middle of some of them; then every partition is read from its start. Each batch must be what was
sent, offsets must have no gaps, and there must be no fewer batches than were acknowledged and no
more than were sent. Then the topic is deleted. A line for each cycle has the process's memory, open
files and threads; the run fails if the last ones are far above the first ones.
"""

import argparse
import os
import random
import statistics
import struct
import sys
import threading
import time
from dataclasses import dataclass

from bench import clients, frames, load
from bench.rounds import BUILD
from bench.servers import SERVERS, Server

PARTITIONS = 8
LOAD_SECONDS = 5.0
IN_FLIGHT = 64
BATCH_SIZES_BYTES = (200, 1000, 16_384, 262_144)
#: Of the cycles with an end in the middle: the server is killed, or stopped.
STOP_SHARE, KILL_SHARE = 0.15, 0.25
MEMORY_GROWTH_MAX = 1.3
#: Where magic, CRC and all that it covers start; what is before is the server's to change.
SENT_PART_OFFSET = 16


@dataclass
class Sample:
    """A server process that has run for a while."""

    memory_mb: float
    open_files: int
    threads: int


def is_suspect(server: Server, name: str) -> bool:
    """Whether a descriptor may be a leak: a socket, a deleted file. Each start begins new files in
    the data directory, which are there until garbage is collected."""
    try:
        target = os.readlink(f"/proc/{server.pid}/fd/{name}")
    except FileNotFoundError:
        return False
    return target.endswith(" (deleted)") or not target.startswith(str(server.directory))


def sample(server: Server) -> Sample:
    return Sample(
        server.memory_mb("RssAnon"),
        sum(is_suspect(server, name) for name in os.listdir(f"/proc/{server.pid}/fd")),
        len(os.listdir(f"/proc/{server.pid}/task")),
    )


def produce_until(
    server: Server, topic: str, batch: bytes, seconds: float, *, may_fail: bool
) -> tuple[int, int]:
    """(sent, acknowledged at least) requests, until the time is over, or the server is gone or
    refuses while it stops, if that may happen."""
    ring = load.Ring(topic, range(PARTITIONS), batch, IN_FLIGHT)
    replies = frames.ProduceReplies(topic)
    sent = 0
    deadline = time.monotonic() + seconds
    try:
        with load.connect(server.address) as sock:
            while time.monotonic() < deadline:
                burst = IN_FLIGHT - (sent - replies.count)
                sent += burst
                for part in ring.take(burst):
                    sock.sendall(part)
                load.receive(sock, replies)
            while replies.count < sent:
                load.receive(sock, replies)
    except (OSError, load.ConnectionLostError, frames.ProduceError):
        if not may_fail:
            raise
    return sent, replies.count


def check_topic(server: Server, topic: str, batch: bytes, sent: int, acknowledged: int) -> None:
    """Reads everything back. AssertionError says what is wrong."""
    intact = batch[SENT_PART_OFFSET:]
    total = 0

    def check(partition: int, records: memoryview, next_offset: int) -> None:
        nonlocal total
        assert len(records) % len(batch) == 0, f"{topic}-{partition}: batches of another size"
        for at in range(0, len(records), len(batch)):
            (base,) = struct.unpack_from(">q", records, at)
            assert base == next_offset, f"{topic}-{partition}: {base} where {next_offset} belongs"
            sent_part = records[at + SENT_PART_OFFSET : at + len(batch)]
            assert sent_part == intact, f"{topic}-{partition}: batch {base} was changed"
            next_offset += 1
            total += 1

    load.fetch_all(server.address, topic, range(PARTITIONS), check=check)
    assert acknowledged <= total <= sent, f"{topic}: {total} of {acknowledged} to {sent} batches"


def cycle(server: Server, number: int, rng: random.Random) -> tuple[int, str]:
    """(requests acknowledged, what happened to the server)"""
    topic = f"soak-{number}"
    batch = frames.record_batch([rng.randbytes(rng.choice(BATCH_SIZES_BYTES))])
    clients.create_topic(server, topic, PARTITIONS)
    sent = load.wait_all_ready(server.address, topic, range(PARTITIONS), batch)
    acknowledged = PARTITIONS
    draw = rng.random()
    event = "kill" if draw < KILL_SHARE else "stop" if draw < KILL_SHARE + STOP_SHARE else "-"
    ender = threading.Timer(
        LOAD_SECONDS * rng.random(), server.kill if event == "kill" else server.stop
    )
    if event != "-":
        ender.start()
    counts = produce_until(server, topic, batch, LOAD_SECONDS, may_fail=event != "-")
    sent += counts[0]
    acknowledged += counts[1]
    if event != "-":
        ender.join()
        server.start()
        sent += load.wait_all_ready(server.address, topic, range(PARTITIONS), batch)
        acknowledged += PARTITIONS
    check_topic(server, topic, batch, sent, acknowledged)
    clients.delete_topic(server, topic)
    return acknowledged, event


def grown(samples: list[Sample]) -> list[str]:
    """What is far larger in the last quarter of the samples than in the second one; the first is
    left out, in which caches fill."""
    quarter = len(samples) // 4
    if quarter < 3:
        return []
    complaints = []
    for name in ("memory_mb", "open_files", "threads"):
        values = [getattr(one, name) for one in samples]
        early = statistics.median(values[quarter : 2 * quarter])
        late = statistics.median(values[-quarter:])
        if late > early * MEMORY_GROWTH_MAX + 16:
            complaints.append(f"{name} grew from {early:.0f} to {late:.0f}")
    return complaints


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--server", choices=SERVERS, default="quire")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    kind = SERVERS[options.server]
    server = kind(BUILD / f"soak-{kind.__name__}")
    rng = random.Random(options.seed)
    deadline = time.monotonic() + options.minutes * 60
    samples: list[Sample] = []
    number = 0
    server.discard()
    try:
        server.start()
        while time.monotonic() < deadline:
            acknowledged, event = cycle(server, number, rng)
            samples.append(sample(server))
            print(f"cycle={number} event={event} acknowledged={acknowledged} {samples[-1]}")
            number += 1
    finally:
        log = server.directory / "server.log"
        if sys.exc_info()[0] is not None and log.exists():
            print(log.read_text()[-5000:], file=sys.stderr)
        server.discard()
    if complaints := grown(samples):
        raise SystemExit("; ".join(complaints))
    print(f"{number} cycles, nothing lost, nothing grown")


if __name__ == "__main__":
    main()
