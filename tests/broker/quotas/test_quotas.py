"""What is stored is in force: tables of limits from the registry, and connections by address."""

import logging

import pytest

from broker.cluster.registry import ConfigRegistry, Room
from broker.quotas.entities import entity_of, name_of
from broker.quotas.quotas import ClientQuotas, QuotaWindows
from metadata.memory import MemoryStore
from runtime.timers import Timers


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now

    def time_ms(self):
        return int(self.now * 1000)


@pytest.fixture
async def registry(nursery):
    store = MemoryStore()
    await nursery.start(store.run)
    registry = ConfigRegistry(store, {})
    await registry.load()
    return registry


@pytest.fixture
def store(registry):
    async def put(parts, **limits):
        name = name_of(entity_of(parts.items()))
        await registry.change(
            Room.QUOTAS, name, lambda _: {key: repr(value) for key, value in limits.items()}
        )

    return put


async def test_counting_begins_with_the_first_quota_and_ends_with_the_last(registry, store):
    quotas, told = ClientQuotas(registry, Clock(), Timers(), QuotaWindows()), []
    quotas.on_change = lambda: told.append(quotas.is_for_clients)
    assert not quotas.is_for_clients
    await store({"user": "u"}, producer_byte_rate=10.0)
    await store({"ip": None}, connection_creation_rate=1.0)
    await store({"user": "u"})
    assert told == [True, True, False]
    assert quotas.is_for_addresses


async def test_what_was_stored_before_is_in_force_at_once(registry, store):
    await store({"client-id": "c"}, consumer_byte_rate=10.0, request_percentage=1.0)
    quotas = ClientQuotas(registry, Clock(), Timers(), QuotaWindows())
    assert quotas.fetch.of("any", "c", 0.0).limit == 10.0
    assert quotas.request.of("any", "c", 0.0).limit == 1.0
    assert quotas.produce.of("any", "c", 0.0) is None


async def test_an_entry_that_is_not_understood_does_not_hide_the_others(registry, store, caplog):
    await registry.change(Room.QUOTAS, '{"user":"x"}', lambda _: {"request_percentage": "many"})
    await registry.change(Room.QUOTAS, "[]", lambda _: {"request_percentage": "1"})
    await registry.change(Room.QUOTAS, '{"ip":"x"}', lambda _: {"connection_creation_rate": "1"})
    await store({"user": "y"}, request_percentage=1.0)
    quotas = ClientQuotas(registry, Clock(), Timers(), QuotaWindows())
    assert quotas.request.of("y", "c", 0.0).limit == 1.0
    failed = [r for r in caplog.records if r.getMessage() == "quota_not_understood"]
    assert len(failed) == 3
    assert {r.levelno for r in failed} == {logging.ERROR}


async def test_an_address_may_connect_so_often(registry, store):
    clock = Clock()
    quotas = ClientQuotas(registry, clock, Timers(), QuotaWindows())
    assert quotas.connection_wait("10.0.0.1") == 0.0
    await store({"ip": "10.0.0.1"}, connection_creation_rate=2.0)
    assert [quotas.connection_wait("10.0.0.1") for _ in range(20)] == [0.0] * 20
    assert quotas.connection_wait("10.0.0.1") == pytest.approx(0.5)  # 21 in 10 seconds
    assert quotas.connection_wait("10.0.0.1") == pytest.approx(0.5), "a refused one did not count"
    assert quotas.connection_wait("10.0.0.2") == 0.0
    clock.now += 0.6
    assert quotas.connection_wait("10.0.0.1") == 0.0


async def test_nobody_waits_longer_than_a_window_to_be_closed(registry, store):
    quotas = ClientQuotas(registry, Clock(), Timers(), QuotaWindows())
    for _ in range(100):
        quotas.connection_wait("10.0.0.1")
    await store({"ip": None}, connection_creation_rate=100.0)
    for _ in range(1000):
        assert quotas.connection_wait("10.0.0.1") == 0.0
    await store({"ip": None}, connection_creation_rate=1.0)
    assert quotas.connection_wait("10.0.0.1") == 1.0, "and not the 990 s until the rate is that"


async def test_addresses_are_compared_as_such(registry, store):
    quotas = ClientQuotas(registry, Clock(), Timers(), QuotaWindows())
    await store({"ip": "0:0::1"}, connection_creation_rate=1.0)
    waits = [quotas.connection_wait("[::1]") for _ in range(11)]
    assert waits[9] == 0.0
    assert waits[10] > 0.0
    assert quotas.connection_wait("no-address") == 0.0
