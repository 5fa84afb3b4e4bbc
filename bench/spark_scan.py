"""Spark scans a topic through the stock `kafka` source and through `format("quire")`, in turn.

    python -m bench.spark_scan --records 1000000 --size 100 --partitions 1 --codec none

One server, one SparkSession (`local[2]`), the `noop` sink; what is asked for: all columns, value
only, no column but the offset. Median seconds over the rounds, the ratio (stock / ours: more than 1
is in our favour), and the server's processor time in each scan. «floor» is a Python source that
yields one cached batch again and again, as many rows as the topic has: what no source in Python
can beat. The server's bookie is in its process, so its processor time in our scans is the bookie's.
"""

import argparse
import statistics
import sys
import time

from bench.peers import running_spark
from bench.spark_server import TOPIC, ListeningServer, filled, options_of

COLUMNS = {
    "all": None,
    "value": "value",
    "offset": "offset",
}


def main(arguments: list[str]) -> None:
    parser = options_of(__doc__, records=1_000_000, size=100, partitions=1)
    parser.add_argument("--tasks", type=int, help="minPartitions, of both")
    options = parser.parse_args(arguments)
    with filled(options) as (server, directory), running_spark(directory / "spark") as spark:
        measure(spark, server, options)


def measure(spark: object, server: ListeningServer, options: argparse.Namespace) -> None:
    given = {"subscribe": TOPIC}
    if options.tasks:
        given["minPartitions"] = str(options.tasks)
    print(f"{options.records} records of {options.size} B, {options.codec}, "
          f"{options.partitions} partitions, minPartitions {options.tasks}")  # fmt: skip
    for name, columns in COLUMNS.items():
        times: dict[str, list[float]] = {"kafka": [], "quire": [], "floor": []}
        cpu: dict[str, list[float]] = {"kafka": [], "quire": [], "floor": []}
        for number in range(options.rounds + 1):
            for form in times:
                before, started = server.cpu_seconds(), time.monotonic()
                found = spark(
                    "scan", form=form, bootstrap=server.bootstrap, metadata=server.metadata,
                    options=given, columns=columns, records=options.records, size=options.size,
                )  # fmt: skip
                assert found == options.records or found is None
                if number:  # the first one warms up
                    times[form].append(time.monotonic() - started)
                    cpu[form].append(server.cpu_seconds() - before)
        seconds = {form: statistics.median(each) for form, each in times.items()}
        used = {form: statistics.median(each) for form, each in cpu.items()}
        print(
            f"{name:7} kafka {seconds['kafka']:.2f} s  quire {seconds['quire']:.2f} s"
            f"  floor {seconds['floor']:.2f} s  ratio {seconds['kafka'] / seconds['quire']:.2f}"
            f"  server CPU: kafka {used['kafka']:.2f} s, quire {used['quire']:.2f} s"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
