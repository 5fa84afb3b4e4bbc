"""`quire cluster`: a whole cluster as processes, what its operator is told of it, and why a
partition is stuck that was made stuck on purpose."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from harness import paths
from harness.servers import die_with_parent, free_port

pytestmark = pytest.mark.skipif(
    os.environ.get("QUIRE_COMPAT_TARGET", "quire") != "quire", reason="our own command"
)
QUIRE = str(paths.python_script("quire"))


class Cluster:
    """A running `quire cluster up`."""

    def __init__(self, directory, brokers, bookies, *options):
        self.directory = directory
        self.brokers = brokers
        port = free_port(brokers)
        self.command = [QUIRE, "cluster", "up", "--directory", str(directory)]
        self.command += ["--brokers", str(brokers), "--bookies", str(bookies)]
        self.command += ["--listen-from", str(port), *options]
        self.process = None

    def start(self):
        self.output = self.directory.with_suffix(".out")
        with self.output.open("w") as out:
            self.process = subprocess.Popen(
                self.command, stdout=out, stderr=out, preexec_fn=die_with_parent
            )
        wait_for(lambda: "\nready " in self.said() or self.process.poll() is not None, "no start")
        assert self.process.poll() is None, self.said()
        return self

    def said(self):
        return self.output.read_text()

    def fact(self, name):
        return re.search(rf"^{name} +(\S+)", self.said(), re.M)[1]

    @property
    def bootstrap(self):
        return self.fact("brokers")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def pids(self):
        return {path.parent.name: int(path.read_text()) for path in self.directory.glob("*/pid")}

    def do(self, action, name):
        run([QUIRE, "cluster", action, name, "--directory", str(self.directory)])

    def ask(self, *arguments, code=0):
        uri = self.fact("metadata")
        return json.loads(
            run([QUIRE, "cluster", *arguments, "-u", uri, "--output", "json"], code=code)
        )

    def report(self, partition, *options):
        """Its exit code tells what it says."""
        command = [QUIRE, "cluster", "why", partition, "-u", self.fact("metadata"), *options]
        done = subprocess.run(
            [*command, "--json"], capture_output=True, text=True, timeout=60, check=False
        )
        report = json.loads(done.stdout)
        assert done.returncode == int(report["is_stuck"]), done.stdout + done.stderr
        return report

    def why(self, partition, *, options=()):
        report = self.report(partition, *options)
        assert report["is_stuck"]
        return report, " ".join(report["verdict"])

    def why_not(self, partition):
        """Once it is not stuck: a bookie that has no time for two seconds counts as silent."""
        reports = []
        wait_for(
            lambda: reports.append(self.report(partition)) or not reports[-1]["is_stuck"],
            "it is stuck",
        )
        return reports[-1], " ".join(reports[-1]["verdict"])

    def ask_why(self, partition):
        """The verdict's sentences; none if it is not stuck."""
        report = self.report(partition)
        return report["verdict"] if report["is_stuck"] else []

    def create(self, topic, copies):
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for future in admin.create_topics([NewTopic(topic, 1, copies)]).values():
            future.result(60)

    def produce(self, topic, values, timeout_s=90):
        """How many were acknowledged."""
        acked = []
        producer = Producer({"bootstrap.servers": self.bootstrap, "message.timeout.ms": 90_000})
        for value in values:
            producer.produce(topic, value, callback=lambda error, _: error or acked.append(1))
        producer.flush(timeout_s)
        return len(acked)


def run(command, code=0, **options):
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, **options
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 or done.stdout else done.stderr


def wait_for(condition, words, timeout_s=90):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, words
        time.sleep(0.05)


@pytest.fixture
def cluster(tmp_path):
    """cluster(brokers, bookies, *options) -> one that runs, ended with the test."""
    mine = []

    def start(brokers, bookies, *options):
        mine.append(Cluster(tmp_path / f"c{len(mine)}", brokers, bookies, *options))
        return mine[-1].start()

    yield start
    for one in mine:
        if one.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                for pid in one.pids().values():
                    os.kill(pid, signal.SIGCONT)
            one.process.kill()
            one.process.wait()


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_data_survive_and_nobody_outlives_it(cluster):
    one = cluster(2, 3)
    values = [b"%d" % number for number in range(50)]
    one.create("orders", 3)
    assert one.produce("orders", values) == len(values)
    pids = one.pids()
    assert sorted(pids) == ["bookie-1", "bookie-2", "bookie-3", "broker-1", "broker-2", "zookeeper"]
    assert one.stop() == 0
    assert not any(map(is_alive, pids.values()))
    assert one.pids() == {}
    one.start()
    consumer = Consumer(
        {"bootstrap.servers": one.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    found = []
    # Errors are told as messages, of a coordinator that is still coming up for instance.
    wait_for(
        lambda: (
            found.extend(m.value() for m in consumer.consume(100, 0.5) if m.error() is None)
            or len(found) >= len(values)
        ),
        "records are missing",
    )
    consumer.close()
    assert found == values
    pids = one.pids()
    one.process.kill()
    one.process.wait()
    wait_for(lambda: not any(map(is_alive, pids.values())), "a process outlived its parent")


def test_who_died_is_said_and_can_be_started_again(cluster):
    one = cluster(1, 3)
    one.do("kill", "bookie-2")
    wait_for(lambda: "bookie-2 was ended by SIGKILL" in one.said(), "nothing was said")
    wait_for(lambda: one.ask("bookies")[1]["mode"] == "unavailable", "its registration stays")
    status = one.ask("status", code=1)
    assert status["problems"] == ["bookies with a cookie that are not registered: bookie-2"]
    one.do("start", "bookie-2")
    wait_for(lambda: one.ask("bookies")[1]["mode"] == "writable", "it does not come back")
    assert one.ask("status") | {"controller": 1} == {
        "brokers": 1, "controller": 1, "bookies": 3, "bookies_writable": 3, "topics": 0,
        "partitions": 0, "partitions_without_leader": 0, "ledgers_under_replicated": 0,
        "problems": [],
    }  # fmt: skip


def test_why_too_few_bookies(cluster):
    one = cluster(1, 3)
    one.create("orders", 3)
    assert one.produce("orders", [b"1"]) == 1
    report, words = one.why_not("orders-0")
    assert words == "It is not stuck: its leader serves it."
    assert report["facts"]["high_watermark"] == 1
    assert [ledger["epoch"] for ledger in report["ledgers"]] == [0]
    for name in ("bookie-1", "bookie-2"):
        one.do("kill", name)
    producer = Producer({"bootstrap.servers": one.bootstrap, "message.timeout.ms": 120_000})
    producer.produce("orders", b"2")
    producer.poll(0)
    # Before that it is told how long the producer waits, and for whom.
    wait_for(lambda: "Start them" in str(one.ask_why("orders-0")), "it does not get stuck")
    report, words = one.why("orders-0")
    # What the last take-over was told may follow; it names the one that answers, too.
    culprits, found, _ = words.partition("Start them")
    assert found
    assert "bookie-1" in culprits
    assert "bookie-2" in culprits
    assert "bookie-3" not in culprits
    assert {row["bookie"] for row in report["bookies"] if row["answers"] != "yes"} == {
        "bookie-1",
        "bookie-2",
    }
    for name in ("bookie-1", "bookie-2"):
        one.do("start", name)
    assert producer.flush(90) == 0, one.why("orders-0")
    wait_for(lambda: not one.ask_why("orders-0"), "it stays stuck")


def test_why_the_owner_is_stopped(cluster):
    # It is asked for before the session ends, also on a busy machine.
    one = cluster(1, 1, "--broker-set", "zkTimeout=20000")
    one.create("orders", 1)
    assert one.produce("orders", [b"1"]) == 1
    pid = one.pids()["broker-1"]
    os.kill(pid, signal.SIGSTOP)
    _, words = one.why("orders-0")
    assert words.startswith("Broker 1 is registered, but does not answer at http://127.0.0.1:")
    wait_for(lambda: one.ask_why("orders-0") == ["No broker is registered: start one."],
             "its session stays")  # fmt: skip
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: not one.ask_why("orders-0"), "it does not come back")
    assert one.produce("orders", [b"2"]) == 1


def test_why_zookeeper_is_gone(cluster):
    one = cluster(1, 1)
    one.create("orders", 1)
    assert one.produce("orders", [b"1"]) == 1
    pages = one.ask("brokers")[0]["pages"]
    one.do("kill", "zookeeper")
    _, words = one.why("orders-0")
    assert words.startswith("Metadata cannot be asked: ")
    assert "Owners go on serving" in words
    report, words = one.why("orders-0", options=("--pages", pages))
    assert f"The broker at {pages} serves the partition." in words
    assert report["facts"]["high_watermark"] == 1
    assert one.produce("orders", [b"2"]) == 1  # and it does
    one.do("start", "zookeeper")
    wait_for(lambda: not one.ask_why("orders-0"), "it does not come back")


def test_why_entries_are_unreadable(cluster):
    one = cluster(1, 2)
    one.create("orders", 1)
    assert one.produce("orders", [b"1"]) == 1
    report, _ = one.why_not("orders-0")
    (bookie,) = report["ledgers"][0]["ensemble"]
    one.do("kill", bookie)
    wait_for(lambda: "nobody can read" in str(one.ask_why("orders-0")), "nothing is seen")
    _, words = one.why("orders-0")
    assert "from offset 0 on, has entries that nobody can read" in words
    assert words.rstrip(".").endswith(bookie)


def test_without_java_without_maven(tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    environment = {"PATH": str(tools), "QUIRE_CACHE": str(tmp_path / "cache")}
    command = [QUIRE, "cluster", "up", "--directory", str(tmp_path / "c")]
    said = run(command, code=1, env=environment)
    assert "ZooKeeper needs Java" in said
    (tools / "java").symlink_to(shutil.which("java"))
    said = run(command, code=1, env=environment)
    assert "there is no `mvn` in PATH" in said
    maven = tools / "mvn"
    maven.write_text("#!/bin/sh\necho 'Could not transfer: network unreachable'\nexit 1\n")
    maven.chmod(0o755)
    said = run(command, code=1, env=environment | {"PATH": f"{tools}:/bin"})
    assert "is there a network" in said
    assert "network unreachable" in said
    maven.write_text("#!/bin/sh\nfor a; do d=${a#-DoutputDirectory=}; done\nmkdir -p $d\n"
                     "for n in $WANTED; do echo no jar > $d/$n; done\n")  # fmt: skip
    wanted = [path.name for path in (paths.cache_dir() / "zookeeper-3.9.5").glob("*.jar")]
    environment |= {"PATH": f"{tools}:/bin", "WANTED": " ".join(wanted)}
    said = run(command, code=1, env=environment)
    assert "what Maven gave is not ZooKeeper" in said
    assert "SHA-256" in said
    assert list((tmp_path / "cache").glob("zookeeper-*")) == []
