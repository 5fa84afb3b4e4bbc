"""BookKeeper's binary protocol, «v2», both sides (BookieProtoEncoding.java; docs/formats.md).

    frame     i32 size of what follows, i32 packet header, then by operation
    header    version << 24 | operation << 16 | flags; of version 0 the operation alone
    1 ADD     master key 20, entry                              -> status, ledger id, entry id
    2 READ    ledger id, entry id, [master key if DO_FENCING]   -> the same, then the entry if EOK
    3 AUTH    AuthMessage (protobuf)                            -> AuthMessage
    7 BATCH   ledger id, entry id, request id, i32 count, i64 size, [master key]
              -> status, ledger id, entry id, request id, then per entry i32 size and the entry

Encoders give whole frames, size in front; decoders take one without its size. Entries are never
copied: decoded ones are views into the frame. Decoders raise WireError for whatever is malformed,
and need no memory beyond what the frame's size explains.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from wire.bookkeeper.auth import encode_auth_message, parse_auth_message
from wire.bookkeeper.entry import HEADER_SIZE, MASTER_KEY_SIZE
from wire.bookkeeper.errors import EncodeError, UnsupportedVersionError, WireError
from wire.bookkeeper.requests import (
    AddRequest,
    AuthRequest,
    BatchReadRequest,
    ReadRequest,
    Request,
)
from wire.bookkeeper.responses import (
    AddResponse,
    AuthResponse,
    BatchReadResponse,
    ReadResponse,
    Response,
    refusal,
)
from wire.bookkeeper.status import FLAG_DO_FENCING, STATUS_OF_V2, Status

if TYPE_CHECKING:
    from wire.bookkeeper.requests import PlainAdd
    from wire.buffers import Buffer, Buffers

VERSION = 2
ADD, READ, AUTH, BATCH_READ = 1, 2, 3, 7

#: What the answer to a batch read takes of `size_max`: for itself, and for each entry besides it.
BATCH_HEAD_SIZE = 36
BATCH_ENTRY_HEAD_SIZE = 4

_ADD_HEAD_SIZE = 4 + MASTER_KEY_SIZE
#: An add with as much of its entry as has the ids.
_ADD_SIZE_MIN = _ADD_HEAD_SIZE + 16
_READ_SIZE = 20
_BATCH_READ_SIZE = 40
_ANSWER_SIZE = 24
_BATCH_ANSWER_SIZE = BATCH_HEAD_SIZE - 4

_FRAME_ADD = Struct(">IBBH20s")
_FRAME_READ = Struct(">IBBHqq")
_FRAME_BATCH_READ = Struct(">IBBHqqqiq")
_FRAME_AUTH = Struct(">III")
_FRAME_ANSWER = Struct(">IIiqq")
_FRAME_BATCH_ANSWER = Struct(">IIiqqq")
_U32 = Struct(">I")

_pack_add = _FRAME_ADD.pack
_pack_answer = _FRAME_ANSWER.pack
_unpack_add = Struct(">xxH20sqq").unpack_from
_unpack_read = Struct(">qq").unpack_from
_unpack_batch_read = Struct(">qqqiq").unpack_from
_unpack_answer = Struct(">xxxxiqq").unpack_from
_unpack_size = _U32.unpack_from

_ADD_ANSWER_HEADER = VERSION << 24 | ADD << 16
_READ_ANSWER_HEADER = VERSION << 24 | READ << 16
#: Of a read that does not fence.
_READ_HEADER = bytes([VERSION, READ, 0, 0])


# -- the server's side -------------------------------------------------------------------------


def decode_request(frame: Buffer) -> Request:
    """A request of versions 0 to 2. WireError; UnsupportedVersionError of any other version."""
    view = frame if type(frame) is memoryview else memoryview(frame)
    size = len(view)
    if size >= _ADD_SIZE_MIN and view[1] == ADD and view[0] == VERSION:
        flags, key, ledger_id, entry_id = _unpack_add(view)
        return AddRequest(ledger_id, entry_id, key, (view[_ADD_HEAD_SIZE:],), flags)
    if size < 4:
        raise WireError(f"v2 request of {size} bytes is shorter than its header (4 bytes)")
    (header,) = _unpack_size(view)
    version, operation, flags = _split(header)
    if operation == READ:
        _check_size("READ request", size, _READ_SIZE)
        ledger_id, entry_id = _unpack_read(view, 4)
        request: Request = ReadRequest(
            ledger_id, entry_id, flags, _fencing_key("READ", view, _READ_SIZE, version, flags)
        )
    elif operation == ADD:
        _check_size("ADD request", size, _ADD_SIZE_MIN)
        _, key, ledger_id, entry_id = _unpack_add(view)
        request = AddRequest(ledger_id, entry_id, key, (view[_ADD_HEAD_SIZE:],), flags)
    elif operation == BATCH_READ:
        _check_size("BATCH_READ request", size, _BATCH_READ_SIZE)
        ledger_id, entry_id, request_id, count_max, size_max = _unpack_batch_read(view, 4)
        key = _fencing_key("BATCH_READ", view, _BATCH_READ_SIZE, version, flags)
        request = BatchReadRequest(ledger_id, entry_id, count_max, size_max, flags, key, request_id)
    elif operation == AUTH:
        return AuthRequest(*parse_auth_message(view[4:]))
    else:
        raise WireError(f"v2 request of unknown operation {operation} (packet header {header:#x})")
    if version > VERSION:
        answer = b"".join(encode_response(refusal(request, Status.EBADVERSION), version))
        raise UnsupportedVersionError(
            f"v2 request of packet version {version}, known are 0 to {VERSION}", answer
        )
    return request


def decode_add(frame: memoryview) -> PlainAdd | None:
    """An add of version 2, as nearly all requests are; None: see `decode_request`."""
    if len(frame) < _ADD_SIZE_MIN or frame[1] != ADD or frame[0] != VERSION:
        return None
    flags, key, ledger_id, entry_id = _unpack_add(frame)
    answer = _pack_answer(_ANSWER_SIZE, _ADD_ANSWER_HEADER, 0, ledger_id, entry_id)
    return flags, key, ledger_id, entry_id, (frame[_ADD_HEAD_SIZE:],), answer


def decode_read(frame: memoryview) -> tuple[int, int] | None:
    """(ledger id, entry id) if it is a read of version 2 that does not fence; None: see
    `decode_request`."""
    if len(frame) != _READ_SIZE or frame[:4] != _READ_HEADER:
        return None
    read: tuple[int, int] = _unpack_read(frame, 4)
    return read


def packet_version(frame: Buffer) -> int:
    """The version in a frame's packet header, which its answer repeats; 2 but for clients of
    BookKeeper 4.1 and before. A connection does not change it."""
    return frame[0]


def encode_response(response: Response, version: int = VERSION) -> list[Buffer]:
    """EncodeError if v2 has no such answer. `version`: see `packet_version`."""
    if type(response) is AddResponse:
        return [
            encode_add_response(response.status, response.ledger_id, response.entry_id, version)
        ]
    if type(response) is ReadResponse:
        return encode_read_response(
            response.status, response.ledger_id, response.entry_id, response.entry, version
        )
    if type(response) is BatchReadResponse:
        return _encode_batch_read_response(response, version)
    if type(response) is AuthResponse:
        message = encode_auth_message(response.plugin_name, response.payload)
        head = _U32.pack(4 + len(message)) + _U32.pack(_header(version, AUTH))
        return [head + message]
    raise EncodeError(f"v2 has no {type(response).__name__}")


def encode_add_response(
    status: Status, ledger_id: int, entry_id: int, version: int = VERSION
) -> bytes:
    header = _ADD_ANSWER_HEADER if version == VERSION else _header(version, ADD)
    return _pack_answer(_ANSWER_SIZE, header, status, ledger_id, entry_id)


def encode_read_response(
    status: Status,
    ledger_id: int,
    entry_id: int,
    entry: Buffer | None,
    version: int = VERSION,
) -> list[Buffer]:
    """`entry` goes as it is; none for any other status than EOK."""
    header = _READ_ANSWER_HEADER if version == VERSION else _header(version, READ)
    if entry is None:
        return [_pack_answer(_ANSWER_SIZE, header, status, ledger_id, entry_id)]
    size = _ANSWER_SIZE + len(entry)
    return [_pack_answer(size, header, status, ledger_id, entry_id), entry]


def _encode_batch_read_response(response: BatchReadResponse, version: int) -> list[Buffer]:
    entries = response.entries
    size = _BATCH_ANSWER_SIZE + BATCH_ENTRY_HEAD_SIZE * len(entries) + sum(map(len, entries))
    parts: list[Buffer] = [
        _FRAME_BATCH_ANSWER.pack(
            size,
            _header(version, BATCH_READ),
            response.status,
            response.ledger_id,
            response.first_entry_id,
            response.transaction_id,
        )
    ]
    for entry in entries:
        parts.append(len(entry).to_bytes(4, "big"))
        parts.append(entry)
    return parts


# -- the client's side -------------------------------------------------------------------------


def encode_request(request: Request) -> list[Buffer]:
    """EncodeError if v2 cannot say it."""
    if type(request) is AddRequest:
        if request.write_flags:
            raise EncodeError(f"v2 has no write flags, {request.write_flags:#x} is asked for")
        return encode_add_request(request.master_key, request.entry, request.flags)
    if type(request) is ReadRequest:
        if request.previous_lac is not None or request.is_piggyback:
            raise EncodeError("v2 has no long poll")
        head = _FRAME_READ.pack(
            _READ_SIZE + _key_size(request),
            VERSION,
            READ,
            request.flags,
            request.ledger_id,
            request.entry_id,
        )
        return [head + (request.master_key or b"")]
    if type(request) is BatchReadRequest:
        head = _FRAME_BATCH_READ.pack(
            _BATCH_READ_SIZE + _key_size(request),
            VERSION,
            BATCH_READ,
            request.flags,
            request.ledger_id,
            request.first_entry_id,
            request.transaction_id,
            request.count_max,
            request.size_max,
        )
        return [head + (request.master_key or b"")]
    if type(request) is AuthRequest:
        message = encode_auth_message(request.plugin_name, request.payload)
        return [_U32.pack(4 + len(message)) + _U32.pack(_header(VERSION, AUTH)) + message]
    raise EncodeError(f"v2 has no {type(request).__name__}")


def encode_add_request(master_key: bytes, entry: Buffers, flags: int = 0) -> list[Buffer]:
    """A frame that is the same for every bookie, so it is made once per entry. The pieces of
    `entry` go as they are."""
    assert len(master_key) == MASTER_KEY_SIZE
    size = _ADD_HEAD_SIZE + sum(map(len, entry))
    return [_pack_add(size, VERSION, ADD, flags, master_key), *entry]


def decode_add_answer(frame: memoryview) -> tuple[int, int, int] | None:
    """(status, ledger id, entry id) if it is the answer to an add, with a status that is known;
    None: see `decode_response`."""
    if len(frame) != _ANSWER_SIZE or frame[1] != ADD:
        return None
    answer: tuple[int, int, int] = _unpack_answer(frame)
    return answer if answer[0] in STATUS_OF_V2 else None


def decode_response(frame: Buffer) -> Response:
    """WireError."""
    view = frame if type(frame) is memoryview else memoryview(frame)
    size = len(view)
    if size < 4:
        raise WireError(f"v2 answer of {size} bytes is shorter than its header (4 bytes)")
    operation = view[1]
    if operation == ADD and size >= _ANSWER_SIZE:
        code, ledger_id, entry_id = _unpack_answer(view)
        return AddResponse(_status(code), ledger_id, entry_id)
    if operation == READ and size >= _ANSWER_SIZE:
        code, ledger_id, entry_id = _unpack_answer(view)
        entry = view[_ANSWER_SIZE:] if size > _ANSWER_SIZE else None
        return ReadResponse(_status(code), ledger_id, entry_id, entry)
    if operation == BATCH_READ and size >= _BATCH_ANSWER_SIZE:
        return _decode_batch_read_response(view)
    if operation == AUTH:
        return AuthResponse(Status.EOK, *parse_auth_message(view[4:]))
    if operation in (ADD, READ, BATCH_READ):
        raise WireError(f"v2 answer to operation {operation} of {size} bytes is cut short")
    raise WireError(f"v2 answer to unknown operation {operation}")


def _decode_batch_read_response(view: memoryview) -> BatchReadResponse:
    code, ledger_id, entry_id = _unpack_answer(view)
    request_id = int.from_bytes(view[_ANSWER_SIZE:_BATCH_ANSWER_SIZE], "big", signed=True)
    entries: list[Buffer] = []
    position, end = _BATCH_ANSWER_SIZE, len(view)
    while position < end:
        start = position + BATCH_ENTRY_HEAD_SIZE
        if start > end:
            raise WireError(
                f"v2 BATCH_READ answer: size of entry {len(entries)} at byte {position} is cut"
            )
        (size,) = _unpack_size(view, position)
        position = start + size
        # Smaller ones cannot be, and would make many objects of few bytes.
        if size < HEADER_SIZE or position > end:
            raise WireError(
                f"v2 BATCH_READ answer: entry {len(entries)} at byte {start} has {size} bytes, "
                f"there are {end - start}, and an entry has at least {HEADER_SIZE}"
            )
        entries.append(view[start:position])
    return BatchReadResponse(_status(code), ledger_id, entry_id, entries, request_id)


# -- both ---------------------------------------------------------------------------------------


def _header(version: int, operation: int) -> int:
    return version << 24 | operation << 16 if version else operation


def _split(header: int) -> tuple[int, int, int]:
    """(version, operation, flags) of a packet header."""
    version = header >> 24
    if version == 0:
        return 0, header & 0xFF, 0
    return version, header >> 16 & 0xFF, header & 0xFFFF


def _check_size(what: str, size: int, size_min: int) -> None:
    if size < size_min:
        raise WireError(f"v2 {what} of {size} bytes is cut short, it has at least {size_min}")


def _fencing_key(
    what: str, view: memoryview, position: int, version: int, flags: int
) -> bytes | None:
    """The master key behind a read, which only fencing ones of version 2 have."""
    if not flags & FLAG_DO_FENCING or version < 2:
        return None
    _check_size(f"fencing {what} request", len(view), position + MASTER_KEY_SIZE)
    return bytes(view[position : position + MASTER_KEY_SIZE])


def _key_size(request: ReadRequest | BatchReadRequest) -> int:
    """EncodeError if the key is not there exactly where v2 has one."""
    key = request.master_key
    has_key = key is not None and len(key) == MASTER_KEY_SIZE
    if has_key != bool(request.flags & FLAG_DO_FENCING) or (key is not None and not has_key):
        raise EncodeError(
            f"v2 reads carry a master key of {MASTER_KEY_SIZE} bytes if they fence, and none else"
        )
    return MASTER_KEY_SIZE if has_key else 0


def _status(code: int) -> Status:
    status = STATUS_OF_V2.get(code)
    if status is None:
        raise WireError(f"v2 answer with unknown status {code}")
    return status
