"""/api/v1/ledger: delete, list, metadata, read (BookKeeper's DeleteLedgerService,
ListLedgerService, GetLedgerMetaService, ReadLedgerEntryService).

Lists and entries are streamed: a node of the metadata tree, or a run of entries, at a time.
"""

from __future__ import annotations

import base64
import json
from contextlib import aclosing
from typing import TYPE_CHECKING

import trio

from ledger.errors import LedgerError, NoSuchEntryError, NoSuchLedgerError
from ledger.ledger_walk import walk_ledger_ids
from ledger.metadata import ledger_path
from metadata.store import MetadataError, NoNodeError
from quire.tools.admin.context import flag, ledger_id_of, number
from runtime.http import JSON, HttpError, HttpResponse, json_response
from wire.bookkeeper.ledger_metadata import MetadataFormatError, parse

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from ledger.reader import LedgerReader
    from quire.tools.admin.context import AdminContext
    from runtime.http import HttpRequest
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

#: LIST_LEDGER_BATCH_SIZE: ledgers with their metadata in a page.
LIST_PAGE_COUNT = 100
#: ENTRIES_PER_PAE
READ_PAGE_COUNT = 1000
READ_RUN_COUNT = 100
READ_RUN_SIZE_BYTES = 256 * 1024

#: Who made a ledger, in its custom metadata; ours are parts of partitions.
APPLICATION = "quire"


async def list_ledgers(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """GET. print_metadata=true, decode_meta=true; page=N (with metadata only, as BookKeeper's:
    its first page has 99)."""
    with_metadata = flag(request, "print_metadata")
    page = number(request, "page", -1) if with_metadata else -1
    # BookKeeper counts ledgers from 1 and pages from 0 here.
    first = max((page - 1) * LIST_PAGE_COUNT, 1) if page > 0 else 1
    last = page * LIST_PAGE_COUNT - 1 if page > 0 else -1
    is_decoded = flag(request, "decode_meta")

    async def members() -> AsyncGenerator[str, None]:
        portions = walk_ledger_ids(context.store, context.ledgers_root)
        async with aclosing(_slice(portions, first, last)) as slices:
            async for ids in slices:
                if with_metadata:
                    found = await _described(context, ids, is_decoded)
                else:
                    found = [f'  "{ledger_id}" : null' for ledger_id in ids]
                    await trio.lowlevel.checkpoint()
                if found:
                    yield ",\n".join(found)

    return HttpResponse(200, _json_stream(members()), JSON)


async def _slice(
    portions: AsyncGenerator[list[int], None], first: int, last: int
) -> AsyncGenerator[list[int], None]:
    """The ids from the `first`th to the `last`th (counted from 1; -1: to the end), at most
    LIST_PAGE_COUNT at a time."""
    before = 0
    async with aclosing(portions):
        async for ids in portions:
            end = len(ids) if last < 0 else min(max(last - before, 0), len(ids))
            for start in range(max(first - before - 1, 0), end, LIST_PAGE_COUNT):
                yield ids[start : min(start + LIST_PAGE_COUNT, end)]
            before += len(ids)
            if 0 <= last <= before:
                return


async def _described(context: AdminContext, ids: Sequence[int], is_decoded: bool) -> list[str]:
    """Members of the answer for these ledgers; one that was deleted meanwhile is left out."""
    nodes = await context.store.get_many([ledger_path(context.ledgers_root, i) for i in ids])
    members = []
    for ledger_id, node in zip(ids, nodes, strict=True):
        if node is None:
            continue
        value: object = node.data.decode(errors="replace")
        if is_decoded:
            try:
                value = metadata_json(ledger_id, node.data)
            except MetadataFormatError as error:
                value = {"ledgerId": ledger_id, "error": f"bad metadata: {error}"}
        members.append(f'  "{ledger_id}" : {json.dumps(value, ensure_ascii=False)}')
    return members


async def _json_stream(members: AsyncGenerator[str, None]) -> AsyncGenerator[bytes, None]:
    """A JSON object of members, of which several may come at a time with commas in between."""
    separator = "{\n"
    try:
        async for member in members:
            yield (separator + member).encode()
            separator = ",\n"
        yield b"{ }\n" if separator == "{\n" else b"\n}\n"
    except LedgerError as error:
        raise _http_error(error) from error
    except MetadataError as error:
        raise HttpError(503, f"metadata: {error}") from error
    finally:
        await members.aclose()


async def get_metadata(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """GET ledger_id=N."""
    ledger_id = ledger_id_of(request)
    data = await _stored_metadata(context, ledger_id)
    try:
        return json_response({str(ledger_id): metadata_json(ledger_id, data)})
    except MetadataFormatError as error:
        raise HttpError(500, f"ledger {ledger_id}: bad metadata: {error}") from error


async def _stored_metadata(context: AdminContext, ledger_id: int) -> bytes:
    try:
        return (await context.store.get(ledger_path(context.ledgers_root, ledger_id))).data
    except NoNodeError as error:
        raise HttpError(404, f"there is no ledger {ledger_id}") from error
    except MetadataError as error:
        raise HttpError(503, f"metadata: {error}") from error


def metadata_json(ledger_id: int, data: bytes) -> dict[str, object]:
    """What BookKeeper writes of its LedgerMetadataImpl. MetadataFormatError."""
    metadata = parse(data)
    digest_type = metadata.digest_type
    return {
        "ledgerId": ledger_id,
        "metadataFormatVersion": _format_version(data),
        "ensembleSize": metadata.ensemble_size,
        "writeQuorumSize": metadata.write_quorum_size,
        "ackQuorumSize": metadata.ack_quorum_size,
        "state": metadata.state.name,
        "length": metadata.length,
        "lastEntryId": metadata.last_entry_id,
        "ctime": metadata.ctime_ms if metadata.ctime_ms is not None else -1,
        "digestType": digest_type.name if digest_type is not None else None,
        "password": _base64(metadata.password or b""),
        "customMetadata": {
            name: _base64(value) for name, value in metadata.custom_metadata.items()
        },
        "closed": metadata.is_closed,
        "allEnsembles": {
            str(first_entry_id): [{"id": bookie} for bookie in bookies]
            for first_entry_id, bookies in metadata.segments
        },
        "ctoken": metadata.ctoken,
    }


def _format_version(data: bytes) -> int:
    """The number in the first line, which `parse` has found to be one."""
    return int(data.partition(b"\n")[0].partition(b"\t")[2])


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def read(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """GET ledger_id=N, start_entry_id, end_entry_id (inclusive), page=N of 1000 entries. Payloads
    as ASCII text, what is none as U+FFFD. As far as entries are confirmed; does not recover."""
    ledger_id = ledger_id_of(request)
    start = max(number(request, "start_entry_id", 0), 0)
    end = number(request, "end_entry_id", -1)
    page = number(request, "page", -1)
    if page > 0:
        first_in_page = (page - 1) * READ_PAGE_COUNT
        last_in_page = first_in_page + READ_PAGE_COUNT - 1
        start = max(start, first_in_page)
        end = last_in_page if end == -1 else min(end, last_in_page)
    if end != -1 and start > end:
        raise HttpError(400, f"start_entry_id {start} is after end_entry_id {end} (page {page})")
    stored = await _stored_metadata(context, ledger_id)
    try:
        metadata = parse(stored)
        reader = await context.ledgers.open_ledger(
            ledger_id, password=metadata.password or b"", recover=False
        )
    except MetadataFormatError as error:
        raise HttpError(500, f"ledger {ledger_id}: bad metadata: {error}") from error
    except LedgerError as error:
        raise _http_error(error) from error
    last = reader.last_add_confirmed
    members = _entries(reader, start, last if end == -1 else min(end, last), page)
    return HttpResponse(200, _json_stream(members), JSON)


async def _entries(
    reader: LedgerReader, entry_id: int, last_entry_id: int, page: int
) -> AsyncGenerator[str, None]:
    members = [f'  "Entries for page: " : "{page}"'] if page > 0 else []
    while entry_id <= last_entry_id:
        payloads = await reader.read(
            entry_id,
            count_max=min(READ_RUN_COUNT, last_entry_id - entry_id + 1),
            size_max=READ_RUN_SIZE_BYTES,
        )
        for payload in payloads:
            text = bytes(payload).decode("ascii", "replace")
            members.append(f'  "{entry_id}" : {json.dumps(text, ensure_ascii=False)}')
            entry_id += 1
        yield ",\n".join(members)
        members = []
    if members:
        yield members[0]


async def delete(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """DELETE ledger_id=N: from the metadata; bookies find out at their next garbage collection.
    Fine if it is gone. 409 for a part of a partition, unless force=true: readers would miss it."""
    ledger_id = ledger_id_of(request)
    if not flag(request, "force"):
        await _check_free(context, ledger_id)
    try:
        await context.ledgers.delete_ledger(ledger_id)
    except LedgerError as error:
        raise _http_error(error) from error
    return json_response(f"Deleted ledger: {ledger_id}")


async def _check_free(context: AdminContext, ledger_id: int) -> None:
    try:
        metadata = parse(await _stored_metadata(context, ledger_id))
    except MetadataFormatError:
        return  # whatever it was, it can be of use to nobody
    except HttpError as error:
        if error.status == 404:
            return
        raise
    if owner := partition_of(metadata):
        raise HttpError(
            409,
            f"ledger {ledger_id} is a part of {owner}, which would lose records: delete records or "
            "the topic instead, or add force=true",
        )


def partition_of(metadata: LedgerMetadata) -> str:
    """The partition that a ledger was made for, "" if it is none of ours."""
    custom = metadata.custom_metadata
    if custom.get("application") != APPLICATION.encode():
        return ""
    topic, partition = (custom.get(name, b"?").decode() for name in ("topic", "partition"))
    return f"partition {topic}-{partition}"


def _http_error(error: LedgerError) -> HttpError:
    missing = isinstance(error, NoSuchLedgerError | NoSuchEntryError)
    return HttpError(404 if missing else 500, str(error))
