"""Which endpoint answers which path and method, and who may ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.tools.admin import autorecovery, bookies, garbage, ledgers, process
from runtime.http import HttpError, HttpResponse, error_response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from quire.tools.admin.broker_pages import BrokerPages
    from quire.tools.admin.context import AdminContext, Endpoint
    from quire.tools.admin.credentials import PageCredentials
    from runtime.http import HttpRequest
    from runtime.metrics import Metrics

API = "/api/v1/"

#: path -> method -> endpoint. HEAD is answered as GET, without the body.
ROUTES: Mapping[str, Mapping[str, Endpoint]] = {
    "/heartbeat": {"GET": process.heartbeat},
    "/ping": {"GET": process.ping},
    "/buildinfo": {"GET": process.build_info},
    "/health": {"GET": process.health},
    "/api/v1/config/server_config": {"GET": process.get_config, "PUT": process.put_config},
    "/api/v1/ledger/delete": {"DELETE": ledgers.delete},
    "/api/v1/ledger/list": {"GET": ledgers.list_ledgers},
    "/api/v1/ledger/metadata": {"GET": ledgers.get_metadata},
    "/api/v1/ledger/read": {"GET": ledgers.read},
    "/api/v1/bookie/list_bookies": {"GET": bookies.list_bookies},
    "/api/v1/bookie/list_bookie_info": {"GET": bookies.list_bookie_info},
    "/api/v1/bookie/info": {"GET": bookies.info},
    "/api/v1/bookie/cluster_info": {"GET": bookies.cluster_info},
    "/api/v1/bookie/last_log_mark": {"GET": bookies.last_log_mark},
    "/api/v1/bookie/list_disk_file": {"GET": bookies.list_disk_file},
    "/api/v1/bookie/expand_storage": {"PUT": bookies.expand_storage},
    "/api/v1/bookie/state": {"GET": bookies.state},
    "/api/v1/bookie/state/readonly": {
        "GET": bookies.get_read_only,
        "PUT": bookies.put_read_only,
    },
    "/api/v1/bookie/sanity": {"GET": bookies.sanity},
    "/api/v1/bookie/is_ready": {"GET": bookies.is_ready},
    "/api/v1/bookie/gc": {"GET": garbage.is_in_force_gc, "PUT": garbage.trigger},
    "/api/v1/bookie/gc_details": {"GET": garbage.details},
    "/api/v1/bookie/gc/suspend_compaction": {
        "GET": garbage.suspended,
        "PUT": garbage.suspend,
    },
    "/api/v1/bookie/gc/resume_compaction": {"PUT": garbage.resume},
    "/api/v1/bookie/scrub": {"GET": garbage.scrub_status, "PUT": garbage.scrub},
    "/api/v1/bookie/entry_location_compact": {
        "GET": garbage.is_compacting_locations,
        "PUT": garbage.compact_locations,
    },
    "/api/v1/autorecovery/status": {
        "GET": autorecovery.get_status,
        "PUT": autorecovery.put_status,
    },
    "/api/v1/autorecovery/list_under_replicated_ledger": {
        "GET": autorecovery.list_under_replicated
    },
    "/api/v1/autorecovery/who_is_auditor": {"GET": autorecovery.who_is_auditor},
    "/api/v1/autorecovery/trigger_audit": {"PUT": autorecovery.trigger_audit},
    "/api/v1/autorecovery/lost_bookie_recovery_delay": {
        "GET": autorecovery.get_delay,
        "PUT": autorecovery.put_delay,
    },
    "/api/v1/autorecovery/bookie": {"PUT": autorecovery.by_command},
    "/api/v1/autorecovery/decommission": {"PUT": autorecovery.by_command},
}


class AdminSite:
    """All pages of one process: an `http.Handler`."""

    def __init__(
        self,
        context: AdminContext,
        metrics: Metrics,
        credentials: PageCredentials,
        broker: BrokerPages | None = None,
    ) -> None:
        """`broker`: of the broker in this process, if there is one."""
        self._context = context
        self._credentials = credentials
        self._broker = broker
        self._metrics = metrics

    async def __call__(self, request: HttpRequest) -> HttpResponse:
        path = request.path.rstrip("/") or "/"
        if path.startswith(API):
            self._credentials.check_admin(request)
        if self._broker is not None and (page := self._broker.find(request.path)) is not None:
            return await page(request)
        method = "GET" if request.method == "HEAD" else request.method
        if path == "/metrics":
            methods: Mapping[str, Endpoint] = {"GET": self._metrics_endpoint}
        elif path in ROUTES:
            methods = ROUTES[path]
        else:
            raise HttpError(404, f"there is no {request.path[:200]}")
        endpoint = methods.get(method)
        if endpoint is None:
            return _wrong_method(request, methods)
        return await endpoint(self._context, request)

    async def _metrics_endpoint(self, context: AdminContext, request: HttpRequest) -> HttpResponse:
        self._credentials.check_metrics(request)
        return await self._metrics.respond(request)


def _wrong_method(request: HttpRequest, methods: Mapping[str, Endpoint]) -> HttpResponse:
    allowed = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))
    response = error_response(405, f"{request.method} is not for {request.path}, but {allowed} is")
    response.headers.append(("Allow", allowed))
    return response
