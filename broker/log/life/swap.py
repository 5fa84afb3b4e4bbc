"""What a cleaner asks a partition's keeper for: ledgers in the place of others.

The keeper is the only writer of the chain's document. So whoever has made ledgers that are to stand
in for others (their *sources*) gives them to `Keeper.swap`, and must know at any moment afterwards
whether it may delete what it made: `Swap.outcome` says so, also to one that was cancelled while it
waited.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from broker.log.life.chain import Chain
    from broker.log.life.ledger_info import LedgerInfo


class SwapOutcome(Enum):
    #: No compare-and-set names the new ledgers, and none will: who made them deletes them.
    NOT_ASKED = "not asked"
    #: The sources are not in the chain any more, one after the other (or the topic is deleted).
    #: Nothing names the new ledgers: who made them deletes them. A pass ends here.
    GONE = "gone"
    #: A compare-and-set that names them was sent, and may have been done: nothing may be deleted.
    #: Whoever owns the partition next reads what became of it; the sweep of orphans mends the rest.
    UNKNOWN = "unknown"
    #: The chain has the new ledgers; the sources are being deleted.
    DONE = "done"


@dataclass(slots=True, eq=False)
class Swap:
    """To be used for one call of `Keeper.swap`."""

    #: Consecutive closed ledgers of the chain; none, to tell `cleaned_to` alone.
    source_ids: tuple[int, ...]
    #: In their place: one or more, closed, consecutive, of the same range of offsets, with a
    #: generation. None if there are no sources.
    infos: tuple[LedgerInfo, ...]
    #: Every record before it was looked at by a pass that is finished with this swap, all its
    #: others being DONE; None: as it was.
    cleaned_to: int | None = None
    #: What is true now. It changes only in turns of the keeper's.
    outcome: SwapOutcome = SwapOutcome.NOT_ASKED

    def change(self, chain: Chain) -> Chain:
        """`chain` with what is asked for. SourcesGoneError."""
        if self.source_ids:
            chain = chain.with_compacted(self.source_ids, self.infos)
        return chain if self.cleaned_to is None else chain.with_cleaned_to(self.cleaned_to)

    @property
    def may_delete(self) -> bool:
        """Whether who made the new ledgers is to delete them."""
        return self.outcome in (SwapOutcome.NOT_ASKED, SwapOutcome.GONE)
