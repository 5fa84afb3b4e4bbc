"""Both protocol versions: round trips, the protobuf library as the oracle of what is done without
it, and bytes that no peer sends."""

import contextlib
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wire.bookkeeper import frames, v2, v3, v3_entries
from wire.bookkeeper.errors import EncodeError, UnsupportedVersionError, WireError
from wire.bookkeeper.requests import (
    AddRequest,
    AuthRequest,
    BatchReadRequest,
    BookieInfoRequest,
    ForceLedgerRequest,
    ListEntriesRequest,
    ReadLacRequest,
    ReadRequest,
    RefusedRequest,
    StartTlsRequest,
    WriteLacRequest,
)
from wire.bookkeeper.responses import (
    AddResponse,
    AuthResponse,
    BatchReadResponse,
    BookieInfoResponse,
    ErrorResponse,
    ForceLedgerResponse,
    ListEntriesResponse,
    ReadLacResponse,
    ReadResponse,
    StartTlsResponse,
    WriteLacResponse,
    refusal,
)
from wire.bookkeeper.status import (
    FLAG_DO_FENCING,
    STATUS_OF_V2,
    STATUS_OF_V3,
    V3_OF_STATUS,
    Status,
)
from wire.bookkeeper.v3_schema import RequestMessage, ResponseMessage

KEY = bytes(range(20))
int63 = st.integers(0, 2**63 - 1)
int64 = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-2, 300),
    st.sampled_from([2**14, 2**14 - 1, 2**21, 2**21 - 1, 2**28, 2**56, 2**63 - 1]),
)
uint64 = st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 2**22))
keys = st.binary(min_size=20, max_size=20)
statuses = st.sampled_from(list(Status))
payloads = st.binary(max_size=40)


def maybe(strategy):
    return st.one_of(st.none(), strategy)


@st.composite
def entries(draw):
    """(ledger id, entry id, entry in pieces) whose ids are the entry's."""
    ledger_id, entry_id = draw(int64), draw(int64)
    ids = ledger_id.to_bytes(8, "big", signed=True) + entry_id.to_bytes(8, "big", signed=True)
    return ledger_id, entry_id, (ids + bytes(16), *draw(st.lists(payloads, max_size=3)))


adds = entries().flatmap(
    lambda entry: st.builds(
        AddRequest,
        st.just(entry[0]),
        st.just(entry[1]),
        keys,
        st.just(entry[2]),
        st.sampled_from([0, 2, 4, 6]),
    )
)
v2_reads = st.one_of(
    st.builds(ReadRequest, int64, int64, st.sampled_from([0, 4])),
    st.builds(ReadRequest, int64, int64, st.sampled_from([1, 5]), keys),
)
int32 = st.integers(-(2**31), 2**31 - 1)
batch_reads = st.one_of(
    st.builds(BatchReadRequest, int64, int64, int32, int64, st.just(0), st.none(), int64),
    st.builds(BatchReadRequest, int64, int64, int32, int64, st.just(1), keys, int64),
)
texts = st.text(max_size=10)
v2_requests = st.one_of(adds, v2_reads, batch_reads, st.builds(AuthRequest, texts, payloads))
v3_adds = st.tuples(adds, st.integers(0, 2**31 - 1), uint64).map(
    lambda drawn: AddRequest(
        *(getattr(drawn[0], name) for name in drawn[0].__slots__[:5]), *drawn[1:]
    )
)
v3_reads = st.builds(
    ReadRequest,
    int64,
    int64,
    st.sampled_from([0, 1, 4, 5]),
    maybe(keys),
    maybe(int64),
    maybe(int64),
    st.just(False),
    uint64,
) | st.builds(
    ReadRequest,
    int64,
    int64,
    st.sampled_from([0, 4]),
    st.none(),
    int64,
    int64,
    st.just(True),
    uint64,
)
v3_requests = st.one_of(
    v3_adds,
    v3_reads,
    st.builds(WriteLacRequest, int64, int64, keys, payloads, uint64),
    st.builds(ReadLacRequest, int64, uint64),
    st.builds(ForceLedgerRequest, int64, uint64),
    st.builds(BookieInfoRequest, int64, uint64),
    st.builds(ListEntriesRequest, int64, uint64),
    st.builds(AuthRequest, texts, payloads, uint64),
    st.builds(StartTlsRequest, uint64),
)
v2_responses = st.one_of(
    st.builds(AddResponse, statuses, int64, int64),
    st.builds(ReadResponse, statuses, int64, int64, maybe(st.binary(min_size=1, max_size=40))),
    st.builds(
        BatchReadResponse,
        statuses,
        int64,
        int64,
        st.lists(st.binary(min_size=32, max_size=50), max_size=4),
        int64,
    ),
    st.builds(AuthResponse, st.just(Status.EOK), texts, payloads),
)
v3_reads_answered = st.builds(
    ReadResponse, statuses, int64, int64, maybe(payloads), maybe(int64), maybe(int64), uint64
)
v3_responses = st.one_of(
    st.builds(AddResponse, statuses, int64, int64, uint64),
    v3_reads_answered,
    st.builds(WriteLacResponse, statuses, int64, uint64),
    st.builds(ReadLacResponse, statuses, int64, maybe(payloads), maybe(payloads), uint64),
    st.builds(ForceLedgerResponse, statuses, int64, uint64),
    st.builds(BookieInfoResponse, statuses, maybe(int64), maybe(int64), uint64),
    st.builds(ListEntriesResponse, statuses, int64, maybe(payloads), uint64),
    st.builds(AuthResponse, statuses, texts, payloads, uint64),
    st.builds(StartTlsResponse, statuses, uint64),
    st.builds(ErrorResponse, statuses.filter(bool), st.integers(12, 99), uint64),
)


def flat(parts):
    """A whole frame of an encoder's, without its size, which must be right."""
    joined = b"".join(parts)
    assert int.from_bytes(joined[:4], "big") == len(joined) - 4
    return memoryview(joined)[4:]


def with_flat_entry(request):
    if isinstance(request, AddRequest):
        request.entry = (b"".join(request.entry),)
    return request


@given(v2_requests)
def test_v2_request_round_trip(request):
    frame = flat(v2.encode_request(request))
    assert v2.decode_request(frame) == with_flat_entry(request)
    assert frames.detect_protocol(frame) is frames.Protocol.V2


@given(v2_responses)
def test_v2_response_round_trip(response):
    assert v2.decode_response(flat(v2.encode_response(response))) == response


@given(v3_requests)
def test_v3_request_round_trip(request):
    frame = flat(v3.encode_request(request))
    assert v3.decode_request(frame) == with_flat_entry(request)
    assert frames.detect_protocol(frame) is frames.Protocol.V3


@given(v3_responses)
def test_v3_response_round_trip(response):
    assert v3.decode_response(flat(v3.encode_response(response))) == response


# What is done without the protobuf library, against it.


@given(v3_adds)
def test_add_requests_are_the_librarys_bytes(request):
    message = RequestMessage()
    message.header.version, message.header.operation = 3, 2
    message.header.txnId = request.transaction_id
    if request.flags & 4:
        message.header.priority = 100
    add = message.addRequest
    add.ledgerId, add.entryId, add.masterKey = (
        request.ledger_id,
        request.entry_id,
        request.master_key,
    )
    add.body = b"".join(request.entry)
    if request.write_flags:
        add.writeFlags = request.write_flags
    if request.flags & 2:
        add.flag = 1
    assert flat(v3.encode_request(request)) == message.SerializeToString()


@given(st.builds(AddResponse, statuses, int64, int64, uint64))
def test_add_answers_are_the_librarys_bytes(response):
    message = ResponseMessage()
    message.header.version, message.header.operation = 3, 2
    message.header.txnId = response.transaction_id
    message.status = message.addResponse.status = V3_OF_STATUS[response.status]
    message.addResponse.ledgerId = response.ledger_id
    message.addResponse.entryId = response.entry_id
    assert flat(v3.encode_response(response)) == message.SerializeToString()


@given(v3_reads_answered)
def test_read_answers_are_the_librarys_bytes(response):
    message = ResponseMessage()
    message.header.version, message.header.operation = 3, 1
    message.header.txnId = response.transaction_id
    read = message.readResponse
    message.status = read.status = V3_OF_STATUS[response.status]
    read.ledgerId, read.entryId = response.ledger_id, response.entry_id
    if response.entry is not None:
        read.body = response.entry
    if response.max_lac is not None:
        read.maxLAC = response.max_lac
    if response.lac_update_time_ms is not None:
        read.lacUpdateTimestamp = response.lac_update_time_ms
    assert flat(v3.encode_response(response)) == message.SerializeToString()


@st.composite
def damaged(draw, valid):
    """A valid frame with a few bytes changed, cut, doubled or added."""
    frame = bytearray(draw(valid))
    for _ in range(draw(st.integers(0, 3))):
        position = draw(st.integers(0, len(frame)))
        match draw(st.integers(0, 3)):
            case 0 if position < len(frame):
                frame[position] = draw(st.integers(0, 255))
            case 1:
                frame[position:position] = draw(st.binary(min_size=1, max_size=3))
            case 2:
                del frame[position : position + draw(st.integers(1, 4))]
            case 3:
                frame[position:position] = frame[position : position + draw(st.integers(1, 30))]
    return memoryview(frame)


def outcome(decode, frame):
    try:
        return decode(frame)
    except WireError:
        return WireError


@settings(max_examples=1000)
@given(damaged(v3_adds.map(lambda request: bytes(flat(v3.encode_request(request))))))
def test_add_requests_are_understood_as_the_library_does(frame):
    found = v3_entries.decode_add_request(frame)
    if found is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(v3, "decode_add_request", lambda frame: None)
        assert outcome(v3.decode_request, frame) == found


@settings(max_examples=1000)
@given(damaged(v3_adds.map(lambda request: bytes(flat(v3.encode_request(request))))))
def test_plain_adds_are_understood_as_the_library_does(frame):
    found = v3_entries.decode_plain_add(frame)
    if found is None:
        return
    flags, key, ledger_id, entry_id, entry, answer = found
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(v3, "decode_add_request", lambda frame: None)
        request = outcome(v3.decode_request, frame)
    number = request.transaction_id
    assert request == AddRequest(ledger_id, entry_id, key, entry, flags, 0, number)
    response = AddResponse(Status.EOK, ledger_id, entry_id, number)
    assert int.from_bytes(answer[:4], "big") == len(answer) - 4
    message = v3.ResponseMessage()
    message.ParseFromString(answer[4:])  # the library's judgement: ids may have needless bytes
    assert v3.decode_response(message.SerializeToString()) == response
    assert v3.decode_response(answer[4:]) == response


@given(int63, int63, int63, st.sampled_from(Status))
def test_plain_adds_have_the_ordinary_answers(ledger_id, entry_id, transaction_id, status):
    for codec, number in ((v2, 0), (v3, transaction_id)):
        entry = b"".join(value.to_bytes(8, "big") for value in (ledger_id, entry_id)) + b"e"
        request = AddRequest(ledger_id, entry_id, KEY, (entry,), transaction_id=number)
        frame = memoryview(flat(codec.encode_request(request)))
        serving = frames.server_codec(frame)
        answer = serving.decode_add(frame)[-1]
        for told in (Status.EOK, status):
            response = AddResponse(told, ledger_id, entry_id, number)
            expected = b"".join(codec.encode_response(response))
            if told is Status.EOK:
                assert answer == expected
            assert b"".join(frames.failed_add(serving, answer, told)) == expected


def test_what_is_known_of_adds_is_bounded(monkeypatch):
    monkeypatch.setattr(v3_entries, "KNOWN_PARTS_MAX", 50)
    v3_entries._known_keys.clear()  # of other tests, under their own bound
    v3_entries._known_ledgers.clear()
    for number in range(200):
        key = number.to_bytes(20, "big")
        request = AddRequest(number, 2, key, (bytes(number),), transaction_id=number)
        frame = memoryview(flat(v3.encode_request(request)))
        found = v3_entries.decode_plain_add(frame)
        assert found[1] == key
        assert bytes(found[4][0]) == bytes(number)
        assert found[2] == number
        assert len(v3_entries._known_keys) <= 50
        assert len(v3_entries._known_ledgers) <= 50


@settings(max_examples=1000)
@given(damaged(v3_reads_answered.map(lambda response: bytes(flat(v3.encode_response(response))))))
def test_read_answers_are_understood_as_the_library_does(frame):
    found = v3_entries.decode_read_response(frame)
    if found is None:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(v3, "decode_read_response", lambda frame: None)
        assert outcome(v3.decode_response, frame) == found


@settings(max_examples=1000)
@given(damaged(v2_requests.map(lambda request: bytes(flat(v2.encode_request(request))))))
def test_the_short_ways_of_v2_understand_what_the_long_one_does(frame):
    if (add := v2.decode_add(frame)) is not None:
        flags, key, ledger_id, entry_id, entry, answer = add
        found = AddRequest(ledger_id, entry_id, key, entry, flags)
        assert outcome(v2.decode_request, frame) == found
        assert [answer] == v2.encode_response(AddResponse(Status.EOK, ledger_id, entry_id))
    if (read := v2.decode_read(frame)) is not None:
        assert outcome(v2.decode_request, frame) == ReadRequest(*read)


@given(int64, int64, st.integers(1, 2**16 - 1))
def test_reads_that_fence_go_the_long_way(ledger_id, entry_id, flags):
    plain = memoryview(flat(v2.encode_request(ReadRequest(ledger_id, entry_id))))
    assert v2.decode_read(plain) == (ledger_id, entry_id)
    key = KEY if flags & FLAG_DO_FENCING else None
    other = ReadRequest(ledger_id, entry_id, flags, key)
    assert v2.decode_read(memoryview(flat(v2.encode_request(other)))) is None


@given(st.integers(0, 2**62), st.integers(0, 2**62), uint64.filter(lambda value: value < 2**63))
def test_ordinary_messages_need_no_library(ledger_id, entry_id, transaction_id):
    """Else the two tests before would show nothing."""
    for flags, write_flags in ((0, 0), (6, 1)):
        request = AddRequest(
            ledger_id, entry_id, KEY, (b"e" * 40,), flags, write_flags, transaction_id
        )
        frame = flat(v3.encode_request(request))
        assert v3_entries.decode_add_request(frame) == request
        assert (v3_entries.decode_plain_add(memoryview(frame)) is not None) == (not flags)
    for max_lac, time_ms in ((None, None), (5, None), (5, 1700000000000)):
        response = ReadResponse(
            Status.EOK, ledger_id, entry_id, b"e" * 40, max_lac, time_ms, transaction_id
        )
        assert v3_entries.decode_read_response(flat(v3.encode_response(response))) == response


ADD_FIELDS = "0807 1003 1a14" + KEY.hex() + "2203"


@pytest.mark.parametrize(
    ("header", "fields", "flags", "write_flags"),
    [
        ("0a08 080310021805 2000", ADD_FIELDS + "aabbcc", 0, 0),
        ("0a08 080310021805 2001", ADD_FIELDS + "aabbcc", 4, 0),
        ("0a08 080310021805 2000 0a06 080310021805", ADD_FIELDS + "aabbcc", 0, 0),
        ("0a06 080310021805", "a00601" + ADD_FIELDS + "aabbcc a00601", 2, 0),
        ("0a06 080310021805", "a00602" + ADD_FIELDS + "aabbcc", 0, 0),
        ("0a06 080310021805", ADD_FIELDS + "aabbcc 2800", 0, 0),
        ("0a06 080310021805", ADD_FIELDS + "aabbcc 2803 a00601", 2, 3),
        ("0a06 080310021805", ADD_FIELDS + "aabbcc a00601 2803", 2, 3),
        ("0a06 080310021805", "2203abcdef" + ADD_FIELDS + "aabbcc", 0, 0),
        ("0a08 0803100218858000", ADD_FIELDS + "aabbcc", 0, 0),
    ],
)
def test_adds_in_other_forms(header, fields, flags, write_flags):
    inner = bytes.fromhex(fields)
    frame = bytes.fromhex(header + "aa06") + bytes([len(inner)]) + inner
    expected = AddRequest(7, 3, KEY, (b"\xaa\xbb\xcc",), flags, write_flags, 5)
    assert v3.decode_request(frame) == expected


# Nothing is copied.


def test_entries_stay_where_they_are():
    entry = bytearray(b"\0" * 1000)
    piece = memoryview(entry)
    add = AddRequest(0, 0, KEY, (piece[:500], piece[500:]), transaction_id=1)
    read = ReadResponse(Status.EOK, 0, 0, piece)
    batch = BatchReadResponse(Status.EOK, 0, 0, [piece, piece])
    for parts in (
        v2.encode_request(add),
        v2.encode_response(read),
        v2.encode_response(batch),
        v3.encode_request(add),
        v3.encode_response(read),
    ):
        views = [part for part in parts if isinstance(part, memoryview)]
        assert sum(map(len, views)) % 1000 == 0
        assert all(view.obj is entry for view in views)
        assert views
    for codec in (v2, v3):
        frame = bytearray(flat(codec.encode_request(add)))
        (decoded,) = codec.decode_request(memoryview(frame)).entry
        assert decoded.obj is frame
        frame = bytearray(flat(codec.encode_response(read)))
        assert codec.decode_response(memoryview(frame)).entry.obj is frame
    frame = bytearray(flat(v2.encode_response(batch)))
    assert all(view.obj is frame for view in v2.decode_response(memoryview(frame)).entries)


def test_overhead_is_bounded():
    for flags, write_flags in ((6, 2**31 - 1), (0, 0)):
        add = AddRequest(-1, -1, KEY, (bytes(5 << 20),), flags, write_flags, 2**64 - 1)
        assert sum(map(len, v3.encode_request(add))) - (5 << 20) <= frames.OVERHEAD_MAX_BYTES
    add = AddRequest(0, 0, KEY, (bytes(5 << 20),))
    assert sum(map(len, v2.encode_request(add))) - (5 << 20) <= frames.OVERHEAD_MAX_BYTES
    read = ReadResponse(Status.EOK, -1, -1, bytes(5 << 20), -1, -1, 2**64 - 1)
    for codec in (v2, v3):
        assert sum(map(len, codec.encode_response(read))) - (5 << 20) <= frames.OVERHEAD_MAX_BYTES
    largest = bytes(frames.FRAME_SIZE_MAX_BYTES - frames.OVERHEAD_MAX_BYTES)
    size = len(flat(v3.encode_request(AddRequest(-1, -1, KEY, (largest,), 6, 1, 2**64 - 1))))
    frames.check_size(size)


# Bad input.


@settings(max_examples=500)
@given(
    st.one_of(
        st.binary(max_size=200),
        damaged(v2_requests.map(lambda request: bytes(flat(v2.encode_request(request))))),
        damaged(v3_requests.map(lambda request: bytes(flat(v3.encode_request(request))))),
        damaged(v2_responses.map(lambda response: bytes(flat(v2.encode_response(response))))),
        damaged(v3_responses.map(lambda response: bytes(flat(v3.encode_response(response))))),
    )
)
def test_nothing_but_wire_errors(frame):
    for decode in (v2.decode_request, v2.decode_response, v3.decode_request, v3.decode_response):
        with contextlib.suppress(WireError):
            decode(frame)
    with contextlib.suppress(WireError):
        frames.server_codec(frame).decode_request(frame)


def test_memory_is_bounded_by_the_frame():
    """Answers of the most objects in the fewest bytes."""
    smallest_entries = flat(
        v2.encode_response(BatchReadResponse(Status.EOK, 1, 0, [bytes(32)] * 20_000))
    )
    empty_entries = smallest_entries[:32].tobytes() + bytes(400_000)
    for frame in (smallest_entries, memoryview(empty_entries)):
        tracemalloc.start()
        with contextlib.suppress(WireError):
            v2.decode_response(frame)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 10 * len(frame)


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ("", "0 bytes is shorter"),
        ("020100", "3 bytes is shorter"),
        ("02090000", "unknown operation 9"),
        ("00000004", "unknown operation 4"),
        ("02010000" + "00" * 35, "ADD request of 39 bytes"),
        ("02020000" + "00" * 15, "READ request of 19 bytes"),
        ("02020001" + "00" * 35, "fencing READ request of 39 bytes"),
        ("02070000" + "00" * 35, "BATCH_READ request of 39 bytes"),
        ("02070001" + "00" * 55, "fencing BATCH_READ request of 59 bytes"),
        ("02030000ff", "AUTH: not an AuthMessage"),
        ("020300000a0161", "AuthMessage without payload"),
        ("020300000a01ff1200", "is no UTF-8"),
    ],
)
def test_v2_requests_that_are_none(frame, words):
    with pytest.raises(WireError, match=words):
        v2.decode_request(bytes.fromhex(frame))


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ("0201", "2 bytes is shorter"),
        ("02010000" + "00" * 19, "operation 1 of 23 bytes is cut short"),
        ("02070000" + "00" * 27, "operation 7 of 31 bytes is cut short"),
        ("02080000" + "00" * 20, "unknown operation 8"),
        ("02010000 00000003" + "00" * 16, "unknown status 3"),
        ("02070000" + "00" * 28 + "0000", "size of entry 0 at byte 32 is cut"),
        ("02070000" + "00" * 28 + "00000021" + "00" * 32, "entry 0 at byte 36 has 33 bytes"),
        ("02070000" + "00" * 28 + "ffffffff" + "00" * 32, "entry 0 at byte 36 has 4294967295"),
    ],
)
def test_v2_answers_that_are_none(frame, words):
    with pytest.raises(WireError, match=words):
        v2.decode_response(bytes.fromhex(frame))


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ("", "0 bytes lacks header"),
        ("0aff", "is no protobuf"),
        ("0a0408031002", "lacks header.txnId"),
        ("0a06080310021801 aa06020801", "lacks addRequest.entryId"),
        ("0a06080310051801 b206 05 0a01ff 1200", "is no UTF-8"),
    ],
)
def test_v3_requests_that_are_none(frame, words):
    with pytest.raises(WireError, match=words):
        v3.decode_request(bytes.fromhex(frame))


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ("0a06080310021801", "lacks status"),
        ("0a06080310021801 1000", "operation 2 is EOK, and nothing else"),
        ("0a06080310021801 1007", "unknown status 7"),
        ("0a06080310021801 1000 aa0606080110001800", "unknown status 1"),
    ],
)
def test_v3_answers_that_are_none(frame, words):
    with pytest.raises(WireError, match=words):
        v3.decode_response(bytes.fromhex(frame))


def test_an_add_without_its_field_is_refused():
    request = v3.decode_request(bytes.fromhex("0a06080310021801 a2060408011002"))
    assert request == RefusedRequest(2, Status.EBADREQ, 1)
    answer = v3.decode_response(flat(v3.encode_response(refusal(request, request.status))))
    assert answer == ErrorResponse(Status.EBADREQ, 2, 1)


def test_v2_of_a_later_version_is_told_so():
    frame = bytes.fromhex("03020000 0000000000000001 0000000000000002")
    with pytest.raises(UnsupportedVersionError, match="packet version 3") as caught:
        v2.decode_request(frame)
    answer = v2.decode_response(flat([caught.value.answer]))
    assert answer == ReadResponse(Status.EBADVERSION, 1, 2)
    assert flat([caught.value.answer])[0] == 3


@pytest.mark.parametrize("first", ["", "03", "07", "08", "0b", "0d"])
def test_neither_protocol(first):
    with pytest.raises(WireError, match="neither v2"):
        frames.server_codec(bytes.fromhex(first))


def test_what_a_version_cannot_say():
    for request in (
        ReadRequest(1, 2, previous_lac=1, timeout_ms=5),
        ReadRequest(1, 2, 1),
        ReadRequest(1, 2, 0, KEY),
        ReadRequest(1, 2, 1, b"short"),
        AddRequest(1, 2, KEY, (bytes(32),), 0, 1),
        ForceLedgerRequest(1),
        BookieInfoRequest(),
    ):
        with pytest.raises(EncodeError):
            v2.encode_request(request)
    for request in (
        BatchReadRequest(1, 2, 3, 4),
        RefusedRequest(3, Status.EBADREQ),
        ReadRequest(1, 2, 1, KEY, 3, 4, True),
    ):
        with pytest.raises(EncodeError):
            v3.encode_request(request)
    with pytest.raises(EncodeError):
        v2.encode_response(ForceLedgerResponse(Status.EOK, 1))
    with pytest.raises(EncodeError):
        v3.encode_response(BatchReadResponse(Status.EOK, 1, 2))


@given(v3_requests, statuses.filter(bool))
def test_refusals_in_v3(request, status):
    answer = v3.decode_response(flat(v3.encode_response(refusal(request, status))))
    assert answer.status is status
    assert answer.transaction_id == request.transaction_id


@given(v2_requests.filter(lambda request: type(request) is not AuthRequest), statuses.filter(bool))
def test_refusals_in_v2(request, status):
    answer = v2.decode_response(flat(v2.encode_response(refusal(request, status))))
    assert answer.status is status
    assert answer.transaction_id == request.transaction_id
    assert answer.ledger_id == request.ledger_id


def test_every_status_has_a_number_in_both():
    assert set(STATUS_OF_V2.values()) == set(V3_OF_STATUS) == set(Status)
    assert {STATUS_OF_V3[number] for number in V3_OF_STATUS.values()} == set(Status)


# Frames.


@pytest.mark.parametrize("size", [0, 0x00500000, 0xFFFFFFFF, 0x004FFFFD])
def test_sizes_that_are_not_allowed(size):
    with pytest.raises(frames.FrameTooLargeError, match="allowed are 1 to 5242876"):
        frames.check_size(size)
