"""`quire bookie auto-recovery`, `who-is-auditor`, `lost-bookie-recovery-delay`, `trigger-audit`,
`force-audit-checks`: what an auditor, ours or Java's, is told through the metadata; and
`repair-report`, why lost copies stay lost."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from quire.tools.ledger.options import alias, cluster_options, exit_unless, on_cluster
from quire.tools.output import show, show_one

if TYPE_CHECKING:
    from ledger.autorecovery.report import Problem
    from quire.tools.ledger.cluster import Cluster
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

#: So far back that any interval has passed (ForceAuditorChecksCmd.java).
LONG_AGO_MS = 21 * 24 * 3600 * 1000
#: Of the report, besides report.Reason's names: ledgers that nothing is wrong with.
WAITS = "WAITS"
IN_REPAIR = "IN_REPAIR"
RUNS_TOLD_MAX = 10


@click.group("auto-recovery")
def auto_recovery() -> None:
    """Whether lost copies are made again without being asked."""


@auto_recovery.command()
@cluster_options
def enable(**options: Any) -> None:  # noqa: ANN401  # click's
    """Marked ledgers are repaired from now on."""
    _switch(options, is_on=True)


@auto_recovery.command()
@cluster_options
def disable(**options: Any) -> None:  # noqa: ANN401  # click's
    """No more repairs are begun; for maintenance."""
    _switch(options, is_on=False)


def _switch(options: dict[str, Any], *, is_on: bool) -> None:
    async def work(cluster: Cluster) -> bool:
        records = cluster.under_replication
        return await (records.enable() if is_on else records.disable())

    changed = on_cluster(options, work)
    show_one({"enabled": is_on, "changed": changed}, as_json=options["as_json"])


@auto_recovery.command()
@cluster_options
def status(**options: Any) -> None:  # noqa: ANN401  # click's
    """Whether it is enabled, who audits, and what is being repaired now."""
    show_one(on_cluster(options, describe), as_json=options["as_json"])


async def describe(cluster: Cluster) -> dict[str, Any]:
    records = cluster.under_replication
    return {
        "enabled": await records.is_enabled(),
        "auditor": await records.auditor(),
        "lost_bookie_recovery_delay_s": await records.recovery_delay_s(),
        "repairing": await _repairs(cluster),
    }


async def _repairs(cluster: Cluster) -> list[dict[str, Any]]:
    """The ledgers that are locked by a worker."""
    from ledger.errors import LedgerError

    rows = []
    for lock in await cluster.under_replication.locks():
        try:
            metadata = (await cluster.manager.read(lock.ledger_id)).metadata
        except LedgerError as error:
            rows.append({"ledger": lock.ledger_id, "worker": lock.holder, "length_bytes": None})
            click.echo(f"ledger {lock.ledger_id}: {error}", err=True)
        else:
            length = metadata.length if metadata.is_closed else None
            rows.append({"ledger": lock.ledger_id, "worker": lock.holder, "length_bytes": length})
    return rows


@click.command("autorecovery", hidden=True)
@cluster_options
@click.option("--enable", "-enable", "-e", is_flag=True)
@click.option("--disable", "-disable", "-d", is_flag=True)
def toggle(enable: bool, disable: bool, **options: Any) -> None:  # noqa: ANN401  # click's
    """BookKeeper's way to say it."""
    if enable and disable:
        raise click.UsageError("--enable or --disable, not both")
    if enable or disable:
        _switch(options, is_on=enable)
        return
    show_one({"enabled": on_cluster(options, _is_enabled)}, as_json=options["as_json"])


async def _is_enabled(cluster: Cluster) -> bool:
    return await cluster.under_replication.is_enabled()


@click.command("queryautorecoverystatus", hidden=True)
@cluster_options
def query_status(**options: Any) -> None:  # noqa: ANN401  # click's
    """The ledgers that are being repaired."""
    show(on_cluster(options, _repairs), as_json=options["as_json"])


@click.command("who-is-auditor")
@cluster_options
def who_is_auditor(**options: Any) -> None:  # noqa: ANN401  # click's
    """The bookie that looks after the others; exit code 1 if there is none."""

    async def work(cluster: Cluster) -> str | None:
        return await cluster.under_replication.auditor()

    auditor = on_cluster(options, work)
    show_one({"auditor": auditor}, as_json=options["as_json"])
    exit_unless(auditor is not None)


@click.command("lost-bookie-recovery-delay")
@cluster_options
@click.option("--get", "-get", "-g", "is_get", is_flag=True, help="Shows it; the default.")
@click.option("--set", "-set", "-s", "delay_s", type=click.IntRange(0), help="Seconds.")
def recovery_delay(is_get: bool, delay_s: int | None, **options: Any) -> None:  # noqa: ANN401
    """How long a lost bookie is waited for before its ledgers are repaired."""
    if is_get and delay_s is not None:
        raise click.UsageError("--get or --set, not both")

    async def work(cluster: Cluster) -> int | None:
        if delay_s is not None:
            await cluster.under_replication.set_recovery_delay_s(delay_s)
        return await cluster.under_replication.recovery_delay_s()

    show_one(
        {"lost_bookie_recovery_delay_s": on_cluster(options, work)}, as_json=options["as_json"]
    )


@click.command("trigger-audit")
@cluster_options
def trigger_audit(**options: Any) -> None:  # noqa: ANN401  # click's
    """Has the auditor look for lost bookies now."""
    auditor = on_cluster(options, trigger)
    show_one({"auditor": auditor}, as_json=options["as_json"])


async def trigger(cluster: Cluster) -> str:
    """The auditor watches the delay's node: writing the same number is what it goes by.
    ClickException if nobody would notice."""
    records = cluster.under_replication
    if not await records.is_enabled():
        raise click.ClickException("auto-recovery is disabled")
    auditor = await records.auditor()
    if auditor is None:
        raise click.ClickException("there is no auditor")
    await records.set_recovery_delay_s(await records.recovery_delay_s() or 0)
    return auditor


@click.command("force-audit-checks")
@cluster_options
@click.option("--checkallledgerscheck", "-checkallledgerscheck", "-calc", is_flag=True)
@click.option("--placementpolicycheck", "-placementpolicycheck", "-ppc", is_flag=True)
@click.option("--replicascheck", "-replicascheck", "-rc", is_flag=True)
def force_audit_checks(
    checkallledgerscheck: bool,
    placementpolicycheck: bool,
    replicascheck: bool,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """Has the next auditor that starts do these checks at once."""
    flags = {
        "checkallledgerscheck": checkallledgerscheck,
        "placementpolicycheck": placementpolicycheck,
        "replicascheck": replicascheck,
    }
    names = [name for name, is_wanted in flags.items() if is_wanted]
    if not names:
        raise click.UsageError(f"say which: --{', --'.join(flags)}")
    on_cluster(options, partial(_forget_checks, names=names))


async def _forget_checks(cluster: Cluster, names: list[str]) -> None:
    for name in names:
        time_ms = cluster.env.clock.time_ms() - LONG_AGO_MS
        await cluster.under_replication.set_check_time_ms(name, time_ms)


@click.command("repair-report")
@cluster_options
@click.option("--all", "is_all", is_flag=True, help="Also ledgers that only wait for their turn.")
def repair_report(is_all: bool, **options: Any) -> None:  # noqa: ANN401  # click's
    """Why marked ledgers are not repaired; exit code 1 if there are any that cannot be."""
    rows = on_cluster(options, report)
    if not is_all:
        rows = [row for row in rows if row["reason"] not in (WAITS, IN_REPAIR)]
    show(rows, as_json=options["as_json"])
    exit_unless(all(row["reason"] in (WAITS, IN_REPAIR) for row in rows))


async def report(cluster: Cluster) -> list[dict[str, Any]]:
    """A row for each problem of each marked ledger, found from the metadata and by asking for the
    entries; and one for each ledger that has none."""
    from contextlib import aclosing

    rows: list[dict[str, Any]] = []
    is_enabled = await cluster.under_replication.is_enabled()
    async with aclosing(cluster.under_replication.ledger_ids()) as marked:
        async for ledger_id in marked:
            rows += await _report_rows(cluster, ledger_id, is_enabled=is_enabled)
    return rows


async def _report_rows(
    cluster: Cluster, ledger_id: int, *, is_enabled: bool
) -> list[dict[str, Any]]:
    from ledger.autorecovery.report import Reason, problems_of
    from ledger.errors import LedgerError, NoSuchLedgerError

    found = await cluster.under_replication.ledger(ledger_id)
    if found is None:
        return []  # repaired meanwhile
    base = {"ledger": ledger_id, "since_ms": found.ctime_ms, "missing": list(found.replicas)}
    try:
        metadata = (await cluster.manager.read(ledger_id)).metadata
        writable = cluster.watcher.writable
        problems = list(problems_of(ledger_id, metadata, cluster.registered(), writable))
        problems += [] if problems else await _entry_problems(cluster, ledger_id, metadata)
    except NoSuchLedgerError:
        return []
    except LedgerError as error:
        return [{**base, "reason": Reason.METADATA.name, "detail": str(error)}]
    if problems:
        return [{**base, "reason": each.reason.name, "detail": each.detail} for each in problems]
    holder = await cluster.under_replication.lock_holder(ledger_id)
    if holder is not None:
        return [{**base, "reason": IN_REPAIR, "detail": f"{holder} has its lock"}]
    if not is_enabled:
        return [{**base, "reason": "DISABLED", "detail": "auto-recovery is disabled"}]
    return [{**base, "reason": WAITS, "detail": "no worker has taken it yet"}]


async def _entry_problems(
    cluster: Cluster, ledger_id: int, metadata: LedgerMetadata
) -> list[Problem]:
    """Whether all entries of the closed fragments that a bookie lacks are on another one."""
    from ledger.autorecovery.report import Problem, Reason
    from ledger.ledger_check import LedgerChecker

    if not metadata.is_closed:
        return []
    checker = LedgerChecker(cluster.bookies, ledger_id, metadata)
    checked = await checker.check(metadata.last_entry_id)
    if not checked.lost_entries:
        return []
    runs = "; ".join(
        f"{run.bookie} {run.first_entry_id}-{run.last_entry_id} {run.reason}"
        for run in checked.missing[:RUNS_TOLD_MAX]
    )
    words = f"{checked.lost_entries} entries are on no bookie that answers: {runs}"
    return [Problem(Reason.UNREADABLE_ENTRY, words)]


def register(group: click.Group) -> None:
    for command in (auto_recovery, toggle, query_status, repair_report):
        group.add_command(command)
    for command, name in (
        (who_is_auditor, "whoisauditor"),
        (recovery_delay, "lostbookierecoverydelay"),
        (trigger_audit, "triggeraudit"),
        (force_audit_checks, "forceauditchecks"),
    ):
        group.add_command(command)
        alias(group, command, name)
