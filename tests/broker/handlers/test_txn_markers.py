"""WriteTxnMarkers and DescribeProducers, and what Produce, Fetch and ListOffsets make of
transactions, by a real server whose coordinator is a stand-in: it says yes."""

from types import SimpleNamespace

import pytest
import trio

from broker.handlers import fetch_cold
from broker.handlers.produce import PARTITIONS_PER_STEP
from broker.handlers.txn_markers import (
    MARKERS_PER_TURN,
    WRITTEN_UNITS,
    TransactionMarkersHandler,
)
from broker.log.transactions import aborted_list
from broker.node import parts as broker_parts
from runtime.turn import Turn
from wire.kafka import messages  # noqa: F401
from wire.kafka.errors import ErrorCode
from wire.kafka.messages.groups import FindCoordinatorRequest
from wire.kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from wire.kafka.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from wire.kafka.messages.transactions_admin import DescribeProducersRequest, TopicRequest


class Verifier:
    def __init__(self):
        self.asked = []

    def ask(self, transactional_id, producer_id, producer_epoch, partitions, *, adds, done):
        self.asked.append((transactional_id, producer_id, producer_epoch, *partitions, adds))
        done(ErrorCode.NONE)

    def serve(self, coordinator, brokers):
        pass


@pytest.fixture
async def served(start_server, monkeypatch):
    """A client of a broker whose partitions are told yes, with topic «t» of two partitions."""
    verifier = Verifier()
    monkeypatch.setattr(broker_parts, "CoordinatorVerifier", lambda *_: verifier)
    server = await start_server()
    client = await server.connect()
    await client.create_topic("t", 2)
    client.verifier = verifier
    return client


def markers(*each, version=0):
    """Of (producer id, epoch, whether committed, {topic: partitions})."""
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=pid,
                producer_epoch=epoch,
                transaction_result=committed,
                topics=[
                    WritableTxnMarkerTopic(name=name, partition_indexes=list(numbers))
                    for name, numbers in topics.items()
                ],
                coordinator_epoch=3,
                transaction_version=version,
            )
            for pid, epoch, committed, topics in each
        ]
    )


def errors_of(answer):
    return {
        (marker.producer_id, topic.name, each.partition_index): each.error_code
        for marker in answer.markers
        for topic in marker.topics
        for each in topic.partitions
    }


@pytest.fixture
def batch(requests):
    def make(values, *, pid=7, epoch=0, sequence=0, transactional=True):
        return requests.batch(
            values,
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=transactional,
        )

    return make


async def send(client, requests, *parts, version=12, transactional_id="id"):
    answer = await client.call(requests.produce(*parts, transactional_id=transactional_id), version)
    return [each.error_code for topic in answer.responses for each in topic.partition_responses]


async def test_commit_is_atomic_over_partitions(served, requests, batch):
    parts = ("t", 0, batch([b"a"])), ("t", 1, batch([b"b"]))
    assert await send(served, requests, *parts, version=11) == [0, 0]
    assert served.verifier.asked == [("id", 7, 0, ("t", 0), False), ("id", 7, 0, ("t", 1), False)]
    for partition in (0, 1):
        got = await served.fetch("t", 0, partition=partition, isolation_level=1)
        assert (got.high_watermark, got.last_stable_offset) == (1, 0)
        assert (bytes(got.records), got.aborted_transactions) == (b"", [])
        got = await served.fetch("t", 0, partition=partition)
        assert requests.values(got.records) == [(0, b"ab"[partition : partition + 1])]
        assert (got.last_stable_offset, got.aborted_transactions) == (0, None)
    answer = await served.call(markers((7, 0, True, {"t": [0, 1]})), 1)
    assert errors_of(answer) == {(7, "t", 0): 0, (7, "t", 1): 0}
    for partition in (0, 1):
        got = await served.fetch("t", 0, partition=partition, isolation_level=1)
        assert (got.high_watermark, got.last_stable_offset) == (2, 2)
        assert len(requests.values(got.records)) == 2
        assert got.aborted_transactions == []


async def test_aborted_transactions_are_listed_by_first_offset(served, requests, batch):
    for pid in (9, 8, 7):
        assert await send(served, requests, ("t", 0, batch([b"x"], pid=pid))) == [0]
    for pid in (7, 8, 9):
        await served.call(markers((pid, 1, False, {"t": [0]}), version=2))
    got = await served.fetch("t", 0, isolation_level=1)
    assert [(each.producer_id, each.first_offset) for each in got.aborted_transactions] == [
        (9, 0), (8, 1), (7, 2),
    ]  # fmt: skip
    got = await served.fetch("t", 3, isolation_level=1)
    assert len(got.aborted_transactions) == 3, "their markers are there"
    got = await served.fetch("t", 6, isolation_level=1)
    assert got.aborted_transactions == []


async def test_so_are_those_that_are_looked_for_in_slices(served, requests, batch, monkeypatch):
    monkeypatch.setattr(aborted_list, "NOWAIT_ROWS", 0)
    monkeypatch.setattr(fetch_cold, "LISTED_PER_STEP", 2)
    for pid in (9, 8, 7):
        assert await send(served, requests, ("t", 0, batch([b"x"], pid=pid))) == [0]
    for pid in (7, 9, 8):
        await served.call(markers((pid, 1, False, {"t": [0]}), version=2))
    got = await served.fetch("t", 0, isolation_level=1)
    listed = [(each.producer_id, each.first_offset) for each in got.aborted_transactions]
    assert listed == [(9, 0), (8, 1), (7, 2)]


async def test_errors_are_each_partitions_own(served, requests, batch, name):
    await send(served, requests, ("t", 0, batch([b"x"], epoch=4)))
    answer = await served.call(
        markers((7, 3, True, {"t": [0, 1, 2]}), (7, 4, True, {"nowhere": [0], "t": [0]}))
    )
    assert {key: name(code) for key, code in errors_of(answer).items()} == {
        (7, "t", 0): "NONE",  # of the later one: the same key
        (7, "t", 1): "NONE",
        (7, "t", 2): "UNKNOWN_TOPIC_OR_PARTITION",
        (7, "nowhere", 0): "UNKNOWN_TOPIC_OR_PARTITION",
    }
    late = answer.markers[0].topics[0].partitions[0]
    assert name(late.error_code) == "INVALID_PRODUCER_EPOCH"
    assert (await served.call(markers(), 1)).markers == []


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 0), (-1, -1), (-7, 3), (7, -1)])
@pytest.mark.parametrize("topic", ["t", "__consumer_offsets"])
async def test_a_marker_of_nobody_is_refused(served, topic, producer_id, epoch):
    await served.call(FindCoordinatorRequest(coordinator_keys=["g"]), 4)  # makes the topic
    answer = await served.call(markers((producer_id, epoch, False, {topic: [0]})))
    assert errors_of(answer) == {(producer_id, topic, 0): ErrorCode.INVALID_RECORD}
    assert (await served.fetch("t", 0)).high_watermark == 0


async def test_a_marker_is_checked_by_its_transactions_version(served, requests, batch, name):
    """Of version 2 it has the next epoch; in version 1 of the API that cannot be told."""
    await served.call(FindCoordinatorRequest(coordinator_keys=["g"]), 4)  # makes the topic
    offsets = TxnOffsetCommitRequest(
        "id", "g", 7, 0,
        topics=[TxnOffsetCommitRequestTopic("t", [TxnOffsetCommitRequestPartition(0, 5)])],
    )  # fmt: skip
    while (await served.call(offsets, 5)).topics[0].partitions[0].error_code:
        await trio.sleep(0.01)
    assert await send(served, requests, ("t", 0, batch([b"a"]))) == [0]
    both = {"t": [0], "__consumer_offsets": [0]}
    own = await served.call(markers((7, 0, True, both), version=2), 2)
    assert {name(code) for code in errors_of(own).values()} == {"INVALID_PRODUCER_EPOCH"}
    assert (await served.fetch("t", 0)).last_stable_offset == 0
    for version, api_version in ((2, 1), (0, 2)):
        ended = await served.call(markers((7, 0, True, both), version=version), api_version)
        assert set(errors_of(ended).values()) == {0}
        assert (await served.fetch("t", 0)).last_stable_offset > 0


async def test_a_marker_of_a_coordinator_that_was_replaced(served, requests, batch, name):
    await send(served, requests, ("t", 0, batch([b"x"])))
    newer, older = markers((7, 0, True, {"t": [0]})), markers((7, 0, True, {"t": [0]}))
    newer.markers[0].coordinator_epoch, older.markers[0].coordinator_epoch = 4, 3
    assert set(errors_of(await served.call(newer)).values()) == {0}
    await send(served, requests, ("t", 0, batch([b"y"], sequence=1)))
    [code] = errors_of(await served.call(older)).values()
    assert name(code) == "TRANSACTION_COORDINATOR_FENCED"
    got = await served.fetch("t", 0, isolation_level=1)
    assert (got.high_watermark, got.last_stable_offset) == (3, 2), "it is open still"


async def test_many_markers_are_answered_together(served, requests, batch):
    answer = await served.call(markers(*((pid, 0, True, {"t": [0]}) for pid in range(130))))
    assert len(errors_of(answer)) == 130
    assert set(errors_of(answer).values()) == {0}
    got = await served.fetch("t", 0, isolation_level=1)
    assert got.last_stable_offset == 130


def test_what_is_written_is_told_to_the_turn():
    """So that many such requests of one turn are written in several."""
    turn, written = Turn(), []
    log = SimpleNamespace(submit_marker=written.append)
    handler = TransactionMarkersHandler(SimpleNamespace(get=lambda *_: log), turn, None)
    handler.write_markers(markers((7, 0, True, {"t": range(MARKERS_PER_TURN + 1)})), None)
    assert (len(written), turn.spent_units) == (MARKERS_PER_TURN, MARKERS_PER_TURN * WRITTEN_UNITS)


async def test_producers_are_described(served, requests, batch, name):
    await send(served, requests, ("t", 0, batch([b"a", b"b"])))
    await send(served, requests, ("t", 0, batch([b"c"], pid=8, transactional=False)))
    await served.call(markers((9, 5, True, {"t": [0]})))
    asked = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0, 5])])
    asked.topics[0].partition_indexes += [0] * 10  # answered once
    answer = await served.call(asked)
    here, missing = answer.topics[0].partitions
    assert name(missing.error_code) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert [
        (
            each.producer_id, each.producer_epoch, each.last_sequence, each.coordinator_epoch,
            each.current_txn_start_offset,
        )
        for each in here.active_producers
    ] == [(7, 0, 1, -1, 0), (8, 0, 0, -1, -1), (9, 5, -1, 3, -1)]  # fmt: skip


async def test_list_offsets_committed_latest_time_max(served, requests, batch):
    await served.produce("t", requests.batch([b"a"], base_timestamp=1000))
    await send(served, requests, ("t", 0, batch([b"b"])))  # its timestamp is the largest

    async def ask(timestamp, isolation_level):
        wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        answer = await served.call(
            ListOffsetsRequest(
                replica_id=-1,
                isolation_level=isolation_level,
                topics=[ListOffsetsTopic(name="t", partitions=[wanted])],
            ),
            8,
        )
        assert answer.topics[0].partitions[0].error_code == 0
        return answer.topics[0].partitions[0].offset

    assert [await ask(each, 0) for each in (-1, -2, -3, 500, 2000)] == [2, 0, 1, 0, 1]
    assert [await ask(each, 1) for each in (-1, -2, -3, 500, 2000)] == [1, 0, -1, 0, -1]
    await served.call(markers((7, 1, True, {"t": [0]}), version=2))
    assert [await ask(each, 1) for each in (-1, 2000)] == [3, 1]


async def test_a_committed_fetch_waits_for_the_marker(served, requests, batch):
    """Not for the high watermark: it moves three times before that."""
    other = await served.server.connect()
    answers = []

    async def fetch(min_bytes):
        client = await served.server.connect()
        got = await client.fetch("t", 0, isolation_level=1, max_wait_ms=20_000, min_bytes=min_bytes)
        answers.append(requests.values(got.records))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch, 1)
        nursery.start_soon(fetch, 100)
        for sequence in range(3):
            await trio.sleep(0.1)
            part = "t", 0, batch([b"%d" % sequence], sequence=sequence)
            assert await send(other, requests, part) == [0]
        assert answers == []
        await served.call(markers((7, 1, True, {"t": [0]}), version=2))
    assert [len(each) for each in answers] == [4, 4]


async def test_one_producer_in_a_request(served, requests, batch, name):
    parts = ("t", 0, batch([b"a"])), ("t", 1, batch([b"b"], pid=8))
    assert {name(code) for code in await send(served, requests, *parts)} == {
        "INVALID_PRODUCER_ID_MAPPING"
    }
    parts = ("t", 0, batch([b"a"])), ("t", 1, batch([b"b"], pid=8, transactional=False))
    assert await send(served, requests, *parts) == [0, 0]
    nameless = await send(
        served, requests, ("t", 0, batch([b"a"], sequence=1)), transactional_id=None
    )
    assert [name(code) for code in nameless] == ["TRANSACTIONAL_ID_AUTHORIZATION_FAILED"]


async def test_one_producer_in_a_request_of_several_topics(served, requests, batch, name):
    """Or of more partitions than are looked at in one step; nothing of it is written."""
    await served.create_topic("u", PARTITIONS_PER_STEP + 1)
    own, other = batch([b"a"]), batch([b"b"], pid=8)
    for parts in (
        [("t", 0, own), ("u", 0, other), ("u", 1, batch([b"c"], transactional=False))],
        [("u", 0, other), *(("u", number, own) for number in range(1, PARTITIONS_PER_STEP + 1))],
        [("u", 0, batch([b"a"], epoch=1)), ("t", 1, own)],
    ):
        codes = {name(code) for code in await send(served, requests, *parts)}
        assert codes == {"INVALID_PRODUCER_ID_MAPPING"}
    assert (await served.fetch("u", 0)).high_watermark == 0
    assert (await served.fetch("t", 0)).high_watermark == 0


async def test_a_transaction_that_no_coordinator_knows(client, requests, batch, name):
    """19 while the topic of transactions is not there, which producers try again."""
    got = await send(client, requests, ("t", 0, batch([b"a"])))
    assert [name(code) for code in got] == ["NOT_ENOUGH_REPLICAS"]
