"""Work on a bookie's directories while no server runs on them.

What only looks takes no lock and writes nothing. What changes something starts the bookie itself,
which takes its locks, replays its journal and stops as a bookie does: there is no second way to
write to its files.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import click
import trio

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.config_definitions import BOOKIE_CONFIGS, bookie_config
from bookie.cookie import FILE_NAME, parse_cookie
from bookie.errors import BookieStartError, CorruptionError
from bookie.start import ledger_directory
from bookie.storage.checkpoint import read_checkpoint
from joined.ledger_gc import MetadataLedgers
from ledger.metadata import LedgerManager, ledger_path
from metadata.sqlite import SqliteStore
from quire.tools.admin.files import StoredFile, disk_space, list_files
from quire.tools.admin.ledgers import metadata_json
from quire.tools.dump.sqlite_view import open_view
from runtime.config import ConfigError, load_tables
from runtime.env import real_env
from runtime.real_disk import RealDisk
from runtime.running import running
from wire.bookkeeper.ledger_metadata import MetadataFormatError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from bookie.journal.journal_format import Position
    from quire.tools.bookie.target import Target

T = TypeVar("T")

LEDGERS_ROOT = "/ledgers"
#: Nothing is added while a command works, and what the journal holds is flushed on the way.
HELD_ADDS_MAX = 1
HELD_ADDS_SIZE_MAX_BYTES = 16 << 20


def config_of(target: Target) -> BookieConfig:
    """The bookie's configuration: its identity is what its cookie says."""
    journal, ledgers = target.directories()
    path = f"{ledgers[0]}/current/{FILE_NAME}"
    try:
        with open(path, encoding="utf-8") as file:
            cookie = parse_cookie(file.read())
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path}: {error}") from error
    try:
        (texts,) = load_tables(target.conf or "", {}, [BOOKIE_CONFIGS]).texts
        values = BOOKIE_CONFIGS.parse(texts)
        return bookie_config(
            {**values, "ledgerDirectories": ",".join(ledgers), "journalDirectories": (journal,)},
            bookie_id=cookie.bookie_id,
            instance_id=cookie.instance_id,
            journal_directory=journal,
            ledger_directory=ledgers[0],
            verify_digest_on_write=target.metadata_path.exists(),
            held_adds_max=HELD_ADDS_MAX,
            held_adds_size_max_bytes=HELD_ADDS_SIZE_MAX_BYTES,
        )
    except (ConfigError, ValueError) as error:
        raise click.UsageError(str(error)) from error


# What only looks.


def files(target: Target) -> dict[str, list[StoredFile]]:
    return list_files(RealDisk(), _looked_at(target))


def space(target: Target) -> list[dict[str, object]]:
    """A row for each ledger directory, and one for all of their file systems together."""
    disk = RealDisk()
    config = _looked_at(target)
    rows = []
    for name in config.ledger_directories:
        total, free = disk.usage(name)
        rows.append(space_row(name, total, free))
    if len(rows) > 1:
        rows.append(space_row("all", *disk_space(disk, config.ledger_directories)))
    return rows


def space_row(directory: str, total: int, free: int) -> dict[str, object]:
    used = (total - free) / total if total else 1.0
    return {
        "directory": directory,
        "total_bytes": total,
        "free_bytes": free,
        "used_percent": round(used * 100, 2),
    }


def last_mark(target: Target) -> Position:
    config = _looked_at(target)
    try:
        return read_checkpoint(RealDisk(), ledger_directory(config)).mark
    except (OSError, CorruptionError) as error:
        raise click.ClickException(str(error)) from error


def _looked_at(target: Target) -> BookieConfig:
    """Enough of a configuration to find the files; identity and settings do not matter."""
    journal, ledgers = target.directories()
    return BookieConfig(
        bookie_id="",
        instance_id="",
        journal_directory=journal,
        ledger_directory=ledgers[0],
        more_ledger_directories=ledgers[1:],
    )


def ledgers_of(target: Target, with_metadata: bool) -> Iterator[tuple[int, dict[str, object]]]:
    """(id, metadata or nothing), ascending, from the metadata file as it is now."""
    path = str(target.metadata_path)
    if not os.path.exists(path):
        raise click.ClickException(
            f"{path} is not there: ledgers are listed by metadata, ask a running server (--url)"
        )
    try:
        connection = open_view(path)
        with connection:
            ids = sorted(_ledger_ids(connection))
            for ledger_id in ids:
                yield ledger_id, _metadata(connection, ledger_id) if with_metadata else {}
        connection.close()
    except (OSError, sqlite3.Error, ValueError) as error:
        raise click.ClickException(f"{path}: {error}") from error


def _ledger_ids(connection: sqlite3.Connection) -> Iterator[int]:
    rows = connection.execute(
        "SELECT parent, name FROM node WHERE parent GLOB ? AND name GLOB 'L[0-9]*'",
        (f"{LEDGERS_ROOT}/[0-9]*",),
    )
    for parent, name in rows:
        digits = parent.removeprefix(LEDGERS_ROOT).replace("/", "") + name[1:]
        if digits.isdigit() and ledger_path(LEDGERS_ROOT, int(digits)) == f"{parent}/{name}":
            yield int(digits)


def _metadata(connection: sqlite3.Connection, ledger_id: int) -> dict[str, object]:
    parent, _, name = ledger_path(LEDGERS_ROOT, ledger_id).rpartition("/")
    found = connection.execute(
        "SELECT data FROM node WHERE parent = ? AND name = ?", (parent, name)
    ).fetchone()
    try:
        return metadata_json(ledger_id, bytes(found[0]))
    except MetadataFormatError as error:
        raise click.ClickException(f"ledger {ledger_id}: bad metadata: {error}") from error


# What needs the bookie.


def with_bookie(target: Target, work: Callable[[Bookie], Awaitable[T]]) -> T:
    """Starts the bookie, runs `work` on it and stops it. ClickException if it does not start: its
    directories are in use, or damaged."""
    config = config_of(target)
    try:
        return trio.run(partial(_with_bookie, target, config, work))
    except* (BookieStartError, CorruptionError, OSError) as errors:
        words = "; ".join(str(error) for error in _leaves(errors))
        raise click.ClickException(words) from None


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


async def _with_bookie(
    target: Target, config: BookieConfig, work: Callable[[Bookie], Awaitable[T]]
) -> T:
    async with _started(target, config) as bookie:
        return await work(bookie)


@asynccontextmanager
async def _started(target: Target, config: BookieConfig) -> AsyncIterator[Bookie]:
    env = real_env()
    async with AsyncExitStack() as stack:
        known = None
        if target.metadata_path.exists():
            lock = str(target.data_dir / "lock")
            try:
                stack.callback(env.disk.lock(lock))
            except BlockingIOError as error:
                raise OSError(f"{target.data_dir} is in use by a server") from error
        await stack.enter_async_context(running(env.turn.serve, needs_start=False))
        assert env.poller is not None
        await stack.enter_async_context(running(env.poller.run))
        if target.metadata_path.exists():
            store = SqliteStore(str(target.metadata_path), env.disk.run)
            await stack.enter_async_context(running(store.run))
            known = MetadataLedgers(
                LedgerManager(store, env, LEDGERS_ROOT),
                config.gc.metadata_rate,
                # Nobody else has this file open: what is read there is what there is. There are
                # two looks nevertheless.
                absent_seconds=0.0,
            )
        bookie = Bookie(config, env, known_ledgers=known)
        await stack.enter_async_context(running(bookie.run))
        yield bookie
