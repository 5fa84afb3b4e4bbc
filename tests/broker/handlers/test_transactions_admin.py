"""What operators do about transactions, by the requests that Kafka's tools send, of a real server:
the way of `kafka-transactions find-hanging` and `abort`, and of `force-terminate`, which is also
that of `Admin.fenceProducers`."""

import pytest
import trio

from wire.kafka import messages as m
from wire.kafka.errors import ErrorCode as E
from wire.kafka.messages.configs import (
    IncrementalAlterConfigsRequestAlterableConfig as AlterableConfig,
)
from wire.kafka.messages.configs import (
    IncrementalAlterConfigsRequestAlterConfigsResource as AlterConfigsResource,
)
from wire.kafka.messages.transactions import (
    EndTxnRequest,
    InitProducerIdRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from wire.kafka.messages.transactions_admin import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    ListTransactionsRequest,
    TopicRequest,
)

VERIFICATION = "transaction.partition.verification.enable"
BROKER = 4  # configuration resource type


@pytest.fixture
async def client(start_server):
    server = await start_server({VERIFICATION: "false"})
    client = await server.connect()
    await client.create_topic("t", 2)
    request = m.FindCoordinatorRequest(key_type=1, coordinator_keys=["id"])
    with trio.fail_after(10):  # it makes the topic
        while (await client.call(request, 4)).coordinators[0].error_code:
            await trio.sleep(0.01)
    return client


@pytest.fixture
def producing(client, requests):
    async def produce(producer, *, sequence=0, version=11, partition=0, value=b"x"):
        batch = requests.batch(
            [value],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
            is_transactional=True,
        )
        request = requests.produce(("t", partition, batch), transactional_id="id")
        answer = await client.call(request, version)
        return answer.responses[0].partition_responses[0].error_code

    return produce


async def begin(client, name="id", *, is_again=False):
    """As producers and tools do: until it is loaded, and nothing is on its way."""
    codes = set()
    with trio.fail_after(10):
        while True:
            answer = await client.call(InitProducerIdRequest(name, 60_000), 5)
            codes.add(answer.error_code)
            if answer.error_code not in (
                E.CONCURRENT_TRANSACTIONS, E.COORDINATOR_LOAD_IN_PROGRESS,
            ):  # fmt: skip
                break
            await trio.sleep(0.01)
    assert answer.error_code == E.NONE
    assert (E.CONCURRENT_TRANSACTIONS in codes) == is_again
    return answer.producer_id, answer.producer_epoch


async def open_in(client, partition=0):
    """DescribeProducers: (producer id, epoch, coordinator epoch) of open transactions, by where
    they began."""
    request = DescribeProducersRequest([TopicRequest("t", [partition])])
    [answer] = (await client.call(request, 0)).topics[0].partitions
    assert answer.error_code == E.NONE
    return {
        each.current_txn_start_offset: (
            each.producer_id, each.producer_epoch, each.coordinator_epoch,
        )
        for each in answer.active_producers
        if each.current_txn_start_offset >= 0
    }  # fmt: skip


async def known_of(client, producer_id):
    """(state, partitions) of the coordinator's transaction of that producer."""
    listed = await client.call(ListTransactionsRequest(producer_id_filters=[producer_id]), 2)
    [found] = listed.transaction_states
    request = DescribeTransactionsRequest([found.transactional_id])
    [described] = (await client.call(request, 0)).transaction_states
    assert described.producer_id == producer_id
    partitions = {(each.topic, n) for each in described.topics for n in each.partitions}
    return described.transaction_state, partitions


async def verify(client, value):
    resource = AlterConfigsResource(BROKER, "", [AlterableConfig(VERIFICATION, 0, value)])
    answer = await client.call(m.IncrementalAlterConfigsRequest([resource]), 1)
    assert answer.responses[0].error_code == E.NONE


async def test_admin_find_hanging_and_abort(client, producing, requests):
    producer = await begin(client)
    assert await producing(producer) == E.NONE, "nobody verifies: nobody will ever end it"
    found = await open_in(client)
    assert found == {0: (*producer, -1)}
    state, partitions = await known_of(client, producer[0])
    assert (state, partitions) == ("Empty", set()), "open there, and not known here: hanging"
    assert requests.values((await client.fetch("t", 0, isolation_level=1)).records) == []

    # Version 1 has no transaction version, which is 0 then, and the epoch is the producer's own.
    marker = WritableTxnMarker(*producer, False, [WritableTxnMarkerTopic("t", [0])], 0)
    answer = await client.call(WriteTxnMarkersRequest([marker]), 1)
    assert answer.markers[0].topics[0].partitions[0].error_code == E.NONE
    assert await open_in(client) == {}
    data = await client.fetch("t", 0, isolation_level=1)
    assert data.last_stable_offset == data.high_watermark == 2
    aborted = [(each.producer_id, each.first_offset) for each in data.aborted_transactions]
    assert aborted == [(producer[0], 0)]

    # And it cannot hang with what is so by default.
    await verify(client, "true")
    assert await producing(producer, sequence=1) == E.TRANSACTION_ABORTABLE
    assert await producing(producer, sequence=1, version=10) == E.INVALID_TXN_STATE
    assert await open_in(client) == {}


async def test_admin_fence_and_force_terminate(client, producing):
    producer = await begin(client)
    assert await producing(producer, version=12) == E.NONE
    assert (await known_of(client, producer[0])) == ("Ongoing", {("t", 0)})
    newer = await begin(client, is_again=True)
    assert newer[0] == producer[0]
    assert newer[1] > producer[1]
    assert (await known_of(client, producer[0])) == ("Empty", set())
    assert await open_in(client) == {}
    data = await client.fetch("t", 0, isolation_level=1)
    assert data.last_stable_offset == data.high_watermark == 2
    assert [each.first_offset for each in data.aborted_transactions] == [0]
    assert await producing(producer, sequence=1, version=12) == E.INVALID_PRODUCER_EPOCH
    answer = await client.call(EndTxnRequest("id", *producer, True), 5)
    assert answer.error_code == E.PRODUCER_FENCED
    # Whoever fenced it may go on; with nothing open there is nothing to wait for.
    assert await producing(newer, version=12) == E.NONE
    answer = await client.call(EndTxnRequest("id", *newer, True), 5)
    assert answer.error_code == E.NONE
    await trio.sleep(0.2)
    assert (await begin(client))[1] == answer.producer_epoch + 1


async def test_the_longest_id(client, requests):
    """As long as a string of the protocol can be, through every request that names it."""
    name = "x" * 32_767
    request = m.FindCoordinatorRequest(key_type=1, coordinator_keys=[name])
    assert (await client.call(request, 4)).coordinators[0].error_code == E.NONE
    producer = await begin(client, name)
    batch = requests.batch(
        [b"x"],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=0,
        is_transactional=True,
    )
    produced = await client.call(requests.produce(("t", 0, batch), transactional_id=name), 12)
    assert produced.responses[0].partition_responses[0].error_code == E.NONE
    assert await known_of(client, producer[0]) == ("Ongoing", {("t", 0)})
    answer = await client.call(EndTxnRequest(name, *producer, True), 5)
    assert answer.error_code == E.NONE
    listed = await client.call(ListTransactionsRequest(transactional_id_pattern="x+"), 2)
    assert [each.transactional_id for each in listed.transaction_states] == [name]
    assert requests.values((await client.fetch("t", 0, isolation_level=0)).records)[0] == (0, b"x")
