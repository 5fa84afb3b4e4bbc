"""`quire bookie init-new-cluster`, `meta-format`, `nuke-existing-cluster`: a cluster's tree in the
metadata is made, made anew, or deleted. None of them touches what bookies have on their disks."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from quire.tools.ledger.options import alias, cluster_options, on_cluster
from quire.tools.output import progress, show_one

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from metadata.store import MetadataStore
    from quire.tools.ledger.cluster import Cluster

#: What BookKeeper keeps below a cluster's root, beside folders of ledgers.
KNOWN_NODES = frozenset(
    ("LAYOUT", "INSTANCEID", "available", "cookies", "idgen", "idgen-long", "underreplication")
)
DELETE_BATCH = 500


@click.command("init-new-cluster")
@cluster_options
def init_new_cluster(**options: Any) -> None:  # noqa: ANN401  # click's
    """Makes the tree of a new cluster, which bookies and clients then find."""
    show_one(on_cluster(options, init, needs_layout=False), as_json=options["as_json"])


async def init(cluster: Cluster) -> dict[str, Any]:
    """ClickException if anything is there."""
    from quire.tools.bookie.cluster_view import instance_id

    if await cluster.store.exists(cluster.root):
        raise click.ClickException(
            f"{cluster.root} exists; nuke-existing-cluster deletes it, meta-format makes it anew"
        )
    await cluster.manager.ensure_layout()
    await cluster.under_replication.ensure_layout()
    return {"root": cluster.root, "instance_id": await instance_id(cluster)}


@click.command("meta-format")
@cluster_options
@click.option("--force", "-force", "-f", is_flag=True, help="With -n: delete what is there.")
@click.option("--non-interactive", "--nonInteractive", "-nonInteractive", "-n", is_flag=True)
def meta_format(
    force: bool,
    non_interactive: bool,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """Forgets all ledgers and cookies; the cluster gets a new instance id.

    All that is in the cluster is lost. No bookie may be running, and each must be formatted too."""
    exists = on_cluster(options, _exists, needs_layout=False)
    if exists and non_interactive and not force:
        raise click.ClickException("there is a cluster; --force deletes it")
    if exists and not non_interactive:
        click.confirm("There is a cluster. Lose all that is in it?", abort=True)
    show_one(on_cluster(options, format_metadata, needs_layout=False), as_json=options["as_json"])


async def _exists(cluster: Cluster) -> bool:
    return await cluster.store.exists(cluster.root)


async def format_metadata(cluster: Cluster) -> dict[str, Any]:
    """ClickException while a bookie is registered."""
    from quire.tools.bookie.cluster_view import instance_id

    _check_no_bookies(cluster)
    if await cluster.store.exists(cluster.root):
        for name in await cluster.store.children(cluster.root):
            if name != "available" and _is_known(name):
                await _delete_with_progress(cluster.store, f"{cluster.root}/{name}")
    await cluster.manager.ensure_layout()
    await cluster.under_replication.ensure_layout()
    return {"root": cluster.root, "instance_id": await instance_id(cluster)}


@click.command("nuke-existing-cluster")
@cluster_options
@click.option(
    "--zk-ledgers-root-path",
    "--zkledgersrootpath",
    "-zkledgersrootpath",
    "-p",
    "root",
    required=True,
    help="The root of the cluster's tree; must be the one of the settings.",
)
@click.option("--instance-id", "--instanceid", "-instanceid", "-i", help="The cluster's.")
@click.option("--force", "-force", "-f", is_flag=True, help="Without knowing the instance id.")
def nuke_existing_cluster(
    root: str,
    instance_id: str | None,
    force: bool,
    **options: Any,  # noqa: ANN401  # click's
) -> None:
    """Deletes a cluster's tree; no bookie may be running.

    Takes the instance id, or --force, so that nobody deletes another cluster by mistake."""
    if (instance_id is None) != force:
        raise click.UsageError("give the cluster's --instance-id, or else --force")
    work = partial(nuke, root=root, expected_id=instance_id)
    on_cluster(options, work, needs_layout=False)


async def nuke(cluster: Cluster, root: str, expected_id: str | None) -> None:
    """ClickException, and nothing is deleted, unless all is as it should be."""
    from quire.tools.bookie.cluster_view import instance_id

    if root.rstrip("/") != cluster.root:
        raise click.ClickException(
            f"the settings say {cluster.root}, and --zkledgersrootpath {root}"
        )
    if not await cluster.store.exists(cluster.root):
        raise click.ClickException(f"{cluster.root} does not exist")
    _check_no_bookies(cluster)
    if expected_id is not None:
        found = await instance_id(cluster)
        if found != expected_id:
            raise click.ClickException(f"the cluster's instance id is {found}, not {expected_id}")
    unknown = [n for n in await cluster.store.children(cluster.root) if not _is_known(n)]
    if unknown:
        raise click.ClickException(f"{cluster.root} has what is no cluster's: {', '.join(unknown)}")
    await _delete_with_progress(cluster.store, cluster.root)


def _is_known(name: str) -> bool:
    return name in KNOWN_NODES or (name.isdigit() and len(name) in (2, 3))


def _check_no_bookies(cluster: Cluster) -> None:
    registered = sorted(cluster.registered())
    if registered:
        raise click.ClickException(f"bookies are running, stop them first: {', '.join(registered)}")


async def _delete_with_progress(store: MetadataStore, path: str) -> None:

    with progress("nodes deleted", None, is_bytes=False) as step:
        await delete_tree(store, path, step)


async def delete_tree(store: MetadataStore, path: str, step: Callable[[int], None]) -> None:
    """A node and all below it; fine if somebody else deletes there too."""
    from metadata.store import NoNodeError

    try:
        names = await store.children(path)
    except NoNodeError:
        return
    children = [f"{path}/{name}" for name in names]
    for start in range(0, len(children), DELETE_BATCH):
        batch = children[start : start + DELETE_BATCH]
        if not await _delete_leaves(store, batch):
            for child in batch:
                await delete_tree(store, child, step)
        else:
            step(len(batch))
    with suppress(NoNodeError):
        await store.delete(path)
    step(1)


async def _delete_leaves(store: MetadataStore, paths: Sequence[str]) -> bool:
    """All at once; false, and nothing is deleted, if one has children or is gone."""
    from metadata.store import DeleteOp, NoNodeError, NotEmptyError

    try:
        await store.multi([DeleteOp(path) for path in paths])
    except (NoNodeError, NotEmptyError):
        return False
    return True


def register(group: click.Group) -> None:
    for command, name in (
        (init_new_cluster, "initnewcluster"),
        (meta_format, "metaformat"),
        (nuke_existing_cluster, "nukeexistingcluster"),
    ):
        group.add_command(command)
        alias(group, command, name)
