"""`quire standalone --bookies 3`: three bookies as processes, and topics with as many copies.

Real clients, real processes, SIGKILL. Figures are closing lines.
"""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from harness import figures, servers
from harness.children import children_of, is_gone, wait_for
from harness.history import Watcher, Writer, check, read_all

pytestmark = [
    pytest.mark.skipif(servers.target() != "quire", reason="about our own processes"),
    pytest.mark.timeout(400),
]

BOOKIES = 3


class ClusterServer(servers.QuireServer):
    """A server whose bookies are processes of their own."""

    def command(self):
        return [*super().command(), "--bookies", str(BOOKIES)]

    def bookie_pids(self):
        """By bookie id: the children that run now."""
        return children_of(self.process.pid)

    def writable_count(self):
        return self.writable_counts()[-1]

    def writable_counts(self):
        """As they changed since the start."""
        found = re.findall(r"event=bookies writable=(\d+)", self.log_since_start())
        return [int(count) for count in found]


def rss_kb(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text()).group(1))


@pytest.fixture
def cluster(scratch, name):
    one = ClusterServer(scratch / name("cluster"))
    one.start()
    yield one
    one.discard()


@pytest.fixture
def admin(cluster):
    return AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})


def create(admin, topic, partitions=1, copies=-1, **config):
    new = NewTopic(topic, partitions, copies, config=config)
    admin.create_topics([new])[topic].result(60)


def describe(admin, topic):
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(60)
    return described.partitions


def produce_one(cluster, topic, **settings):
    """The error, None if it was acknowledged. What is refused is told at once: it is sent once."""
    outcome = []
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "log_level": 0,
            "retries": 0,
            "message.timeout.ms": 60_000,
            **settings,
        }
    )
    producer.produce(topic, b"x", callback=lambda error, _: outcome.append(error))
    assert producer.flush(90) == 0
    return outcome[0].name() if outcome[0] is not None else None


def test_each_bookie_killed_under_load(cluster, admin, topic):
    create(admin, topic, 4)
    writer = Writer(cluster.bootstrap, topic, 4)
    watcher = Watcher(cluster.bootstrap, topic, 4)
    writer.start()
    watcher.start()
    stalls, restarts = [], []
    wait_for(lambda: len(writer.acked) > 500, 60, "no load")
    for bookie in sorted(cluster.bookie_pids()):
        pid = cluster.bookie_pids()[bookie]
        changes = len(cluster.writable_counts())
        os.kill(pid, signal.SIGKILL)
        started = time.monotonic()
        acked = len(writer.acked)
        wait_for(lambda acked=acked: len(writer.acked) > acked + 500, 60, "no load after a kill")
        stalls.append(time.monotonic() - started)
        # The load may go on before anybody has noticed that the bookie is gone.
        wait_for(
            lambda changes=changes: min(cluster.writable_counts()[changes:], default=3) < BOOKIES,
            60,
            f"{bookie} is not gone",
        )
        wait_for(lambda: cluster.writable_count() == BOOKIES, 60, f"{bookie} is not back")
        wait_for(
            lambda bookie=bookie, pid=pid: cluster.bookie_pids().get(bookie, pid) != pid,
            60,
            f"{bookie} was not started again",
        )
        restarts.append(time.monotonic() - started)
        time.sleep(0.5)
    unanswered = writer.finish()
    watcher.finish()
    rows = read_all(cluster.bootstrap, topic, 4)
    wrong = check(writer, watcher, rows)
    figures.add(
        f"SIGKILL of {len(stalls)} bookies in turn: {writer.sent_count} records sent, "
        f"{len(writer.acked)} acknowledged, {len(wrong)} wrong; 500 more acknowledged within "
        f"{max(stalls):.2f} s, all three bookies there again within {max(restarts):.2f} s"
    )
    assert wrong[:20] == []
    assert unanswered == 0
    assert len(writer.acked) == writer.sent_count == sum(map(len, rows.values()))
    assert cluster.stop() == 0


def test_no_orphans_and_everything_is_found_again(cluster, admin, topic):
    create(admin, topic, 1)
    memory = {"server": rss_kb(cluster.process.pid)}
    memory |= {bookie: rss_kb(pid) for bookie, pid in cluster.bookie_pids().items()}
    writer = Writer(cluster.bootstrap, topic, 1)
    writer.start()
    wait_for(lambda: len(writer.acked) > 1000, 60, "no load")
    pids = cluster.bookie_pids()
    assert sorted(pids) == ["bookie-1", "bookie-2", "bookie-3"]
    killed_at = time.monotonic()
    cluster.kill()
    wait_for(lambda: all(map(is_gone, pids.values())), 5, "orphans")
    gone_s = time.monotonic() - killed_at
    started = time.monotonic()
    cluster.start()
    ready_s = time.monotonic() - started
    acked = len(writer.acked)
    wait_for(lambda: len(writer.acked) > acked + 100, 60, "not served after the restart")
    writer.finish()
    rows = read_all(cluster.bootstrap, topic, 1)
    offsets = {(partition, row[0]) for partition, found in rows.items() for row in found}
    assert len(offsets) == writer.sent_count == len(writer.acked)
    figures.add(
        f"SIGKILL of the server: its bookies gone within {gone_s * 1000:.0f} ms; restart ready in "
        f"{ready_s:.2f} s; resident before the load: "
        + ", ".join(f"{who} {kb // 1024} MB" for who, kb in sorted(memory.items()))
        + f", together {sum(memory.values()) // 1024} MB"
    )
    assert cluster.stop() == 0
    assert not (cluster.data_dir / "metadata.sock").exists()


def test_time_to_ready(cluster):
    times = []
    for _ in range(3):
        cluster.stop()
        started = time.monotonic()
        cluster.start()
        times.append(time.monotonic() - started)
    figures.add(f"three bookies and the server ready in {sorted(times)[1]:.2f} s (median of 3)")
    assert sorted(times)[1] < 20


def test_kcat_sees_three_replicas(cluster, admin, topic):
    create(admin, topic, 2, 3)
    kcat = subprocess.run(
        ["kcat", "-b", cluster.bootstrap, "-P", "-t", topic, "-X", "acks=all"],
        input=b"one\ntwo\nthree\n",
        check=True,
        timeout=90,
    )
    assert kcat.returncode == 0
    read = subprocess.run(
        ["kcat", "-b", cluster.bootstrap, "-C", "-t", topic, "-e", "-q"],
        capture_output=True,
        check=True,
        timeout=90,
    )
    assert sorted(read.stdout.split()) == [b"one", b"three", b"two"]
    listed = subprocess.run(
        ["kcat", "-b", cluster.bootstrap, "-L", "-t", topic],
        capture_output=True,
        check=True,
        timeout=90,
        text=True,
    ).stdout
    for line in re.findall(r"partition \d.*", listed):
        replicas = re.search(r"replicas: ([\d,]+), isrs: ([\d,]+)", line)
        assert replicas.group(1) == replicas.group(2)
        assert len(replicas.group(1).split(",")) == 3


def test_replication_factors_are_copies(cluster, admin, name):
    sizes = {1: "one", 2: "two", 3: "three", -1: "default"}
    for copies, suffix in sizes.items():
        topic = name(suffix)
        create(admin, topic, 1, copies)
        (partition,) = describe(admin, topic)
        wanted = 3 if copies == -1 else copies
        assert len(partition.replicas) == len(partition.isr) == wanted
        assert partition.leader.id == partition.replicas[0].id == 0
        assert produce_one(cluster, topic, acks="all") is None
        assert len({node.id for node in describe(admin, topic)[0].replicas}) == wanted
    with pytest.raises(KafkaException) as raised:
        create(admin, name("four"), 1, 4)
    assert raised.value.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR


def test_the_isr_says_who_is_missing(cluster, admin, topic):
    create(admin, topic, 1, 3)
    assert produce_one(cluster, topic) is None
    (before,) = describe(admin, topic)
    pid = cluster.bookie_pids()["bookie-2"]
    os.kill(pid, signal.SIGSTOP)  # it does not answer, and is not restarted
    try:
        wait_for(lambda: cluster.writable_count() == 2, 60, "a silent bookie stays registered")
        (without,) = describe(admin, topic)
        assert (len(without.replicas), len(without.isr)) == (3, 2)
        assert produce_one(cluster, topic, retries=20) is None
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: cluster.writable_count() == BOOKIES, 60, "it is not back")
    wait_for(lambda: len(describe(admin, topic)[0].isr) == 3, 60, "its copies do not come back")
    (after,) = describe(admin, topic)
    assert {node.id for node in after.isr} == {node.id for node in before.isr}


def test_min_insync_replicas(cluster, admin, topic):
    create(admin, topic, 1, 3)
    resource = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("min.insync.replicas", "3", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    admin.incremental_alter_configs([resource])[resource].result(60)
    assert produce_one(cluster, topic, acks="all") is None
    pid = cluster.bookie_pids()["bookie-3"]
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: cluster.writable_count() == 2, 60, "a silent bookie stays registered")
        assert produce_one(cluster, topic, acks="all") == "NOT_ENOUGH_REPLICAS"
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: cluster.writable_count() == BOOKIES, 60, "it is not back")
    assert produce_one(cluster, topic, acks="all", retries=20) is None
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    values, deadline = [], time.monotonic() + 60
    while len(values) < 2 and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    assert values == [b"x", b"x"]


def test_the_number_of_bookies_cannot_shrink(cluster):
    assert cluster.stop() == 0
    command = servers.QuireServer.command(cluster)
    for extra in ([], ["--bookies", "2"]):
        refused = subprocess.run([*command, *extra], capture_output=True, text=True, timeout=90)
        assert refused.returncode == 2
        assert "are of 3 bookies" in refused.stderr
    cluster.start()
