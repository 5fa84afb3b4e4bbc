"""The deletion of the ledgers that a partition's chain has let go (invariant L4).

The document names such a ledger as to be deleted, then the ledger is deleted, then the document
forgets it. What a crash leaves undone is still in the document.

Owner of the state: the partition's keeper, which alone calls it, from its one task. It deletes one
ledger at a time, as a roll may become due meanwhile, and writes the document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metadata.store import MetadataUnavailableError, MetadataUnknownOutcomeError

if TYPE_CHECKING:
    from broker.log.life.chain import Chain
    from ledger.client import LedgerClient

#: Ledgers that may wait for their deletion, before the log start is raised once more: each is named
#: in the document, which has a limit.
DELETING_MAX = 10_000
#: The document is told of so many deletions at once, or when there are no more.
DELETED_COUNT = 64


class Deletions:
    def __init__(self, ledgers: LedgerClient) -> None:
        self._ledgers = ledgers
        #: Of those that the document names as to be deleted.
        self._deleted: set[int] = set()
        self._has_failed = False

    def is_due(self, chain: Chain) -> bool:
        return bool(chain.all_deleting) and not self._has_failed

    def may_grow(self, chain: Chain) -> bool:
        """The chain may let more ledgers go."""
        return len(chain.deleting) < DELETING_MAX

    def try_again(self) -> None:
        """What could not be deleted is due once more."""
        self._has_failed = False

    async def delete_next(self, chain: Chain) -> bool:
        """Whether it is time to write the document `without` what was deleted. LedgerError,
        MetadataError, but for metadata that is away: then it is for the next time."""
        waiting = (each for each in chain.all_deleting if each not in self._deleted)
        ledger_id = next(waiting, None)
        if ledger_id is not None:
            try:
                await self._ledgers.delete_ledger(ledger_id)
            except (MetadataUnavailableError, MetadataUnknownOutcomeError):
                self._has_failed = True
                return False
            self._deleted.add(ledger_id)
        return len(self._deleted) >= DELETED_COUNT or next(waiting, None) is None

    def without(self, chain: Chain) -> Chain:
        """`chain` forgets what was deleted."""
        return chain.with_deleted(frozenset(self._deleted))

    def forget(self) -> None:
        """The document was written without them."""
        self._deleted.clear()
