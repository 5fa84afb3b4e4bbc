"""`quire bookie recover`, `update-bookie-in-ledger`: other bookies take over what
one had (feature 40; ledger/replication.py has the rules)."""

from __future__ import annotations

from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from quire.tools.ledger.options import alias, cluster_options, exit_unless, on_cluster
from quire.tools.output import progress, show, told_progress
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from ledger.fragments import Fragment
    from ledger.replication import Replicator
    from quire.tools.ledger.cluster import Cluster
    from quire.tools.output import ToldProgress
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

#: Ledgers that are copied at a time.
CONCURRENCY = 4


@dataclass(slots=True, frozen=True)
class RecoverRequest:
    bookies: frozenset[str]
    ledger_id: int | None = None
    skip_open: bool = False
    skip_unrecoverable: bool = False
    bytes_per_second: float = 0
    entries_per_second: float = 0


def rates(command: Any) -> Any:  # noqa: ANN401  # click's
    """--rate and --entry-rate."""
    for option in (
        click.option("--entry-rate", type=click.IntRange(0), default=0, help="Entries per second."),
        click.option(
            "--rate",
            "--replicationRate",
            "-replicationRate",
            "-rate",
            type=click.IntRange(0),
            default=0,
            help="Bytes per second. [default: no limit]",
        ),
    ):
        command = option(command)
    return command


@click.command()
@cluster_options
@click.argument("bookies")
@click.option("--query", "-query", "-q", is_flag=True, help="Only the ledgers that are concerned.")
@click.option("--dry-run", "--dryrun", "-dryrun", "-dr", is_flag=True, help="Only the plan.")
@click.option("--force", "-force", "-f", is_flag=True, help="Without asking.")
@click.option("--ledger", "-ledger", "-l", type=click.IntRange(0), help="Only this one.")
@click.option("--skip-open-ledgers", "--skipOpenLedgers", "-skipOpenLedgers", "-sk", is_flag=True)
@click.option(
    "--delete-cookie",
    "--deleteCookie",
    "-deleteCookie",
    "-d",
    is_flag=True,
    help="Once nothing is left to copy.",
)
@click.option(
    "--skip-unrecoverable-ledgers",
    "--skipUnrecoverableLedgers",
    "-skipUnrecoverableLedgers",
    "-sku",
    is_flag=True,
    help="Go on with the others if a ledger fails.",
)
@rates
def recover(
    bookies: str,
    query: bool,
    dry_run: bool,
    force: bool,
    ledger: int | None,
    skip_open_ledgers: bool,
    delete_cookie: bool,
    skip_unrecoverable_ledgers: bool,
    rate: int,
    entry_rate: int,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """Copies what BOOKIES (one, or several with commas between) had to other bookies, and takes
    them out of the ledgers' ensembles. Open ledgers are fenced and closed first."""
    names = frozenset(name.strip() for name in bookies.split(",") if name.strip())
    if not names:
        raise click.UsageError("no bookie is named")
    request = RecoverRequest(
        names, ledger, skip_open_ledgers, skip_unrecoverable_ledgers, rate, entry_rate
    )
    if delete_cookie and ledger is not None:
        raise click.UsageError("--delete-cookie is for all ledgers: without --ledger")
    if query or dry_run:
        rows = on_cluster(options, partial(plan, request=request, by_fragment=dry_run))
        show(rows, as_json=options["as_json"])
        return
    if not force:
        click.confirm(f"Recover {', '.join(sorted(names))}?", abort=True)
    rows = on_cluster(options, partial(run, request=request, delete_cookie=delete_cookie))
    show(rows, as_json=options["as_json"])
    exit_unless(all(row["error"] is None for row in rows))


async def concerned(
    cluster: Cluster, request: RecoverRequest
) -> AsyncGenerator[tuple[int, LedgerMetadata], None]:
    """The ledgers that have one of the bookies in an ensemble. ClickException for metadata that
    cannot be read: nobody could say that nothing is left."""
    if request.ledger_id is not None:
        yield request.ledger_id, (await cluster.manager.read(request.ledger_id)).metadata
        return
    async with aclosing(cluster.ledgers()) as ledgers:
        async for ledger_id, metadata in ledgers:
            if isinstance(metadata, str):
                words = f"ledger {ledger_id}: bad metadata: {metadata}"
                if not request.skip_unrecoverable:
                    raise click.ClickException(words)
                click.echo(words, err=True)
            elif not all(request.bookies.isdisjoint(each) for _, each in metadata.segments):
                yield ledger_id, metadata


async def plan(
    cluster: Cluster, request: RecoverRequest, *, by_fragment: bool
) -> list[dict[str, Any]]:
    """A row for each ledger, or for each fragment; nothing is changed."""
    from ledger.fragments import fragments

    rows: list[dict[str, Any]] = []
    async for ledger_id, metadata in concerned(cluster, request):
        found = [f for f in fragments(ledger_id, metadata) if f.indexes_of(request.bookies)]
        if not by_fragment:
            rows.append(
                {"ledger": ledger_id, "state": metadata.state.name, "fragments": len(found)}
            )
            continue
        for fragment in found:
            rows.append(await _plan_row(cluster, request, fragment, metadata))
    return rows


async def _plan_row(
    cluster: Cluster, request: RecoverRequest, fragment: Fragment, metadata: LedgerMetadata
) -> dict[str, Any]:
    from ledger.placement import TooFewBookiesError

    indexes = fragment.indexes_of(request.bookies)
    try:
        ensemble = await cluster.placement(request.bookies).replace(
            fragment.ensemble,
            indexes,
            metadata.write_quorum_size,
            metadata.ack_quorum_size,
            request.bookies,
        )
        targets: list[str] | str = [ensemble[index] for index in indexes]
    except TooFewBookiesError as error:
        targets = str(error)
    return {
        "ledger": fragment.ledger_id,
        "first_entry": fragment.first_entry_id,
        "last_entry": fragment.last_entry_id,
        "ensemble": list(fragment.ensemble),
        "replaced": [fragment.ensemble[index] for index in indexes],
        "by": targets,
        "recovered_first": not fragment.is_closed and not request.skip_open,
    }


async def run(
    cluster: Cluster, request: RecoverRequest, *, delete_cookie: bool
) -> list[dict[str, Any]]:
    """A row for each ledger. ClickException, before anything is done, if the cookie is to be
    deleted and a bookie is running."""
    from ledger.replication import ReplicationConfig, Replicator

    if delete_cookie:
        refuse_running(cluster, request)
    ledgers = {each: size async for each, size in sizes(cluster, request)}
    replicator = Replicator(
        cluster.manager,
        cluster.bookies,
        ReplicationConfig(
            bytes_per_second=request.bytes_per_second,
            entries_per_second=request.entries_per_second,
        ),
    )
    rows = await _replace_all(cluster, request, replicator, ledgers)
    if delete_cookie:
        await delete_cookies(cluster, request, rows)
    return rows


async def run_and_forget(cluster: Cluster, request: RecoverRequest) -> list[dict[str, Any]]:
    """As `run`, and the cookie goes, too."""
    return await run(cluster, request, delete_cookie=True)


def refuse_running(cluster: Cluster, request: RecoverRequest) -> None:
    """ClickException if one of the bookies is running."""
    running = sorted(request.bookies & cluster.registered())
    if running:
        raise click.ClickException(f"{', '.join(running)} is running: stop it first")


async def sizes(cluster: Cluster, request: RecoverRequest) -> AsyncIterator[tuple[int, int]]:
    """(ledger, bytes that are to be copied, as far as the metadata tells)"""
    from ledger.fragments import fragments

    async for ledger_id, metadata in concerned(cluster, request):
        copies = 0.0
        for fragment in fragments(ledger_id, metadata):
            if fragment.last_entry_id is not None:
                count = fragment.last_entry_id + 1 - fragment.first_entry_id
                share = metadata.write_quorum_size / metadata.ensemble_size
                copies += count * share * len(fragment.indexes_of(request.bookies))
        entry_count = max(metadata.last_entry_id + 1, 1)
        yield ledger_id, int(metadata.length / entry_count * copies)


async def _replace_all(
    cluster: Cluster, request: RecoverRequest, replicator: Replicator, ledgers: dict[int, int]
) -> list[dict[str, Any]]:
    import trio

    rows: dict[int, dict[str, Any]] = {}
    waiting = iter(ledgers)
    is_ended = False

    async def work(told: ToldProgress) -> None:
        nonlocal is_ended
        for ledger_id in waiting:
            if is_ended:
                return
            row = rows[ledger_id] = await _replace_one(
                cluster, request, replicator, ledger_id, partial(told.step, ledger_id)
            )
            if row["error"] is None:
                told.finish(ledger_id)
            else:
                told.problems[ledger_id] = row["error"]
            is_ended = row["error"] is not None and not request.skip_unrecoverable

    with told_progress("recover", ledgers) as told:
        async with trio.open_nursery() as nursery:
            for _ in range(CONCURRENCY):
                nursery.start_soon(work, told)
    return [rows[ledger_id] for ledger_id in sorted(rows)]


async def _replace_one(
    cluster: Cluster,
    request: RecoverRequest,
    replicator: Replicator,
    ledger_id: int,
    step: Callable[[int, int], None],
) -> dict[str, Any]:
    from ledger.errors import LedgerError, NoSuchLedgerError

    row: dict[str, Any] = {
        "ledger": ledger_id,
        "fragments": 0,
        "entries": 0,
        "copied_bytes": 0,
        "was_open": False,
        "open_end_left": False,
        "error": None,
    }
    try:
        done = await replicator.replace_bookies(
            cluster.client,
            cluster.placement(request.bookies),
            ledger_id,
            request.bookies,
            skip_open=request.skip_open,
            step=step,
        )
    except NoSuchLedgerError:
        return row  # deleted meanwhile
    except LedgerError as error:
        return {**row, "error": str(error)}
    return {
        **row,
        "fragments": done.fragments,
        "entries": done.copied.entries,
        "copied_bytes": done.copied.size_bytes,
        "was_open": done.was_recovered,
        "open_end_left": done.open_end_skipped,
    }


async def delete_cookies(
    cluster: Cluster, request: RecoverRequest, rows: list[dict[str, Any]]
) -> None:
    """Only if no ledger names the bookie any more: until then it may be wanted back."""
    from metadata.store import NoNodeError

    # What others wrote while copies were made is to be seen.
    await cluster.store.sync(cluster.root)
    left = [ledger_id async for ledger_id, _ in concerned(cluster, request)]
    if left:
        words = f"{len(left)} ledgers still name it (the first is {left[0]}): the cookie stays"
        click.echo(words, err=True)
        if all(row["error"] is None for row in rows):
            raise SystemExit(1)
        return
    for bookie in sorted(request.bookies):
        with suppress(NoNodeError):
            await cluster.store.delete(f"{cluster.root}/cookies/{bookie}")


@click.command("update-bookie-in-ledger")
@cluster_options
@click.option("--src-bookie", "--srcBookie", "-srcBookie", "-sb", required=True, help="Old id.")
@click.option("--dest-bookie", "--destBookie", "-destBookie", "-db", required=True, help="New id.")
@click.option(
    "--updates-per-second",
    "--updatespersec",
    "-updatespersec",
    "-s",
    type=click.IntRange(1),
    default=5,
    show_default=True,
)
@click.option("--limit", "-limit", "-l", type=click.IntRange(1), help="Ledgers at most.")
@click.option("--maxOutstandingReads", "-maxOutstandingReads", "-r", type=int, hidden=True)
@click.option("--verbose", "-verbose", "-v", is_flag=True, hidden=True)
@click.option("--printprogress", "-printprogress", "-p", type=int, hidden=True)
def update_bookie_in_ledger(
    src_bookie: str,
    dest_bookie: str,
    updates_per_second: int,
    limit: int | None,
    maxoutstandingreads: int | None,
    verbose: bool,
    printprogress: int | None,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """Writes another bookie's id into all ensembles where one is: for a bookie that came back under
    a new name with all that it had. Nothing is copied."""
    del maxoutstandingreads, verbose, printprogress  # BookKeeper's; here a bar shows the progress
    if src_bookie == dest_bookie:
        raise click.UsageError("both are the same bookie")
    work = partial(
        rename, old=src_bookie, new=dest_bookie, per_second=updates_per_second, limit=limit
    )
    rows = on_cluster(options, work)
    show(rows, as_json=options["as_json"])
    exit_unless(all(row["error"] is None for row in rows))


async def rename(
    cluster: Cluster, old: str, new: str, per_second: float, limit: int | None
) -> list[dict[str, Any]]:
    """A row for each ledger. ClickException if the old bookie is running."""
    from ledger.errors import LedgerError
    from runtime.throttle import Throttle

    if old in cluster.registered():
        raise click.ClickException(f"{old} is running: stop it first")
    rate = Throttle(per_second)
    rows: list[dict[str, Any]] = []
    with progress("ledgers", None, is_bytes=False) as step:
        async with aclosing(concerned(cluster, RecoverRequest(frozenset((old,))))) as found:
            async for ledger_id, _ in found:
                if limit is not None and len(rows) == limit:
                    break
                await rate.take(1)
                row: dict[str, Any] = {"ledger": ledger_id, "error": None}
                try:
                    versioned = await cluster.manager.read(ledger_id)
                    await cluster.manager.update(
                        ledger_id, versioned, partial(_renamed, ledger_id, old, new)
                    )
                except LedgerError as error:
                    row["error"] = str(error)
                rows.append(row)
                step(1)
    return rows


def _renamed(ledger_id: int, old: str, new: str, metadata: LedgerMetadata) -> LedgerMetadata | None:
    from ledger.errors import MetadataConflictError

    if any(old in ensemble and new in ensemble for _, ensemble in metadata.segments):
        raise MetadataConflictError(ledger_id, f"{new} is in an ensemble next to {old}")
    segments = tuple(
        (first, tuple(new if bookie == old else bookie for bookie in ensemble))
        for first, ensemble in metadata.segments
    )
    return None if segments == metadata.segments else replace(metadata, segments=segments)


def register(group: click.Group) -> None:
    group.add_command(recover)
    recover.epilog = "In `bookkeeper shell`: recover."
    group.add_command(update_bookie_in_ledger)
    alias(group, update_bookie_in_ledger, "updateBookieInLedger")
