"""`quire bookie rebuild-index`: bookie/health/rebuild_index.py says what it does and assumes."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from quire.tools.bookie.target import find_target
from quire.tools.output import progress, show_one

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bookie.health.rebuild_index import MetadataLedger, RebuildReport

LEDGERS_ROOT = "/ledgers"
#: Of each list in the report, so many are shown to a person.
SHOWN_MAX = 20


@click.command("rebuild-index")
@click.option(
    "--ledger-dir",
    "ledger_dirs",
    multiple=True,
    type=click.Path(exists=True, file_okay=False),
    help="A ledger directory, the one with the index first. May be repeated.",
)
@click.option(
    "--journal-dir",
    type=click.Path(exists=True, file_okay=False),
    help="The journal directory: master keys may be there that are nowhere else.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    default="data",
    show_default=True,
    help="Of `quire standalone`, if no --ledger-dir is given.",
)
@click.option(
    "--conf",
    type=click.Path(exists=True, dir_okay=False),
    help="A bk_server.conf that names the directories.",
)
@click.option(
    "--metadata",
    "metadata_path",
    type=click.Path(exists=True, dir_okay=False),
    help="The metadata file, for ledgers whose state is lost. [default: that of --data-dir]",
)
@click.option(
    "--password",
    help="Of ledgers whose master key is lost and not in the metadata; may be empty.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of lines.")
def rebuild_index(
    ledger_dirs: tuple[str, ...],
    journal_dir: str | None,
    data_dir: str,
    conf: str | None,
    metadata_path: str | None,
    password: str | None,
    as_json: bool,
) -> None:
    """Makes a bookie's index anew from its entry logs.

    The bookie must not be running. The old index stays until the new one is whole, and is kept if
    anything could not be recovered. Exit code 1: entries are damaged or may be missing; the bookie
    answers so for them and serves all others."""
    from bookie.errors import BookieStartError
    from bookie.health.rebuild_index import IndexRebuild
    from runtime.real_disk import RealDisk
    from wire.bookkeeper.entry import master_key

    if not ledger_dirs:
        target = find_target(None, data_dir, conf)
        journal_dir, ledger_dirs = target.directories()
        if metadata_path is None and conf is None and target.metadata_path.exists():
            metadata_path = str(target.metadata_path)
    rebuild = IndexRebuild(
        RealDisk(),
        [os.path.abspath(path) for path in ledger_dirs],
        os.path.abspath(journal_dir) if journal_dir is not None else None,
        metadata=_read_metadata(metadata_path) if metadata_path is not None else None,
        default_master_key=master_key(password.encode()) if password is not None else None,
    )
    try:
        with progress("rebuild", rebuild.total_bytes()) as step:
            report = rebuild.run(step)
    except (BookieStartError, OSError) as error:
        raise click.ClickException(str(error)) from error
    _show(report, as_json)
    if report.damaged or report.limbo:
        raise SystemExit(1)


def _show(report: RebuildReport, as_json: bool) -> None:
    fields = asdict(report)
    if not as_json:
        for name in ("gaps", "limbo", "notes"):
            found = fields.pop(name)
            for each in found[:SHOWN_MAX]:
                click.echo(f"{name}: {each}", err=True)
            fields[name] = len(found)
    show_one(fields, as_json=as_json)


def _read_metadata(path: str) -> Mapping[int, MetadataLedger]:
    """All ledgers of a metadata file. ClickException."""
    from bookie.health.rebuild_index import MetadataLedger
    from ledger.metadata import ledger_path
    from quire.tools.dump.sqlite_view import open_view
    from wire.bookkeeper.entry import master_key
    from wire.bookkeeper.ledger_metadata import MetadataFormatError, parse

    found: dict[int, MetadataLedger] = {}
    try:
        connection = open_view(path)
        rows = connection.execute(
            "SELECT parent, name, data FROM node WHERE parent GLOB ? AND name GLOB 'L[0-9]*'",
            (f"{LEDGERS_ROOT}/[0-9]*",),
        )
        for parent, name, data in rows:
            digits = parent.removeprefix(LEDGERS_ROOT).replace("/", "") + name[1:]
            ledger_id = int(digits)
            if ledger_path(LEDGERS_ROOT, ledger_id) == f"{parent}/{name}":
                metadata = parse(bytes(data))
                key = master_key(metadata.password or b"")
                found[ledger_id] = MetadataLedger(key, metadata.is_closed)
        connection.close()
    except (OSError, sqlite3.Error, ValueError, MetadataFormatError) as error:
        raise click.ClickException(f"{path}: {error}") from error
    return found
