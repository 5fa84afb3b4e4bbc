"""The auditor's checks of all ledgers: copies, numbers of copies, racks.

A few ledgers at a time; what each check found replaces what it found before. What cannot be checked
is counted and logged, and the check goes on.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import TYPE_CHECKING

import trio

from ledger.autorecovery.placement_check import Adherence, adherence
from ledger.autorecovery.replicas_check import check_replicas
from ledger.copy_check import CopyChecker
from ledger.errors import LedgerError, NoSuchLedgerError
from ledger.fragments import fragments
from ledger.ledger_walk import walk_ledgers
from runtime.logs import kv

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from ledger.autorecovery.parts import AutoRecoveryParts
    from ledger.autorecovery.statistics import AuditorStatistics
    from ledger.bookie_client import BookieId
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

logger = logging.getLogger(__name__)


class Checks:
    def __init__(self, parts: AutoRecoveryParts, statistics: AuditorStatistics) -> None:
        self._store = parts.store
        self._root = parts.root
        self._records = parts.records
        self._audit_marks = parts.audit_marks
        self._manager = parts.client.manager
        self._bookies = parts.bookies
        self._watcher = parts.watcher
        self._locations = parts.locations
        self._min_racks = parts.min_racks
        self._config = parts.config
        self._env = parts.env
        self._statistics = statistics
        #: Lost bookies that may come back soon: what they have is not missing yet.
        self.waiting: Callable[[], Collection[BookieId]] = frozenset

    async def mark(self, ledger_id: int, missing: Collection[BookieId], length_bytes: int) -> bool:
        """Whether that was news."""
        now_ms = self._env.clock.time_ms()
        is_new = await self._audit_marks.mark(ledger_id, missing, now_ms)
        if is_new:
            self._statistics.ledgers_marked += 1
            self._statistics.marked_bytes += length_bytes
            words = kv(ledger=ledger_id, missing=",".join(sorted(missing)))
            logger.info("ledger_marked", words)
        return is_new

    async def check_ledgers(self) -> None:
        """Reads some entries of every copy of every closed fragment. MetadataError."""
        started_at = trio.current_time()
        statistics = self._statistics
        percentage = self._config.verification_percentage

        async def check_one(ledger_id: int, metadata: LedgerMetadata) -> None:
            checker = CopyChecker(
                self._bookies, ledger_id, metadata, self._env.rng, percentage=percentage
            )
            missing: dict[BookieId, str] = {}
            found = fragments(ledger_id, metadata)
            for fragment in found:
                for each in await checker.check(fragment, self._registered()):
                    if each.bookie not in self.waiting():
                        missing[each.bookie] = each.reason
            statistics.ledgers_checked += 1
            statistics.fragments_checked += len(found)
            named = {bookie for _, ensemble in metadata.segments for bookie in ensemble}
            statistics.bookies_of_checked += len(named)
            # The metadata may have been replaced while it was checked.
            if missing and await self._still_named(ledger_id, missing):
                words = "; ".join(f"{bookie}: {reason}" for bookie, reason in missing.items())
                logger.warning("copies_missing", kv(ledger=ledger_id, bookies=words))
                await self.mark(ledger_id, missing, metadata.length)

        await self._for_all(check_one)
        await self._count_late()
        statistics.ledger_check.record(trio.current_time() - started_at)

    async def _still_named(self, ledger_id: int, missing: dict[BookieId, str]) -> bool:
        """Drops those that no ensemble has any more; whether any is left."""
        try:
            metadata = (await self._manager.read(ledger_id)).metadata
        except NoSuchLedgerError:
            return False
        named = {bookie for _, ensemble in metadata.segments for bookie in ensemble}
        for bookie in missing.keys() - named:
            del missing[bookie]
        return bool(missing)

    async def check_replicas(self) -> None:
        """Counts the copies of every entry of the closed fragments. MetadataError."""
        started_at = trio.current_time()
        none = below_ack = below_write = 0
        silent: set[BookieId] = set()

        async def check_one(ledger_id: int, metadata: LedgerMetadata) -> None:
            nonlocal none, below_ack, below_write
            found = await check_replicas(
                self._bookies, ledger_id, metadata, self._registered(), self.waiting()
            )
            none += bool(found.without_copy)
            below_ack += bool(found.below_ack_quorum)
            below_write += bool(found.below_write_quorum)
            silent.update(found.silent)
            if found.lacking:
                words = kv(
                    ledger=ledger_id,
                    without_copy=found.without_copy,
                    below_ack_quorum=found.below_ack_quorum,
                    below_write_quorum=found.below_write_quorum,
                )
                logger.warning("copies_missing", words)
                await self.mark(ledger_id, found.lacking, metadata.length)

        await self._for_all(check_one)
        if silent:
            logger.warning("bookies_list_no_entries", kv(bookies=",".join(sorted(silent))))
        statistics = self._statistics
        statistics.ledgers_without_copy_of_an_entry = none
        statistics.ledgers_below_ack_quorum = below_ack
        statistics.ledgers_below_write_quorum = below_write
        statistics.replicas_check.record(trio.current_time() - started_at)

    async def check_placement(self) -> None:
        """Counts the closed ledgers whose copies are on too few racks, and has them moved if that
        is wanted. MetadataError."""
        started_at = trio.current_time()
        counts = dict.fromkeys(Adherence, 0)
        locations = self._locations()

        async def check_one(ledger_id: int, metadata: LedgerMetadata) -> None:
            if not metadata.is_closed:
                return
            found = adherence(metadata, locations, self._min_racks)
            counts[found] += 1
            if found is Adherence.FAIL:
                logger.warning("placement_not_adhered_to", kv(ledger=ledger_id))
                if self._config.repairs_placement:
                    # Nobody lacks copies: as BookKeeper's, a mark without bookies.
                    await self.mark(ledger_id, (), metadata.length)

        await self._for_all(check_one)
        self._statistics.ledgers_not_adhering = counts[Adherence.FAIL]
        self._statistics.ledgers_softly_adhering = counts[Adherence.SOFT]
        self._statistics.placement_check.record(trio.current_time() - started_at)

    async def _count_late(self) -> None:
        """Marks that are older than underreplicatedLedgerRecoveryGracePeriod."""
        if not self._config.late_after_s:
            return
        late_before_ms = self._env.clock.time_ms() - 1000 * self._config.late_after_s
        late = 0
        async with aclosing(self._records.ledger_ids()) as marked:
            async for ledger_id in marked:
                found = await self._records.ledger(ledger_id)
                late += found is not None and (found.ctime_ms or late_before_ms) < late_before_ms
        self._statistics.ledgers_late = late

    def _registered(self) -> frozenset[BookieId]:
        return self._watcher.writable | self._watcher.read_only

    async def _for_all(self, check_one: Callable[[int, LedgerMetadata], Awaitable[None]]) -> None:
        unreadable = 0
        places = trio.Semaphore(self._config.checked_ledgers_max)

        async def check(ledger_id: int, metadata: LedgerMetadata) -> None:
            try:
                await check_one(ledger_id, metadata)
            except LedgerError as error:
                logger.warning("ledger_not_checked", kv(ledger=ledger_id, error=error))
            finally:
                places.release()

        async with (
            trio.open_nursery() as nursery,
            aclosing(walk_ledgers(self._store, self._root)) as found,
        ):
            async for ledger_id, metadata in found:
                if isinstance(metadata, str):
                    unreadable += 1
                    logger.warning("bad_metadata", kv(ledger=ledger_id, error=metadata))
                    continue
                await places.acquire()
                nursery.start_soon(check, ledger_id, metadata)
        self._statistics.ledgers_unreadable_metadata = unreadable
