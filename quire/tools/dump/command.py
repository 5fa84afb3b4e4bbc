"""The commands of `quire dump`: their options and what they say of themselves.

Each takes files, or directories that it searches. A file that cannot be read, or is damaged, is
told on stderr with the offset, and the others are still dumped; then the exit code is 1. A reader
that goes away (`| head`) ends it quietly, with the code of a process that SIGPIPE ended.

What does the work (quire/tools/dump/run.py) is imported when a command runs: `quire --help` and a
server have no use for it.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

import click

from quire.tools.dump.options import (
    DIGESTS,
    VALUE_SIZE_MAX_DEFAULT,
    BatchOptions,
    EntryOptions,
    OutputOptions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quire.tools.dump.run import Run

Command = TypeVar("Command", bound="Callable[..., None]")


class OutputArguments(TypedDict):
    """The options that all commands have."""

    as_json: bool
    bytes_as: str
    value_size_max: int


@click.group()
def dump() -> None:
    """Prints what is on disk: every structure, for a person or as JSON. Never writes."""


def _options(*decorators: Callable[[Any], Any]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for each in reversed(decorators):
            command = each(command)
        return command

    return decorate


_common = _options(
    click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=click.Path()),
    click.option("--json", "as_json", is_flag=True, help="One JSON object per line."),
    click.option(
        "--bytes",
        "bytes_as",
        type=click.Choice(["hex", "base64"]),
        default="hex",
        show_default=True,
        help="How JSON shows bytes: keys, values, whatever is no number and no name.",
    ),
    click.option(
        "--value-size-max",
        type=click.IntRange(0),
        default=VALUE_SIZE_MAX_DEFAULT,
        show_default=True,
        metavar="BYTES",
        help="Longer keys and values are cut, but not in JSON; 0 for never.",
    ),
)
_which = _options(
    click.option("--ledger", type=click.IntRange(0), help="Only this ledger."),
    click.option("--entry", type=click.IntRange(0), help="Only entries with this id."),
)
_summary = click.option("--summary", is_flag=True, help="Totals by ledger instead of each entry.")
_show_secrets = click.option("--show-secrets", is_flag=True, help="Passwords and master keys too.")
_payload = click.option(
    "--payload", is_flag=True, help="What quire put into the entries: batches, offset index, ..."
)
_records = _options(
    click.option(
        "--print-data-log", "--records", "records", is_flag=True, help="Records with their data."
    ),
    click.option(
        "--offsets-decoder",
        "decoder",
        flag_value="offsets",
        help="Records, as those of __consumer_offsets.",
    ),
    click.option(
        "--transaction-log-decoder",
        "decoder",
        flag_value="transactions",
        help="Records, as those of __transaction_state.",
    ),
    click.option(
        "--share-group-state-decoder",
        "decoder",
        flag_value="share",
        help="Records, as those of __share_group_state.",
    ),
)
_digest = _options(
    click.option(
        "--digest",
        type=click.Choice(DIGESTS),
        default="auto",
        show_default=True,
        help="Of the entries; quire's own have crc32c.",
    ),
    click.option("--password", default="", help="Of the ledgers, for hmac."),
)


@contextmanager
def _running(output: OutputArguments) -> Iterator[Run]:
    from quire.tools.dump.run import running

    options = OutputOptions(output["as_json"], output["bytes_as"], output["value_size_max"])
    with running(options) as run:
        yield run


def _batch_options(records: bool, decoder: str | None) -> BatchOptions:
    return BatchOptions(records or decoder is not None, decoder)


@dump.command()
@_common
@_which
@_digest
@_records
@_summary
@_show_secrets
@_payload
@click.option("--entries", is_flag=True, help="LAC, length and digest of each entry.")
@click.option(
    "--checkpoint",
    type=click.Path(),
    help="A `checkpoint` or `lastMark`: a replay starts there. In a directory it is found.",
)
def journal(
    paths: tuple[str, ...],
    ledger: int | None,
    entry: int | None,
    digest: str,
    password: str,
    records: bool,
    decoder: str | None,
    summary: bool,
    show_secrets: bool,
    payload: bool,
    entries: bool,
    checkpoint: str | None,
    **output: Unpack[OutputArguments],
) -> None:
    """The journal: groups, their records, and where a replay ends, and why."""
    batches = _batch_options(records, decoder)
    options = EntryOptions(
        ledger=ledger,
        entry=entry,
        decoded=entries,
        payload=payload or batches.records,
        summary=summary,
        digest=digest,
        password=password.encode(),
        show_secrets=show_secrets,
        batches=batches,
    )
    with _running(output) as run:
        run.journals(paths, options, checkpoint)


@dump.command()
@_common
@_which
@_digest
@_records
@_summary
@_payload
def entrylog(
    paths: tuple[str, ...],
    ledger: int | None,
    entry: int | None,
    digest: str,
    password: str,
    records: bool,
    decoder: str | None,
    summary: bool,
    payload: bool,
    **output: Unpack[OutputArguments],
) -> None:
    """Entry logs: the ledgers map, and each entry with the result of its digest."""
    batches = _batch_options(records, decoder)
    options = EntryOptions(
        ledger=ledger,
        entry=entry,
        decoded=True,
        payload=payload or batches.records,
        summary=summary,
        digest=digest,
        password=password.encode(),
        batches=batches,
    )
    with _running(output) as run:
        run.entry_logs(paths, options)


@dump.command()
@_common
@_which
@_summary
@_show_secrets
def index(
    paths: tuple[str, ...],
    ledger: int | None,
    entry: int | None,
    summary: bool,
    show_secrets: bool,
    **output: Unpack[OutputArguments],
) -> None:
    """The index: RocksDB's `locations` and `ledgers`, also of a running bookie."""
    options = EntryOptions(ledger=ledger, entry=entry, summary=summary, show_secrets=show_secrets)
    with _running(output) as run:
        run.indexes(paths, options)


@dump.command()
@_common
@_show_secrets
@click.option("--path", "node", default="/", show_default=True, help="This node and all below.")
def metadata(
    paths: tuple[str, ...], node: str, show_secrets: bool, **output: Unpack[OutputArguments]
) -> None:
    """The metadata tree: ledgers, topics, chains, settings; also of a running server.

    A file with one ledger's metadata in BookKeeper's formats 1 to 3 is shown too."""
    with _running(output) as run:
        run.metadata(paths, "/" + node.strip("/"), show_secrets)


@dump.command()
@_common
@_records
@click.option(
    "--at",
    type=click.IntRange(0),
    metavar="OFFSET",
    help="Start there; in an entry log or a journal: the entry there, as the index has it.",
)
def batch(
    paths: tuple[str, ...],
    records: bool,
    decoder: str | None,
    at: int | None,
    **output: Unpack[OutputArguments],
) -> None:
    """Record batches: of a file that holds nothing else (as Kafka's segments), of stdin (-), or of
    the entries in an entry log or a journal."""
    with _running(output) as run:
        run.batches(paths, _batch_options(records, decoder), at)


@dump.command()
@_common
@_which
@click.option("--at", type=click.IntRange(0), metavar="OFFSET", help="Only the entry there.")
def snapshot(
    paths: tuple[str, ...],
    ledger: int | None,
    entry: int | None,
    at: int | None,
    **output: Unpack[OutputArguments],
) -> None:
    """Producer snapshots and offset indexes: those in an entry log or a journal, or a file with
    the bytes of one."""
    options = EntryOptions(ledger=ledger, entry=entry, decoded=True, payload=True)
    with _running(output) as run:
        run.snapshots(paths, options, at)


@dump.command()
@_common
def checkpoint(paths: tuple[str, ...], **output: Unpack[OutputArguments]) -> None:
    """`checkpoint` and `lastMark`: from where on the journal is needed."""
    with _running(output) as run:
        run.small_files(paths, "checkpoint")


@dump.command()
@_common
def cookie(paths: tuple[str, ...], **output: Unpack[OutputArguments]) -> None:
    """`VERSION`: whose directory it is."""
    with _running(output) as run:
        run.small_files(paths, "cookie")


@dump.command(name="all")
@_common
@_records
@_summary
@_show_secrets
def everything(
    paths: tuple[str, ...],
    records: bool,
    decoder: str | None,
    summary: bool,
    show_secrets: bool,
    **output: Unpack[OutputArguments],
) -> None:
    """All structures in files and directories, each taken for what it looks like."""
    options = EntryOptions(
        decoded=True,
        payload=not summary,
        summary=summary,
        show_secrets=show_secrets,
        batches=_batch_options(records, decoder),
    )
    with _running(output) as run:
        run.everything(paths, options)
