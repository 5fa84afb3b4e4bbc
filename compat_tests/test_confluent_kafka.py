"""confluent-kafka: librdkafka 2.x as most Python programs use it."""

import itertools
import time

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

pytestmark = pytest.mark.timeout(400)
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def produce(server):
    def send(topic, records, **settings):
        """records: dicts of Producer.produce's arguments; their (partition, offset), in order."""
        config = {key.replace("_", "."): value for key, value in settings.items()}
        producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 20, **config})
        placed = [None] * len(records)

        def reporter(index):
            def report(error, message):
                placed[index] = error or (message.partition(), message.offset())

            return report

        for index, record in enumerate(records):
            producer.produce(topic, on_delivery=reporter(index), **record)
        assert producer.flush(120) == 0
        return placed

    return send


@pytest.fixture
def consumer(server, name):
    opened = []

    def make(group=None, **settings):
        config = {
            "bootstrap.servers": server.bootstrap,
            "group.id": group or name("group"),
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            # Nobody is to lose a partition because this process was away for some seconds.
            "session.timeout.ms": 30_000,
            "heartbeat.interval.ms": 200,
            "fetch.wait.max.ms": 50,
        }
        config.update({key.replace("_", "."): value for key, value in settings.items()})
        opened.append(Consumer(config))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def take(consumer, count, timeout_s=60):
    messages = []
    deadline = time.monotonic() + timeout_s
    while len(messages) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(messages), 0.2):
            assert message.error() is None, message.error()
            messages.append(message)
    assert len(messages) == count
    return messages


def poll_until(consumers, done, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    got = []
    while not done():
        assert time.monotonic() < deadline, "the group did not get there"
        for one in consumers:
            message = one.poll(0.02)
            if message is not None:
                assert message.error() is None, message.error()
                got.append(message)
    return got


@pytest.mark.parametrize("codec", CODECS)
def test_everything_of_a_record_comes_back(produce, consumer, topic, codec):
    now = int(time.time() * 1000)
    records = [
        {
            "key": None if number % 7 == 0 else f"key {number}".encode(),
            "value": None if number % 11 == 0 else bytes([number % 256]) * (number % 500),
            "partition": 1,
            "timestamp": now - 100_000 + number,
            "headers": [("n", str(number).encode()), ("n", b"again"), ("empty", b""), ("no", None)],
        }
        for number in range(500)
    ]
    placed = produce(topic, records, compression_type=codec)
    assert placed == [(1, number) for number in range(500)]
    reader = consumer()
    reader.assign([TopicPartition(topic, 1, OFFSET_BEGINNING)])
    for message, record in zip(take(reader, 500), records, strict=True):
        assert message.key() == record["key"]
        assert message.value() == record["value"]
        assert message.headers() == record["headers"]
        assert message.timestamp() == (1, record["timestamp"])


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(produce, consumer, topic, acks):
    produce(topic, [{"value": b"%d" % n, "partition": 0} for n in range(2000)], acks=acks)
    reader = consumer()
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [int(message.value()) for message in take(reader, 2000)] == list(range(2000))


def test_idempotent_producer_keeps_order(produce, consumer, topic):
    records = [{"value": b"%d" % n, "partition": n % 4} for n in range(8000)]
    placed = produce(topic, records, enable_idempotence=True, batch_num_messages=50)
    assert placed == [(n % 4, n // 4) for n in range(8000)]
    reader = consumer()
    reader.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(4)])
    per_partition = {p: [] for p in range(4)}
    for message in take(reader, 8000):
        per_partition[message.partition()].append(int(message.value()))
    for partition, values in per_partition.items():
        assert values == list(range(partition, 8000, 4))


def test_big_messages(produce, consumer, topic, admin):
    admin.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": str(6 << 20)})])[
        topic
    ].result(60)
    sizes = [5 << 20, 1, 3_000_000, 10]
    records = [{"value": bytes([i]) * size} for i, size in enumerate(sizes)]
    placed = produce(topic, records, message_max_bytes=6 << 20, linger_ms=0)
    assert placed == [(0, 0), (0, 1), (0, 2), (0, 3)]
    reader = consumer(fetch_message_max_bytes=100_000)
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    for i, message in enumerate(take(reader, 4)):
        assert message.value() == bytes([i]) * sizes[i]


def test_more_than_the_server_can_take_at_once(produce, consumer, topic, admin):
    """400 MB as fast as it goes: the server slows the client down, and refuses nothing.

    The producer is not idempotent, so a refusal that it has to retry shows as a record that comes
    twice or out of order.
    """
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
    records = [{"value": b"%06d" % n + bytes(500_000)} for n in range(800)]
    # All requests wait in the client from the start, and a slow disk takes longer than its 30 s:
    # what it then sends again, of itself, is no refusal.
    patient = {"request_timeout_ms": 120_000}
    placed = produce(topic, records, linger_ms=0, queue_buffering_max_kbytes=1 << 20, **patient)
    assert placed == [(0, n) for n in range(800)]
    reader = consumer()
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [int(message.value()[:6]) for message in take(reader, 800, 120)] == list(range(800))


def test_message_over_the_limit_is_refused(produce, topic, admin):
    admin.create_topics([NewTopic(topic, 1, 1, config={"max.message.bytes": "10000"})])[
        topic
    ].result(60)
    (error,) = produce(topic, [{"value": bytes(20_000)}])
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert produce(topic, [{"value": bytes(5_000)}]) == [(0, 0)]


def test_seek_and_offsets_by_time(produce, consumer, topic):
    start = int(time.time() * 1000) - 3_600_000
    produce(
        topic,
        [{"value": b"%d" % n, "partition": 0, "timestamp": start + n * 1000} for n in range(1000)],
        batch_num_messages=100,
    )
    reader = consumer()
    asked = [TopicPartition(topic, 0, start + 500_500), TopicPartition(topic, 1, start)]
    assert [found.offset for found in reader.offsets_for_times(asked, 30)] == [501, -1]
    assert reader.get_watermark_offsets(TopicPartition(topic, 0), 30) == (0, 1000)
    reader.assign([TopicPartition(topic, 0, 990)])
    assert [int(m.value()) for m in take(reader, 10)] == list(range(990, 1000))
    reader.seek(TopicPartition(topic, 0, 17))  # in the middle of a batch
    assert [int(m.value()) for m in take(reader, 5)] == list(range(17, 22))
    assert reader.position([TopicPartition(topic, 0)])[0].offset == 22


def test_group_resumes_from_commit(produce, consumer, topic, name):
    produce(topic, [{"value": b"%d" % n, "partition": n % 4} for n in range(400)])
    group = name("group")
    first = consumer(group)
    first.subscribe([topic])
    seen = [int(message.value()) for message in take(first, 150)]
    first.commit(asynchronous=False)
    committed = first.committed([TopicPartition(topic, p) for p in range(4)], 30)
    assert sum(max(0, row.offset) for row in committed) == 150
    first.close()
    second = consumer(group)
    second.subscribe([topic])
    seen += [int(message.value()) for message in take(second, 250)]
    assert sorted(seen) == list(range(400))


def test_commit_metadata_comes_back(produce, consumer, topic):
    produce(topic, [{"value": b"x", "partition": 0}])
    one = consumer()
    row = TopicPartition(topic, 0, 1, metadata="where we were: é")
    one.commit(offsets=[row], asynchronous=False)
    (back,) = one.committed([TopicPartition(topic, 0)], 30)
    assert (back.offset, back.metadata) == (1, "where we were: é")


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_rebalance(produce, consumer, topic, name, strategy):
    produce(topic, [{"value": b"x", "partition": p} for p in range(4)])
    group = name("group")
    lost = {"a": [], "b": []}
    a, b = (consumer(group, partition_assignment_strategy=strategy) for _ in "ab")

    def on_revoke(who):
        return lambda _, partitions: lost[who].extend(p.partition for p in partitions)

    a.subscribe([topic], on_revoke=on_revoke("a"))
    poll_until([a], lambda: len(a.assignment()) == 4)
    b.subscribe([topic], on_revoke=on_revoke("b"))

    def split():
        return len(a.assignment()) == len(b.assignment()) == 2

    poll_until([a, b], split)
    owned = [p.partition for p in itertools.chain(a.assignment(), b.assignment())]
    assert sorted(owned) == [0, 1, 2, 3]
    # eager gives everything back first, cooperative only what moves
    assert len(lost["a"]) == (4 if strategy == "range" else 2)
    b.unsubscribe()
    b.close()
    poll_until([a], lambda: len(a.assignment()) == 4)


def test_static_member_comes_back_without_rebalance(produce, consumer, topic, name):
    produce(topic, [{"value": b"x", "partition": p} for p in range(4)])
    group = name("group")
    revoked = []
    stays = consumer(group, group_instance_id="stays")
    goes = consumer(group, group_instance_id="goes")
    stays.subscribe([topic], on_revoke=lambda _, partitions: revoked.append(partitions))
    goes.subscribe([topic])
    poll_until([stays, goes], lambda: len(stays.assignment()) == len(goes.assignment()) == 2)
    before = sorted(p.partition for p in goes.assignment())
    revoked.clear()
    goes.close()  # a static member does not leave
    again = consumer(group, group_instance_id="goes")
    again.subscribe([topic])
    poll_until([stays, again], lambda: len(again.assignment()) == 2)
    assert sorted(p.partition for p in again.assignment()) == before
    assert revoked == []


def test_static_member_taken_twice_is_fenced(produce, consumer, topic, name):
    produce(topic, [{"value": b"x", "partition": 0}])
    group = name("group")
    old = consumer(group, group_instance_id="only")
    old.subscribe([topic])
    poll_until([old], lambda: len(old.assignment()) == 4)
    new = consumer(group, group_instance_id="only")
    new.subscribe([topic])
    poll_until([new], lambda: len(new.assignment()) == 4)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        message = old.poll(0.1)
        if message is not None and message.error():
            assert message.error().code() == KafkaError._FATAL
            return
    pytest.fail("the old holder of the instance id was not fenced")


def test_transactions(server, consumer, topic, name):
    producer = Producer(
        {"bootstrap.servers": server.bootstrap, "transactional.id": name("tx"), "linger.ms": 5}
    )
    producer.init_transactions(20)
    for number in range(6):
        producer.begin_transaction()
        for step in range(5):
            producer.produce(topic, b"%d.%d" % (number, step), partition=0)
        if number % 2:
            producer.flush(10)
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)
    committed = consumer(isolation_level="read_committed")
    committed.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    expected = [b"%d.%d" % (number, step) for number in (0, 2, 4) for step in range(5)]
    assert [message.value() for message in take(committed, 15)] == expected
    everything = consumer(isolation_level="read_uncommitted")
    everything.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert len(take(everything, 30)) == 30
    assert committed.poll(0.3) is None


def test_transaction_with_offsets(server, produce, consumer, topic, name):
    produce(topic, [{"value": b"%d" % n, "partition": 0} for n in range(20)])
    group, out = name("group"), name("out")
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": name("tx")})
    producer.init_transactions(20)
    reader = consumer(group)
    reader.subscribe([topic])
    for round_number, commit in enumerate([True, False, True]):
        producer.begin_transaction()
        for message in take(reader, 5):
            producer.produce(out, message.value(), partition=0)
        producer.send_offsets_to_transaction(
            reader.position(reader.assignment()), reader.consumer_group_metadata(), 20
        )
        if commit:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)
            back = reader.committed([TopicPartition(topic, 0)], 10)[0].offset
            assert back == 5 * round_number
            reader.seek(TopicPartition(topic, 0, back))
    assert reader.committed([TopicPartition(topic, 0)], 10)[0].offset == 10
    checker = consumer(isolation_level="read_committed")
    checker.assign([TopicPartition(out, 0, OFFSET_BEGINNING)])
    assert [int(message.value()) for message in take(checker, 10)] == list(range(10))


def test_new_transactional_producer_fences_the_old(server, topic, name):
    settings = {"bootstrap.servers": server.bootstrap, "transactional.id": name("tx")}
    old, new = Producer(settings), Producer(settings)
    old.init_transactions(20)
    old.begin_transaction()
    old.produce(topic, b"lost", partition=0)
    old.flush(10)
    new.init_transactions(20)
    with pytest.raises(KafkaException) as caught:
        old.commit_transaction(20)
    assert caught.value.args[0].code() in (KafkaError._FENCED, KafkaError.PRODUCER_FENCED)
    new.begin_transaction()
    new.produce(topic, b"kept", partition=0)
    new.commit_transaction(20)


def test_admin_topics_and_configs(admin, produce, topic):
    created = admin.create_topics([NewTopic(topic, 2, 1, config={"retention.ms": "86400000"})])
    assert created[topic].result(60) is None
    with pytest.raises(KafkaException) as caught:
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(60)
    assert caught.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    with pytest.raises(KafkaException) as caught:
        admin.create_topics([NewTopic("not/legal", 1, 1)])["not/legal"].result(60)
    assert caught.value.args[0].code() == KafkaError.TOPIC_EXCEPTION

    resource = ConfigResource(ResourceType.TOPIC, topic)
    configs = admin.describe_configs([resource])[resource].result(60)
    assert configs["retention.ms"].value == "86400000"
    assert not configs["retention.ms"].is_default
    assert configs["cleanup.policy"].value == "delete"
    assert configs["cleanup.policy"].is_default
    change = ConfigResource(ResourceType.TOPIC, topic)
    for key, value, kind in [
        ("retention.ms", None, AlterConfigOpType.DELETE),
        ("cleanup.policy", "compact", AlterConfigOpType.APPEND),
        ("max.message.bytes", "5000", AlterConfigOpType.SET),
    ]:
        change.add_incremental_config(ConfigEntry(key, value, incremental_operation=kind))
    admin.incremental_alter_configs([change])[change].result(60)
    configs = admin.describe_configs([resource])[resource].result(60)
    assert configs["retention.ms"].value == "604800000"
    assert configs["cleanup.policy"].value == "delete,compact"
    assert configs["max.message.bytes"].value == "5000"
    bad = ConfigResource(ResourceType.TOPIC, topic)
    entry = ConfigEntry("max.message.bytes", "x", incremental_operation=AlterConfigOpType.SET)
    bad.add_incremental_config(entry)
    with pytest.raises(KafkaException) as caught:
        admin.incremental_alter_configs([bad])[bad].result(60)
    assert caught.value.args[0].code() == KafkaError.INVALID_CONFIG

    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(60)
    assert len(admin.list_topics(topic, 30).topics[topic].partitions) == 5
    with pytest.raises(KafkaException) as caught:
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result(60)
    assert caught.value.args[0].code() == KafkaError.INVALID_PARTITIONS
    admin.delete_topics([topic])[topic].result(60)
    with pytest.raises(KafkaException) as caught:
        admin.delete_topics([topic])[topic].result(60)
    assert caught.value.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_recreated_topic_is_empty(admin, produce, consumer, topic):
    for round_number in range(3):
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
        assert produce(topic, [{"value": b"%d" % round_number}]) == [(0, 0)]
        reader = consumer()
        reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        assert [m.value() for m in take(reader, 1)] == [b"%d" % round_number]
        reader.close()
        admin.delete_topics([topic])[topic].result(60)


def test_admin_offsets_and_delete_records(admin, produce, consumer, topic):
    stamp = int(time.time() * 1000) - 60_000
    produce(
        topic, [{"value": b"%d" % n, "partition": 0, "timestamp": stamp + n} for n in range(100)]
    )
    partition = TopicPartition(topic, 0)

    def offset(spec, **options):
        return admin.list_offsets({partition: spec}, **options)[partition].result(60)

    assert offset(OffsetSpec.earliest()).offset == 0
    assert offset(OffsetSpec.latest()).offset == 100
    latest = offset(OffsetSpec.latest(), isolation_level=IsolationLevel.READ_COMMITTED)
    assert latest.offset == 100
    assert offset(OffsetSpec.for_timestamp(stamp + 40)).offset == 40
    by_max = offset(OffsetSpec.max_timestamp())
    assert (by_max.offset, by_max.timestamp) == (99, stamp + 99)
    asked = TopicPartition(topic, 0, 30)
    assert admin.delete_records([asked])[asked].result(60).low_watermark == 30
    assert offset(OffsetSpec.earliest()).offset == 30
    reader = consumer()
    reader.assign([TopicPartition(topic, 0, 5)])
    assert [int(m.value()) for m in take(reader, 70)] == list(range(30, 100))
    strict = consumer(auto_offset_reset="error")
    strict.assign([TopicPartition(topic, 0, 5)])
    deadline = time.monotonic() + 30
    message = None
    while message is None and time.monotonic() < deadline:
        message = strict.poll(0.2)
    assert message.error().code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


def test_admin_groups(admin, produce, consumer, topic, name):
    produce(topic, [{"value": b"x", "partition": p} for p in range(4)])
    group = name("group")
    member = consumer(group, client_id="the member")
    member.subscribe([topic])
    take(member, 4)
    member.commit(asynchronous=False)
    described = admin.describe_consumer_groups([group])[group].result(60)
    assert described.state.name == "STABLE"
    assert described.partition_assignor == "range"
    (only,) = described.members
    assert only.client_id == "the member"
    assert sorted(p.partition for p in only.assignment.topic_partitions) == [0, 1, 2, 3]
    listed = admin.list_consumer_groups().result(60).valid
    assert group in {row.group_id for row in listed}
    with pytest.raises(KafkaException) as caught:
        admin.delete_consumer_groups([group])[group].result(60)
    assert caught.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    member.close()
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 2, 0)])
    admin.alter_consumer_group_offsets([asked])[group].result(60)
    asked = ConsumerGroupTopicPartitions(group)
    rows = admin.list_consumer_group_offsets([asked])[group].result(60).topic_partitions
    assert {row.partition: row.offset for row in rows} == {0: 1, 1: 1, 2: 0, 3: 1}
    admin.delete_consumer_groups([group])[group].result(60)
    with pytest.raises(KafkaException) as caught:
        admin.delete_consumer_groups([group])[group].result(60)
    assert caught.value.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND


def test_admin_cluster(admin, server):
    cluster = admin.describe_cluster().result(60)
    assert cluster.cluster_id
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [server.bootstrap]
    assert cluster.controller.id in {node.id for node in cluster.nodes}
    broker = ConfigResource(ResourceType.BROKER, str(cluster.controller.id))
    configs = admin.describe_configs([broker])[broker].result(60)
    assert configs["num.partitions"].value == "4"


def test_subscribe_by_pattern_sees_new_topics(admin, produce, consumer, name):
    base = name("p")
    produce(base + "-one", [{"value": b"1", "partition": 0}])
    reader = consumer(topic_metadata_refresh_interval_ms=300)
    reader.subscribe([f"^{base}-.*"])
    assert [m.value() for m in take(reader, 1)] == [b"1"]
    reader.commit(asynchronous=False)  # the rebalance that the new topic causes starts from here
    produce(base + "-two", [{"value": b"2", "partition": 0}])
    assert [m.value() for m in take(reader, 1)] == [b"2"]


def test_log_append_time(admin, produce, consumer, topic):
    config = {"message.timestamp.type": "LogAppendTime"}
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(60)
    before = int(time.time() * 1000)
    produce(topic, [{"value": b"x", "timestamp": 12345} for _ in range(3)], compression_type="lz4")
    reader = consumer()
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    for message in take(reader, 3):
        kind, stamp = message.timestamp()
        assert kind == 2
        assert before <= stamp <= time.time() * 1000
