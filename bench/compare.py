"""Side by side: Apache Kafka, Kafka with a flush for each append, and quire, on this machine.

    python -m bench.compare [--servers kafka,quire] [--rounds 3] [--seconds 3] [--only TEXT]
        [--keep DIRECTORY]

Every figure is of the whole server process: CPU from /proc, for each gigabyte of record batches
that went in or out.
"""

import time
from collections.abc import Iterator
from pathlib import Path

from bench import clients, frames, load, machine, rounds, runs
from bench.rounds import Figure, Measure
from bench.servers import SERVERS, Server

IDLE_PARTITIONS = 1000
CLIENT_RECORDS = 300_000
COLD_STARTS = 3
#: Of a request's latency; bench/page.py draws them.
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}

#: Case -> (batch, how many of them, partitions).
FETCHES = {
    "fetch 1 kB batches": (load.KILOBYTE, 50_000, 1),
    "fetch 64 kB batches": (frames.batch_of(65_536), 4_000, 1),
    "fetch 64 kB batches, 16 partitions": (frames.batch_of(65_536), 4_000, 16),
    "fetch 1 MB batches": (frames.batch_of(1_000_000), 300, 1),
}


def measure_produce(name: str, seconds: float, *, per_request: bool = False) -> Measure:
    """`per_request`: CPU is told for a request instead of a gigabyte, and no peak of memory."""
    partitions, case = load.CASES[name]

    def measure(server: Server, number: int) -> Iterator[Figure]:
        topic = f"produce-{number}-{time.monotonic_ns()}"
        clients.create_topic(server, topic, partitions)
        server.reset_peak()
        cpu = server.cpu_seconds()
        result = case(server.address, topic, seconds)
        cpu = server.cpu_seconds() - cpu
        if "1 kB" in name:
            yield name, "requests/s", result.requests_per_second
        else:
            yield name, "MB/s", result.megabytes_per_second
        for percentile, share in PERCENTILES.items():
            yield f"{name}: {percentile}", "ms", result.percentile_ms(share)
        # The driver's warm-up is in the CPU time too, at the same rate.
        cpu *= seconds / (seconds + load.WARM_UP_SECONDS)
        if per_request:
            yield f"{name}: CPU", "us/request", cpu / result.requests * 1e6
        else:
            yield f"{name}: CPU", "s/GB", cpu / (result.bytes / 1e9)
            yield f"{name}: peak memory", "MB", server.memory_mb("VmHWM")
        clients.delete_topic(server, topic)

    return measure


def measure_fetch(name: str) -> Measure:
    batch, count, partitions = FETCHES[name]
    filled: set[str] = set()
    topic = f"fetch-{len(batch)}-{partitions}-{time.monotonic_ns()}"

    def measure(server: Server, number: int) -> Iterator[Figure]:
        if server.name not in filled:
            clients.create_topic(server, topic, partitions)
            load.produce_count(server.address, topic, range(partitions), batch, count, 20)
            filled.add(server.name)
            load.fetch_all(server.address, topic, range(partitions))
        cpu = server.cpu_seconds()
        result = load.fetch_all(server.address, topic, range(partitions))
        cpu = server.cpu_seconds() - cpu
        yield name, "MB/s", result.megabytes_per_second
        yield f"{name}: CPU", "s/GB", cpu / (result.bytes / 1e9)

    return measure


def measure_clients(server: Server, number: int) -> Iterator[Figure]:
    for what, produce, consume in (
        ("librdkafka", clients.librdkafka_produce, clients.librdkafka_consume),
        ("Java", clients.java_produce, clients.java_consume),
    ):
        topic = f"{what}-{number}-{time.monotonic_ns()}"
        clients.create_topic(server, topic, 4)
        yield (
            f"{what} produces 1 kB records, acks=all",
            "MB/s",
            produce(server, topic, CLIENT_RECORDS),
        )
        yield f"{what} consumes them", "MB/s", consume(server, topic, CLIENT_RECORDS)
        clients.delete_topic(server, topic)


def measure_rest(server: Server, number: int) -> Iterator[Figure]:
    """What is measured once: memory at rest, idle partitions, cold starts."""
    server.discard()
    server.start()
    clients.create_topic(server, "cold", 1)
    load.wait_first_ack(server.address, "cold")
    time.sleep(2)
    before = server.memory_mb()
    yield "memory after one record", "MB", before
    clients.create_topic(server, "idle", IDLE_PARTITIONS)
    load.produce_count(server.address, "idle", range(IDLE_PARTITIONS), load.KILOBYTE, 0, 1)
    time.sleep(2)
    yield f"memory for {IDLE_PARTITIONS} partitions more", "MB", server.memory_mb() - before
    clients.delete_topic(server, "idle")
    for _ in range(COLD_STARTS):
        server.stop()
        start = time.perf_counter()
        server.start()
        load.wait_first_ack(server.address, "cold")
        yield "cold start to the first acknowledgement", "s", time.perf_counter() - start


def warm_up(server: Server, seconds: float) -> None:
    """A JVM needs thousands of requests before it is what it is; so nobody is measured cold."""
    for number, (partitions, case) in enumerate(load.CASES.values()):
        topic = f"warm-up-{number}"
        clients.create_topic(server, topic, partitions)
        result = case(server.address, topic, seconds)
        if number < 3:
            load.fetch_all(server.address, topic, range(partitions))
        clients.delete_topic(server, topic)
        rounds.note(f"{server.name}: warm-up: {result.requests} requests")


def main() -> None:
    parser = rounds.options_of(__doc__, SERVERS)
    parser.add_argument("--warm-up", type=float, default=4.0, help="seconds for each case")
    parser.add_argument("--only", default="", help="part of a case's name; clients; rest")
    parser.add_argument("--keep", type=Path, help="directory of runs: see bench/page.py")
    options = parser.parse_args()
    chosen = rounds.choose(parser, options, SERVERS)
    cases = {name: measure_produce(name, options.seconds) for name in load.CASES}
    cases |= {name: measure_fetch(name) for name in FETCHES}
    cases["clients"] = measure_clients
    cases = {name: measure for name, measure in cases.items() if options.only in name}
    ran_on = machine.measure()
    print("\n".join(f"- {line}" for line in ran_on.lines()), flush=True)
    limit = load.self_check()
    rounds.note(f"load generator's limit: {limit.requests_per_second:,.0f} requests/s")

    def start(server: Server) -> None:
        server.start()
        warm_up(server, options.warm_up)

    last = {"rest": measure_rest} if options.only in "rest" else {}
    table = rounds.side_by_side("compare", chosen, start, (cases, options.rounds), (last, 1))
    if options.keep is not None:
        path = runs.save(runs.of_now(table, ran_on), options.keep)
        rounds.note(f"kept as {path}")


if __name__ == "__main__":
    main()
