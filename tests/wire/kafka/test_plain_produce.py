"""The ordinary Produce, taken apart at once: the same as the declared message says, or nothing."""

import random
import struct
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.kafka.guarded import Guarded
from wire.kafka.api_keys import ApiKey
from wire.kafka.codec import decode, request_class
from wire.kafka.errors import WireError
from wire.kafka.headers import decode_request_header, encode_request, encode_response
from wire.kafka.messages import ProduceRequest, ProduceResponse
from wire.kafka.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from wire.kafka.plain_produce import (
    VERSION_MAX,
    VERSION_MIN,
    answer_maker,
    place_of,
    plain_produce,
)
from wire.kafka.records.batch import build_batch
from wire.kafka.records.record import Record

needs_compiled = pytest.mark.skipif(
    plain_produce is None, reason="installed where there was no compiler"
)

VERSIONS = range(3, 14)
TOPIC_ID = uuid.UUID(int=0x0123456789ABCDEF0123456789ABCDEF)
BATCH = build_batch([Record(0, 0, b"key", b"value", [])], base_timestamp=1_000)

names = st.one_of(
    st.sampled_from(["t", "topic", "x" * 126, "x" * 127, "x" * 249, ""]), st.text(max_size=8)
)
clients = st.one_of(st.none(), st.sampled_from(["", "client-1", "é"]), st.text(max_size=5))
datas = st.one_of(
    st.just(BATCH), st.none(), st.binary(max_size=80), st.just(b"\0" * 126), st.just(b"\0" * 20_000)
)
partitions = st.builds(PartitionProduceData, st.integers(-2, 2**31 - 1), datas)
topics = st.builds(
    TopicProduceData, names, st.sampled_from([TOPIC_ID, uuid.UUID(int=7)]),
    st.lists(partitions, min_size=1, max_size=2) | st.lists(partitions, max_size=2),
)  # fmt: skip
bodies = st.builds(
    ProduceRequest,
    transactional_id=st.one_of(st.none(), st.none(), st.sampled_from(["", "txn"])),
    acks=st.sampled_from([-1, -1, 1, 0, 2, -2]),
    timeout_ms=st.integers(-1, 2**31 - 1),
    topic_data=st.lists(topics, min_size=1, max_size=1) | st.lists(topics, max_size=2),
)


def frame_of(body, version, correlation_id=7, client_id="bench"):
    return encode_request(body, version, correlation_id, client_id)[4:]


def ordinary(topic="t", partition=0, records=BATCH, acks=-1):
    data = [TopicProduceData(topic, TOPIC_ID, [PartitionProduceData(partition, records)])]
    return ProduceRequest(None, acks, 30_000, data)


def is_ordinary(body, version, client_id):
    """As the module's docstring has it, of what the decoded message says."""
    return (
        VERSION_MIN <= version <= VERSION_MAX
        and body.acks in (-1, 1)
        and body.transactional_id is None
        and len(body.topic_data) == 1
        and len(body.topic_data[0].partition_data) == 1
        and body.topic_data[0].partition_data[0].records is not None
        and (client_id or "").isascii()
    )


def check_same(frame, found):
    """`found` of a frame is what is decoded of it. (Whether a topic's name is UTF-8 is seen by who
    asks for the place, as each is asked for once.)"""
    header, offset = decode_request_header(frame)
    try:
        place_of(found[0], found[3])
    except UnicodeDecodeError:
        with pytest.raises(WireError, match="utf-8"):
            decode(request_class(ApiKey.PRODUCE), header.api_version, frame, offset)
        return
    body, end = decode(request_class(ApiKey.PRODUCE), header.api_version, frame, offset)
    assert header.api_key == ApiKey.PRODUCE
    assert end == len(frame)
    assert is_ordinary(body, header.api_version, header.client_id)
    version, correlation_id, acks, place, start, end = found
    assert (version, correlation_id) == (header.api_version, header.correlation_id)
    assert acks == body.acks
    [topic] = body.topic_data
    [data] = topic.partition_data
    assert bytes(frame[start:end]) == bytes(data.records)
    told = place_of(version, place)
    assert told.partition == data.index
    if version >= 13:
        assert (told.topic, told.topic_id) == ("", topic.topic_id)
    else:
        assert (told.topic, told.topic_id) == (topic.name, None)


@needs_compiled
@given(bodies, st.sampled_from(VERSIONS), st.integers(-(2**31), 2**31 - 1), clients)
def test_what_is_ordinary_is_taken_and_nothing_else(body, version, correlation_id, client_id):
    frame = frame_of(body, version, correlation_id, client_id)
    for memory in (frame, bytearray(frame), memoryview(b"12" + frame)[2:]):
        found = plain_produce(memory)
        assert (found is not None) == is_ordinary(body, version, client_id)
        if found is not None:
            check_same(memory, found)


@needs_compiled
@pytest.mark.parametrize("key", [key for key in range(-1, 90) if key != ApiKey.PRODUCE])
def test_requests_of_others_are_left_alone(key):
    frame = bytearray(frame_of(ordinary(), 9))
    struct.pack_into(">h", frame, 0, key)
    assert plain_produce(frame) is None


@pytest.fixture(scope="module")
def guarded():
    return Guarded()


NUMBERS = [0, 1, 2, 3, 0x3D, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF]


def damage(frame, rng):
    """A frame that was changed in a few places, mostly near its front where the lengths are."""
    data = bytearray(frame)
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        at = rng.randrange(len(data)) if rng.random() < 0.3 else rng.randrange(min(60, len(data)))
        if rng.random() < 0.2:
            size = rng.choice([2, 4, 8])
            data[at : at + size] = rng.choice([-1, 0, 1, 2**15, 2**31 - 1, 2**40]).to_bytes(
                16, signed=True
            )[-size:]
        else:
            data[at] = rng.choice(NUMBERS)
    if rng.random() < 0.3:
        del data[rng.randrange(len(data) + 1) :]
    if rng.random() < 0.1:
        data += rng.randbytes(rng.choice([1, 4, 30]))
    return data


@needs_compiled
@given(st.sampled_from(VERSIONS), st.sampled_from(["t", "x" * 130]), st.integers(0, 2**32))
def test_damaged_frames_are_the_same_or_nothing(guarded, version, topic, seed):
    """And no byte behind the frame is read, whatever its lengths say."""
    rng = random.Random(seed)
    frame = frame_of(ordinary(topic), version)
    for _ in range(20):
        view = guarded.at_end(damage(frame, rng))
        found = plain_produce(view)
        if found is not None:
            check_same(bytes(view), found)
            continue
        try:
            header, offset = decode_request_header(view)
            body, _ = decode(request_class(header.api_key), header.api_version, view, offset)
        except WireError:
            continue
        if header.api_key == ApiKey.PRODUCE and is_ordinary(
            body, header.api_version, header.client_id
        ):
            # Decoded, and ordinary: only bytes that could be left out are the reason.
            again = frame_of(body, header.api_version, header.correlation_id, header.client_id)
            assert again != bytes(view)


@needs_compiled
@given(st.binary(max_size=120))
def test_noise(guarded, noise):
    view = guarded.at_end(noise)
    found = plain_produce(view)
    if found is not None:
        check_same(noise, found)


@needs_compiled
@given(st.integers(0, 2**32))
def test_every_end_of_a_frame(guarded, seed):
    """A frame that is cut, and says so nowhere."""
    rng = random.Random(seed)
    frame = frame_of(ordinary(), rng.choice(VERSIONS))
    size = rng.randrange(len(frame))
    assert plain_produce(guarded.at_end(frame[:size])) is None


@needs_compiled
def test_frames_are_bytes():
    with pytest.raises(TypeError):
        plain_produce("a frame")


numbers = st.integers(-(2**63), 2**63 - 1)


@given(
    st.integers(VERSION_MIN, VERSION_MAX), names, st.integers(0, 2**31 - 1),
    st.integers(-(2**31), 2**31 - 1), numbers, numbers, numbers,
)  # fmt: skip
def test_an_answer_is_what_would_be_encoded(
    version, topic, partition, correlation_id, base, append_time_ms, log_start
):
    place = place_bytes(version, topic, partition)
    result = PartitionProduceResponse(partition)
    result.base_offset, result.log_append_time_ms = base, append_time_ms
    result.log_start_offset = log_start
    response = ProduceResponse([TopicProduceResponse(topic, TOPIC_ID, [result])])
    expected = b"".join(encode_response(response, ApiKey.PRODUCE, version, correlation_id))
    assert answer_maker(version, place)(correlation_id, base, append_time_ms, log_start) == expected


def place_bytes(version, topic, partition):
    """From the request's frame: in front of the records' length."""
    frame = frame_of(ordinary(topic, partition, b""), version, client_id=None)
    header = 10 + (version >= 9)
    transactional_id = 1 if version >= 9 else 2
    start = header + transactional_id + 2 + 4
    # Behind it are an int32 of records, or their one byte and the ends of three tagged sections.
    return bytes(frame[start : len(frame) - 4])
