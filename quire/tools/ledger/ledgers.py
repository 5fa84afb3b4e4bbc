"""`quire ledger list`, `metadata`, `delete`: what the metadata has of ledgers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ledger.errors import NoSuchLedgerError
from ledger.metadata import ledger_path
from metadata.store import NodeExistsError, NoNodeError
from quire.tools.admin.ledgers import metadata_json, partition_of
from quire.tools.output import progress
from wire.bookkeeper.ledger_metadata import LedgerMetadata, MetadataFormatError, parse

if TYPE_CHECKING:
    from metadata.store import Node
    from quire.tools.ledger.cluster import Cluster

PASSWORD_OMITTED = "OMITTED"


def describe(ledger_id: int, metadata: LedgerMetadata) -> dict[str, Any]:
    """A row of a list."""
    sizes = (metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
    digest_type = metadata.digest_type
    return {
        "ledger": ledger_id,
        "state": metadata.state.name,
        "last_entry": metadata.last_entry_id if metadata.is_closed else None,
        "length_bytes": metadata.length if metadata.is_closed else None,
        "quorums": "/".join(map(str, sizes)),
        "digest": digest_type.name if digest_type is not None else None,
        "ctime_ms": metadata.ctime_ms,
        "custom": {k: v.decode(errors="replace") for k, v in metadata.custom_metadata.items()},
        "ensembles": {str(first): list(bookies) for first, bookies in metadata.segments},
    }


async def list_ledgers(cluster: Cluster, *, meta: bool, bookie: str | None) -> list[dict[str, Any]]:
    """Those that have `bookie` in an ensemble, if one is named."""
    rows: list[dict[str, Any]] = []
    with progress("ledgers", None, is_bytes=False) as step:
        async for ledger_id, metadata in cluster.ledgers(step):
            if isinstance(metadata, str):
                if bookie is None:
                    rows.append(_unreadable(ledger_id, metadata, rows, meta=meta))
                continue
            if bookie is not None and not any(bookie in each for _, each in metadata.segments):
                continue
            rows.append(describe(ledger_id, metadata) if meta else {"ledger": ledger_id})
    return rows


def _unreadable(
    ledger_id: int, error: str, rows: list[dict[str, Any]], *, meta: bool
) -> dict[str, Any]:
    click.echo(f"ledger {ledger_id}: bad metadata: {error}", err=True)
    if not meta:
        return {"ledger": ledger_id}
    names = list(rows[0]) if rows else list(describe(0, LedgerMetadata(1, 1, 1, ((0, ("",)),))))
    return {**dict.fromkeys(names), "ledger": ledger_id, "state": "UNREADABLE"}


async def _node(cluster: Cluster, ledger_id: int) -> Node:
    try:
        return await cluster.store.get(ledger_path(cluster.root, ledger_id))
    except NoNodeError as error:
        raise NoSuchLedgerError(ledger_id, "not in the metadata") from error


async def show_metadata(cluster: Cluster, ledger_id: int) -> dict[str, object]:
    """By BookKeeper's names of fields, without the password."""
    node = await _node(cluster, ledger_id)
    found = metadata_json(ledger_id, node.data)
    return {**found, "password": PASSWORD_OMITTED, "version": node.version}


async def dump_metadata(cluster: Cluster, ledger_id: int, path: str) -> None:
    """The bytes as they are stored: restore, and BookKeeper's, read them. Password included."""
    data = (await _node(cluster, ledger_id)).data
    parse(data)
    Path(path).write_bytes(data)  # noqa: ASYNC240  # small, and nothing else runs


async def restore_metadata(cluster: Cluster, ledger_id: int, path: str, *, update: bool) -> None:
    """Makes the ledger again from a dump; ClickException if it exists, unless `update`."""
    data = Path(path).read_bytes()  # noqa: ASYNC240  # small, and nothing else runs
    try:
        parse(data)
    except MetadataFormatError as error:
        raise click.ClickException(f"{path}: {error}") from error
    node_path = ledger_path(cluster.root, ledger_id)
    try:
        await cluster.store.create(node_path, data, make_parents=True)
    except NodeExistsError as error:
        if not update:
            words = f"ledger {ledger_id} exists; --update replaces its metadata"
            raise click.ClickException(words) from error
        version = (await _node(cluster, ledger_id)).version
        await cluster.store.put(node_path, data, version)


async def delete(cluster: Cluster, ledger_id: int, *, force: bool) -> None:
    """ClickException for a part of a partition, unless `force`: readers would miss it."""
    metadata = (await cluster.manager.read(ledger_id)).metadata
    owner = partition_of(metadata)
    if owner and not force:
        raise click.ClickException(
            f"ledger {ledger_id} is a part of {owner}, which would lose records: delete records or "
            "the topic instead, or say --force"
        )
    await cluster.client.delete_ledger(ledger_id)
