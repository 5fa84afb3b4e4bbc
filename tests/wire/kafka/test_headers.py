"""Request and response headers and frames, against hand-written bytes and against kio."""

import importlib
import io
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from wire.kafka import codec
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, UnsupportedVersionError, WireError
from wire.kafka.headers import (
    RequestHeader,
    decode_request_header,
    decode_response,
    encode_request,
    encode_response,
)
from wire.kafka.message import REQUESTS, RESPONSES
from wire.kafka.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    ProduceRequest,
)
from wire.kafka.messages.fetch import FetchableTopicResponse, PartitionData
from wire.kafka.messages.metadata import ApiVersion

CASES = [(cls, version) for cls in REQUESTS.values() for version in cls.INFO.versions]


def test_header_of_a_version_that_is_not_flexible():
    frame = b"\x00\x0c\x00\x03" + b"\x00\x00\x00\x2a" + b"\x00\x03abc" + b"body"
    expected = RequestHeader(ApiKey.HEARTBEAT, 3, 42, "abc")
    for buffer in (frame, bytearray(frame), memoryview(frame)):
        assert decode_request_header(buffer) == (expected, 13)


def test_header_of_a_flexible_version_has_a_client_id_with_an_int16_length_and_tags():
    head = b"\x00\x0c\x00\x04" + b"\x00\x00\x00\x2a" + b"\x00\x03abc"
    expected = RequestHeader(ApiKey.HEARTBEAT, 4, 42, "abc")
    assert decode_request_header(head + b"\x00body") == (expected, 14)
    tagged = head + b"\x02\x00\x02xy\x81\x01\x00" + b"body"
    assert decode_request_header(tagged) == (expected, len(tagged) - 4)


@pytest.mark.parametrize("version", [3, 4])
def test_client_id_may_be_null_or_empty(version):
    head = struct.pack(">hhi", 12, version, 1)
    tags = b"\0" * (version == 4)
    header, offset = decode_request_header(head + b"\xff\xff" + tags)
    assert (header.client_id, offset) == (None, 10 + len(tags))
    header, offset = decode_request_header(head + b"\x00\x00" + tags)
    assert (header.client_id, offset) == ("", 10 + len(tags))


@pytest.mark.parametrize(("key", "known"), [(0, True), (4, False), (52, False), (999, False)])
def test_unknown_keys_and_versions_can_be_answered(key, known):
    for version in (-1, 99):
        for rest in (b"", b"\xff", b"\xff\xff", b"\x00\x03abc\x00", b"\x7f\xff"):
            with pytest.raises(UnsupportedVersionError) as caught:
                decode_request_header(struct.pack(">hhi", key, version, -7) + rest)
            error = caught.value
            assert (error.api_key, error.version) == (key, version)
            assert (error.correlation_id, error.known_key) == (-7, known)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_old_produce_is_recognised_and_refused(version):
    frame = struct.pack(">hhih", 0, version, 5, 3) + b"abc" + bytes(20)
    with pytest.raises(UnsupportedVersionError, match=f"version {version} of API key 0") as caught:
        decode_request_header(frame)
    assert caught.value.known_key


def response_bytes(message, key, version, correlation_id):
    return b"".join(encode_response(message, key, version, correlation_id))


def test_a_too_new_api_versions_is_answered_in_the_layout_of_version_0():
    """KIP-511: no tags in the header, an int32 count, and ApiVersions' own range in it."""
    frame = struct.pack(">hhih", 18, 9, 77, 0) + b"\x00"
    with pytest.raises(UnsupportedVersionError) as caught:
        decode_request_header(frame)
    answer = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)],
    )
    data = response_bytes(answer, 18, 0, caught.value.correlation_id)
    assert data == bytes.fromhex("00000010 0000004d 0023 00000001 0012 0000 0004")


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (b"", "0 bytes has no room"),
        (b"\x00\x0c\x00\x03\x00\x00\x00", "7 bytes has no room"),
        (b"\x00\x0c\x00\x03\x00\x00\x00\x01", "ends at byte 8, before the client id"),
        (b"\x00\x0c\x00\x03\x00\x00\x00\x01\x00", "ends at byte 9, before the client id"),
        (b"\x00\x0c\x00\x03\x00\x00\x00\x01\x00\x04abc", "client id of 4 bytes, 3 are left"),
        (b"\x00\x0c\x00\x03\x00\x00\x00\x01\xff\xfe", "client id of length -2"),
        (b"\x00\x0c\x00\x03\x00\x00\x00\x01\x00\x01\xff", "client id is not UTF-8"),
        (b"\x00\x0c\x00\x04\x00\x00\x00\x01\x00\x00", "tagged fields of a request header"),
        (b"\x00\x0c\x00\x04\x00\x00\x00\x01\x00\x00\x01\x00\x05abc", "a tagged field of 5 bytes"),
        (b"\x00\x0c\x00\x04\x00\x00\x00\x01\x00\x00" + b"\xff" * 6, "longer than 5 bytes"),
    ],
)
def test_malformed_headers(frame, text):
    for buffer in (frame, memoryview(frame)):
        with pytest.raises(WireError, match=text):
            decode_request_header(buffer)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_header_or_an_error(data):
    for frame in (data, b"\x00\x0c\x00\x04" + data, b"\x00\x12\x00\x03" + data):
        try:
            _, offset = decode_request_header(frame)
        except WireError:
            continue
        assert 10 <= offset <= len(frame)


@pytest.mark.parametrize("client_id", [None, "", "client-é"])
def test_request_frames_of_every_version(client_id, message_maker, as_plain):
    rng = random.Random(f"frames {client_id}")
    for cls, version in CASES:
        message = message_maker().make(cls, version, rng)
        frame = encode_request(message, version, 123456, client_id)
        assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
        header, offset = decode_request_header(memoryview(frame)[4:])
        assert header == RequestHeader(cls.INFO.key, version, 123456, client_id)
        body, end = codec.decode(cls, version, frame, offset + 4)
        assert end == len(frame)
        assert as_plain(body) == as_plain(message)


def test_request_headers_are_those_of_kio():
    for cls, version in CASES:
        number = 2 if cls.INFO.flexible.covers(version) else 1
        module = importlib.import_module(f"kio.schema.request_header.v{number}.header")
        frame = encode_request(cls(), version, 99, "someone")
        theirs, size = entity_reader(module.RequestHeader)(frame, 4)
        assert (theirs.request_api_key, theirs.request_api_version) == (cls.INFO.key, version)
        assert (theirs.correlation_id, theirs.client_id) == (99, "someone")
        buffer = io.BytesIO()
        entity_writer(module.RequestHeader)(buffer, theirs)
        assert buffer.getvalue() == frame[4 : 4 + size]
        assert decode_request_header(frame[4:])[1] == size


def test_response_headers_are_those_that_kio_expects():
    """Kio's message classes name their header: v0 for every ApiVersions, else by flexibility."""
    checked = 0
    for key, cls in RESPONSES.items():
        for version in cls.INFO.versions:
            api = ApiKey(key).name.lower()
            try:
                module = importlib.import_module(f"kio.schema.{api}.v{version}.response")
            except ModuleNotFoundError:
                continue
            checked += 1
            header_class = getattr(module, cls.__name__).__header_schema__
            frame = response_bytes(cls(), key, version, 31)
            theirs, size = entity_reader(header_class)(frame, 4)
            assert theirs.correlation_id == 31
            assert frame[4 + size :] == codec.encode(cls(), version)
    assert checked > 250


def test_response_frames_of_every_version(message_maker, as_plain):
    rng = random.Random("responses")
    for key, cls in RESPONSES.items():
        for version in cls.INFO.versions:
            message = message_maker().make(cls, version, rng)
            frame = response_bytes(message, key, version, -5)
            assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
            correlation_id, body = decode_response(key, version, memoryview(frame)[4:])
            assert correlation_id == -5
            assert as_plain(body) == as_plain(message)


def test_api_versions_never_has_tags_in_its_header():
    for version in ApiVersionsRequest.INFO.versions:
        frame = response_bytes(ApiVersionsResponse(), 18, version, 1)
        assert frame[8:] == codec.encode(ApiVersionsResponse(), version)
    frame = response_bytes(HeartbeatResponse(), 12, 4, 1)
    assert frame[8:] == b"\x00" + codec.encode(HeartbeatResponse(), 4)


def test_records_of_a_response_are_not_copied():
    records = memoryview(bytes(100_000))
    partition = PartitionData(records=[records, records])
    response = FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])])
    parts = encode_response(response, 1, 12, 9)
    assert sum(part is records for part in parts) == 2
    assert struct.unpack_from(">i", parts[0]) == (sum(map(len, parts)) - 4,)


def test_malformed_responses():
    frame = response_bytes(HeartbeatResponse(), 12, 4, 1)[4:]
    assert decode_response(12, 4, frame) == (1, HeartbeatResponse())
    for cut in range(len(frame)):
        with pytest.raises(WireError):
            decode_response(12, 4, frame[:cut])
    with pytest.raises(WireError, match="1 bytes after the body"):
        decode_response(12, 4, frame + b"\0")
    with pytest.raises(WireError, match="tagged fields of a response header"):
        decode_response(12, 4, frame[:4] + b"\x01\x00\x7f")


def test_header_and_body_meet():
    frame = encode_request(HeartbeatRequest(group_id="g"), 4, 1, "c")
    header, offset = decode_request_header(memoryview(frame)[4:])
    body, end = codec.decode(HeartbeatRequest, header.api_version, memoryview(frame)[4:], offset)
    assert body.group_id == "g"
    assert end == len(frame) - 4


def test_a_request_of_an_undeclared_version_is_not_made():
    with pytest.raises(WireError, match="ProduceRequest has no version 2"):
        encode_request(ProduceRequest(), 2, 1, None)
