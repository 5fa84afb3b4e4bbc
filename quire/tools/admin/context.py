"""What the endpoints work on, and how they read a request."""

from __future__ import annotations

import json
from dataclasses import field
from typing import TYPE_CHECKING

import trio

from runtime.http import HttpError
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from bookie.bookie import Bookie
    from bookie.config import BookieConfig
    from ledger.bookie_client import BookieClient
    from ledger.bookie_watcher import BookieWatcher
    from ledger.client import LedgerClient
    from metadata.store import MetadataStore
    from runtime.env import Env
    from runtime.http import HttpRequest, HttpResponse

    Endpoint = Callable[["AdminContext", HttpRequest], Awaitable[HttpResponse]]

#: What an id or an offset can be; more digits than that are a mistake, and costly to parse.
NUMBER_MAX = 2**63 - 1


@dataclass(slots=True, frozen=True)
class Cluster:
    """The other bookies: who they are, and how they are asked."""

    watcher: BookieWatcher
    bookies: BookieClient


@dataclass(slots=True)
class AdminContext:
    """The parts of a running server that its operators may ask and change."""

    bookie: Bookie
    config: BookieConfig
    #: BookKeeper's settings as they were given, by name.
    settings: Mapping[str, str]
    store: MetadataStore
    ledgers: LedgerClient
    env: Env
    #: Where work goes on that was only started by a request.
    nursery: trio.Nursery
    ledgers_root: str = "/ledgers"
    #: None: the bookie is alone.
    cluster: Cluster | None = None
    #: One sanity check at a time: each writes.
    sanity: trio.Lock = field(default_factory=trio.Lock)
    #: What a request started and is not done yet.
    is_collecting: bool = False
    is_compacting_locations: bool = False
    is_scrubbing: bool = False


def number(request: HttpRequest, name: str, default: int) -> int:
    """A query parameter that is a whole number >= -1; 400 if it is something else."""
    text = request.query.get(name)
    if text is None:
        return default
    try:
        value = int(text) if text.isascii() and len(text) <= 20 else NUMBER_MAX + 1
    except ValueError:
        value = NUMBER_MAX + 1
    if not -1 <= value <= NUMBER_MAX:
        raise HttpError(400, f"{name}={text[:40]!r} is no number")
    return value


def ledger_id_of(request: HttpRequest) -> int:
    """The parameter `ledger_id`, which must be there; HttpError 400."""
    value = number(request, "ledger_id", -1)
    if value < 0:
        raise HttpError(400, "ledger_id=<id> is missing")
    return value


def flag(request: HttpRequest, name: str) -> bool:
    return request.query.get(name) == "true"


def json_object(request: HttpRequest) -> dict[str, object]:
    """The body, which must be a JSON object; HttpError 400."""
    try:
        value = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"the body is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise HttpError(400, "the body is no JSON object")
    return value


def boolean(values: Mapping[str, object], name: str) -> bool | None:
    """A field that is true or false, None if it is absent; HttpError 400."""
    value = values.get(name)
    if value is None or isinstance(value, bool):
        return value
    if value in ("true", "false"):  # as Java reads it
        return value == "true"
    raise HttpError(400, f"{name} must be true or false")
