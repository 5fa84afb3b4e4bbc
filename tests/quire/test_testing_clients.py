"""quire.testing as its users meet it: real clients, from threads, trio and asyncio."""

import asyncio
import logging
import re
import warnings
from contextlib import closing

import pytest
import trio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

import quire.testing

with warnings.catch_warnings():  # of kafka-python's own use of importlib
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer

TIMEOUT_SECONDS = 60
VALUES = [b"%d" % number for number in range(300)]


def produce(address, values, topic="t"):
    failed = []
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(TIMEOUT_SECONDS) == 0
    assert failed == []


def consume(address, count, topic="t", group="g"):
    """Values in order, read by a member of a group that commits them."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    values = []
    while len(values) < count:
        messages = consumer.consume(count - len(values), TIMEOUT_SECONDS)
        assert messages, f"{len(values)} of {count}"
        assert all(message.error() is None for message in messages)
        values += [message.value() for message in messages]
    if values:
        consumer.commit(asynchronous=False)
    consumer.close()
    return values


def partition_count(address, topic):
    topics = AdminClient({"bootstrap.servers": address}).list_topics(timeout=TIMEOUT_SECONDS).topics
    return len(topics[topic].partitions)


def replayed_records(caplog):
    """What each start of a bookie, in order, took from its journal."""
    found = (re.search(r"replayed .*\brecords=(\d+)", message) for message in caplog.messages)
    return [int(match[1]) for match in found if match]


async def test_confluent_kafka_from_trio():
    async with quire.testing.Server(config={"num.partitions": 1}) as server:
        await trio.to_thread.run_sync(produce, server.bootstrap_servers, VALUES)
        read = await trio.to_thread.run_sync(consume, server.bootstrap_servers, len(VALUES))
    assert read == VALUES


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_kafka_python_from_a_thread():
    with quire.testing.server(topics={"t": 1}) as server:
        with closing(KafkaProducer(bootstrap_servers=server.bootstrap_servers)) as producer:
            for value in VALUES:
                producer.send("t", value)
            producer.flush(TIMEOUT_SECONDS)
        consumer = KafkaConsumer(
            "t",
            bootstrap_servers=server.bootstrap_servers,
            group_id="g",
            auto_offset_reset="earliest",
            consumer_timeout_ms=TIMEOUT_SECONDS * 1000,
        )
        with closing(consumer):
            read = [next(consumer).value for _ in VALUES]
    assert read == VALUES


def test_aiokafka_from_asyncio():
    async def session(address):
        async with AIOKafkaProducer(bootstrap_servers=address, linger_ms=5) as producer:
            sent = [await producer.send("t", value) for value in VALUES]
            await asyncio.gather(*sent)
        async with AIOKafkaConsumer(
            "t", bootstrap_servers=address, group_id="g", auto_offset_reset="earliest"
        ) as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    async def limited(address):
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await session(address)

    with quire.testing.SyncServer(topics={"t": 1}) as server:
        assert asyncio.run(limited(server.bootstrap_servers)) == VALUES


@pytest.mark.parametrize("way", ["restart", "kill"])
def test_records_groups_and_topics_are_there_after_a_restart(way, caplog):
    caplog.set_level(logging.INFO, "bookie")
    with quire.testing.server(topics={"t": 1}) as server:
        address, directory = server.bootstrap_servers, server.data_dir
        produce(address, VALUES)
        assert consume(address, 100) == VALUES[:100]
        if way == "kill":
            server.kill()
            assert not server.is_running
            server.start()
        else:
            server.restart()
        assert server.is_running
        assert (server.bootstrap_servers, server.data_dir) == (address, directory)
        produce(address, [b"after"])
        assert consume(address, 201) == [*VALUES[100:], b"after"]
    first, second = replayed_records(caplog)
    assert first == 0
    # A clean stop leaves nothing to replay; a crash leaves what was not flushed yet.
    assert second > 0 if way == "kill" else second == 0


def test_a_killed_server_loses_nothing_it_acknowledged_to_a_producer_that_goes_on():
    """The producer keeps sending while the storage dies, again and again."""
    with quire.testing.server(topics={"t": 1}) as server:
        acknowledged = []
        producer = Producer(
            {"bootstrap.servers": server.bootstrap_servers, "log_level": 0, "linger.ms": 0}
            | {"enable.idempotence": True, "reconnect.backoff.ms": 10}
        )
        number = 0
        for _ in range(3):
            for _ in range(200):
                producer.produce(
                    "t",
                    b"%d" % number,
                    on_delivery=lambda error, message: error or acknowledged.append(message),
                )
                number += 1
                producer.poll(0)
            server.kill()
            server.start()
        assert producer.flush(TIMEOUT_SECONDS) == 0
        assert len(acknowledged) == number
        read = consume(server.bootstrap_servers, number)
        assert read == [b"%d" % each for each in range(number)]
        offsets = [(message.offset(), message.value()) for message in acknowledged]
        assert sorted(offsets) == list(enumerate(read))


def test_a_directory_of_ones_own_is_kept(tmp_path):
    directory = tmp_path / "kept"
    with quire.testing.server(data_dir=directory, topics={"t": 2}) as server:
        assert server.data_dir == str(directory)
        produce(server.bootstrap_servers, VALUES)
    with quire.testing.server(data_dir=str(directory), topics={"t": 7, "u": 1}) as server:
        assert partition_count(server.bootstrap_servers, "t") == 2  # it exists already
        assert sorted(consume(server.bootstrap_servers, len(VALUES))) == sorted(VALUES)


async def test_many_servers_at_once():
    """In one trio run and in threads of one process, each with its own records."""
    servers = [quire.testing.Server(topics={"t": 1}) for _ in range(3)]
    async with servers[0], servers[1], servers[2]:
        with quire.testing.server(topics={"t": 1}) as one, quire.testing.server() as other:
            other.create_topic("t")  # from within a trio run, of which it is no part
            everyone = [*servers, one, other]
            addresses = [server.bootstrap_servers for server in everyone]
            assert len(set(addresses)) == len({server.data_dir for server in everyone}) == 5

            async def use(address):
                await trio.to_thread.run_sync(produce, address, [address.encode()])
                assert await trio.to_thread.run_sync(consume, address, 1) == [address.encode()]

            async with trio.open_nursery() as nursery:
                for address in addresses:
                    nursery.start_soon(use, address)


def test_settings_are_the_servers_and_win_over_the_presets():
    config = {"num.partitions": 3, "auto.create.topics.enable": True, "logSizeLimit": 32 << 20}
    with quire.testing.server(config=config) as server:
        produce(server.bootstrap_servers, [b"x"], topic="made-on-demand")
        assert partition_count(server.bootstrap_servers, "made-on-demand") == 3
        server.create_topic("with-a-setting", 2, {"retention.ms": 1000, "cleanup.policy": "delete"})
        assert partition_count(server.bootstrap_servers, "with-a-setting") == 2
