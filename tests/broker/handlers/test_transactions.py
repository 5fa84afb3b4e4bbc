"""The transaction coordinator's handlers, and InitProducerId's with one, by version: requests are
encoded and decoded as a client's would be."""

from __future__ import annotations

import dataclasses
import inspect
from types import SimpleNamespace

import pytest
import trio

from broker.api import ConnectionInfo, Reply, Request, all_steps
from broker.coordinator.topic import CoordinatorTopic, java_hash
from broker.handlers.init_producer_id import InitProducerIdHandler
from broker.handlers.transactions import TransactionsHandler
from broker.transactions.types import TV1
from runtime.real_disk import RealDisk
from tests.broker import driven
from tests.broker.transactions.world import World
from wire.kafka.codec import decode, encode
from wire.kafka.errors import ErrorCode as E
from wire.kafka.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    InitProducerIdRequest,
)
from wire.kafka.messages.transactions_admin import (
    DescribeTransactionsRequest,
    ListTransactionsRequest,
)


class Server(World):
    async def start(self, **kwargs):
        await super().start(**kwargs)
        offsets = CoordinatorTopic(self.catalog, "__consumer_offsets", 50, {})
        handlers = [
            TransactionsHandler(self.coordinator, self.catalog, offsets),
            InitProducerIdHandler(self.ids, self.coordinator),
        ]
        self.apis = {api.key: api for handler in handlers for api in handler.apis()}

    async def call(self, version, message):
        """The answer to one request; what the request held is gone by the time of the answer."""
        api = self.apis[message.INFO.key]
        assert api.version_min <= version <= api.version_max
        body, _ = decode(type(message), version, encode(message, version))
        connection = ConnectionInfo("c", "10.0.0.9", "PLAINTEXT")
        result = api.handle(Request(api.key, version, 1, "client", connection, body))
        if inspect.isgenerator(result):
            result = all_steps(result)
        for name in ("transactions", "v3_and_below_topics"):
            if hasattr(body, name):
                getattr(body, name).clear()
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, Reply):
            done = trio.Event()
            result.line = SimpleNamespace(reply_resolved=lambda reply: done.set())
            if result.message is None:
                with trio.fail_after(5):
                    await done.wait()
            result = result.message
        again, _ = decode(type(result), version, encode(result, version))
        driven.note(api.key, version, again, on_wire=False)
        return again

    async def new_producer(self, version=5, name="id", **fields):
        answer = await self.call(version, InitProducerIdRequest(name, 60_000, **fields))
        assert not answer.error_code
        return answer.producer_id, answer.producer_epoch

    async def add_old(self, version, producer, topics=(("t", [0]),), name="id"):
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[AddPartitionsToTxnTopic(*topic) for topic in topics],
        )
        return shown((await self.call(version, request)).results_by_topic_v3_and_below)

    async def add_new(self, version, *transactions):
        """By transactional id, what its partitions were told."""
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    name,
                    *producer,
                    verify_only,
                    [AddPartitionsToTxnTopic(*each) for each in topics],
                )
                for name, producer, verify_only, topics in transactions
            ]
        )
        answer = await self.call(version, request)
        assert not answer.error_code
        return {
            each.transactional_id: shown(each.topic_results)
            for each in answer.results_by_transaction
        }

    async def end(self, version, producer, committed=True, name="id"):
        answer = await self.call(version, EndTxnRequest(name, *producer, committed))
        return answer.error_code, answer.producer_id, answer.producer_epoch


def shown(topics):
    return {
        (topic.name, each.partition_index): each.partition_error_code
        for topic in topics
        for each in topic.results_by_partition
    }


@pytest.fixture
async def server(nursery):
    server = Server(nursery)
    server.env = dataclasses.replace(server.env, disk=RealDisk())
    await server.start()
    return server


# --- InitProducerId


@pytest.mark.parametrize("version", range(6))
async def test_init_producer_id(server, autojump_clock, version):
    first = await server.new_producer(version)
    assert first == (1001, 0)
    assert await server.new_producer(version) == (1001, 1)
    answer = await server.call(version, InitProducerIdRequest("", 60_000))
    assert (answer.error_code, answer.producer_id) == (E.INVALID_REQUEST, -1)
    answer = await server.call(version, InitProducerIdRequest("id", 0))
    assert answer.error_code == E.INVALID_TRANSACTION_TIMEOUT
    assert await server.new_producer(version, None) == (1002, 0)
    if version >= 3:
        assert await server.new_producer(version, producer_id=1001, producer_epoch=1) == (1001, 2)
        request = InitProducerIdRequest("id", 60_000, 1001, 0)
        answer = await server.call(version, request)
        fenced = E.PRODUCER_FENCED if version >= 4 else E.INVALID_PRODUCER_EPOCH
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (fenced, -1, -1)


# --- AddPartitionsToTxn


@pytest.mark.parametrize("version", range(4))
async def test_a_producers_partitions(server, autojump_clock, version):
    producer = await server.new_producer()
    topics = [("u", [2, 0]), ("t", [1])]
    good = {("u", 2): 0, ("u", 0): 0, ("t", 1): 0}
    assert await server.add_old(version, producer, topics) == good
    assert await server.add_old(version, producer, topics) == good
    assert server.txn.partitions == good.keys()
    assert server.txn.version == TV1
    fenced = E.PRODUCER_FENCED if version >= 2 else E.INVALID_PRODUCER_EPOCH
    old = producer[0], producer[1] + 1
    assert await server.add_old(version, old) == {("t", 0): fenced}
    assert await server.add_old(version, (5, 0)) == {("t", 0): E.INVALID_PRODUCER_ID_MAPPING}
    assert await server.add_old(version, producer, name="") == {("t", 0): E.INVALID_REQUEST}
    assert await server.add_old(version, producer, [("t", [0, 3]), ("no", [0])]) == {
        ("t", 0): E.OPERATION_NOT_ATTEMPTED,
        ("t", 3): E.UNKNOWN_TOPIC_OR_PARTITION,
        ("no", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert server.txn.partitions == good.keys(), "and nothing of it was added"


@pytest.mark.parametrize("version", [4, 5])
async def test_brokers_add_and_verify_for_many(server, autojump_clock, version):
    a, b = await server.new_producer(name="a"), await server.new_producer(name="b")
    assert await server.add_new(
        version,
        ("a", a, False, [("t", [0, 1])]),
        ("b", b, False, [("t", [0]), ("no", [7])]),
        ("c", b, False, [("t", [0])]),
    ) == {
        "a": {("t", 0): 0, ("t", 1): 0},
        "b": {("t", 0): E.OPERATION_NOT_ATTEMPTED, ("no", 7): E.UNKNOWN_TOPIC_OR_PARTITION},
        "c": {("t", 0): E.INVALID_PRODUCER_ID_MAPPING},
    }
    assert await server.add_new(
        version, ("a", a, True, [("t", [1, 2])]), ("b", b, True, [("t", [0])])
    ) == {
        "a": {("t", 1): 0, ("t", 2): E.TRANSACTION_ABORTABLE},
        "b": {("t", 0): E.TRANSACTION_ABORTABLE},
    }
    assert await server.add_new(version) == {}
    (error, *after) = await server.end(5, a, name="a")
    assert not error
    assert after == [a[0], a[1] + 1]


async def test_a_broker_waits_a_moment_and_a_producer_does_not(server, autojump_clock):
    producer = await server.new_producer()
    await server.add_new(5, ("id", producer, False, [("t", [0])]))
    server.partitions.is_mute = True
    _, *after = await server.end(5, producer)
    busy = {("t", 0): E.CONCURRENT_TRANSACTIONS}
    started = trio.current_time()
    assert await server.add_old(3, after) == busy
    assert await server.add_new(5, ("id", after, True, [("t", [0])])) == {"id": busy}
    assert trio.current_time() == started
    assert await server.add_new(5, ("id", after, False, [("t", [0])])) == {"id": busy}
    assert trio.current_time() - started == pytest.approx(0.1, abs=0.01)
    server.partitions.answer()
    assert await server.add_new(5, ("id", after, False, [("t", [0])])) == {"id": {("t", 0): 0}}


# --- AddOffsetsToTxn


@pytest.mark.parametrize("version", range(5))
async def test_a_groups_offsets(server, autojump_clock, version):
    producer = await server.new_producer()
    answer = await server.call(version, AddOffsetsToTxnRequest("id", *producer, "g"))
    assert not answer.error_code
    number = (java_hash("g") & 0x7FFFFFFF) % 50
    assert server.txn.partitions == {("__consumer_offsets", number)}
    assert server.txn.version == TV1
    answer = await server.call(version, AddOffsetsToTxnRequest("id", producer[0], 9, "g"))
    assert answer.error_code == (90 if version >= 2 else 47)


# --- EndTxn


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("committed", [True, False])
async def test_end(server, autojump_clock, version, committed):
    producer_id, epoch = producer = await server.new_producer()
    await server.add_old(0, producer)
    told = (0, producer_id, epoch + 1) if version >= 5 else (0, -1, -1)
    assert await server.end(version, producer, committed) == told
    assert await server.end(version, producer, committed) == told
    contrary = await server.end(version, producer, not committed)
    assert contrary == (E.INVALID_TXN_STATE, -1, -1)
    fenced = await server.end(version, (producer_id, epoch + 9), committed)
    assert fenced == (90 if version >= 2 else 47, -1, -1)
    assert {each[5] for each in server.partitions.written} == {committed}


# --- who is refused


async def test_what_a_coordinator_does_not_take(server, autojump_clock):
    """Ids that are none, and producers that the id has not."""
    producer_id, epoch = await server.new_producer()
    for name, who, error in (
        ("", producer_id, E.INVALID_REQUEST),
        ("id", producer_id + 1, E.INVALID_PRODUCER_ID_MAPPING),
        ("other", producer_id, E.INVALID_PRODUCER_ID_MAPPING),
    ):
        for version in range(5):
            request = AddOffsetsToTxnRequest(name, who, epoch, "g")
            assert (await server.call(version, request)).error_code == error
        for version in range(6):
            assert await server.end(version, (who, epoch), name=name) == (error, -1, -1)
    assert server.txn.partitions == frozenset()


async def test_while_a_transaction_ends(server, autojump_clock):
    """Its decision is stored, and a partition has no marker yet: everybody is to ask again."""
    producer_id, epoch = await server.new_producer()
    await server.add_old(3, (producer_id, epoch))
    server.partitions.is_mute = True
    assert (await server.end(4, (producer_id, epoch)))[0] == E.NONE
    assert (await server.end(4, (producer_id, epoch)))[0] == E.CONCURRENT_TRANSACTIONS
    request = AddOffsetsToTxnRequest("id", producer_id, epoch, "g")
    assert (await server.call(4, request)).error_code == E.CONCURRENT_TRANSACTIONS
    answer = await server.call(5, InitProducerIdRequest("id", 60_000))
    assert (answer.error_code, answer.producer_id) == (E.CONCURRENT_TRANSACTIONS, -1)
    server.partitions.answer()
    await server.settle()
    assert (await server.call(4, request)).error_code == E.NONE


# --- administration


async def test_describe(server, autojump_clock):
    producer = await server.new_producer()
    await server.add_old(0, producer, [("u", [1, 0]), ("t", [2])])
    request = DescribeTransactionsRequest(["id", "no", "id", "", "id"])  # each that is there once
    known, unknown, empty = (await server.call(0, request)).transaction_states
    assert (known.error_code, known.transactional_id) == (0, "id")
    assert (known.transaction_state, known.transaction_timeout_ms) == ("Ongoing", 60_000)
    assert (known.producer_id, known.producer_epoch) == producer
    assert known.transaction_start_time_ms == server.coordinator.timers.now_ms()
    assert [(each.topic, each.partitions) for each in known.topics] == [("t", [2]), ("u", [0, 1])]
    assert unknown.error_code == E.TRANSACTIONAL_ID_NOT_FOUND
    assert empty.error_code == E.INVALID_REQUEST
    # While it ends: those that have no marker yet.
    server.leaders["t", 2] = None
    await server.end(5, producer)
    request = DescribeTransactionsRequest(["id"])
    (known,) = (await server.call(0, request)).transaction_states
    assert known.transaction_state == "PrepareCommit"
    assert [(each.topic, each.partitions) for each in known.topics] == [("t", [2])]


async def test_list(server, autojump_clock):
    a = await server.new_producer(name="a")
    await server.add_old(0, a, name="a")
    await trio.sleep(5)
    b = await server.new_producer(name="b")
    await server.add_old(0, b, name="b")
    c = await server.new_producer(name="c")

    async def names(version=1, **filters):
        answer = await server.call(version, ListTransactionsRequest(**filters))
        assert not answer.error_code
        return sorted(each.transactional_id for each in answer.transaction_states)

    assert await names(0) == await names(1) == ["a", "b", "c"]
    assert await names(state_filters=["Ongoing"]) == ["a", "b"]
    assert await names(state_filters=["Ongoing", "Empty"]) == ["a", "b", "c"]
    assert await names(producer_id_filters=[c[0], a[0]]) == ["a", "c"]
    assert await names(duration_filter=4_999, state_filters=["Ongoing"]) == ["a"]
    assert await names(duration_filter=5_000, state_filters=["Ongoing"]) == []
    answer = await server.call(
        1, ListTransactionsRequest(["Dead", "Ongoin", "PrepareEpochFence", "empty"])
    )
    assert answer.unknown_state_filters == ["Ongoin", "empty"]
    assert answer.transaction_states == []
    assert await names(2, transactional_id_pattern="[ab]") == ["a", "b"]
    assert await names(2, transactional_id_pattern="") == ["a", "b", "c"]
    assert await names(2, transactional_id_pattern="[ab]", producer_id_filters=[b[0]]) == ["b"]
    assert await names(2, transactional_id_pattern="x|(?i)A", duration_filter=4_999) == ["a"]
    (listed,) = (await server.call(0, ListTransactionsRequest(["Empty"]))).transaction_states
    assert (listed.producer_id, listed.transaction_state) == (c[0], "Empty")


async def test_list_by_pattern(server):
    """Whole ids; what takes long is done elsewhere, and what is no pattern is told so."""
    names = ["my-app-1", "my-app-12", "not-my-app-1", "a" * 30_000]
    for name in names:
        await server.new_producer(name=name)

    async def listed(pattern):
        request = ListTransactionsRequest(transactional_id_pattern=pattern)
        answer = await server.call(2, request)
        assert not answer.unknown_state_filters
        return answer.error_code, sorted(
            each.transactional_id for each in answer.transaction_states
        )

    assert await listed("my-app-.") == (E.NONE, ["my-app-1"])
    assert await listed(r"my-app-\d+") == (E.NONE, names[:2])
    assert await listed("app") == (E.NONE, [])
    assert await listed("(a|b)*a(a|b){400}") == (E.NONE, [names[3]])
    assert await listed("my-app-1|" + "|".join(f"other-{n}" for n in range(40))) == (
        E.NONE, ["my-app-1"],
    )  # fmt: skip
    for bad in ("(", "a{1001}", "x" * 5_000):
        assert await listed(bad) == (E.INVALID_REGULAR_EXPRESSION, [])
    server.logs.elsewhere.add(0)
    log = server.log
    log.go_offline()
    server.logs.hold(0, log.successor())
    server.log.reads_allowed = trio.Event()
    assert await listed("(") == (E.COORDINATOR_LOAD_IN_PROGRESS, [])


# --- who cannot serve


async def refusals(server):
    """By request, what it is told."""
    answers = {
        "InitProducerId": await server.call(5, InitProducerIdRequest("id", 60_000)),
        "AddOffsetsToTxn": await server.call(4, AddOffsetsToTxnRequest("id", 1, 0, "g")),
        "EndTxn": await server.call(5, EndTxnRequest("id", 1, 0, True)),
    }
    found = {name: {E(answer.error_code)} for name, answer in answers.items()}
    found["AddPartitionsToTxn"] = {E(c) for c in (await server.add_old(3, (1, 0))).values()}
    described = await server.call(0, DescribeTransactionsRequest(["id"]))
    found["DescribeTransactions"] = {E(described.transaction_states[0].error_code)}
    return found


@pytest.mark.parametrize(
    ("why", "error"),
    [
        ("elsewhere", E.NOT_COORDINATOR),
        ("loading", E.COORDINATOR_LOAD_IN_PROGRESS),
        ("stopped", E.COORDINATOR_NOT_AVAILABLE),
    ],
)
async def test_a_broker_that_cannot_serve(server, autojump_clock, why, error):
    await server.new_producer()
    if why == "stopped":
        server.scope.cancel()
        await server.settle()
    else:
        log = server.log
        server.logs.elsewhere.add(0)
        log.go_offline()
        await server.settle()
    if why == "loading":
        server.logs.hold(0, log.successor())
        server.log.reads_allowed = trio.Event()
    assert set(map(frozenset, (await refusals(server)).values())) == {frozenset({error})}
    listed = await server.call(2, ListTransactionsRequest([], []))
    assert listed.error_code == (E.NONE if why == "elsewhere" else error)
