"""`quire locks bench` against a server in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from quire.cli import main
from quire.tools.groups.client import KafkaClient
from quire.tools.locks.bench import PartitionWriter
from quire.tools.locks.bench_core import Tally
from quire.tools.locks.reading import bounds
from runtime.together import Stop

QUIRE = Path(sys.executable).parent / "quire"
WAIT_SECONDS = 100
TOPICS = {
    "two": (2, {"quire.locks": "optional"}),
    "one": (1, {"quire.locks": "optional"}),
    "few": (1, {"quire.locks": "optional"}),
    "required": (1, {"quire.locks": "required"}),
    "off": (1, {}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    command = [str(QUIRE), "standalone", "--listen", "127.0.0.1:0"]
    command += ["--data-dir", str(tmp_path_factory.mktemp("bench") / "data")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("ready listen="), line + process.stderr.read()
        listen = line.removeprefix("ready listen=").strip()
        admin = AdminClient({"bootstrap.servers": listen})
        topics = [NewTopic(name, of, config=config) for name, (of, config) in TOPICS.items()]
        for future in admin.create_topics(topics).values():
            future.result(WAIT_SECONDS)
        yield listen
    finally:
        process.kill()
        process.communicate()


def run(server, command, *arguments):
    """(exit code, the JSON, or the output)"""
    words = ["locks", command, *map(str, arguments), "--bootstrap-server", server, "--json"]
    result = CliRunner().invoke(main, words)
    try:
        return result.exit_code, json.loads(result.stdout)
    except ValueError:
        return result.exit_code, result.output


def records(server, topic, partition, count):
    settings = {"bootstrap.servers": server, "group.id": "reads"}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0)])
    try:
        found = consumer.consume(count, WAIT_SECONDS)
        assert [one.error() for one in found] == [None] * count
        return found
    finally:
        consumer.close()


def test_producers_with_one_lock_are_in_each_others_way_and_all_is_valid(server):
    shape = ("--producers", 3, "--records", 20, "--size", 100, "--interval-ms", 0, "--locks", 1)
    code, told = run(server, "bench", "one", *shape)
    assert (code, told["accepted"], told["partitions"], told["locks"]) == (0, 60, 1, 1)
    assert told["attempts"] == 60 + told["refused"]
    assert told["refused"] > 0
    assert told["refused_falsely"] == 0, "each was refused for a record that it could then read"
    assert told["refused_share"] == round(told["refused"] / told["attempts"], 4)
    assert 0 < told["p50_ms"] <= told["p99_ms"]
    code, audit = run(server, "validate", "one")
    assert (code, audit["records"], audit["records_with_locks"]) == (0, 60, 60)
    for record in records(server, "one", 0, 60):
        position, lock = record.headers()
        assert lock == ("quire.lock.write", b"bench/0")
        assert position[0] == "quire.position"
        assert int(position[1]) <= record.offset()
        assert len(record.value()) == 100


def test_without_locks_nothing_is_refused_and_each_partition_has_some(server):
    shape = ("--producers", 2, "--records", 20, "--interval-ms", 1, "--size", 0)
    code, told = run(server, "bench", "two", *shape)
    assert (code, told["accepted"], told["refused"], told["partitions"]) == (0, 40, 0, 2)
    code, rows = run(server, "position", "two")
    ends = [row["position"] for row in rows]
    assert sum(ends) == 40
    assert min(ends) > 0
    assert [one.headers() for one in records(server, "two", 0, ends[0])] == [None] * ends[0]
    code, told = run(server, "bench", "two-1", *shape)
    assert (code, told["partitions"]) == (0, 1)
    assert [row["position"] for row in run(server, "position", "two")[1]] == [ends[0], ends[1] + 40]


def test_a_refusal_is_false_if_nobody_wrote_the_lock(server):
    """A table that was made anew knows nothing of what was written before."""
    host, port = server.split(":")
    tally = Tally()
    with KafkaClient((host, int(port))) as client:
        _, found = bounds(client, "few")
        behind, ahead = (PartitionWriter(client, "few", found[0], tally, Stop()) for _ in range(2))
        assert ahead.commit(b"v", b"x", 0)
        assert tally.attempts == 0, "times are for who measures them"
        assert behind.commit(b"v", b"x", 0)
        assert (tally.refused, tally.refused_falsely) == (1, 0)

        ahead.read_on()
        assert ahead.commit(b"v", b"y", 0)
        resize(server, "few", 2003)
        assert behind.commit(b"v", b"x", 0)
        assert (tally.refused, tally.refused_falsely) == (2, 1)
    assert run(server, "validate", "few")[1]["records"] == 4


def resize(server, topic, size):
    entry = ConfigEntry(
        "quire.locks.table.size", str(size), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": server})
    admin.incremental_alter_configs([resource])[resource].result(WAIT_SECONDS)


def test_what_cannot_be_measured_is_refused_and_writes_nothing(server):
    code, said = run(server, "bench", "off", "--locks", 4)
    assert (code, said) == (1, "Error: off has quire.locks=off: nothing would be refused\n")
    assert run(server, "position", "off")[1][0]["position"] == 0
    code, said = run(server, "bench", "nothing")
    assert (code, said) == (1, "Error: there is no topic nothing\n")
    code, said = run(server, "bench", "required", "--producers", 2)
    assert code == 1
    assert said.startswith("Error: required-0: INVALID_RECORD: LOCK_HEADERS")
    assert run(server, "bench", "one", "--producers", 0)[0] == 2


def test_the_help_says_that_it_writes():
    said = CliRunner().invoke(main, ["locks", "bench", "--help"]).output
    assert "WRITES records into the topic that you name, and into no other" in " ".join(
        said.split()
    )
