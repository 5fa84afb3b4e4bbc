"""Records that retention or DeleteRecords took away give their disk space back, through the chain,
the metadata, the bookie's collector and its entry logs."""

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

import quire.testing
from quire import standalone

MIB = 1 << 20
WRITTEN_BYTES = 24 * MIB
CONFIG = {
    "log.retention.check.interval.ms": "200",
    "gcWaitTime": "500",
    "minorCompactionInterval": "1",
    "majorCompactionInterval": "2",
    "logSizeLimit": str(12 * MIB),
    "flushInterval": "500",
}


@pytest.fixture(autouse=True)
def seconds_instead_of_a_minute(monkeypatch):
    """A ledger goes once it was missing twice, a minute apart."""
    monkeypatch.setattr(standalone, "ABSENT_SECONDS_MIN", 1.0)


def used_bytes(server):
    ledgers = Path(server.data_dir) / "bookie" / "ledgers"
    total = 0
    for path in ledgers.rglob("*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def write(server, topic):
    producer = Producer({"bootstrap.servers": server.bootstrap_servers, "linger.ms": 5})
    value = bytes(range(256)) * 256
    for _ in range(WRITTEN_BYTES // len(value)):
        producer.produce(topic, value)
        producer.poll(0)
    assert producer.flush(30) == 0


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "the space did not come back within a minute"
        time.sleep(0.1)


def delete_all(admin):
    ends = {TopicPartition("t", 0): TopicPartition("t", 0, -1)}
    for result in admin.delete_records(list(ends.values())).values():
        result.result(20)


def alter(admin, name, value):
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(20)


@pytest.mark.parametrize(
    "take_away",
    [
        lambda admin: alter(admin, "retention.bytes", "0"),
        lambda admin: alter(admin, "retention.ms", "1"),
        delete_all,
        lambda admin: admin.delete_topics(["t"])["t"].result(20),
    ],
    ids=["size", "time", "DeleteRecords", "topic"],
)
def test_space_comes_back(take_away):
    with quire.testing.server(config=CONFIG) as server:
        server.create_topic("t", config={"segment.bytes": str(2 * MIB)})
        write(server, "t")
        until(lambda: used_bytes(server) > WRITTEN_BYTES * 0.8)
        admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
        take_away(admin)
        # The open ledger stays, and so does the entry log that is being written.
        until(lambda: used_bytes(server) < WRITTEN_BYTES * 0.6)


def test_what_is_kept_between_what_goes_is_compacted():
    """Two topics share the entry logs; one of them goes. Only compaction can give space back."""
    with quire.testing.server(config=CONFIG) as server:
        for topic in ("t", "kept"):
            server.create_topic(topic, config={"segment.bytes": str(2 * MIB)})
        for _ in range(2):
            write(server, "t")
            write(server, "kept")
        until(lambda: used_bytes(server) > 4 * WRITTEN_BYTES * 0.8)
        admin = AdminClient({"bootstrap.servers": server.bootstrap_servers})
        admin.delete_topics(["t"])["t"].result(20)
        until(lambda: used_bytes(server) < 4 * WRITTEN_BYTES * 0.7)
        assert used_bytes(server) >= 2 * WRITTEN_BYTES
