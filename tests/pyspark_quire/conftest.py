"""A `quire standalone` process whose bookie serves others, and topics of many ledgers in it."""

import itertools
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from pyspark_quire.connection import Where, run_within
from pyspark_quire.options_core import parse_options
from pyspark_quire.partitions import read_chains, read_topics
from pyspark_quire.planning import batch_splits
from pyspark_quire.task import read_split

QUIRE = Path(sys.executable).parent / "quire"
SECONDS = 60
SETTINGS = {
    "journalMaxSizeMB": 16,
    "dbStorage_writeCacheMaxSizeMb": 16,
    # It serves as long as all tests run: at 20 ms it took a seventh of a core.
    "log.retention.check.interval.ms": 200,
    "log.cleaner.backoff.ms": 200,
}
#: An older ledger is closed when the next batch comes.
SEGMENTS = {"segment.ms": "20", "retention.ms": "-1"}


class Served:
    def __init__(self, directory):
        self.metadata = f"quire+unix://{directory}/metadata.sock"
        command = [str(QUIRE), "standalone", "--listen", "127.0.0.1:0"]
        command += ["--data-dir", str(directory), "--bookie-listen", "127.0.0.1:0"]
        command += [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        line = self.process.stdout.readline()
        assert line.startswith("ready listen=")
        self.bootstrap = line.removeprefix("ready listen=").strip()
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def stop(self):
        self.process.terminate()
        self.process.communicate(timeout=SECONDS)

    def create(self, topic, partitions=1, **config):
        new = NewTopic(
            topic,
            partitions,
            1,
            config={**SEGMENTS, **config},
        )
        self.admin.create_topics([new])[topic].result(SECONDS)

    def configure(self, topic, **config):
        entries = [
            ConfigEntry(name, text, incremental_operation=AlterConfigOpType.SET)
            for name, text in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(SECONDS)

    def delete(self, topic):
        self.admin.delete_topics([topic])[topic].result(SECONDS)

    def producer(self, **settings):
        return Producer({"bootstrap.servers": self.bootstrap, "log_level": 0, **settings})

    def fill(self, topic, count, partition=0, runs=4, is_rolled=True, start_ms=1_700_000_000_000):
        """`count` records «v<n>», each a second after the one before, in about `runs` ledgers, if
        the topic has short ones."""
        producer = self.producer()
        for number in range(count):
            producer.produce(
                topic, b"v%d" % number, partition=partition, timestamp=start_ms + 1000 * number
            )
            if number % max(count // runs, 1) == 0:
                assert producer.flush(SECONDS) == 0
                if is_rolled:
                    self.wait_rolled(topic, partition)
        assert producer.flush(SECONDS) == 0

    def wait_rolled(self, topic, partition):
        """Until what was written is in closed ledgers: they are closed for their age."""
        deadline = time.monotonic() + SECONDS
        while self.chain(topic, partition).ledgers[-1].entry_count == 0:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def chain(self, topic, partition):
        async def look(connection):
            found = (await read_topics(connection.store))[topic]
            return (await read_chains(connection.store, found, [partition]))[partition]

        return run_within(Where(self.metadata), SECONDS, look)

    def options(self, by_broker=True, is_stream=False, **given):
        found = {"metadata": self.metadata, **given}
        if by_broker:
            found["kafka.bootstrap.servers"] = self.bootstrap
        return parse_options(found, is_stream=is_stream)

    def read(self, by_broker=True, **given):
        """(partition, offset, value) of a batch query, in its order; and its splits."""
        options = self.options(by_broker, **given)
        splits = batch_splits(options)
        return rows_of(splits, options), splits


def rows_of(splits, options):
    return [
        (row["partition"], row["offset"], row["value"])
        for split in splits
        for batch in read_split(split, options)
        for row in batch.select(["partition", "offset", "value"]).to_pylist()
    ]


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    one = Served(tmp_path_factory.mktemp("served") / "data")
    yield one
    one.stop()


_numbers = itertools.count()


@pytest.fixture
def topic():
    return f"topic-{next(_numbers)}"
