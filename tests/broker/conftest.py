"""The whole of `quire standalone` in this process, and a small client on real sockets.

`start_server()` gives a running server; `server` is one with four test topics. At the end of a test
no handler may have failed: the log has no `handler_failed`, and nothing at ERROR.
"""

import dataclasses
import inspect
import logging
import os
import struct
import uuid
from itertools import count

import pytest
import trio

from broker.node import acls as broker_acls
from broker.node import parts as broker_parts
from quire import standalone
from quire.options import StandaloneOptions
from tests.broker import driven
from wire.kafka.codec import response_class
from wire.kafka.errors import ErrorCode
from wire.kafka.headers import decode_response, encode_request
from wire.kafka.messages import (
    CreateTopicsRequest,
    FetchRequest,
    IncrementalAlterConfigsRequest,
    ListOffsetsRequest,
    MetadataRequest,
    ProduceRequest,
)
from wire.kafka.messages.configs import (
    IncrementalAlterConfigsRequestAlterableConfig as AlterableConfig,
)
from wire.kafka.messages.configs import (
    IncrementalAlterConfigsRequestAlterConfigsResource as AlterConfigsResource,
)
from wire.kafka.messages.fetch import FetchPartition, FetchTopic
from wire.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsTopic
from wire.kafka.messages.metadata import MetadataRequestTopic
from wire.kafka.messages.produce import PartitionProduceData, TopicProduceData
from wire.kafka.messages.topics import CreatableTopic, CreatableTopicConfig
from wire.kafka.records.batch import build_batch, iter_records, scan_batches
from wire.kafka.records.record import Record

#: Small files, so that a start costs a tenth of a second; no delays that nobody looks at.
SETTINGS = {
    "journalMaxSizeMB": "16",
    "dbStorage_writeCacheMaxSizeMb": "16",
    "num.partitions": "2",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "10",
}
ANSWER_SECONDS = 15
#: By test, the versions that it is named for in driven.txt.
NAMED_FOR = driven.versions_by_test()
#: Classes whose instance a server's `parts` have.
REMEMBERED = (
    "AclStore",
    "Bookie",
    "ClientQuotas",
    "Dispatcher",
    "GroupCoordinator",
    "KafkaServer",
    "LogCleaner",
    "LogManager",
    "TelemetryClients",
    "TopicCatalog",
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """The versions that driven.txt names a test for it drives whenever it passes."""
    with driven.noting() as noted:
        result = yield
    driven.write_down(item.nodeid, noted)
    if not os.environ.get(driven.VARIABLE):
        missing = NAMED_FOR.get(item.nodeid, set()) - noted
        assert not missing, f"driven.txt names this test for {sorted(missing)}"
    return result


class Client:
    """One connection. Requests may be pipelined: `send`, then `receive` in order."""

    def __init__(self, server, stream):
        self.server = server
        self.stream = stream
        self._ids = count(1)
        self._buffer = bytearray()
        self._sent = []

    def frame(self, body, version=None, client_id="test"):
        """A request's bytes; its answer is expected."""
        version = max(body.INFO.versions) if version is None else version
        correlation_id = next(self._ids)
        self._sent.append((body.INFO.key, version, correlation_id))
        return encode_request(body, version, correlation_id, client_id)

    async def send(self, *bodies, version=None):
        await self.stream.send_all(b"".join(self.frame(body, version) for body in bodies))

    async def receive_frame(self):
        """The next frame without its size; None at the end of the stream."""
        with trio.fail_after(ANSWER_SECONDS):
            while True:
                if len(self._buffer) >= 4:
                    (size,) = struct.unpack_from(">i", self._buffer)
                    if len(self._buffer) >= 4 + size:
                        frame = bytes(self._buffer[4 : 4 + size])
                        del self._buffer[: 4 + size]
                        return frame
                try:
                    data = await self.stream.receive_some(1 << 20)
                except trio.BrokenResourceError:
                    return None
                if not data:
                    return None
                self._buffer += data

    async def receive(self):
        """The answer to the oldest request that has none."""
        frame = await self.receive_frame()
        assert frame is not None, "the server closed the connection"
        key, version, correlation_id = self._sent.pop(0)
        answered_id, body = decode_response(key, version, frame)
        assert answered_id == correlation_id, "answers come in the order of requests"
        assert isinstance(body, response_class(key))
        driven.note(key, version, body, on_wire=True)
        return body

    async def call(self, body, version=None):
        await self.send(body, version=version)
        return await self.receive()

    async def is_closed(self):
        """Waits for the server to close; False if it sends something instead."""
        return await self.receive_frame() is None

    async def aclose(self):
        await self.stream.aclose()

    # -- what most tests need ------------------------------------------------------------------

    async def create_topic(self, name, partitions=1, **configs):
        """`max_message_bytes=1` is max.message.bytes; the topic id."""
        settings = [
            CreatableTopicConfig(name=key.replace("_", "."), value=str(value))
            for key, value in configs.items()
        ]
        topic = CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, configs=settings
        )
        answer = await self.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        assert answer.topics[0].error_code == 0, answer
        # A topic is served a moment after it is created; Metadata waits for that.
        await self.call(MetadataRequest(topics=[MetadataRequestTopic(name=name)]))
        return answer.topics[0].topic_id

    async def set_config(self, name, resource_type=2, **configs):
        """Of a topic; of a broker with `resource_type` 4."""
        resource = AlterConfigsResource(
            resource_type=resource_type,
            resource_name=name,
            configs=[
                AlterableConfig(name=key.replace("_", "."), config_operation=0, value=str(value))
                for key, value in configs.items()
            ],
        )
        answer = await self.call(IncrementalAlterConfigsRequest(resources=[resource]))
        assert answer.responses[0].error_code == 0, answer

    async def produce(self, topic, records, *, partition=0, acks=-1, version=9):
        """One partition's answer. `records`: a batch's bytes, or values."""
        answer = await self.call(produce_request((topic, partition, records), acks=acks), version)
        return answer.responses[0].partition_responses[0]

    async def fetch(self, topic, offset, *, partition=0, version=12, **fields):
        """One partition's answer; does not wait unless `max_wait_ms` and `min_bytes` say so."""
        answer = await self.call(fetch_request((topic, partition, offset), **fields), version)
        assert answer.error_code == 0
        return answer.responses[0].partitions[0]

    async def list_offset(self, topic, timestamp, *, partition=0, version=11, **fields):
        wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, **fields)
        answer = await self.call(
            ListOffsetsRequest(
                replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])]
            ),
            version,
        )
        return answer.topics[0].partitions[0]


def make_batch(values, **options):
    """A batch of these values (bytes, numbers, (key, value) pairs) or Records."""
    records = []
    for delta, value in enumerate(values):
        key = None
        if isinstance(value, tuple):
            key, value = value
        if isinstance(value, int):
            value = b"%d" % value
        records.append(
            value
            if isinstance(value, Record)
            else Record(offset_delta=delta, timestamp_delta=delta, key=key, value=value, headers=[])
        )
    options.setdefault("base_timestamp", 1_700_000_000_000)
    return build_batch(records, **options)


def produce_request(*parts, acks=-1, transactional_id=None):
    """Of (topic name or id, partition, batch or values or None); one topic entry for each run."""
    body = ProduceRequest(acks=acks, timeout_ms=10_000, transactional_id=transactional_id)
    for topic, partition, records in parts:
        data = records
        if isinstance(records, list):
            data = make_batch(records)
        last = body.topic_data[-1] if body.topic_data else None
        if last is None or topic not in (last.name, last.topic_id):
            last = TopicProduceData()
            if isinstance(topic, uuid.UUID):
                last.topic_id = topic
            else:
                last.name = topic
            body.topic_data.append(last)
        last.partition_data.append(PartitionProduceData(index=partition, records=data))
    return body


def fetch_request(*parts, partition_max_bytes=1 << 20, epoch=-1, last_epoch=-1, **fields):
    """Of (topic name or id, partition, offset)."""
    fields.setdefault("max_wait_ms", 0)
    fields.setdefault("min_bytes", 1)
    body = FetchRequest(**fields)
    for topic, partition, offset in parts:
        wanted = FetchPartition(
            partition=partition,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
            current_leader_epoch=epoch,
            last_fetched_epoch=last_epoch,
        )
        name = {"topic_id": topic} if isinstance(topic, uuid.UUID) else {"topic": topic}
        body.topics.append(FetchTopic(partitions=[wanted], **name))
    return body


def values_of(records):
    """[(offset, value)] of a fetched partition; also a check of every batch's bytes."""
    found = []
    if records is None:
        return found
    position = 0
    for header in scan_batches(records):
        view = memoryview(records)[position : position + header.size]
        found += [
            (header.base_offset + record.offset_delta, record.value)
            for record in iter_records(view, header, size_max=64 << 20)
        ]
        position += header.size
    return found


@dataclasses.dataclass
class Server:
    """A running standalone server. `parts` has what its composition made, by class name."""

    address: tuple
    parts: dict
    scope: trio.CancelScope
    stopped: trio.Event
    nursery: trio.Nursery

    async def connect(self):
        stream = await trio.open_tcp_stream(*self.address)
        self.nursery.start_soon(_close_at_the_end, stream)
        return Client(self, stream)

    async def stop(self):
        self.scope.cancel()
        await self.stopped.wait()


async def _close_at_the_end(stream):
    async with stream:
        await trio.sleep_forever()


@pytest.fixture
def start_server(nursery, tmp_path, monkeypatch, caplog):
    """start_server(settings, directory=...) -> Server; a second one on a directory is a restart."""
    parts = {}
    for name in REMEMBERED:
        module = {"Bookie": standalone, "AclStore": broker_acls}.get(name, broker_parts)
        monkeypatch.setattr(module, name, _remembering(getattr(module, name), parts))

    # Nobody waits a minute here to see that space comes back; there are two looks nevertheless.
    monkeypatch.setattr(standalone, "ABSENT_SECONDS_MIN", 0.0)

    async def start(settings=None, *, directory="data"):
        parts.clear()
        options = StandaloneOptions(
            listen=("127.0.0.1", 0),
            data_dir=str(tmp_path / directory),
            overrides={**SETTINGS, **(settings or {})},
        )
        scope, stopped = trio.CancelScope(), trio.Event()

        async def run(*, task_status):
            try:
                with scope:
                    await standalone.run(options, task_status=task_status)
            finally:
                stopped.set()

        address = await nursery.start(run)
        return Server(address, dict(parts), scope, stopped, nursery)

    yield start
    failed = [
        record.getMessage() + (record.exc_text or "")
        for record in caplog.get_records("call")
        if record.levelno >= logging.ERROR or record.getMessage().startswith("handler_failed")
    ]
    assert not failed, failed[0]


def _remembering(cls, parts):
    class Remembered(cls):
        def __init__(self, *arguments, **keywords):
            super().__init__(*arguments, **keywords)
            parts[cls.__name__] = self

    return Remembered


@pytest.fixture
def connect(nursery):
    """connect(server) -> a client of anything with an address."""

    async def connected(server):
        stream = await trio.open_tcp_stream(*server.address)
        nursery.start_soon(_close_at_the_end, stream)
        return Client(server, stream)

    return connected


@pytest.fixture
async def server(start_server):
    return await start_server()


@pytest.fixture
async def client(server):
    """Connected to `server`, with topic «t» of two partitions."""
    client = await server.connect()
    await client.create_topic("t", 2)
    return client


@pytest.fixture
def requests():
    """Builders of requests: `produce`, `fetch`, `batch`; and `values` of what was fetched."""

    class Requests:
        produce = staticmethod(produce_request)
        fetch = staticmethod(fetch_request)
        batch = staticmethod(make_batch)
        values = staticmethod(values_of)

    return Requests


@pytest.fixture
def wait_until():
    """await wait_until(condition): looks every few milliseconds; fails after ten seconds. The
    condition may be asynchronous."""

    async def wait(condition, seconds=10):
        with trio.fail_after(seconds):
            while True:
                holds = condition()
                if inspect.isawaitable(holds):
                    holds = await holds
                if holds:
                    return
                await trio.sleep(0.003)

    return wait


@pytest.fixture
def name():
    """name(code): an error's name, for messages that say what happened."""
    return lambda code: ErrorCode(code).name
