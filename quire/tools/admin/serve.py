"""Serves the pages of a running server, and leaves notes in the data directory, which `quire
bookie` finds: where that is, and the token for what changes something if none is configured."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING

import trio

from bookie.config_definitions import BOOKIE_CONFIGS
from quire.tools.admin.context import AdminContext
from quire.tools.admin.credentials import PageCredentials
from quire.tools.admin.routes import AdminSite
from quire.tools.admin.token_note import token_note
from runtime import http
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bookie.bookie import Bookie
    from bookie.config import BookieConfig
    from ledger.client import LedgerClient
    from metadata.store import MetadataStore
    from quire.tools.admin.broker_pages import BrokerPages
    from quire.tools.admin.context import Cluster
    from runtime.config import ConfigValue
    from runtime.env import Env
    from runtime.metrics import Metrics

#: In the data directory: the address of the pages, while they are served.
NOTE_NAME = "admin.url"


@dataclass(slots=True, frozen=True)
class AdminParts:
    """What of a server the pages are about."""

    bookie: Bookie
    config: BookieConfig
    #: Of bookie/config_definitions.py, parsed; only what was set.
    bookie_values: Mapping[str, ConfigValue]
    store: MetadataStore
    ledgers: LedgerClient
    env: Env
    metrics: Metrics
    #: Where the note of the address is left.
    data_directory: str
    ledgers_root: str = "/ledgers"
    #: None: the bookie is alone.
    cluster: Cluster | None = None
    #: None: there is no broker in the process.
    broker: BrokerPages | None = None
    #: Without a token for the administration, one is made.
    credentials: PageCredentials = field(default_factory=PageCredentials)


async def serve_admin(
    parts: AdminParts,
    host: str,
    port: int,
    *,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until cancelled; `started` with the address that is bound. OSError if it cannot be."""
    directory = parts.data_directory
    async with trio.open_nursery() as nursery:
        context = AdminContext(
            bookie=parts.bookie,
            config=parts.config,
            settings=settings_in_force(parts.config, parts.bookie_values),
            store=parts.store,
            ledgers=parts.ledgers,
            env=parts.env,
            nursery=nursery,
            ledgers_root=parts.ledgers_root,
            cluster=parts.cluster,
        )
        with token_note(directory, parts.credentials, parts.env.rng) as credentials:
            site = AdminSite(context, parts.metrics, credentials, parts.broker)
            serve = partial(http.serve, site, host, port, tls=credentials.tls)
            address = await nursery.start(serve)
            with _note(directory, url_of(address, is_tls=credentials.tls is not None)):
                task_status.started(address)
                await trio.sleep_forever()


@contextmanager
def _note(directory: str, url: str) -> Iterator[None]:
    path = os.path.join(directory, NOTE_NAME)
    # Whoever looks finds it whole or not at all.
    unfinished = f"{path}.tmp"
    with open(unfinished, "w", encoding="ascii") as file:
        file.write(f"{url}\n")
    os.replace(unfinished, path)
    try:
        yield
    finally:
        os.unlink(path)


def url_of(address: tuple[str, int], *, is_tls: bool = False) -> str:
    """Where this machine reaches a listener: one on all addresses is asked on loopback."""
    host, port = address
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "https" if is_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def settings_in_force(config: BookieConfig, values: Mapping[str, ConfigValue]) -> dict[str, str]:
    """BookKeeper's settings that mean something here, with what they are now, as text."""
    own: dict[str, ConfigValue] = {
        "bookieId": config.bookie_id,
        "journalDirectory": config.journal_directory,
        "ledgerDirectories": ",".join(config.ledger_directories),
    }
    in_force = {key.name: BOOKIE_CONFIGS.default(key.name) for key in BOOKIE_CONFIGS}
    in_force |= {**values, **own}
    return {
        name: _text(value)
        for name, value in sorted(in_force.items())
        if value is not None and not BOOKIE_CONFIGS.knows_without_meaning(name)
    }


def _text(value: ConfigValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)
