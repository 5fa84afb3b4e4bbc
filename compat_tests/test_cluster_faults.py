"""Faults that Java's clients and groups go through, on several brokers; clients at their default
settings over a rolling restart; brokers and ZooKeeper a long way off.

What librdkafka's idempotent producer alone goes through is in test_broker_cluster.py; lines that
are cut, in test_cluster_faults_network.py.
"""

import threading
import time
from types import SimpleNamespace

import pytest
from chaos.kafka_groups import JavaGroup
from chaos.kafka_writers import JavaWriting
from chaos.run import Run
from chaos.world import Options
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from harness import figures, servers
from harness.brokers import Broker, BrokerCluster, wait_for
from harness.history import Watcher, Writer, check, read_all
from harness.slow_proxy import SlowProxy

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(servers.target() != "quire", reason="about our own processes"),
]

#: On a machine that has other things to do: a session, a take-over, a client's timeout and more.
STALL_MAX_MS = 45_000


@pytest.mark.timeout(900)
def test_java_clients_and_groups_through_kills(scratch, name):
    """Java's idempotent producer, its group, librdkafka's, and kcat, over SIGKILL of a broker and
    of ZooKeeper, which starts again on its data."""
    faults = ("broker SIGKILL", "ZooKeeper SIGKILL")
    report = Run(
        scratch / name("run"),
        Options(seed=7, minutes=0, scenario="cluster", bookies=3, brokers=3, faults=faults),
    )()
    for line in report.lines:
        figures.add(f"cluster faults: {line}")
    assert report.wrong == []
    assert [strike.name for strike in report.strikes] == list(faults)
    assert max(max(each.values()) for each in report.stalls_ms) < STALL_MAX_MS


class DefaultWriter(threading.Thread):
    """librdkafka's producer as it is shipped, but for where to connect."""

    def __init__(self, bootstrap, topic):
        super().__init__(daemon=True)
        self.topic = topic
        self.failed = []
        self.acked_count = 0
        self.stopping = threading.Event()
        self.producer = Producer({"bootstrap.servers": bootstrap})

    def _told(self, error, _):
        if error is None:
            self.acked_count += 1
        else:
            self.failed.append(error.str())

    def run(self):
        number = 0
        while not self.stopping.is_set():
            self.producer.produce(self.topic, b"%d" % number, on_delivery=self._told)
            number += 1
            self.producer.poll(0.005)

    def finish(self):
        self.stopping.set()
        self.join(10)
        assert self.producer.flush(90) == 0


class DefaultReader(threading.Thread):
    """librdkafka's consumer as it is shipped, in a group."""

    def __init__(self, bootstrap, topic):
        super().__init__(daemon=True)
        self.failed = []
        self.values = set()
        self.stopping = threading.Event()
        settings = {"bootstrap.servers": bootstrap, "group.id": topic}
        self.consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
        self.consumer.subscribe([topic])

    def run(self):
        while not self.stopping.is_set():
            for message in self.consumer.consume(500, 0.1):
                if message.error() is None:
                    self.values.add(message.value())
                else:
                    self.failed.append(message.error().str())
        self.consumer.close()


class DefaultJavaWriting(JavaWriting):
    """VerifiableProducer has no retries unless it is told; the rest is as shipped."""

    name = "java-default"
    SETTINGS = "retries=2147483647\n"


@pytest.fixture(scope="module")
def cluster(scratch):
    """Three brokers that clients reach through a proxy each, and that reach ZooKeeper through one.
    Every test leaves the lines as they were."""
    made = BrokerCluster(scratch / "behind-proxies")
    proxies = []
    try:
        # Its bookies are next to it.
        made.start(brokers=0, bookies=3)
        zookeeper = SlowProxy((servers.HOST, made.zookeeper.port))
        proxies.append(zookeeper)
        uri = f"zk+hierarchical://{zookeeper.address}/ledgers"
        for node_id in (1, 2, 3):
            broker = Broker(made.directory / f"broker-{node_id}", node_id, uri)
            broker.proxy = SlowProxy((servers.HOST, broker.port))
            proxies.append(broker.proxy)
            broker.settings["advertised.listeners"] = f"PLAINTEXT://{broker.proxy.address}"
            made.brokers.append(broker)
            broker.start()
        made.zookeeper_proxy = zookeeper
        yield made
    finally:
        made.discard()
        for proxy in proxies:
            proxy.close()


def bootstrap_of(cluster):
    return ",".join(broker.proxy.address for broker in cluster.brokers)


def create(cluster, topic, partitions=3):
    admin = AdminClient({"bootstrap.servers": bootstrap_of(cluster), "log_level": 0})
    cluster.wait_until_all_run()
    admin.create_topics([NewTopic(topic, partitions, 3)])[topic].result(60)

    def is_known_to(broker):
        one = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        found = one.list_topics(topic, timeout=30).topics[topic].partitions
        return len(found) == partitions and all(each.leader > 0 for each in found.values())

    # librdkafka's consumer tells of an error if it asks one that has not heard of the topic.
    for broker in cluster.brokers:
        wait_for(lambda broker=broker: is_known_to(broker), 60, "the topic is not known to all")


@pytest.mark.timeout(900)
def test_no_request_fails_at_default_settings_over_a_rolling_restart(cluster, topic):
    create(cluster, topic)
    writer = DefaultWriter(bootstrap_of(cluster), topic)
    reader = DefaultReader(bootstrap_of(cluster), topic)
    world = SimpleNamespace(bootstrap=bootstrap_of(cluster), directory=cluster.directory)
    java = DefaultJavaWriting(world)
    group = JavaGroup(world, java)
    try:
        for each in (java, group, writer, reader):
            each.start()

        def more():
            counts = writer.acked_count, java.record_count, len(reader.values)
            wait_for(
                lambda: all(
                    now > before + 50
                    for now, before in zip(
                        (writer.acked_count, java.record_count, len(reader.values)),
                        counts,
                        strict=True,
                    )
                ),
                120,
                "no load",
            )

        more()
        for broker in cluster.brokers:
            assert broker.stop() == 0
            more()
            broker.start()
            more()
        writer.finish()
        java.finish()
        group.finish()
        wait_for(lambda: len(reader.values) >= writer.acked_count, 120, "not all was read")
    finally:
        reader.stopping.set()
        reader.join(30)
        java.close()
        group.close()
    assert (writer.failed, reader.failed, java.wrong) == ([], [], [])
    assert group.check(java.read_all()) == []
    rows = read_all(bootstrap_of(cluster), topic, 3)
    doubled = sum(map(len, rows.values())) - writer.acked_count
    java_rows = java.read_all()
    assert sum(map(len, java_rows.values())) == java.record_count  # idempotent by default
    figures.add(
        f"rolling restart, clients at default settings: librdkafka {writer.acked_count} acked, "
        f"failed 0, {doubled} twice (it is not idempotent by default); Java {java.record_count} "
        f"acked, failed 0, longest stall {java.gaps[0].all_ms()[-1]:.0f} ms"
    )


@pytest.mark.timeout(900)
def test_a_long_way_to_brokers_and_to_zookeeper(cluster, topic):
    """Slow lines with jitter, and resets, change when things happen and not what."""
    create(cluster, topic)
    writer = Writer(bootstrap_of(cluster), topic, 3)
    watcher = Watcher(bootstrap_of(cluster), topic, 3)
    lines = [broker.proxy for broker in cluster.brokers]
    rates = {}

    def measure(words, count):
        before, since = len(writer.acked), time.monotonic()
        wait_for(lambda: len(writer.acked) >= before + count, 120, f"no load, {words}")
        rates[words] = count / (time.monotonic() - since)

    writer.start()
    watcher.start()
    try:
        wait_for(lambda: len(written_since(writer, 0)) == 3, 120, "no load")
        measure("near", 2000)
        for line in lines:
            line.delay_ms, line.jitter_ms = 50, 50
        measure("50-100 ms each way", 2000)
        assert sum(line.reset() for line in lines) > 0
        measure("after resets", 1000)
        for line in lines:
            line.delay_ms = line.jitter_ms = 0
        cluster.zookeeper_proxy.delay_ms = 100
        # A take-over needs some of ZooKeeper's answers one after another.
        led = []
        wait_for(lambda: led.append(leaders(cluster, topic)) or -1 not in led[-1], 60, led)
        victim = cluster.broker(led[-1][0])
        since = time.monotonic()
        victim.kill()
        wait_for(
            lambda: not {-1, victim.node_id} & set(leaders(cluster, topic)), 120, "nothing moves"
        )
        before = len(writer.acked)
        wait_for(lambda: len(written_since(writer, before)) == 3, 120, "a partition takes nothing")
        taken_s = time.monotonic() - since
        victim.start()
        assert cluster.zookeeper_proxy.reset() > 0
        measure("after ZooKeeper's resets", 500)
    finally:
        cluster.zookeeper_proxy.delay_ms = 0
        for line in lines:
            line.delay_ms = line.jitter_ms = 0
        writer.stopping.set()
    assert writer.finish() == 0
    watcher.finish()
    assert check(writer, watcher, read_all(bootstrap_of(cluster), topic, 3)) == []
    told = ", ".join(f"{words}: {rate:.0f}" for words, rate in rates.items())
    figures.add(
        f"slow lines: {len(writer.acked)} acked, lost 0; records per second, {told}; all partitions"
        f" write {taken_s:.1f} s after a SIGKILL with ZooKeeper 100 ms away"
    )


def leaders(cluster, topic):
    """By partition; -1: none. Any of the brokers answers."""
    admin = AdminClient({"bootstrap.servers": bootstrap_of(cluster), "log_level": 0})
    described = admin.list_topics(topic, timeout=30).topics[topic].partitions
    return [described[n].leader for n in sorted(described)] or [-1]


def written_since(writer, count):
    """The partitions of the acknowledgements after the first so many."""
    return {partition for partition, _ in list(writer.acked.values())[count:]}
