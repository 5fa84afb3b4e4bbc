"""Several `quire broker` processes on one ZooKeeper: they share the partitions, and take each
other's over. Real clients, real processes, SIGKILL and SIGSTOP. Figures are closing lines."""

import collections
import contextlib
import json
import subprocess
import threading
import time

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from harness import figures, raw, servers, tools
from harness.brokers import Broker, BrokerCluster, wait_for
from harness.history import Watcher, Writer, check, read_all
from harness.zookeeper import ZooKeeper
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

pytestmark = [
    pytest.mark.skipif(servers.target() != "quire", reason="about our own processes"),
    pytest.mark.timeout(400),
]

PARTITIONS = 6
#: Nobody who was only slow is to be taken for one that is gone.
SESSION_MS = 10_000
#: How long there is no registration: several refreshes of metadata of `Writer`.
WITHOUT_SECONDS = 5
#: For who is to be back before it ends, on a machine that has other things to do.
LONG_SESSION_MS = 60_000


@pytest.fixture(scope="module")
def cluster(scratch):
    """Three brokers on three bookies. Every test leaves all of them running."""
    directory = scratch / "broker-cluster"
    longest = {"maxSessionTimeout": str(LONG_SESSION_MS)}
    made = BrokerCluster(directory, ZooKeeper(directory / "zookeeper", longest))
    try:
        yield made.start(brokers=3, bookies=3, zkTimeout=str(SESSION_MS))
    finally:
        made.discard()


@pytest.fixture
def admin(cluster):
    cluster.wait_until_all_run()
    return AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})


def create(admin, topic, partitions=PARTITIONS, copies=3):
    admin.create_topics([NewTopic(topic, partitions, copies)])[topic].result(60)


def leaders(broker, topic):
    """By partition, as this broker tells; -1: none. It hears a moment later of a topic that another
    has made, and after that who leads it."""
    one = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    deadline = time.monotonic() + 60
    while not (described := one.list_topics(topic, timeout=30).topics[topic].partitions):
        assert time.monotonic() < deadline, f"broker {broker.node_id} does not know {topic}"
        time.sleep(0.05)
    return [described[n].leader for n in sorted(described)]


def all_leaders(broker, topic):
    """Once this broker knows one of each partition."""
    found = [-1]

    def are_known():
        found[:] = leaders(broker, topic)
        return -1 not in found

    wait_for(are_known, 60, f"broker {broker.node_id} does not know who leads {topic}")
    return found


def live_ids(broker):
    one = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    return sorted(one.list_topics(timeout=30).brokers)


class Load:
    """A writer and a watcher, checked at the end."""

    def __init__(self, cluster, topic, partitions=PARTITIONS):
        self.cluster, self.topic, self.partitions = cluster, topic, partitions
        self.writer = Writer(cluster.bootstrap, topic, partitions)
        self.watcher = Watcher(cluster.bootstrap, topic, partitions)
        self.stalls = []
        self._stopping = threading.Event()
        self._clock = threading.Thread(target=self._measure, daemon=True)

    def start(self):
        self.writer.start()
        self.watcher.start()
        # Of each partition: from now on all of them have a ledger, for which ZooKeeper is needed.
        self.wait_for_more(30)
        self._clock.start()
        return self

    def _measure(self):
        """Times without an acknowledgement for some partition."""
        last = [time.monotonic()] * self.partitions
        seen = 0
        while not self._stopping.is_set():
            now = time.monotonic()
            acked = list(self.writer.acked.values())
            for partition, _ in acked[seen:]:
                self.stalls.append(now - last[partition])
                last[partition] = now
            seen = len(acked)
            time.sleep(0.005)

    @property
    def count(self):
        return len(self.writer.acked)

    def wait_for_more(self, count=50, timeout_s=60):
        """Acknowledgements of each partition."""
        before = self.count
        missing = collections.Counter(dict.fromkeys(range(self.partitions), count))

        def all_here():
            nonlocal before
            acked = list(self.writer.acked.values())
            missing.subtract(partition for partition, _ in acked[before:])
            before = len(acked)
            assert self.writer.failed == []
            return max(missing.values()) <= 0

        wait_for(all_here, timeout_s, self)

    def __str__(self):
        """What is known of a load that ceased."""
        acked = collections.Counter(partition for partition, _ in self.writer.acked.values())
        told = {one.node_id: leaders(one, self.topic) for one in self.cluster.brokers}
        sent = self.writer.sent_count
        others = self._others()
        story = f"no load any more: sent {sent}, acked {acked}, leaders {told}, {others}"
        return f"{story}; the writer: {self.writer.state()}"

    def _others(self):
        """Whether another producer is served: it tells a server that stands from a client."""
        found = []
        one = Producer({"bootstrap.servers": self.cluster.bootstrap, "message.timeout.ms": 10_000})
        for partition in range(self.partitions):
            one.produce(
                self.topic,
                b"another's",
                partition=partition,
                on_delivery=lambda error, message: found.append(
                    (message.partition(), str(error) if error else message.offset())
                ),
            )
        one.flush(15)
        return f"of another producer (partition, offset): {sorted(found)}"

    def finish(self):
        """The longest time without an acknowledgement for a partition, in s."""
        self._stopping.set()
        unanswered = self.writer.finish()
        self.watcher.finish()
        rows = read_all(self.cluster.bootstrap, self.topic, self.partitions)
        assert check(self.writer, self.watcher, rows) == []
        assert unanswered == 0
        return max(self.stalls)


def test_partitions_are_spread_and_told_alike(cluster, admin, topic):
    create(admin, topic)
    told = all_leaders(cluster.broker(1), topic)
    assert sorted(told) == [1, 1, 2, 2, 3, 3]
    wait_for(
        lambda: all(leaders(broker, topic) == told for broker in cluster.brokers), 60, "no one view"
    )
    assert {live_ids(broker) == [1, 2, 3] for broker in cluster.brokers} == {True}

    def controllers():
        each = (AdminClient({"bootstrap.servers": one.bootstrap}) for one in cluster.brokers)
        return {one.list_topics(timeout=30).controller_id for one in each}

    wait_for(lambda: len(controllers()) == 1, 60, "no one controller")
    described = admin.list_topics(topic, timeout=10).topics[topic].partitions.values()
    for one in described:
        assert sorted(one.replicas) == sorted(one.isrs) == [1, 2, 3]
        assert one.replicas[0] == one.leader


def test_a_killed_brokers_partitions_are_taken_over(cluster, admin, topic):
    create(admin, topic)
    load = Load(cluster, topic).start()
    for node_id in (1, 2, 3):
        cluster.broker(node_id).kill()
        load.wait_for_more()
        other = cluster.broker(node_id % 3 + 1)
        taken = wait_for(
            lambda other=other, node_id=node_id: (
                node_id not in [-1, *leaders(other, topic)] and -1 not in leaders(other, topic)
            ),
            60,
            "not taken over",
        )
        load.wait_for_more(100)
        cluster.broker(node_id).start()
        load.wait_for_more()
    stall = load.finish()
    figures.add(
        f"broker SIGKILL, 3 times, session {SESSION_MS} ms: {load.count} acked, lost 0,"
        f" longest stall of a partition {stall:.1f} s (last look {taken:.1f} s)"
    )


def start_with_session(cluster, broker, session_ms):
    """Another than it had."""
    assert broker.stop() == 0
    others = [one.node_id for one in cluster.brokers if one is not broker]
    cluster.wait_until_told(" ".join(f"{node_id}:running" for node_id in others))
    broker.settings["zkTimeout"] = str(session_ms)
    broker.start()
    cluster.wait_until_all_run()


def test_a_killed_broker_that_is_started_at_once_does_not_wait_for_its_session(
    cluster, admin, topic
):
    victim = cluster.broker(2)
    start_with_session(cluster, victim, LONG_SESSION_MS)
    create(admin, topic)
    before = all_leaders(cluster.broker(1), topic)
    assert 2 in before
    load = Load(cluster, topic).start()
    victim.kill()
    started = time.monotonic()
    victim.start()
    took = time.monotonic() - started
    load.wait_for_more(100)
    stall = load.finish()
    # It says something three times in a session, so a third of it may have passed before.
    if took > LONG_SESSION_MS / 1000 * 2 / 3:
        pytest.skip(f"this machine took {took:.1f} s to start a process")
    assert all_leaders(cluster.broker(1), topic) == before
    start_with_session(cluster, victim, SESSION_MS)
    figures.add(f"broker SIGKILL and start: up in {took:.1f} s, longest stall {stall:.1f} s")


def test_a_start_that_waits_long_keeps_no_client(cluster, admin, scratch):
    """Its node.id is another's. Who asks it goes on to a broker that serves, and is not kept in a
    queue for the minute until it gives up."""
    live = cluster.broker(1)
    double = Broker(scratch / "broker-double", 1, cluster.storage.uri, dict(live.settings))
    double.settings["listeners"] = f"PLAINTEXT://{double.bootstrap}"
    double.directory.mkdir()
    process = subprocess.Popen(
        double.command(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        for line in process.stdout:
            if "event=waiting_for_node_id" in line:
                break
        began = time.monotonic()
        for _ in range(20):
            with raw.Connection(double.port) as connection, pytest.raises(raw.Closed):
                connection.call(raw.API_VERSIONS, 0, b"")
        assert time.monotonic() - began < 10
        client = AdminClient({"bootstrap.servers": f"{double.bootstrap},{live.bootstrap}"})
        assert sorted(client.list_topics(timeout=20).brokers) == [1, 2, 3]
        assert process.poll() is None, "it waits still"
    finally:
        process.kill()
        process.communicate()
    assert live_ids(live) == [1, 2, 3]


@pytest.mark.long
def test_a_rolling_restart(cluster, admin, topic, name):
    """Nothing fails at the default settings of a client."""
    create(admin, topic)
    load = Load(cluster, topic).start()
    group = GroupReader(cluster, topic, name("group"))
    group.start()
    stops = []
    for node_id in (1, 2, 3):
        started = time.monotonic()
        assert cluster.broker(node_id).stop() == 0
        stops.append(time.monotonic() - started)
        load.wait_for_more()
        cluster.broker(node_id).start()
        load.wait_for_more()
    stall = load.finish()
    group.finish(set(load.writer.acked.values()))
    assert group.failed == []
    figures.add(
        f"rolling restart of 3 brokers: {load.count} acked, failed 0, longest stall of a partition"
        f" {stall:.2f} s, stops {', '.join(f'{one:.1f}' for one in stops)} s"
    )


#: Rounds, and consumers in each. Chance: with NOT_COORDINATOR for an OffsetFetch one of 37 rounds
#: had a consumer that read nothing. What is answered is tests/broker/groups/test_coordinator.py's.
ROUNDS = 6
JOINING = 24


@pytest.mark.long
def test_groups_that_are_joined_while_their_coordinator_stops(cluster, admin, topic, name):
    """Their first OffsetFetch comes while the group moves: librdkafka (2.16) asks no second time
    after NOT_COORDINATOR."""
    create(admin, topic)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for partition in range(PARTITIONS):
        producer.produce(topic, b"x", partition=partition)
    assert producer.flush(30) == 0
    places = {(partition, 0) for partition in range(PARTITIONS)}
    for number in range(ROUNDS):
        cluster.wait_until_all_run()
        groups = [GroupReader(cluster, topic, name("joining")) for _ in range(JOINING)]
        stopping = threading.Thread(target=cluster.broker(number % 3 + 1).stop)
        for at, group in enumerate(groups):
            if at == JOINING // 3:
                stopping.start()
            group.start()
            time.sleep(1 / JOINING)
        stopping.join()
        cluster.broker(number % 3 + 1).start()
        for group in groups:
            group.finish(places)
            assert group.failed == []


class Missing:
    """What of `wanted` is not in `seen` when somebody asks: by partition how many, from where to
    where, and the last that was seen."""

    def __init__(self, wanted, seen):
        self._wanted, self._seen = wanted, seen

    def __str__(self):
        by_partition = collections.defaultdict(list)
        for partition, offset in sorted(self._wanted - self._seen):
            by_partition[partition].append(offset)
        last = dict(sorted(self._seen.copy()))
        return "it does not see all: " + "; ".join(
            f"partition {partition}: {len(offsets)} from {offsets[0]} to {offsets[-1]},"
            f" the last seen is {last.get(partition)}"
            for partition, offsets in by_partition.items()
        )


class GroupReader(threading.Thread):
    """A member of a group that commits as it goes."""

    def __init__(self, cluster, topic, group):
        super().__init__(daemon=True)
        self.settings = {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
        self.topic = topic
        self.seen = set()
        self.failed = []
        self.stopping = threading.Event()

    def run(self):
        consumer = Consumer(self.settings)
        consumer.subscribe([self.topic])
        while not self.stopping.is_set():
            for message in consumer.consume(500, 0.1):
                if message.error() is not None:
                    if message.error().fatal():
                        self.failed.append(str(message.error()))
                else:
                    self.seen.add((message.partition(), message.offset()))
        consumer.close()

    def finish(self, places):
        """Once it has seen those: (partition, offset)."""
        wait_for(lambda: places <= self.seen, 120, Missing(places, self.seen))
        self.stopping.set()
        self.join(20)


def test_a_frozen_broker_that_wakes_up_acks_nothing(cluster, admin, topic):
    create(admin, topic)
    frozen = cluster.broker(all_leaders(cluster.broker(1), topic)[0])
    other = cluster.broker(frozen.node_id % 3 + 1)
    load = Load(cluster, topic).start()
    frozen.freeze()
    try:
        # A client that waits for its answer would wait for as long as this: not too long.
        wait_for(lambda: not {-1, frozen.node_id} & set(leaders(other, topic)), 60, "nothing moves")
        time.sleep(1)
    finally:
        frozen.thaw()
    load.wait_for_more(100)
    wait_for(lambda: live_ids(other) == [1, 2, 3], 60, "it does not come back")
    assert frozen.node_id not in leaders(other, topic)
    wait_for(lambda: leaders(frozen, topic) == leaders(other, topic), 60, "two views")
    stall = load.finish()
    figures.add(f"broker SIGSTOP past its session: acked {load.count}, lost 0, stall {stall:.1f} s")


def test_zookeeper_away_and_back(cluster, admin, topic):
    """Owners go on serving; nothing moves."""
    create(admin, topic)
    before = all_leaders(cluster.broker(1), topic)
    load = Load(cluster, topic).start()
    cluster.zookeeper.freeze()
    try:
        time.sleep(SESSION_MS / 1000 + 3)
        wait_for(lambda: cluster.session_states() == {"SUSPENDED"}, 60, "who has not noticed?")
        load.wait_for_more()
        assert leaders(cluster.broker(1), topic) == before
    finally:
        cluster.zookeeper.thaw()
    wait_for(lambda: cluster.session_states() == {"CONNECTED"}, 60, "who is not back?")
    cluster.wait_until_all_run()
    for broker in cluster.brokers:
        wait_for(lambda broker=broker: live_ids(broker) == [1, 2, 3], 60, "not all are back")
    load.wait_for_more(100)
    wait_for(lambda: can_create(admin, f"{topic}-after"), 60, "no topic can be made")
    stall = load.finish()
    figures.add(f"ZooKeeper frozen past the sessions: acked {load.count}, stall {stall:.1f} s")


@contextlib.contextmanager
def without_registrations(cluster):
    """Deleted as soon as a broker has made them again."""
    over, deleted = threading.Event(), collections.Counter()

    def delete_all(store):
        while not over.is_set():
            for broker in cluster.brokers:
                with contextlib.suppress(NoNodeError):
                    store.delete(f"/quire/brokers/{broker.node_id}")
                    deleted[broker.node_id] += 1
            time.sleep(0.002)

    store = KazooClient(cluster.zookeeper.hosts)
    store.start(60)
    thread = threading.Thread(target=delete_all, args=(store,))
    thread.start()
    try:
        yield deleted
    finally:
        over.set()
        thread.join()
        store.stop()
        store.close()


def test_clients_outlive_the_end_of_all_registrations(cluster, admin, topic):
    """As after ZooKeeper stood still: librdkafka asks nobody more that was told of no broker."""
    create(admin, topic)
    load = Load(cluster, topic).start()
    with without_registrations(cluster) as deleted:
        until = time.monotonic() + WITHOUT_SECONDS
        while time.monotonic() < until:
            for broker in cluster.brokers:
                assert live_ids(broker), f"broker {broker.node_id} tells of no broker"
    assert min(deleted[broker.node_id] for broker in cluster.brokers) > 1, deleted
    cluster.wait_until_all_run()
    load.wait_for_more(100)
    load.finish()


def can_create(admin, topic):
    """Not while a bookie, whose session has ended, registers again."""
    try:
        create(admin, topic)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.INVALID_REPLICATION_FACTOR:
            raise
        return False
    return True


def set_broker_config(admin, node_id, key, value):
    """`value` None: back to what it was."""
    kind = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(key, value, incremental_operation=kind)
    resource = ConfigResource(ResourceType.BROKER, str(node_id), incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)


def test_a_cordoned_broker_is_given_nothing_new(cluster, admin, topic):
    create(admin, f"{topic}-before")
    before = all_leaders(cluster.broker(1), f"{topic}-before")
    set_broker_config(admin, 2, "cordoned.log.dirs", "*")
    try:
        # Whichever of them is the controller, it knows.
        cluster.wait_until_told("1:running 2:cordoned 3:running")
        create(admin, topic)
        assert set(all_leaders(cluster.broker(1), topic)) <= {1, 3}
        assert all_leaders(cluster.broker(1), f"{topic}-before") == before
    finally:
        set_broker_config(admin, 2, "cordoned.log.dirs", None)
    cluster.wait_until_all_run()


def test_a_setting_of_all_brokers_is_in_force_at_all(cluster, admin, topic):
    tool = ("kafka-configs", "--entity-type", "brokers")
    java_tool(
        cluster, *tool, "--entity-default", "--alter", "--add-config", "message.max.bytes=12345"
    )

    def told(broker):
        resource = ConfigResource(ResourceType.BROKER, str(broker.node_id))
        (future,) = admin.describe_configs([resource]).values()
        return future.result(60)["message.max.bytes"].value

    for broker in cluster.brokers:
        # The tool got its answer from one of them.
        wait_for(lambda broker=broker: told(broker) == "12345", 60, "not in force everywhere")
    java_tool(cluster, *tool, "--entity-default", "--alter", "--delete-config", "message.max.bytes")


def test_kafkas_tools_move_leaders(cluster, admin, topic, scratch, name):
    create(admin, topic, partitions=3)
    folder = scratch / name("tools")
    folder.mkdir()
    plan = {
        "version": 1,
        "partitions": [{"topic": topic, "partition": n, "replicas": [2, 3, 1]} for n in range(3)],
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    reassign = ("kafka-reassign-partitions", "--reassignment-json-file", str(folder / "plan.json"))
    done = java_tool(cluster, *reassign, "--execute")
    assert "Successfully started partition reassignments" in done, done
    verified = []

    def is_verified():
        # Any broker answers it, and it may have heard of nothing yet.
        verified.append(java_tool(cluster, *reassign, "--verify"))
        return verified[-1].count("is completed") == 3

    wait_for(is_verified, 90, verified)
    elected = java_tool(
        cluster, "kafka-leader-election", "--election-type", "preferred", "--all-topic-partitions"
    )
    assert "rror" not in elected, elected
    for broker in cluster.brokers:
        wait_for(lambda broker=broker: leaders(broker, topic) == [2, 2, 2], 60, "not moved")
    described = java_tool(cluster, "kafka-topics", "--describe", "--topic", topic)
    assert described.count("Leader: 2\tReplicas: 2,3,1") == 3, described
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    failed = []
    for n in range(30):
        producer.produce(
            topic, b"x", partition=n % 3, on_delivery=lambda e, _: e and failed.append(e)
        )
    assert producer.flush(60) == 0
    assert failed == []


def java_tool(cluster, name, *arguments):
    return tools.java(name, "--bootstrap-server", cluster.bootstrap, *arguments)
