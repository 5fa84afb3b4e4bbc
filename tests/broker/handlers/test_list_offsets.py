"""ListOffsets and OffsetForLeaderEpoch over real sockets."""

import struct

import pytest
import trio
from crc32c import crc32c

from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
)
from wire.kafka.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsTopic,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from wire.kafka.records.batch import build_batch
from wire.kafka.records.compression import Compression
from wire.kafka.records.record import Record

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = range(-1, -7, -1)


def timed(*timestamps, compression=Compression.NONE):
    first = timestamps[0]
    records = [Record(n, at - first, None, b"v", []) for n, at in enumerate(timestamps)]
    return build_batch(records, base_timestamp=first, compression=compression)


@pytest.fixture
async def filled(client):
    """Offsets 0-2 at 1000, 2000, 3000; 3-5 at 9000, 4000, 5000; 6 at 6000."""
    await client.produce("t", timed(1000, 2000, 3000))
    await client.produce("t", timed(9000, 4000, 5000, compression=Compression.GZIP))
    await client.produce("t", timed(6000))
    return client


async def test_every_version(filled):
    for version in range(1, 12):
        for timestamp, offset, at in ((LATEST, 7, -1), (EARLIEST, 0, -1), (2000, 1, 2000)):
            answer = await filled.list_offset("t", timestamp, version=version)
            assert (answer.error_code, answer.offset, answer.timestamp) == (0, offset, at)
            assert (answer.leader_epoch >= 0) == (version >= 4)


FOUND = [
        (0, 0, 1000), (1000, 0, 1000), (1001, 1, 2000), (3000, 2, 3000), (3001, 3, 9000),
        (9000, 3, 9000), (9001, -1, -1), (2**63 - 1, -1, -1),
        (LATEST, 7, -1), (EARLIEST, 0, -1), (EARLIEST_LOCAL, 0, -1), (MAX_TIMESTAMP, 3, 9000),
        (LATEST_TIERED, -1, -1), (PENDING_UPLOAD, -1, -1),
]  # fmt: skip


async def test_timestamps(filled):
    """(asked for, offset, timestamp) of FOUND."""
    for timestamp, offset, at in FOUND:
        answer = await filled.list_offset("t", timestamp)
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, offset, at), timestamp


async def test_an_empty_partition(client):
    found = {
        timestamp: (await client.list_offset("t", timestamp)).offset
        for timestamp in (LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, 0)
    }
    assert found == {LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: -1, EARLIEST_LOCAL: 0, 0: -1}


async def test_special_timestamps_have_their_first_version(client, name):
    for timestamp, version_min in (
        (MAX_TIMESTAMP, 7),
        (EARLIEST_LOCAL, 8),
        (LATEST_TIERED, 9),
        (PENDING_UPLOAD, 11),
    ):
        answer = await client.list_offset("t", timestamp, version=version_min - 1)
        assert name(answer.error_code) == "UNSUPPORTED_VERSION"
        assert (await client.list_offset("t", timestamp, version=version_min)).error_code == 0


async def test_timestamps_of_no_meaning(client, name):
    for timestamp in (-7, -(2**63)):
        answer = await client.list_offset("t", timestamp)
        assert name(answer.error_code) == "UNSUPPORTED_VERSION"


async def test_unknown_partitions_and_epochs(client, name):
    wanted = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[ListOffsetsPartition(partition_index=n, timestamp=-1) for n in ns],
            )
            for topic, ns in (("t", (0, 7)), ("missing", (0,)))
        ],
    )
    answer = await client.call(wanted, 11)
    told = [
        [ErrorCode(part.error_code).name for part in topic.partitions] for topic in answer.topics
    ]
    assert told == [["NONE", "UNKNOWN_TOPIC_OR_PARTITION"], ["UNKNOWN_TOPIC_OR_PARTITION"]]
    assert [part.offset for part in answer.topics[0].partitions] == [0, -1]
    epoch = (await client.list_offset("t", -1)).leader_epoch
    for claimed, expected in (
        (epoch, "NONE"), (epoch + 1, "UNKNOWN_LEADER_EPOCH"), (epoch - 1, "FENCED_LEADER_EPOCH"),
    ):  # fmt: skip
        if claimed >= 0:
            got = await client.list_offset("t", -1, current_leader_epoch=claimed)
            assert name(got.error_code) == expected


async def test_records_that_cannot_be_read_are_corrupt_not_a_failure(client, requests, name):
    """Garbage inside a batch whose own checksum is right: clients' are walked when they come, but
    what is in a log may be from before that, or damaged."""
    good = requests.batch([b"x"] * 100)
    bad = bytearray(good[:300] + b"\0" * (len(good) - 300))
    struct.pack_into(">I", bad, 17, crc32c(bytes(bad[21:])))
    assert name((await client.produce("t", bytes(bad))).error_code) == "INVALID_RECORD"
    await client.server.parts["LogManager"].get("t", 0).append(bytes(bad))
    answer = await client.list_offset("t", 1_700_000_000_050)  # in the garbage
    assert name(answer.error_code) == "CORRUPT_MESSAGE"
    answer = await client.list_offset("t", MAX_TIMESTAMP)
    assert name(answer.error_code) == "CORRUPT_MESSAGE"
    assert (await client.list_offset("t", LATEST)).offset == 100


async def epoch_end(client, epoch, *, current=-1, version=4, topic="t"):
    wanted = OffsetForLeaderPartition(partition=0, leader_epoch=epoch, current_leader_epoch=current)
    answer = await client.call(
        OffsetForLeaderEpochRequest(
            replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[wanted])]
        ),
        version,
    )
    return answer.topics[0].partitions[0]


async def test_offset_for_leader_epoch(start_server, name):
    for start in range(3):
        server = await start_server()
        client = await server.connect()
        if not start:
            await client.create_topic("t")
        await client.call(MetadataRequest(topics=None))
        await client.produce("t", [b"a", b"b"])
        if start < 2:
            await server.stop()
    last = (await client.list_offset("t", -1)).leader_epoch
    for version in (2, 3, 4):
        got = [
            (answer.error_code, answer.leader_epoch, answer.end_offset)
            for answer in [
                await epoch_end(client, epoch, version=version)
                for epoch in (last, last - 1, last - 2, last + 1, -1)
            ]
        ]
        assert got == [
            (0, last, 6), (0, last - 1, 4), (0, last - 2, 2), (0, -1, -1), (0, -1, -1),
        ]  # fmt: skip
    assert name((await epoch_end(client, 0, current=last + 5)).error_code) == "UNKNOWN_LEADER_EPOCH"
    assert name((await epoch_end(client, 0, current=last - 1)).error_code) == "FENCED_LEADER_EPOCH"
    missing = await epoch_end(client, 0, topic="missing")
    assert name(missing.error_code) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert (await client.list_offset("t", EARLIEST)).leader_epoch == last - 2


async def test_what_takes_longer_than_the_client_waits_is_told(filled, monkeypatch):
    """From version 10 on the client says how long it waits (KIP-1075)."""
    log = filled.server.parts["LogManager"].get("t", 0)

    async def slowly(_timestamp):
        await trio.sleep_forever()

    monkeypatch.setattr(log.reader, "offset_for_timestamp", slowly)
    wanted = [
        ListOffsetsPartition(partition_index=0, timestamp=1000),
        ListOffsetsPartition(partition_index=1, timestamp=LATEST),
    ]
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=wanted)], timeout_ms=50
    )
    answer = await filled.call(request, 11)
    errors = [one.error_code for one in answer.topics[0].partitions]
    assert errors == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE], "what needs no waiting is told"
