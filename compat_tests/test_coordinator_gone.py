"""The broker that coordinates a group dies, and does not come back: a librdkafka producer that has
committed offsets of the group in its transactions goes on with the coordinator that takes over."""

import struct
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from harness import history, raw, servers
from harness.brokers import BrokerCluster, wait_for

pytestmark = [
    pytest.mark.skipif(servers.target() != "quire", reason="about our own processes"),
    pytest.mark.timeout(400),
]

FIND_COORDINATOR, OF_GROUP, OF_TRANSACTION = 10, 0, 1
VICTIM = 3
CALL_S = 20
#: For a client to find its connection closed.
CLOSED_S = 0.3


@pytest.fixture
def cluster(scratch):
    made = BrokerCluster(scratch / "coordinator-gone")
    try:
        made.start(transaction_state_log_num_partitions="4")
        made.wait_until_all_run()
        yield made
    finally:
        made.discard()


def coordinator(broker, key, kind):
    """The node's id, as soon as there is one."""
    found = [-1]

    def is_found():
        with raw.Connection(broker.port) as connection:
            answer = connection.call(FIND_COORDINATOR, 1, raw.string(key) + struct.pack(">b", kind))
        answer.number("i")
        error = answer.number("h")
        answer.string()
        found[0] = answer.number("i")
        return not error

    wait_for(is_found, 60, f"nobody coordinates {key}")
    return found[0]


def test_a_producer_goes_on_with_the_groups_next_coordinator(cluster):
    first = cluster.broker(1)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    # All that is not the group's is with the others.
    topic = NewTopic("gone", 1, replica_assignment=[[1, 2, VICTIM]])
    admin.create_topics([topic])["gone"].result(60)
    group = next(g for g in map("group-{}".format, range(99))
                 if coordinator(first, g, OF_GROUP) == VICTIM)  # fmt: skip
    name = next(n for n in map("id-{}".format, range(99))
                if coordinator(first, n, OF_TRANSACTION) != VICTIM)  # fmt: skip
    settings = {**history.CLIENT_SETTINGS, "bootstrap.servers": cluster.bootstrap}
    consumer = Consumer({**settings, "group.id": group})
    producer = Producer(
        {**settings, "transactional.id": name, "connections.max.idle.ms": history.IDLE_MS}
    )
    producer.init_transactions(60)

    def commit(offset, *, is_last=False):
        """In a transaction. In the last one the group's coordinator dies before it is asked."""
        producer.begin_transaction()
        producer.produce("gone", b"record", partition=0)
        producer.flush(CALL_S)
        if is_last:
            cluster.broker(VICTIM).kill()
            time.sleep(CLOSED_S)
        producer.send_offsets_to_transaction(
            [TopicPartition("gone", 0, offset)], consumer.consumer_group_metadata(), CALL_S
        )
        producer.commit_transaction(CALL_S)

    commit(1)
    # While it waits for that broker the client learns that there is none.
    commit(2, is_last=True)
    (found,) = consumer.committed([TopicPartition("gone", 0)], CALL_S)
    assert found.offset == 2
    consumer.close()
