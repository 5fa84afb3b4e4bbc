"""The admin handlers on a real catalog; requests and responses go through the codec."""

import inspect
import random
from types import SimpleNamespace

import pytest

from broker.api import ConnectionInfo, Request, all_steps
from broker.cluster.catalog import TopicCatalog
from broker.cluster.registry import ConfigRegistry
from broker.cluster.view import StandaloneView
from broker.handlers.cluster import ClusterHandler
from broker.handlers.configs import ConfigsHandler
from broker.handlers.topics import TopicsHandler
from metadata.memory import MemoryStore
from runtime.env import Env, RealClock
from wire.kafka.codec import decode, encode
from wire.kafka.errors import ErrorCode, KafkaError


class Logs:
    """Sizes and epochs of every partition that exists; LogManager's look-up."""

    def __init__(self, catalog):
        self._catalog = catalog
        self.missing = set()

    def get(self, topic, partition):
        found = self._catalog.get(topic)
        if (topic, partition) in self.missing or found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not 0 <= partition < found.partition_count:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return SimpleNamespace(leader_epoch=partition + 1, size_bytes=100 * (partition + 1))


class Broker:
    def __init__(self, static):
        self.store = MemoryStore()
        env = Env(clock=RealClock(), rng=random.Random(1), net=None, disk=None, turn=None)
        self.registry = ConfigRegistry(self.store, static)
        self.catalog = TopicCatalog(
            self.store, env, self.registry, initial_partition_document=lambda: b"{}"
        )
        self.view = StandaloneView("A" * 22, self.registry.broker)
        self.logs = Logs(self.catalog)
        parts = (self.catalog, self.registry, self.view)
        handlers = [
            TopicsHandler(*parts),
            ConfigsHandler(*parts),
            ClusterHandler(
                *parts, self.logs, data_directory="/data", disk_usage=lambda: (1000, 600)
            ),
        ]
        self.apis = {api.key: api for handler in handlers for api in handler.apis()}

    async def call(self, body, version=None):
        """The answer as a client of that version (the highest, unless given) reads it."""
        api = self.apis[type(body).INFO.key]
        version = api.version_max if version is None else version
        assert api.version_min <= version <= api.version_max
        request = Request(
            key=api.key,
            version=version,
            correlation_id=1,
            client_id="test",
            connection=ConnectionInfo("c", "127.0.0.1", "PLAINTEXT"),
            body=decode(type(body), version, encode(body, version))[0],
        )
        response = api.handle(request)
        if inspect.isgenerator(response):
            response = all_steps(response)
        if inspect.isawaitable(response):
            response = await response
        assert response.throttle_time_ms == 0
        return decode(type(response), version, encode(response, version))[0]


@pytest.fixture
def start_broker(nursery):
    async def start(static=None):
        broker = Broker(static or {})
        await nursery.start(broker.store.run)
        await broker.registry.load()
        await broker.catalog.load()
        return broker

    return start


@pytest.fixture
async def broker(start_broker):
    return await start_broker({"num.partitions": "4"})


@pytest.fixture
def errors():
    """{name: error's name} of per-topic results, in order of the answer."""
    return lambda results: [(one.name, ErrorCode(one.error_code).name) for one in results]
