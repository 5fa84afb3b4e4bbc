"""Side by side: Apache Kafka, Kafka with a flush for each append, and quire, on this machine.

    python -m bench.compare [--servers kafka,quire] [--rounds 3] [--seconds 3] [--only TEXT]

All servers run at once, with their data on the same disk; each case runs on one of them at a time,
the servers in turn within each round, so that a slow minute of the machine hits all of them. The
table has medians over the rounds. Every figure is of the whole server process: CPU from /proc, for
each gigabyte of record batches that went in or out.
"""

import argparse
import contextlib
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench import clients, frames, load
from bench.servers import SERVERS, Server

DIRECTORY = Path(__file__).parent.parent / "build" / "bench"
IDLE_PARTITIONS = 1000
CLIENT_RECORDS = 300_000
COLD_STARTS = 3

#: (what, unit, value) as a case yields them.
Figure = tuple[str, str, float]
Measure = Callable[[Server, int], Iterator[Figure]]

#: Case -> (batch, how many of them, partitions).
FETCHES = {
    "fetch 1 kB batches": (load.KILOBYTE, 50_000, 1),
    "fetch 64 kB batches": (frames.batch_of(65_536), 4_000, 1),
    "fetch 64 kB batches, 16 partitions": (frames.batch_of(65_536), 4_000, 16),
    "fetch 1 MB batches": (frames.batch_of(1_000_000), 300, 1),
}


@dataclass
class Table:
    """Figures by (what, unit) and server, in the order in which they came."""

    servers: list[str]
    rows: dict[tuple[str, str], dict[str, list[float]]] = field(default_factory=dict)

    def add(self, server: str, figure: Figure) -> None:
        what, unit, value = figure
        self.rows.setdefault((what, unit), {}).setdefault(server, []).append(value)
        print(f"  {server}: {what}: {value:,.2f} {unit}", file=sys.stderr, flush=True)

    def markdown(self) -> str:
        mine = "quire" if "quire" in self.servers else None
        others = [name for name in self.servers if name != mine]
        ratios = [f"quire / {name}" for name in others] if mine else []
        head = ["case", "unit", *self.servers, *ratios]
        lines = [" | ".join(head), " | ".join("---" for _ in head)]
        for (what, unit), values in self.rows.items():
            medians = {name: statistics.median(values[name]) for name in values}
            cells = [_number(medians.get(name)) for name in self.servers]
            for name in others if mine else []:
                known = mine in medians and medians.get(name)
                cells.append(f"{medians[mine] / medians[name]:.2f}" if known else "")
            lines.append(" | ".join([what, unit, *cells]))
        return "\n".join(f"| {line} |" for line in lines)


def _number(value: float | None) -> str:
    if value is None:
        return "failed"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def measure_produce(name: str, seconds: float) -> Measure:
    partitions, case = load.CASES[name]

    def measure(server: Server, number: int) -> Iterator[Figure]:
        topic = f"produce-{number}-{time.monotonic_ns()}"
        clients.create_topic(server, topic, partitions)
        server.reset_peak()
        cpu = server.cpu_seconds()
        result = case(server.address, topic, seconds)
        cpu = server.cpu_seconds() - cpu
        if result.latencies:
            yield f"{name}: p50", "ms", result.percentile_ms(0.5)
            yield f"{name}: p99", "ms", result.percentile_ms(0.99)
        elif "1 kB" in name:
            yield name, "requests/s", result.requests_per_second
        else:
            yield name, "MB/s", result.megabytes_per_second
        # The driver's warm-up is in the CPU time too, at the same rate.
        share = seconds / (seconds + load.WARM_UP_SECONDS)
        yield f"{name}: CPU", "s/GB", cpu * share / (result.bytes / 1e9)
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


def measure_rest(server: Server) -> Iterator[Figure]:
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
        print(f"  {server.name}: warm-up: {result.requests} requests", file=sys.stderr, flush=True)


def run(options: argparse.Namespace, table: Table, servers: list[Server]) -> None:
    measures = {name: measure_produce(name, options.seconds) for name in load.CASES}
    measures |= {name: measure_fetch(name) for name in FETCHES}
    measures["clients"] = measure_clients
    measures = {name: m for name, m in measures.items() if options.only in name}
    failed: set[tuple[str, str]] = set()
    try:
        for server in servers:
            server.discard()
            server.start()
            warm_up(server, options.warm_up)
        for number in range(options.rounds):
            for name, measure in measures.items():
                for server in servers:
                    if (server.name, name) not in failed:
                        try:
                            for figure in measure(server, number):
                                table.add(server.name, figure)
                        except (RuntimeError, OSError) as error:
                            failed.add((server.name, name))
                            print(f"FAILED {server.name}: {name}: {error}", file=sys.stderr)
        if options.only in "rest":
            for server in servers:
                for figure in measure_rest(server):
                    table.add(server.name, figure)
    finally:
        for server in servers:
            server.discard()
        with contextlib.suppress(OSError):  # another run may be using it
            DIRECTORY.rmdir()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--servers", default=",".join(SERVERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warm-up", type=float, default=4.0, help="seconds for each case")
    parser.add_argument("--only", default="", help="part of a case's name; clients; rest")
    options = parser.parse_args()
    chosen = options.servers.split(",")
    unknown = set(chosen) - set(SERVERS)
    if unknown:
        parser.error(f"no server named {', '.join(unknown)}; there are {', '.join(SERVERS)}")
    limit = load.self_check()
    print(f"load generator's limit: {limit.requests_per_second:,.0f} requests/s", file=sys.stderr)
    servers = [kind(DIRECTORY / kind.__name__) for kind in map(SERVERS.get, chosen)]
    table = Table([server.name for server in servers])
    # Half a table is better than none: it is printed after an interruption as well.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        run(options, table, servers)
    finally:
        print(table.markdown())


if __name__ == "__main__":
    main()
