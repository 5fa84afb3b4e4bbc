"""What a full scan by Spark costs those who produce meanwhile: stock `kafka` source and ours.

    python -m bench.spark_beside --records 1000000 --size 1000 --rounds 3

One server, one SparkSession (`local[2]`, the `noop` sink, all columns). 1 kB is produced to another
topic, one request in flight: while nothing else happens, then beside scans through each source in
turn, one after the other until `--seconds` are over. Spark, the server and the load share the
machine's processors, so a part of what is measured is that; the two sources share it alike.
"""

import argparse
import sys
import threading
import time
from collections.abc import Callable

from confluent_kafka.admin import AdminClient, NewTopic

from bench import load
from bench.load import percentile_ms
from bench.peers import HOST, running_spark
from bench.spark_server import TOPIC, ListeningServer, filled, options_of

QUIET = "produced"
FORMS = ("kafka", "quire")


def latencies(server: ListeningServer, seconds: float) -> list[float]:
    address = (HOST, int(server.bootstrap.rpartition(":")[2]))
    return load.produce_latency(address, QUIET, range(1), load.KILOBYTE, seconds).latencies


def beside(
    scan: Callable[[], object], measure: Callable[[float], list[float]], seconds: float
) -> tuple[list[float], int]:
    """Latencies while scans run, and how many ended."""
    ends = threading.Event()
    done: list[object] = []
    failures: list[BaseException] = []

    def scans() -> None:
        try:
            while not ends.is_set():
                done.append(scan())
        except BaseException as error:  # told below, by who asked for the scans
            failures.append(error)

    thread = threading.Thread(target=scans)
    thread.start()
    found: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until and not failures:
        found += measure(1.0)
    ends.set()
    thread.join()
    if failures:
        raise RuntimeError("a scan failed") from failures[0]
    return found, len(done)


def main(arguments: list[str]) -> None:
    parser = options_of(__doc__, records=1_000_000, size=1000, partitions=8)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args(arguments)
    with filled(options) as (server, directory):
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic(QUIET, 1, 1)])[QUIET].result(60)
        with running_spark(directory / "spark") as spark:
            measure_rounds(spark, server, options)


def measure_rounds(spark: object, server: ListeningServer, options: argparse.Namespace) -> None:
    def scan_by(form: str) -> Callable[[], object]:
        return lambda: spark(
            "scan", form=form, bootstrap=server.bootstrap, metadata=server.metadata,
            options={"subscribe": TOPIC}, columns=None, records=options.records, size=options.size,
        )  # fmt: skip

    for form in FORMS:
        scan_by(form)()  # warms up
    for _ in range(options.rounds):
        alone = latencies(server, options.seconds)
        base = percentile_ms(alone, 0.99)
        print(f"alone: p50 {percentile_ms(alone, 0.5):.2f} ms, p99 {base:.2f} ms", flush=True)
        for form in FORMS:
            cpu, started = server.cpu_seconds(), time.monotonic()
            found, scans = beside(scan_by(form), lambda s: latencies(server, s), options.seconds)
            seconds = time.monotonic() - started
            p99 = percentile_ms(found, 0.99)
            print(
                f"beside {form}: p50 {percentile_ms(found, 0.5):.2f} ms, p99 {p99:.2f} ms,"
                f" {p99 / base:.2f} times; {scans} scans in {seconds:.0f} s,"
                f" server {server.cpu_seconds() - cpu:.1f} s of processor time",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
