"""`quire bookie list`, `bookie-info`, `cluster-info`, `endpoint-info`, `what-is-instance-id`: what
a cluster says of its bookies."""

from __future__ import annotations

import socket
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from quire.tools.ledger.options import alias, cluster_options, exit_unless, on_cluster
from quire.tools.output import show, show_one

if TYPE_CHECKING:
    from quire.tools.ledger.cluster import Cluster


@click.command("list")
@cluster_options
@click.option("--read-write", "--readwrite", "-readwrite", "-rw", is_flag=True, help="Writable.")
@click.option("--read-only", "--readonly", "-readonly", "-ro", is_flag=True, help="Read-only.")
@click.option("--all", "-all", "-a", "everything", is_flag=True, help="Also those that are down.")
@click.option("--hostnames", "-hostnames", "-h", is_flag=True, help="With the host's name.")
def list_bookies(
    read_write: bool,
    read_only: bool,
    everything: bool,
    hostnames: bool,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """Bookies, where they are and whether they take writes; all, unless told which."""
    modes = {"writable"} if read_write else set()
    modes |= {"read-only"} if read_only else set()
    if everything or not modes:
        modes = {"writable", "read-only", "unavailable"}
    rows = on_cluster(options, partial(bookie_rows, modes=modes))
    if hostnames:
        rows = [{**row, "hostname": _host_name(row["host"])} for row in rows]
    show(rows, as_json=options["as_json"])


def _host_name(host: str | None) -> str | None:
    """The host itself if it has no other name."""
    if host is None:
        return None
    try:
        return socket.gethostbyaddr(host)[0]
    except OSError:
        return host


async def bookie_rows(cluster: Cluster, modes: set[str]) -> list[dict[str, Any]]:
    """Those with a cookie that are not registered are unavailable."""
    rows: list[dict[str, Any]] = []
    for bookie in sorted(cluster.registered() | set(await cluster.cookie_ids())):
        mode = cluster.mode(bookie)
        if mode in modes:
            place = cluster.watcher.resolve(bookie)
            host, port = (None, None) if place is None else place[:2]
            rows.append({"bookie": bookie, "host": host, "port": port, "mode": mode})
    return rows


@click.command("bookie-info")
@cluster_options
def bookie_info(**options: Any) -> None:  # noqa: ANN401  # click's
    """Disk space of all bookies, as they tell; exit code 1 if one does not."""
    rows = on_cluster(options, space_rows)
    show(rows, as_json=options["as_json"])
    exit_unless(all(row["status"] == "EOK" for row in rows))


async def space_rows(cluster: Cluster) -> list[dict[str, Any]]:
    """A row for each registered bookie, asked at once, and their sum."""
    import trio

    from ledger.bookie_client import DiskSpace

    found: dict[str, DiskSpace] = {}

    async def ask(bookie: str) -> None:
        found[bookie] = await cluster.bookies.bookie_info(bookie)

    async with trio.open_nursery() as nursery:
        for bookie in cluster.registered():
            nursery.start_soon(ask, bookie)
    rows = [
        _space_row(bookie, cluster.mode(bookie), space) for bookie, space in sorted(found.items())
    ]
    total = sum(space.total_bytes for space in found.values())
    free = sum(space.free_bytes for space in found.values())
    if len(rows) > 1:
        worst = max((space.status for space in found.values()), default=None)
        assert worst is not None
        rows.append(_space_row("all", None, DiskSpace(worst, total, free)))
    return rows


def _space_row(bookie: str, mode: str | None, space: Any) -> dict[str, Any]:  # noqa: ANN401
    used = (space.total_bytes - space.free_bytes) / space.total_bytes if space.total_bytes else None
    return {
        "bookie": bookie,
        "mode": mode,
        "status": space.status.name,
        "total_bytes": space.total_bytes,
        "free_bytes": space.free_bytes,
        "used_percent": None if used is None else round(used * 100, 2),
    }


@click.command("cluster-info")
@cluster_options
def cluster_info(**options: Any) -> None:  # noqa: ANN401  # click's
    """How many bookies there are, who audits, whether copies are missing."""
    show_one(on_cluster(options, describe_cluster), as_json=options["as_json"])


async def describe_cluster(cluster: Cluster) -> dict[str, Any]:
    """By BookKeeper's names (ClusterInfoCommand.java)."""
    auditor = await cluster.under_replication.auditor()
    everybody = cluster.registered() | set(await cluster.cookie_ids())
    async with aclosing(cluster.under_replication.ledger_ids()) as marked:
        is_under_replicated = await anext(marked, None) is not None
    return {
        "auditorElected": auditor is not None,
        "auditorId": auditor or "",
        "clusterUnderReplicated": is_under_replicated,
        "ledgerReplicationEnabled": await cluster.under_replication.is_enabled(),
        "totalBookiesCount": len(everybody),
        "writableBookiesCount": len(cluster.watcher.writable),
        "readonlyBookiesCount": len(cluster.watcher.read_only),
        "unavailableBookiesCount": len(everybody) - len(cluster.registered()),
    }


@click.command("endpoint-info")
@cluster_options
@click.argument("bookie", required=False)
@click.option("--bookie-id", "--bookieid", "-bookieid", "-b", help="The bookie.")
def endpoint_info(
    bookie: str | None,
    bookie_id: str | None,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """Where a registered bookie can be reached, and for what."""
    if (bookie is None) == (bookie_id is None):
        raise click.UsageError("name one bookie: as an argument, or with --bookie-id")
    rows = on_cluster(options, partial(endpoint_rows, bookie=bookie or bookie_id or ""))
    show(rows, as_json=options["as_json"])


async def endpoint_rows(cluster: Cluster, bookie: str) -> list[dict[str, Any]]:
    info = await cluster.service_info(bookie)
    if info is None:
        raise click.ClickException(f"bookie {bookie} is not registered")
    return [
        {
            "id": endpoint.id,
            "host": endpoint.host,
            "port": endpoint.port,
            "protocol": endpoint.protocol,
            "auth": list(endpoint.auth),
            "extensions": list(endpoint.extensions),
            "properties": dict(info.properties),
        }
        for endpoint in info.endpoints
    ]


@click.command("what-is-instance-id")
@cluster_options
def what_is_instance_id(**options: Any) -> None:  # noqa: ANN401  # click's
    """The cluster's UUID, which is in its bookies' cookies."""
    show_one({"instance_id": on_cluster(options, instance_id)}, as_json=options["as_json"])


async def instance_id(cluster: Cluster) -> str:
    """ClickException if the cluster has none."""
    from wire.bookkeeper.records import parse_instance_id

    path = f"{cluster.root}/INSTANCEID"
    (node,) = await cluster.store.get_many([path])
    if node is None:
        raise click.ClickException(f"{path} does not exist")
    return parse_instance_id(node.data)


def register(group: click.Group) -> None:
    for command, name in (
        (list_bookies, "listbookies"),
        (bookie_info, "bookieinfo"),
        (cluster_info, "clusterinfo"),
        (endpoint_info, "endpointinfo"),
        (what_is_instance_id, "whatisinstanceid"),
    ):
        group.add_command(command)
        alias(group, command, name)
