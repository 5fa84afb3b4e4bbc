"""How many connections there may be: max.connections waits, max.connections.per.ip refuses."""

import logging

import pytest
import trio

from broker.cluster.config_forms import parse_connection_overrides
from wire.kafka.messages import ApiVersionsRequest

BROKER = 4


async def is_served(client, seconds=5):
    """Whether a request is answered within that time."""
    with trio.move_on_after(seconds):
        await client.call(ApiVersionsRequest("c", "1"), 3)
        return True
    return False


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
    late = await server.connect()
    assert not await is_served(late, 0.2)
    assert await is_served(waiting), "nobody who is connected is sent away"


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


async def test_brokers_meet_whatever_max_connections_says(start_server, monkeypatch):
    """Its own listener is for the brokers; another's client gives way, a silent one first."""
    server = await start_server({"max.connections": "1"})
    kafka = server.parts["KafkaServer"]
    inner = kafka.listen("127.0.0.1", 0, "BROKERS")
    object.__setattr__(kafka._settings, "protected_listener", "BROKERS")
    client = await server.connect()
    assert await is_served(client)
    server.address, outside = inner.address, server.address
    broker = await server.connect()
    assert await is_served(broker)
    assert await client.is_closed()
    server.address = outside
    assert not await is_served(await server.connect(), 0.2)


def test_overrides_are_read_and_checked():
    assert parse_connection_overrides("") == {}
    assert parse_connection_overrides("10.0.0.1:5, [::1]:7") == {"10.0.0.1": 5, "::1": 7}
    for wrong in ("10.0.0.1", "10.0.0.1:x", "somewhere:5", ":5"):
        with pytest.raises(ValueError, match=r".+"):
            parse_connection_overrides(wrong)
