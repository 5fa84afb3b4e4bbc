"""`quire ledger check` and `list-under-replicated`: copies that are missing."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ledger.errors import LedgerError, NoSuchLedgerError
from ledger.ledger_check import LedgerChecker
from quire.tools.output import progress
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from ledger.ledger_check import LedgerCheck
    from quire.tools.ledger.cluster import Cluster
    from wire.bookkeeper.ledger_metadata import LedgerMetadata


async def check(cluster: Cluster, ledger_ids: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each ledger; all ledgers if none is named."""
    rows: list[dict[str, Any]] = []
    with progress("entries", None, is_bytes=False) as step:
        async with aclosing(_chosen(cluster, ledger_ids)) as chosen:
            async for ledger_id, metadata in chosen:
                try:
                    rows.append(await _checked_row(cluster, ledger_id, metadata, step))
                except NoSuchLedgerError:
                    if ledger_ids:
                        raise  # else it was deleted meanwhile
    return rows


async def _checked_row(
    cluster: Cluster, ledger_id: int, metadata: LedgerMetadata | str, step: Callable[[int], None]
) -> dict[str, Any]:
    """NoSuchLedgerError; other errors are in the row."""
    if isinstance(metadata, str):
        return _row(ledger_id, None, f"bad metadata: {metadata}")
    try:
        return _row(ledger_id, await _check_one(cluster, ledger_id, metadata, step), None)
    except NoSuchLedgerError:
        raise
    except LedgerError as error:
        return _row(ledger_id, None, str(error))


async def _chosen(
    cluster: Cluster, ledger_ids: Sequence[int]
) -> AsyncGenerator[tuple[int, LedgerMetadata | str], None]:
    if not ledger_ids:
        async with aclosing(cluster.ledgers()) as found:
            async for each in found:
                yield each
    for ledger_id in ledger_ids:
        yield ledger_id, (await cluster.manager.read(ledger_id)).metadata


async def _check_one(
    cluster: Cluster, ledger_id: int, metadata: LedgerMetadata, step: Callable[[int], None]
) -> LedgerCheck:
    last_entry_id = metadata.last_entry_id
    if not metadata.is_closed:
        reader = await cluster.client.open_ledger(
            ledger_id, password=metadata.password or b"", recover=False
        )
        # What is confirmed may have moved, and the ensemble with it.
        metadata, last_entry_id = reader.metadata, reader.last_add_confirmed
    return await LedgerChecker(cluster.bookies, ledger_id, metadata).check(last_entry_id, step)


def _row(ledger_id: int, found: LedgerCheck | None, error: str | None) -> dict[str, Any]:
    if found is None:
        names = ("entries", "copies", "missing_copies", "lost_entries", "below_ack_quorum")
        return {"ledger": ledger_id, **dict.fromkeys(names), "missing": [], "error": error}
    return {
        "ledger": ledger_id,
        "entries": found.entries,
        "copies": found.copies,
        "missing_copies": found.missing_copies,
        "lost_entries": found.lost_entries,
        "below_ack_quorum": found.below_ack_quorum,
        "missing": [
            f"{run.bookie} {run.first_entry_id}-{run.last_entry_id} {run.reason}"
            for run in found.missing
        ],
        "error": None,
    }


def is_whole(rows: Sequence[dict[str, Any]]) -> bool:
    return all(not row["missing_copies"] and row["error"] is None for row in rows)


@dataclass(slots=True, frozen=True)
class UnderReplicatedFilter:
    missing: str | None = None
    excluding: str | None = None
    with_workers: bool = False


async def under_replicated(cluster: Cluster, wanted: UnderReplicatedFilter) -> list[dict[str, Any]]:
    """The ledgers that an auditor has marked."""
    rows: list[dict[str, Any]] = []
    records = cluster.under_replication
    async with aclosing(records.ledger_ids()) as marked:
        async for ledger_id in marked:
            found = await records.ledger(ledger_id)
            if found is None:
                continue  # repaired meanwhile
            if wanted.missing is not None and wanted.missing not in found.replicas:
                continue
            if wanted.excluding is not None and wanted.excluding in found.replicas:
                continue
            row: dict[str, Any] = {
                "ledger": ledger_id,
                "ctime_ms": found.ctime_ms,
                "missing_replicas": list(found.replicas),
            }
            if wanted.with_workers:
                row["worker"] = await records.lock_holder(ledger_id)
            rows.append(row)
    return rows
