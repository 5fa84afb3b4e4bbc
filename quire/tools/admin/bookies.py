"""/api/v1/bookie, all but garbage collection: who there is, disks, files, state, sanity
(BookKeeper's ListBookiesService, BookieInfoService, GetLastLogMarkService ...).

The cluster is what the bookies' registrations say; in `quire standalone` it is the one bookie.
"""

from __future__ import annotations

import socket
from contextlib import aclosing
from decimal import ROUND_DOWN, Decimal
from typing import TYPE_CHECKING

import trio

from bookie.errors import BookieStartError, CorruptionError
from bookie.journal.journal_format import file_name
from bookie.start import check_identity, ledger_directory
from bookie.storage.checkpoint import read_checkpoint
from ledger.errors import LedgerError
from ledger.underreplication import UnderReplication
from metadata.store import MetadataError, NoNodeError
from quire.tools.admin.context import boolean, flag, json_object
from quire.tools.admin.files import disk_space, list_files
from quire.tools.admin.sanity import SanityError, round_trip
from runtime.http import HttpError, HttpResponse, json_response, text_response
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from ledger.bookie_watcher import BookieWatcher
    from quire.tools.admin.context import AdminContext, Cluster
    from runtime.http import HttpRequest

SANITY_TIMEOUT_SECONDS = 10.0
#: Why the bookie is read-only, if it was asked over HTTP.
ADMIN_REASON = "asked for over HTTP"


async def list_bookies(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """GET type=rw (default) or ro, print_hostnames=true: id -> host name or null."""
    wants_read_only = request.query.get("type") == "ro"
    if context.cluster is not None:
        watcher = context.cluster.watcher
        there = watcher.read_only if wants_read_only else watcher.writable
        is_named = flag(request, "print_hostnames")
        return json_response(
            {bookie: _host(watcher, bookie) if is_named else None for bookie in sorted(there)}
        )
    if wants_read_only != context.bookie.is_read_only:
        return json_response({})
    host = socket.gethostname() if flag(request, "print_hostnames") else None
    return json_response({context.config.bookie_id: host})


async def list_bookie_info(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """GET: id -> free and total bytes, in BookKeeper's words. Who does not answer is left out."""
    if context.cluster is None:
        spaces = {context.config.bookie_id: await _space(context)}
    else:
        spaces = await _spaces(context.cluster)
    listed = {bookie: f": {{{_words(*space)}}}," for bookie, space in spaces.items()}
    total = sum(each[0] for each in spaces.values()), sum(each[1] for each in spaces.values())
    return json_response({**listed, "ClusterInfo: ": f"{{{_words(*total)}}}"})


def _words(total: int, free: int) -> str:
    return f"Free: {free}{readable(free)}, Total: {total}{readable(total)}"


def _host(watcher: BookieWatcher, bookie: str) -> str | None:
    address = watcher.resolve(bookie)
    return None if address is None else address[0]


async def _spaces(cluster: Cluster) -> dict[str, tuple[int, int]]:
    """By bookie: total and free bytes of those that answer."""
    found: dict[str, tuple[int, int]] = {}

    async def ask(bookie: str) -> None:
        space = await cluster.bookies.bookie_info(bookie)
        if space.status is Status.EOK:
            found[bookie] = (space.total_bytes, space.free_bytes)

    async with trio.open_nursery() as nursery:
        for bookie in sorted(cluster.watcher.writable | cluster.watcher.read_only):
            nursery.start_soon(ask, bookie)
    return dict(sorted(found.items()))


async def info(context: AdminContext, request: HttpRequest) -> HttpResponse:
    total, free = await _space(context)
    return json_response({"freeSpace": free, "totalSpace": total})


async def _space(context: AdminContext) -> tuple[int, int]:
    disk = context.env.disk
    return await disk.run(disk_space, disk, context.config.ledger_directories)


def readable(size: int) -> str:
    """BookKeeper's way: decimal units, at most three decimals, rounded down; "" below 1 KB."""
    units = ("", "KB", "MB", "GB", "TB")
    value, index = Decimal(size), 0
    while value >= 1000 and index < len(units) - 1:
        value /= 1000
        index += 1
    if index == 0:
        return ""
    text = str(value.quantize(Decimal("0.001"), rounding=ROUND_DOWN))
    return f"({text.rstrip('0').rstrip('.')}{units[index]})"


async def cluster_info(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """GET. Alone, nothing replicates, so there is no auditor and nothing is under-replicated."""
    if context.cluster is not None:
        return json_response(await _cluster_facts(context, context.cluster))
    is_read_only = context.bookie.is_read_only
    return json_response(
        {
            "auditorElected": False,
            "auditorId": "",
            "clusterUnderReplicated": False,
            "ledgerReplicationEnabled": False,
            "totalBookiesCount": 1,
            "writableBookiesCount": 0 if is_read_only else 1,
            "readonlyBookiesCount": 1 if is_read_only else 0,
            "unavailableBookiesCount": 0,
        }
    )


async def _cluster_facts(context: AdminContext, cluster: Cluster) -> dict[str, object]:
    """BookKeeper's ClusterInfoService: a bookie that has a cookie is one of the cluster's."""
    repairs = UnderReplication(context.store, context.ledgers_root)
    try:
        auditor = await repairs.auditor()
        is_enabled = await repairs.is_enabled()
        async with aclosing(repairs.ledger_ids()) as marked:
            is_short = await anext(marked, None) is not None
        cookies = await _cookies(context)
    except MetadataError as error:
        raise HttpError(503, f"the metadata cannot be read: {error}") from error
    watcher = cluster.watcher
    there = watcher.writable | watcher.read_only
    return {
        "auditorElected": auditor is not None,
        "auditorId": auditor or "",
        "clusterUnderReplicated": is_short,
        "ledgerReplicationEnabled": is_enabled,
        "totalBookiesCount": len(there.union(cookies)),
        "writableBookiesCount": len(watcher.writable),
        "readonlyBookiesCount": len(watcher.read_only),
        "unavailableBookiesCount": len(set(cookies) - there),
    }


async def _cookies(context: AdminContext) -> list[str]:
    try:
        return await context.store.children(f"{context.ledgers_root}/cookies")
    except NoNodeError:
        return []


async def last_log_mark(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """GET: up to where the journal is not needed any more, as it is on disk."""
    disk = context.env.disk
    try:
        checkpoint = await disk.run(read_checkpoint, disk, ledger_directory(context.config))
    except (OSError, CorruptionError) as error:
        raise HttpError(500, str(error)) from error
    mark = checkpoint.mark
    name = f"LastLogMark: Journal Id - {mark.journal_id}({file_name(mark.journal_id)})"
    return json_response({name: f"Pos - {mark.offset}"})


async def list_disk_file(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """GET file_type=journal, entrylog or index; all without: names, a tab after each."""
    disk = context.env.disk
    files = await disk.run(list_files, disk, context.config)
    wanted = request.query.get("file_type")
    kinds = [wanted] if wanted in files else list(files)
    return json_response(
        {f"{kind} files": "".join(f"{each.name}\t" for each in files[kind]) for kind in kinds}
    )


async def expand_storage(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """PUT. Checks the cookies of all configured directories, which is what BookKeeper's does to a
    running bookie; new directories are taken with allowStorageExpansion at the next start."""
    disk = context.env.disk
    try:
        await disk.run(check_identity, context.config, disk)
    except (BookieStartError, OSError) as error:
        raise HttpError(500, f"the cookies do not fit: {error}") from error
    return text_response("Success expand storage")


async def state(context: AdminContext, request: HttpRequest) -> HttpResponse:
    bookie = context.bookie
    return json_response(
        {
            "running": bookie.is_running,
            "readOnly": bookie.is_read_only,
            "shuttingDown": not bookie.is_running,
            "availableForHighPriorityWrites": bookie.disks.takes_high_priority(),
        }
    )


async def get_read_only(context: AdminContext, request: HttpRequest) -> HttpResponse:
    return json_response({"readOnly": context.bookie.is_read_only})


async def put_read_only(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """PUT {"readOnly": true or false}; the state after it. 409 if the bookie stays read-only
    because of its disks; BookKeeper says 200 then, and goes back to it with the next check."""
    wanted = boolean(json_object(request), "readOnly")
    bookie, config = context.bookie, context.config
    if not wanted and config.force_read_only:
        raise HttpError(400, "Bookie is in forceReadOnly mode, cannot transit to writable mode")
    if wanted and not config.read_only_mode_enabled:
        raise HttpError(400, "Bookie is disabled ReadOnly mode, cannot transit to readOnly mode")
    if wanted:
        bookie.set_read_only(ADMIN_REASON)
    else:
        bookie.set_writable()
        if bookie.is_read_only:
            reasons = "; ".join(bookie.disks.reasons.values())
            raise HttpError(409, f"the bookie stays read-only: {reasons}")
    return await get_read_only(context, request)


async def sanity(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """GET: writes a ledger, reads it back and deletes it. `passed` is false for a bookie that
    takes no writes, as BookKeeper's."""
    passed = False
    try:
        with trio.fail_after(SANITY_TIMEOUT_SECONDS):
            async with context.sanity:
                await round_trip(context.ledgers)
        passed = True
    except (SanityError, LedgerError, trio.TooSlowError):
        pass  # that is the answer
    return json_response({"passed": passed, "readOnly": context.config.force_read_only})


async def is_ready(context: AdminContext, request: HttpRequest) -> HttpResponse:
    if context.bookie.is_running:
        return text_response("OK")
    return text_response("Bookie is not fully started yet", 503)
