"""AutoRecovery: candidate, auditor and worker of one process, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ledger.autorecovery.auditor import Auditor
from ledger.autorecovery.auditor_election import AuditorElection
from ledger.autorecovery.checks import Checks
from ledger.autorecovery.repair import LedgerRepair
from ledger.autorecovery.replication_worker import ReplicationWorker
from ledger.autorecovery.statistics import AuditorStatistics, WorkerStatistics
from ledger.replication import Replicator

if TYPE_CHECKING:
    from ledger.autorecovery.parts import AutoRecoveryParts


class AutoRecovery:
    """`run` stands for election and repairs, until it is cancelled."""

    def __init__(self, parts: AutoRecoveryParts, *, bookie_id: str) -> None:
        """All parts are running ones. `bookie_id`: for whom it stands in the election."""
        self.audit_statistics = AuditorStatistics()
        self.work_statistics = WorkerStatistics()
        self._records = parts.records
        replicator = Replicator(parts.client.manager, parts.bookies, parts.config.replication)
        repair = LedgerRepair(parts, replicator, self.work_statistics)
        self.worker = ReplicationWorker(
            *(parts.store, parts.records, repair, parts.watcher, parts.config, bookie_id),
            self.work_statistics,
        )
        self._election = AuditorElection(parts.store, parts.root, bookie_id, self.audit_statistics)
        checks = Checks(parts, self.audit_statistics)
        self._auditor = Auditor(parts, checks, self.audit_statistics, self.worker.wake)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """`started` once it stands for election. MetadataError if it cannot."""
        await self._records.ensure_layout()
        async with trio.open_nursery() as nursery:
            await nursery.start(self._election.run, self._auditor.run)
            await nursery.start(self.worker.run)
            task_status.started()
