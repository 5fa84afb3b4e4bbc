"""The deletion of the ledgers that a partition's chain has let go (invariant L4).

The document names such a ledger as to be deleted, then the ledger is deleted, then the document
forgets it. What a crash leaves undone is still in the document.

Ledgers that compaction replaced wait for file.delete.delay.ms before they go, as somebody may still
read them; who reads a document by itself, too. Who takes a partition over does not know since when
its predecessor's wait, or what they were, and lets all of them wait anew.

Owner of the state: the partition's keeper, which alone calls it, from its one task. It deletes one
ledger at a time, as a roll may become due meanwhile, and writes the document.
"""

from __future__ import annotations

from itertools import chain as concatenated
from math import inf
from typing import TYPE_CHECKING

from metadata.store import MetadataUnavailableError, MetadataUnknownOutcomeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
        #: Of those that the document names: the ones that wait, and since when, longest first.
        self._held: dict[int, float] = {}
        self._has_failed = False

    def hold(self, ledger_ids: Iterable[int], now: float) -> None:
        """These are not to be deleted yet. `now`: in seconds, as below; it never goes back."""
        self._held.update(dict.fromkeys(ledger_ids, now))

    def release(self, now: float, delay_seconds: float) -> float:
        """Those that have waited so long are due; how long it is until the next ones are."""
        while self._held:
            ledger_id, since = next(iter(self._held.items()))
            # Not `now - since < delay_seconds`: rounding would let a clock that jumps to the end of
            # the wait never pass it.
            due = since + delay_seconds
            if now < due:
                return due - now
            del self._held[ledger_id]
        return inf

    def has_come(self, now: float, delay_seconds: float) -> bool:
        """Some that wait are due by now. It may be sooner than `release` told: a delay may have
        been made shorter."""
        since = next(iter(self._held.values()), inf)
        return now >= since + delay_seconds

    def is_due(self, chain: Chain) -> bool:
        named_count = len(chain.deleting) + len(chain.archived_deleting)
        if self._has_failed or named_count == len(self._held):
            return False
        return bool(self._deleted) or next(self._waiting(chain), None) is not None

    def _waiting(self, chain: Chain) -> Iterator[int]:
        """Those that are to be deleted now. An archive forgets its ledgers in their order."""
        archived: Iterable[int] = chain.archived_deleting
        if chain.archived_deleting and chain.archived_deleting[0] in self._held:
            archived = ()
        for each in concatenated(archived, chain.deleting):
            if each not in self._deleted and each not in self._held:
                yield each

    def may_grow(self, chain: Chain) -> bool:
        """The chain may let more ledgers go."""
        return len(chain.deleting) < DELETING_MAX

    def may_replace(self, chain: Chain) -> bool:
        """As `may_grow`, for ledgers that wait: the other half is for those that free space."""
        return len(chain.deleting) < DELETING_MAX // 2

    def try_again(self) -> None:
        """What could not be deleted is due once more."""
        self._has_failed = False

    async def delete_next(self, chain: Chain) -> bool:
        """Whether it is time to write the document `without` what was deleted. LedgerError,
        MetadataError, but for metadata that is away: then it is for the next time."""
        waiting = self._waiting(chain)
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
