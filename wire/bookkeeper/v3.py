"""BookKeeper's protobuf protocol, «v3», both sides (BookkeeperProtocol.proto; docs/formats.md).

Every request has a transaction id that its answer repeats. Encoders give whole frames, size in
front; decoders take one without its size. What carries entries in bulk is done in v3_entries.py,
all else by the protobuf library (its C implementation: in pure Python it is twenty times slower).
Decoders raise WireError for whatever is malformed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from wire.bookkeeper.errors import EncodeError, WireError
from wire.bookkeeper.requests import (
    AddRequest,
    AuthRequest,
    BookieInfoRequest,
    ForceLedgerRequest,
    ListEntriesRequest,
    Operation,
    ReadLacRequest,
    ReadRequest,
    RefusedRequest,
    Request,
    StartTlsRequest,
    WriteLacRequest,
)
from wire.bookkeeper.responses import (
    OPERATION_OF,
    AddResponse,
    AuthResponse,
    BookieInfoResponse,
    ErrorResponse,
    ForceLedgerResponse,
    ListEntriesResponse,
    ReadLacResponse,
    ReadResponse,
    Response,
    StartTlsResponse,
    WriteLacResponse,
)
from wire.bookkeeper.status import (
    FLAG_DO_FENCING,
    FLAG_HIGH_PRIORITY,
    FLAG_RECOVERY_ADD,
    STATUS_OF_V3,
    V3_OF_STATUS,
    Status,
)
from wire.bookkeeper.v3_entries import (
    HIGH_PRIORITY,
    decode_add_request,
    decode_read_response,
    encode_add_request,
    encode_add_response,
    encode_read_response,
)
from wire.bookkeeper.v3_schema import RequestMessage, ResponseMessage

if TYPE_CHECKING:
    from wire.bookkeeper.protobuf_schema import Message
    from wire.buffers import Buffer

VERSION = 3

_FENCE_LEDGER, _ENTRY_PIGGYBACK = 1, 2
_RECOVERY_ADD = 1

#: The fields of Request and Response that belong to each operation.
_FIELDS: dict[int, tuple[str, str]] = {
    Operation.READ_ENTRY: ("readRequest", "readResponse"),
    Operation.ADD_ENTRY: ("addRequest", "addResponse"),
    Operation.AUTH: ("authRequest", "authResponse"),
    Operation.WRITE_LAC: ("writeLacRequest", "writeLacResponse"),
    Operation.READ_LAC: ("readLacRequest", "readLacResponse"),
    Operation.GET_BOOKIE_INFO: ("getBookieInfoRequest", "getBookieInfoResponse"),
    Operation.START_TLS: ("startTLSRequest", "startTLSResponse"),
    Operation.FORCE_LEDGER: ("forceLedgerRequest", "forceLedgerResponse"),
    Operation.GET_LIST_OF_ENTRIES_OF_LEDGER: (
        "getListOfEntriesOfLedgerRequest",
        "getListOfEntriesOfLedgerResponse",
    ),
}


# -- the server's side -------------------------------------------------------------------------


def decode_request(frame: Buffer) -> Request:
    """WireError; RefusedRequest for what is a request by its header, and unknown."""
    view = frame if type(frame) is memoryview else memoryview(frame)
    add = decode_add_request(view)
    if add is not None:
        return add
    message = _parsed(RequestMessage(), view, "request")
    header = message.header
    operation, transaction_id = header.operation, header.txnId
    if header.version != VERSION:
        return RefusedRequest(operation, Status.EBADVERSION, transaction_id)
    fields = _FIELDS.get(operation)
    if fields is None or not message.HasField(fields[0]):
        return RefusedRequest(operation, Status.EBADREQ, transaction_id)
    inner = getattr(message, fields[0])
    flags = FLAG_HIGH_PRIORITY if header.priority else 0
    if operation == Operation.READ_ENTRY:
        return _read_request(inner, flags, transaction_id)
    if operation == Operation.ADD_ENTRY:
        if inner.flag == _RECOVERY_ADD:
            flags |= FLAG_RECOVERY_ADD
        return AddRequest(
            inner.ledgerId,
            inner.entryId,
            inner.masterKey,
            (memoryview(inner.body),),
            flags,
            inner.writeFlags,
            transaction_id,
        )
    return _seldom_request(operation, inner, transaction_id)


def _read_request(inner: Message, flags: int, transaction_id: int) -> ReadRequest:
    if inner.flag == _FENCE_LEDGER:
        flags |= FLAG_DO_FENCING
    return ReadRequest(
        inner.ledgerId,
        inner.entryId,
        flags,
        inner.masterKey if inner.HasField("masterKey") else None,
        inner.previousLAC if inner.HasField("previousLAC") else None,
        inner.timeOut if inner.HasField("timeOut") else None,
        inner.flag == _ENTRY_PIGGYBACK,
        transaction_id,
    )


def _seldom_request(operation: int, inner: Message, transaction_id: int) -> Request:
    match operation:
        case Operation.WRITE_LAC:
            return WriteLacRequest(
                inner.ledgerId, inner.lac, inner.masterKey, inner.body, transaction_id
            )
        case Operation.READ_LAC:
            return ReadLacRequest(inner.ledgerId, transaction_id)
        case Operation.FORCE_LEDGER:
            return ForceLedgerRequest(inner.ledgerId, transaction_id)
        case Operation.GET_BOOKIE_INFO:
            return BookieInfoRequest(inner.requested, transaction_id)
        case Operation.GET_LIST_OF_ENTRIES_OF_LEDGER:
            return ListEntriesRequest(inner.ledgerId, transaction_id)
        case Operation.AUTH:
            return AuthRequest(_plugin_name(inner), inner.payload, transaction_id)
        case _:
            assert operation == Operation.START_TLS
            return StartTlsRequest(transaction_id)


def encode_response(response: Response) -> list[Buffer]:
    """EncodeError if v3 has no such answer."""
    if type(response) is AddResponse:
        return [
            encode_add_response(
                response.transaction_id, response.status, response.ledger_id, response.entry_id
            )
        ]
    if type(response) is ReadResponse:
        return encode_read_response(response)
    message = ResponseMessage()
    if type(response) is ErrorResponse:
        operation = response.operation
    else:
        operation = OPERATION_OF[type(response)]
        if operation not in _FIELDS:
            raise EncodeError(f"v3 has no {type(response).__name__}")
        _fill_response(getattr(message, _FIELDS[operation][1]), response)
    message.header.version = VERSION
    message.header.operation = operation
    message.header.txnId = response.transaction_id
    message.status = V3_OF_STATUS[response.status]
    return [_framed(message)]


def _fill_response(inner: Message, response: Response) -> None:
    match response:
        case WriteLacResponse() | ForceLedgerResponse():
            inner.ledgerId = response.ledger_id
        case ReadLacResponse():
            inner.ledgerId = response.ledger_id
            _set(inner, "lacBody", _bytes(response.packet))
            _set(inner, "lastEntryBody", _bytes(response.last_entry))
        case BookieInfoResponse():
            _set(inner, "totalDiskCapacity", response.total_space_bytes)
            _set(inner, "freeDiskSpace", response.free_space_bytes)
        case ListEntriesResponse():
            inner.ledgerId = response.ledger_id
            _set(inner, "availabilityOfEntriesOfLedger", _bytes(response.entries))
        case AuthResponse():
            inner.authPluginName = response.plugin_name
            inner.payload = response.payload
            return
        case _:
            assert type(response) is StartTlsResponse
            inner.SetInParent()
            return
    inner.status = V3_OF_STATUS[response.status]


# -- the client's side -------------------------------------------------------------------------


def encode_request(request: Request) -> list[Buffer]:
    """EncodeError if v3 cannot say it."""
    if type(request) is AddRequest:
        return encode_add_request(
            request.transaction_id,
            request.ledger_id,
            request.entry_id,
            request.master_key,
            request.entry,
            request.flags,
            request.write_flags,
        )
    operation = OPERATION_OF.get(type(request))
    if operation not in _FIELDS:
        raise EncodeError(f"v3 has no {type(request).__name__}")
    message = RequestMessage()
    header = message.header
    header.version = VERSION
    header.operation = operation
    header.txnId = request.transaction_id
    inner = getattr(message, _FIELDS[operation][0])
    if type(request) is ReadRequest:
        if request.flags & FLAG_HIGH_PRIORITY:
            header.priority = HIGH_PRIORITY
        _fill_read_request(inner, request)
    else:
        _fill_request(inner, request)
    return [_framed(message)]


def _fill_read_request(inner: Message, request: ReadRequest) -> None:
    inner.ledgerId = request.ledger_id
    inner.entryId = request.entry_id
    _set(inner, "masterKey", request.master_key)
    _set(inner, "previousLAC", request.previous_lac)
    _set(inner, "timeOut", request.timeout_ms)
    if request.flags & FLAG_DO_FENCING:
        if request.is_piggyback:
            raise EncodeError("v3 reads either fence or piggyback, there is one flag for both")
        inner.flag = _FENCE_LEDGER
    elif request.is_piggyback:
        inner.flag = _ENTRY_PIGGYBACK


def _fill_request(inner: Message, request: Request) -> None:
    match request:
        case WriteLacRequest():
            inner.ledgerId = request.ledger_id
            inner.lac = request.last_add_confirmed
            inner.masterKey = request.master_key
            inner.body = bytes(request.packet)
        case ReadLacRequest() | ForceLedgerRequest() | ListEntriesRequest():
            inner.ledgerId = request.ledger_id
        case BookieInfoRequest():
            inner.requested = request.requested
        case AuthRequest():
            inner.authPluginName = request.plugin_name
            inner.payload = request.payload
        case _:
            assert type(request) is StartTlsRequest
            inner.SetInParent()


def decode_response(frame: Buffer) -> Response:
    """WireError."""
    view = frame if type(frame) is memoryview else memoryview(frame)
    read = decode_read_response(view)
    if read is not None:
        return read
    message = _parsed(ResponseMessage(), view, "answer")
    operation, transaction_id = message.header.operation, message.header.txnId
    fields = _FIELDS.get(operation)
    if fields is None or not message.HasField(fields[1]):
        if message.status == 0:
            raise WireError(f"v3 answer to operation {operation} is EOK, and nothing else")
        return ErrorResponse(_status(message.status), operation, transaction_id)
    inner = getattr(message, fields[1])
    if operation == Operation.AUTH:
        return AuthResponse(
            _status(message.status), _plugin_name(inner), inner.payload, transaction_id
        )
    if operation == Operation.START_TLS:
        return StartTlsResponse(_status(message.status), transaction_id)
    status = _status(inner.status)
    if operation == Operation.ADD_ENTRY:
        return AddResponse(status, inner.ledgerId, inner.entryId, transaction_id)
    if operation == Operation.READ_ENTRY:
        return ReadResponse(
            status,
            inner.ledgerId,
            inner.entryId,
            _view(inner, "body"),
            inner.maxLAC if inner.HasField("maxLAC") else None,
            inner.lacUpdateTimestamp if inner.HasField("lacUpdateTimestamp") else None,
            transaction_id,
        )
    return _seldom_response(operation, status, inner, transaction_id)


def _seldom_response(
    operation: int, status: Status, inner: Message, transaction_id: int
) -> Response:
    match operation:
        case Operation.WRITE_LAC:
            return WriteLacResponse(status, inner.ledgerId, transaction_id)
        case Operation.READ_LAC:
            return ReadLacResponse(
                status,
                inner.ledgerId,
                _view(inner, "lacBody"),
                _view(inner, "lastEntryBody"),
                transaction_id,
            )
        case Operation.FORCE_LEDGER:
            return ForceLedgerResponse(status, inner.ledgerId, transaction_id)
        case Operation.GET_BOOKIE_INFO:
            return BookieInfoResponse(
                status,
                inner.totalDiskCapacity if inner.HasField("totalDiskCapacity") else None,
                inner.freeDiskSpace if inner.HasField("freeDiskSpace") else None,
                transaction_id,
            )
        case _:
            assert operation == Operation.GET_LIST_OF_ENTRIES_OF_LEDGER
            entries = _view(inner, "availabilityOfEntriesOfLedger")
            return ListEntriesResponse(status, inner.ledgerId, entries, transaction_id)


# -- both ---------------------------------------------------------------------------------------


def _parsed(message: Message, view: memoryview, what: str) -> Message:
    try:
        message.ParseFromString(view)
    except DecodeError as error:
        raise WireError(f"v3 {what} of {len(view)} bytes is no protobuf: {error}") from error
    if not message.IsInitialized():
        missing = ", ".join(message.FindInitializationErrors())
        raise WireError(f"v3 {what} of {len(view)} bytes lacks {missing}")
    return message


def _framed(message: Message) -> bytes:
    frame: bytes = message.SerializeToString()
    return len(frame).to_bytes(4, "big") + frame


def _plugin_name(inner: Message) -> str:
    # What is no UTF-8 comes as bytes, as proto2 has it.
    name = inner.authPluginName
    if not isinstance(name, str):
        raise WireError(f"v3 AUTH: plugin name {name!r} is no UTF-8")
    return name


def _status(code: int) -> Status:
    status = STATUS_OF_V3.get(code)
    if status is None:
        raise WireError(f"v3 answer with unknown status {code}")
    return status


def _set(inner: Message, name: str, value: object) -> None:
    if value is not None:
        setattr(inner, name, value)


def _bytes(value: Buffer | None) -> bytes | None:
    return None if value is None else bytes(value)


def _view(inner: Message, name: str) -> memoryview | None:
    return memoryview(getattr(inner, name)) if inner.HasField(name) else None
