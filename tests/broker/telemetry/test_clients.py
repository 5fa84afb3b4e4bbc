"""Who is asked for what, when he may push, what is remembered: as Kafka does it."""

import random
import time
import uuid

import pytest

from broker.api import ConnectionInfo
from broker.cluster.registry import ConfigRegistry, Room
from broker.telemetry import clients as module
from broker.telemetry.clients import TelemetryClients
from broker.telemetry.otlp import Point
from metadata.memory import MemoryStore
from quire.metrics.telemetry import telemetry_collector
from runtime.env import Env
from runtime.metrics import SAMPLES_PER_TURN
from wire.kafka.errors import KafkaError

BY = ConnectionInfo(
    "c", "10.0.0.1", "PLAINTEXT", peer_port="4711", client_software_name="apache-kafka-java"
)
ID = uuid.UUID(int=77)


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now


class World:
    def __init__(self, registry):
        self.registry = registry
        self.clock = Clock()
        env = Env(clock=self.clock, rng=random.Random(1), net=None, disk=None, turn=None)
        self.clients = TelemetryClients(registry, env)

    async def want(self, name="s", **texts):
        stored = {key.replace("_", "."): value for key, value in texts.items()}
        await self.registry.change(Room.CLIENT_METRICS, name, lambda _: stored)

    def ask(self, instance_id=ID, client_id="me"):
        return self.clients.asked(instance_id, client_id, BY)

    def push(self, subscription_id, *, last=False, points=()):
        instance = self.clients.pushing(
            ID, "me", BY, subscription_id=subscription_id, is_terminating=last
        )
        self.clients.take(instance, points)

    def series(self):
        return {(name, labels): value for _, name, labels, value in self.clients.series()}


@pytest.fixture
async def world(nursery):
    store = MemoryStore()
    await nursery.start(store.run)
    registry = ConfigRegistry(store, {})
    await registry.load()
    return World(registry)


def refused(function, *arguments, **options):
    with pytest.raises(KafkaError) as raised:
        function(*arguments, **options)
    return raised.value.code.name


async def test_nobody_is_asked_for_anything_without_a_subscription(world):
    instance = world.ask(None)
    assert (instance.metrics, instance.interval_ms) == ((), 300_000)
    assert instance.id.int > 1


async def test_all_that_match_ask_together(world):
    await world.want("a", metrics="x.,y.", interval_ms="5000", match="client_id=me")
    await world.want("b", metrics="z.", interval_ms="1000", match="client_source_port=47.*")
    await world.want("c", metrics="*", interval_ms="100", match="client_id=m")  # whole values
    instance = world.ask()
    assert (instance.metrics, instance.interval_ms) == (("x.", "y.", "z."), 1000)
    await world.want("d", metrics="*", match="client_software_name=apache.*")
    assert world.ask(uuid.UUID(int=78)).metrics == ("*",)


async def test_who_asks_before_his_time_is_told(world):
    await world.want(metrics="*", interval_ms="1000")
    world.ask()
    assert refused(world.ask) == "THROTTLING_QUOTA_EXCEEDED"
    world.clock.now += 1.0
    world.ask()
    await world.want(metrics="x.", interval_ms="1000")
    assert world.ask().metrics == ("x.",), "but of what changed he learns at once"


async def test_pushes_keep_their_time_but_for_the_first_and_the_last(world):
    await world.want(metrics="*", interval_ms="1000")
    number = world.ask().subscription_id
    world.push(number)
    assert refused(world.push, number) == "THROTTLING_QUOTA_EXCEEDED"
    assert world.clients.throttled_count == 1
    world.clock.now += 1.0
    world.push(number)
    world.push(number, last=True)
    assert refused(world.push, number) == "INVALID_REQUEST"


async def test_a_push_for_what_was_wanted_before_is_told(world):
    await world.want(metrics="*", interval_ms="1000")
    number = world.ask().subscription_id
    await world.want(metrics="x.", interval_ms="1000")
    assert refused(world.push, number) == "UNKNOWN_SUBSCRIPTION_ID"
    assert world.ask().subscription_id != number, "and may ask at once"


async def test_the_newest_values_are_kept_and_deltas_added(world):
    number = world.ask().subscription_id
    world.push(number, points=[Point("a", (), 5.0), Point("d", (), 2.0, is_delta=True)])
    world.clock.now += 300
    world.push(number, points=[Point("a", (), 6.0), Point("d", (), 3.0, is_delta=True)])
    assert world.series() == {("a", ()): 6.0, ("d", ()): 5.0}


async def test_a_client_is_forgotten_after_three_intervals(world):
    await world.want(metrics="*", interval_ms="30000")
    world.push(world.ask().subscription_id, points=[Point("a", (), 1.0)])
    world.clock.now += 89
    assert world.series()
    world.clock.now += 1
    assert not world.series()
    world.ask(uuid.UUID(int=5))
    assert len(world.clients) == 1


async def test_there_are_not_too_many_clients_or_series(world, monkeypatch):
    monkeypatch.setattr(module, "INSTANCES_MAX", 2)
    monkeypatch.setattr(module, "SERIES_MAX", 2)
    number = world.ask().subscription_id
    world.push(number, points=[Point(name, (), 1.0) for name in "abc"])
    assert len(world.series()) == 2
    for other in (5, 6):
        world.ask(uuid.UUID(int=other))
    assert len(world.clients) == 2
    assert world.series() == {}
    world.push(world.ask().subscription_id, points=[Point("d", (), 1.0)])
    assert len(world.series()) == 1, "the room of those that were forgotten is free"


async def test_what_is_forgotten_while_it_is_read_is_not_counted(world, monkeypatch):
    monkeypatch.setattr(module, "SERIES_MAX", 1)
    instance = world.ask()
    world.clock.now += 10_000
    world.ask(uuid.UUID(int=5))
    world.clients.take(instance, [Point("a", (), 1.0)])
    other = world.ask(uuid.UUID(int=6))
    world.clients.take(other, [Point("a", (), 1.0)])
    assert len(world.series()) == 1


async def test_a_subscription_that_is_not_understood_does_not_hide_the_others(world, caplog):
    await world.want("a", metrics="x.", match="client_id=(")
    await world.want("b", interval_ms="many")
    await world.want("c", metrics="y.")
    assert world.ask().metrics == ("y.",)
    assert [r.getMessage() for r in caplog.records].count("subscription_not_understood") >= 2


async def test_a_long_client_id_is_not_remembered_whole(world):
    """16,384 clients of 32 KB are half a gigabyte, and each line of the page has the id."""
    assert len(world.ask(client_id="x" * 32_767).client_id) == module.CLIENT_ID_LENGTH_MAX
    await world.want(match="client_id=x*")
    assert world.ask(client_id="x" * 32_767).interval_ms == 300_000


async def test_a_pattern_is_matched_in_time_that_a_client_cannot_make_long(world):
    """An administrator's harmless pattern took 0.8 s for a client's id of 32 KB."""
    await world.want(match="client_id=.*-app-.*-prod", interval_ms="1000")
    began = time.thread_time()
    assert world.ask(client_id="-app" * 8_000 + "x").interval_ms == 300_000
    assert world.ask(uuid.UUID(int=5), "-app" * 8_000 + "-prod").interval_ms == 1000
    assert time.thread_time() - began < 0.1


async def test_very_many_series_are_read_in_turns(world):
    """20,000 of them held the loop for as long as a scrape took; whoever comes in between may push,
    and come anew."""
    subscription_id = world.ask().subscription_id
    points = [Point(f"n{number}", (), 1.0) for number in range(3 * SAMPLES_PER_TURN)]
    world.push(subscription_id, points=points)
    turns, samples = 0, 0
    for family in telemetry_collector(world.clients)():
        if family is None:
            turns += 1
            world.ask(uuid.UUID(int=1000 + turns), "another")
            series = world.clients._instances[ID].series
            world.clients.take(world.clients._instances[ID], [Point(f"new{turns}", (), 1.0)])
            assert len(series) == len(points) + turns
        else:
            samples += family.name.startswith("n")
    assert (turns, samples) == (3, len(points))


async def test_what_a_client_pushed_before_it_was_forgotten_is_not_counted(world):
    """It came anew while its push was read: the old one's series are on no page."""
    before = world.ask()
    world.clock.now += 10_000
    assert world.ask() is not before
    world.clients.take(before, [Point("a", (), 1.0)])
    assert (world.series(), world.clients._series_count) == ({}, 0)
