"""Clients' metrics on the wire: what is asked for, what is refused, what is shown in the end."""

import uuid

import pytest

from quire.metrics.telemetry import telemetry_collector
from tests.broker.telemetry.pushed import gauge, label, metrics, text
from wire.kafka.errors import ErrorCode
from wire.kafka.message import ZERO_UUID
from wire.kafka.messages import GetTelemetrySubscriptionsRequest, PushTelemetryRequest
from wire.kafka.records.compression import Compression, compress

CLIENT_METRICS = 16
DATA = metrics(gauge("org.apache.kafka.producer.rate", 2.5, label("node", text(1, "a"))))


@pytest.fixture
async def world(server):
    client = await server.connect()
    await client.set_config("s", CLIENT_METRICS, metrics="*", **{"interval.ms": 100})
    return World(server, client)


class World:
    def __init__(self, server, client):
        self.server, self.client = server, client
        self.id, self.subscription = ZERO_UUID, 0

    async def ask(self):
        answer = await self.client.call(GetTelemetrySubscriptionsRequest(self.id))
        self.id, self.subscription = answer.client_instance_id, answer.subscription_id
        return answer

    async def push(self, data, codec=0, **fields):
        fields.setdefault("client_instance_id", self.id)
        body = PushTelemetryRequest(
            subscription_id=self.subscription, compression_type=codec, metrics=data, **fields
        )
        return ErrorCode((await self.client.call(body)).error_code).name

    def shown(self):
        families = telemetry_collector(self.server.parts["TelemetryClients"])()
        return {one.name: (one.labels, one.value) for each in families for one in each.samples}


async def test_what_is_asked_for(world):
    answer = await world.ask()
    assert answer.error_code == 0
    assert answer.client_instance_id != ZERO_UUID
    assert answer.accepted_compression_types == [4, 3, 1, 2]
    assert (answer.push_interval_ms, answer.telemetry_max_bytes) == (100, 1 << 20)
    assert answer.requested_metrics == ["*"]
    again = await world.client.call(GetTelemetrySubscriptionsRequest(answer.client_instance_id))
    assert ErrorCode(again.error_code).name == "THROTTLING_QUOTA_EXCEEDED"


@pytest.mark.parametrize("codec", list(Compression))
async def test_what_is_pushed_is_shown(world, codec):
    await world.ask()
    data = DATA if codec is Compression.NONE else compress(codec, DATA)
    assert await world.push(data, codec) == "NONE"
    labels, value = world.shown()["kafka_client_producer_rate"]
    assert value == 2.5
    assert labels == {"node": "a", "client_id": "test", "client_instance_id": str(world.id)}
    assert world.shown()["kafka_server_client_metrics_instance_count"][1] == 1


@pytest.mark.parametrize(
    ("data", "codec", "error"),
    [
        (b"\x0b", 0, "INVALID_RECORD"),
        (b"no zstd", 4, "INVALID_RECORD"),
        (DATA, 9, "UNSUPPORTED_COMPRESSION_TYPE"),
        (bytes((1 << 20) + 1), 0, "TELEMETRY_TOO_LARGE"),
        (compress(Compression.ZSTD, bytes(50 << 20)), 4, "TELEMETRY_TOO_LARGE"),
    ],
)
async def test_what_is_wrong_is_refused(world, data, codec, error):
    await world.ask()
    assert await world.push(data, codec) == error
    assert "kafka_client_producer_rate" not in world.shown()


async def test_who_does_not_say_who_he_is_is_refused(world):
    await world.ask()
    for number in (0, 1):
        refused = await world.push(DATA, client_instance_id=uuid.UUID(int=number))
        assert refused == "INVALID_REQUEST"
    assert await world.push(b"", terminating=True) == "NONE"
    assert await world.push(b"") == "INVALID_REQUEST", "he had said that it was the last one"


async def test_who_pushes_before_its_time_is_told(world):
    await world.client.set_config("s", CLIENT_METRICS, metrics="*", **{"interval.ms": 3_600_000})
    await world.ask()
    assert await world.push(DATA) == "NONE", "the first one may come early"
    assert await world.push(DATA) == "THROTTLING_QUOTA_EXCEEDED"
    assert await world.push(DATA, terminating=True) == "NONE", "nor has the last one to wait"


async def test_an_unknown_subscription_is_told(world):
    await world.ask()
    world.subscription += 1
    assert await world.push(DATA) == "UNKNOWN_SUBSCRIPTION_ID"
