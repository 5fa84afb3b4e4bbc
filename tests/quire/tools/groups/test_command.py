"""`quire groups why` against a server in a process of its own, with clients of another project."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from quire.cli import main

QUIRE = Path(sys.executable).parent / "quire"
SETTINGS = (
    *("offsets.topic.num.partitions=1", "group.initial.rebalance.delay.ms=0"),
    *("journalMaxSizeMB=14", "journalMaxBackups=1"),
)
WAIT_SECONDS = 100
PARTITIONS = 4


@pytest.fixture
def server(tmp_path):
    """Its address; with pages, on tmp_path / data, and topic «t»."""
    command = [str(QUIRE), "standalone", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    command += ["--data-dir", str(tmp_path / "data")]
    for setting in SETTINGS:
        command += ["--set", setting]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("ready listen="), line + process.stderr.read()
        address = line.removeprefix("ready listen=").strip()
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic("t", PARTITIONS)])["t"].result(WAIT_SECONDS)
        yield address
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def why(server, tmp_path):
    """why(group) -> (exit code, the report, or the output)."""

    def run(group, *arguments, data="data"):
        arguments = ["--bootstrap-server", server, "--data-dir", str(tmp_path / data), *arguments]
        result = CliRunner().invoke(main, ["groups", "why", group, *arguments, "--json"])
        try:
            return result.exit_code, json.loads(result.stdout)
        except ValueError:
            return result.exit_code, result.output

    return run


@pytest.fixture
def consumer(server):
    """consumer(client id, protocol) -> one of group «g», subscribed to «t»."""
    made = []

    def start(client_id, protocol):
        config = {
            "bootstrap.servers": server,
            "group.id": "g",
            "client.id": client_id,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        made.append(Consumer(config))
        made[-1].subscribe(["t"])
        return made[-1]

    yield start
    for each in made:
        each.close()


def polled(*consumers, until):
    """Everybody polls until it holds; all messages."""
    deadline = time.monotonic() + WAIT_SECONDS
    found = []
    while not until():
        assert time.monotonic() < deadline
        for each in consumers:
            message = each.poll(0.1)
            if message is not None and message.error() is None:
                found.append(message)
    return found


def produce(server, count, *, age_ms=0):
    producer = Producer({"bootstrap.servers": server})
    at_ms = int(time.time() * 1000) - age_ms
    for number in range(count):
        producer.produce("t", b"x", partition=number % PARTITIONS, timestamp=at_ms)
    assert producer.flush(WAIT_SECONDS) == 0


@pytest.mark.parametrize(
    ("protocol", "late_with"),
    [("consumer", "partitions that it is to give back"), ("classic", "JoinGroup")],
)
def test_one_of_two_stands_still(server, why, consumer, protocol, late_with):
    """It goes on to send heartbeats, so that only the others' wait shows it."""
    first = consumer("first", protocol)
    polled(first, until=lambda: len(first.assignment()) == PARTITIONS)
    code, told = why("g")
    assert (code, told["is_stuck"], told["facts"]["state"]) == (0, False, "Stable")
    assert told["facts"]["type"] == protocol
    [member] = told["members"]
    assert (member["client"], member["has"], member["late_with"]) == ("first", "t-0,1,2,3", None)
    assert 0 <= member["silent_ms"] < 60_000

    second = consumer("second", protocol)
    polled(second, until=lambda: why("g")[0])  # the first one does not poll
    code, told = why("g")
    assert (code, told["is_stuck"]) == (1, True)
    late = {each["client"]: each["late_with"] for each in told["members"]}
    assert late["first"] == late_with
    held = next(each for each in told["members"] if each["client"] == "first")
    assert held["late_ms"] >= 0
    assert f"The group waits for {held['member']}: {late_with}, since" in told["verdict"][0]
    if protocol == "consumer":
        assert held["has"] == "t-0,1,2,3"
        assert len(held["is_to_have"]) == len("t-0,1")
        assert told["facts"]["last_rebalance"].endswith(" joined")
    assert told["facts"]["last_rebalance"] in told["verdict"][-1]

    polled(
        *(first, second),
        until=lambda: len(first.assignment()) == len(second.assignment()) == PARTITIONS / 2,
    )
    polled(first, second, until=lambda: not why("g")[0])


def test_lag_in_offsets_and_in_time(server, why, consumer):
    only = consumer("only", "consumer")
    polled(only, until=lambda: len(only.assignment()) == PARTITIONS)
    produce(server, 3 * PARTITIONS, age_ms=600_000)
    taken = []
    while len(taken) < 3 * PARTITIONS:
        message = only.poll(WAIT_SECONDS)
        assert message is not None
        assert message.error() is None
        taken.append(message)
    for message in taken:
        if message.offset() == (2 if message.partition() else 0):
            only.commit(message, asynchronous=False)
    code, told = why("g")
    rows = {each["partition"]: each for each in told["partitions"]}
    assert [rows[f"t-{number}"]["lag"] for number in range(PARTITIONS)] == [2, 0, 0, 0]
    assert (rows["t-0"]["committed"], rows["t-0"]["end"]) == (1, 3)
    assert 600_000 <= rows["t-0"]["behind_ms"] < 600_000 + 2 * WAIT_SECONDS * 1000
    assert rows["t-1"]["behind_ms"] is None
    assert (told["facts"]["lag"], told["members"][0]["lag"]) == (2, 2)
    assert (code, told["is_stuck"]) == (1, True)
    assert "is behind: t-0 (2 records, 10 min)." in told["verdict"][0]


def test_without_pages_it_says_what_it_does_not_know(why, consumer):
    only = consumer("only", "consumer")
    polled(only, until=lambda: len(only.assignment()) == PARTITIONS)
    code, told = why("g", data="elsewhere")
    assert code == 0
    assert told["members"][0]["silent_ms"] is None
    assert told["facts"]["last_rebalance"] is None
    assert "--url" in told["verdict"][-1]


def test_what_is_not_there(server, why, tmp_path):
    code, words = why("nobody")
    assert code == 1
    assert "there is no group nobody of consumers" in words
    result = CliRunner().invoke(
        main, ["groups", "why", "g", "--bootstrap-server", "127.0.0.1:1", "--url", "http://[::1]:1"]
    )
    assert result.exit_code == 1
    assert "127.0.0.1:1 does not answer" in result.output


def test_as_text(server, consumer, tmp_path):
    only = consumer("only", "classic")
    polled(only, until=lambda: len(only.assignment()) == PARTITIONS)
    result = CliRunner().invoke(
        main,
        ["groups", "why", "g", "--bootstrap-server", server, "--data-dir", str(tmp_path / "data")],
    )
    assert result.exit_code == 0, result.output
    assert "\ng: not stuck\n" in result.output
    assert "t-0,1,2,3" in result.output
