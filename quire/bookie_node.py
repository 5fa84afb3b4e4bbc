"""`quire bookie --conf bk_server.conf`: one bookie of a cluster, as a process.

Started in the order: metadata, cookie, bookie, server, registration, pages; stopped in the reverse
one, so that nobody is sent to a bookie that does not serve.
"""

from __future__ import annotations

import logging
from dataclasses import field
from typing import TYPE_CHECKING

from bookie.bookie import Bookie
from bookie.config_definitions import BOOKIE_CONFIGS, bookie_config, bookie_notes
from bookie.config_definitions_known import check_promises
from bookie.cookie import FILE_NAME, Cookie
from bookie.server.config import ServerConfig, server_config
from bookie.server.pages_config import PagesConfig, pages_config
from bookie.server.registration import MetadataCookie, Registration
from bookie.server.server import BookieServer, BookieServerSettings
from bookie.space.disk_usage import DiskState
from bookie.start import all_directories
from joined.damage_marks import DamageMarks
from joined.ledger_gc import ABSENT_SECONDS_MIN, MetadataLedgers
from joined.metadata_service import metadata_store
from joined.over_replicated import SurplusCopies
from ledger.metadata import LedgerManager
from runtime.addresses import interface_address
from runtime.config import ConfigError, load_tables
from runtime.env import real_env
from runtime.logs import kv
from runtime.processes import user_name
from runtime.running import running, serve_until_cancelled
from wire.bookkeeper.records import (
    LOCATION_PROPERTY,
    BookieServiceInfo,
    Endpoint,
    parse_instance_id,
)
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AsyncExitStack

    import trio

    from bookie.config import BookieConfig
    from runtime.config import ConfigValue

logger = logging.getLogger(__name__)

HELD_ADDS_MAX = 10_000
HELD_ADDS_SIZE_MAX_BYTES = 32 << 20


@dataclass(slots=True, frozen=True)
class BookieOptions:
    """`properties` is the text of bk_server.conf; `overrides` win over it."""

    properties: str = ""
    overrides: Mapping[str, str] = field(default_factory=dict)


async def run(options: BookieOptions, *, task_status: trio.TaskStatus[tuple[str, int]]) -> None:
    """Serves until cancelled; `started` with the bound address once the bookie is registered.

    ConfigError, PropertiesError, BookieStartError, MetadataError; OSError."""
    loaded = load_tables(options.properties, options.overrides, [BOOKIE_CONFIGS])
    for note in loaded.notes:
        logger.warning("setting_without_effect", kv(note=note))
    values = BOOKIE_CONFIGS.parse(loaded.texts[0])
    config = checked_config(values, interface_address)

    async def start(stack: AsyncExitStack) -> tuple[str, int]:
        return await _start(values, config, stack)

    await serve_until_cancelled(start, task_status)


def checked_config(
    values: Mapping[str, ConfigValue], interface_address: Callable[[str | None], str]
) -> ServerConfig:
    """Of values that go together: what cannot be is refused before anything starts. ConfigError."""
    check_promises(values)
    config = server_config(values, interface_address)
    if config.startup_users and user_name() not in config.startup_users:
        allowed = ", ".join(config.startup_users)
        raise ConfigError(
            "permittedStartupUsers", f"permittedStartupUsers: {user_name()} is none of {allowed}"
        )
    _settings(values, config, instance_id="")
    return config


def _settings(
    values: Mapping[str, ConfigValue], config: ServerConfig, instance_id: str
) -> BookieConfig:
    return bookie_config(
        values,
        bookie_id=config.bookie_id or f"{config.advertised_host}:{config.port}",
        instance_id=instance_id,
        journal_directory="/tmp/bk-txn",
        ledger_directory="/tmp/bk-data",
        # Whoever writes chooses the digest: a bookie is not told.
        verify_digest_on_write=False,
        held_adds_max=HELD_ADDS_MAX,
        held_adds_size_max_bytes=HELD_ADDS_SIZE_MAX_BYTES,
    )


async def _register(
    registration: Registration, bookie: Bookie, session_timeout_ms: int, stack: AsyncExitStack
) -> None:
    """From now on clients find the bookie, as one that takes writes whenever it does."""
    registration.set_read_only(bookie.is_read_only)
    bookie.disks.on_change(lambda state: registration.set_read_only(state is DiskState.READ_ONLY))

    async def register(*, task_status: trio.TaskStatus[None]) -> None:
        await registration.run(session_timeout_ms, task_status=task_status)

    await stack.enter_async_context(running(register))


async def _start(
    values: Mapping[str, ConfigValue], config: ServerConfig, stack: AsyncExitStack
) -> tuple[str, int]:
    env = real_env()
    await stack.enter_async_context(running(env.turn.serve, needs_start=False))
    assert env.poller is not None
    await stack.enter_async_context(running(env.poller.run))
    await stack.enter_async_context(running(env.net.run))
    store, root = metadata_store(values, env, name=config.bookie_id or "")
    await stack.enter_async_context(running(store.run))
    await LedgerManager(store, env, root).ensure_layout()
    instance_id = parse_instance_id((await store.get(f"{root}/INSTANCEID")).data)
    settings = _settings(values, config, instance_id)
    for note in bookie_notes(values, settings):
        logger.warning("setting_acts_otherwise", kv(note=note))
    bookie_id = settings.bookie_id
    cookie = MetadataCookie(
        store,
        root,
        Cookie(
            bookie_id,
            settings.journal_directory,
            settings.ledger_directory,
            instance_id,
            settings.more_ledger_directories,
        ),
    )
    has_cookie = any(env.disk.exists(f"{path}/{FILE_NAME}") for path in all_directories(settings))
    await cookie.check(has_cookie, settings.allow_storage_expansion)
    manager = LedgerManager(store, env, root)
    marks = DamageMarks(manager, bookie_id)
    surplus = SurplusCopies(store, manager, bookie_id)
    known = MetadataLedgers(manager, settings.gc.metadata_rate, ABSENT_SECONDS_MIN, surplus)
    bookie = Bookie(settings, env, known_ledgers=known)
    bookie.on_damage(marks.found)
    await stack.enter_async_context(running(marks.run))
    await stack.enter_async_context(running(bookie.run))
    await cookie.keep(bool(bookie.list_ledgers()))
    server = BookieServer(
        bookie,
        env,
        BookieServerSettings(
            config.host,
            config.port,
            processor=config.processor,
            tls=config.tls,
            auth=config.auth,
            admission=config.admission,
        ),
        lambda: env.disk.usage(settings.ledger_directory),
    )
    address = await stack.enter_async_context(running(server.run))
    assert isinstance(address, tuple)
    endpoint = Endpoint("bookie", config.advertised_host, address[1])
    told = {} if config.location is None else {LOCATION_PROPERTY: config.location}
    registration = Registration(store, root, bookie_id, BookieServiceInfo((endpoint,), told))
    await _register(registration, bookie, config.session_timeout_ms, stack)
    if pages_config(values) != PagesConfig():
        # prometheus_client and HTTP are slow to import, and often not wanted
        from quire.bookie_pages import ServedBookie, start_pages

        await start_pages(ServedBookie(bookie, settings, values, store, root, env), stack)
    logger.info("serving", kv(bookie=bookie_id, host=address[0], port=address[1]))
    return address
