"""Produce over real sockets: offsets, every refusal's code, order, acks, idempotence, settings."""

import struct
import uuid

import pytest
import trio
from crc32c import crc32c

from wire.kafka.errors import ErrorCode
from wire.kafka.messages import FindCoordinatorRequest, InitProducerIdRequest, MetadataRequest
from wire.kafka.records.batch import build_batch, parse_header, scan_batches
from wire.kafka.records.compression import Compression
from wire.kafka.records.record import Record

NOW = 1_700_000_000_000


def corrupted(batch, at, value):
    """The batch with one byte changed, its checksum left as it was."""
    changed = bytearray(batch)
    changed[at] = value
    return bytes(changed)


def resealed(batch, **fields):
    """The batch with header fields changed and a good checksum."""
    places = {
        "attributes": (">h", 21),
        "last_offset_delta": (">i", 23),
        "base_timestamp": (">q", 27),
        "max_timestamp": (">q", 35),
        "producer_id": (">q", 43),
        "producer_epoch": (">h", 51),
        "base_sequence": (">i", 53),
        "record_count": (">i", 57),
    }
    changed = bytearray(batch)
    for name, value in fields.items():
        layout, at = places[name]
        struct.pack_into(layout, changed, at, value)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


async def test_every_version_appends_and_tells_where(client, requests):
    topic_id = await client.create_topic("versions")
    for offset, version in enumerate(range(3, 14)):
        topic = topic_id if version >= 13 else "versions"
        answer = await client.call(requests.produce((topic, 0, [b"%d" % version])), version)
        [result] = answer.responses
        assert (result.topic_id if version >= 13 else result.name) == topic
        [partition] = result.partition_responses
        assert (partition.index, partition.error_code) == (0, 0)
        assert partition.base_offset == offset
        assert partition.log_append_time_ms == -1
        assert partition.log_start_offset == (0 if version >= 5 else -1)
        assert answer.throttle_time_ms == 0
    got = await client.fetch("versions", 0)
    assert requests.values(got.records) == [(n, b"%d" % (n + 3)) for n in range(11)]


async def test_several_topics_and_partitions_in_one_request(client, requests):
    await client.create_topic("u", 3)
    answer = await client.call(
        requests.produce(
            ("t", 0, [b"a"]), ("t", 1, [b"b", b"c"]), ("u", 2, [b"d"]), ("u", 3, [b"e"]),
            ("missing", 0, [b"f"]), ("t", 0, [b"g"]),
        ),
        9,
    )  # fmt: skip
    told = [
        (topic.name, part.index, ErrorCode(part.error_code).name, part.base_offset)
        for topic in answer.responses
        for part in topic.partition_responses
    ]
    assert told == [
        ("t", 0, "NONE", 0),
        ("t", 1, "NONE", 0),
        ("u", 2, "NONE", 0),
        ("u", 3, "UNKNOWN_TOPIC_OR_PARTITION", -1),
        ("missing", 0, "UNKNOWN_TOPIC_OR_PARTITION", -1),
        ("t", 0, "NONE", 1),
    ]
    assert requests.values((await client.fetch("t", 0)).records) == [(0, b"a"), (1, b"g")]
    assert requests.values((await client.fetch("t", 0, partition=1)).records) == [
        (0, b"b"),
        (1, b"c"),
    ]


async def test_unknown_topic_id(client, requests):
    answer = await client.call(requests.produce((uuid.UUID(int=77), 0, [b"x"])), 13)
    [result] = answer.responses[0].partition_responses
    assert ErrorCode(result.error_code) is ErrorCode.UNKNOWN_TOPIC_ID
    assert answer.responses[0].topic_id == uuid.UUID(int=77)


async def test_a_request_for_nothing_is_answered(client, requests):
    assert (await client.call(requests.produce(), 9)).responses == []


async def test_acks_that_are_answered(client):
    for acks in (1, -1):
        offset = (await client.produce("t", [b"x"], acks=acks)).base_offset
        assert (await client.fetch("t", 0)).high_watermark == offset + 1


async def test_other_acks_are_refused(client, name):
    for acks in (2, -2, 127):
        answer = await client.produce("t", [b"x"], acks=acks)
        assert name(answer.error_code) == "INVALID_REQUIRED_ACKS"
        assert (await client.fetch("t", 0)).high_watermark == 0


async def test_acks_0_gets_no_answer(client, requests):
    frame = client.frame(requests.produce(("t", 0, [b"a"]), acks=0), 9)
    client._sent.pop()
    await client.stream.send_all(frame)
    assert (await client.produce("t", [b"b"])).base_offset == 1
    assert requests.values((await client.fetch("t", 0)).records) == [(0, b"a"), (1, b"b")]


async def test_acks_0_closes_on_an_error(client, requests):
    for bad in (("missing", 0, [b"x"]), ("t", 9, [b"x"]), ("t", 0, b"no batch at all")):
        other = await client.server.connect()
        await other.send(requests.produce(bad, acks=0), version=9)
        assert await other.is_closed()
    assert (await client.produce("t", [b"y"])).base_offset == 0


# -- refusals ------------------------------------------------------------------------------------

GOOD_VALUES = [b"some", b"values"]
REFUSED = {
    "nothing": (lambda good: b"", "INVALID_RECORD"),
    "null": (lambda good: None, "INVALID_RECORD"),
    "short": (lambda good: good[:40], "INVALID_RECORD"),
    "truncated": (lambda good: good[:-1], "INVALID_RECORD"),
    "two batches": (lambda good: good + good, "INVALID_RECORD"),
    "checksum": (lambda good: corrupted(good, len(good) - 1, 0x5A), "CORRUPT_MESSAGE"),
    "magic 1": (lambda good: corrupted(good, 16, 1), "INVALID_RECORD"),
    "magic 0": (lambda good: corrupted(good, 16, 0), "INVALID_RECORD"),
    "magic 3": (lambda good: corrupted(good, 16, 3), "CORRUPT_MESSAGE"),
    "negative length": (lambda good: corrupted(good, 8, 0xFF), "CORRUPT_MESSAGE"),
    "too few records": (lambda good: resealed(good, record_count=1), "INVALID_RECORD"),
    "too many records": (lambda good: resealed(good, record_count=3), "INVALID_RECORD"),
    "no records": (
        lambda good: resealed(good[:61], record_count=0, last_offset_delta=-1), "INVALID_RECORD",
    ),
    "count and delta larger than what is there": (
        lambda good: resealed(good, record_count=9, last_offset_delta=8), "INVALID_RECORD",
    ),
    "negative delta": (lambda good: resealed(good, last_offset_delta=-5), "INVALID_RECORD"),
    "control": (lambda good: resealed(good, attributes=0x20), "INVALID_RECORD"),
    "producer id without epoch": (
        lambda good: resealed(good, producer_id=4, base_sequence=0), "INVALID_RECORD",
    ),
    "producer id without sequence": (
        lambda good: resealed(good, producer_id=4, producer_epoch=0), "INVALID_RECORD",
    ),
    "a codec that is none": (
        lambda good: resealed(good, attributes=5), "UNSUPPORTED_COMPRESSION_TYPE",
    ),
    "append time of the producer's own": (
        lambda good: resealed(good, attributes=8), "INVALID_TIMESTAMP",
    ),
    "a transaction without an id": (
        lambda good: resealed(
            good, attributes=0x10, producer_id=4, producer_epoch=0, base_sequence=0
        ),
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    ),
    "from the future": (
        lambda good: resealed(good, base_timestamp=1 << 60), "INVALID_TIMESTAMP",
    ),
}  # fmt: skip


@pytest.mark.parametrize("version", [3, 13])
async def test_bad_batches_have_kafkas_codes(client, requests, name, version):
    """Each refused for itself, told by code and words, and nothing of it is in the log."""
    topic_id = await client.create_topic("bad")
    topic = topic_id if version >= 13 else "bad"
    good = requests.batch(GOOD_VALUES)
    for what, (make, expected) in REFUSED.items():
        answer = await client.call(requests.produce((topic, 0, make(good))), version)
        [result] = answer.responses[0].partition_responses
        assert name(result.error_code) == expected, what
        assert result.base_offset == -1, what
        if version >= 8:
            assert result.error_message, what
    result = await client.produce("bad", good)
    assert (result.error_code, result.base_offset) == (0, 0)


async def test_one_bad_partition_spoils_no_other(client, requests, name):
    answer = await client.call(requests.produce(("t", 0, b"\0" * 100), ("t", 1, [b"fine"])), 9)
    first, second = answer.responses[0].partition_responses
    assert name(first.error_code) == "INVALID_RECORD"
    assert (second.error_code, second.base_offset) == (0, 0)


async def test_a_record_length_without_end_is_refused_at_once(client, requests, name):
    """A varint of a megabyte: decoded as a number it would take minutes."""
    batch = requests.batch([b"x"])[:61] + b"\xff" * 900_000
    batch = bytearray(batch)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    with trio.fail_after(2):
        answer = await client.produce("t", resealed(batch))
    assert name(answer.error_code) == "INVALID_RECORD"


async def test_too_large(client, requests, name):
    await client.create_topic("small", max_message_bytes=500)
    answer = await client.produce("small", [b"x" * 1000])
    assert name(answer.error_code) == "MESSAGE_TOO_LARGE"
    assert (await client.produce("small", [b"x" * 100])).error_code == 0


async def test_clients_may_not_write_to_internal_topics(client, requests, name):
    await client.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    answer = await client.produce("__consumer_offsets", [b"not a commit"])
    assert name(answer.error_code) == "INVALID_TOPIC_EXCEPTION"


async def test_zstd_needs_version_7(client, requests, name):
    batch = requests.batch([b"x" * 100], compression=Compression.ZSTD)
    answer = await client.produce("t", batch, version=6)
    assert name(answer.error_code) == "UNSUPPORTED_COMPRESSION_TYPE"
    assert (await client.produce("t", batch, version=7)).error_code == 0


# -- order ---------------------------------------------------------------------------------------


async def test_pipelined_requests_are_appended_and_answered_in_order(client, requests):
    frames = b"".join(client.frame(requests.produce(("t", 0, [b"%d" % n])), 9) for n in range(300))
    await client.stream.send_all(frames)
    for n in range(300):
        answer = await client.receive()
        assert answer.responses[0].partition_responses[0].base_offset == n
    got = await client.fetch("t", 0)
    assert requests.values(got.records) == [(n, b"%d" % n) for n in range(300)]


async def test_an_error_waits_its_turn(client, requests):
    await client.send(
        requests.produce(("t", 0, [b"a"])),
        requests.produce(("missing", 0, [b"b"])),
        requests.produce(("t", 0, [b"c"])),
        version=9,
    )
    codes = [(await client.receive()).responses[0].partition_responses[0] for _ in range(3)]
    assert [(one.error_code, one.base_offset) for one in codes] == [(0, 0), (3, -1), (0, 1)]


async def test_produce_and_what_follows_on_one_connection(client, requests):
    """An answer that is there at once waits for those before it."""
    await client.send(requests.produce(("t", 0, [b"a"])), version=9)
    await client.send(MetadataRequest(topics=[]), version=12)
    await client.send(requests.fetch(("t", 0, 0)), version=12)
    assert (await client.receive()).responses[0].partition_responses[0].base_offset == 0
    assert (await client.receive()).brokers
    await client.receive()


# -- idempotence ---------------------------------------------------------------------------------


async def new_producer(client):
    answer = await client.call(InitProducerIdRequest(transactional_id=None), 4)
    assert answer.error_code == 0
    return {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}


async def test_a_repeated_batch_is_answered_with_its_first_offset(client, requests, name):
    producer = await new_producer(client)
    batches = [requests.batch([b"%d" % n, b"x"], base_sequence=2 * n, **producer) for n in range(7)]
    for n, batch in enumerate(batches):
        assert (await client.produce("t", batch)).base_offset == 2 * n
    for n in range(2, 7):  # the last five
        answer = await client.produce("t", batches[n])
        assert (answer.error_code, answer.base_offset) == (0, 2 * n)
    answer = await client.produce("t", batches[0])
    assert name(answer.error_code) == "DUPLICATE_SEQUENCE_NUMBER"
    gap = requests.batch([b"gap"], base_sequence=20, **producer)
    assert name((await client.produce("t", gap)).error_code) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    old = requests.batch([b"old"], base_sequence=0, **{**producer, "producer_epoch": 4})
    assert (await client.produce("t", old)).base_offset == 14
    fenced = requests.batch([b"late"], base_sequence=14, **producer)
    assert name((await client.produce("t", fenced)).error_code) == "INVALID_PRODUCER_EPOCH"
    assert (await client.fetch("t", 0)).high_watermark == 15


async def test_a_repeat_in_the_same_burst_harms_no_neighbour(client, requests):
    """A, B, A, C, all of which are queued in one turn, and travel in one entry."""
    producer = await new_producer(client)
    await client.produce("t", [b"first"])
    a, b, c = (requests.batch([n], base_sequence=n, **producer) for n in range(3))
    for batches, expected in (((a, b, a), [1, 2, 1]), ((b, c, b), [2, 3, 2])):
        await client.send(*(requests.produce(("t", 0, one)) for one in batches), version=9)
        answers = [(await client.receive()).responses[0].partition_responses[0] for _ in batches]
        assert [one.error_code for one in answers] == [0, 0, 0]
        assert [one.base_offset for one in answers] == expected
        # Acknowledged is readable, at once.
        got = await client.fetch("t", max(expected))
        assert got.high_watermark == max(expected) + 1
        assert requests.values(got.records)[-1][0] == max(expected)
    await client.produce("t", [b"last"])
    expected = [(0, b"first"), (1, b"0"), (2, b"1"), (3, b"2"), (4, b"last")]
    for offset in range(5):
        found = requests.values((await client.fetch("t", offset)).records)
        assert [one for one in found if one[0] >= offset] == expected[offset:]


@pytest.mark.parametrize("clean", [True, False])
async def test_a_repeat_after_a_restart(start_server, requests, clean):
    """The producers' windows survive a stop, with and without a closed ledger."""
    server = await start_server()
    client = await server.connect()
    await client.create_topic("t")
    producer = await new_producer(client)
    batches = [requests.batch([n], base_sequence=n, **producer) for n in range(4)]
    for n, batch in enumerate(batches):
        assert (await client.produce("t", batch)).base_offset == n
    if not clean:  # ledgers stay open: the next start recovers them

        async def leave_open():
            pass

        for held in server.parts["LogManager"]._every():
            held.keeper.close = leave_open
    await server.stop()
    server = await start_server()
    client = await server.connect()
    await client.call(MetadataRequest(topics=None))
    for n in (3, 1, 0):
        answer = await client.produce("t", batches[n])
        assert (answer.error_code, answer.base_offset) == (0, n)
    following = requests.batch([b"4"], base_sequence=4, **producer)
    assert (await client.produce("t", following)).base_offset == 4
    again = await new_producer(client)
    assert again["producer_id"] != producer["producer_id"]


# -- settings take force ---------------------------------------------------------------------------


async def test_max_message_bytes_takes_force(client, name):
    value = [b"x" * 600]
    assert (await client.produce("t", value)).error_code == 0
    await client.set_config("t", max_message_bytes=300)
    assert name((await client.produce("t", value)).error_code) == "MESSAGE_TOO_LARGE"
    await client.set_config("t", max_message_bytes=3000)
    assert (await client.produce("t", value)).error_code == 0


async def test_the_brokers_default_takes_force(client, name):
    await client.set_config("", resource_type=4, message_max_bytes=300)
    answer = await client.produce("t", [b"x" * 600])
    assert name(answer.error_code) == "MESSAGE_TOO_LARGE"


async def test_compression_type_recompresses(client, requests):
    for codec in ("zstd", "gzip", "lz4", "snappy", "uncompressed"):
        await client.create_topic(f"c-{codec}", compression_type=codec)
        sent = Compression.NONE if codec == "zstd" else Compression.ZSTD
        values = [b"value %d " % n * 20 for n in range(20)]
        answer = await client.produce(f"c-{codec}", requests.batch(values, compression=sent))
        assert (answer.error_code, answer.base_offset) == (0, 0)
        answer = await client.produce(f"c-{codec}", requests.batch(values, compression=sent))
        assert answer.base_offset == 20
        got = await client.fetch(f"c-{codec}", 0)
        wanted = Compression.by_name("none" if codec == "uncompressed" else codec)
        assert [header.compression for header in scan_batches(got.records)] == [wanted, wanted]
        assert [value for _, value in requests.values(got.records)] == values * 2
        header = parse_header(got.records)
        assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW + 19)


async def test_what_recompression_makes_too_large_is_refused(client, requests, name):
    await client.create_topic("c", compression_type="uncompressed", max_message_bytes=2000)
    bomb = requests.batch([b"\0" * 500_000], compression=Compression.ZSTD)
    assert len(bomb) < 2000
    assert name((await client.produce("c", bomb)).error_code) == "MESSAGE_TOO_LARGE"
    assert (await client.fetch("c", 0)).high_watermark == 0


async def test_a_compressed_batch_that_cannot_be_read(client, requests, name):
    await client.create_topic("c", compression_type="gzip")
    good = requests.batch([b"abc" * 100], compression=Compression.ZSTD)
    broken = resealed(good[:-8] + b"\0" * 8)
    assert name((await client.produce("c", broken)).error_code) == "CORRUPT_MESSAGE"


async def test_log_append_time(client, requests):
    await client.create_topic("l", message_timestamp_type="LogAppendTime")
    answer = await client.produce("l", [b"a", b"b"])
    assert answer.log_append_time_ms > NOW
    got = await client.fetch("l", 0)
    header = parse_header(got.records)
    assert header.max_timestamp == answer.log_append_time_ms
    assert header.attributes & 0x08
    assert requests.values(got.records) == [(0, b"a"), (1, b"b")]
    found = await client.list_offset("l", answer.log_append_time_ms)
    assert (found.offset, found.timestamp) == (0, answer.log_append_time_ms)


async def test_log_append_time_of_a_repeat_is_the_first(client, requests):
    await client.create_topic("l", message_timestamp_type="LogAppendTime")
    producer = await new_producer(client)
    batch = requests.batch([b"a"], base_sequence=0, **producer)
    first = await client.produce("l", batch)
    again = await client.produce("l", batch)
    assert (again.base_offset, again.log_append_time_ms) == (0, first.log_append_time_ms)


async def test_timestamps_out_of_bounds(client, requests, name):
    await client.create_topic("old", message_timestamp_before_max_ms=1000)
    assert name((await client.produce("old", [b"x"])).error_code) == "INVALID_TIMESTAMP"
    await client.create_topic("any", message_timestamp_after_max_ms=(1 << 62))
    late = requests.batch([b"x"], base_timestamp=1 << 60)
    assert (await client.produce("any", late)).error_code == 0


async def test_compacted_topics_want_keys(client, requests, name):
    await client.create_topic("k", cleanup_policy="compact")
    assert name((await client.produce("k", [b"no key"])).error_code) == "INVALID_RECORD"
    assert (await client.produce("k", [(b"key", b"value")])).error_code == 0
    gaps = requests.batch([Record(0, 0, b"a", b"", []), Record(2, 0, b"b", b"", [])])
    assert name((await client.produce("k", gaps)).error_code) == "INVALID_RECORD"


async def test_a_batch_of_many_megabytes_spans_entries(client, requests):
    await client.create_topic("big", max_message_bytes=40_000_000)
    value = bytes(range(256)) * 50_000  # 12.8 MB: three entries
    await client.produce("big", [b"before"])
    assert (await client.produce("big", [value])).base_offset == 1
    await client.produce("big", [b"after"])
    got = await client.fetch("big", 1, partition_max_bytes=1000)
    assert requests.values(got.records) == [(1, value)]
    assert requests.values((await client.fetch("big", 2)).records) == [(2, b"after")]


def zipped(value, count=1, **options):
    """A gzip batch of `count` records with that value, which are much longer unpacked."""
    records = [Record(n, 0, b"k", value, []) for n in range(count)]
    return build_batch(records, compression=Compression.GZIP, **options)


async def test_what_is_too_long_for_the_loop_keeps_its_place(client, requests):
    """32 KiB that unpack to 32 MiB are checked on a worker thread; what one connection sends to
    the same partition behind it gets the offsets behind it, and so do sequence numbers."""
    checks = client.server.parts["LogManager"].checks
    batches = []
    for number in range(8):
        options = {"producer_id": 7, "producer_epoch": 0, "base_sequence": number}
        value = bytes(32 << 20) if number in (2, 3) else b"%d" % number
        make = zipped if number in (2, 3) else _one
        batches.append(make(value, **options))
    before = checks.threaded_count
    await client.send(*(requests.produce(("t", 0, data)) for data in batches), version=9)
    results = [
        (await client.receive()).responses[0].partition_responses[0] for _ in range(len(batches))
    ]
    assert [(result.error_code, result.base_offset) for result in results] == [
        (0, number) for number in range(8)
    ]
    assert checks.threaded_count - before == 2
    assert checks.delayed_count >= 1
    stored = scan_batches((await client.fetch("t", 0)).records)
    assert [header.base_sequence for header in stored] == list(range(8))


def _one(value, **options):
    return build_batch([Record(0, 0, None, value, [])], **options)


async def test_a_bomb_is_refused_and_nobody_else(client, requests, name):
    """130 KB that unpack to more than a batch may have: MESSAGE_TOO_LARGE, with a reason. Bad and
    good batches behind it are answered as if it had not been there."""
    bomb = zipped(bytes(32 << 20), 5)
    await client.send(
        requests.produce(("t", 0, bomb)),
        requests.produce(("t", 0, b"\0" * 100)),
        requests.produce(("t", 0, [b"good"])),
        version=9,
    )
    told = []
    for _ in range(3):
        [result] = (await client.receive()).responses[0].partition_responses
        told.append((name(result.error_code), result.base_offset))
        if result.error_code:
            assert result.error_message
    assert told == [("MESSAGE_TOO_LARGE", -1), ("INVALID_RECORD", -1), ("NONE", 0)]


async def test_compression_of_the_topic_stores_what_was_numbered(client, name):
    """A batch whose records are fewer than it says is refused, not packed anew and numbered."""
    await client.create_topic("packed", compression_type="zstd")
    records = [Record(n, n, None, b"v", []) for n in range(40)]
    good = build_batch(records)
    lying = build_batch([*records[:-1], Record(99, 0, None, b"v", [])])
    assert name((await client.produce("packed", lying)).error_code) == "INVALID_RECORD"
    for _ in range(2):
        assert (await client.produce("packed", good)).error_code == 0
    headers = scan_batches((await client.fetch("packed", 0)).records)
    assert [(header.base_offset, header.record_count) for header in headers] == [(0, 40), (40, 40)]
    assert {header.compression for header in headers} == {Compression.ZSTD}
