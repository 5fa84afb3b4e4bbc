"""`quire topics compact` against a server in this process, with a client of another project."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from quire.cli import main

QUIRE = Path(sys.executable).parent / "quire"
SETTINGS = (
    *("offsets.topic.num.partitions=1", "log.retention.check.interval.ms=100"),
    *("log.cleaner.backoff.ms=100", "journalMaxSizeMB=14", "journalMaxBackups=1"),
)
NEVER = {"cleanup_policy": "compact", "segment_ms": 300, "min_cleanable_dirty_ratio": 1}


@pytest.fixture
def start(tmp_path):
    """start(*settings) -> the address of a standalone server with pages on tmp_path / data."""
    processes = []

    def run(*settings):
        command = [str(QUIRE), "standalone", "--listen", "127.0.0.1:0"]
        command += ["--data-dir", str(tmp_path / "data"), "--metrics", "127.0.0.1:0"]
        for setting in (*SETTINGS, *settings):
            command += ["--set", setting]
        processes.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
        line = processes[-1].stdout.readline()
        assert line.startswith("ready listen="), line + processes[-1].stderr.read()
        return line.removeprefix("ready listen=").strip()

    yield run
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def compact(tmp_path):
    """compact(*arguments) -> (exit code, what is told of each partition, or the output)."""

    def run(*arguments):
        arguments = ["topics", "compact", *arguments, "--data-dir", str(tmp_path / "data")]
        result = CliRunner().invoke(main, [*arguments, "--json"])
        try:
            return result.exit_code, json.loads(result.stdout)
        except ValueError:
            return result.exit_code, result.output

    return run


def fill(server, topic, keys=5, rounds=10):
    """Each key `rounds` times; one is deleted at last. What is left."""
    producer = Producer({"bootstrap.servers": server, "linger.ms": 0})
    for number in range(rounds):
        for key in range(keys):
            producer.produce(topic, b"%d" % number, b"key-%d" % key, partition=0)
        assert producer.flush(30) == 0
    producer.produce(topic, None, b"key-0", partition=0)
    assert producer.flush(30) == 0
    return {b"key-%d" % key: b"%d" % (rounds - 1) for key in range(1, keys)}


def read(server, topic):
    """(offset, key, value) of every record."""
    consumer = Consumer(
        {
            "bootstrap.servers": server,
            "group.id": "none",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return found


def create(server, topic, **configs):
    admin = AdminClient({"bootstrap.servers": server})
    texts = {name.replace("_", "."): str(value) for name, value in configs.items()}
    admin.create_topics([NewTopic(topic, 1, config=texts)])[topic].result(30)


def rolled(compact, topic):
    """Until nothing of it is in an open ledger."""
    deadline = time.monotonic() + 60
    while True:
        _, [facts] = compact(topic, "--show")
        if facts["blocked_by"] is None and facts["dirty_ratio"] == 1.0:
            return facts
        assert time.monotonic() < deadline, facts
        time.sleep(0.2)


def test_compact_now(start, compact):
    server = start()
    create(server, "t", **NEVER)
    left = fill(server, "t")
    before = read(server, "t")
    rolled(compact, "t")
    code, [facts] = compact("t-0")
    assert code == 0
    assert (facts["partition"], facts["error"]) == ("t-0", None)
    assert facts["cleaned_to"] == facts["high_watermark"] == 51
    assert facts["records_dropped"] == 46
    assert facts["bytes_after"] < facts["bytes_before"]
    after = read(server, "t")
    assert {key: value for _, key, value in after if value is not None} == left
    assert set(after) < set(before)
    assert len(after) == 5, "the tombstone stays for delete.retention.ms"


def test_what_cannot_be_compacted(start, compact):
    server = start()
    create(server, "plain")
    assert compact("nothing")[0] == 1
    code, words = compact("plain")
    assert code == 1
    assert "cleanup.policy" in words
    code, [facts] = compact("plain", "--show")
    assert (code, facts["cleaned_to"]) == (0, 0)


def test_where_no_cleaner_runs(start, compact):
    server = start("log.cleaner.enable=false")
    create(server, "t", **NEVER)
    code, words = compact("t")
    assert code == 1
    assert "log.cleaner.enable" in words


def test_who_is_asked(tmp_path):
    result = CliRunner().invoke(main, ["topics", "compact", "t", "--data-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert "--url" in result.output
