"""The commands of `quire ledger`. What does the work is imported when a command runs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from quire.tools.ledger.options import (
    alias,
    cluster_options,
    exit_unless,
    ledger_argument,
    ledger_id_option,
    on_cluster,
    the_ledger,
)
from quire.tools.output import Rows, show, show_one

if TYPE_CHECKING:
    from collections.abc import Callable

    from quire.tools.ledger.cluster import Cluster

Command = TypeVar("Command", bound="Callable[..., None]")

DIGESTS = ("CRC32C", "CRC32", "HMAC", "DUMMY")


@click.group()
def ledger() -> None:
    """Ledgers of a BookKeeper cluster: lists, reads, writes, checks, repairs them."""


@ledger.command("list")
@cluster_options
@click.option("--meta", "-meta", "-m", is_flag=True, help="With what the metadata says of each.")
@click.option("--bookie-id", "--bookieid", "-bookieid", help="Only those that are on this bookie.")
def list_ledgers(
    meta: bool,
    bookie_id: str | None,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """All ledgers, or those of one bookie."""
    from quire.tools.ledger import ledgers

    work = partial(ledgers.list_ledgers, meta=meta, bookie=bookie_id)
    show(on_cluster(options, work), as_json=options["as_json"])


@ledger.command("metadata")
@cluster_options
@ledger_argument
@ledger_id_option
@click.option(
    "--dump-to-file",
    "--dumptofile",
    "-dumptofile",
    "dump",
    type=click.Path(dir_okay=False, writable=True),
    help="Writes the stored bytes there, password included.",
)
@click.option(
    "--restore-from-file",
    "--restorefromfile",
    "-restorefromfile",
    "restore",
    type=click.Path(exists=True, dir_okay=False),
    help="Makes the ledger from such a file.",
)
@click.option("--update", "-update", is_flag=True, help="Restore also if the ledger exists.")
def metadata(
    ledger: int | None,
    ledger_id: int | None,
    dump: str | None,
    restore: str | None,
    update: bool,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """What the metadata store has of a ledger."""
    from quire.tools.ledger import ledgers

    number = the_ledger(ledger, ledger_id)
    if dump is not None and restore is not None:
        raise click.UsageError("--dump-to-file or --restore-from-file, not both")
    if update and restore is None:
        raise click.UsageError("--update goes with --restore-from-file")
    if dump is not None:
        on_cluster(options, partial(ledgers.dump_metadata, ledger_id=number, path=dump))
        return
    if restore is not None:
        on_cluster(
            options,
            partial(ledgers.restore_metadata, ledger_id=number, path=restore, update=update),
        )
        return
    found = on_cluster(options, partial(ledgers.show_metadata, ledger_id=number))
    show_one(found, as_json=options["as_json"])


@ledger.command()
@cluster_options
@ledger_argument
@ledger_id_option
@click.option("--first", "--firstentryid", "-firstentryid", "-fe", type=click.IntRange(0))
@click.option("--last", "--lastentryid", "-lastentryid", "-le", type=click.IntRange(-1))
@click.option("--msg", "-msg", "-m", is_flag=True, help="With the payloads.")
@click.option("--hex", "as_hex", is_flag=True, help="Payloads as hexadecimal digits.")
@click.option(
    "--force-recovery", "-force-recovery", "-r", is_flag=True, help="Fences and closes it first."
)
@click.option("--bookie", "-bookie", "-b", help="Only what this bookie has.")
@click.option("--password", help="[default: as the metadata says]")
def read(
    ledger: int | None,
    ledger_id: int | None,
    first: int | None,
    last: int | None,
    msg: bool,
    as_hex: bool,
    force_recovery: bool,
    bookie: str | None,
    password: str | None,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """Entries, up to the last confirmed one; digests are checked."""
    from quire.tools.ledger.entries import ReadRequest
    from quire.tools.ledger.entries import read as read_entries

    request = ReadRequest(
        the_ledger(ledger, ledger_id),
        first or 0,
        None if last == -1 else last,
        with_payload=msg or as_hex,
        payload_as_hex=as_hex,
        recover=force_recovery,
        bookie=bookie,
        password=None if password is None else password.encode(),
    )

    async def work(cluster: Cluster) -> bool:
        rows = Rows(as_json=options["as_json"])
        try:
            return await read_entries(cluster, request, rows)
        finally:
            rows.end()

    exit_unless(on_cluster(options, work))


@ledger.command()
@cluster_options
@ledger_argument
@ledger_id_option
@click.option("--force", "-force", "-f", is_flag=True, help="Without asking; also of a partition.")
def delete(
    ledger: int | None,
    ledger_id: int | None,
    force: bool,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """Deletes a ledger; bookies drop its entries when they next collect garbage."""
    from quire.tools.ledger import ledgers

    number = the_ledger(ledger, ledger_id)
    if not force:
        click.confirm(f"Delete ledger {number}?", abort=True)
    on_cluster(options, partial(ledgers.delete, ledger_id=number, force=force))


def _sizes(command: Command) -> Command:
    """The options of what is written."""
    size = click.IntRange(1)
    for option in reversed(
        (
            click.option("--ensemble", "-ensemble", "-e", type=size, default=3, show_default=True),
            click.option(
                "--write-quorum",
                "--writeQuorum",
                "-writeQuorum",
                "-w",
                type=size,
                default=2,
                show_default=True,
            ),
            click.option(
                "--ack-quorum",
                "--ackQuorum",
                "-ackQuorum",
                "-a",
                type=size,
                default=2,
                show_default=True,
            ),
            click.option(
                "--num-entries",
                "--numEntries",
                "-numEntries",
                "-n",
                type=click.IntRange(0),
                default=1000,
                show_default=True,
            ),
            click.option(
                "--size",
                type=click.IntRange(0, 5_000_000),
                help="Bytes of each entry. [default: six]",
            ),
            click.option(
                "--digest", type=click.Choice(DIGESTS), default="CRC32C", show_default=True
            ),
            click.option("--password", default=""),
        )
    ):
        command = option(command)
    return command


def _write(options: dict[str, Any], *, is_deleted: bool) -> None:
    from quire.tools.ledger.entries import WriteRequest
    from quire.tools.ledger.entries import write as write_entries
    from wire.bookkeeper.entry import DigestType

    request = WriteRequest(
        options["ensemble"],
        options["write_quorum"],
        options["ack_quorum"],
        options["num_entries"],
        options["size"],
        DigestType[options["digest"]],
        options["password"].encode(),
        is_deleted,
    )
    show_one(
        on_cluster(options, partial(write_entries, request=request)), as_json=options["as_json"]
    )


@ledger.command()
@cluster_options
@_sizes
def write(**options: Any) -> None:  # noqa: ANN401  # click's
    """Writes a new ledger, closes it and reads it back; it stays."""
    _write(options, is_deleted=False)


@ledger.command("simple-test")
@cluster_options
@_sizes
def simple_test(**options: Any) -> None:  # noqa: ANN401  # click's
    """Writes a ledger, reads it back and deletes it."""
    _write(options, is_deleted=True)


@ledger.command()
@cluster_options
@ledger_argument
@ledger_id_option
@click.option("--password", help="[default: as the metadata says]")
def recover(
    ledger: int | None,
    ledger_id: int | None,
    password: str | None,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """Fences an open ledger and closes it: its writer adds nothing more."""
    from quire.tools.ledger.entries import recover as recover_ledger

    number = the_ledger(ledger, ledger_id)
    secret = None if password is None else password.encode()
    found = on_cluster(options, partial(recover_ledger, ledger_id=number, password=secret))
    show_one(found, as_json=options["as_json"])


@ledger.command("list-under-replicated")
@cluster_options
@click.option("--missing-replica", "--missingreplica", "-missingreplica", "-mr", help="A bookie.")
@click.option(
    "--excluding-missing-replica",
    "--excludingmissingreplica",
    "-excludingmissingreplica",
    "-emr",
    help="A bookie: not those that miss a copy there.",
)
@click.option("--count", "--onlydisplayledgercount", "-c", is_flag=True, help="Only how many.")
@click.option(
    "--print-worker",
    "--printreplicationworkerid",
    "-printreplicationworkerid",
    "-prw",
    is_flag=True,
    help="With who repairs each.",
)
@click.option(
    "--printmissingreplica",
    "-printmissingreplica",
    "-pmr",
    is_flag=True,
    hidden=True,
    help="They are always shown.",
)
def list_under_replicated(
    missing_replica: str | None,
    excluding_missing_replica: str | None,
    count: bool,
    print_worker: bool,
    printmissingreplica: bool,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """Ledgers that an auditor has marked as missing copies."""
    from quire.tools.ledger import checks

    del printmissingreplica
    wanted = checks.UnderReplicatedFilter(missing_replica, excluding_missing_replica, print_worker)
    rows = on_cluster(options, partial(checks.under_replicated, wanted=wanted))
    if count:
        show_one({"under_replicated": len(rows)}, as_json=options["as_json"])
    else:
        show(rows, as_json=options["as_json"])


@ledger.command()
@cluster_options
@click.argument("ledgers", nargs=-1, type=click.IntRange(0))
def check(ledgers: tuple[int, ...], **options: Any) -> None:  # noqa: ANN401  # click's
    """Reads every copy of every entry, of all ledgers if none is named; exit code 1: some miss."""
    from quire.tools.ledger import checks

    rows = on_cluster(options, partial(checks.check, ledger_ids=ledgers))
    show(rows, as_json=options["as_json"])
    exit_unless(checks.is_whole(rows))


alias(ledger, list_ledgers, "listledgers")
alias(ledger, metadata, "ledgermetadata")
alias(ledger, read, "readledger")
alias(ledger, delete, "deleteledger")
alias(ledger, simple_test, "simpletest")
alias(ledger, list_under_replicated, "listunderreplicated")
