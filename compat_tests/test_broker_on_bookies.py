"""`quire broker` on Java's bookies and ZooKeeper: librdkafka's and Java's clients, a Java bookie
killed under load and another started, then the broker killed. Nothing acknowledged is lost."""

import itertools
import json
import os
import subprocess
import threading
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from harness import figures, servers, tools
from harness.bookkeeper import Cluster, JavaBookie
from harness.brokers import Broker
from harness.history import Watcher, Writer, check, read_all

pytestmark = pytest.mark.skipif(servers.target() != "quire", reason="about our own broker")

PARTITIONS = 4
JAVA_RECORDS = 1000


def wait_for(condition, timeout_s, what):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


class JavaProducer(threading.Thread):
    """Kafka's VerifiableProducer, idempotent: the numbers 0, 1, 2 ... and what became of each."""

    def __init__(self, bootstrap, topic, config, records):
        super().__init__(daemon=True)
        self.acked = {}  # number -> (partition, offset)
        self.failed = []
        config.write_text(
            "enable.idempotence=true\nretries=2147483647\nacks=all\ndelivery.timeout.ms=120000\n"
            "request.timeout.ms=5000\nlinger.ms=2\nreconnect.backoff.max.ms=200\n"
        )
        words = ["--bootstrap-server", bootstrap, "--topic", topic, "--throughput", "100"]
        words += ["--max-messages", str(records), "--command-config", str(config)]
        self.process = subprocess.Popen(
            tools.java_command("VerifiableProducer", *words),
            env={**os.environ, **tools.java_environment()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self):
        with self.process.stdout as lines:
            for line in lines:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                if event.get("name") == "producer_send_success":
                    self.acked[int(event["value"])] = (event["partition"], event["offset"])
                elif event.get("name") == "producer_send_error":
                    self.failed.append(event)


class Stalls(threading.Thread):
    """Looks every few milliseconds whether anything more was acknowledged."""

    def __init__(self, writer):
        super().__init__(daemon=True)
        self.writer = writer
        self.moments = []
        self.stopping = threading.Event()

    def run(self):
        count = 0
        while not self.stopping.wait(0.002):
            if len(self.writer.acked) > count:
                count = len(self.writer.acked)
                self.moments.append(time.monotonic())

    def longest_ms(self, since):
        moments = [since, *(each for each in self.moments if each > since)]
        return 1000 * max((b - a for a, b in itertools.pairwise(moments)), default=0.0)


@pytest.fixture
def cluster(scratch, name):
    one = Cluster(scratch / name("java-bookies"))
    yield one
    one.discard()


@pytest.fixture
def broker(scratch, name, cluster):
    one = Broker(scratch / name("broker"), 1, cluster.uri)
    yield one
    one.discard()


def check_java(producer, rows):
    """Each once, where it was acknowledged, in the order of sending."""
    numbers = [int(value) for _, value in rows[0]]
    assert producer.failed == []
    assert numbers == list(range(JAVA_RECORDS))
    assert {number: (0, offset) for number, (offset, _) in zip(numbers, rows[0], strict=True)} == (
        producer.acked
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bookies", [3, 4])
def test_a_java_bookie_and_the_broker_killed_under_load(cluster, broker, topic, scratch, bookies):
    cluster.start(*[JavaBookie] * bookies)
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for made in admin.create_topics(
        [NewTopic(topic, PARTITIONS, 3), NewTopic(f"{topic}-java", 1, 3)]
    ).values():
        made.result(60)
    writer = Writer(broker.bootstrap, topic, PARTITIONS)
    watcher = Watcher(broker.bootstrap, topic, PARTITIONS)
    stalls = Stalls(writer)
    java = JavaProducer(
        broker.bootstrap, f"{topic}-java", scratch / f"{topic}.properties", JAVA_RECORDS
    )
    for thread in (java, writer, watcher, stalls):
        thread.start()
    wait_for(lambda: len(writer.acked) > 1000 and len(java.acked) > 50, 120, "no load")

    killed = time.monotonic()
    cluster.bookies[0].kill()
    acked = len(writer.acked)
    wait_for(lambda: len(writer.acked) > acked + 2000, 120, "no load without the bookie")
    bookie_ms = stalls.longest_ms(killed)
    started = time.monotonic()
    cluster.start(JavaBookie)
    acked = len(writer.acked)
    wait_for(lambda: len(writer.acked) > acked + 2000, 120, "no load with the new bookie")
    arrival_ms = stalls.longest_ms(started)

    broker_killed = time.monotonic()
    broker.kill()
    broker.start()
    acked = len(writer.acked)
    wait_for(lambda: len(writer.acked) > acked + 500, 120, "no load after the broker's restart")
    broker_ms = stalls.longest_ms(broker_killed)
    wait_for(lambda: java.process.poll() is not None, 120, "Java's producer does not end")
    java.join(60)
    assert writer.finish() == 0
    watcher.finish()
    stalls.stopping.set()
    rows = read_all(broker.bootstrap, topic, PARTITIONS)
    assert check(writer, watcher, rows)[:10] == []
    check_java(java, read_all(broker.bootstrap, f"{topic}-java", 1))
    read = tools.java(
        *("kafka-console-consumer", "--bootstrap-server", broker.bootstrap, "--topic", topic),
        *("--from-beginning", "--max-messages", str(len(writer.acked)), "--timeout-ms", "60000"),
        timeout_s=180,
    )
    values = [line for line in read.splitlines() if line.endswith("..")]
    assert sorted(values) == sorted(writer.value(n).decode() for n in writer.acked)
    figures.add(
        f"broker on {bookies} Java bookies: {len(writer.acked) + len(java.acked)} records "
        f"acknowledged, none lost; longest stall {bookie_ms:.0f} ms after a bookie's SIGKILL, "
        f"{arrival_ms:.0f} ms while another came, {broker_ms:.0f} ms over the broker's"
    )
