"""Auditor: notices that copies are missing, and marks the ledgers (feature 37; Auditor.java).

It runs while this process is the elected one. At once, or after lostBookieRecoveryDelay, it looks
for ledgers of bookies that are gone; from time to time it looks for all that are named and not
there, asks bookies for entries, counts copies, and looks at racks. What it finds it marks; a mark
that is there already is left alone, so a second auditor does no harm.

While auto-recovery is disabled nothing is looked for, and what was lost meanwhile is found later.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import TYPE_CHECKING

import trio

from ledger.autorecovery.lost_bookies import LostBookies
from ledger.autorecovery.session import RecordError, as_record_error
from ledger.ledger_walk import walk_ledgers
from metadata.store import NoNodeError
from runtime.logs import kv
from wire.bookkeeper.ledger_metadata import MetadataFormatError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from ledger.autorecovery.checks import Checks
    from ledger.autorecovery.parts import AutoRecoveryParts
    from ledger.autorecovery.statistics import AuditorStatistics
    from ledger.bookie_client import BookieId

logger = logging.getLogger(__name__)

RETRY_SECONDS = 5.0


class Auditor:
    """`run` audits until it is cancelled (ledger/autorecovery/auditor_election.py calls it)."""

    def __init__(
        self,
        parts: AutoRecoveryParts,
        checks: Checks,
        statistics: AuditorStatistics,
        on_marked: Callable[[], None],
    ) -> None:
        """`on_marked` is called after ledgers were marked: a worker in this process need not wait
        for its next look."""
        self._store = parts.store
        self._root = parts.root
        self._records = parts.records
        self._watcher = parts.watcher
        self._checks = checks
        self._config = parts.config
        self._clock = parts.env.clock
        self._statistics = statistics
        self._on_marked = on_marked
        self._lost = LostBookies()
        self._changed = trio.Event()
        self._watcher.subscribe(self._bookies_changed)
        checks.waiting = lambda: self._lost.waiting

    def _bookies_changed(self) -> None:
        self._changed.set()

    def _registered(self) -> frozenset[BookieId]:
        return self._watcher.writable | self._watcher.read_only

    async def run(self) -> None:
        """What the metadata does to it ends it; it may be run again."""
        config = self._config
        self._lost = LostBookies()
        self._lost.look(self._registered(), self._clock.monotonic(), await self._cookies())
        delay_s = await self._records.ensure_recovery_delay_s(config.lost_bookie_recovery_delay_s)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_bookies)
            nursery.start_soon(self._follow_delay, delay_s)
            for check, interval_s, name in (
                (self._audit_all, config.bookie_check_interval_s, None),
                (
                    self._checks.check_ledgers,
                    config.ledger_check_interval_s,
                    "checkallledgerscheck",
                ),
                (
                    self._checks.check_placement,
                    config.placement_check_interval_s,
                    "placementpolicycheck",
                ),
                (self._checks.check_replicas, config.replicas_check_interval_s, "replicascheck"),
            ):
                if interval_s:
                    nursery.start_soon(self._repeat, check, interval_s, name)

    # -- bookies that are lost -------------------------------------------------------------------

    async def _follow_bookies(self) -> None:
        while True:
            self._changed = trio.Event()
            now = self._clock.monotonic()
            self._lost.look(self._registered(), now)
            delay_s = await self._delay_s()
            self._statistics.audits_delayed = self._lost.delayed if delay_s else 0
            self._statistics.delayed_audits_cancelled = self._lost.cancelled if delay_s else 0
            lost = self._lost.due(now, delay_s)
            if lost:
                await self._records.wait_enabled()
                logger.warning("bookies_lost", kv(bookies=",".join(sorted(lost))))
                await self._mark_ledgers_of(lost)
                continue
            with trio.move_on_after(self._lost.wait_s(self._clock.monotonic(), delay_s)):
                await self._changed.wait()

    async def _cookies(self) -> list[BookieId]:
        """All bookies that belong to the cluster, whether they run or not."""
        try:
            return await self._store.children(f"{self._root}/cookies")
        except NoNodeError:
            return []

    async def _delay_s(self) -> int:
        try:
            found = await self._records.recovery_delay_s()
        except MetadataFormatError as error:
            logger.warning("recovery_delay_not_read", kv(error=error))
            found = None
        return self._config.lost_bookie_recovery_delay_s if found is None else found

    async def _follow_delay(self, delay_s: int) -> None:
        """Whoever writes the same number again, or 0, wants an audit now (`trigger-audit`); another
        number counts from now on."""
        watch = self._records.watch_recovery_delay()
        try:
            while True:
                await watch.changed()
                old, delay_s = delay_s, await self._delay_s()
                logger.info("recovery_delay_written", kv(delay_s=delay_s, was_s=old))
                self._changed.set()
                if delay_s in (old, 0):
                    await self._mark_ledgers_of(None)
        finally:
            watch.close()

    async def _audit_all(self) -> None:
        await self._mark_ledgers_of(None, waiting=self._lost.waiting)

    async def _mark_ledgers_of(
        self, lost: Collection[BookieId] | None, *, waiting: Collection[BookieId] = ()
    ) -> None:
        """Marks the ledgers that name a bookie of `lost` (None: one that is not registered) that
        still is not there; not for those of `waiting`, who may come back soon."""
        await self._records.wait_enabled()
        started_at = trio.current_time()
        ledgers = marked = 0
        async with aclosing(walk_ledgers(self._store, self._root)) as found:
            async for ledger_id, metadata in found:
                ledgers += 1
                if isinstance(metadata, str):
                    logger.warning("bad_metadata", kv(ledger=ledger_id, error=metadata))
                    continue
                named = {bookie for _, ensemble in metadata.segments for bookie in ensemble}
                missing = named.difference(self._registered(), waiting)
                if lost is not None:
                    missing &= set(lost)
                if missing and await self._checks.mark(ledger_id, missing, metadata.length):
                    marked += 1
        self._statistics.audit.record(trio.current_time() - started_at)
        words = kv(
            ledgers=ledgers, marked=marked, ms=int(1000 * (trio.current_time() - started_at))
        )
        logger.info("bookies_audited", words)
        if marked:
            self._on_marked()

    # -- checks from time to time ----------------------------------------------------------------

    async def _repeat(
        self, check: Callable[[], Awaitable[None]], interval_s: float, name: str | None
    ) -> None:
        """The metadata says when `name` was last done, by whatever auditor."""
        if name is not None:
            await trio.sleep(await self._due_in_s(name, interval_s))
        while True:
            try:
                await self._records.wait_enabled()
                with as_record_error():
                    await check()
                    if name is not None:
                        await self._records.set_check_time_ms(name, self._clock.time_ms())
                self._on_marked()
            except RecordError as error:
                logger.warning("check_failed", kv(check=name or "bookies", error=error))
                await trio.sleep(RETRY_SECONDS)
                continue
            await trio.sleep(interval_s)

    async def _due_in_s(self, name: str, interval_s: float) -> float:
        try:
            last_ms = await self._records.check_time_ms(name)
        except MetadataFormatError as error:
            logger.warning("check_time_not_read", kv(check=name, error=error))
            last_ms = None
        if last_ms is None:
            return 0.0
        passed_s = (self._clock.time_ms() - last_ms) / 1000
        return min(max(interval_s - passed_s, 0.0), interval_s)
