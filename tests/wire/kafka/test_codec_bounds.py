"""Whatever a peer sends: a message or a WireError, at once and in bounded memory."""

import random
import struct
import time
import tracemalloc
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wire.kafka import codec
from wire.kafka.compiling import carried_fields, size_min
from wire.kafka.decoder import NUMBERS_PER_ELEMENT_BITS, SLICE_ELEMENTS
from wire.kafka.errors import WireError
from wire.kafka.message import REQUESTS, RESPONSES, Array, Primitive
from wire.kafka.messages import FetchRequest, HeartbeatRequest, MetadataRequest, ProduceRequest
from wire.kafka.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from wire.kafka.primitives import MalformedError, read_varint, uuid_of, varint

CLASSES = [*REQUESTS.values(), *RESPONSES.values()]
CASES = [(cls, version) for cls in CLASSES for version in cls.INFO.versions]
IDS = [f"{cls.__name__}-{version}" for cls, version in CASES]

HUGE = [
    struct.pack(">i", 0x7FFFFFFF),
    struct.pack(">i", -2),
    struct.pack(">i", -(1 << 31)),
    struct.pack(">h", 0x7FFF),
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x08",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
]


def decode_or_refuse(cls, version, data):
    """Decode; whether that worked. Any exception but WireError escapes and fails the test."""
    try:
        _, end = codec.decode(cls, version, data)
    except WireError:
        return False
    assert 0 <= end <= len(data)
    return True


@pytest.mark.parametrize(("cls", "version"), CASES, ids=IDS)
def test_mutated_bytes(cls, version, message_maker):
    rng = random.Random(f"mutate {cls.__name__} {version}")
    maker = message_maker()
    for _ in range(4):
        data = codec.encode(maker.make(cls, version, rng), version)
        assert decode_or_refuse(cls, version, data)
        for _ in range(12):
            mutated = bytearray(data)
            for _ in range(rng.randint(1, 3)):
                mutate(mutated, rng)
            decode_or_refuse(cls, version, mutated)


def mutate(data, rng):
    place = rng.randint(0, len(data))
    choice = rng.random()
    if choice < 0.4:
        data[place : place + 1] = bytes([rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])])
    elif choice < 0.6:
        huge = rng.choice(HUGE)
        data[place : place + len(huge)] = huge
    elif choice < 0.8:
        del data[place:]
    else:
        data[place:place] = rng.randbytes(rng.randint(1, 5))


@pytest.mark.parametrize(("cls", "version"), CASES, ids=IDS)
def test_every_cut_is_refused(cls, version, message_maker):
    """A message that ends early has no reading: every field of it is needed."""
    rng = random.Random(f"cut {cls.__name__} {version}")
    data = codec.encode(message_maker().make(cls, version, rng), version)
    cuts = range(len(data)) if len(data) < 60 else rng.sample(range(len(data)), 60)
    for cut in cuts:
        assert not decode_or_refuse(cls, version, data[:cut])


@settings(max_examples=300)
@given(case=st.sampled_from(CASES), data=st.binary(max_size=400))
def test_arbitrary_bytes(case, data):
    decode_or_refuse(*case, data)


def test_random_bytes_by_the_thousand():
    rng = random.Random("arbitrary")
    for cls, version in CASES:
        for _ in range(10):
            decode_or_refuse(cls, version, rng.randbytes(rng.choice([0, 1, 8, 40, 300])))


@pytest.mark.parametrize(("cls", "version"), CASES, ids=IDS)
def test_counts_beyond_the_frame_fail_at_once(cls, version):
    """Put a huge count or length at every offset of a small message's layout."""
    data = codec.encode(cls(), version)
    tracemalloc.start()
    started = time.process_time()
    try:
        for place in range(len(data) + 1):
            for huge in HUGE:
                decode_or_refuse(cls, version, data[:place] + huge + bytes(64))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    assert time.process_time() - started < 5


def test_array_elements_have_a_size():
    """What bounds a count: no element of any array can be empty."""
    for cls, version in CASES:
        check_elements(cls, version, flexible=cls.INFO.flexible.covers(version))


def check_elements(cls, version, flexible):
    for _, spec in carried_fields(cls, version):
        kind = spec.kind.element if isinstance(spec.kind, Array) else spec.kind
        if isinstance(spec.kind, Array):
            assert size_min(kind, version, flexible=flexible) > 0
        if not isinstance(kind, Primitive):
            check_elements(kind, version, flexible)


@pytest.mark.parametrize(
    ("cls", "version", "data", "text"),
    [
        (
            HeartbeatRequest,
            0,
            b"\x00\x05ab",
            "HeartbeatRequest v0, field group_id, near byte 2: a length of 5 bytes, 2 are left",
        ),
        (
            HeartbeatRequest,
            4,
            b"\x02g\x00",
            "HeartbeatRequest v4, field .*, near byte 2: the message ends too early",
        ),
        (HeartbeatRequest, 0, b"\xff\xff", "group_id, near byte 2: null where null is not allowed"),
        (HeartbeatRequest, 0, b"\xff\xfe", "field group_id, near byte 2: a length of -2"),
        (HeartbeatRequest, 4, b"\x00", "group_id, near byte 1: null where null is not allowed"),
        (HeartbeatRequest, 4, b"\x03\xc3(", "group_id, near byte 1: 'utf-8' codec can't decode"),
        (HeartbeatRequest, 4, b"\xff" * 9, "group_id, near byte 1: a varint longer than 5 bytes"),
        (HeartbeatRequest, 4, b"\xff\xff\xff\xff\x7f", "a varint above 32 bits"),
        (MetadataRequest, 0, b"\x7f\xff\xff\xff", "topics, .*an array of 2147483647 elements, 0"),
        (
            MetadataRequest,
            9,
            b"\xff\xff\xff\xff\x0f",
            "topics, .*an array of 4294967294 elements, 0 bytes are left",
        ),
        (
            ProduceRequest,
            9,
            b"\x00\x00\x01\x00\x00\x00\x01\x02\x02t\x02\x00\x00\x00\x00\x7fabc",
            "field topic_data.partition_data.records, near byte 16: a length of 126 bytes, 3",
        ),
        (
            HeartbeatRequest,
            4,
            b"\x01\x00\x00\x00\x00\x01\x00\x01\x00\x05\x02",
            "HeartbeatRequest v4, .*a tagged field of 5 bytes, 4 more than are left",
        ),
        (
            FetchRequest,
            12,
            codec.encode(FetchRequest(), 12)[:-1] + b"\x01\x00\x05\x02",
            "FetchRequest v12, .*a length of 5 bytes, 1 are left",
        ),
    ],
)
def test_errors_say_what_and_where(cls, version, data, text):
    with pytest.raises(WireError, match=text):
        codec.decode(cls, version, data)


def test_a_known_tagged_field_has_its_own_size():
    body = codec.encode(FetchRequest(cluster_id="ab"), 12)
    assert body.endswith(b"\x01\x00\x03\x03ab")
    with pytest.raises(WireError, match=r"field cluster_id, .*a tagged field of another size"):
        codec.decode(FetchRequest, 12, body[:-4] + b"\x04\x03abc")


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 16383, 16384, (1 << 31), (1 << 32) - 1])
def test_varints(value):
    encoded = varint(value)
    assert read_varint(b"x" + encoded + b"y", 1) == (value, 1 + len(encoded))


def test_varints_have_an_end():
    for data in (b"\xff" * 5, b"\x80" * 20, b"\xff\xff\xff\xff\x10"):
        with pytest.raises(MalformedError):
            read_varint(data, 0)
    with pytest.raises(ValueError, match="does not fit"):
        varint(1 << 32)


def test_uuids_are_what_they_should_be():
    raw = bytes(range(16))
    assert uuid_of(raw) == uuid.UUID(bytes=raw)
    assert uuid_of.cache_info().maxsize is not None


@pytest.mark.parametrize("per_topic", [1, 15, 16, 498, 8_001, 48_000])
def test_numbers_are_decoded_in_slices_however_they_are_grouped(per_topic):
    """A number costs a sixteenth of another element: a slice has as many as that allows, and those
    of the array that it ends in. All of them come out as they do in one piece."""
    count = 48_000 // per_topic
    topics = [AddPartitionsToTxnTopic(f"t{at}", list(range(per_topic))) for at in range(count)]
    message = AddPartitionsToTxnRequest(v3_and_below_topics=topics)
    frame = codec.encode(message, 3)
    steps = codec.sliced_decoder_of(AddPartitionsToTxnRequest, 3)(frame, 0, 1 << 30)
    slices = 1
    while True:
        try:
            next(steps)
        except StopIteration as end:
            decoded, at = end.value
            break
        slices += 1
    assert (decoded, at) == (message, len(frame))
    elements = count * (1 + (per_topic >> NUMBERS_PER_ELEMENT_BITS))
    assert slices >= elements // (2 * SLICE_ELEMENTS)
    assert slices <= elements // SLICE_ELEMENTS + 3
