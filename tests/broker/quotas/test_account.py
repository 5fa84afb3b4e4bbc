"""Clients above their quotas, on a real server: what they are told, and when they are served again.

Of a limit L and a first request of S units the wait is S/L - 10 seconds: eleven windows of a
second, of which ten count at once.
"""

import pytest
import trio

from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    AlterClientQuotasRequest,
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    MetadataRequest,
)
from wire.kafka.messages.configs import AlterClientQuotasRequestEntryData, EntityData, OpData
from wire.kafka.messages.topics import CreatableTopic, CreatePartitionsTopic, DeleteTopicState

LIMIT = 1000
#: Some 0.3 seconds above what LIMIT allows at once.
TOO_MUCH = b"x" * (10 * LIMIT + 300)


@pytest.fixture
async def admin(server):
    client = await server.connect()
    await client.create_topic("t", 2)
    return client


@pytest.fixture
def limit(admin):
    """limit({"client-id": "test"}, producer_byte_rate=1.0); None takes it back."""

    async def alter(entity, **limits):
        ops = [
            OpData(key, 0.0 if value is None else float(value), remove=value is None)
            for key, value in limits.items()
        ]
        parts = [EntityData(kind, name) for kind, name in entity.items()]
        entry = AlterClientQuotasRequestEntryData(parts, ops)
        # Not as a client that is slowed down itself.
        await admin.stream.send_all(
            admin.frame(AlterClientQuotasRequest([entry]), client_id="operator")
        )
        answer = await admin.receive()
        assert [one.error_code for one in answer.entries] == [0], answer

    return alter


async def answered_after(client, body, version=None):
    began = trio.current_time()
    await client.call(body, version)
    return trio.current_time() - began


PING = ApiVersionsRequest("c", "1")


async def test_without_quotas_nothing_is_counted(server, admin, limit):
    dispatcher = server.parts["Dispatcher"]
    assert dispatcher.accounting is None
    await limit({"user": "somebody"}, producer_byte_rate=1)
    assert dispatcher.accounting is not None
    await limit({"user": "somebody"}, producer_byte_rate=None)
    assert dispatcher.accounting is None


async def test_a_producer_is_answered_at_once_and_waits_then(server, requests, limit):
    await limit({"client-id": "test"}, producer_byte_rate=LIMIT)
    client, same_name = await server.connect(), await server.connect()
    first = requests.produce(("t", 0, [TOO_MUCH]))
    began = trio.current_time()
    answer = await client.call(first, 9)
    took = trio.current_time() - began
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert 250 <= answer.throttle_time_ms <= 500
    wait = answer.throttle_time_ms / 1000
    assert took < wait, "it is told before it waits"
    assert await answered_after(same_name, PING, 3) < wait / 2, "connections are muted, not clients"
    assert await answered_after(client, PING, 3) > wait - took - 0.1
    other = await server.connect()
    await other.stream.send_all(other.frame(first, 9, client_id="other"))
    assert (await other.receive()).throttle_time_ms == 0


async def test_a_producer_that_wants_no_answers_waits_as_long(server, requests, limit):
    await limit({"client-id": "test"}, producer_byte_rate=LIMIT)
    client = await server.connect()
    body = requests.produce(("t", 0, [TOO_MUCH]), acks=0)
    await client.stream.send_all(client.frame(body, 9))
    client._sent.clear()
    assert await answered_after(client, PING, 3) > 0.2


async def test_the_user_shares_one_quota(server, requests, limit):
    await limit({"user": "ANONYMOUS"}, producer_byte_rate=LIMIT)
    for name, is_throttled in (("a", False), ("b", True)):
        client = await server.connect()
        half = requests.produce(("t", 0, [TOO_MUCH[: len(TOO_MUCH) // 2 + 100]]))
        await client.stream.send_all(client.frame(half, 9, client_id=name))
        assert ((await client.receive()).throttle_time_ms > 0) is is_throttled


@pytest.mark.parametrize("with_session", [False, True])
async def test_a_consumer_gets_an_empty_answer_and_then_all_records(
    server, requests, limit, with_session
):
    client = await server.connect()
    for _ in range(3):
        await client.produce("t", [b"y" * 5000])
    await limit({"client-id": "test"}, consumer_byte_rate=LIMIT)
    ids = {"session_id": 0, "session_epoch": 0 if with_session else -1}
    first = await client.call(requests.fetch(("t", 0, 0), partition_max_bytes=5000, **ids), 12)
    assert first.throttle_time_ms == 0
    assert requests.values(first.responses[0].partitions[0].records)[0][0] == 0
    if with_session:
        ids = {"session_id": first.session_id, "session_epoch": 1}
        assert first.session_id != 0
    second = await client.call(requests.fetch(("t", 0, 1), **ids), 12)
    # Two are left, and fit into what an answer may have; with the first it is too much.
    assert second.throttle_time_ms > 0
    assert second.responses == []
    assert second.error_code == 0
    assert second.session_id == first.session_id
    began = trio.current_time()
    ids["session_epoch"] += with_session
    third = await client.call(requests.fetch(("t", 0, 1), partition_max_bytes=100, **ids), 12)
    assert trio.current_time() - began > second.throttle_time_ms / 1000 - 0.1
    [(offset, _)] = requests.values(third.responses[0].partitions[0].records)
    assert offset == 1
    assert third.throttle_time_ms == 0, "what was not sent was not charged"


async def test_a_first_fetch_that_must_wait_makes_no_session(server, requests, limit):
    client = await server.connect()
    await client.produce("t", [b"y" * 11 * LIMIT])
    await limit({"client-id": "test"}, consumer_byte_rate=LIMIT)
    ids = {"session_id": 0, "session_epoch": 0}
    answer = await client.call(requests.fetch(("t", 0, 0), **ids), 12)
    assert answer.throttle_time_ms > 0
    assert (answer.session_id, answer.responses) == (0, [])


async def test_no_answer_is_larger_than_the_windows(server, requests, limit):
    client = await server.connect()
    for partition in (0, 1):
        await client.produce("t", [b"y" * 6000], partition=partition)
    await limit({"client-id": "test"}, consumer_byte_rate=LIMIT)
    body = requests.fetch(("t", 0, 0), ("t", 1, 0), session_epoch=-1)
    answer = await client.call(body, 12)
    assert answer.throttle_time_ms == 0
    sizes = [len(part.records) for topic in answer.responses for part in topic.partitions]
    assert sorted(bool(size) for size in sizes) == [False, True]


async def test_the_processor_s_time_is_charged_and_nobody_waits_longer_than_a_window(server, limit):
    await limit({"client-id": "test"}, request_percentage=0.0001)
    client = await server.connect()
    first = await client.call(MetadataRequest(topics=None))
    assert 0 < first.throttle_time_ms <= 1000
    assert await answered_after(client, PING, 3) > first.throttle_time_ms / 1000 - 0.1


async def test_what_a_task_does_is_charged_too(server, limit):
    await limit({"client-id": "test"}, request_percentage=0.0001)
    client = await server.connect()
    topic = CreatableTopic(name="new", num_partitions=1, replication_factor=1)
    answer = await client.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
    assert answer.topics[0].error_code == 0
    assert answer.throttle_time_ms > 0


async def create(client, name, partitions, version=None, **options):
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    body = CreateTopicsRequest(topics=[topic], timeout_ms=10_000, **options)
    answer = await client.call(body, version)
    return ErrorCode(answer.topics[0].error_code).name, answer.throttle_time_ms


async def test_who_owes_partitions_is_refused(server, limit):
    """KIP-599; as Kafka, also of requests that only validate."""
    await limit({"client-id": "test"}, controller_mutation_rate=3)
    client = await server.connect()
    assert await create(client, "v", 17, validate_only=True) == ("NONE", 0)
    assert await create(client, "a", 19) == ("NONE", 0)  # 33 at once, and 3 more are owed
    error, wait_ms = await create(client, "b", 1)
    assert error == "THROTTLING_QUOTA_EXCEEDED"
    assert 100 <= wait_ms <= 1000
    deleted = await client.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="a")]))
    assert deleted.responses[0].error_code == 0, "it had waited"
    client = await server.connect()
    grown = CreatePartitionsRequest(topics=[CreatePartitionsTopic("t", 3, None)], timeout_ms=10_000)
    assert (await client.call(grown)).results[0].error_code == 89
    client = await server.connect()
    again = await client.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]))
    assert again.responses[0].error_code == 89


@pytest.mark.parametrize("version", [5, 6])
async def test_older_clients_are_only_told_to_wait(server, limit, version):
    await limit({"client-id": "test"}, controller_mutation_rate=100)
    client = await server.connect()
    assert await create(client, "v", 1100, validate_only=True) == ("NONE", 0)
    error, wait_ms = await create(client, "w", 30, version, validate_only=True)
    assert error == "NONE"
    assert (wait_ms > 0) is (version == 5)
    other = await server.connect()
    error, wait_ms = await create(other, "x", 1, version, validate_only=True)
    assert error == ("NONE" if version == 5 else "THROTTLING_QUOTA_EXCEEDED")
    assert wait_ms > 0, "it owes something"


async def test_connections_beyond_the_rate_of_an_address_are_closed_later(
    server, limit, wait_until
):
    await limit({"ip": "127.0.0.1"}, connection_creation_rate=1)
    accepted = [await server.connect() for _ in range(10)]
    refused = await server.connect()
    await refused.stream.send_all(refused.frame(PING, 3))
    assert await accepted[-1].call(PING, 3)
    assert server.parts["KafkaServer"].throttled_count == 1
    began = trio.current_time()
    assert await refused.is_closed(), "and not answered"
    assert 0.3 < trio.current_time() - began < 2
    await limit({"ip": "127.0.0.1"}, connection_creation_rate=None)
    again = await server.connect()
    assert await again.call(PING, 3)


async def test_who_waits_for_longer_than_idle_connections_may_is_closed(
    start_server, requests, wait_until
):
    """Nothing is read from him, so nobody sees that he left."""
    server = await start_server({"connections.max.idle.ms": "1000"})
    client = await server.connect()
    await client.create_topic("t")
    entry = AlterClientQuotasRequestEntryData(
        [EntityData("client-id", "test")], [OpData("producer_byte_rate", 1.0, False)]
    )
    await client.call(AlterClientQuotasRequest([entry]))
    answer = await client.call(requests.produce(("t", 0, [TOO_MUCH])), 9)
    assert answer.throttle_time_ms > 1_000_000
    await client.stream.send_all(client.frame(PING, 3))
    assert await client.is_closed()
    await wait_until(lambda: not server.parts["Dispatcher"].connections)
