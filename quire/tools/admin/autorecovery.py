"""The pages of auto-recovery, as BookKeeper's services (bookkeeper-server 4.17.3, http.service):
what the metadata say, so any bookie of the cluster answers for all.

    GET/PUT /api/v1/autorecovery/status                      {"enabled": true}; PUT ?enabled=false
    GET     /api/v1/autorecovery/list_under_replicated_ledger
                ?missingreplica=BOOKIE&excludingmissingreplica=BOOKIE&printmissingreplica
    GET     /api/v1/autorecovery/who_is_auditor
    PUT     /api/v1/autorecovery/trigger_audit
    GET/PUT /api/v1/autorecovery/lost_bookie_recovery_delay  PUT {"delay_seconds": 60}

Status codes and texts are BookKeeper's (404 where there is nothing to tell), errors are told as on
the other pages. `bookie` and `decommission`, which have a bookie copy whole ledgers in the
background and tell nobody of the end, are 501: `quire bookie recover` and `quire bookie
decommission` do that and tell how far they are.
"""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import TYPE_CHECKING

from ledger.underreplication import UnderReplication
from metadata.store import MetadataError
from quire.tools.admin.context import json_object
from runtime.http import JSON, HttpError, HttpResponse, json_response, text_response
from wire.bookkeeper.ledger_metadata import MetadataFormatError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from quire.tools.admin.context import AdminContext
    from runtime.http import HttpRequest

#: As ZooKeeper's int.
DELAY_SECONDS_MAX = 2**31 - 1


def _records(context: AdminContext) -> UnderReplication:
    return UnderReplication(context.store, context.ledgers_root)


def _away(error: MetadataError) -> HttpError:
    return HttpError(503, f"metadata: {error}")


async def get_status(context: AdminContext, request: HttpRequest) -> HttpResponse:
    try:
        return json_response({"enabled": await _records(context).is_enabled()})
    except MetadataError as error:
        raise _away(error) from error


async def put_status(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """As Java reads it, all but «true» is false."""
    wanted = request.query.get("enabled")
    if wanted is None:
        raise HttpError(400, "Param 'enabled' not found: PUT …/status?enabled=true or =false")
    is_on = wanted.lower() == "true"
    records = _records(context)
    try:
        await records.ensure_layout()
        await (records.enable() if is_on else records.disable())
    except MetadataError as error:
        raise _away(error) from error
    return json_response({"enabled": is_on})


async def list_under_replicated(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """Ids, or with `printmissingreplica` (of any value) each with the bookies that lack it."""
    wanted = request.query.get("missingreplica", "").strip()
    unwanted = request.query.get("excludingmissingreplica", "").strip()
    is_told = "printmissingreplica" in request.query
    marked = _marked(_records(context), wanted, unwanted)
    try:
        first = await anext(marked, None)
    except MetadataError as error:
        raise _away(error) from error
    if first is None:
        raise HttpError(404, "No under replicated ledgers found")
    return HttpResponse(200, _listed(first, marked, is_told=is_told), JSON)


async def _marked(
    records: UnderReplication, wanted: str, unwanted: str
) -> AsyncGenerator[tuple[int, list[str]], None]:
    async with aclosing(records.ledger_ids()) as ledger_ids:
        async for ledger_id in ledger_ids:
            try:
                found = await records.ledger(ledger_id)
            except MetadataFormatError:
                found = None  # marked, and nobody can say for whom
                if not wanted and not unwanted:
                    yield ledger_id, []
            if found is None:
                continue  # repaired meanwhile
            missing = list(found.replicas)
            if (not wanted or wanted in missing) and (not unwanted or unwanted not in missing):
                yield ledger_id, missing


async def _listed(
    first: tuple[int, list[str]],
    others: AsyncGenerator[tuple[int, list[str]], None],
    *,
    is_told: bool,
) -> AsyncGenerator[bytes, None]:
    def member(ledger_id: int, missing: list[str]) -> str:
        return f'"{ledger_id}" : {json.dumps(missing)}' if is_told else str(ledger_id)

    try:
        yield (("{ " if is_told else "[ ") + member(*first)).encode()
        async for each in others:
            yield (", " + member(*each)).encode()
        yield b" }\n" if is_told else b" ]\n"
    except MetadataError as error:
        raise _away(error) from error
    finally:
        await others.aclose()


async def who_is_auditor(context: AdminContext, request: HttpRequest) -> HttpResponse:
    try:
        auditor = await _records(context).auditor()
    except MetadataError as error:
        raise _away(error) from error
    if auditor is None:
        raise HttpError(404, "No auditor elected")
    return text_response(f"Auditor: {auditor}")


async def trigger_audit(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """The auditor watches the delay's node: writing the same number is what it goes by."""
    records = _records(context)
    try:
        if not await records.is_enabled():
            raise HttpError(404, "Exception when do operation: auto-recovery is disabled")
        if await records.auditor() is None:
            raise HttpError(404, "Exception when do operation: there is no auditor")
        await records.set_recovery_delay_s(await records.recovery_delay_s() or 0)
    except MetadataFormatError as error:
        raise HttpError(404, f"Exception when do operation: {error}") from error
    except MetadataError as error:
        raise _away(error) from error
    return text_response("Success trigger audit.")


async def get_delay(context: AdminContext, request: HttpRequest) -> HttpResponse:
    try:
        delay_s = await _records(context).recovery_delay_s()
    except MetadataFormatError as error:
        raise HttpError(404, f"Exception when get lostBookieRecoveryDelay. {error}") from error
    except MetadataError as error:
        raise _away(error) from error
    if delay_s is None:
        raise HttpError(404, "Exception when get lostBookieRecoveryDelay: it was never set")
    return text_response(f"lostBookieRecoveryDelay value: {delay_s}")


async def put_delay(context: AdminContext, request: HttpRequest) -> HttpResponse:
    if not request.body:
        raise HttpError(404, "Null request body for lostBookieRecoveryDelay.")
    wanted = json_object(request)
    if "delay_seconds" not in wanted:
        raise HttpError(404, "Request body not contains lostBookieRecoveryDelay.")
    delay_s = wanted["delay_seconds"]
    if type(delay_s) is not int or not 0 <= delay_s <= DELAY_SECONDS_MAX:
        raise HttpError(400, f"delay_seconds: {str(delay_s)[:40]} is no number of seconds")
    records = _records(context)
    try:
        await records.ensure_layout()
        await records.set_recovery_delay_s(delay_s)
    except MetadataError as error:
        raise _away(error) from error
    return text_response(f"Success set lostBookieRecoveryDelay to {delay_s}")


async def by_command(context: AdminContext, request: HttpRequest) -> HttpResponse:
    command = "recover" if request.path.rstrip("/").endswith("/bookie") else "decommission"
    raise HttpError(501, f"not over HTTP: `quire bookie {command}` does it and tells its progress")
