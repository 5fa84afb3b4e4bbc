"""What many consumers of one partition cost: at the tail, and of the same old data.

    python -m bench.fan_out [--consumers 1,10] [--rounds 2] [--servers kafka,quire]

Three brokers of ours on three bookies beside three of Kafka's (bench.clusters). Each consumer is a
process with a connection of its own to the partition's leader.

Tail: a producer sends 64 kB batches one at a time, and each consumer follows. Cold: all read a
topic from its start to its end at once; it was written before anything that caches hold, and the
page cache is emptied of all logs (fsync, POSIX_FADV_DONTNEED) before each run. One consumer is the
single cold reader. CPU is of all processes, for each gigabyte that reached a consumer.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import clusters, frames, load, rounds
from bench.clusters import Address, Members
from bench.rounds import Figure, Measure

BATCH_BYTES = 64 << 10
BATCH = frames.batch_of(BATCH_BYTES)
COLD_TOPIC = "cold"
LEADER = 1
#: Written after the cold data: more than a bookie's write cache and a broker's tail cache hold.
LATER_MB = 320
IN_FLIGHT = 10
#: A bookie's flushInterval, and some: what it holds back is on the disk then.
FLUSH_SECONDS = 12.0
WAIT_SECONDS = 120.0


def follow(address: Address, topic: str, seconds: float, start: int, barrier, results) -> None:
    """Reads the tail from `start` on, for so long; reports bytes."""
    offset, size = start, 0
    with load.connect(address) as sock:
        fetcher = load.Fetcher(sock)
        barrier.wait(WAIT_SECONDS)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            frame = frames.fetch_frame(topic, {0: offset}, 50 << 20, 1 << 20)
            for _, _, records in fetcher.fetch(frame):
                found, used, after = frames.count_batches(records)
                size += used
                offset = after if found else offset
    results.put(size)


def read_cold(address: Address, topic: str, barrier, results) -> None:
    barrier.wait(WAIT_SECONDS)
    results.put(load.fetch_all(address, topic, range(1)).bytes)


def consumers(count: int, target: Callable, *arguments: object):
    """That many processes of `target(*arguments, barrier, results)`, which wait for the caller at
    the barrier. Gives the barrier and what waits for all their results."""
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(count + 1), context.Queue()
    workers = [
        context.Process(target=target, args=(*arguments, barrier, results), daemon=True)
        for _ in range(count)
    ]
    for worker in workers:
        worker.start()

    def all_results() -> list[int]:
        found = [results.get(timeout=WAIT_SECONDS) for _ in workers]
        for worker in workers:
            worker.join()
        return found

    return barrier, all_results


def measure_tail(count: int, seconds: float) -> Measure:
    what = f"tail, {count} consumer{'s' * (count > 1)}"

    def measure(cluster: Members, number: int) -> Iterator[Figure]:
        topic = f"tail-{time.monotonic_ns()}"
        cluster.create_topic(topic, 1, first=(LEADER,))
        address = cluster.address(LEADER)
        load.produce_count(address, topic, range(1), BATCH, IN_FLIGHT, 1)
        with load.connect(address) as sock:
            ((_, end, _),) = load.Fetcher(sock).fetch(frames.fetch_frame(topic, {0: 0}, 1, 1))
        lasting = seconds + load.WARM_UP_SECONDS
        barrier, all_results = consumers(count, follow, address, topic, lasting, end)
        cpu = cluster.cpu_seconds()
        barrier.wait(WAIT_SECONDS)
        made = load.produce_latency(address, topic, range(1), BATCH, seconds)
        size = sum(all_results())
        cpu = cluster.cpu_seconds() - cpu
        yield f"{what}: produced", "MB/s", made.megabytes_per_second
        yield f"{what}: consumed in all", "MB/s", size / lasting / 1e6
        yield f"{what}: producer's p50", "ms", made.percentile_ms(0.5)
        yield f"{what}: producer's p99", "ms", made.percentile_ms(0.99)
        yield f"{what}: CPU", "s/GB", cpu / (size / 1e9)
        yield f"{what}: memory of brokers", "MB", cluster.broker_memory_mb()
        cluster.delete_topic(topic)

    return measure


def measure_cold(count: int) -> Measure:
    what = f"cold, {count} consumer{'s' * (count > 1)}"

    def measure(cluster: Members, number: int) -> Iterator[Figure]:
        empty_page_cache(cluster.directory)
        address = cluster.address(LEADER)
        barrier, all_results = consumers(count, read_cold, address, COLD_TOPIC)
        cpu = cluster.cpu_seconds()
        barrier.wait(WAIT_SECONDS)
        began = time.perf_counter()
        size = sum(all_results())
        seconds = time.perf_counter() - began
        cpu = cluster.cpu_seconds() - cpu
        yield f"{what}: in all", "MB/s", size / seconds / 1e6
        yield f"{what}: CPU", "s/GB", cpu / (size / 1e9)
        yield f"{what}: memory of brokers", "MB", cluster.broker_memory_mb()

    return measure


def empty_page_cache(directory: Path) -> None:
    """Of the segments of Kafka and the entry logs of bookies."""
    for path in directory.rglob("*.log"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fill(cluster: Members, cold_mb: int) -> None:
    for topic, size_mb in ((COLD_TOPIC, cold_mb), ("later", LATER_MB)):
        cluster.create_topic(topic, 1, first=(LEADER,))
        count = (size_mb << 20) // BATCH_BYTES
        load.produce_count(cluster.address(LEADER), topic, range(1), BATCH, count, IN_FLIGHT)


def main() -> None:
    parser = clusters.options_of(__doc__, session_ms=9000, count=2, seconds=3.0)
    parser.add_argument("--consumers", default="1,10")
    parser.add_argument("--cold-mb", type=int, default=200)
    parser.add_argument("--only", default="", help="tail or cold")
    options = parser.parse_args()
    kinds = clusters.chosen(parser, options)
    counts = [int(count) for count in options.consumers.split(",")]
    cases = {f"tail {count}": measure_tail(count, options.seconds) for count in counts}
    cases |= {f"cold {count}": measure_cold(count) for count in counts}
    cases = {name: measure for name, measure in cases.items() if options.only in name}

    def start(cluster: Members) -> None:
        cluster.start()
        if any(name.startswith("cold") for name in cases):
            fill(cluster, options.cold_mb)
            time.sleep(FLUSH_SECONDS)

    rounds.side_by_side("fan-out", kinds, start, (cases, options.rounds))


if __name__ == "__main__":
    main()
