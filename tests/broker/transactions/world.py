"""A transaction coordinator on logs in memory, its markers written to partitions in memory. The log
acknowledges when a test says so, refuses, is lost, and is held anew."""

from __future__ import annotations

import random
from types import SimpleNamespace

import trio
import trio.testing

from broker.transactions.config import TransactionConfig
from broker.transactions.coordinator import TransactionCoordinator
from broker.transactions.ports import Neighbours, OtherBrokers
from broker.transactions.records import parse_record
from broker.transactions.types import TV2, AddInput, EndInput, InitInput, TxnState
from metadata.store import MetadataError
from runtime.env import Env
from runtime.turn import Turn
from tests.broker.groups.conftest import MemoryCatalog, MemoryLog, MemoryLogs, VirtualClock
from wire.kafka.errors import ErrorCode as E
from wire.kafka.messages.transactions import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from wire.kafka.records.batch import iter_records, parse_header

TOPIC = "__transaction_state"
S = TxnState
ME, OTHER = 1, 2


class Catalog(MemoryCatalog):
    """What this broker has heard of; `really` is what there is."""

    def __init__(self):
        super().__init__()
        self.really = {}
        self.catch_ups = 0
        self.is_away = False

    async def catch_up(self):
        await trio.lowlevel.checkpoint()
        self.catch_ups += 1
        if self.is_away:
            raise MetadataError("away")
        self.topics |= self.really


class Log(MemoryLog):
    leader_epoch = 7
    #: Larger batches are refused.
    fail_on_bytes = 1 << 30

    def _error(self, header, origin):
        if header.size > self.fail_on_bytes:
            return E.RECORD_LIST_TOO_LARGE
        return super()._error(header, origin)

    def values(self):
        """Every acknowledged record, in order."""
        return [
            parse_record(each.key, each.value)
            for _, records in self.batches
            for each in iter_records(records, parse_header(records), size_max=1 << 20)
        ]

    def states(self, name="id"):
        return [
            each.snapshot and each.snapshot.state
            for each in self.values()
            if each.transactional_id == name
        ]

    def successor(self):
        log = Log(self._turn)
        log.batches = list(self.batches)
        log.high_watermark = log._next = self.high_watermark
        log.leader_epoch = self.leader_epoch + 1
        return log


class Logs(MemoryLogs):
    def get(self, topic, partition):
        if topic == TOPIC and partition not in self.elsewhere:
            self.logs.setdefault(partition, Log(self.turn))
        return super().get(topic, partition)

    def hold(self, partition, log):
        self.elsewhere.discard(partition)
        self.logs[partition] = log
        for listener in self.listeners:
            listener(TOPIC, partition)


class Partitions:
    """Takes markers, of this broker and of another one; answers at once, unless it is mute."""

    def __init__(self):
        self.requests = []  # (node, request, done), not answered yet
        self.written = []  # (node, topic, partition, producer id, epoch, is commit, version, epoch)
        self.counts = []  # markers of each request
        self.errors = {}  # (topic, partition) -> what it answers, first of the list first
        self.is_mute = False

    def write_markers(self, request, done):
        self.take(ME, request, done)

    def ask(self, endpoint, request, version, answered):
        assert version == 2
        self.take(endpoint.node_id, request, answered)

    def take(self, node, request, done):
        self.counts.append((node, len(request.markers)))
        self.requests.append((node, request, done))
        if not self.is_mute:
            self.answer()

    def answer(self):
        requests, self.requests = self.requests, []
        for node, request, done in requests:
            done(WriteTxnMarkersResponse([self._one(node, each) for each in request.markers]))

    def break_off(self):
        requests, self.requests = self.requests, []
        for _, _, done in requests:
            done(None)

    def _one(self, node, marker):
        topics = []
        for topic in marker.topics:
            results = []
            for number in topic.partition_indexes:
                errors = self.errors.get((topic.name, number), [])
                error = errors.pop(0) if errors else E.NONE
                if not error:
                    self.written.append(
                        (
                            node, topic.name, number, marker.producer_id, marker.producer_epoch,
                            marker.transaction_result, marker.transaction_version,
                            marker.coordinator_epoch,
                        )
                    )  # fmt: skip
                results.append(WritableTxnMarkerPartitionResult(number, error))
            topics.append(WritableTxnMarkerTopicResult(topic.name, results))
        return WritableTxnMarkerResult(marker.producer_id, topics)


class Ids:
    def __init__(self):
        self.next = 1000
        self.is_away = False

    async def take(self):
        await trio.lowlevel.checkpoint()
        if self.is_away:
            raise MetadataError("away")
        self.next += 1
        return self.next


class World:
    def __init__(self, nursery, **config):
        config.setdefault("transaction_state_log_num_partitions", 1)
        self.config = TransactionConfig(**config)
        self.nursery = nursery
        self.turn = Turn()
        self.catalog = Catalog()
        self.logs = Logs(self.catalog, self.turn)
        self.partitions = Partitions()
        self.ids = Ids()
        self.leaders = {}  # (topic, partition) -> node; ME if it is not in it
        self.server_version = TV2
        self.env = Env(
            clock=VirtualClock(), rng=random.Random(1), net=None, disk=None, turn=self.turn
        )
        nursery.start_soon(self.turn.serve)
        for name in ("t", "u"):
            self.catalog.add(name, 3)

    def leader(self, topic, partition, listener):
        assert listener == "INTERNAL"
        node = self.leaders.get((topic, partition), ME)
        return None if node is None else SimpleNamespace(node_id=node, host="h", port=9092)

    async def start(self, *, topic=True):
        if topic and self.catalog.get(TOPIC) is None:
            self.catalog.add(TOPIC, self.config.transaction_state_log_num_partitions)
        self.coordinator = TransactionCoordinator(
            self.env,
            self.config,
            {"cleanup.policy": "compact"},
            Neighbours(self.catalog, self.logs, self.ids, self.partitions),
            OtherBrokers(self, "INTERNAL", ME, self.partitions),
            lambda: self.server_version,
        )
        self.scope = trio.CancelScope()

        async def run(*, task_status):
            with self.scope:
                await self.coordinator.run(task_status=task_status)

        await self.nursery.start(run)
        await self.settle()

    async def settle(self):
        await trio.testing.wait_all_tasks_blocked()

    async def move(self):
        """The partition is lost, and held again by another life of the same coordinator."""
        log = self.log
        self.logs.elsewhere.add(0)
        log.go_offline()
        await self.settle()
        self.logs.hold(0, log.successor())
        await self.settle()

    @property
    def log(self):
        return self.logs.logs[0]

    @property
    def txn(self):
        error, txn = self.coordinator.describe("id")
        assert not error
        return txn

    # --- requests: the list that the answer comes to

    def init(self, producer_id=-1, epoch=-1, *, name="id", timeout_ms=60_000):
        answers = []
        request = InitInput(timeout_ms, producer_id, epoch)
        self.coordinator.init_producer_id(name, request, answers.append)
        return answers

    def add(self, producer, partitions=(("t", 0), ("u", 1)), version=TV2, *, name="id", **kwargs):
        answers = []
        request = AddInput(*producer, frozenset(partitions), version)
        self.coordinator.add_partitions(name, request, answers.append, **kwargs)
        return answers

    def verify(self, producer, partitions=(("t", 0),), *, name="id"):
        answers = []
        request = AddInput(*producer, frozenset(partitions))
        self.coordinator.verify(name, request, answers.append)
        return answers

    def end(self, producer, is_commit, version=TV2, *, name="id"):
        answers = []
        self.coordinator.end(name, EndInput(*producer, is_commit, version), answers.append)
        return answers

    async def ask(self, answers):
        await self.settle()
        (answer,) = answers
        return answer

    async def begin(self, version=TV2, name="id", **kwargs):
        """A producer with a transaction open."""
        result = await self.ask(self.init(name=name, **kwargs))
        assert not result.error
        producer = result.producer_id, result.epoch
        assert not (await self.ask(self.add(producer, version=version, name=name))).error
        return producer
