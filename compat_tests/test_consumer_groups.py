"""Groups of the consumer protocol (KIP-848): librdkafka's and Java's consumers, groups that change
their protocol while they run, and a server that dies in the middle of a rebalance."""

import os
import re
import signal
import subprocess
import threading
import time

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from harness.tools import java, java_command, java_environment

pytestmark = pytest.mark.timeout(600)
PARTITIONS = 6


def fill(server, topic, count, first=0):
    producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 20})
    for number in range(first, first + count):
        producer.produce(topic, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def make_topic(server, topic, partitions=PARTITIONS):
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    return admin


class Reader(threading.Thread):
    """A consumer in a thread of its own, which commits what it has read, until it is stopped."""

    def __init__(self, server, group, topic, **settings):
        super().__init__(daemon=True)
        config = {
            "bootstrap.servers": server.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
        }
        config.update({key.replace("_", "."): value for key, value in settings.items()})
        self.consumer = Consumer(config)
        self.consumer.subscribe([topic])
        self.values, self.fatal, self.assigned = [], [], 0
        self.is_over = threading.Event()
        self.start()

    def run(self):
        while not self.is_over.is_set():
            message = self.consumer.poll(0.1)
            self.assigned = len(self.consumer.assignment())
            if message is None:
                continue
            if message.error():
                if message.error().fatal():
                    self.fatal.append(message.error())
                    return
                continue
            self.values.append(int(message.value()))
            try:
                self.consumer.commit(message, asynchronous=False)
            except KafkaException as error:  # it was given to another member meanwhile
                if error.args[0].fatal():
                    self.fatal.append(error)
                    return
        self.consumer.close()

    def stop(self):
        self.is_over.set()
        self.join(60)
        assert not self.is_alive()
        assert self.fatal == []


def new(server, group, topic, **settings):
    return Reader(server, group, topic, group_protocol="consumer", **settings)


def old(server, group, topic, strategy="cooperative-sticky", **settings):
    settings = {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 500, **settings}
    return Reader(server, group, topic, partition_assignment_strategy=strategy, **settings)


def wait(condition, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.1)


def all_assigned(*readers):
    return sum(each.assigned for each in readers) == PARTITIONS and all(
        each.assigned for each in readers
    )


def read_by(readers):
    return {value for each in readers for value in each.values}


def test_one_and_two_members(server, topic, name):
    group = name("group")
    admin = make_topic(server, topic)
    fill(server, topic, 600)
    one = new(server, group, topic)
    wait(lambda: read_by([one]) == set(range(600)))
    two = new(server, group, topic)
    wait(lambda: all_assigned(one, two))
    described = admin.describe_consumer_groups([group])[group].result(30)
    assert described.type.name == "CONSUMER"
    assert [len(each.assignment.topic_partitions) for each in described.members] == [3, 3]
    fill(server, topic, 600, first=600)
    wait(lambda: read_by([one, two]) == set(range(1200)))
    one.stop()
    wait(lambda: two.assigned == PARTITIONS)
    two.stop()
    offsets = (
        admin.list_consumer_group_offsets([_whole(group, topic)])[group].result(30).topic_partitions
    )
    assert [each.offset for each in offsets] == [200] * PARTITIONS


def _whole(group, topic):
    return ConsumerGroupTopicPartitions(
        group, [TopicPartition(topic, number) for number in range(PARTITIONS)]
    )


def test_static_member_comes_back(server, topic, name):
    group = name("group")
    make_topic(server, topic)
    one = new(server, group, topic, group_instance_id="one")
    two = new(server, group, topic, group_instance_id="two")
    wait(lambda: all_assigned(one, two))
    kept = one.assigned
    two.stop()
    time.sleep(6)
    assert one.assigned == kept, "its place is kept"
    again = new(server, group, topic, group_instance_id="two")
    wait(lambda: all_assigned(one, again), 20)
    again.stop()
    one.stop()


def test_pattern(server, topic, name):
    group = name("group")
    make_topic(server, f"{topic}-a", 2)
    one = new(server, group, f"^{re.escape(topic)}-.*")
    wait(lambda: one.assigned == 2, 30)
    make_topic(server, f"{topic}-b", 4)
    wait(lambda: one.assigned == 6, 30)
    one.stop()


# Not cooperative-sticky: from its second generation on librdkafka's leader puts members' own data
# into their assignments, which is taken for an assignor of somebody's own, as in Kafka.
@pytest.mark.parametrize("strategy", ["roundrobin", "range"])
def test_rolling_up_and_down(server, topic, name, strategy):
    """Three and three members, one replaced after the other, while records come and are committed:
    every record is read, and no committed offset goes back."""
    group = name("group")
    admin = make_topic(server, topic)
    readers = [old(server, group, topic, strategy) for _ in range(3)]
    everybody = list(readers)
    highest, written, backwards = {}, 0, []

    def look():
        found = admin.list_consumer_group_offsets([_whole(group, topic)])[group].result(30)
        for each in found.topic_partitions:
            offset = max(each.offset, -1)  # of a partition without a commit it is far below
            before = highest.get(each.partition, -1)
            if offset < before:
                backwards.append((each.partition, before, offset))
            highest[each.partition] = offset

    def go_on(make):
        nonlocal written
        for position in range(3):
            fill(server, topic, 120, first=written)
            written += 120
            readers[position].stop()
            readers[position] = make()
            everybody.append(readers[position])
            wait(lambda: all_assigned(*readers), 120)
            look()

    def kind():
        listed = admin.list_consumer_groups().result(30).valid
        return next(each.type.name for each in listed if each.group_id == group)

    wait(lambda: all_assigned(*readers), 120)
    go_on(lambda: new(server, group, topic))
    assert kind() == "CONSUMER"
    go_on(lambda: old(server, group, topic, strategy))
    assert kind() == "CLASSIC"
    wait(lambda: read_by(everybody) == set(range(written)), 120)
    look()
    assert backwards == []
    for each in readers:
        each.stop()


def test_server_killed_during_a_rebalance(start_server, topic, name):
    server = start_server()
    group = name("group")
    make_topic(server, topic)
    fill(server, topic, 300)
    readers = [new(server, group, topic) for _ in range(2)]
    wait(lambda: all_assigned(*readers))
    written = 300
    for pause in (0.0, 0.02, 0.2):
        readers.append(new(server, group, topic))
        time.sleep(pause)
        server.kill()
        server.start()
        fill(server, topic, 60, first=written)
        written += 60
        wait(lambda: all_assigned(*readers), 120)
        wait(lambda expected=written: read_by(readers) >= set(range(expected)), 120)
    for each in readers:
        each.stop()


# --- Java


def java_consumer(server, topic, group, *properties):
    properties = [word for each in properties for word in ("--command-property", each)]
    return subprocess.Popen(
        java_command(
            *("kafka-console-consumer", "--bootstrap-server", server.bootstrap),
            *("--topic", topic, "--group", group, "--from-beginning", *properties),
        ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **java_environment()},
    )


def test_java_members(server, topic, name):
    """Two Java consumers and, in the end, one of librdkafka, in one group."""
    group = name("group")
    make_topic(server, topic)
    fill(server, topic, 60)
    members = [java_consumer(server, topic, group, "group.protocol=consumer") for _ in range(2)]
    try:
        described = ("kafka-consumer-groups", "--bootstrap-server", server.bootstrap)

        def counts():
            said = java(*described, "--describe", "--group", group, "--members", code=None)
            rows = [line.split() for line in said.splitlines() if line.startswith(group)]
            return sorted(int(row[4]) for row in rows if len(row) > 4 and row[4].isdigit())

        wait(lambda: counts() == [3, 3], 120)
        said = java(*described, "--describe", "--group", group, "--state")
        assert "Stable" in said
        assert "uniform" in said
        assert re.search(rf"{re.escape(group)} +Consumer", java(*described, "--list", "--type"))
        third = new(server, group, topic)
        wait(lambda: third.assigned == 2, 60)
        for each in members:
            each.send_signal(signal.SIGTERM)
            each.wait(30)
        wait(lambda: third.assigned == PARTITIONS, 60)
        third.stop()
    finally:
        for each in members:
            each.kill()
    said = "".join(each.communicate()[0] for each in members)
    numbers = {int(line) for line in said.splitlines() if line.isdigit()}
    assert numbers == set(range(60)), said


def test_errors_of_java_are_clear(server, topic, name):
    group = name("group")
    make_topic(server, topic)
    wrong = java_consumer(
        server, topic, group, "group.protocol=consumer", "group.remote.assignor=sticky"
    )
    try:
        said, _ = wrong.communicate(timeout=60)
    finally:
        wrong.kill()
        wrong.communicate()
    assert "UnsupportedAssignorException" in said
