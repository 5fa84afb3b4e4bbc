"""What the jobs' commands have in common. Exit codes: 0; 1 if something failed or was found; 2 for
a wrong option; 3 if not all could be looked at."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from quire.cli_options import check_levels

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark_quire.connection import Where

URI_VARIABLES = ("QUIRE_METADATA_SERVICE_URI", "BK_metadataServiceUri")
EXIT_FOUND = 1
EXIT_NOT_ALL = 3

Command = TypeVar("Command", bound="Callable[..., None]")


def job_options(command: Command) -> Command:
    """--metadata, --master, --topic, --json and --log-level."""
    for option in reversed(
        (
            click.option(
                "--metadata",
                envvar=list(URI_VARIABLES),
                show_envvar=True,
                required=True,
                help="As zk+null://host:2181/ledgers, or quire+unix:///path/of/socket.",
            ),
            click.option(
                "--bookkeeper",
                multiple=True,
                metavar="NAME=VALUE",
                help="A setting of BookKeeper's client, as for logins and TLS.",
            ),
            click.option(
                "--master",
                help="Spark's, as local[4] or spark://host:7077. Without it this process works.",
            ),
            click.option(
                "--topic", "topics", multiple=True, help="Only this one; may be repeated."
            ),
            click.option("--json", "as_json", is_flag=True, help="JSON instead of tables."),
            click.option(
                "--log-level",
                default="error",
                show_default=True,
                metavar="LEVEL[,LOGGER=LEVEL]",
                callback=check_levels,
                help="debug, info, warning or error.",
            ),
        )
    ):
        command = option(command)
    return command


def where_of(metadata: str, bookkeeper: tuple[str, ...]) -> Where:
    """UsageError for a setting that is none."""
    from pyspark_quire.connection import Where

    settings = {}
    for each in bookkeeper:
        name, equals, text = each.partition("=")
        if not equals:
            raise click.UsageError(f"--bookkeeper {each}: expected NAME=VALUE")
        settings[name] = text
    where = Where(metadata, settings)
    try:
        where.values()
        _ = where.ledgers_root
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return where


def tells_errors(command: Command) -> Command:
    """What is foreseen ends the command with a line and 1; all else keeps its traceback."""

    @functools.wraps(command)
    def told(*args: Any, **options: Any) -> None:  # noqa: ANN401  # click's
        from runtime.logs import setup_logging

        setup_logging(options.pop("log_level"))
        try:
            command(*args, **options)
        except Exception as error:  # raised again, or told
            _raise(error)

    return told  # type: ignore[return-value]


def _raise(error: Exception) -> NoReturn:
    from broker.log.append.entry_format import EntryFormatError
    from broker.log.life.archived import ArchivedFormatError
    from broker.log.life.chain import ChainFormatError
    from broker.log.read.offset_index import IndexFormatError
    from ledger.errors import LedgerError
    from metadata.store import MetadataError
    from pyspark_quire.choose_core import DataLossError, StalePlanError, UnknownTopicError
    from pyspark_quire.connection import UnreachableError
    from pyspark_quire.partitions import TopicGoneError
    from pyspark_quire.reading import MissingRecordsError
    from spark_jobs.manifest import ManifestError
    from wire.bookkeeper.ledger_metadata import MetadataFormatError
    from wire.kafka.errors import WireError

    known = (
        LedgerError,
        MetadataError,
        ChainFormatError,
        UnreachableError,
        UnknownTopicError,
        TopicGoneError,
        StalePlanError,
        DataLossError,
        MissingRecordsError,
        WireError,
        EntryFormatError,
        IndexFormatError,
        ArchivedFormatError,
        MetadataFormatError,
        ManifestError,
        OSError,
    )
    if isinstance(error, known):
        raise click.ClickException(str(error)) from None
    raise error
