"""kafka-python 3: idempotent by default, newest versions of the admin requests."""

import time

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import (
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    NewPartitions,
    NewTopic,
)
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)


@pytest.fixture
def producer(server):
    opened = []

    def make(**options):
        opened.append(KafkaProducer(bootstrap_servers=server.bootstrap, **options))
        return opened[-1]

    yield make
    for one in opened:
        one.close(timeout=5)


@pytest.fixture
def consumer(server):
    opened = []

    def make(*topics, **options):
        options = {
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "fetch_max_wait_ms": 50,
            # Else a subscription that came between the first request for metadata and its answer
            # (see test_kafka_python_suite.py) is without partitions for five minutes.
            "metadata_max_age_ms": 1000,
            **options,
        }
        opened.append(KafkaConsumer(*topics, bootstrap_servers=server.bootstrap, **options))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def client(server):
    one = KafkaAdminClient(bootstrap_servers=server.bootstrap)
    yield one
    one.close()


def take(reader, count, timeout_s=60):
    rows = []
    deadline = time.monotonic() + timeout_s
    while len(rows) < count and time.monotonic() < deadline:
        for some in reader.poll(200).values():
            rows += some
    assert len(rows) == count
    return rows


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_everything_of_a_record_comes_back(producer, consumer, topic, codec):
    stamp = int(time.time() * 1000) - 9000
    sent = [
        {
            "key": None if n % 3 == 0 and n % 5 else b"%d" % n,
            "value": None if n % 5 == 0 else bytes([n % 256]) * (3 * n),
            "headers": [("a", b"%d" % n), ("a", b""), ("z", b"\0\xff")],
            "timestamp_ms": stamp + n,
        }
        for n in range(300)
    ]
    one = producer(compression_type=codec, linger_ms=10)
    placed = [one.send(topic, partition=3, **row) for row in sent]
    assert [future.get(60).offset for future in placed] == list(range(300))
    reader = consumer()
    reader.assign([TopicPartition(topic, 3)])
    for row, message in zip(sent, take(reader, 300), strict=True):
        assert message.key == row["key"]
        assert message.value == row["value"]
        assert [tuple(header) for header in message.headers] == row["headers"]
        assert (message.timestamp, message.timestamp_type) == (row["timestamp_ms"], 0)


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(producer, consumer, topic, acks):
    one = producer(acks=acks, enable_idempotence=acks == "all", linger_ms=5)
    for n in range(500):
        one.send(topic, b"%d" % n, partition=0)
    one.flush(60)
    reader = consumer()
    reader.assign([TopicPartition(topic, 0)])
    assert [int(row.value) for row in take(reader, 500)] == list(range(500))


def test_big_message_and_limit(producer, consumer, topic):
    one = producer(max_request_size=3 << 20)
    one.send(topic, bytes(1_000_000), partition=0).get(60)
    with pytest.raises(MessageSizeTooLargeError):
        one.send(topic, bytes(2_000_000), partition=0).get(60)
    reader = consumer(max_partition_fetch_bytes=1000)
    reader.assign([TopicPartition(topic, 0)])
    assert len(take(reader, 1)[0].value) == 1_000_000


def test_seek_and_times(producer, consumer, topic):
    one = producer(linger_ms=20)
    stamp = int(time.time() * 1000) - 1_000_000
    for n in range(300):
        one.send(topic, b"%d" % n, partition=0, timestamp_ms=stamp + 1000 * n)
    one.flush(60)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    reader = consumer()
    reader.assign([first])
    found = reader.offsets_for_times({first: stamp + 100_500, second: stamp})
    assert (found[first].offset, found[first].timestamp) == (101, stamp + 101_000)
    assert found[second] is None
    reader.seek(first, 123)
    assert int(take(reader, 177)[0].value) == 123
    assert reader.position(first) == 300
    reader.seek_to_beginning(first)
    assert reader.position(first) == 0
    assert reader.beginning_offsets([first, second]) == {first: 0, second: 0}
    assert reader.end_offsets([first, second]) == {first: 300, second: 0}


def test_offset_out_of_range(producer, consumer, topic):
    producer().send(topic, b"x", partition=0).get(60)
    reader = consumer(auto_offset_reset="none")
    partition = TopicPartition(topic, 0)
    reader.assign([partition])
    reader.seek(partition, 500)
    with pytest.raises(OffsetOutOfRangeError):
        reader.poll(60_000)


class Moves(ConsumerRebalanceListener):
    def __init__(self):
        self.revoked = []

    def on_partitions_revoked(self, revoked):
        self.revoked += [p.partition for p in revoked]

    def on_partitions_assigned(self, assigned):
        pass


def subscribe(reader, topic, **options):
    """Before it joins, it knows the topic's partitions. A leader that does not gives nobody any,
    and joins again when it does; kafka-python 3.0.12 then forgets that it has joined, if the
    answer comes after the `poll` that asked."""
    reader.subscribe([topic], **options)
    deadline = time.monotonic() + 60
    while not reader.partitions_for_topic(topic):
        assert time.monotonic() < deadline, "no metadata"
        time.sleep(0.02)


def poll_until(readers, done, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, [r.assignment() for r in readers]
        for reader in readers:
            reader.poll(20)


@pytest.mark.parametrize("sticky", [False, True])
def test_group(producer, consumer, topic, name, sticky):
    one = producer()
    for n in range(100):
        one.send(topic, b"%d" % n, partition=n % 4)
    one.flush(60)
    options = {"group_id": name("group"), "session_timeout_ms": 6000, "heartbeat_interval_ms": 200}
    if sticky:
        options["partition_assignment_strategy"] = [StickyPartitionAssignor]
    a = consumer(**options)
    subscribe(a, topic)
    seen = [int(row.value) for row in take(a, 100)]
    a.commit()
    assert sorted(seen) == list(range(100))
    b = consumer(**options)
    subscribe(b, topic)
    poll_until([a, b], lambda: len(a.assignment()) == len(b.assignment()) == 2)
    assert not a.assignment() & b.assignment()
    for n in range(8):
        one.send(topic, b"%d" % n, partition=n % 4)
    one.flush(60)
    rows = []
    deadline = time.monotonic() + 60
    while len(rows) < 8 and time.monotonic() < deadline:
        for reader in (a, b):
            rows += [int(m.value) for some in reader.poll(50).values() for m in some]
    assert sorted(rows) == list(range(8))


def test_static_member_keeps_its_partitions(producer, consumer, topic, name):
    producer().send(topic, b"x", partition=0).get(60)
    options = {"group_id": name("group"), "session_timeout_ms": 20000, "heartbeat_interval_ms": 200}
    moves = Moves()
    stays = consumer(group_instance_id="stays", **options)
    subscribe(stays, topic, listener=moves)
    # One after the other: the first one leads.
    poll_until([stays], lambda: len(stays.assignment()) == 4)
    goes = consumer(group_instance_id="goes", **options)
    subscribe(goes, topic)
    poll_until([stays, goes], lambda: len(stays.assignment()) == len(goes.assignment()) == 2)
    before = goes.assignment()
    moves.revoked.clear()
    goes.close()
    again = consumer(group_instance_id="goes", **options)
    subscribe(again, topic)
    poll_until([stays, again], lambda: len(again.assignment()) == 2)
    assert again.assignment() == before
    assert moves.revoked == []


def test_transactions(producer, consumer, topic, name):
    one = producer(transactional_id=name("tx"))
    one.init_transactions()
    for number, commit in enumerate([True, False, True]):
        one.begin_transaction()
        futures = [one.send(topic, b"%d" % number, partition=0) for _ in range(4)]
        for future in futures:
            future.get(60)
        if commit:
            one.commit_transaction()
        else:
            one.abort_transaction()
    reader = consumer(isolation_level="read_committed")
    reader.assign([TopicPartition(topic, 0)])
    assert [row.value for row in take(reader, 8)] == [b"0"] * 4 + [b"2"] * 4
    assert reader.end_offsets([TopicPartition(topic, 0)]) == {TopicPartition(topic, 0): 15}


def test_old_transactional_producer_is_fenced(producer, topic, name):
    tx = name("tx")
    old, new = producer(transactional_id=tx), producer(transactional_id=tx)
    old.init_transactions()
    old.begin_transaction()
    old.send(topic, b"x", partition=0).get(60)
    new.init_transactions()
    with pytest.raises(KafkaError) as caught:
        old.commit_transaction()
    assert type(caught.value).__name__ in ("ProducerFencedError", "InvalidProducerEpochError")


def test_admin(client, producer, topic, name):
    client.create_topics([NewTopic(topic, 2, 1, topic_configs={"cleanup.policy": "compact"})])
    with pytest.raises(TopicAlreadyExistsError):
        client.create_topics([NewTopic(topic, 2, 1)])
    resource = ConfigResource(ConfigResourceType.TOPIC, topic)
    configs = client.describe_configs([resource])
    assert "compact" in str(configs)
    client.create_partitions({topic: NewPartitions(total_count=3)})
    (described,) = client.describe_topics([topic])
    assert len(described["partitions"]) == 3
    assert {row["error_code"] for row in described["partitions"]} == {0}
    # on a compacted topic a record without a key is refused
    with pytest.raises(KafkaError) as caught:
        producer().send(topic, b"x", partition=0).get(60)
    assert type(caught.value).__name__ == "InvalidRecordError"
    producer().send(topic, b"x", key=b"k", partition=0).get(60)
    client.delete_topics([topic])
    with pytest.raises(UnknownTopicOrPartitionError):
        client.delete_topics([topic])
