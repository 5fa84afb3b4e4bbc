"""SurplusCopies: which of a bookie's ledgers are wholly on other bookies
(ScanAndCompareGarbageCollector.java, removeOverReplicatedledgers).

A copy is given up only if all of this holds, read under the ledger's lock of auto-recovery after
the metadata caught up (`MetadataStore.sync`):
- the ledger is CLOSED: its ensembles are changed by those only who have made copies;
- no segment names this bookie;
- it is not marked as under-replicated: then a copy more may be what it is repaired from;
- every bookie that a segment names is registered, and so is this one under the name that is looked
  for. BookKeeper does not ask that. If a bookie's id changed, and the ledgers do not say so yet
  (`update-bookie-in-ledger`), they name one that is not there, and the only copies are here.

With the lock no worker begins to copy the ledger before it is given back, and who had the lock
before has written the ensembles. Java's workers go by the same lock.

The lock is this session's: nobody else may share the bookie's session and lock ledgers (the
replication workers have processes, and sessions, of their own). It goes with the session if the
bookie ends.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from ledger.errors import LedgerError
from ledger.underreplication import UnderReplication
from metadata.store import MetadataError
from runtime.logs import kv

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ledger.metadata import LedgerManager
    from metadata.store import MetadataStore
    from runtime.throttle import Throttle
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

logger = logging.getLogger(__name__)

#: That are locked at a time, and given up together.
LEDGERS_AT_A_TIME = 100
#: For giving locks back when this is cancelled: what is left goes with the session.
UNLOCK_SECONDS_MAX = 2.0


class SurplusCopies:
    """Keeps nothing."""

    def __init__(self, store: MetadataStore, manager: LedgerManager, bookie_id: str) -> None:
        """`bookie_id`: as ledgers' ensembles name the bookie."""
        self._store = store
        self._manager = manager
        self._records = UnderReplication(store, manager.root)
        self._bookie_id = bookie_id

    async def give_up(
        self,
        ledger_ids: Sequence[int],
        throttle: Throttle,
        give_up: Callable[[list[int]], Awaitable[None]],
    ) -> None:
        """Awaits `give_up(some)` while it has the locks of these. `throttle`: of reads.
        MetadataError; LedgerMetadataError."""
        found: list[int] = []
        for ledger_id in ledger_ids:
            await throttle.take(1)
            # Without a lock, and of whatever age: it saves locks, and decides nothing else.
            if await self._is_elsewhere(ledger_id, None):
                found.append(ledger_id)
            if len(found) == LEDGERS_AT_A_TIME:
                await self._give_up_locked(found, throttle, give_up)
                found = []
        if found:
            await self._give_up_locked(found, throttle, give_up)

    async def _give_up_locked(
        self,
        ledger_ids: list[int],
        throttle: Throttle,
        give_up: Callable[[list[int]], Awaitable[None]],
    ) -> None:
        locked: list[int] = []
        try:
            for ledger_id in ledger_ids:
                await throttle.take(1)
                if await self._records.lock(ledger_id, self._bookie_id):
                    locked.append(ledger_id)
            await self._manager.sync()
            registered = await self._registered()
            surplus = [each for each in locked if await self._is_surplus(each, registered)]
            if surplus:
                await give_up(surplus)
        finally:
            await self._unlock(locked)

    async def _unlock(self, ledger_ids: list[int]) -> None:
        with trio.move_on_after(UNLOCK_SECONDS_MAX, shield=True):
            for ledger_id in ledger_ids:
                try:
                    await self._records.unlock(ledger_id)
                except MetadataError as error:
                    # It goes with the session, which seems to be lost.
                    logger.warning("lock_not_given_back", kv(ledger=ledger_id, error=error))

    async def _is_surplus(self, ledger_id: int, registered: frozenset[str]) -> bool:
        """Of the tree as it was at the last `sync`, or newer."""
        if await self._records.task(ledger_id) is not None:
            return False
        return await self._is_elsewhere(ledger_id, registered)

    async def _is_elsewhere(self, ledger_id: int, registered: frozenset[str] | None) -> bool:
        try:
            metadata = (await self._manager.read(ledger_id)).metadata
        except LedgerError:
            return False  # what is deleted is not this one's business, and doubt keeps
        return is_elsewhere(metadata, self._bookie_id, registered)

    async def _registered(self) -> frozenset[str]:
        available = f"{self._manager.root}/available"
        writable = await self._store.children(available)
        read_only = await self._store.children(f"{available}/readonly")
        return frozenset(writable).union(read_only)


def is_elsewhere(
    metadata: LedgerMetadata, bookie_id: str, registered: frozenset[str] | None
) -> bool:
    """Whether this bookie owes the ledger nothing, and those who do are there. `registered`: None,
    if that is not to be asked."""
    named = {each for _, ensemble in metadata.segments for each in ensemble}
    if not metadata.is_closed or bookie_id in named:
        return False
    return registered is None or (bookie_id in registered and named <= registered)
