"""What a bookie can be asked, whatever protocol version says it (docs/formats.md).

`transaction_id` is what the answer is recognised by: v3's txnId, and in v2 the request id of batch
reads; all other v2 answers are recognised by operation, ledger and entry, and have 0 there.
`flags` are FLAG_* of status.py in both versions (v3 says them in the header's priority and the
request's flag). What only one version can say is marked; encoding it in the other is an
EncodeError.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

from wire.bookkeeper.status import BOOKIE_INFO_FREE_SPACE, BOOKIE_INFO_TOTAL_SPACE, Status
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from wire.buffers import Buffer, Buffers


class Operation(IntEnum):
    """Numbered as v3's OperationType. 3 and 4 (range reads and adds) were never implemented; 12
    has a number in v3, but no messages."""

    READ_ENTRY = 1
    ADD_ENTRY = 2
    AUTH = 5
    WRITE_LAC = 6
    READ_LAC = 7
    GET_BOOKIE_INFO = 8
    START_TLS = 9
    FORCE_LEDGER = 10
    GET_LIST_OF_ENTRIES_OF_LEDGER = 11
    BATCH_READ_ENTRY = 12


@dataclass(slots=True)
class AddRequest:
    """Store one entry. `entry` is header, MAC and payload (entry.py) in pieces; decoded, one view
    into the frame. The ids are repeated outside of it: v2 reads them from the entry, v3 has them
    in fields of their own, so a bookie compares. `flags`: RECOVERY_ADD, HIGH_PRIORITY.
    `write_flags` (v3): DEFERRED_SYNC."""

    ledger_id: int
    entry_id: int
    master_key: bytes
    entry: Buffers
    flags: int = 0
    write_flags: int = 0
    transaction_id: int = 0


@dataclass(slots=True)
class ReadRequest:
    """One entry; -1 is the one with the highest id. `flags`: DO_FENCING (then with the master key;
    a bookie answers EUA without), HIGH_PRIORITY.

    v3: with `previous_lac` a long poll, that waits at most `timeout_ms` for a higher LAC;
    `is_piggyback` asks for the entry behind `previous_lac` with it."""

    ledger_id: int
    entry_id: int
    flags: int = 0
    master_key: bytes | None = None
    previous_lac: int | None = None
    timeout_ms: int | None = None
    is_piggyback: bool = False
    transaction_id: int = 0


@dataclass(slots=True)
class BatchReadRequest:
    """v2: consecutive entries. `count_max` <= 0: no limit. `size_max` in bytes of the answer's
    frame (v2.BATCH_HEAD_SIZE and per entry BATCH_ENTRY_HEAD_SIZE count); the first entry always
    goes. `flags` and `master_key` as for ReadRequest."""

    ledger_id: int
    first_entry_id: int
    count_max: int
    size_max: int
    flags: int = 0
    master_key: bytes | None = None
    transaction_id: int = 0


@dataclass(slots=True)
class WriteLacRequest:
    """v3: keep an explicit LAC. `packet` is Digest.seal_lac's; a bookie does not look into it."""

    ledger_id: int
    last_add_confirmed: int
    master_key: bytes
    packet: Buffer
    transaction_id: int = 0


@dataclass(slots=True)
class ReadLacRequest:
    """v3: the explicit LAC and the last entry."""

    ledger_id: int
    transaction_id: int = 0


@dataclass(slots=True)
class ForceLedgerRequest:
    """v3: answer when all that was added so far is synced."""

    ledger_id: int
    transaction_id: int = 0


@dataclass(slots=True)
class BookieInfoRequest:
    """v3: sizes of the bookie's disks. `requested`: BOOKIE_INFO_* of status.py, or'ed."""

    requested: int = BOOKIE_INFO_TOTAL_SPACE | BOOKIE_INFO_FREE_SPACE
    transaction_id: int = 0


@dataclass(slots=True)
class ListEntriesRequest:
    """v3: which entries of the ledger the bookie has."""

    ledger_id: int
    transaction_id: int = 0


@dataclass(slots=True)
class AuthRequest:
    """One step of the authentication plugin that it names."""

    plugin_name: str
    payload: bytes
    transaction_id: int = 0


@dataclass(slots=True)
class StartTlsRequest:
    """v3: the next bytes after the answer are TLS."""

    transaction_id: int = 0


@dataclass(slots=True)
class RefusedRequest:
    """v3: a frame that is a request by its header, but of an operation or protocol version that
    does not exist. To be answered with `status`, by ErrorResponse."""

    operation: int
    status: Status
    transaction_id: int = 0


#: The ordinary add without an object: flags, master key, ledger id, entry id, the entry, and the
#: frame that answers it with EOK.
PlainAdd: TypeAlias = "tuple[int, bytes, int, int, Buffers, bytes]"

Request: TypeAlias = (
    AddRequest
    | ReadRequest
    | BatchReadRequest
    | WriteLacRequest
    | ReadLacRequest
    | ForceLedgerRequest
    | BookieInfoRequest
    | ListEntriesRequest
    | AuthRequest
    | StartTlsRequest
    | RefusedRequest
)
