"""A broker's pages: what it knows of its partitions, beside its metrics.

    GET /metrics, /health, /heartbeat
    GET /api/v1/quire/partition/<topic>-<n>    one partition; 404 if it is not held here
    GET /api/v1/quire/partitions               all that are held here, streamed
    /api/v1/quire/compaction/...               quire/tools/admin/compaction.py
    GET /api/v1/quire/groups/<group>           quire/tools/admin/groups.py

/api/v1 is for this machine only, and changes need a token (credentials.py). Where the pages
are is told in metadata, ephemeral, so that `quire cluster` finds them:

    /quire/pages/<node id>    {"format": 1, "url": "http://127.0.0.1:9600"}

How long a partition has waited is known by a look at all of them every LOOK_SECONDS, so that no
request pays for it.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import trio

from broker.log.manager import LOOKS_PER_TURN
from broker.log.partition import State
from metadata.store import MetadataError, NodeExistsError, SessionState
from quire.tools.admin.serve import url_of
from runtime import http
from runtime.http import HttpError, HttpResponse, json_list_response, json_response, text_response
from runtime.logs import kv
from runtime.slices import Slices

if TYPE_CHECKING:
    from broker.log.manager import LogManager
    from broker.log.partition import PartitionLog
    from metadata.store import MetadataStore
    from quire.tools.admin.broker_pages import BrokerPages
    from quire.tools.admin.credentials import PageCredentials
    from runtime.env import Env
    from runtime.http import HttpRequest
    from runtime.metrics import Metrics

logger = logging.getLogger(__name__)

PAGES_PATH = "/quire/pages"
FORMAT = 1
API = "/api/v1/quire/"
LOOK_SECONDS = 1.0
RETRY_SECONDS = 1.0


class WaitingTimes:
    """Since when a partition has work and makes no progress, as seen every LOOK_SECONDS."""

    def __init__(self, logs: LogManager, env: Env) -> None:
        self._logs = logs
        self._now = env.clock.monotonic
        #: Of those that wait: the object, what its progress was, and since when.
        self._since: dict[tuple[str, int], tuple[PartitionLog, int, float]] = {}

    async def run(self) -> None:
        while True:
            await self.look()
            await trio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        waiting: dict[tuple[str, int], tuple[PartitionLog, int, float]] = {}
        now = self._now()
        slices = Slices(LOOKS_PER_TURN)
        for log in self._logs.all():
            if slices.due():
                await slices.turn()
            if not _has_work(log):
                continue
            key = log.topic.name, log.partition
            before = self._since.get(key)
            is_same = before is not None and before[:2] == (log, log.high_watermark)
            since = before[2] if before is not None and is_same else now
            waiting[key] = (log, log.high_watermark, since)
        self._since = waiting

    def waiting_ms(self, log: PartitionLog) -> int:
        """0: nothing waits, or it has not been seen to; short by up to LOOK_SECONDS."""
        found = self._since.get((log.topic.name, log.partition))
        if found is None or found[:2] != (log, log.high_watermark) or not _has_work(log):
            return 0
        return int((self._now() - found[2]) * 1000)


def _has_work(log: PartitionLog) -> bool:
    if log.state is State.LOADING:
        return True
    queued, in_flight, _ = log.queue.statistics()
    return bool(queued or in_flight)


def describe(log: PartitionLog, waiting_ms: int) -> dict[str, object]:
    """What the broker that holds a partition says of it."""
    queued, in_flight, bytes_in_flight = log.queue.statistics()
    writer = log.writer
    return {
        "partition": log.name,
        "state": log.state.value,
        "leader_epoch": log.leader_epoch,
        "log_start_offset": log.log_start_offset,
        "high_watermark": log.high_watermark,
        "log_end_offset": log.log_end_offset,
        "is_suspended": log.is_suspended,
        "failed_take_overs": log.failure_count,
        "last_failure": log.last_failure or None,
        "ensemble_size": log.copies.ensemble_size,
        "write_quorum": log.copies.write_quorum,
        "ack_quorum": log.copies.ack_quorum,
        "min_insync_replicas": log.config.min_insync_replicas,
        "batches_queued": queued,
        "entries_in_flight": in_flight,
        "bytes_in_flight": bytes_in_flight,
        "waiting_ms": waiting_ms,
        "open_ledger": None if writer is None else writer.ledger_id,
        "last_add_confirmed": None if writer is None else writer.last_add_confirmed,
        "last_add_pushed": None if writer is None else writer.last_add_pushed,
        "ensemble": list(log.ensemble),
        "ledger_error": None if writer is None or writer.error is None else str(writer.error),
    }


class BrokerSite:
    """All pages of one broker: an `http.Handler`."""

    def __init__(
        self,
        logs: LogManager,
        waiting: WaitingTimes,
        metrics: Metrics,
        pages: BrokerPages,
        credentials: PageCredentials,
    ) -> None:
        self._credentials = credentials
        self._logs = logs
        self._pages = pages
        self._waiting = waiting
        self._metrics = metrics

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        path = request.path
        if (page := self._pages.find(path)) is not None:
            self._credentials.check_admin(request)
            return await page(request)
        if request.method not in ("GET", "HEAD"):
            raise HttpError(405, "GET or HEAD")
        if path == "/metrics":
            self._credentials.check_metrics(request)
            return await self._metrics.respond(request)
        if path in ("/health", "/heartbeat"):
            return text_response("ok\n" if path == "/health" else "OK\n")
        if not path.startswith(API):
            raise HttpError(404, f"there is no {path[:200]}")
        self._credentials.check_admin(request)
        kind, _, name = path.removeprefix(API).partition("/")
        if kind == "partition":
            log = self._find(name)
            return json_response(describe(log, self._waiting.waiting_ms(log)))
        if kind == "partitions" and not name:
            every = self._logs.all()
            return json_list_response(describe(log, self._waiting.waiting_ms(log)) for log in every)
        raise HttpError(404, f"there is no {path[:200]}")

    def _find(self, name: str) -> PartitionLog:
        log = self._logs.named(name)
        if log is None:
            raise HttpError(404, f"{name[:200]} is not held here")
        return log


async def serve_broker_pages(
    node_id: int,
    logs: LogManager,
    store: MetadataStore,
    env: Env,
    metrics: Metrics,
    pages: BrokerPages,
    credentials: PageCredentials,
    address: tuple[str, int],
    *,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until cancelled; `started` with the address that is bound. OSError if it cannot be."""
    waiting = WaitingTimes(logs, env)
    site = BrokerSite(logs, waiting, metrics, pages, credentials)

    async def serve(*, task_status: trio.TaskStatus[tuple[str, int]]) -> None:
        await http.serve(site, *address, tls=credentials.tls, task_status=task_status)

    async with trio.open_nursery() as nursery:
        bound = await nursery.start(serve)
        nursery.start_soon(waiting.run)
        nursery.start_soon(
            _keep_told, store, node_id, url_of(bound, is_tls=credentials.tls is not None)
        )
        task_status.started(bound)


async def _keep_told(store: MetadataStore, node_id: int, url: str) -> None:
    """Tells metadata where the pages are, again after each session that was lost. Only for who
    looks for them: what fails is logged, and tried again."""
    path = f"{PAGES_PATH}/{node_id}"
    data = json.dumps({"format": FORMAT, "url": url}).encode()
    wanted = trio.Event()

    def session_changed(state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            wanted.set()

    unsubscribe = store.subscribe(session_changed)
    try:
        while True:
            wanted = trio.Event()
            try:
                if not await store.owns(path):
                    await store.create(path, data, ephemeral=True, make_parents=True)
            except NodeExistsError:  # the last life's, which ends with its session
                await trio.sleep(RETRY_SECONDS)
                continue
            except MetadataError as error:
                logger.warning("pages_not_told", kv(path=path, error=error))
                await trio.sleep(RETRY_SECONDS)
                continue
            await wanted.wait()
    finally:
        unsubscribe()
        with trio.move_on_after(RETRY_SECONDS, shield=True):
            try:
                if await store.owns(path):
                    await store.delete(path)
            except MetadataError as error:
                logger.info("pages_stay_told", kv(path=path, error=error))
