"""A coordinator of nothing in particular: its shards are tables of the last value of each key.

The log is one in memory that a test makes fail: it acknowledges when it is told to, refuses, is
lost with some of what was on its way, and is held anew."""

from __future__ import annotations

import random
from enum import Enum
from types import SimpleNamespace

import pytest
import trio

from broker.coordinator.coordinator import Coordinator
from broker.coordinator.settings import CoordinatorSettings
from broker.coordinator.topic import CoordinatorTopic
from runtime.env import Env
from runtime.turn import Turn
from wire.kafka.errors import ErrorCode, KafkaError, WireError
from wire.kafka.records.batch import iter_records, parse_header, patch
from wire.kafka.records.compression import Compression
from wire.kafka.records.control import build_end_transaction_batch

TOPIC = "__state"
#: Bytes of a batch and of all that waits: small enough that a test meets both.
BATCH_BYTES = 400
PENDING_BYTES = 3_000


class TestLog:
    """One tenure of a partition."""

    __test__ = False

    class State(Enum):
        LOADING = "loading"
        ONLINE = "online"
        OFFLINE = "offline"

    def __init__(self, batches=()):
        self.state = self.State.LOADING
        self.log_start_offset = 0
        self.batches = list(batches)  # acknowledged
        self.in_flight = []  # (bytes, done)
        self.refusals = []  # of the next appends, at once
        self.is_closing = False  # it is handed over: what is on its way may yet be acknowledged
        self.given_back = []  # questions of which no batch came
        self.broken_reads = 0  # so many reads fail
        self._watchers = []

    @staticmethod
    def _count(batches):
        return sum(parse_header(each).last_offset_delta + 1 for each in batches)

    @property
    def high_watermark(self):
        return self._count(self.batches)

    def data_offsets(self):
        """Of every record that is not a marker."""
        headers = [each for each in map(parse_header, self.batches) if not each.is_control]
        return [each.base_offset + at for each in headers for at in range(each.record_count)]

    def counting_offsets(self):
        """Of those records of which any reader has to know: of transactions, tombstones, and the
        last of each key."""
        lasts, counting = {}, []
        for offset in self.data_offsets():
            _, header = self.batch_at(offset)
            ((key, value),) = self.at(offset, 1)
            if header.is_transactional or value is None:
                counting.append(offset)
            if not header.is_transactional:
                lasts[key] = offset
        return [*counting, *lasts.values()]

    def batch_at(self, offset):
        """The acknowledged batch that has that offset, and its header."""
        for records in self.batches:
            header = parse_header(records)
            if header.base_offset <= offset <= header.base_offset + header.last_offset_delta:
                return records, header
        raise AssertionError(f"nothing is acknowledged at {offset}")

    def at(self, offset, count):
        """Records of an acknowledged batch, from that offset on."""
        batch, header = self.batch_at(offset)
        records = list(iter_records(batch, header, size_max=1 << 20))
        first = offset - header.base_offset
        return [(each.key, each.value) for each in records[first : first + count]]

    async def wait_loaded(self):
        await trio.lowlevel.checkpoint()

    def append_nowait(self, records, done, *, internal, origin):
        assert internal
        if self.state is not self.State.ONLINE or self.is_closing:
            done(SimpleNamespace(error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
        elif self.refusals:
            done(SimpleNamespace(error=self.refusals.pop()))
        else:
            header = parse_header(records)
            assert header.is_control or header.is_transactional is (origin is not None)
            offset = self._count([*self.batches, *(each for each, _ in self.in_flight)])
            patch(records, 0, offset, 1)
            self.in_flight.append((bytes(records), done))

    def append_marker(self, producer_id, producer_epoch, marker, transaction_version, done):
        batch = build_end_transaction_batch(
            marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp_ms=1
        )
        self.append_nowait(memoryview(bytearray(batch)), done, internal=True, origin=None)

    def give_back(self, origin):
        self.given_back.append(origin)

    def ack(self, count):
        """The first `count` of the batches on their way are durable."""
        for _ in range(min(count, len(self.in_flight))):
            records, done = self.in_flight.pop(0)
            self.batches.append(records)
            offset = parse_header(records).base_offset
            done(SimpleNamespace(error=ErrorCode.NONE, base_offset=offset))

    def go_online(self):
        self.state = self.State.ONLINE
        self._tell()

    def go_offline(self):
        """Nothing that is on its way is acknowledged any more."""
        self.state = self.State.OFFLINE
        lost, self.in_flight = self.in_flight, []
        for _, done in lost:
            done(SimpleNamespace(error=ErrorCode.NOT_LEADER_OR_FOLLOWER))
        self._tell()
        return [records for records, _ in lost]

    async def read(self, offset, size_max):
        """Whole batches, the first whatever its size; each in two parts, as of two entries."""
        await trio.lowlevel.checkpoint()
        if self.broken_reads:
            self.broken_reads -= 1
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        parts, size, end = [], 0, 0
        for records in self.batches:
            start, end = end, end + parse_header(records).last_offset_delta + 1
            if end <= offset:
                continue
            if parts and size + len(records) > size_max:
                return SimpleNamespace(parts=parts, next_offset=start)
            size += len(records)
            parts += [memoryview(records)[:50], memoryview(records)[50:]]
        return SimpleNamespace(parts=parts, next_offset=end)

    def watch(self, function):
        self._watchers.append(function)

    def unwatch(self, function):
        self._watchers.remove(function)

    def _tell(self):
        for watcher in list(self._watchers):
            watcher()


class Table:
    """A shard: what it was told, in order."""

    def __init__(self, partition):
        self.partition = partition
        self.values = {}
        self.pending = {}
        self.loaded_at = []  # offsets
        self.calls = []

    def apply(self, key, value, offset, producer_id):
        assert not self.calls, "while it loads, not after"
        if key == b"unreadable":
            raise WireError("nobody wrote this")
        if producer_id >= 0:
            self.pending.setdefault(producer_id, []).append((key, value))
        else:
            self.take(key, value)
        self.loaded_at.append(offset)

    def end_transaction(self, producer_id, *, committed):
        yield
        for each in self.pending.pop(producer_id, ()):
            if committed:
                self.take(*each)
        yield

    def take(self, key, value):
        if value is None:
            self.values.pop(key, None)
        else:
            self.values[key] = value

    def loaded(self):
        self.calls.append("loaded")

    def closed(self):
        self.calls.append("closed")

    def statistics(self):
        return {"keys": len(self.values)}


class Inline:
    """A disk whose work is done at once."""

    async def run(self, function):
        await trio.lowlevel.checkpoint()
        return function()


class World:
    """One coordinator of a topic of `partitions`; `hold` begins a tenure of one."""

    def __init__(
        self, partitions=1, compression=Compression.NONE, name=TOPIC, told_units=1, last_counts=True
    ):
        self.turn = Turn()
        clock = SimpleNamespace(
            time_ms=lambda: 1_700_000_000_000 + int(trio.current_time() * 1000),
            monotonic=trio.current_time,
        )
        self.env = env = Env(
            clock=clock, rng=random.Random(1), net=None, disk=Inline(), turn=self.turn
        )
        settings = CoordinatorSettings(
            compression=compression,
            batch_bytes_max=BATCH_BYTES,
            pending_bytes_max=PENDING_BYTES,
            load_buffer_size=BATCH_BYTES * 2,
            last_counts=last_counts,
            loads_max=1,
            told_units=told_units,
            append_errors={ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR},
        )
        self.last_counts = last_counts
        self.logs = {}
        self._listeners = []
        catalog = SimpleNamespace(get=lambda _: SimpleNamespace(partition_count=partitions))
        topic = CoordinatorTopic(catalog, name, partitions, {})
        self.coordinator = Coordinator(env, settings, topic, self, Table)

    async def run(self, *tasks, task_status=trio.TASK_STATUS_IGNORED):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.turn.serve)
            await nursery.start(self._run_with, tasks)
            task_status.started()

    async def _run_with(self, tasks, *, task_status):
        await self.coordinator.run(*tasks, task_status=task_status)

    # the log manager

    def get(self, topic, partition):
        assert topic == self.coordinator.topic.name
        if partition not in self.logs:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.logs[partition]

    def subscribe(self, listener):
        self._listeners.append(listener)

    def hold(self, partition=0, batches=(), topic=None):
        log = self.logs[partition] = TestLog(batches)
        for listener in self._listeners:
            listener(topic or self.coordinator.topic.name, partition)
        return log


@pytest.fixture(scope="session")
def world_class():
    return World
