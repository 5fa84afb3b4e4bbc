"""A driver for one group's state machine: carries out effects as the shell does, and checks what
must always hold (a request is answered once; invariants of the member table)."""

from __future__ import annotations

import inspect
import itertools
import random
import uuid
from dataclasses import replace
from enum import Enum
from inspect import isawaitable
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from broker.api import ConnectionInfo, Reply, Request, all_steps
from broker.groups.classic import group_core
from broker.groups.classic.group import ClassicGroup
from broker.groups.classic.types import (
    Answer,
    ArmTimer,
    GroupLimits,
    JoinInput,
    LeavingMember,
    Persist,
    SyncInput,
)
from broker.groups.config import GroupConfig
from broker.groups.coordinator import OFFSETS_TOPIC, GroupCoordinator
from broker.groups.records import parse_record
from broker.groups.share.requests import ShareRequests
from broker.handlers.consumer_groups import ConsumerGroupsHandler
from broker.handlers.find_coordinator import FindCoordinatorHandler, KeyType
from broker.handlers.groups import GroupsHandler
from broker.handlers.offsets import OffsetsHandler
from broker.handlers.share_groups import ShareGroupsHandler
from broker.handlers.streams_groups import StreamsGroupsHandler
from broker.handlers.txn_markers import TransactionMarkersHandler
from broker.handlers.txn_offsets import TxnOffsetsHandler
from broker.log.append.producer_state import ProducerState
from broker.log.transactions.gate import ParkingRoom, TransactionGate
from broker.log.transactions.markers import marker_of
from runtime.env import Env
from runtime.turn import Turn
from tests.broker import driven
from wire.kafka.codec import decode, encode
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.records.batch import iter_records, parse_header, patch
from wire.kafka.records.control import build_end_transaction_batch


class GroupDriver:
    def __init__(self, limits: GroupLimits | None = None, *, auto_store: bool = True) -> None:
        self.limits = limits or GroupLimits()
        self.group = ClassicGroup("g", self.limits)
        self.now_ms = 1_000_000
        self.auto_store = auto_store
        self.answers: dict[int, object] = {}
        self.asked: set[int] = set()
        self.stored = []  # snapshots, in order
        self.unstored = []  # (persist) not acknowledged yet
        self.timer_ms: int | None = None
        self._tokens = itertools.count(1)

    # inputs; the token of what was asked is returned, its answer is in `answers`

    def join(self, member_id="", **kwargs) -> int:
        token = next(self._tokens)
        kwargs.setdefault("new_member_id", f"new-{token}")
        kwargs.setdefault("instance_id", None)
        kwargs.setdefault("session_timeout_ms", 10_000)
        kwargs.setdefault("rebalance_timeout_ms", 60_000)
        kwargs.setdefault("protocol_type", "consumer")
        kwargs.setdefault("protocols", (("range", b"m"),))
        kwargs.setdefault("client_id", "client")
        kwargs.setdefault("client_host", "host")
        self.asked.add(token)
        self.apply(group_core.join(self.group, token, JoinInput(member_id, **kwargs), self.now_ms))
        return token

    def sync(self, member_id, generation_id=None, assignments=None, **kwargs) -> int:
        token = next(self._tokens)
        generation_id = self.group.generation_id if generation_id is None else generation_id
        request = SyncInput(
            member_id,
            kwargs.get("instance_id"),
            generation_id,
            kwargs.get("protocol_type"),
            kwargs.get("protocol_name"),
            assignments or {},
        )
        self.asked.add(token)
        self.apply(group_core.sync(self.group, token, request, self.now_ms))
        return token

    def heartbeat(self, member_id, generation_id=None, instance_id=None) -> ErrorCode:
        generation_id = self.group.generation_id if generation_id is None else generation_id
        return group_core.heartbeat(self.group, member_id, instance_id, generation_id, self.now_ms)

    def leave(self, *leaving) -> list[ErrorCode]:
        given = [x if isinstance(x, LeavingMember) else LeavingMember(x) for x in leaving]
        errors, effects = group_core.leave(self.group, given, self.now_ms)
        self.apply(effects)
        return errors

    def pass_time(self, ms: int) -> None:
        """Moves the clock, firing the timer whenever it was armed for."""
        end_ms = self.now_ms + ms
        while self.timer_ms is not None and self.timer_ms <= end_ms:
            self.now_ms = max(self.now_ms, self.timer_ms)
            self.timer_ms = None
            self.apply(group_core.tick(self.group, self.now_ms))
        self.now_ms = end_ms

    def store(self, error=ErrorCode.NONE) -> None:
        """Acknowledges or fails what waits to be stored."""
        waiting, self.unstored = self.unstored, []
        for persist in waiting:
            if not error:
                self.stored.append(persist.snapshot)
            self.apply(group_core.stored(self.group, persist.then, error, self.now_ms))

    def apply(self, effects) -> None:
        for effect in effects:
            match effect:
                case Answer():
                    assert effect.token in self.asked
                    assert effect.token not in self.answers, "answered twice"
                    self.answers[effect.token] = effect.result
                case ArmTimer():
                    if self.timer_ms is None or effect.at_ms < self.timer_ms:
                        self.timer_ms = effect.at_ms
                case Persist():
                    self.unstored.append(effect)
        self.group.members.check()
        if self.auto_store and self.unstored:
            self.store()

    # short ways to a state

    def join_all(self, count: int, **kwargs) -> list[str]:
        """`count` dynamic members in the next generation, CompletingRebalance; the first leads."""
        tokens = [self.join(requires_known_member_id=False, **kwargs) for _ in range(count)]
        while not all(token in self.answers for token in tokens):
            self.pass_time(self.limits.initial_rebalance_delay_ms)
        return [self.answers[token].member_id for token in tokens]

    def stabilize(self, member_ids: list[str]) -> None:
        """All of them sync; the leader gives each its own name as its assignment."""
        for member_id in member_ids:
            given = {each: each.encode() for each in member_ids}
            self.sync(member_id, assignments=given)

    def stable(self, count: int, **kwargs) -> list[str]:
        members = self.join_all(count, **kwargs)
        self.stabilize(members)
        return members

    def unanswered(self) -> set[int]:
        return self.asked - self.answers.keys()


@pytest.fixture
def driver() -> GroupDriver:
    return GroupDriver()


@pytest.fixture
def make_driver():
    return GroupDriver


# --- a coordinator on logs in memory


class Verifier:
    """The coordinators of transactions: their word at once, or when `tell` is called."""

    def __init__(self):
        self.answer = ErrorCode.NONE
        self.asked = []
        self._waiting = []

    def ask(self, transactional_id, producer_id, producer_epoch, partitions, *, adds, done):
        self.asked.append((transactional_id, producer_id, producer_epoch, *partitions, adds))
        if self.answer is None:
            self._waiting.append(done)
        else:
            done(self.answer)

    def tell(self, error=ErrorCode.NONE):
        """Answers the oldest question."""
        self._waiting.pop(0)(error)


class MemoryLog:
    """A partition's log as the coordinator sees it: numbers batches, acknowledges in order, either
    at the end of the turn or when the test says so. Producers' state and gate are the real ones."""

    class State(Enum):
        LOADING = "loading"
        ONLINE = "online"
        OFFLINE = "offline"

    def __init__(self, turn, verifier=None):
        self.verifier = verifier or Verifier()
        self.producers = ProducerState(producers_max=100)
        self.gate = TransactionGate(
            self.verifier, OFFSETS_TOPIC, 0, ParkingRoom(), admit=None, refuse=None
        )
        self.state = self.State.ONLINE
        self.is_closing = False
        self.log_start_offset = 0
        self.high_watermark = 0
        self.batches = []  # (base offset, bytes), acknowledged
        self.auto_ack = True
        self.fail_with = None
        self.reads_allowed = trio.Event()
        self.reads_allowed.set()
        self._turn = turn
        self._next = 0
        self._waiting = []
        self._watchers = set()

    async def wait_loaded(self):
        await trio.lowlevel.checkpoint()

    def append_nowait(self, records, done, *, internal, origin, marker=None):
        assert internal
        header = parse_header(records)
        append = SimpleNamespace(error=self._error(header, origin), base_offset=self._next)
        if append.error:
            done(append)
            return
        patch(records, 0, self._next, 7)
        self.producers.append(header, self._next, 0, marker=marker)
        self._waiting.append((self._next, bytes(records), done, append))
        self._next += header.last_offset_delta + 1
        if self.auto_ack and len(self._waiting) == 1:
            self._turn.defer(self.ack)

    def _error(self, header, origin):
        if self.state is not self.State.ONLINE:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.fail_with is not None:
            return self.fail_with
        if not header.is_transactional or header.is_control:
            return ErrorCode.NONE
        assert header.base_sequence == -1
        try:
            self.producers.check(header, 0)
        except KafkaError as error:
            return error.code
        is_open = self.producers.is_in_transaction(header) or self.gate.is_valid(origin.guard)
        self.gate.settled(origin.guard, is_numbered=is_open)
        return ErrorCode.NONE if is_open else ErrorCode.INVALID_TXN_STATE

    def append_marker(self, producer_id, producer_epoch, marker, transaction_version, done):
        batch = build_end_transaction_batch(
            marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp_ms=1
        )
        records = memoryview(bytearray(batch))
        try:
            self.producers.check_marker(parse_header(records), marker, transaction_version)
        except KafkaError as error:
            done(SimpleNamespace(error=error.code))
            return
        self.append_nowait(records, done, internal=True, origin=None, marker=marker)
        self.gate.marker_appended(producer_id, producer_epoch)

    def ask_transaction(self, origin, producer_id, epoch, done):
        is_open = self.producers.has_transaction(producer_id, epoch)
        self.gate.ask_ahead(origin, producer_id, epoch, is_open=is_open, done=done)

    def give_back(self, origin):
        self.gate.settled(origin.guard, is_numbered=False)

    def ack(self):
        waiting, self._waiting = self._waiting, []
        for base_offset, records, done, append in waiting:
            self.batches.append((base_offset, records))
            self.high_watermark = base_offset + parse_header(records).last_offset_delta + 1
            done(append)
        for watcher in list(self._watchers):
            watcher()

    def go_offline(self):
        self.state = self.State.OFFLINE
        self.gate.close()
        waiting, self._waiting = self._waiting, []
        for _base, _records, done, append in waiting:
            append.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            done(append)
        for watcher in list(self._watchers):
            watcher()

    async def read(self, offset, size_max):
        await self.reads_allowed.wait()
        parts, next_offset = [], offset
        for base_offset, records in self.batches:
            last = base_offset + parse_header(records).last_offset_delta
            if last >= offset and sum(map(len, parts)) < size_max:
                parts.append(memoryview(records))
                next_offset = last + 1
        return SimpleNamespace(parts=parts, next_offset=next_offset)

    def watch(self, function):
        self._watchers.add(function)

    def unwatch(self, function):
        self._watchers.discard(function)

    def records(self):
        """(parsed key and value) of every acknowledged record, in order."""
        found = []
        for _, records in self.batches:
            header = parse_header(records)
            if not header.is_control:
                found += self.parsed(records)
        return found

    @staticmethod
    def parsed(batch):
        records = iter_records(batch, parse_header(batch), size_max=1 << 20)
        return [parse_record(each.key, each.value) for each in records]

    def successor(self):
        """What the next tenure of the same partition starts with."""
        log = MemoryLog(self._turn, self.verifier)
        log.batches = list(self.batches)
        log.high_watermark = log._next = self.high_watermark
        for base_offset, records in self.batches:
            if not records:
                continue  # nobody can read it
            header = parse_header(records)
            marker = marker_of(header, records) if header.is_control else None
            log.producers.append(header, base_offset, 0, marker=marker)
        return log


class MemoryCatalog:
    def __init__(self):
        self.topics = {}
        self.listeners = []
        self.ids = itertools.count(1)

    def add(self, name, partition_count):
        topic = SimpleNamespace(
            id=uuid.UUID(int=next(self.ids)),
            name=name,
            partition_count=partition_count,
        )
        self.topics[name] = topic
        self._tell(topic)
        return topic

    def remove(self, name):
        self._tell(self.topics.pop(name))

    def _tell(self, topic):
        for listener in self.listeners:
            listener(SimpleNamespace(topic=topic))

    def get(self, name):
        return self.topics.get(name)

    def get_by_id(self, topic_id):
        return next((t for t in self.topics.values() if t.id == topic_id), None)

    def all(self):
        return [self.topics[name] for name in sorted(self.topics)]

    async def create(self, name, partition_count, configs):
        await trio.lowlevel.checkpoint()
        assert configs["cleanup.policy"] == "compact"
        if name in self.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS)
        return self.add(name, partition_count)

    def subscribe(self, listener):
        self.listeners.append(listener)


class MemoryLogs:
    """Gives a log for every partition of `__consumer_offsets` that is not in `elsewhere`."""

    def __init__(self, catalog, turn):
        self.catalog, self.turn = catalog, turn
        self.logs = {}
        self.verifier = Verifier()
        self.elsewhere = set()
        self.listeners = []

    def get(self, topic, partition):
        if self.catalog.get(topic) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if partition in self.elsewhere:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.logs.setdefault(partition, MemoryLog(self.turn, self.verifier))

    def subscribe(self, listener):
        self.listeners.append(listener)

    def hold(self, partition, log=None):
        """A tenure begins."""
        self.elsewhere.discard(partition)
        if log is not None:
            self.logs[partition] = log
        for listener in self.listeners:
            listener("__consumer_offsets", partition)


class VirtualClock:
    """The wall clock of a run under trio's MockClock."""

    def time_ms(self):
        return 1_700_000_000_000 + int(trio.current_time() * 1000)

    def monotonic(self):
        return trio.current_time()


class Workers:
    """Of a disk, its threads."""

    async def run(self, function, *arguments):
        await trio.lowlevel.checkpoint()
        return function(*arguments)


class World:
    """A coordinator, its handlers and its logs. `ask` sends a message as a client would: encoded
    and decoded in the version it names."""

    def __init__(self, nursery, **config):
        config.setdefault("offsets_topic_num_partitions", 3)
        config.setdefault("group_initial_rebalance_delay_ms", 0)
        self.config = GroupConfig(**config)
        self.nursery = nursery
        #: `group.version`, `share.version` and `streams.version` are 1.
        self.is_on = True
        self.turn = Turn()
        self.catalog = MemoryCatalog()
        self.logs = MemoryLogs(self.catalog, self.turn)
        self.env = Env(
            clock=VirtualClock(), rng=random.Random(1), net=None, disk=Workers(), turn=self.turn
        )
        self.connection = ConnectionInfo("c", "10.0.0.9", "PLAINTEXT")
        #: Whom share groups need; None: they are not served.
        self.share = None
        #: None: there is no authorizer.
        self.rights = None
        self.nursery.start_soon(self.turn.serve)

    async def start(self, *, topic=True):
        if topic and self.catalog.get(OFFSETS_TOPIC) is None:
            self.catalog.add(OFFSETS_TOPIC, self.config.offsets_topic_num_partitions)
        self.coordinator = GroupCoordinator(
            self.env, self.config, self.catalog, self.logs, share=self.share
        )
        self.coordinator.consumers.is_guarded = self.rights is not None
        self.handlers = [
            GroupsHandler(self.coordinator),
            OffsetsHandler(self.coordinator, self.catalog),
            ConsumerGroupsHandler(self.coordinator, self.catalog, lambda: self.is_on),
            StreamsGroupsHandler(self.coordinator, self.catalog, self.turn, lambda: self.is_on),
            TxnOffsetsHandler(self.coordinator, self.catalog),
            TransactionMarkersHandler(self.logs, self.turn, self.coordinator.transactions),
            FindCoordinatorHandler(
                {0: KeyType(self.coordinator.topic, self.coordinator.ensure_ready)}, self
            ),
        ]
        if self.share is not None:
            self.requests = ShareRequests(
                self.coordinator.base, self.coordinator.shares, self.share
            )
            self.handlers.append(
                ShareGroupsHandler(self.requests, self.catalog, lambda: self.is_on)
            )
        self.apis = {api.key: api for handler in self.handlers for api in handler.apis()}
        self.scope = trio.CancelScope()

        async def run(*, task_status):
            with self.scope:
                await self.coordinator.run(task_status=task_status)

        await self.nursery.start(run)
        await self.settle()

    async def restart(self):
        """The coordinator stops; another one starts on what the logs have acknowledged."""
        self.scope.cancel()
        await self.settle()
        self.logs.logs = {at: log.successor() for at, log in self.logs.logs.items()}
        await self.start()

    async def settle(self):
        """Lets everything run that needs no time to pass."""
        await trio.testing.wait_all_tasks_blocked()

    def leader(self, topic, partition, listener):
        assert listener == "PLAINTEXT"
        if partition in self.logs.elsewhere:
            return None
        return SimpleNamespace(node_id=5, host="me", port=9092)

    def send(self, version, message, client_id="client"):
        """Starts a request; its answer is in the list that is given back, once it is there."""
        key = message.INFO.key if hasattr(message.INFO, "key") else message.INFO.api_key
        api = self.apis[key]
        assert api.version_min <= version <= api.version_max
        body, _ = decode(type(message), version, encode(message, version))
        request = Request(key, version, 1, client_id, self.connection, body, rights=self.rights)
        answers = []

        def answer(response):
            again, _ = decode(type(response), version, encode(response, version))
            driven.note(key, version, again, on_wire=False)
            answers.append(again)

        result = api.handle(request)
        if inspect.isgenerator(result):
            result = all_steps(result)
        if isinstance(result, Reply):
            if result.message is not None:
                answer(result.message)
            else:
                result.line = SimpleNamespace(reply_resolved=lambda reply: answer(reply.message))
        elif isawaitable(result):

            async def finish():
                answer(await result)

            self.nursery.start_soon(finish)
        else:
            answer(result)
        return answers

    async def ask(self, version, message, **kwargs):
        answers = self.send(version, message, **kwargs)
        await self.settle()
        assert len(answers) == 1, "no answer yet"
        return answers[0]

    def log_of(self, group_id):
        return self.logs.logs[self.coordinator.topic.partition_for(group_id)]

    def state(self):
        """Everything that a load must bring back."""
        found = {}
        error, entries = self.coordinator.list_groups()
        assert not error
        for entry in entries:
            snapshot = entry.group.snapshot()
            if snapshot.members:  # stored before the state became Stable
                snapshot = replace(snapshot, state_timestamp_ms=0)
            found[entry.group.group_id] = (snapshot, dict(entry.offsets.by_topic))
        return found


@pytest.fixture
async def make_world(nursery):
    def make(**config):
        return World(nursery, **config)

    return make


@pytest.fixture
async def world(make_world):
    world = make_world()
    await world.start()
    return world
