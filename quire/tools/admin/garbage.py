"""/api/v1/bookie/gc and its neighbours: garbage collection, compaction of entry logs and of the
index (BookKeeper's TriggerGCService, GCDetailsService, SuspendCompactionService,
ResumeCompactionService, TriggerLocationCompactService).

What a PUT starts goes on by itself; the GET of the same path tells when it is done.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING

from bookie.space.gc_report import Phase
from bookie.start import ledger_directory
from quire.tools.admin.context import boolean, json_object
from runtime.http import HttpError, json_response, text_response
from runtime.logs import kv

if TYPE_CHECKING:
    from quire.tools.admin.context import AdminContext
    from runtime.http import HttpRequest, HttpResponse

logger = logging.getLogger(__name__)


async def is_in_force_gc(context: AdminContext, request: HttpRequest) -> HttpResponse:
    return json_response({"is_in_force_gc": _text(context.is_collecting)})


async def trigger(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """PUT, with nothing or {"forceMajor": ..., "forceMinor": ...}; what is not said is done unless
    it is suspended. 409 while one that was asked for before is running."""
    status = context.bookie.gc.status()
    wanted = json_object(request) if request.body.strip() else {}
    major = boolean(wanted, "forceMajor")
    minor = boolean(wanted, "forceMinor")
    if context.is_collecting:
        raise HttpError(409, "a collection that was asked for is running")
    context.is_collecting = True
    context.nursery.start_soon(
        _collect,
        context,
        not status.is_major_suspended if major is None else major,
        not status.is_minor_suspended if minor is None else minor,
    )
    return json_response(f"Triggered GC on BookieServer: {context.config.bookie_id}")


async def _collect(context: AdminContext, major: bool, minor: bool) -> None:
    try:
        report = await context.bookie.collect_garbage(force_minor=minor, force_major=major)
        logger.info("gc on request", kv(report=report))
    except Exception as error:  # what ends the bookie ends it by itself; this is only a request
        logger.exception("gc on request failed", kv(error=repr(error)))
    finally:
        context.is_collecting = False


async def details(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """GET: times in milliseconds since the epoch, 0 for never; a list, of one storage here."""
    now = context.bookie.gc.status()
    done = now.statistics
    return json_response(
        [
            {
                "forceCompacting": context.is_collecting,
                "majorCompacting": now.phase is Phase.MAJOR,
                "minorCompacting": now.phase is Phase.MINOR,
                "lastMajorCompactionTime": now.last_major_ms or 0,
                "lastMinorCompactionTime": now.last_minor_ms or 0,
                "lastEntryLocationCompactionTime": now.last_location_ms or 0,
                "majorCompactionCounter": done.major_compactions,
                "minorCompactionCounter": done.minor_compactions,
                "entryLocationCompactionCounter": done.location_compactions,
            }
        ]
    )


async def suspended(context: AdminContext, request: HttpRequest) -> HttpResponse:
    now = context.bookie.gc.status()
    return json_response(
        {
            "isMinorGcSuspended": _text(now.is_minor_suspended),
            "isMajorGcSuspended": _text(now.is_major_suspended),
        }
    )


async def suspend(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """PUT {"suspendMajor": true, "suspendMinor": true}, either or both."""
    major, minor = _two(request, "suspendMajor", "suspendMinor")
    gc = context.bookie.gc
    if major:
        gc.suspend_major()
    if minor:
        gc.suspend_minor()
    return _said(context, "Suspend", major, minor)


async def resume(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """PUT {"resumeMajor": true, "resumeMinor": true}, either or both."""
    major, minor = _two(request, "resumeMajor", "resumeMinor")
    gc = context.bookie.gc
    if major:
        gc.resume_major()
    if minor:
        gc.resume_minor()
    return _said(context, "Resume", major, minor)


def _two(request: HttpRequest, major: str, minor: str) -> tuple[bool, bool]:
    if not request.body:
        raise HttpError(400, "Empty request body")
    values = json_object(request)
    wanted = boolean(values, major), boolean(values, minor)
    if wanted == (None, None):
        raise HttpError(400, f"No {major} or {minor} params found")
    return bool(wanted[0]), bool(wanted[1])


def _said(context: AdminContext, verb: str, major: bool, minor: bool) -> HttpResponse:
    """BookKeeper's sentence, with its comma in front of the second part also if it is alone."""
    server = f"on BookieServer: {context.config.bookie_id}"
    first = f"{verb} majorGC {server}" if major else ""
    return json_response(first + (f", {verb} minorGC {server}" if minor else ""))


async def is_compacting_locations(context: AdminContext, request: HttpRequest) -> HttpResponse:
    return json_response({_locations(context): context.is_compacting_locations})


async def compact_locations(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """PUT {"entryLocationRocksDBCompact": true, "entryLocations": "path,..."}; the paths may be
    left out, and else must be what the GET names."""
    if not request.body.strip():
        raise HttpError(400, "Empty request body")
    wanted = json_object(request)
    if not boolean(wanted, "entryLocationRocksDBCompact"):
        return text_response("Not trigger Entry Location RocksDB compact.")
    ours = _locations(context)
    named = wanted.get("entryLocations") or ""
    if not isinstance(named, str):
        raise HttpError(400, "entryLocations must be text: paths with commas in between")
    if named.strip() and set(named.strip().split(",")) != {ours}:
        raise HttpError(
            400,
            f"Specified trigger compact entryLocations: {named[:500]} is invalid. Bookie entry "
            f"location RocksDB path: [{ours}].",
        )
    if context.is_compacting_locations:
        raise HttpError(409, "the entry locations are being compacted")
    context.is_compacting_locations = True
    context.nursery.start_soon(_compact, context)
    if named.strip():
        return json_response(
            f"Triggered entry Location RocksDB: {named} compact on bookie:"
            f"{context.config.bookie_id}."
        )
    return json_response(
        f"Triggered entry Location RocksDB compact on bookie:{context.config.bookie_id}"
    )


async def _compact(context: AdminContext) -> None:
    try:
        await context.bookie.compact_entry_locations()
    except Exception as error:  # as above
        logger.exception("compaction of entry locations failed", kv(error=repr(error)))
    finally:
        context.is_compacting_locations = False


async def scrub_status(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """GET /api/v1/bookie/scrub, which BookKeeper does not have: the pass that runs, or the last."""
    status = asdict(context.bookie.scrubber.status())
    return json_response({**status, "is_running": status["is_running"] or context.is_scrubbing})


async def scrub(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """PUT: a whole pass now, as fast as the disk goes."""
    if context.is_scrubbing:
        raise HttpError(409, "a scrub that was asked for is running")
    context.is_scrubbing = True
    context.nursery.start_soon(_scrub, context)
    return json_response(f"Triggered scrub on BookieServer: {context.config.bookie_id}")


async def _scrub(context: AdminContext) -> None:
    try:
        status = await context.bookie.scrubber.scrub()
        logger.info("scrub on request", kv(damaged=status.damaged_entries))
    except Exception as error:  # as above
        logger.exception("scrub failed", kv(error=repr(error)))
    finally:
        context.is_scrubbing = False


def _locations(context: AdminContext) -> str:
    return f"{ledger_directory(context.config)}/locations"


def _text(value: bool) -> str:
    return "true" if value else "false"
