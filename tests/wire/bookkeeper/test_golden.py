"""Messages and records against the bytes of BookKeeper's own classes (golden.txt, made by
compat_tests/bookkeeper_golden), and against frames recorded between Java clients and bookies."""

from pathlib import Path

import pytest

from ledger.metadata import LAYOUT
from wire.bookkeeper import frames, records, v2, v3
from wire.bookkeeper.entry import Digest, DigestType, master_key
from wire.bookkeeper.entry_set import EntrySet, decode_entry_set
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
)
from wire.bookkeeper.status import V3_OF_STATUS, Status

GOLDEN = {
    name: bytes.fromhex(value)
    for name, value in (
        line.split() if " " in line else (line, "")
        for line in (Path(__file__).parent / "golden.txt").read_text().splitlines()
    )
}
KEY = master_key(b"secret")
ENTRY = GOLDEN["entry"]
SECOND_ENTRY = GOLDEN["second_entry"]
PACKET = GOLDEN["lac_packet"]
LARGE = 2**40 + 5
LARGEST = 2**63 - 1
OK = Status.EOK
TIME_MS = 1700000000123

V2_REQUESTS = {
    "add": AddRequest(7, 3, KEY, (ENTRY,)),
    "recovery_add": AddRequest(7, 3, KEY, (ENTRY,), 0x2 | 0x4),
    "read": ReadRequest(7, 3),
    "read_last_fencing": ReadRequest(7, -1, 0x1, KEY),
    "recovery_read": ReadRequest(7, 4, 0x1 | 0x4, KEY),
    "batch_read": BatchReadRequest(7, 3, 100, 65536, transaction_id=2702),
    "batch_read_fencing": BatchReadRequest(7, 3, 100, 65536, 0x1, KEY, 2702),
    "auth": AuthRequest("TestPlugin", b"credentials"),
}
V2_RESPONSES = {
    "add": AddResponse(OK, 7, 3),
    "add_fenced": AddResponse(Status.EFENCED, 7, 3),
    "read": ReadResponse(OK, 7, 3, ENTRY),
    "read_missing": ReadResponse(Status.ENOENTRY, 7, -1),
    "batch_read": BatchReadResponse(OK, 7, 3, [ENTRY, SECOND_ENTRY], 2702),
    "batch_read_missing": BatchReadResponse(Status.ENOENTRY, 7, 3, [], 2702),
    "auth": AuthResponse(OK, "TestPlugin", b"credentials"),
}
V3_REQUESTS = {
    "add": AddRequest(7, 3, KEY, (ENTRY,), transaction_id=1),
    "add_large_numbers": AddRequest(LARGE, LARGEST, KEY, (ENTRY,), transaction_id=70000),
    "add_deferred_sync": AddRequest(7, 3, KEY, (ENTRY,), 0, 1, 300),
    "recovery_add": AddRequest(7, 3, KEY, (ENTRY,), 0x2 | 0x4, 0, 935),
    "read": ReadRequest(7, 3, transaction_id=2),
    "read_last_fencing": ReadRequest(7, -1, 0x1, KEY, transaction_id=2),
    "recovery_read": ReadRequest(7, 4, 0x1 | 0x4, KEY, transaction_id=937),
    "long_poll": ReadRequest(7, -1, 0, None, 3, 1000, True, 1100),
    "long_poll_from_start": ReadRequest(7, -1, 0, None, -1, 1000, False, 1101),
    "write_lac": WriteLacRequest(7, 3, KEY, PACKET, 3),
    "read_lac": ReadLacRequest(7, 4),
    "force_ledger": ForceLedgerRequest(7, 5),
    "bookie_info": BookieInfoRequest(3, 6),
    "list_entries": ListEntriesRequest(7, 7),
    "auth": AuthRequest("TestPlugin", b"credentials", 8),
    "start_tls": StartTlsRequest(9),
}
#: Those that only a client of another age would send.
V3_ODD_REQUESTS = {
    "range_read": RefusedRequest(3, Status.EBADREQ, 10),
    "batch_read": RefusedRequest(12, Status.EBADREQ, 11),
    "version_two": RefusedRequest(1, Status.EBADVERSION, 12),
    "read_with_context": ReadRequest(7, 3, transaction_id=13),
}
V3_RESPONSES = {
    "add": AddResponse(OK, 7, 3, 1),
    "add_large_numbers": AddResponse(OK, LARGE, LARGEST, 2**40),
    "read": ReadResponse(OK, 7, 3, ENTRY, 8, None, 2),
    "read_fencing": ReadResponse(OK, 7, -1, ENTRY, None, None, 2),
    "read_missing": ReadResponse(Status.ENOENTRY, 7, 24, None, -1, None, 650),
    "long_poll": ReadResponse(OK, 7, 3, ENTRY, 4, TIME_MS, 1100),
    "long_poll_timeout": ReadResponse(OK, 7, -1, None, 3, None, 1100),
    "write_lac": WriteLacResponse(OK, 7, 3),
    "read_lac": ReadLacResponse(OK, 7, PACKET, ENTRY, 4),
    "read_lac_neither": ReadLacResponse(Status.ENOENTRY, 7, None, None, 4),
    "force_ledger": ForceLedgerResponse(OK, 7, 5),
    "bookie_info": BookieInfoResponse(OK, 2**40, 123456789, 6),
    "list_entries": ListEntriesResponse(OK, 7, EntrySet.of_runs([(3, 7)]).encode(), 7),
    "auth": AuthResponse(OK, "TestPlugin", b"credentials", 8),
    "start_tls": StartTlsResponse(OK, 9),
    "bad_request": ErrorResponse(Status.EBADREQ, 3, 10),
}


def body(frame):
    """A frame without its size, which must be right."""
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return memoryview(frame)[4:]


def test_the_parts_are_ours_too():
    digest = Digest(DigestType.CRC32C, b"secret")
    assert digest.seal(7, 3, 2, 40, [b"golden-3"], 8) + b"golden-3" == ENTRY
    assert digest.seal_lac(7, 3) == PACKET


def test_every_vector_is_used():
    used = {f"v2.request.{name}" for name in V2_REQUESTS}
    used |= {f"v2.response.{name}" for name in V2_RESPONSES}
    used |= {f"v3.request.{name}" for name in V3_REQUESTS | V3_ODD_REQUESTS}
    used |= {f"v3.response.{name}" for name in V3_RESPONSES}
    used |= {f"v3.response.status.{status.name}" for status in Status}
    versions = {name for name in GOLDEN if name.startswith("v2.") and "_version_" in name}
    assert {name for name in GOLDEN if name.startswith("v")} == used | versions


@pytest.mark.parametrize("name", V2_REQUESTS)
def test_v2_requests(name):
    request, frame = V2_REQUESTS[name], GOLDEN[f"v2.request.{name}"]
    assert b"".join(v2.encode_request(request)) == frame
    assert v2.decode_request(body(frame)) == request
    codec = frames.server_codec(body(frame))
    assert codec.protocol is frames.Protocol.V2
    assert codec.decode_request(body(frame)) == request


@pytest.mark.parametrize("name", V2_RESPONSES)
def test_v2_responses(name):
    response, frame = V2_RESPONSES[name], GOLDEN[f"v2.response.{name}"]
    assert b"".join(v2.encode_response(response)) == frame
    assert v2.decode_response(body(frame)) == response


@pytest.mark.parametrize("version", [0, 1])
def test_v2_of_old_clients(version):
    request = body(GOLDEN[f"v2.request.read_version_{version}"])
    codec = frames.server_codec(request)
    assert codec.decode_request(request) == ReadRequest(7, 3)
    answer = b"".join(codec.encode_response(ReadResponse(Status.ENOENTRY, 7, 3)))
    assert answer == GOLDEN[f"v2.response.read_version_{version}"]


@pytest.mark.parametrize("name", V3_REQUESTS)
def test_v3_requests(name):
    request, frame = V3_REQUESTS[name], GOLDEN[f"v3.request.{name}"]
    assert b"".join(v3.encode_request(request)) == frame
    assert v3.decode_request(body(frame)) == request
    codec = frames.server_codec(body(frame))
    assert codec.protocol is frames.Protocol.V3
    assert codec.decode_request(body(frame)) == request


@pytest.mark.parametrize("name", V3_ODD_REQUESTS)
def test_v3_requests_that_we_never_send(name):
    frame = GOLDEN[f"v3.request.{name}"]
    assert v3.decode_request(body(frame)) == V3_ODD_REQUESTS[name]


@pytest.mark.parametrize("name", V3_RESPONSES)
def test_v3_responses(name):
    response, frame = V3_RESPONSES[name], GOLDEN[f"v3.response.{name}"]
    assert b"".join(v3.encode_response(response)) == frame
    assert v3.decode_response(body(frame)) == response


@pytest.mark.parametrize("status", Status)
def test_v3_statuses(status):
    response, frame = AddResponse(status, 7, 3, 1), GOLDEN[f"v3.response.status.{status.name}"]
    assert b"".join(v3.encode_response(response)) == frame
    assert v3.decode_response(body(frame)) == response
    assert V3_OF_STATUS[status] in (0, *range(402, 405), *range(501, 508))


#: Requests of Java clients of 4.18 as (header, tag, fields, meaning), with an entry of ours. Their
#: protobuf library writes the flag before all else.
LIGHT_PROTO = [
    (
        "0a090803100218a7072064",
        "aa06",
        "a00601 0802 1059 1a14{key} 222c{entry}",
        AddRequest(2, 0x59, KEY, (ENTRY,), 0x2 | 0x4, 0, 935),
    ),
    (
        "0a0708031001189f07",
        "a206",
        "a00601 0802 10ffffffffffffffffff01 1a14{key}",
        ReadRequest(2, -1, 0x1, KEY, transaction_id=927),
    ),
    (
        "0a090803100118a9072064",
        "a206",
        "a00601 0802 105a 1a14{key}",
        ReadRequest(2, 0x5A, 0x1 | 0x4, KEY, transaction_id=937),
    ),
    (
        "0a070803100118cc08",
        "a206",
        "a00602 0809 10ffffffffffffffffff01 2003 28e807",
        ReadRequest(9, -1, 0, None, 3, 1000, True, 1100),
    ),
    (
        "0a070803100218d508",
        "aa06",
        "080a 1000 1a14{key} 222c{entry} 2801",
        AddRequest(10, 0, KEY, (ENTRY,), 0, 1, 1109),
    ),
]


@pytest.mark.parametrize(("header", "tag", "fields", "request_"), LIGHT_PROTO)
def test_fields_in_light_protos_order(header, tag, fields, request_):
    inner = bytes.fromhex(fields.format(key=KEY.hex(), entry=ENTRY.hex()))
    assert len(inner) < 0x80
    frame = bytes.fromhex(header + tag) + bytes([len(inner)]) + inner
    assert v3.decode_request(frame) == request_


def test_the_largest_frame():
    largest = int(GOLDEN["frame.largest_of_1000"])
    frames.check_size(largest, 1000)
    with pytest.raises(frames.FrameTooLargeError, match=f"{largest + 1} bytes"):
        frames.check_size(largest + 1, 1000)


def test_entry_sets():
    sets = {name[10:]: value for name, value in GOLDEN.items() if name.startswith("entry_set.")}
    assert EntrySet.of_entries([]).encode() == sets["empty"]
    assert EntrySet.of_entries(range(5, 1005)).encode() == sets["one_run"]
    striped = [entry_id for entry_id in range(31) if entry_id % 3 != 2]
    assert list(decode_entry_set(sets["striped"])) == striped
    gaps = [0, 1, 2, 5, 9, 10, 11, 2**40]
    assert list(decode_entry_set(sets["gaps"])) == gaps
    ours = EntrySet.of_runs([*((first, 2) for first in range(0, 30, 3)), (40, 1), (50, 10)])
    assert ours.encode() == sets["ours"]
    java = f"{ours.count}: {' '.join(map(str, ours))}"
    assert java.encode() == sets["ours_as_java_reads_it"]


def test_service_info():
    bookie = records.Endpoint("bookie", "127.0.0.1", 31810)
    http = records.Endpoint(
        "httpserver", "b\u00fccher.example", 8080, "http", ("basic",), ("x", "y")
    )
    info = records.BookieServiceInfo((bookie,))
    full = records.BookieServiceInfo((bookie, http), {"zone": "a"})
    for name, value in (("service_info", info), ("service_info_full", full)):
        assert records.encode_service_info(value) == GOLDEN[f"record.{name}"]
        assert records.parse_service_info(GOLDEN[f"record.{name}"], "any") == value
    assert full.bookie_endpoint == bookie


def test_replication_records():
    for name, ledger in (
        (
            "underreplicated",
            records.UnderreplicatedLedger(("127.0.0.1:31810", 'b\u00fccher\n"x"'), TIME_MS),
        ),
        ("underreplicated_without_time", records.UnderreplicatedLedger(("a:1",))),
    ):
        assert records.encode_underreplicated(ledger) == GOLDEN[f"record.{name}"]
        assert records.parse_underreplicated(GOLDEN[f"record.{name}"]) == ledger
    for name, holder in (("lock", "host.example"), ("vote", "127.0.0.1:31810")):
        assert records.encode_holder(holder) == GOLDEN[f"record.{name}"]
        assert records.parse_holder(GOLDEN[f"record.{name}"]) == holder
    for name in ("check_all_ledgers", "placement_policy_check", "replicas_check"):
        assert records.encode_check_time(TIME_MS) == GOLDEN[f"record.{name}"]
        assert records.parse_check_time(GOLDEN[f"record.{name}"]) == TIME_MS
    assert GOLDEN["record.underreplication_layout"] == records.UNDERREPLICATION_LAYOUT


def test_names_and_layout():
    path = "/" + records.underreplicated_path(0x1234567890ABC)
    assert path.encode() == GOLDEN["path.underreplicated"]
    assert records.parse_underreplicated_name(path) == 0x1234567890ABC
    lock = "/" + records.underreplicated_name(13)
    assert lock.encode() == GOLDEN["path.underreplicated_lock"]
    assert GOLDEN["record.layout"] == LAYOUT
