"""A cluster of brokers under an administrator's hands, on real processes: Kafka's tool unregisters
a broker, leaders go back by themselves, consumers that say their rack read from the leader, and the
entry cache's figures."""

import json
import re
import subprocess
import time
import urllib.request

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from harness import paths, servers, tools
from harness.bookkeeper import QuireBookie
from harness.brokers import Broker, BrokerCluster, wait_for
from harness.history import read_all
from harness.servers import HOST, free_port

pytestmark = [
    pytest.mark.skipif(servers.target() != "quire", reason="about our own processes"),
    pytest.mark.timeout(300),
]
PARTITIONS = 6
#: None is killed here, and nobody who was only slow is to be taken for one that is gone.
SESSION_MS = 10_000


class PagedBroker(Broker):
    """With its metrics."""

    pages_port = None

    def command(self):
        return [*super().command(), "--metrics", f"{HOST}:{self.pages_port}"]

    def figure(self, name):
        url = f"http://{HOST}:{self.pages_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            text = answer.read().decode()
        return float(re.search(rf"^{name} (\S+)$", text, re.M)[1])


class AdminCluster(BrokerCluster):
    """Its bookies have pages, too: `bookie_pages`."""

    def start(self, brokers=3, bookies=3, **settings):
        self.storage.make_tree = lambda: None
        self.bookie_pages = [free_port() for _ in range(bookies)]
        for port in self.bookie_pages:
            pages = {"httpServerEnabled": "true", "httpServerHost": HOST}
            session = {"zkTimeout": str(SESSION_MS)}
            self.storage.start(QuireBookie, **pages, **session, httpServerPort=str(port))
        for _ in range(brokers):
            self.add_broker(**settings)
        return self

    def set_read_only(self, number, is_read_only):
        request = urllib.request.Request(
            f"http://{HOST}:{self.bookie_pages[number]}/api/v1/bookie/state/readonly",
            json.dumps({"readOnly": is_read_only}).encode(),
            {"Authorization": f"Bearer {self.storage.bookies[number].token()}"},
            method="PUT",
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200

    def why(self, partition):
        """(exit code, the report)"""
        command = [str(paths.python_script("quire")), "cluster", "why", partition]
        command += ["-u", self.storage.uri, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, json.loads(done.stdout)

    def add_broker(self, **settings):
        node_id = len(self.brokers) + 1
        named = {name.replace("_", "."): value for name, value in settings.items()}
        named["broker.rack"] = f"rack-{node_id}"
        broker = PagedBroker(self.directory / f"broker-{node_id}", node_id, self.storage.uri, named)
        broker.pages_port = free_port()
        self.brokers.append(broker)
        broker.start()
        return broker


@pytest.fixture(scope="module")
def cluster(scratch):
    """Three brokers that rebalance every second, on three bookies; all run after each test."""
    made = AdminCluster(scratch / "admin-cluster")
    settings = {
        "auto_leader_rebalance_enable": "true",
        "leader_imbalance_check_interval_seconds": "1",
        "quire.entry.cache.size.mb": "8",
        "zkTimeout": str(SESSION_MS),
    }
    try:
        yield made.start(brokers=3, bookies=3, **settings)
    finally:
        made.discard()


@pytest.fixture
def admin(cluster):
    cluster.wait_until_all_run()
    return AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})


def create(admin, topic, copies=3):
    admin.create_topics([NewTopic(topic, PARTITIONS, copies)])[topic].result(60)


def partitions(broker, topic):
    """(leader, replicas) by partition, as this broker tells; it may not know the topic yet."""
    one = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    found = one.list_topics(topic, timeout=30).topics[topic].partitions
    return [(found[n].leader, list(found[n].replicas)) for n in sorted(found)]


def are_balanced(broker, topic):
    found = partitions(broker, topic)
    return len(found) == PARTITIONS and all(leader == ids[0] for leader, ids in found)


def produce(cluster, topic, count, size=10):
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 5})
    failed = []
    for n in range(count):
        producer.produce(
            topic,
            b"%0*d" % (size, n),
            partition=n % PARTITIONS,
            on_delivery=lambda error, _: error and failed.append(error),
        )
    assert producer.flush(120) == 0
    assert failed == []


def consume(cluster, topic, count, **settings):
    """The values, once so many places were read: a member whose group starts anew reads again what
    it has not committed."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": f"{topic}-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
            **settings,
        }
    )
    consumer.subscribe([topic])
    found, deadline = {}, time.monotonic() + 120
    try:
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count}"
            for message in consumer.consume(500, 0.5):
                assert message.error() is None, message.error()
                found[message.partition(), message.offset()] = message.value()
    finally:
        consumer.close()
    return list(found.values())


def test_leaders_go_back_by_themselves(cluster, admin, topic):
    create(admin, topic)
    wait_for(lambda: are_balanced(cluster.broker(1), topic), 60, "not balanced at first")
    assert {leader for leader, _ in partitions(cluster.broker(1), topic)} == {1, 2, 3}
    cluster.broker(3).stop()
    wait_for(
        lambda: 3 not in {leader for leader, _ in partitions(cluster.broker(1), topic)},
        60,
        "a stopped broker leads",
    )
    produce(cluster, topic, 60)
    cluster.broker(3).start()
    wait_for(lambda: are_balanced(cluster.broker(1), topic), 60, "not balanced again")
    produce(cluster, topic, 60)
    assert len(consume(cluster, topic, 120)) == 120


def test_kafkas_tool_unregisters_a_broker_that_is_gone(cluster, admin, topic):
    create(admin, topic)
    bootstrap = cluster.broker(1).bootstrap
    unregister = ("kafka-cluster", "unregister", "--bootstrap-server", bootstrap, "--id", "3")
    wait_for(lambda: are_balanced(cluster.broker(1), topic), 60, "not balanced at first")
    refused = tools.java(*unregister, code=None)
    assert "broker 3 runs" in refused or "InvalidRequest" in refused, refused
    assert any(3 in ids for _, ids in partitions(cluster.broker(1), topic))
    cluster.broker(3).stop()
    try:
        cluster.wait_until_told("1:running 2:running")
        done = tools.java(*unregister)
        assert "Broker 3 is no longer registered" in done, done
        for broker in cluster.brokers[:2]:
            wait_for(
                lambda broker=broker: all(3 not in ids for _, ids in partitions(broker, topic)),
                60,
                f"broker {broker.node_id} lists it",
            )
        produce(cluster, topic, 60)
        assert len(consume(cluster, topic, 60)) == 60
    finally:
        cluster.broker(3).start()


def test_who_says_his_rack_reads_from_the_leader(cluster, admin, topic):
    """A preferred read replica would be told where a client's rack is a broker's: librdkafka logs
    that it goes there (debug=fetch)."""
    create(admin, topic)
    produce(cluster, topic, 300)
    lines = []

    class Lines:
        def log(self, _level, form, *values):
            lines.append(form % values if values else form)

    options = {"debug": "fetch", "logger": Lines()}
    values = consume(cluster, topic, 300, **{"client.rack": "rack-2"}, **options)
    assert len(values) == 300
    assert lines, "no debug lines: the test would see nothing"
    assert not [line for line in lines if "preferred" in line.lower()], lines


def test_the_entry_cache_has_figures_and_a_limit(cluster, admin, topic):
    create(admin, topic)
    produce(cluster, topic, 6_000, size=10_000)  # 60 MB, and each broker has 8 MiB
    consume(cluster, topic, 6_000)
    consume(cluster, topic, 6_000)
    evicted = hits = misses = 0
    for broker in cluster.brokers:
        figure = {
            name: broker.figure(f"quire_entry_cache_{name}")
            for name in ("bytes", "bytes_max", "entries", "hits_total", "misses_total")
        }
        assert figure["bytes_max"] == 8 << 20
        assert figure["bytes"] <= figure["bytes_max"], figure
        assert (figure["entries"] > 0) == (figure["bytes"] > 0)
        hits += figure["hits_total"]
        misses += figure["misses_total"]
        evicted += broker.figure("quire_entry_cache_evictions_total")
    assert min(hits, misses) > 0
    assert evicted > 0, "60 MB went through 24 MiB"


@pytest.mark.timeout(600)
def test_why_bookies_take_no_writes(cluster, admin, topic):
    """Two of three are read-only, as they are when their disks are full: no ledger can be made, and
    reading goes on. Then they take writes again, and what waited is acknowledged."""
    create(admin, topic)
    produce(cluster, topic, PARTITIONS)
    code, report = cluster.why(f"{topic}-0")
    assert (code, report["is_stuck"]) == (0, False), report
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "message.timeout.ms": 240_000,
            "enable.idempotence": True,
        }
    )
    acked = []

    def write():
        for n in range(PARTITIONS):
            producer.produce(
                topic, b"more", partition=n, on_delivery=lambda error, _: acked.append(error)
            )
        producer.poll(0)

    for number in (0, 1):
        cluster.set_read_only(number, True)
    try:
        write()
        verdicts = []

        def is_told():
            producer.poll(0)
            code, report = cluster.why(f"{topic}-0")
            verdicts.append((code, report["verdict"]))
            said = " ".join(report["verdict"])
            # Of the bookies that do not take writes it may hear one after the other.
            return code == 1 and all(
                words in said
                for words in (
                    "It takes no records",
                    "needs 2 bookies that take writes",
                    "there is 1.",
                    "make space on those that are read-only",
                )
            )

        wait_for(is_told, 240, verdicts)
        assert "It takes no records" in verdicts[-1][1][0]
        # Without a group: the groups' own topic takes no writes either.
        rows = read_all(cluster.bootstrap, topic, PARTITIONS)
        # What no ack was given for may be there or not: one bookie has it, and recovery reads it.
        assert all(len(rows[n]) in (1, 2) for n in range(PARTITIONS)), rows
    finally:
        for number in (0, 1):
            cluster.set_read_only(number, False)
    wait_for(lambda: cluster.why(f"{topic}-0")[0] == 0, 120, "it is stuck still")
    assert producer.flush(120) == 0
    assert acked == [None] * PARTITIONS
    rows = read_all(cluster.bootstrap, topic, PARTITIONS)
    assert all([value for _, value in rows[n][1:]] == [b"more"] for n in range(PARTITIONS)), rows
