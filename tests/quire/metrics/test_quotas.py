"""The page of a broker whose clients have quotas."""

from types import SimpleNamespace

import pytest

from broker.cluster.registry import ConfigRegistry, Room
from broker.quotas.entities import entity_of, name_of
from broker.quotas.quotas import ClientQuotas, QuotaWindows
from metadata.memory import MemoryStore
from quire.metrics import quotas as module
from quire.metrics.quotas import quota_collector
from runtime.timers import Timers


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


class Server:
    throttled_count = 7
    slowed_count = 3
    refused_count = 2
    excess_closed_count = 1
    answers = SimpleNamespace(total_bytes=70_000, closed_count=5)


@pytest.fixture
async def quotas(nursery):
    store = MemoryStore()
    await nursery.start(store.run)
    registry = ConfigRegistry(store, {})
    await registry.load()
    for parts, limits in (
        ({"client-id": None}, {"producer_byte_rate": "10.0", "controller_mutation_rate": "2.0"}),
        ({"ip": None}, {"connection_creation_rate": "1.0"}),
    ):
        name = name_of(entity_of(parts.items()))
        await registry.change(Room.QUOTAS, name, lambda _, limits=limits: limits)
    return ClientQuotas(registry, Clock(), Timers(), QuotaWindows())


def samples(quotas):
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in quota_collector(quotas, Server())()
        for sample in family.samples
    }


async def test_rates_and_waits_are_shown_by_who_shares_them(quotas):
    meter = quotas.produce.of("u", "c", 100.0)
    quotas.produce.record(meter, 500, 100.0)
    meter.throttled(0.25, 100.0)
    quotas.mutation.of("u", "c", 100.0).bucket.take(5, 2.0, 100.0)
    for _ in range(11):
        quotas.connection_wait("10.0.0.1")
    found = samples(quotas)
    assert found["kafka_server_produce_byte_rate", ("", "c")] == 50.0
    assert found["kafka_server_produce_throttle_time", ("", "c")] == 250.0
    assert found["kafka_server_controllermutation_tokens", ("", "c")] == 17.0
    prefix = "kafka_server_socket_server_metrics_connection_accept_"
    assert found[prefix + "rate", ("10.0.0.1",)] == 1.0
    assert found[prefix + "throttle_time", ("10.0.0.1",)] == pytest.approx(1000.0)
    assert found["quire_connections_throttled_total", ()] == 7
    assert found["quire_connections_slowed_total", ()] == 3
    assert found["quire_connections_refused_total", ()] == 2
    assert found["quire_connections_excess_closed_total", ()] == 1
    assert found["quire_unread_answers_bytes", ()] == 70_000
    assert found["quire_unread_answers_closed_total", ()] == 5


async def test_of_very_many_those_are_shown_that_were_used_last(quotas, monkeypatch):
    monkeypatch.setattr(module, "SHOWN_MAX", 2)
    for name in "abcd":
        quotas.produce.of("u", name, 100.0)
    shown = [labels for name, labels in samples(quotas) if name == "kafka_server_produce_byte_rate"]
    assert shown == [("", "d"), ("", "c")]
