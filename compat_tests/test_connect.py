"""Kafka Connect, distributed: file to topic to file, with a worker and the server killed between.

A worker keeps its connectors, their offsets and their states in three compacted topics, and nothing
else. With exactly_once support a source's offsets are written in the transaction of its records.
"""

import itertools
import json
import threading
import time
import urllib.error
import urllib.request

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource
from harness import kafka_java, servers, tools
from harness.history import read_all

pytestmark = pytest.mark.timeout(400)

LINES = 6000
WORKER = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "offset.flush.interval.ms": "500",
    "session.timeout.ms": "4000",
    "heartbeat.interval.ms": "1000",
    # Nobody waits for a worker that was killed.
    "scheduled.rebalance.max.delay.ms": "0",
    "consumer.isolation.level": "read_committed",
    "consumer.session.timeout.ms": "4000",
    "consumer.heartbeat.interval.ms": "1000",
    "reconnect.backoff.max.ms": "200",
}
STORES = ("config", "offset", "status")


class Worker:
    """One worker: the program, and its REST interface."""

    def __init__(self, directory, bootstrap, group, support):
        self.port = servers.free_port()
        self.group = group
        words = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "listeners": f"http://{servers.HOST}:{self.port}",
            "exactly.once.source.support": support,
            **{f"{store}.storage.topic": f"{group}-{store}" for store in STORES},
            **{f"{store}.storage.replication.factor": "1" for store in STORES},
            **{f"{store}.storage.partitions": "2" for store in STORES if store != "config"},
            **WORKER,
        }
        directory.mkdir()
        file = directory / "worker.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in words.items()))
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        self.program = kafka_java.Program(directory, "worker", main, str(file))

    def call(self, method, path, body=None):
        """What the worker answers, as JSON; urllib.error.URLError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{servers.HOST}:{self.port}{path}",
            data,
            {"Content-Type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def start(self):
        self.program.start()
        self.wait_until("/connectors", lambda names: names is not None)

    def wait_until(self, path, is_so, timeout_s=90):
        deadline = time.monotonic() + timeout_s
        while True:
            found = None
            try:
                found = self.call("GET", path)
                if is_so(found):
                    return
            except (urllib.error.URLError, OSError) as error:
                found = error
            is_over = time.monotonic() > deadline or self.program.process.poll() is not None
            if is_over:
                raise tools.ToolFailed(f"worker, {path}: {found}\n{self.program.said()[-8000:]}")
            time.sleep(0.1)

    def add(self, name, **config):
        self.call("PUT", f"/connectors/{name}/config", {"tasks.max": "1", **config})

    def state(self):
        return json.dumps(self.call("GET", "/connectors?expand=status"))

    def wait_until_running(self, name):
        def is_running(status):
            states = [status["connector"]["state"], *(each["state"] for each in status["tasks"])]
            return states == ["RUNNING", "RUNNING"]

        self.wait_until(f"/connectors/{name}/status", is_running)


@pytest.fixture
def start_worker(scratch, name):
    """start_worker(bootstrap, support) -> a Worker that answers."""
    made = []

    def start(bootstrap, support):
        made.append(Worker(scratch / name("worker"), bootstrap, name("connect"), support))
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.program.kill()
        print(one.program.said()[-6000:])  # pytest shows it if the test has failed


class Growing(threading.Thread):
    """A file that gets its lines little by little, and then others until it is told to stop: what
    FileStreamSource has read beyond a batch it only gives out when there is more to read."""

    def __init__(self, path, lines):
        super().__init__(daemon=True)
        self.path, self.lines, self.stopping = path, lines, threading.Event()
        path.touch()

    def run(self):
        with self.path.open("a") as file:
            for first in itertools.count(0, 20):
                file.writelines(f"{line}\n" for line in self.lines[first : first + 20] or ["more"])
                file.flush()
                if self.stopping.wait(0.04):
                    return


def wait_for(condition, state, timeout_s=120):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"lines are missing: {state()}"
        time.sleep(0.2)


@pytest.mark.parametrize("support", [pytest.param("disabled", marks=pytest.mark.long), "enabled"])
def test_file_to_topic_to_file(start_server, start_worker, scratch, name, support):
    server = start_server({"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"})
    worker = start_worker(server.bootstrap, support)
    topic, source, sink = name("lines"), scratch / name("source"), scratch / name("sink")
    expected = [f"line {number}" for number in range(LINES)]
    growing = Growing(source, expected)
    growing.start()
    exactly = {"exactly.once.support": "required", "transaction.boundary": "poll"}
    worker.add(
        "source",
        **{"connector.class": "FileStreamSource", "file": str(source), "topic": topic},
        **(exactly if support == "enabled" else {}),
    )
    worker.add(
        "sink",
        **{"connector.class": "FileStreamSink", "file": str(sink), "topics": topic},
    )
    for connector in ("source", "sink"):
        worker.wait_until_running(connector)

    def copied():
        return len(sink.read_text().splitlines()) if sink.exists() else 0

    wait_for(lambda: copied() > LINES / 10, worker.state)
    worker.program.kill()
    worker.start()
    for connector in ("source", "sink"):
        worker.wait_until_running(connector)
    server.kill()
    server.start()
    wait_for(lambda: set(expected) <= set(sink.read_text().splitlines()), worker.state)
    growing.stopping.set()
    growing.join()
    found = read_all(server.bootstrap, topic, 4, "read_committed")
    rows = [value.decode() for of_partition in found.values() for _, value in of_partition]
    rows = [row for row in rows if row != "more"]
    if support == "enabled":
        assert sorted(rows) == sorted(expected)
    else:  # what was not acknowledged before the kill is written again
        assert set(rows) == set(expected)

    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    stores = [ConfigResource("topic", f"{worker.group}-{store}") for store in STORES]
    for future in admin.describe_configs(stores).values():
        assert future.result(30)["cleanup.policy"].value == "compact"
    status = worker.call("GET", "/connectors?expand=status")
    assert set(status) == {"source", "sink"}
    worker.program.stop()
