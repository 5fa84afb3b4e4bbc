"""Transactions side by side: Apache Kafka, Kafka with a flush for each append, and quire.

    python -m bench.transactions [--servers kafka,kafka-flush,quire] [--rounds 3] [--seconds 5]

Java producers in one process (bench/TransactionLoad.java) commit transactions of 100 records of
1 kB. Then a log of such transactions is read with both isolations. CPU is the server's.
"""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from bench import clients, load, rounds
from bench.rounds import Figure, Measure
from bench.servers import SERVERS, Server, kafka_jars

RECORDS = 100
WARM_UP_SECONDS = 3.0
PROGRAM = Path(__file__).parent / "TransactionLoad.java"
TIMEOUT_SECONDS = 180
#: Of the log that is read.
READ_SECONDS = 8.0
#: Case -> (producers, partitions).
CASES = {
    "1 producer, 1 partition": (1, 1),
    "1 producer, 8 partitions": (1, 8),
    "20 producers, 1 partition": (20, 1),
    "20 producers, 8 partitions": (20, 8),
}


def commit(
    server: Server, topic: str, producers: int, partitions: int, seconds: float
) -> dict[str, float]:
    """RuntimeError with the program's words if it fails."""
    command = ["java", "-Xmx1g", "-cp", f"{kafka_jars()}/*", str(PROGRAM), server.bootstrap, topic]
    numbers = (partitions, producers, RECORDS, seconds, WARM_UP_SECONDS)
    found = subprocess.run(
        [*command, *map(str, numbers)], capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    if found.returncode:
        raise RuntimeError(found.stdout[-1000:] + found.stderr[-1000:])
    answer: dict[str, float] = json.loads(found.stdout.strip().splitlines()[-1])
    return answer


def measure_commits(name: str, seconds: float) -> Measure:
    producers, partitions = CASES[name]

    def measure(server: Server, number: int) -> Iterator[Figure]:
        topic = f"txn-{producers}-{partitions}-{number}-{time.monotonic_ns()}"
        clients.create_topic(server, topic, partitions)
        cpu = server.cpu_seconds()
        found = commit(server, topic, producers, partitions, seconds)
        cpu = server.cpu_seconds() - cpu
        yield name, "transactions/s", found["per_second"]
        yield f"{name}: p50", "ms", found["p50_ms"]
        yield f"{name}: p99", "ms", found["p99_ms"]
        # The warm-up's is in it, at about the same rate.
        count = found["per_second"] * (seconds + WARM_UP_SECONDS)
        yield f"{name}: CPU", "ms/transaction", cpu / count * 1000
        clients.delete_topic(server, topic)

    return measure


def measure_reads() -> Measure:
    topic = f"txn-read-{time.monotonic_ns()}"
    filled: set[str] = set()

    def measure(server: Server, number: int) -> Iterator[Figure]:
        if server.name not in filled:
            clients.create_topic(server, topic, 1)
            commit(server, topic, 4, 1, READ_SECONDS)
            filled.add(server.name)
            load.fetch_all(server.address, topic, range(1))
        for isolation, name in enumerate(("read_uncommitted", "read_committed")):
            found = load.fetch_all(server.address, topic, range(1), isolation=isolation)
            yield f"fetch, {name}", "MB/s", found.megabytes_per_second

    return measure


def main() -> None:
    parser = rounds.options_of(__doc__, SERVERS, seconds=5.0)
    parser.add_argument("--only", default="", help="part of a case's name; reads")
    options = parser.parse_args()
    cases = {name: measure_commits(name, options.seconds) for name in CASES}
    cases["reads"] = measure_reads()
    cases = {name: measure for name, measure in cases.items() if options.only in name}

    def start(server: Server) -> None:
        server.start()
        # A JVM that is cold is not measured.
        clients.create_topic(server, "warm-up", 8)
        commit(server, "warm-up", 8, 8, WARM_UP_SECONDS)

    chosen = rounds.choose(parser, options, SERVERS)
    rounds.side_by_side("transactions", chosen, start, (cases, options.rounds))


if __name__ == "__main__":
    main()
