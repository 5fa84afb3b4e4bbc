"""Quotas of users who logged in, and clients that do not keep to what they are told (attacks 49 and
53 of the list that tests/broker/security/test_attacks.py goes by)."""

import pytest
import trio

from broker.quotas.meters import METERS_MAX
from wire.kafka.messages import AlterClientQuotasRequest, ApiVersionsRequest, MetadataRequest
from wire.kafka.messages.configs import AlterClientQuotasRequestEntryData, EntityData, OpData
from wire.kafka.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest

RATE = "producer_byte_rate"
LIMIT = 1000
#: Some 0.3 seconds above what LIMIT allows at once.
TOO_MUCH = b"x" * (10 * LIMIT + 300)
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required"
        ' user_alice="wonder" user_bob="builder" user_root="secret";'
    ),
}
PASSWORDS = {"alice": "wonder", "bob": "builder", "root": "secret"}


class World:
    def __init__(self, server):
        self.server = server

    async def login(self, user):
        client = await self.server.connect()
        assert (await client.call(SaslHandshakeRequest("PLAIN"), 1)).error_code == 0
        token = f"\0{user}\0{PASSWORDS[user]}".encode()
        assert (await client.call(SaslAuthenticateRequest(token), 2)).error_code == 0
        return client

    async def limit(self, entity, **limits):
        ops = [OpData(key, float(value), remove=False) for key, value in limits.items()]
        parts = [EntityData(kind, name) for kind, name in entity.items()]
        admin = await self.login("root")
        answer = await admin.call(
            AlterClientQuotasRequest([AlterClientQuotasRequestEntryData(parts, ops)])
        )
        assert [one.error_code for one in answer.entries] == [0], answer


@pytest.fixture
async def world(start_server):
    world = World(await start_server(SETTINGS))
    await (await world.login("root")).create_topic("t")
    return world


@pytest.fixture
def produce(requests):
    """produce(client, client_id) -> the seconds that the client is told to wait"""

    async def call(client, client_id="test", value=TOO_MUCH):
        body = requests.produce(("t", 0, [value]))
        await client.stream.send_all(client.frame(body, 9, client_id))
        answer = await client.receive()
        assert answer.responses[0].partition_responses[0].error_code == 0
        return answer.throttle_time_ms / 1000

    return call


async def test_a_users_quota_is_his_alone(world, produce):
    await world.limit({"user": "alice"}, producer_byte_rate=LIMIT)
    assert await produce(await world.login("bob")) == 0
    assert await produce(await world.login("alice")) > 0
    assert await produce(await world.login("bob")) == 0


async def test_all_connections_of_a_user_share_his_quota_whatever_they_call_themselves(
    world, produce
):
    """Attack 49: a new client id for each request is no way round it."""
    await world.limit({"user": "alice"}, producer_byte_rate=LIMIT)
    alice = [await world.login("alice") for _ in range(4)]
    half = b"x" * (5 * LIMIT)
    waits = [await produce(client, f"id-{n}", half) for n, client in enumerate(alice)]
    assert waits[0] == 0
    assert waits[1] >= 0
    assert 0 < waits[2] < waits[3], "together"
    assert len(world.server.parts["ClientQuotas"].produce) == 1


async def test_the_quota_of_a_user_and_client_is_first(world, produce):
    await world.limit({"user": "alice"}, producer_byte_rate=LIMIT)
    await world.limit({"user": "alice", "client-id": "fast"}, producer_byte_rate=1 << 30)
    await world.limit({"user": None, "client-id": "slow"}, producer_byte_rate=LIMIT)
    assert await produce(await world.login("alice"), "fast") == 0
    assert await produce(await world.login("alice"), "slow") > 0, "the user's own is stronger"
    assert await produce(await world.login("bob"), "fast") == 0
    assert await produce(await world.login("bob"), "slow") > 0
    assert await produce(await world.login("root"), "slow") > 0, "each user for himself"


async def test_what_is_asked_before_a_login_is_charged_to_nobody(world):
    """As Kafka, where dispatch does not hear of it: else strangers would slow down logins."""
    await world.limit({"user": None}, request_percentage=0.001)
    quotas = world.server.parts["ClientQuotas"]
    known = {shared for shared, _ in quotas.request.last_used()}
    for _ in range(3):
        stranger = await world.server.connect()
        assert (await stranger.call(ApiVersionsRequest("c", "1"), 3)).throttle_time_ms == 0
        assert (await stranger.call(SaslHandshakeRequest("PLAIN"), 1)).error_code == 0
    assert {shared for shared, _ in quotas.request.last_used()} == known


async def test_names_without_end_take_the_memory_of_few(world):
    """Attack 49: client ids are what clients call themselves."""
    await world.limit({"user": None, "client-id": None}, request_percentage=1000)
    client = await world.login("alice")
    quotas = world.server.parts["ClientQuotas"]
    body = ApiVersionsRequest("c", "1")
    with trio.fail_after(60):
        for first in range(0, METERS_MAX + 2000, 500):
            names = [f"name-{number}" for number in range(first, first + 500)]
            frames = [client.frame(body, 3, name) for name in names]
            await client.stream.send_all(b"".join(frames))
            for _ in frames:
                await client.receive_frame()
    assert len(quotas.request) == METERS_MAX


async def test_a_muted_connection_that_goes_on_sending_is_not_read(world, produce, requests):
    """Attack 53: it fills its sockets' buffers, and nothing here."""
    await world.limit({"user": "alice"}, producer_byte_rate=LIMIT)
    kafka = world.server.parts["KafkaServer"]
    alice = await world.login("alice")
    wait = await produce(alice, value=b"x" * (40 * LIMIT))
    assert wait > 20
    (connection,) = (
        each
        for each in world.server.parts["Dispatcher"].connections
        if each.info.principal.name == "alice"
    )
    frame = alice.frame(requests.produce(("t", 0, [b"y" * (1 << 20)])), 9)
    with trio.move_on_after(2) as scope:
        for _ in range(64):
            await alice.stream.send_all(frame)
    assert scope.cancelled_caught, "nobody takes it"
    assert connection._receiver.held_bytes <= 2 << 20
    assert kafka.memory.used_bytes <= 2 << 20
    bob = await world.login("bob")
    with trio.fail_after(5):
        for _ in range(50):
            assert await produce(bob, value=b"z") == 0
            assert (await bob.call(MetadataRequest())).brokers


async def test_who_connects_too_often_takes_nobody_his_place_among_those_who_log_in(
    start_server,
):
    """A connection above connection_creation_rate waits to be closed, and is not one that logs in:
    else it would push out who does."""
    server = await start_server({**SETTINGS, "quire.sasl.connections.max": "25"})
    world = World(server)
    root, slow = await world.login("root"), await server.connect()
    assert (await slow.call(SaslHandshakeRequest("PLAIN"), 1)).error_code == 0
    entry = AlterClientQuotasRequestEntryData(
        [EntityData("ip", None)], [OpData("connection_creation_rate", 1.0, remove=False)]
    )
    await root.call(AlterClientQuotasRequest([entry]))
    for _ in range(60):
        await server.connect()
    kafka = server.parts["KafkaServer"]
    with trio.fail_after(5):
        while kafka.throttled_count < 30:
            await trio.sleep(0.01)
    token = b"\0alice\0wonder"
    assert (await slow.call(SaslAuthenticateRequest(token), 2)).error_code == 0
