"""/heartbeat and /api/v1/config/server_config as BookKeeper's, /ping, /buildinfo and /health as
Waltz's."""

from __future__ import annotations

import platform
from importlib import metadata as packages
from typing import TYPE_CHECKING

import trio

from bookie.config_definitions import BOOKIE_CONFIGS
from metadata.store import MetadataError
from quire.tools.admin.context import json_object
from runtime.config import ConfigError
from runtime.http import HttpError, json_response, text_response

if TYPE_CHECKING:
    from quire.tools.admin.context import AdminContext
    from runtime.http import HttpRequest, HttpResponse

HEALTH_TIMEOUT_SECONDS = 5.0


async def heartbeat(context: AdminContext, request: HttpRequest) -> HttpResponse:
    return text_response("OK\n")


async def ping(context: AdminContext, request: HttpRequest) -> HttpResponse:
    return text_response("pong\n")


async def build_info(context: AdminContext, request: HttpRequest) -> HttpResponse:
    return json_response(
        {
            "name": "quire",
            "version": packages.version("quire"),
            "python": platform.python_version(),
            "implementation": platform.python_implementation(),
            "platform": platform.platform(),
        }
    )


async def health(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """A check for each part that can fail by itself; 503 if one did."""
    checks = {"bookie": _bookie_health(context), "metadata": await _metadata_health(context)}
    is_healthy = all(check["healthy"] for check in checks.values())
    return json_response(checks, 200 if is_healthy else 503)


def _bookie_health(context: AdminContext) -> dict[str, object]:
    if not context.bookie.is_running:
        return {"healthy": False, "message": "the bookie has ended"}
    if context.bookie.is_read_only:
        reasons = "; ".join(context.bookie.disks.reasons.values())
        return {"healthy": False, "message": f"the bookie is read-only: {reasons}"}
    return {"healthy": True}


async def _metadata_health(context: AdminContext) -> dict[str, object]:
    try:
        with trio.fail_after(HEALTH_TIMEOUT_SECONDS):
            await context.store.exists(context.ledgers_root)
    except (MetadataError, trio.TooSlowError) as error:
        return {"healthy": False, "message": str(error) or "no answer in time"}
    return {"healthy": True}


async def get_config(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """GET: the settings that are in force, as text."""
    return json_response(dict(context.settings))


async def put_config(context: AdminContext, request: HttpRequest) -> HttpResponse:
    """PUT {"name": value}. BookKeeper takes anything and most of it changes nothing; here a setting
    that cannot be changed while the bookie runs is a 400 which says so, and one that has the value
    already is fine."""
    wanted = json_object(request)
    for name, value in wanted.items():
        if name not in BOOKIE_CONFIGS:
            raise HttpError(400, f"{name}: BookKeeper has no such setting")
        text = _text(name, value)
        try:
            BOOKIE_CONFIGS.parse({name: text})
        except ConfigError as error:
            raise HttpError(400, str(error)) from error
        if text != context.settings.get(name):
            raise HttpError(
                400, f"{name} cannot be changed while the bookie runs: set it and start again"
            )
    return text_response("Success set server config.")


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise HttpError(400, f"{name}: the value must be text, a number or a boolean")
