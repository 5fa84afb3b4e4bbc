"""Writers for the two other ways of writing a ledger; their rules are in writer_modes_core.

Parity with BookKeeper's client (LedgerHandleAdv, WriteFlag.DEFERRED_SYNC): applications that use
the ledger client find both; the broker writes its partitions with a plain LedgerWriter only. The
tests against BookKeeper's own bookies and clients (compat_tests/) drive both.

A deferred sync's ack promises nothing until `force` returned: a bookie that loses power may lose
what it acked. Its ledger cannot replace bookies, so the first that fails ends the writing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from ledger.errors import LedgerClosedError, LedgerError, LedgerForceError
from ledger.writer import LedgerWriter
from ledger.writer_modes_core import DeferredSyncCore
from runtime.logs import kv
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from ledger.writer_core import AppendDone
    from wire.buffers import Buffers

logger = logging.getLogger(__name__)


class AdvLedgerWriter(LedgerWriter):
    """Made by `LedgerClient.create_ledger_adv`. The caller chooses entry ids, in any order; acks
    come in the order of ids, so every id has to be given some day. `close` ends the ledger in front
    of the first id that is missing, and fails what is behind it."""

    __slots__ = ()

    def add_nowait(self, entry_id: int, payload: Buffers, done: AppendDone) -> None:
        """As `append_nowait`, with the entry's id given. DuplicateEntryError, LedgerBusyError,
        LedgerClosedError: nothing was added; ValueError if the id is negative."""
        if entry_id < 0:
            raise ValueError(f"entry id {entry_id} is negative")
        if self._closing:
            raise LedgerClosedError(self.ledger_id, "its writer was closed")
        self._pipeline.append(payload, done, entry_id)


class DeferredSyncLedgerWriter(AdvLedgerWriter):
    """Made by `LedgerClient.create_ledger_deferred_sync`. `last_add_confirmed` moves with `force`
    only, and readers see no more."""

    __slots__ = ()

    @property
    def _forcing_core(self) -> DeferredSyncCore:
        core = self._core
        assert isinstance(core, DeferredSyncCore)
        return core

    @property
    def last_add_confirmed(self) -> int:
        return self._forcing_core.last_add_forced

    @property
    def last_add_acked(self) -> int:
        """The last entry whose `done` was called, synced or not."""
        return self._core.last_add_confirmed

    async def force(self) -> int:
        """Makes durable whatever was acked before this call, and returns the LAC, which is at least
        that. All bookies of the ensemble have to agree (ForceLedgerOp.java): LedgerForceError if
        one does not, and it may be tried again. A ledger that failed raises why."""
        core = self._forcing_core
        if core.error is not None:
            raise core.error
        entry_id, length = core.last_add_confirmed, core.confirmed_length
        if entry_id > core.last_add_forced:
            await self._force_all(entry_id)
            core.forced(entry_id, length)
            self.reader.last_add_confirmed = core.last_add_forced
        return core.last_add_forced

    async def _force_all(self, entry_id: int) -> None:
        core = self._forcing_core
        asked = core.indexes_with_entries(entry_id)
        failures: list[str] = []

        async def force_one(index: int) -> None:
            bookie = core.ensemble[index]
            status = await self._bookies.force_ledger(bookie, self.ledger_id)
            # One that never got an entry has nothing to sync, and may not know the ledger.
            if status is Status.ENOLEDGER and index not in asked:
                return
            if status is not Status.EOK:
                failures.append(f"{bookie}: {status.name}")

        async with trio.open_nursery() as nursery:
            for index in range(core.schedule.ensemble_size):
                nursery.start_soon(force_one, index)
        if failures:
            raise LedgerForceError(
                self.ledger_id, f"up to entry {entry_id}: {', '.join(sorted(failures))}"
            )

    async def _end(self) -> tuple[int, int]:
        """Forces what was acked, if it can; else the ledger ends where the last force did."""
        core = self._forcing_core
        if core.last_add_confirmed > core.last_add_forced:
            entry_id, length = core.last_add_confirmed, core.confirmed_length
            try:
                await self._force_all(entry_id)
            except LedgerError as error:
                logger.warning("not_forced", kv(ledger=self.ledger_id, error=error))
            else:
                core.forced(entry_id, length)
        return core.last_add_forced, core.forced_length
