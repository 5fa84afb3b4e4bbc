"""What a producer notices of a partition's rolls from one ledger to the next.

    python -m bench.rolls [--rounds 5] [--seconds 10] [--rate 10] [--bookies 1]

One server of ours, two topics of one partition: one rolls every 5 MB (segment.bytes), the other
never. Batches of 16 kB are sent to the one and to the other in turn, at a rate in MB/s that does
not wait for answers: a latency counts from the moment at which the batch was to be sent, so that
what waits behind a roll counts as much as what met it. The ratio at the end is of the p99s: each
the median of the rounds.
"""

import argparse
import select
import shutil
import statistics
import struct
import tempfile
import time
from collections import deque
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench import frames, load
from bench.clients import KEPT, QUIET, TIMEOUT_SECONDS
from bench.load import percentile_ms
from bench.servers import Quire, QuireReplicated

BATCH_BYTES = 16_384
SEGMENT_BYTES = {"rolls every 5 MB": 5_000_000, "never rolls": 1 << 30}
CORRELATION_OFFSET = 8


def create_topic(bootstrap: str, topic: str, segment_bytes: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    config = {**KEPT, "segment.bytes": str(segment_bytes)}
    admin.create_topics([NewTopic(topic, 1, -1, config=config)])[topic].result(TIMEOUT_SECONDS)


def send_paced(
    address: tuple[str, int], topic: str, rate_bytes: float, seconds: float
) -> list[float]:
    """Seconds from when each batch was to be sent to its ack."""
    batch = frames.batch_of(BATCH_BYTES)
    load.wait_all_ready(address, topic, range(1), batch)
    frame = bytearray(frames.produce_frame(topic, 0, batch))
    replies = frames.ProduceReplies(topic)
    interval = len(batch) / rate_bytes
    due: deque[float] = deque()
    latencies: list[float] = []
    with load.connect(address) as sock:
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        start = time.perf_counter() + load.WARM_UP_SECONDS
        sent = 0
        count = int(seconds / interval)
        while len(latencies) < count:
            now = time.perf_counter()
            while sent < count and now >= start + sent * interval:
                struct.pack_into(">i", frame, CORRELATION_OFFSET, sent)
                sock.sendall(frame)
                due.append(start + sent * interval)
                sent += 1
                now = time.perf_counter()
            wait = start + sent * interval - now if sent < count else 1.0
            if poll.poll(max(0.0, wait) * 1000):
                done = load.receive(sock, replies)
                now = time.perf_counter()
                latencies += [now - due.popleft() for _ in range(done)]
    return latencies


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=float, default=10, help="MB/s")
    parser.add_argument("--bookies", type=int, default=1, choices=(1, 3))
    parser.add_argument("--directory", help="on which disk; default: a temporary one")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="rolls-", dir=options.directory))
    server = (Quire if options.bookies == 1 else QuireReplicated)(root / "server")
    p99s: dict[str, list[float]] = {name: [] for name in SEGMENT_BYTES}
    print("| round | topic | p50 ms | p99 ms | p99.9 ms | max ms |\n|---|---|---|---|---|---|")
    try:
        server.start()
        for number, size in enumerate(SEGMENT_BYTES.values()):
            create_topic(server.bootstrap, f"rolls-{number}", size)
            send_paced(server.address, f"rolls-{number}", options.rate * 1e6, 1)
        for round_number in range(options.rounds):
            for number, name in enumerate(SEGMENT_BYTES):
                topic = f"rolls-{number}"
                found = send_paced(server.address, topic, options.rate * 1e6, options.seconds)
                shares = [percentile_ms(found, share) for share in (0.5, 0.99, 0.999, 1)]
                p99s[name].append(shares[1])
                print(f"| {round_number + 1} | {name} |", *(f"{ms:.2f} |" for ms in shares))
        with_rolls, without = (statistics.median(found) for found in p99s.values())
        print(f"p99 {with_rolls:.2f} ms with rolls, {without:.2f} ms without: ", end="")
        print(f"{with_rolls / without:.2f} times")
    finally:
        server.discard()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
