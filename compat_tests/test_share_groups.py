"""Share groups (KIP-932): Kafka's own share consumer and `kafka-share-groups`."""

import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from harness.tools import java

pytestmark = pytest.mark.timeout(600)

GROUPS = "consumer.group.ShareGroupCommand"
CONSUMER = "consumer.ConsoleShareConsumer"
COUNT = 30


@pytest.fixture
def topic(server, name):
    topic = name("topic")
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for number in range(COUNT):
        producer.produce(topic, f"v{number}".encode(), partition=number % 2)
    assert producer.flush(60) == 0
    return topic


@pytest.fixture
def tool(server):
    def run(main, *arguments):
        return java(main, "--bootstrap-server", server.bootstrap, *arguments)

    return run


def read(tool, topic, group):
    out = tool(
        CONSUMER, "--topic", topic, "--group", group, "--max-messages", str(COUNT),
        "--timeout-ms", "40000",
    )  # fmt: skip
    return sorted(line for line in out.splitlines() if line.startswith("v"))


def rows(tool, group, topic):
    """{partition: (start offset, lag)}."""
    out = tool(GROUPS, "--describe", "--group", group)
    cells = [line.split() for line in out.splitlines() if topic in line.split()]
    return {row[2]: (row[3], row[4]) for row in cells}


def test_a_share_group_from_its_first_member_to_its_end(tool, topic, name):
    """Every record once; its offsets are told, put back, deleted, and then the group is."""
    group = name("group")
    everything = sorted(f"v{number}" for number in range(COUNT))
    tool(
        "kafka-configs", "--alter", "--entity-type", "groups", "--entity-name", group,
        "--add-config", "share.auto.offset.reset=earliest",
    )  # fmt: skip
    assert read(tool, topic, group) == everything
    assert group in tool(GROUPS, "--list").split()
    for _ in range(10):
        told = tool(GROUPS, "--describe", "--group", group, "--state")
        if "Empty" in told:
            break
        time.sleep(1)
    assert {lag for _, lag in rows(tool, group, topic).values()} == {"0"}
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    tool(GROUPS, *reset)
    assert rows(tool, group, topic) == {"0": ("0", "15"), "1": ("0", "15")}
    assert read(tool, topic, group) == everything, "once more"
    tool(GROUPS, "--delete-offsets", "--group", group, "--topic", topic)
    assert rows(tool, group, topic) == {}
    tool(GROUPS, "--delete", "--group", group)
    assert group not in tool(GROUPS, "--list").split()
