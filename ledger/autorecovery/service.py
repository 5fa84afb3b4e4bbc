"""AutoRecovery: candidate, auditor and worker of one process, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ledger.autorecovery.audit_marks import AuditMarks
from ledger.autorecovery.auditor import Auditor
from ledger.autorecovery.auditor_election import AuditorElection
from ledger.autorecovery.checks import Checks
from ledger.autorecovery.parts import AutoRecoveryParts
from ledger.autorecovery.repair import LedgerRepair
from ledger.autorecovery.replication_worker import ReplicationWorker
from ledger.autorecovery.statistics import AuditorStatistics, WorkerStatistics
from ledger.replication import Replicator
from ledger.underreplication import UnderReplication

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ledger.autorecovery.config import AutoRecoveryConfig
    from ledger.bookie_client import BookieClient, BookieId
    from ledger.bookie_watcher import BookieWatcher
    from ledger.client import LedgerClient
    from ledger.placement import Placement
    from metadata.store import MetadataStore
    from runtime.env import Env


class AutoRecovery:
    """`run` stands for election and repairs, until it is cancelled."""

    def __init__(
        self,
        store: MetadataStore,
        client: LedgerClient,
        bookies: BookieClient,
        watcher: BookieWatcher,
        placement: Placement,
        config: AutoRecoveryConfig,
        env: Env,
        *,
        bookie_id: str,
        locations: Callable[[], Mapping[BookieId, str]],
        min_racks: int = 1,
        root: str = "/ledgers",
    ) -> None:
        """All parts are running ones. `bookie_id`: for whom it stands in the election. `locations`
        (of the bookies that are there) and `min_racks` (of a write quorum) are what the check of
        placements goes by."""
        self.audit_statistics = AuditorStatistics()
        self.work_statistics = WorkerStatistics()
        self._records = UnderReplication(store, root)
        parts = AutoRecoveryParts(
            config=config,
            env=env,
            store=store,
            root=root,
            records=self._records,
            audit_marks=AuditMarks(store, self._records, root),
            client=client,
            bookies=bookies,
            watcher=watcher,
            placement=placement,
            locations=locations,
            min_racks=min_racks,
        )
        replicator = Replicator(client.manager, bookies, config.replication)
        repair = LedgerRepair(parts, replicator, self.work_statistics)
        self.worker = ReplicationWorker(
            store, self._records, repair, watcher, config, bookie_id, self.work_statistics
        )
        self._election = AuditorElection(store, root, bookie_id, self.audit_statistics)
        checks = Checks(parts, self.audit_statistics)
        self._auditor = Auditor(parts, checks, self.audit_statistics, self.worker.wake)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """`started` once it stands for election. MetadataError if it cannot."""
        await self._records.ensure_layout()
        async with trio.open_nursery() as nursery:
            await nursery.start(self._election.run, self._auditor.run)
            await nursery.start(self.worker.run)
            task_status.started()
