"""The admin handlers on a real catalog; requests and responses go through the codec."""

import inspect
import random
from types import SimpleNamespace

import pytest
import trio

from broker.api import ConnectionInfo, Request, all_steps
from broker.cluster.catalog import TopicCatalog
from broker.cluster.registry import ConfigRegistry
from broker.cluster.view import StandaloneView
from broker.handlers.cluster import ClusterHandler
from broker.handlers.configs import ConfigsHandler
from broker.handlers.topics import TopicsHandler
from broker.log.read.segment import Segment
from broker.node.shares import ShareGroupParts
from broker.share.ports import ShareGroupSettings, ShareState, StateBatch
from metadata.memory import MemoryStore
from quire import standalone
from runtime.env import Env, RealClock
from tests.broker import driven
from wire.kafka.codec import decode, encode
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.share_groups import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
)
from wire.kafka.messages.share_groups import FetchPartition as ShareFetchPartition
from wire.kafka.messages.share_groups import FetchTopic as ShareFetchTopic


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
        answer = decode(type(response), version, encode(response, version))[0]
        driven.note(api.key, version, answer, on_wire=False)
        return answer


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


class MemoryPersister:
    """Share partitions' state as a share coordinator keeps it: writes merge, epochs fence. Calls
    may be refused (`refusal`), held up (`gate`), or done twice (`doubles`)."""

    def __init__(self):
        self.states = {}
        self.refusal = None
        self.gate = None
        self.doubles = False
        self.writes = []

    async def _travel(self):
        await trio.lowlevel.checkpoint()
        if self.gate is not None:
            await self.gate.wait()

    async def initialize(self, keys):
        for key, state_epoch, start in keys:
            self.states[key] = [state_epoch, 0, start, -1, {}]
        return dict.fromkeys((key for key, *_ in keys), ErrorCode.NONE)

    async def read(self, keys):
        await self._travel()
        return {key: self._read(key, epoch) for key, epoch in keys}

    def _read(self, key, leader_epoch):
        if self.refusal is not None:
            return ShareState(self.refusal)
        state = self.states.setdefault(key, [0, 0, -1, -1, {}])
        if -1 < leader_epoch < state[1]:
            return ShareState(ErrorCode.FENCED_LEADER_EPOCH)
        state[1] = max(state[1], leader_epoch)
        batches = tuple(
            StateBatch(offset, offset, *known)
            for offset, known in sorted(state[4].items())
            if offset >= state[2]
        )
        return ShareState(ErrorCode.NONE, state[0], state[2], state[3], batches)

    async def write(self, key, state_epoch, leader_epoch, start, complete, batches):
        await self._travel()
        for _ in range(1 + self.doubles):
            error = self._write(key, (state_epoch, leader_epoch), start, complete, batches)
        return error

    def _write(self, key, epochs, start, complete, batches):
        if self.refusal is not None:
            return self.refusal
        state = self.states.get(key)
        if state is None:
            return ErrorCode.INVALID_REQUEST
        if epochs[1] < state[1]:
            return ErrorCode.FENCED_LEADER_EPOCH
        if epochs[0] < state[0]:
            return ErrorCode.FENCED_STATE_EPOCH
        self.writes.append((start, complete, tuple(batches)))
        if start >= 0:
            state[2] = start
        state[3] = complete
        for first, last, what, count in batches:
            for offset in range(first, last + 1):
                before = state[4].get(offset, (0, -1))
                best = max((before[1], before[0]), (count, what))
                state[4][offset] = (best[1], best[0])
        return ErrorCode.NONE

    async def delete(self, keys):
        for key in keys:
            self.states.pop(key, None)
        return dict.fromkeys(keys, ErrorCode.NONE)

    async def read_summary(self, keys):
        return {key: self._read(key, -1)._replace(batches=()) for key in keys}


class Shares:
    """What a broker is given that serves share groups, with knobs."""

    def __init__(self):
        self.persister = MemoryPersister()
        self.in_force = ShareGroupSettings(auto_offset_reset="earliest")
        self.sessions_max = 2_000

    def settings(self, group_id):
        return self.in_force

    def is_member(self, group_id, member_id):
        return None

    def change(self, **values):
        self.in_force = self.in_force._replace(**values)

    def parts(self):
        return ShareGroupParts(self.persister, self, self.sessions_max)


class ShareMember:
    """One member of group «g» on a connection of its own."""

    def __init__(self, client, name, topic_id):
        self.client, self.name, self.topic_id = client, name, topic_id
        self.epoch = 0

    def _batches(self, acks):
        return [
            AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
            for first, last, *types in acks
        ]

    def fetch_request(self, *acks, partitions=(0,), epoch=None, **fields):
        if epoch is None:
            epoch = self.epoch
            self.epoch += 1
        options = {
            "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500,
            "batch_size": 500,
        } | fields  # fmt: skip
        wanted = [
            ShareFetchPartition(partition_index=number, acknowledgement_batches=self._batches(acks))
            for number in partitions
        ]
        topics = [ShareFetchTopic(topic_id=self.topic_id, partitions=wanted)]
        return ShareFetchRequest(
            group_id="g", member_id=self.name, share_session_epoch=epoch, topics=topics, **options
        )

    async def fetch(self, *acks, version=2, **fields):
        return await self.client.call(self.fetch_request(*acks, **fields), version)

    async def take(self, *acks, **fields):
        """[(first, last, deliveries)] of partition 0, once something is there."""
        fields.setdefault("max_wait_ms", 5_000)
        answer = await self.fetch(*acks, **fields)
        assert answer.error_code == 0, answer
        found = [each for topic in answer.responses for each in topic.partitions]
        assert not any(each.error_code or each.acknowledge_error_code for each in found), found
        return [
            (each.first_offset, each.last_offset, each.delivery_count)
            for partition in found
            for each in partition.acquired_records
        ]

    def acknowledge_request(self, *acks, epoch=None, partition=0):
        if epoch is None:
            epoch = self.epoch
            self.epoch += 1
        each = AcknowledgePartition(
            partition_index=partition, acknowledgement_batches=self._batches(acks)
        )
        topic = AcknowledgeTopic(topic_id=self.topic_id, partitions=[each])
        return ShareAcknowledgeRequest(
            group_id="g", member_id=self.name, share_session_epoch=epoch, topics=[topic],
        )  # fmt: skip

    async def acknowledge(self, *acks, version=2, epoch=None, renews=False, partition=0):
        """The error of the partition, or that of all."""
        request = self.acknowledge_request(*acks, epoch=epoch, partition=partition)
        if version >= 2:
            request.is_renew_ack = renews
        answer = await self.client.call(request, version)
        codes = [one.error_code for topic in answer.responses for one in topic.partitions]
        return ErrorCode(answer.error_code or max(codes, default=0)).name


@pytest.fixture
def shares(monkeypatch):
    """Share groups are served by the servers of this test."""
    shares = Shares()
    start = standalone.start_broker

    async def started(*arguments, **keywords):
        return await start(*arguments, **keywords, share_groups=shares.parts())

    monkeypatch.setattr(standalone, "start_broker", started)
    return shares


@pytest.fixture
async def share_member(shares, server):
    """await share_member(name) -> a member with topic «t», of two partitions."""
    admin = await server.connect()
    topic_id = await admin.create_topic("t", 2)

    async def make(name):
        member = ShareMember(await server.connect(), name, topic_id)
        member.admin = admin
        return member

    return make


@pytest.fixture
def reads(monkeypatch):
    """(offset, bytes) of each read of entries that found some."""
    found = []
    read_nowait = Segment.read_nowait

    def counting(segment, offset, size_max, **options):
        got = read_nowait(segment, offset, size_max, **options)
        if got is not None and got.size_bytes:
            found.append((offset, got.size_bytes))
        return got

    monkeypatch.setattr(Segment, "read_nowait", counting)
    return found
