"""The lists of `quire cluster`: one row for each broker, bookie, partition; and the summary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from ledger.errors import LedgerError
from quire.tools.cluster import facts
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from broker.cluster.assignment import Assigned
    from broker.cluster.membership import Registration
    from broker.log.life.chain import Chain
    from quire.tools.ledger.cluster import Cluster


async def status(cluster: Cluster) -> dict[str, Any]:
    """Counts, and `problems`: a sentence for each thing that is not as it should be."""
    brokers = await facts.brokers(cluster)
    controller = await facts.controller(cluster)
    cookies = set(await cluster.cookie_ids())
    gone = sorted(cookies - cluster.registered())
    topics = await facts.topics(cluster)
    leaderless = [
        f"{topic.name}-{number}"
        for topic in topics
        if topic.assignment is not None
        for number, assigned in enumerate(topic.assignment.partitions)
        if assigned.leader not in brokers
    ]
    under_replicated = 0
    async for _ in cluster.under_replication.ledger_ids():
        under_replicated += 1
    problems = []
    if not brokers:
        problems.append("no broker is registered")
    elif controller is None:
        problems.append("there is no controller")
    cut_off = [
        str(node_id)
        for node_id, found in sorted(brokers.items())
        if not isinstance(found, str) and not found.can_write
    ]
    if cut_off:
        problems.append(f"brokers that reach too few bookies: {', '.join(cut_off)}")
    if gone:
        problems.append(f"bookies with a cookie that are not registered: {', '.join(gone)}")
    if cluster.watcher.read_only:
        problems.append(f"read-only bookies: {', '.join(sorted(cluster.watcher.read_only))}")
    if leaderless:
        problems.append(f"{len(leaderless)} partitions without a live leader: {leaderless[0]} …")
    if under_replicated:
        problems.append(f"{under_replicated} ledgers are marked as missing copies")
    return {
        "brokers": len(brokers),
        "controller": controller,
        "bookies": len(cluster.registered() | cookies),
        "bookies_writable": len(cluster.watcher.writable),
        "topics": len(topics),
        "partitions": sum(topic.partition_count for topic in topics),
        "partitions_without_leader": len(leaderless),
        "ledgers_under_replicated": under_replicated,
        "problems": problems,
    }


async def broker_rows(cluster: Cluster) -> list[dict[str, Any]]:
    registered = await facts.brokers(cluster)
    urls = await facts.pages(cluster)
    controller = await facts.controller(cluster)
    led: dict[int, int] = {}
    for topic in await facts.topics(cluster):
        for assigned in topic.assignment.partitions if topic.assignment is not None else ():
            led[assigned.leader] = led.get(assigned.leader, 0) + 1
    return [
        {
            "broker": node_id,
            **_registration(found),
            "is_controller": node_id == controller,
            "leads": led.get(node_id, 0),
            "pages": urls.get(node_id),
        }
        for node_id, found in sorted(registered.items())
    ]


def _registration(found: Registration | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"state": found, "listeners": [], "rack": None, "incarnation": None}
    return {
        "state": found.state.value,
        "listeners": [f"{name}://{h}:{port}" for name, (h, port, _) in found.listeners.items()],
        "rack": found.rack,
        "incarnation": found.incarnation.token,
    }


async def bookie_rows(cluster: Cluster) -> list[dict[str, Any]]:
    """Those that have a cookie or are registered; space is None of who does not answer."""
    names = sorted(cluster.registered() | set(await cluster.cookie_ids()))
    rows: dict[str, dict[str, Any]] = {}

    async def ask(name: str) -> None:
        free = total = None
        with trio.move_on_after(facts.ANSWER_SECONDS):
            try:
                space = await cluster.bookies.bookie_info(name)
                if space.status is Status.EOK:
                    free, total = space.free_bytes, space.total_bytes
            except LedgerError:
                pass  # as one that says nothing
        address = cluster.watcher.resolve(name)
        rows[name] = {
            "bookie": name,
            "mode": cluster.mode(name),
            "address": None if address is None else f"{address[0]}:{address[1]}",
            "answers": total is not None,
            "free_bytes": free,
            "total_bytes": total,
        }

    async with trio.open_nursery() as nursery:
        for name in names:
            nursery.start_soon(ask, name)
    return [rows[name] for name in names]


async def partition_rows(cluster: Cluster, only: str | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    brokers = await facts.brokers(cluster)
    for topic in await facts.topics(cluster, only):
        assigned = topic.assignment.partitions if topic.assignment is not None else ()
        for number, chain in enumerate(await facts.chains(cluster, topic)):
            one = assigned[number] if number < len(assigned) else None
            rows.append(_partition(f"{topic.name}-{number}", one, chain, brokers))
    return rows


def _partition(
    name: str,
    assigned: Assigned | None,
    chain: Chain | None,
    brokers: dict[int, Registration | str],
) -> dict[str, Any]:
    owner = chain.owner if chain is not None else None
    leader = assigned.leader if assigned is not None else (owner.node_id if owner else None)
    last = chain.ledgers[-1] if chain is not None and chain.ledgers else None
    return {
        "partition": name,
        "leader": leader,
        "is_leader_live": leader in brokers,
        "assigned_epoch": None if assigned is None else assigned.epoch,
        "epoch": None if chain is None else chain.leader_epoch,
        "owner": None if owner is None else owner.node_id,
        "replicas": [] if assigned is None else list(assigned.replicas),
        "ledgers": 0 if chain is None else len(chain.ledgers),
        "open_ledger": last.ledger_id if last is not None and last.is_open else None,
        "log_start": None if chain is None else chain.log_start_offset,
        "closed_end": None if chain is None else chain.closed_end_offset,
    }
