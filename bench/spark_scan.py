"""Spark scans a topic through the stock `kafka` source and through `format("quire")`, in turn.

    python -m bench.spark_scan --records 1000000 --size 100 --partitions 1 --codec none

One server, one SparkSession (`local[2]`), the `noop` sink; what is asked for: all columns, value
only, no column but the offset. Median seconds over the rounds, the ratio (stock / ours: more than 1
is in our favour), and the server's processor time in each scan. «floor» is a Python source that
yields one cached batch again and again, as many rows as the topic has: what no source in Python
can beat. The server's bookie is in its process, so its processor time in our scans is the bookie's.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers import HOST, QuireServer, running_spark

TOPIC = "scanned"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
COLUMNS = {
    "all": None,
    "value": "value",
    "offset": "offset",
}


class ListeningServer(QuireServer):
    def command(self) -> list[str]:
        return [*super().command(), "--bookie-listen", f"{HOST}:0"]

    @property
    def metadata(self) -> str:
        return f"quire+unix://{self.data_dir}/metadata.sock"

    def cpu_seconds(self) -> float:
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / TICKS_PER_SECOND


def fill(server: ListeningServer, options: argparse.Namespace) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(TOPIC, options.partitions, 1)])[TOPIC].result(60)
    producer = Producer(
        {
            "bootstrap.servers": server.bootstrap,
            "compression.type": options.codec,
            "linger.ms": 20,
            "batch.size": 1 << 20,
            "queue.buffering.max.kbytes": 1 << 20,
        }
    )
    block = os.urandom(options.size + 4096)
    for number in range(options.records):
        start = number % 4096
        while True:
            try:
                producer.produce(
                    TOPIC,
                    block[start : start + options.size],
                    b"k%09d" % number,
                    partition=number % options.partitions,
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(120) == 0


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--tasks", type=int, help="minPartitions, of both")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="quire-scan-") as directory:
        server = ListeningServer(Path(directory) / "server").start()
        try:
            fill(server, options)
            with running_spark(Path(directory) / "spark") as spark:
                measure(spark, server, options)
        finally:
            server.discard()


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
