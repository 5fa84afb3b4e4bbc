"""A server with a topic that benchmarks read through Spark, or past it."""

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers import HOST, QuireServer

TOPIC = "scanned"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


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


def options_of(doc: str, *, records: int, size: int, partitions: int) -> argparse.ArgumentParser:
    """What `filled` reads, with these defaults, and --rounds."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--records", type=int, default=records)
    parser.add_argument("--size", type=int, default=size, help="bytes of each record's value")
    parser.add_argument("--partitions", type=int, default=partitions)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--rounds", type=int, default=3)
    return parser


@contextmanager
def filled(options: argparse.Namespace) -> Iterator[tuple[ListeningServer, Path]]:
    """A server whose topic has the records that were asked for, and a directory beside it; both are
    gone at the end."""
    with tempfile.TemporaryDirectory(prefix="quire-scan-") as directory:
        server = ListeningServer(Path(directory) / "server").start()
        try:
            fill(server, options)
            yield server, Path(directory)
        finally:
            server.discard()
