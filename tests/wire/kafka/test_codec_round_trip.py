"""Every message and version: what was encoded is what is decoded, whatever holds the bytes."""

import random
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wire.kafka import codec
from wire.kafka.compiling import carries_records
from wire.kafka.errors import EncodeError, WireError
from wire.kafka.message import REQUESTS, RESPONSES, ZERO_UUID
from wire.kafka.messages import (
    ApiVersionsResponse,
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    MetadataResponse,
    ProduceRequest,
)
from wire.kafka.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchTopic,
    LeaderIdAndEpoch,
    PartitionData,
)
from wire.kafka.messages.produce import PartitionProduceData, TopicProduceData

CLASSES = [*REQUESTS.values(), *RESPONSES.values()]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
@settings(max_examples=20)
@given(data=st.data())
def test_round_trip(cls, message_maker, as_plain, data):
    version = data.draw(st.sampled_from(list(cls.INFO.versions)))
    rng = data.draw(st.randoms(use_true_random=False))
    message = message_maker().make(cls, version, rng)
    encoded = codec.encode(message, version)
    parts = codec.encode_after(b"", message, version)
    assert b"".join(parts) == encoded
    for buffer in (encoded, bytearray(encoded), memoryview(encoded)):
        decoded, end = codec.decode(cls, version, buffer)
        assert end == len(encoded)
        assert as_plain(decoded) == as_plain(message)
    shifted, end = codec.decode(cls, version, b"head" + encoded + b"tail", 4)
    assert end == len(encoded) + 4
    assert as_plain(shifted) == as_plain(message)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_defaults_of_every_version(cls):
    for version in cls.INFO.versions:
        encoded = codec.encode(cls(), version)
        assert codec.decode(cls, version, encoded) == (cls(), len(encoded))


def test_messages_do_not_share_what_they_hold():
    first, second = FetchRequest(), FetchRequest()
    first.topics.append(FetchTopic())
    assert second.topics == []
    body = codec.encode(FetchRequest(), 4)
    one, two = codec.decode(FetchRequest, 4, body)[0], codec.decode(FetchRequest, 4, body)[0]
    one.topics.append(FetchTopic())
    one.forgotten_topics_data.append(None)  # not in version 4: a default, but its own
    assert two.topics == []
    assert two.forgotten_topics_data == []


def test_messages_have_slots():
    with pytest.raises(AttributeError):
        ProduceRequest().unknown = 1
    with pytest.raises(AttributeError):
        PartitionProduceData().unknown = 1


def test_what_a_version_does_not_carry_is_left_out():
    request = ProduceRequest(topic_data=[TopicProduceData(name="topic", topic_id=ZERO_UUID)])
    decoded, _ = codec.decode(ProduceRequest, 13, codec.encode(request, 13))
    assert decoded.topic_data[0].name == ""


def produce(*records):
    partitions = [
        PartitionProduceData(index=index, records=each) for index, each in enumerate(records)
    ]
    return ProduceRequest(topic_data=[TopicProduceData(name="topic", partition_data=partitions)])


@pytest.mark.parametrize("version", [3, 9, 13])
def test_records_are_decoded_in_place(version):
    frame = bytearray(codec.encode(produce(b"first" * 100, None, b""), version))
    request, _ = codec.decode(ProduceRequest, version, frame)
    first, second, third = (p.records for p in request.topic_data[0].partition_data)
    assert isinstance(first, memoryview)
    assert first.obj is frame
    frame[frame.index(b"first")] = ord("F")
    assert bytes(first[:5]) == b"First"
    assert second is None
    assert isinstance(third, memoryview)
    assert len(third) == 0


@pytest.mark.parametrize("version", [4, 11, 12, 17])
def test_large_records_are_parts_of_their_own(version):
    large, larger, small = memoryview(bytes(2048)), bytearray(5000), b"s" * 2047
    pieces = [b"a" * 1500, memoryview(b"b" * 1500)]
    partitions = [
        PartitionData(partition_index=index, records=each)
        for index, each in enumerate([large, small, None, pieces, larger, []])
    ]
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    parts = codec.encode_after(b"", response, version)
    by_reference = [part for part in parts if any(part is x for x in (large, larger, *pieces))]
    assert len(by_reference) == 4
    assert not any(part is small for part in parts)
    assert all(len(part) for part in parts)
    joined = b"".join(parts)
    assert joined == codec.encode(response, version)
    decoded, _ = codec.decode(FetchResponse, version, joined)
    records = [p.records for p in decoded.responses[0].partitions]
    assert [None if r is None else bytes(r) for r in records] == [
        bytes(large),
        small,
        None,
        b"".join(pieces),
        bytes(larger),
        b"",
    ]


def test_records_at_the_very_end_leave_no_empty_part():
    response = FetchResponse(
        responses=[
            FetchableTopicResponse(partitions=[PartitionData(records=bytes(4096))]),
        ]
    )
    parts = codec.encode_after(b"", response, 4)
    assert len(parts) == 2
    assert parts[-1] is response.responses[0].partitions[0].records


def test_only_records_travel_by_reference():
    with_records = {cls.__name__ for cls in CLASSES if carries_records(cls, cls.INFO.versions[-1])}
    assert with_records == {"ProduceRequest", "FetchResponse", "ShareFetchResponse"}


def test_tagged_fields_are_sent_if_they_differ_from_their_defaults():
    plain = FetchResponse(responses=[FetchableTopicResponse(partitions=[PartitionData()])])
    size = len(codec.encode(plain, 12))
    partition = plain.responses[0].partitions[0]
    partition.current_leader = LeaderIdAndEpoch()
    assert len(codec.encode(plain, 12)) == size
    partition.current_leader = LeaderIdAndEpoch(leader_id=7, leader_epoch=3)
    encoded = codec.encode(plain, 12)
    assert len(encoded) == size + 2 + 9
    decoded, _ = codec.decode(FetchResponse, 12, encoded)
    assert decoded == plain
    assert codec.decode(FetchResponse, 11, codec.encode(plain, 11))[0] != plain


def test_unknown_tagged_fields_are_skipped():
    body = codec.encode(HeartbeatRequest(group_id="g"), 4)
    assert body[-1] == 0
    extended = body[:-1] + b"\x02" + b"\x05\x03abc" + b"\x81\x01\x00"
    assert codec.decode(HeartbeatRequest, 4, extended) == (
        HeartbeatRequest(group_id="g"),
        len(extended),
    )
    known = codec.encode(ApiVersionsResponse(zk_migration_ready=True), 3)
    assert known[-4:] == b"\x01\x03\x01\x01"
    extended = known[:-4] + b"\x02\x03\x01\x01\x63\x02zz"
    decoded, end = codec.decode(ApiVersionsResponse, 3, extended)
    assert end == len(extended)
    assert decoded == ApiVersionsResponse(zk_migration_ready=True)


def test_lengths_around_the_sizes_of_varints():
    for size in (0, 1, 126, 127, 128, 129, 16382, 16383, 16384, 32767):
        request = HeartbeatRequest(group_id="x" * size, member_id="y")
        for version in (0, 4):
            body = codec.encode(request, version)
            assert codec.decode(HeartbeatRequest, version, body)[0] == request
    for count in (126, 127, 128, 20000):
        request = FetchRequest(topics=[FetchTopic(partitions=[FetchPartition()] * count)])
        for version in (4, 12):
            body = codec.encode(request, version)
            decoded, end = codec.decode(FetchRequest, version, body)
            assert end == len(body)
            assert len(decoded.topics[0].partitions) == count


@pytest.mark.parametrize("version", [0, 4])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("group_id", None),
        ("group_id", b"bytes"),
        ("group_id", "x" * 32768),
        ("group_id", "\ud800"),
        ("generation_id", 1 << 31),
        ("generation_id", "one"),
        ("generation_id", None),
    ],
)
def test_values_that_do_not_fit_are_named(version, field, value):
    request = HeartbeatRequest()
    setattr(request, field, value)
    with pytest.raises(EncodeError, match=f"HeartbeatRequest v{version}, field {field}: "):
        codec.encode(request, version)


@pytest.mark.parametrize("version", [4, 12])
@pytest.mark.parametrize(
    ("spoil", "place"),
    [
        (lambda m: setattr(m, "responses", None), "responses"),
        (lambda m: m.responses.append(None), r"responses\[1\]"),
        (lambda m: setattr(m.responses[0], "topic", 5), r"responses\[0\].topic"),
        (
            lambda m: setattr(m.responses[0].partitions[1], "high_watermark", 1 << 63),
            r"responses\[0\].partitions\[1\].high_watermark",
        ),
        (
            lambda m: setattr(m.responses[0].partitions[0], "records", ["text"]),
            r"responses\[0\].partitions\[0\].records",
        ),
    ],
)
def test_a_bad_value_deep_inside_is_found(version, spoil, place):
    partitions = [PartitionData(), PartitionData()]
    response = FetchResponse(responses=[FetchableTopicResponse(partitions=partitions)])
    codec.encode(response, version)
    spoil(response)
    for function in (codec.encode, partial(codec.encode_after, b"")):
        with pytest.raises(EncodeError, match=f"FetchResponse v{version}, field {place}: "):
            function(response, version)


def test_undeclared_versions_are_refused():
    for version in (-1, 2, 14):
        with pytest.raises(WireError, match=f"ProduceRequest has no version {version}"):
            codec.decode(ProduceRequest, version, b"")
        with pytest.raises(WireError, match=f"ProduceRequest has no version {version}"):
            codec.encode(ProduceRequest(), version)


def test_a_large_message_is_decoded_whole():
    rng = random.Random(1)
    response = MetadataResponse()
    response.cluster_id = "".join(rng.choices("abc", k=30000))
    body = codec.encode(response, 12)
    assert codec.decode(MetadataResponse, 12, body)[0].cluster_id == response.cluster_id
