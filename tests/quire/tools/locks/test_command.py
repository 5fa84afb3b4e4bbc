"""`quire locks` against a server in a process of its own."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from quire.cli import main
from quire.tools.locks import command

QUIRE = Path(sys.executable).parent / "quire"
WAIT_SECONDS = 100


@pytest.fixture
def server(tmp_path):
    command = [str(QUIRE), "standalone", "--listen", "127.0.0.1:0"]
    command += ["--data-dir", str(tmp_path / "data")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("ready listen="), line + process.stderr.read()
        yield line.removeprefix("ready listen=").strip()
    finally:
        process.kill()
        process.communicate()


def run(server, *arguments):
    """(exit code, the JSON, or the output)"""
    result = CliRunner().invoke(main, ["locks", *arguments, "--bootstrap-server", server, "--json"])
    try:
        return result.exit_code, json.loads(result.stdout)
    except ValueError:
        return result.exit_code, result.output


def write(server, topic, partition, *positions):
    """A record that WRITEs x for each; how many were taken."""
    producer = Producer({"bootstrap.servers": server, "linger.ms": 0, "batch.num.messages": 1})
    errors = []
    for position in positions:
        headers = [("quire.position", b"%d" % position), ("quire.lock.write", b"x")]
        producer.produce(
            topic,
            b"v",
            headers=headers,
            partition=partition,
            on_delivery=lambda error, _: errors.append(error),
        )
        assert producer.flush(WAIT_SECONDS) == 0
    return sum(error is None for error in errors)  # which has an == of its own


def test_a_topic_with_locks_is_valid_and_one_without_is_found_out(server):
    admin = AdminClient({"bootstrap.servers": server})
    topics = [
        NewTopic("bank", 2, config={"quire.locks": "optional"}),
        NewTopic("off-1", 1),
    ]
    for future in admin.create_topics(topics).values():
        future.result(WAIT_SECONDS)
    assert write(server, "bank", 1, 0, 0, 1) == 2
    assert write(server, "off-1", 0, 0, 0, 1) == 3

    code, told = run(server, "validate", "bank")
    assert (code, told["records"], told["records_with_locks"]) == (0, 2, 2)
    assert (told["partitions"], told["violation_count"]) == (2, 0)
    assert run(server, "validate", "bank-1")[1]["partitions"] == 1

    code, told = run(server, "validate", "off-1")
    assert (code, told["violation_count"]) == (1, 2)
    assert [one["offset"] for one in told["violations"]] == [1, 2]
    assert [one["written"] for one in told["violations"]] == [0, 1]

    code, rows = run(server, "position", "bank")
    assert (code, [(row["partition"], row["position"]) for row in rows]) == (
        0,
        [("bank-0", 0), ("bank-1", 2)],
    )


def test_what_is_not_there_is_an_error(server):
    code, said = run(server, "validate", "nothing")
    assert (code, said) == (1, "Error: there is no topic nothing\n")


def test_all_that_is_wrong_is_counted_and_some_of_it_told(server, monkeypatch):
    """In two partitions, with the same names; and not what was written after it began."""
    monkeypatch.setattr(command, "TOLD_MAX", 3)
    admin = AdminClient({"bootstrap.servers": server})
    admin.create_topics([NewTopic("off", 2)])["off"].result(WAIT_SECONDS)
    assert write(server, "off", 0, *[0] * 6) == 6
    assert write(server, "off", 1, 0) == 1, "x is another lock there"
    code, told = run(server, "validate", "off")
    assert (code, told["violation_count"], len(told["violations"])) == (1, 5, 3)
    assert (told["records"], told["partitions"]) == (7, 2)


def test_markers_of_transactions_are_no_records(server):
    admin = AdminClient({"bootstrap.servers": server})
    topic = NewTopic("marked", 1, config={"quire.locks": "optional"})
    admin.create_topics([topic])["marked"].result(WAIT_SECONDS)
    producer = Producer({"bootstrap.servers": server, "transactional.id": "one"})
    producer.init_transactions(WAIT_SECONDS)
    producer.begin_transaction()
    producer.produce("marked", b"v", partition=0)
    producer.commit_transaction(WAIT_SECONDS)
    until = time.monotonic() + WAIT_SECONDS
    while not write(server, "marked", 0, 2) and time.monotonic() < until:
        pass  # the marker comes a little later, and a position before it is ahead
    code, told = run(server, "validate", "marked")
    assert (code, told["records"], told["records_with_locks"]) == (0, 2, 1)
