"""`quire cluster why TOPIC-PARTITION`: everything about one partition, and what it means.

A report has `is_stuck`, `verdict` (sentences, the cause first), `facts` (name and value), `ledgers`
(the chain: the fence history, epoch by epoch) and `bookies` (of the last ledger).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from quire.tools.cluster import facts
from quire.tools.cluster.verdict import PartitionFacts, verdict
from quire.tools.output import show, show_one

if TYPE_CHECKING:
    from quire.tools.cluster.facts import LedgerFacts, PageFacts
    from quire.tools.ledger.cluster import Cluster

#: Of the leader's page, in this order.
PAGE_FIELDS = (
    *("state", "leader_epoch", "log_start_offset", "high_watermark", "log_end_offset"),
    *("is_suspended", "batches_queued", "entries_in_flight", "bytes_in_flight", "waiting_ms"),
    *("open_ledger", "last_add_confirmed", "last_add_pushed", "ledger_error"),
    *("failed_take_overs", "last_failure"),
)


async def explain(cluster: Cluster, topic: str, number: int) -> dict[str, Any]:
    """The report. ClickException: there is no such partition."""
    found = await facts.topics(cluster, topic)
    if not found or number >= found[0].partition_count:
        has = f"topic {topic} has {found[0].partition_count} partitions" if found else "no topic"
        raise click.UsageError(f"there is no partition {topic}-{number}: {has}")
    name = f"{topic}-{number}"
    assignment = found[0].assignment
    chain = await facts.chain(cluster, found[0], number)
    known = PartitionFacts(
        name,
        assignment.partitions[number] if assignment is not None else None,
        await facts.brokers(cluster),
        await facts.controller(cluster),
        chain,
        await facts.ledgers(cluster, chain) if chain is not None else (),
        None,
        sorted(cluster.watcher.writable),
    )
    leader = known.leader
    page = None
    if leader is not None and leader in known.brokers:
        page = facts.page((await facts.pages(cluster)).get(leader), name)
    return _report(PartitionFacts(
        known.name, known.assigned, known.brokers, known.controller, known.chain, known.ledgers,
        page, known.writable_bookies,
    ))  # fmt: skip


def without_metadata(name: str, error: click.ClickException, url: str | None) -> dict[str, Any]:
    """The report when metadata does not answer: `error` says how."""
    page = None if url is None else facts.page(url, name)
    words = [
        f"Metadata cannot be asked: {error.message}.",
        "Owners go on serving as long as their ledgers take writes, and nothing moves, nothing is "
        "created, until it is back.",
    ]
    if page is None:
        words.append("With --pages URL the leader itself is asked.")
    elif page.values is None:
        words.append(f"Nor does the broker answer at {url}: {page.error}.")
    elif page.values["state"] == "online":
        words.append(f"The broker at {url} serves the partition.")
    else:
        words.append(f"The broker at {url} does not serve it: it is {page.values['state']}.")
    return {
        "partition": name,
        "is_stuck": True,
        "verdict": words,
        "facts": _page_facts(page),
        "ledgers": [],
        "bookies": [],
    }


def _report(known: PartitionFacts) -> dict[str, Any]:
    result = verdict(known)
    assigned, chain = known.assigned, known.chain
    owner = chain.owner if chain is not None else None
    values: dict[str, Any] = {
        "leader": known.leader,
        "assigned_epoch": None if assigned is None else assigned.epoch,
        "replicas": None if assigned is None else list(assigned.replicas),
        "controller": known.controller,
        "chain_epoch": None if chain is None else chain.leader_epoch,
        "chain_owner": None if owner is None else f"{owner.node_id} ({owner.token})",
        "writable_bookies": len(known.writable_bookies),
        **_page_facts(known.page),
    }
    return {
        "partition": known.name,
        "is_stuck": result.is_stuck,
        "verdict": list(result.words),
        "facts": values,
        "ledgers": [_ledger_row(ledger) for ledger in known.ledgers],
        "bookies": _bookie_rows(known.ledgers[-1]) if known.ledgers else [],
    }


def _page_facts(page: PageFacts | None) -> dict[str, Any]:
    if page is None:
        return {}
    if page.values is None:
        return {"broker_says": page.error}
    return {field: page.values[field] for field in PAGE_FIELDS}


def _ledger_row(ledger: LedgerFacts) -> dict[str, Any]:
    metadata = ledger.metadata
    silent = [name for name, bookie in ledger.bookies.items() if not bookie.answers]
    return {
        "epoch": ledger.epoch,
        "ledger": ledger.ledger_id,
        "base_offset": ledger.base_offset,
        "state": "UNREADABLE" if metadata is None else metadata.state.name,
        "last_entry": metadata.last_entry_id
        if metadata is not None and metadata.is_closed
        else None,
        "quorums": None
        if metadata is None
        else f"{metadata.ensemble_size}/{metadata.write_quorum_size}/{metadata.ack_quorum_size}",
        "ensemble": [] if metadata is None else list(metadata.last_segment[1]),
        "silent": silent,
    }


def _bookie_rows(ledger: LedgerFacts) -> list[dict[str, Any]]:
    members = ledger.metadata.last_segment[1] if ledger.metadata is not None else ()
    return [
        {
            "bookie": name,
            "mode": ledger.bookies[name].mode,
            "answers": ledger.bookies[name].error or "yes",
            "last_entry": ledger.bookies[name].last_entry,
            "last_add_confirmed": ledger.bookies[name].last_add_confirmed,
        }
        for name in members
    ]


def show_report(report: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        show_one(report, as_json=True)
        return
    if report["facts"]:
        show_one(report["facts"], as_json=False)
    for words, name in (("ledgers, oldest first", "ledgers"), ("the last ledger", "bookies")):
        if report[name]:
            click.echo(f"\n{words}:")
            show(report[name], as_json=False)
    click.echo(f"\n{report['partition']}: {'STUCK' if report['is_stuck'] else 'not stuck'}")
    for sentence in report["verdict"]:
        click.echo(f"  {sentence}")
