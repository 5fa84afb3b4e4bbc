"""aiokafka: a client with no librdkafka in it, and with old versions of every request.

It sends transactional requests in version 0, Produce 8 at most, Fetch 11 at most.
"""

import asyncio
import itertools
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import ProducerFenced, TopicAlreadyExistsError


def run(coroutine):
    async def limited():
        async with asyncio.timeout(150):
            return await coroutine

    return asyncio.run(limited())


@pytest.fixture
def producer(server):
    def make(**options):
        return AIOKafkaProducer(bootstrap_servers=server.bootstrap, **options)

    return make


@pytest.fixture
def consumer(server, name):
    def make(*topics, **options):
        options.setdefault("group_id", None)
        return AIOKafkaConsumer(
            *topics,
            bootstrap_servers=server.bootstrap,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
            metadata_max_age_ms=1000,
            **options,
        )

    return make


async def take(reader, count):
    messages = []
    while len(messages) < count:
        for rows in (await reader.getmany(timeout_ms=500)).values():
            messages += rows
    assert len(messages) == count
    return messages


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_everything_of_a_record_comes_back(producer, consumer, topic, codec, idempotent):
    stamp = int(time.time() * 1000) - 5000
    sent = [
        {
            "key": None if n % 5 == 0 and n % 7 else b"key%d" % n,
            "value": None if n % 7 == 0 else bytes([n % 256]) * n,
            "headers": [("a", b"%d" % n), ("a", b""), ("b", b"\xff\x00")],
            "timestamp_ms": stamp + n,
        }
        for n in range(300)
    ]

    async def main():
        options = {"compression_type": codec, "linger_ms": 10, "enable_idempotence": idempotent}
        async with producer(**options) as p:
            waits = [await p.send(topic, partition=2, **row) for row in sent]
            placed = [await wait for wait in waits]
            assert [meta.offset for meta in placed] == list(range(300))
        async with consumer() as reader:
            reader.assign([TopicPartition(topic, 2)])
            for row, message in zip(sent, await take(reader, 300), strict=True):
                assert message.key == row["key"]
                assert message.value == row["value"]
                assert list(message.headers) == row["headers"]
                assert message.timestamp == row["timestamp_ms"]

    run(main())


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(producer, consumer, topic, acks):
    async def main():
        async with producer(acks=acks, linger_ms=5) as p:
            for n in range(500):
                await p.send(topic, b"%d" % n, partition=0)
        async with consumer() as reader:
            reader.assign([TopicPartition(topic, 0)])
            assert [int(m.value) for m in await take(reader, 500)] == list(range(500))

    run(main())


def test_seek_and_times(producer, consumer, topic):
    start = int(time.time() * 1000) - 1_000_000

    async def main():
        async with producer(linger_ms=20) as p:
            for n in range(200):
                await p.send(topic, b"%d" % n, partition=0, timestamp_ms=start + n * 1000)
        one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
        async with consumer() as reader:
            reader.assign([one, two])
            found = await reader.offsets_for_times({one: start + 99_001, two: start})
            assert (found[one].offset, found[one].timestamp) == (100, start + 100_000)
            assert found[two] is None
            assert await reader.beginning_offsets([one, two]) == {one: 0, two: 0}
            assert await reader.end_offsets([one, two]) == {one: 200, two: 0}
            reader.seek(one, 150)
            assert [int(m.value) for m in await take(reader, 50)] == list(range(150, 200))
            await reader.seek_to_beginning(one)
            assert int((await reader.getone()).value) == 0

    run(main())


def test_group_rebalances_and_resumes(producer, consumer, topic, name):
    group = name("group")

    async def main():
        async with producer() as p:
            for n in range(100):
                await p.send_and_wait(topic, b"%d" % n, partition=n % 4)
        options = {"group_id": group, "session_timeout_ms": 6000, "heartbeat_interval_ms": 200}
        async with consumer(topic, **options) as a:
            seen = [int(m.value) for m in await take(a, 100)]
            await a.commit()
            assert len(a.assignment()) == 4
            async with consumer(topic, **options) as b:
                while len(a.assignment()) != 2 or len(b.assignment()) != 2:
                    await a.getmany(timeout_ms=50)
                    await b.getmany(timeout_ms=50)
                assert not a.assignment() & b.assignment()
            while len(a.assignment()) != 4:
                await a.getmany(timeout_ms=50)
            assert sum([await a.committed(p) for p in a.assignment()]) == 100
        assert sorted(seen) == list(range(100))

    run(main())


def test_transactions_with_offsets(producer, consumer, topic, name):
    group, out = name("group"), name("out")

    async def main():
        async with producer() as p:
            for n in range(10):
                await p.send_and_wait(topic, b"%d" % n, partition=0)
        transactional = producer(transactional_id=name("tx"))
        source = TopicPartition(topic, 0)
        async with transactional as p:
            for start, commit in [(0, True), (5, False)]:
                await p.begin_transaction()
                for n in range(start, start + 5):
                    await p.send(out, b"%d" % n, partition=0)
                await p.send_offsets_to_transaction({source: start + 5}, group)
                await (p.commit_transaction() if commit else p.abort_transaction())
            async with p.transaction():
                await p.send_and_wait(out, b"last", partition=0)
        async with consumer(isolation_level="read_committed") as reader:
            reader.assign([TopicPartition(out, 0)])
            assert [m.value for m in await take(reader, 6)] == [
                b"0",
                b"1",
                b"2",
                b"3",
                b"4",
                b"last",
            ]
        async with consumer(group_id=group) as reader:
            assert await reader.committed(source) == 5

    run(main())


def test_zombie_is_fenced(producer, topic, name):
    async def main():
        tx = name("tx")
        old, new = producer(transactional_id=tx), producer(transactional_id=tx)
        await old.start()
        await old.begin_transaction()
        await old.send_and_wait(topic, b"x", partition=0)
        await new.start()
        with pytest.raises(ProducerFenced):
            await old.commit_transaction()
        await old.stop()
        await new.stop()

    run(main())


def test_admin(server, topic, producer, name):
    async def main():
        client = AIOKafkaAdminClient(bootstrap_servers=server.bootstrap)
        await client.start()
        try:
            await client.create_topics(
                [NewTopic(topic, 3, 1, topic_configs={"segment.ms": "600000"})]
            )
            repeated = await client.create_topics([NewTopic(topic, 3, 1)])
            assert repeated.topic_errors[0][1] == TopicAlreadyExistsError.errno
            (described,) = await client.describe_topics([topic])
            assert len(described["partitions"]) == 3
            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            (answer,) = await client.describe_configs([resource])
            configs = {row[0]: row[1] for row in answer.resources[0][4]}
            assert configs["segment.ms"] == "600000"
            await client.create_partitions({topic: NewPartitions(total_count=4)})
            (described,) = await client.describe_topics([topic])
            assert len(described["partitions"]) == 4
            async with producer() as p:
                for _ in range(10):
                    await p.send_and_wait(topic, b"x", partition=0)
            target = TopicPartition(topic, 0)
            deleted = await client.delete_records({target: RecordsToDelete(before_offset=4)})
            assert deleted == {target: 4}
            await client.delete_topics([topic])
            assert topic not in await client.list_topics()
        finally:
            await client.close()

    run(main())


def test_many_topics_in_one_fetch(producer, consumer, name):
    topics = [name("many") for _ in range(20)]

    async def main():
        async with producer() as p:
            waits = [
                await p.send(topic, b"%d" % n, partition=n % 4)
                for topic, n in itertools.product(topics, range(8))
            ]
            await asyncio.gather(*waits)
        async with consumer() as reader:
            reader.assign([TopicPartition(topic, part) for topic in topics for part in range(4)])
            per_topic = {topic: [] for topic in topics}
            for message in await take(reader, 160):
                per_topic[message.topic].append(int(message.value))
        assert all(sorted(values) == list(range(8)) for values in per_topic.values())

    run(main())
