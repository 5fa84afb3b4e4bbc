"""`quire bookie decommission`: a bookie goes for good. Other bookies get what it had, copied from
here, or with --by-workers by the cluster's replication workers, ours or Java's; then its cookie is
deleted.

What is left is told every few seconds, by ledger and bytes, with the ids of those that hold it up
and why (bk#2162, #3338).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from quire.tools.bookie import recover
from quire.tools.ledger.options import alias, cluster_options, exit_unless, on_cluster
from quire.tools.output import show, told_progress

if TYPE_CHECKING:
    from quire.tools.bookie.recover import RecoverRequest
    from quire.tools.ledger.cluster import Cluster

POLL_SECONDS = 1.0
#: Ledgers whose metadata is read at a time.
BATCH = 100


@click.command()
@cluster_options
@click.argument("bookie", required=False)
@click.option("--bookie-id", "--bookieid", "-bookieid", help="The bookie.")
@click.option(
    "--by-workers",
    is_flag=True,
    help="Marks its ledgers and waits for the replication workers, instead of copying itself.",
)
@recover.rates
def decommission(
    bookie: str | None,
    bookie_id: str | None,
    by_workers: bool,
    rate: int,
    entry_rate: int,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """Copies what a bookie that was stopped for good had to others, and deletes its cookie."""
    if (bookie is None) == (bookie_id is None):
        raise click.UsageError("name one bookie: as an argument, or with --bookie-id")
    if by_workers and (rate or entry_rate):
        raise click.UsageError("--rate and --entry-rate are not the workers'")
    request = recover.RecoverRequest(
        frozenset((bookie or bookie_id or "",)),
        bytes_per_second=rate,
        entries_per_second=entry_rate,
    )
    work = partial(wait_for_workers if by_workers else recover.run_and_forget, request=request)
    rows = on_cluster(options, work)
    show(rows, as_json=options["as_json"])
    exit_unless(all(row["error"] is None for row in rows))


async def wait_for_workers(cluster: Cluster, request: RecoverRequest) -> list[dict[str, Any]]:
    """A row for each ledger that named the bookie. Ends when none does any more, or when none of
    those that do can be repaired; then their rows say why. ClickException if nobody would work."""
    import trio

    recover.refuse_running(cluster, request)
    if await cluster.under_replication.auditor() is None:
        raise click.ClickException("there is no auditor, so there are no workers to wait for")
    if not await cluster.under_replication.is_enabled():
        raise click.ClickException("auto-recovery is disabled")
    sizes = {ledger_id: size async for ledger_id, size in recover.sizes(cluster, request)}
    now_ms = cluster.env.clock.time_ms()
    for ledger_id in sizes:
        await cluster.under_replication.mark(ledger_id, sorted(request.bookies), now_ms)
    left = dict.fromkeys(sizes, "")
    with told_progress("decommission", sizes) as told:
        while left:
            still = await _still_named(cluster, request, list(left))
            for ledger_id in left.keys() - still.keys():
                told.finish(ledger_id)
            left = still
            told.problems = {each: why for each, why in left.items() if why}
            told.tell()
            if left and all(left.values()):
                break
            await trio.sleep(POLL_SECONDS if left else 0)
    rows = [
        {"ledger": ledger_id, "size_bytes": size, "error": left.get(ledger_id)}
        for ledger_id, size in sizes.items()
    ]
    await recover.delete_cookies(cluster, request, rows)
    return rows


async def _still_named(
    cluster: Cluster, request: RecoverRequest, ledger_ids: list[int]
) -> dict[int, str]:
    """Those that still name the bookie: why nobody can change that, or "" """
    from ledger.autorecovery.report import Reason, problems_of

    found: dict[int, str] = {}
    for start in range(0, len(ledger_ids), BATCH):
        for ledger_id, metadata in await cluster.read_ledgers(ledger_ids[start : start + BATCH]):
            if isinstance(metadata, str):
                found[ledger_id] = f"bad metadata: {metadata}"
                continue
            if all(request.bookies.isdisjoint(each) for _, each in metadata.segments):
                continue
            writable, registered = cluster.watcher.writable, cluster.registered()
            problems = problems_of(ledger_id, metadata, registered, writable)
            found[ledger_id] = "; ".join(
                str(each) for each in problems if each.reason is not Reason.OPEN
            )
    return found


def register(group: click.Group) -> None:
    group.add_command(decommission)
    alias(group, decommission, "decommissionbookie")
