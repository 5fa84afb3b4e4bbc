"""What a bookie answers, whatever protocol version says it (requests.py)."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, TypeAlias

from wire.bookkeeper.requests import (
    AddRequest,
    AuthRequest,
    BatchReadRequest,
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
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from wire.bookkeeper.status import Status
    from wire.buffers import Buffer


@dataclass(slots=True)
class AddResponse:
    status: Status
    ledger_id: int
    entry_id: int
    transaction_id: int = 0


@dataclass(slots=True)
class ReadResponse:
    """`entry_id` is the requested one, so -1 for a last entry: its own id is in `entry`. A long
    poll that brings an entry has that entry's id here. `entry` is None unless EOK (and may be then,
    for a long poll).

    v3: `max_lac` is the bookie's LAC, on every answer except to fencing reads;
    `lac_update_time_ms` since the epoch, when a long poll's LAC came."""

    status: Status
    ledger_id: int
    entry_id: int
    entry: Buffer | None = None
    max_lac: int | None = None
    lac_update_time_ms: int | None = None
    transaction_id: int = 0


@dataclass(slots=True)
class BatchReadResponse:
    """v2. Consecutive entries from `first_entry_id` on; none unless EOK."""

    status: Status
    ledger_id: int
    first_entry_id: int
    entries: list[Buffer] = field(default_factory=list)
    transaction_id: int = 0


@dataclass(slots=True)
class WriteLacResponse:
    status: Status
    ledger_id: int
    transaction_id: int = 0


@dataclass(slots=True)
class ReadLacResponse:
    """`packet`: the explicit LAC's, if any; `last_entry`: the entry with the highest id, if any."""

    status: Status
    ledger_id: int
    packet: Buffer | None = None
    last_entry: Buffer | None = None
    transaction_id: int = 0


@dataclass(slots=True)
class ForceLedgerResponse:
    status: Status
    ledger_id: int
    transaction_id: int = 0


@dataclass(slots=True)
class BookieInfoResponse:
    status: Status
    total_space_bytes: int | None = None
    free_space_bytes: int | None = None
    transaction_id: int = 0


@dataclass(slots=True)
class ListEntriesResponse:
    """`entries` is an EntrySet's encoding (entry_set.py)."""

    status: Status
    ledger_id: int
    entries: Buffer | None = None
    transaction_id: int = 0


@dataclass(slots=True)
class AuthResponse:
    """`status` only in v3; v2 has no room for one and reads as EOK."""

    status: Status
    plugin_name: str
    payload: bytes
    transaction_id: int = 0


@dataclass(slots=True)
class StartTlsResponse:
    status: Status
    transaction_id: int = 0


@dataclass(slots=True)
class ErrorResponse:
    """v3: a status and nothing of the operation's own; to what could not be understood or is not
    allowed before authentication. `operation` as it was sent, known or not."""

    status: Status
    operation: int
    transaction_id: int = 0


Response: TypeAlias = (
    AddResponse
    | ReadResponse
    | BatchReadResponse
    | WriteLacResponse
    | ReadLacResponse
    | ForceLedgerResponse
    | BookieInfoResponse
    | ListEntriesResponse
    | AuthResponse
    | StartTlsResponse
    | ErrorResponse
)


def refusal(request: Request, status: Status) -> Response:
    """The answer to `request` that says nothing but `status` (not EOK)."""
    assert status, "a refusal needs a reason"
    transaction_id = request.transaction_id
    match request:
        case AddRequest(ledger_id, entry_id):
            return AddResponse(status, ledger_id, entry_id, transaction_id)
        case ReadRequest(ledger_id, entry_id):
            return ReadResponse(status, ledger_id, entry_id, transaction_id=transaction_id)
        case BatchReadRequest(ledger_id, entry_id):
            return BatchReadResponse(status, ledger_id, entry_id, [], transaction_id)
        case WriteLacRequest(ledger_id):
            return WriteLacResponse(status, ledger_id, transaction_id)
        case ReadLacRequest(ledger_id):
            return ReadLacResponse(status, ledger_id, transaction_id=transaction_id)
        case ForceLedgerRequest(ledger_id):
            return ForceLedgerResponse(status, ledger_id, transaction_id)
        case BookieInfoRequest():
            return BookieInfoResponse(status, transaction_id=transaction_id)
        case ListEntriesRequest(ledger_id):
            return ListEntriesResponse(status, ledger_id, transaction_id=transaction_id)
        case AuthRequest(plugin_name):
            return AuthResponse(status, plugin_name, b"", transaction_id)
        case StartTlsRequest():
            return StartTlsResponse(status, transaction_id)
        case RefusedRequest(operation):
            return ErrorResponse(status, operation, transaction_id)


#: What each answer answers, as v3's header says it.
OPERATION_OF: dict[type, Operation] = {
    AddRequest: Operation.ADD_ENTRY,
    AddResponse: Operation.ADD_ENTRY,
    ReadRequest: Operation.READ_ENTRY,
    ReadResponse: Operation.READ_ENTRY,
    BatchReadRequest: Operation.BATCH_READ_ENTRY,
    BatchReadResponse: Operation.BATCH_READ_ENTRY,
    WriteLacRequest: Operation.WRITE_LAC,
    WriteLacResponse: Operation.WRITE_LAC,
    ReadLacRequest: Operation.READ_LAC,
    ReadLacResponse: Operation.READ_LAC,
    ForceLedgerRequest: Operation.FORCE_LEDGER,
    ForceLedgerResponse: Operation.FORCE_LEDGER,
    BookieInfoRequest: Operation.GET_BOOKIE_INFO,
    BookieInfoResponse: Operation.GET_BOOKIE_INFO,
    ListEntriesRequest: Operation.GET_LIST_OF_ENTRIES_OF_LEDGER,
    ListEntriesResponse: Operation.GET_LIST_OF_ENTRIES_OF_LEDGER,
    AuthRequest: Operation.AUTH,
    AuthResponse: Operation.AUTH,
    StartTlsRequest: Operation.START_TLS,
    StartTlsResponse: Operation.START_TLS,
}
