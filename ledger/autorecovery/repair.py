"""What is done to one ledger whose copies are missing (ReplicationWorker.java, rereplicate).

Pass after pass: read the metadata, check the copies of every fragment, make new ones where some are
missing, until a pass finds nothing to do or only what cannot be done. ledger/replication.py has the
rules of copying. In addition to BookKeeper's:

- What is known to fail is asked for first: an entry that nobody gave the last time, bookies that
  are all gone. Copies in front of it would be made again and again (bk#1908).
- If two bookies are lost and there is room for one, that one gets its copies.
- A bookie that answers and tells which entries it lacks gets these again itself: another one would
  have to be given all of the fragment. So does one that lacks all, where no other bookie is left.
- An auditor's mark of an open ledger is taken back when its bookies are there again and lack
  nothing (ledger/autorecovery/open_end.py). A writer's mark stays until the ledger is closed.

If it is to (`racks`), it also moves copies of closed fragments on too few racks, one bookie
at a time, and only to where the fragment is on more racks then. What cannot be moved is left as it
is: nothing is missing, and the auditor tells of it the next time.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ledger.autorecovery.open_end import is_open_end_whole
from ledger.autorecovery.placement_check import crowded, spread_of
from ledger.autorecovery.report import (
    Problem,
    Reason,
    no_copy_left,
    still_open,
    too_few,
    unfinished,
)
from ledger.copy_check import CopyChecker
from ledger.errors import (
    LedgerError,
    LedgerMetadataError,
    MetadataConflictError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from ledger.fragments import fragments, schedule_of
from ledger.replication import TargetFailedError, UnreadableEntryError, choose_targets
from runtime.logs import kv

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ledger.autorecovery.parts import AutoRecoveryParts
    from ledger.autorecovery.statistics import WorkerStatistics
    from ledger.bookie_client import BookieId
    from ledger.copy_check import Missing
    from ledger.fragments import Fragment
    from ledger.replication import Replicator
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

logger = logging.getLogger(__name__)

#: Passes over a ledger that others change at the same time.
PASSES_MAX = 20
#: Bookies that are tried one after another in a place.
TARGETS_MAX = 3


class LedgerRepair:
    """Keeps nothing of a ledger; one may work on many at once."""

    def __init__(
        self, parts: AutoRecoveryParts, replicator: Replicator, statistics: WorkerStatistics
    ) -> None:
        self._client = parts.client
        self._bookies = parts.bookies
        self._audit_marks = parts.audit_marks
        self._watcher = parts.watcher
        self._placement = parts.placement
        self._replicator = replicator
        self._rng = parts.env.rng
        self._statistics = statistics
        self._percentage = parts.config.verification_percentage
        #: Where the bookies are, and on how many racks a write quorum is to be; None: copies stay
        #: where they are.
        self._racks: Callable[[], tuple[Mapping[BookieId, str], int]] | None = None
        if parts.config.repairs_placement:
            self._racks = lambda: (parts.locations(), parts.min_racks)

    async def repair(
        self,
        ledger_id: int,
        suspects: Collection[BookieId],
        *,
        marked_version: int,
        unreadable: Mapping[int, int],
        may_fence: bool,
    ) -> list[Problem]:
        """What is still missing and why; nothing if the ledger is whole, or gone.

        `suspects`: whose copies are said to be missing, by the mark that has `marked_version`: if
        auditors alone wrote that one, nothing is missing of an open end either whose bookies have
        all that was written (ledger/autorecovery/audit_marks.py). `unreadable`: of fragments, by
        first entry, an entry that nobody gave the last time. `may_fence`: an open end that has lost
        a bookie is recovered; else that is a problem (OPEN). MetadataError, only for the store's
        own."""
        work = _Work(self, ledger_id, suspects, marked_version, unreadable)
        for _ in range(PASSES_MAX):
            try:
                if may_fence:
                    # Its writer may have replaced the bookie in the last seconds.
                    await self._client.manager.sync()
                metadata = (await self._client.manager.read(ledger_id)).metadata
                problems, is_changed = await work.go_over(metadata, may_fence=may_fence)
            except NoSuchLedgerError:
                return []
            except LedgerMetadataError as error:
                return [Problem(Reason.METADATA, str(error))]
            if not is_changed:
                return problems
        return [Problem(Reason.METADATA, "somebody else changes it again and again")]

    def registered(self) -> frozenset[BookieId]:
        return self._watcher.writable | self._watcher.read_only

    def checker(self, ledger_id: int, metadata: LedgerMetadata) -> CopyChecker:
        return CopyChecker(
            self._bookies, ledger_id, metadata, self._rng, percentage=self._percentage
        )

    async def may_take_back(
        self, fragment: Fragment, metadata: LedgerMetadata, marked_version: int
    ) -> bool:
        """Whether the mark of an open end is not needed any more: the bookies were away when an
        auditor looked, are there again, and have what they should have."""
        ledger_id = fragment.ledger_id
        if not await self._audit_marks.is_only_audits(ledger_id, marked_version):
            return False
        checker = self.checker(ledger_id, metadata)
        return await is_open_end_whole(
            self._bookies, checker, fragment, metadata, self.registered()
        )

    async def recover(self, ledger_id: int, metadata: LedgerMetadata) -> Problem | None:
        """Fences and closes it."""
        password = metadata.password or b""
        try:
            await self._client.open_ledger(ledger_id, password=password, recover=True)
        except (NoSuchLedgerError, MetadataConflictError):
            return None  # the next pass sees what became of it
        except LedgerError as error:
            gone = set(metadata.last_segment[1]).difference(self.registered())
            return Problem(Reason.NOT_RECOVERED, str(error), frozenset(gone))
        logger.info("open_ledger_fenced", kv(ledger=ledger_id))
        return None

    async def replace(
        self, fragment: Fragment, metadata: LedgerMetadata, lost: Collection[BookieId]
    ) -> Problem | None:
        """Other bookies get what those of `lost` should have. NotEnoughBookiesError,
        UnreadableEntryError, MetadataConflictError, LedgerMetadataError."""
        unfit = {*lost}
        for _ in range(TARGETS_MAX):
            targets = await choose_targets(self._placement, fragment, metadata, lost, unfit)
            try:
                await self._replicator.replicate(fragment, metadata, targets, self.step)
            except TargetFailedError as error:
                unfit.add(error.bookie)
                problem = Problem(Reason.TARGET_FAILED, str(error))
            else:
                return None
        return problem

    async def move(self, fragment: Fragment, metadata: LedgerMetadata) -> bool:
        """Whether copies were moved to another rack, or somebody else changed the ledger. Errors
        of the metadata."""
        if self._racks is None:
            return False
        locations, min_racks = self._racks()
        schedule = schedule_of(metadata)
        ensemble = fragment.ensemble
        before = spread_of(ensemble, schedule, locations, min_racks)
        for bookie in crowded(ensemble, schedule, locations, min_racks):
            try:
                targets = await choose_targets(
                    self._placement, fragment, metadata, {bookie}, {bookie}
                )
                moved = [targets.get(index, each) for index, each in enumerate(ensemble)]
                if spread_of(moved, schedule, locations, min_racks) <= before:
                    continue
                await self._replicator.replicate(fragment, metadata, targets, self.step)
            except (NotEnoughBookiesError, TargetFailedError, UnreadableEntryError) as error:
                words = kv(ledger=fragment.ledger_id, bookie=bookie, error=error)
                logger.warning("placement_not_mended", words)
                continue
            except MetadataConflictError:
                return True
            words = kv(ledger=fragment.ledger_id, bookie=bookie, to=",".join(targets.values()))
            logger.info("placement_mended", words)
            return True
        return False

    async def restore(
        self, fragment: Fragment, metadata: LedgerMetadata, missing: Missing
    ) -> Problem | None:
        """The bookie itself gets them again. UnreadableEntryError."""
        index = missing.ensemble_index
        runs = missing.runs
        if runs is None:
            entry_ids = fragment.entry_ids(schedule_of(metadata), (index,))
            try:
                await self._replicator.restore(fragment, metadata, index, entry_ids, self.step)
            except TargetFailedError as error:
                return Problem(Reason.TARGET_FAILED, str(error))
            return None
        for run in runs:
            try:
                await self._replicator.restore(fragment, metadata, index, run, self.step)
            except TargetFailedError as error:
                return Problem(Reason.TARGET_FAILED, str(error))
        return None

    async def check_readable(
        self, fragment: Fragment, metadata: LedgerMetadata, entry_id: int
    ) -> None:
        await self._replicator.check_readable(fragment, metadata, entry_id)

    def step(self, entries: int, size_bytes: int) -> None:
        self._statistics.entries_written += entries
        self._statistics.bytes_written += size_bytes

    def spare_for(self, fragment: Fragment) -> int:
        return len(self._watcher.writable.difference(fragment.ensemble))

    def is_writable(self, bookie: BookieId) -> bool:
        return bookie in self._watcher.writable


class _Work:
    """One ledger, until it is whole or nothing more can be done."""

    def __init__(
        self,
        repair: LedgerRepair,
        ledger_id: int,
        suspects: Collection[BookieId],
        marked_version: int,
        unreadable: Mapping[int, int],
    ) -> None:
        self._repair = repair
        self._ledger_id = ledger_id
        self._suspects = frozenset(suspects)
        self._marked_version = marked_version
        self._unreadable = unreadable
        #: (fragment's first entry, ensemble index) that were restored: once is enough.
        self._restored: set[tuple[int, int]] = set()

    async def go_over(
        self, metadata: LedgerMetadata, *, may_fence: bool
    ) -> tuple[list[Problem], bool]:
        """Problems, and whether anything was done: then they are to be looked for again."""
        repair = self._repair
        found = fragments(self._ledger_id, metadata)
        problems: list[Problem] = []
        gone = set(found[-1].ensemble).difference(repair.registered())
        if not found[-1].is_closed and gone:
            if may_fence:
                problem = await repair.recover(self._ledger_id, metadata)
                if problem is None:
                    return [], True
                problems.append(problem)
            else:
                problems.append(still_open(found[-1], gone))
        elif (
            not found[-1].is_closed
            and not self._suspects.isdisjoint(found[-1].ensemble)
            and not await repair.may_take_back(found[-1], metadata, self._marked_version)
        ):
            problems.append(unfinished(found[-1], self._suspects))
        checker = repair.checker(self._ledger_id, metadata)
        is_changed = False
        for fragment in found:
            if not fragment.is_closed:
                continue
            missing = await checker.check(fragment, repair.registered())
            if missing:
                problem = await self._mend(fragment, metadata, missing)
                if problem is None:
                    is_changed = True
                else:
                    problems.append(problem)
            elif await repair.move(fragment, metadata):
                # The next fragment's compare-and-set needs the metadata as they are now.
                return problems, True
        return problems, is_changed

    async def _mend(
        self, fragment: Fragment, metadata: LedgerMetadata, missing: list[Missing]
    ) -> Problem | None:
        """None if something was done, or somebody else did."""
        schedule = schedule_of(metadata)
        problem = no_copy_left(fragment, schedule, self._repair.registered())
        if problem is not None:
            return problem
        first = fragment.first_entry_id
        try:
            if (entry_id := self._unreadable.get(first)) is not None:
                await self._repair.check_readable(fragment, metadata, entry_id)
            return await self._replace_or_restore(fragment, metadata, missing)
        except UnreadableEntryError as error:
            gone = set(fragment.ensemble).difference(self._repair.registered())
            return Problem(
                Reason.UNREADABLE_ENTRY, str(error), frozenset(gone), first, error.entry_id
            )
        except MetadataConflictError:
            return None

    async def _replace_or_restore(
        self, fragment: Fragment, metadata: LedgerMetadata, missing: list[Missing]
    ) -> Problem | None:
        if all(each.is_there and each.runs is not None for each in missing):
            problem = await self._restore_all(fragment, metadata, missing)
            if problem is None:
                return None
        lost = {each.bookie for each in missing}
        # All at once, which reads each entry once; else as many as there is room for.
        for wanted in ([lost] if len(lost) > 1 else []) + [{each.bookie} for each in missing]:
            try:
                return await self._repair.replace(fragment, metadata, wanted)
            except NotEnoughBookiesError:
                continue
        return await self._restore_all(fragment, metadata, missing)

    async def _restore_all(
        self, fragment: Fragment, metadata: LedgerMetadata, missing: list[Missing]
    ) -> Problem | None:
        """To the bookies themselves, as far as they are there and take writes."""
        lost = {each.bookie for each in missing}
        problem: Problem | None = too_few(fragment, lost, self._repair.spare_for(fragment))
        for each in missing:
            place = (fragment.first_entry_id, each.ensemble_index)
            if not each.is_there or not self._repair.is_writable(each.bookie):
                continue
            if place in self._restored:
                words = f"{each.bookie} got its copies again, and still: {each.reason}"
                return Problem(Reason.TARGET_FAILED, words)
            self._restored.add(place)
            problem = await self._repair.restore(fragment, metadata, each)
        return problem
