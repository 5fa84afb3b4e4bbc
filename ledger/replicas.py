"""ReplicaReads: a run of entries, from whichever replica has it intact.

Replicas are asked one after another. One that has not answered in time is raced against the next
ones (PendingReadOp's speculative reads): it is asked again together with them, and the first good
answer counts. So a bookie that hangs costs one time-out, and then, being remembered (BookieHealth),
nothing; and as long as all answer, a read costs no task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ledger.errors import DigestMismatchError, LedgerReadError
from wire.bookkeeper import entry as entry_format
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.bookie_client import BookieClient, BookieId
    from ledger.config import LedgerClientConfig
    from ledger.health import BookieHealth
    from ledger.statistics import LedgerStatistics
    from wire.bookkeeper.entry import Digest

_EOK = Status.EOK


class _Run:
    """What is read, and what went wrong so far."""

    __slots__ = ("answers", "count", "damaged_count", "first_entry_id", "size_max")

    def __init__(self, first_entry_id: int, count: int, size_max: int) -> None:
        self.first_entry_id = first_entry_id
        self.count = count
        self.size_max = size_max
        self.answers: list[str] = []
        self.damaged_count = 0

    def error(self, ledger_id: int) -> LedgerReadError:
        words = f"entry {self.first_entry_id}: no replica gave it ({'; '.join(self.answers)})"
        if self.damaged_count == len(self.answers):
            return DigestMismatchError(ledger_id, words)
        return LedgerReadError(ledger_id, words)


class ReplicaReads:
    """Of one ledger."""

    __slots__ = (
        "_bookies",
        "_digest",
        "_health",
        "_ledger_id",
        "_statistics",
        "_timeout",
        "_timeout_max",
    )

    def __init__(
        self,
        ledger_id: int,
        digest: Digest,
        bookies: BookieClient,
        config: LedgerClientConfig,
        statistics: LedgerStatistics,
        health: BookieHealth,
    ) -> None:
        self._ledger_id = ledger_id
        self._digest = digest
        self._bookies = bookies
        self._statistics = statistics
        self._health = health
        self._timeout = config.speculative_read_timeout_ms / 1000
        self._timeout_max = config.speculative_read_timeout_max_ms / 1000

    async def read(
        self, replicas: Sequence[BookieId], first_entry_id: int, count: int, size_max: int
    ) -> tuple[BookieId, list[memoryview]]:
        """Who gave it, and the payloads: at least one, up to the first that is missing or damaged.
        DigestMismatchError or LedgerReadError if no replica has the first entry intact."""
        run = _Run(first_entry_id, count, size_max)
        for number, bookie in enumerate(replicas):
            payloads = None
            if self._timeout and number + 1 < len(replicas):
                with trio.move_on_after(self._timeout) as scope:
                    payloads = await self._ask(bookie, run)
                if scope.cancelled_caught:
                    self._health.erred(bookie)
                    return await self._race(replicas[number:], run)
            else:
                payloads = await self._ask(bookie, run)
            if payloads:
                return bookie, payloads
        raise run.error(self._ledger_id)

    async def _race(
        self, replicas: Sequence[BookieId], run: _Run
    ) -> tuple[BookieId, list[memoryview]]:
        """The first of `replicas` did not answer."""
        won: list[tuple[BookieId, list[memoryview]]] = []
        failed = trio.Event()

        async def ask(bookie: BookieId, nursery: trio.Nursery) -> None:
            payloads = await self._ask(bookie, run)
            if payloads:
                won.append((bookie, payloads))
                nursery.cancel_scope.cancel()
            else:
                failed.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, replicas[0], nursery)
            pause = self._timeout
            for bookie in replicas[1:]:
                self._statistics.speculative_reads += 1
                nursery.start_soon(ask, bookie, nursery)
                pause = min(2 * pause, self._timeout_max)
                with trio.move_on_after(pause):
                    await failed.wait()
                failed = trio.Event()
        if not won:
            raise run.error(self._ledger_id)
        return won[0]

    async def _ask(self, bookie: BookieId, run: _Run) -> list[memoryview] | None:
        """None if it has not even the first entry intact."""
        status, entries = await self._bookies.read_entries(
            bookie,
            self._ledger_id,
            run.first_entry_id,
            count_max=run.count,
            size_max=run.size_max,
        )
        if status is not _EOK or not entries:
            self._statistics.read_failures += 1
            run.answers.append(f"{bookie}: {status.name}")
            if status is Status.EIO:
                self._health.erred(bookie)
            return None
        try:
            payloads = self._digest.open_run(entries, self._ledger_id, run.first_entry_id)
        except entry_format.DigestMismatchError as error:
            self._statistics.digest_mismatches += 1
            run.answers.append(f"{bookie}: {error}")
            run.damaged_count += 1
            return self._intact(entries, run.first_entry_id)
        self._statistics.reads += 1
        return payloads

    def _intact(self, entries: Sequence[memoryview], first_entry_id: int) -> list[memoryview]:
        """The entries in front of the first damaged one, which another replica is asked for next
        time."""
        payloads: list[memoryview] = []
        for entry_id, entry in enumerate(entries, first_entry_id):
            try:
                payloads.append(self._digest.open(entry, self._ledger_id, entry_id))
            except entry_format.DigestMismatchError:
                break
        return payloads
