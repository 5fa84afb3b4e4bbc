"""`quire ledger read`, `write`, `simple-test`, `recover`: entries of one ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import trio

from ledger.errors import LedgerBusyError, LedgerError, LedgerMetadataError
from quire.tools.output import progress
from wire.bookkeeper.entry import Digest, DigestMismatchError, DigestType, parse_header
from wire.bookkeeper.status import LAST_ADD_CONFIRMED_ENTRY, Status
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from ledger.writer import LedgerWriter
    from quire.tools.ledger.cluster import Cluster
    from quire.tools.output import Rows
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

READ_COUNT = 100
READ_SIZE_MAX_BYTES = 1 << 20
#: simpletest's.
PAYLOAD = b"foobar"


@dataclass(slots=True, frozen=True)
class ReadRequest:
    ledger_id: int
    first_entry_id: int = 0
    #: Inclusive; None: up to the end.
    last_entry_id: int | None = None
    with_payload: bool = False
    payload_as_hex: bool = False
    recover: bool = False
    #: Only what this one has.
    bookie: str | None = None
    #: None: as the metadata says.
    password: bytes | None = None


async def read(cluster: Cluster, request: ReadRequest, rows: Rows) -> bool:
    """Adds a row for each entry; false if one is missing or damaged."""
    metadata = (await cluster.manager.read(request.ledger_id)).metadata
    password = request.password if request.password is not None else metadata.password or b""
    if request.bookie is not None:
        if request.recover:
            await cluster.client.open_ledger(request.ledger_id, password=password, recover=True)
            metadata = (await cluster.manager.read(request.ledger_id)).metadata
        return await _read_from(cluster, request, metadata, password, rows)
    reader = await cluster.client.open_ledger(
        request.ledger_id, password=password, recover=request.recover
    )
    last = reader.last_add_confirmed
    if request.last_entry_id is not None:
        last = min(last, request.last_entry_id)
    entry_id = request.first_entry_id
    while entry_id <= last:
        payloads = await reader.read(
            entry_id,
            count_max=min(READ_COUNT, last - entry_id + 1),
            size_max=READ_SIZE_MAX_BYTES,
        )
        for payload in payloads:
            rows.add({"entry": entry_id, "size": len(payload), **_payload(request, payload)})
            entry_id += 1
    return True


def _payload(request: ReadRequest, payload: memoryview) -> dict[str, str]:
    if not request.with_payload:
        return {}
    if request.payload_as_hex:
        return {"payload": payload.hex()}
    text = bytes(payload).decode("utf-8", "backslashreplace")
    return {"payload": "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)}


async def _read_from(
    cluster: Cluster,
    request: ReadRequest,
    metadata: LedgerMetadata,
    password: bytes,
    rows: Rows,
) -> bool:
    """Also entries that are not confirmed. A row tells of an entry that is not there only where
    the bookie should have it."""
    bookie, ledger_id = request.bookie, request.ledger_id
    assert bookie is not None
    if metadata.digest_type is None:
        raise LedgerMetadataError(ledger_id, "its metadata does not tell the digest type")
    digest = Digest(metadata.digest_type, password)
    last = request.last_entry_id
    if last is None:
        last = metadata.last_entry_id
        if not metadata.is_closed:
            status, view = await cluster.bookies.read_entry(
                bookie, ledger_id, LAST_ADD_CONFIRMED_ENTRY
            )
            last = parse_header(view).entry_id if status is Status.EOK else -1
    is_whole = True
    for entry_id in range(request.first_entry_id, last + 1):
        status, view = await cluster.bookies.read_entry(bookie, ledger_id, entry_id)
        row: dict[str, Any] = {"entry": entry_id, "size": None, "status": status.name}
        if status is Status.EOK:
            try:
                payload = digest.open(view, ledger_id, entry_id)
                row |= {"size": len(payload), **_payload(request, payload)}
            except DigestMismatchError:
                row["status"] = "DAMAGED"
        elif not _should_have(metadata, entry_id, bookie):
            continue
        is_whole = is_whole and row["status"] == Status.EOK.name
        rows.add(row)
    return is_whole


def _should_have(metadata: LedgerMetadata, entry_id: int, bookie: str) -> bool:
    from ledger.fragments import schedule_of

    ensemble = metadata.ensemble_at(entry_id)
    return bookie in [ensemble[index] for index in schedule_of(metadata).write_set(entry_id)]


@dataclass(slots=True, frozen=True)
class WriteRequest:
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    count: int
    #: None: simpletest's six bytes.
    size: int | None = None
    digest_type: DigestType = DigestType.CRC32C
    password: bytes = b""
    is_deleted: bool = False


async def write(cluster: Cluster, request: WriteRequest) -> dict[str, Any]:
    """A new ledger with that many entries, closed, and read back."""
    try:
        writer = await cluster.client.create_ledger(
            ensemble_size=request.ensemble_size,
            write_quorum_size=request.write_quorum_size,
            ack_quorum_size=request.ack_quorum_size,
            digest_type=request.digest_type,
            password=request.password,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    payload = PAYLOAD if request.size is None else bytes(request.size)
    start = trio.current_time()
    with progress("write", request.count * len(payload)) as step:
        await _append_all(writer, payload, request.count, step)
    metadata = await writer.close()
    written = trio.current_time()
    read_count = await _read_back(cluster, writer.ledger_id, request.password, payload)
    finished = trio.current_time()
    if request.is_deleted:
        await cluster.client.delete_ledger(writer.ledger_id)
    return {
        "ledger": writer.ledger_id,
        "last_entry": metadata.last_entry_id,
        "length_bytes": metadata.length,
        "ensemble": list(metadata.last_segment[1]),
        "write_seconds": round(written - start, 3),
        "read_seconds": round(finished - written, 3),
        "entries_read": read_count,
        "deleted": request.is_deleted,
    }


async def _append_all(
    writer: LedgerWriter, payload: bytes, count: int, step: Callable[[int], None]
) -> None:
    done_count, failure = 0, None
    finished = trio.Event()

    def done(_entry_id: int, error: LedgerError | None) -> None:
        nonlocal done_count, failure
        done_count += 1
        failure = failure or error
        step(len(payload))
        if done_count == count:
            finished.set()

    for _ in range(count):
        while not writer.has_room:
            room = trio.Event()
            writer.when_room(room.set)
            await room.wait()
        try:
            writer.append_nowait((payload,), done)
        except LedgerBusyError:  # the window is bounded, and there was room for one
            raise AssertionError("has_room told otherwise") from None
    if count:
        await finished.wait()
    if failure is not None:
        raise failure


async def _read_back(cluster: Cluster, ledger_id: int, password: bytes, payload: bytes) -> int:
    reader = await cluster.client.open_ledger(ledger_id, password=password, recover=False)
    entry_id = 0
    while entry_id <= reader.last_add_confirmed:
        for found in await reader.read(
            entry_id, count_max=READ_COUNT, size_max=READ_SIZE_MAX_BYTES
        ):
            if found != payload:
                raise click.ClickException(f"ledger {ledger_id} entry {entry_id} was read wrong")
            entry_id += 1
    return entry_id


async def recover(cluster: Cluster, ledger_id: int, password: bytes | None) -> dict[str, Any]:
    """Fences the ledger and closes it; fine if it is closed."""
    before = (await cluster.manager.read(ledger_id)).metadata
    secret = password if password is not None else before.password or b""
    reader = await cluster.client.open_ledger(ledger_id, password=secret, recover=True)
    return {
        "ledger": ledger_id,
        "was": before.state.name,
        "state": reader.metadata.state.name,
        "last_entry": reader.metadata.last_entry_id,
        "length_bytes": reader.metadata.length,
    }
