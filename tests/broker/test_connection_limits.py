"""How many connections there may be: max.connections waits, max.connections.per.ip refuses."""

import logging

import pytest
import trio

from bookie.config_definitions import BOOKIE_CONFIGS
from broker.cluster.config_file import load
from broker.cluster.config_forms import parse_connection_overrides
from broker.cluster.registry import Source
from runtime.config import ConfigError
from wire.kafka.messages import ApiVersionsRequest
from wire.kafka.messages.configs import DescribeConfigsRequest, DescribeConfigsResource

BROKER = 4

TWO = {
    "listeners": "BROKERS://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map": "BROKERS:PLAINTEXT,CLIENTS:PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
}


async def at(server, listener):
    server.address = server.parts["KafkaServer"]._listeners[listener].address
    return await server.connect()


async def is_served(client, seconds=5):
    """Whether a request is answered within that time."""
    with trio.move_on_after(seconds):
        await client.call(ApiVersionsRequest("c", "1"), 3)
        return True
    return False


@pytest.fixture
def describe():
    """describe(client, broker, setting) -> value, read_only, source"""

    async def described(client, broker, setting):
        resource = DescribeConfigsResource(
            resource_type=BROKER, resource_name=broker, configuration_keys=[setting]
        )
        answer = await client.call(DescribeConfigsRequest(resources=[resource]))
        (config,) = answer.results[0].configs
        return config.value, config.read_only, Source(config.config_source).name

    return described


async def test_at_max_connections_a_client_waits_until_another_leaves(start_server, caplog):
    server = await start_server({"max.connections": "2"})
    first, second = await server.connect(), await server.connect()
    assert await is_served(first)
    assert await is_served(second)
    third = await server.connect()  # the system accepts it into the backlog
    assert not await is_served(third, 0.3), "it waits"
    assert len(server.parts["Dispatcher"].connections) == 2
    assert "connections_full" in caplog.text
    await second.aclose()
    await third.receive()
    assert len(server.parts["Dispatcher"].connections) == 2


async def test_max_connections_acts_when_it_is_changed(start_server):
    server = await start_server({"max.connections": "1"})
    admin = await server.connect()
    assert await is_served(admin)
    waiting = await server.connect()
    assert not await is_served(waiting, 0.2)
    await admin.set_config("", resource_type=BROKER, max_connections=2)
    await waiting.receive()
    await admin.set_config("", resource_type=BROKER, max_connections=1)
    assert await waiting.is_closed(), "as in Kafka: who was silent for longest goes"
    assert await is_served(admin)
    late = await server.connect()
    assert not await is_served(late, 0.2)


async def test_beyond_the_limit_of_an_address_connections_are_closed(start_server, caplog):
    caplog.set_level(logging.INFO)
    server = await start_server({"max.connections.per.ip": "1"})
    first = await server.connect()
    assert await is_served(first)
    second = await server.connect()
    assert await second.is_closed()
    refused = [r.args for r in caplog.records if r.getMessage() == "connection_refused"]
    assert refused[0]["reason"] == "max.connections.per.ip"
    await first.set_config(
        "", resource_type=BROKER, max_connections_per_ip_overrides="127.0.0.1:2,10.0.0.1:0"
    )
    third, fourth = await server.connect(), await server.connect()
    assert await is_served(third)
    assert await fourth.is_closed()
    await third.aclose()
    with trio.fail_after(10):
        while not await is_served(await server.connect()):
            await trio.sleep(0.01)


async def test_brokers_meet_whatever_max_connections_says(start_server):
    """Its own listener is for the brokers; another's client gives way, a silent one first."""
    server = await start_server({**TWO, "max.connections": "3"})
    clients = [await at(server, "CLIENTS") for _ in range(3)]
    for client in (*clients, clients[0]):
        assert await is_served(client)
    broker = await at(server, "BROKERS")
    assert await is_served(broker)
    assert await clients[1].is_closed(), "the one that was silent for longest"
    assert await is_served(clients[0])
    assert await is_served(clients[2])
    assert not await is_served(await at(server, "CLIENTS"), 0.2)
    assert server.parts["KafkaServer"].excess_closed_count == 1


async def test_a_listeners_own_limit_acts_and_may_be_changed(start_server):
    server = await start_server({**TWO, "listener.name.clients.max.connections": "1"})
    admin = await at(server, "BROKERS")
    first = await at(server, "CLIENTS")
    assert await is_served(first)
    waiting = await at(server, "CLIENTS")
    assert not await is_served(waiting, 0.2)
    assert await is_served(await at(server, "BROKERS")), "another listener's are their own"
    await admin.set_config(
        "", resource_type=BROKER, **{"listener.name.clients.max.connections": "2"}
    )
    await waiting.receive()
    await admin.set_config(
        "0", resource_type=BROKER, **{"listener.name.clients.max.connections": "1"}
    )
    assert await is_served(waiting), "for a listener's limit nobody is sent away"
    await first.aclose()
    assert not await is_served(await at(server, "CLIENTS"), 0.2)


async def test_the_brokers_own_listener_has_a_limit_too_if_one_is_set(start_server):
    server = await start_server({**TWO, "listener.name.brokers.max.connections": "1"})
    assert await is_served(await at(server, "BROKERS"))
    assert not await is_served(await at(server, "BROKERS"), 0.2)
    assert await is_served(await at(server, "CLIENTS"))


@pytest.mark.parametrize("name", ["", "0"])
async def test_a_listeners_limit_is_shown_as_it_is_set(start_server, describe, name):
    server = await start_server({**TWO, "listener.name.clients.max.connections": "7"})
    admin = await at(server, "BROKERS")
    setting = "listener.name.clients.max.connections"
    assert await describe(admin, "0", setting) == ("7", False, "STATIC_BROKER_CONFIG")
    await admin.set_config(name, resource_type=BROKER, **{setting: "9"})
    source = "DYNAMIC_BROKER_CONFIG" if name else "DYNAMIC_DEFAULT_BROKER_CONFIG"
    assert await describe(admin, name, setting) == ("9", False, source)


@pytest.mark.parametrize("value", ["-1", "x", str(2**31)])
async def test_a_wrong_limit_of_a_listener_is_refused(start_server, value):
    setting = "listener.name.plaintext.max.connections"
    with pytest.raises(ConfigError, match=setting):
        load("", {setting: value}, BOOKIE_CONFIGS)
    admin = await (await start_server()).connect()
    with pytest.raises(AssertionError, match=setting):
        await admin.set_config("", resource_type=BROKER, **{setting: value})
    with pytest.raises(AssertionError, match="Cannot update these configs dynamically"):
        await admin.set_config(
            "0", resource_type=BROKER, **{"listener.name.plaintext.sasl.enabled.mechanisms": "x"}
        )


async def test_connections_come_as_fast_as_the_broker_lets_them(start_server):
    """11 windows of a second: so many at once, and then no more than the rate."""
    server = await start_server({**TWO, "max.connection.creation.rate": "2"})
    kafka = server.parts["KafkaServer"]
    began = trio.current_time()
    served = 0
    with trio.move_on_after(1.5):
        while True:
            client = await at(server, "CLIENTS")
            await client.call(ApiVersionsRequest("c", "1"), 3)
            served += 1
    assert trio.current_time() - began > 1.4
    assert 20 <= served <= 24
    assert kafka.slowed_count >= 1
    assert kafka.refused_count == 0, "they wait"
    with trio.fail_after(2):
        for _ in range(10):  # what others did does not count for brokers
            assert await is_served(await at(server, "BROKERS"))


async def test_a_listeners_own_rate_acts_and_may_be_changed(start_server):
    setting = "listener.name.clients.max.connection.creation.rate"
    server = await start_server({**TWO, setting: "0"})
    assert await is_served(await at(server, "CLIENTS"))
    late = await at(server, "CLIENTS")
    assert not await is_served(late, 0.3)
    admin = await at(server, "BROKERS")
    await admin.set_config("", resource_type=BROKER, **{setting: "100"})
    await late.receive()  # after a second at most
    for _ in range(20):
        assert await is_served(await at(server, "CLIENTS"), 0.5)


def test_overrides_are_read_and_checked():
    assert parse_connection_overrides("") == {}
    assert parse_connection_overrides("10.0.0.1:5, [::1]:7") == {"10.0.0.1": 5, "::1": 7}
    for wrong in ("10.0.0.1", "10.0.0.1:x", "somewhere:5", ":5"):
        with pytest.raises(ValueError, match=r".+"):
            parse_connection_overrides(wrong)
