"""What every request about a partition is told by a broker that lost it, or that cannot read it,
on a real server."""

import trio

from broker.log.life import keeper
from tests.broker.calls import errors_in
from tests.broker.conftest import produce_request
from wire.kafka.messages import (
    DeleteRecordsRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
)
from wire.kafka.messages.groups import FindCoordinatorRequest
from wire.kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsTopic,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from wire.kafka.messages.topics import DeleteRecordsPartition, DeleteRecordsTopic
from wire.kafka.messages.transactions import (
    EndTxnRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from wire.kafka.messages.transactions_admin import DescribeProducersRequest, TopicRequest


def list_offsets(timestamp=-1, *numbers, epoch=-1):
    partitions = [ListOffsetsPartition(each, epoch, timestamp) for each in numbers or (0,)]
    return ListOffsetsRequest(-1, topics=[ListOffsetsTopic("t", partitions)])


def of_epoch(epoch=-1):
    partition = OffsetForLeaderPartition(0, epoch, 0)
    return OffsetForLeaderEpochRequest(-1, [OffsetForLeaderTopic("t", [partition])])


def marker(topic="t"):
    topics = [WritableTxnMarkerTopic(topic, [0])]
    return WriteTxnMarkersRequest([WritableTxnMarker(7, 0, True, topics, 1)])


REQUESTS = {
    "ListOffsets": list_offsets(),
    "ListOffsets by time": list_offsets(0),
    "OffsetForLeaderEpoch": of_epoch(),
    "DeleteRecords": DeleteRecordsRequest(
        [DeleteRecordsTopic("t", [DeleteRecordsPartition(0, 0)])], 5_000
    ),
    "DescribeProducers": DescribeProducersRequest([TopicRequest("t", [0])]),
    "WriteTxnMarkers": marker(),
    "Produce": produce_request(("t", 0, [b"x"])),
}


async def test_a_partition_that_this_broker_lost(client):
    """A moment later it is taken over again; nobody is told so in between."""
    logs = client.server.parts["LogManager"]
    for name, request in REQUESTS.items():
        version = 12 if name == "Produce" else None
        found = set()
        with trio.fail_after(10):
            while "NOT_LEADER_OR_FOLLOWER" not in found:
                logs.get("t", 0).go_offline("a test's wish")
                found = errors_in(await client.call(request, version))
        assert found == {"NOT_LEADER_OR_FOLLOWER"}, name


async def test_leader_epochs_of_who_asks_for_offsets(client, wait_until):
    logs = client.server.parts["LogManager"]
    old = logs.get("t", 0)
    old.go_offline("a test's wish")
    await wait_until(lambda: logs.get("t", 0) is not old and logs.get("t", 0).leader_epoch > 0)
    epoch = logs.get("t", 0).leader_epoch
    assert epoch > old.leader_epoch
    for request in (list_offsets, of_epoch):
        for asked, error in (
            (old.leader_epoch, "FENCED_LEADER_EPOCH"),
            (epoch + 1, "UNKNOWN_LEADER_EPOCH"),
            (epoch, "NONE"),
        ):
            assert errors_in(await client.call(request(epoch=asked))) == {error}


async def test_records_that_no_bookie_has(client, start_server):
    """What has to read them says so; what knows the answer without them tells it."""
    await client.produce("t", [b"x"])
    await client.server.stop()
    server = await start_server()
    client = await server.connect()
    await client.call(MetadataRequest(topics=None))
    for ledger_id in list(server.parts["Bookie"].list_ledgers()):
        await server.parts["Bookie"].delete_ledger(ledger_id)
    for timestamp in (0, -3):
        answer = await client.call(list_offsets(timestamp))
        assert errors_in(answer) == {"KAFKA_STORAGE_ERROR"}
    for request in (list_offsets(-1), list_offsets(-2), of_epoch(), REQUESTS["DeleteRecords"]):
        assert errors_in(await client.call(request)) == {"NONE"}


async def test_a_partition_that_is_asked_for_twice(client):
    """As in Kafka: told once, without an offset, and the others as if nothing was wrong."""
    request = list_offsets(-1, 0, 1, 0)
    request.topics += list_offsets(-2, 0).topics
    request.topics += [ListOffsetsTopic("none", [ListOffsetsPartition(0, -1, -1)])]
    for version in range(1, 12):
        answer = await client.call(request, version)
        told = [
            (topic.name, each.partition_index, each.error_code, each.offset)
            for topic in answer.topics
            for each in topic.partitions
        ]
        assert sorted(told) == [("none", 0, 3, -1), ("t", 0, 42, -1), ("t", 1, 0, 0)]


async def test_a_batch_of_the_next_transaction_while_the_last_one_ends(
    client, requests, monkeypatch, wait_until
):
    """Its markers wait for a partition that is being taken over. The producer is to try again."""
    find = FindCoordinatorRequest(key_type=1, coordinator_keys=["id"])
    await wait_until_answered(client, find, 4)
    begun = await wait_until_answered(client, InitProducerIdRequest("id", 60_000), 5)

    async def send(epoch, *numbers):
        parts = [
            ("t", each, requests.batch(
                [b"x"], producer_id=begun.producer_id, producer_epoch=epoch, base_sequence=0,
                is_transactional=True,
            ))
            for each in numbers
        ]  # fmt: skip
        return errors_in(await client.call(produce_request(*parts, transactional_id="id"), 12))

    epoch = begun.producer_epoch
    assert await send(epoch, 0, 1) == {"NONE"}
    hold, take_over = trio.Event(), keeper.take_over

    async def slowly(*arguments, **keywords):
        await hold.wait()
        return await take_over(*arguments, **keywords)

    monkeypatch.setattr(keeper, "take_over", slowly)
    logs = client.server.parts["LogManager"]
    log = logs.get("t", 1)
    log.go_offline("a test's wish")
    await wait_until(lambda: logs.get("t", 1) is not log)
    ended = await client.call(EndTxnRequest("id", begun.producer_id, epoch, True), 5)
    assert ended.error_code == 0
    assert await send(ended.producer_epoch, 0) == {"CONCURRENT_TRANSACTIONS"}
    hold.set()
    with trio.fail_after(10):
        while (found := await send(ended.producer_epoch, 0)) == {"CONCURRENT_TRANSACTIONS"}:
            await trio.sleep(0.01)
    assert found == {"NONE"}


async def wait_until_answered(client, request, version):
    """Asks until it is answered without an error."""
    with trio.fail_after(10):
        while errors_in(answer := await client.call(request, version)) != {"NONE"}:
            await trio.sleep(0.01)
    return answer
