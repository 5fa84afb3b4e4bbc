"""DeleteRecords over real sockets, and retention and deletion down to the bookie."""

import pytest
import trio

from wire.kafka.errors import ErrorCode
from wire.kafka.messages import DeleteRecordsRequest, DeleteTopicsRequest
from wire.kafka.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsTopic,
    DeleteTopicState,
)


async def delete_records(client, topic, *offsets, version=2):
    """Of partitions 0, 1, ...: [(error's name, low watermark)]."""
    partitions = [
        DeleteRecordsPartition(partition_index=n, offset=offset) for n, offset in enumerate(offsets)
    ]
    answer = await client.call(
        DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name=topic, partitions=partitions)], timeout_ms=5000
        ),
        version,
    )
    [result] = answer.topics
    assert result.name == topic
    return [(ErrorCode(one.error_code).name, one.low_watermark) for one in result.partitions]


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_log_start_rises(client, requests, name, version):
    await client.produce("t", [b"a", b"b", b"c"])
    await client.produce("t", [b"d", b"e"])
    assert await delete_records(client, "t", 2, version=version) == [("NONE", 2)]
    assert name((await client.fetch("t", 1)).error_code) == "OFFSET_OUT_OF_RANGE"
    got = await client.fetch("t", 2)
    assert got.log_start_offset == 2
    assert next(one for one in requests.values(got.records) if one[0] >= 2) == (2, b"c")
    assert (await client.list_offset("t", -2)).offset == 2
    assert (await client.list_offset("t", 0)).offset == 2
    assert await delete_records(client, "t", 1) == [("NONE", 2)]
    assert await delete_records(client, "t", -1) == [("NONE", 5)]
    assert (await client.list_offset("t", -2)).offset == 5
    answer = await client.produce("t", [b"f"])
    assert (answer.base_offset, answer.log_start_offset) == (5, 5)


async def test_what_is_refused(client):
    await client.produce("t", [b"a"])
    assert await delete_records(client, "t", 2, -2, 0) == [
        ("OFFSET_OUT_OF_RANGE", -1),
        ("OFFSET_OUT_OF_RANGE", -1),
        ("UNKNOWN_TOPIC_OR_PARTITION", -1),
    ]
    assert await delete_records(client, "missing", 0) == [("UNKNOWN_TOPIC_OR_PARTITION", -1)]
    await client.create_topic("compacted", cleanup_policy="compact")
    assert await delete_records(client, "compacted", 0) == [("POLICY_VIOLATION", -1)]
    assert (await client.fetch("t", 0)).error_code == 0


async def test_an_empty_partition(client):
    assert await delete_records(client, "t", 0, -1) == [("NONE", 0), ("NONE", 0)]


async def test_it_survives_a_restart(start_server):
    server = await start_server()
    client = await server.connect()
    await client.create_topic("t")
    await client.produce("t", [b"a", b"b", b"c"])
    await delete_records(client, "t", 2)
    await server.stop()
    server = await start_server()
    client = await server.connect()
    assert (await client.list_offset("t", -2)).offset == 2
    assert (await client.list_offset("t", -1)).offset == 3
    await delete_records(client, "t", -1)
    assert (await client.produce("t", [b"d"])).base_offset == 3


# -- down to the bookie ----------------------------------------------------------------------------


async def gone(server, ledgers):
    """Collects until the bookie has none of these ledgers."""
    bookie = server.parts["Bookie"]
    with trio.fail_after(10):
        while set(bookie.list_ledgers()) & ledgers:
            await bookie.collect_garbage()
            await trio.sleep(0.01)


def ledgers_of(server, topic, partition=0):
    log = server.parts["LogManager"].get(topic, partition)
    return {info.ledger_id for info in log.chain.ledgers}


async def test_a_deleted_topics_ledgers_vanish(client, requests, name):
    server = client.server
    await client.produce("t", [b"a"])
    await client.produce("t", [b"b"], partition=1)
    await client.create_topic("kept")
    await client.produce("kept", [b"c"])
    doomed = ledgers_of(server, "t") | ledgers_of(server, "t", 1)
    kept = ledgers_of(server, "kept")
    assert len(doomed) == 2
    assert (await server.parts["Bookie"].collect_garbage()).deleted_ledgers == 0
    answer = await client.call(
        DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=5000), 6
    )
    assert answer.responses[0].error_code == 0
    await gone(server, doomed)
    assert kept <= set(server.parts["Bookie"].list_ledgers())
    assert requests.values((await client.fetch("kept", 0)).records) == [(0, b"c")]
    assert name((await client.fetch("t", 0)).error_code) == "UNKNOWN_TOPIC_OR_PARTITION"
    # The same name again is another topic.
    await client.create_topic("t", 1)
    assert (await client.list_offset("t", -1)).offset == 0
    assert (await client.produce("t", [b"new"])).base_offset == 0


async def test_a_topic_is_deleted_while_it_is_written_to(client, requests):
    server = client.server
    writer = await server.connect()
    stop = trio.Event()
    codes = set()

    async def write():
        while not stop.is_set():
            codes.add(ErrorCode((await writer.produce("t", [b"x" * 1000])).error_code).name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        for _ in range(5):
            await trio.sleep(0.01)
            doomed = ledgers_of(server, "t")
            await client.call(
                DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=5000), 6
            )
            await gone(server, doomed)
            await client.create_topic("t", 2)
        stop.set()
    assert codes <= {"NONE", "UNKNOWN_TOPIC_OR_PARTITION", "NOT_LEADER_OR_FOLLOWER"}
    assert "NONE" in codes
    assert (await client.fetch("t", 0)).error_code == 0


async def test_retention_takes_force_soon(start_server, wait_until):
    """Short times: what is too old goes although no ledger was full."""
    server = await start_server({"log.retention.check.interval.ms": "20"})
    client = await server.connect()
    await client.create_topic("t", retention_ms=-1, segment_ms=30)
    for n in range(3):
        await client.produce("t", [n])  # timestamps of 2023
    await trio.sleep(0.1)
    assert (await client.list_offset("t", -2)).offset == 0
    doomed = ledgers_of(server, "t")
    await client.set_config("t", retention_ms=1000)

    async def all_gone():
        return (await client.list_offset("t", -2)).offset == 3

    await wait_until(all_gone)
    await gone(server, doomed)
    assert (await client.produce("t", [b"x"])).base_offset == 3


async def test_retention_by_size(start_server, wait_until):
    server = await start_server({"log.retention.check.interval.ms": "20"})
    client = await server.connect()
    await client.create_topic("t", retention_ms=-1, segment_bytes=1 << 20)
    for _ in range(9):
        await client.produce("t", [b"x" * 500_000])
    await client.set_config("t", retention_bytes=1 << 20)

    async def half_gone():
        return (await client.list_offset("t", -2)).offset >= 4

    await wait_until(half_gone)
    start = (await client.list_offset("t", -2)).offset
    assert start <= 7  # never below the wanted size
    assert (await client.fetch("t", start)).error_code == 0


async def test_what_takes_longer_than_the_client_waits_is_told_and_goes_on(
    client, monkeypatch, wait_until
):
    """The time-out was not looked at: a metadata store that stalls kept the client for ever."""
    await client.produce("t", [b"a", b"b"])
    log = client.server.parts["LogManager"].get("t", 0)
    keeper = client.server.parts["LogManager"]._find("t", 0).keeper
    may_go_on = trio.Event()
    raise_start = keeper._raise_start

    async def slowly(offset):
        await may_go_on.wait()
        await raise_start(offset)

    monkeypatch.setattr(keeper, "_raise_start", slowly)
    asked = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(0, 1)])
    answer = await client.call(DeleteRecordsRequest(topics=[asked], timeout_ms=50), 2)
    result = answer.topics[0].partitions[0]
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert log.log_start_offset == 0
    may_go_on.set()
    await wait_until(lambda: log.log_start_offset == 1)
