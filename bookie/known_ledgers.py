"""What a bookie asks about ledgers that it cannot know itself: the seam to the metadata.

The bookie does not see the ledger client; who composes it hands in an implementation
(joined/ledger_gc.py). Without one, a bookie collects nothing by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from wire.bookkeeper.entry import Digest


class CollectionRefusedError(Exception):
    """Nothing can be told of any ledger now; says why. Every ledger is kept."""


class KnownLedgers(Protocol):
    async def gone(self, ledger_ids: Sequence[int]) -> list[int]:
        """`ledger_ids` are all that the bookie has; those of them that the metadata certainly does
        not know any more. Each was missing at two looks that are far enough apart, of which this is
        the second. On any doubt a ledger is not among them. CollectionRefusedError."""

    async def confirmed(self) -> list[int]:
        """As `gone`, of those alone that were found missing long enough ago: without a look at all
        ledgers. CollectionRefusedError."""

    @property
    def seconds_to_confirm(self) -> float:
        """After so long `confirmed` has something to look at again; infinite if it has nothing."""

    async def over_replicated(
        self, ledger_ids: Sequence[int], give_up: Callable[[list[int]], Awaitable[None]]
    ) -> None:
        """Awaits `give_up(some)` with those of `ledger_ids` of which others have all copies, and
        nobody begins to count on this bookie's before it returns; a hundred at a time. On any
        doubt a ledger is not among them. CollectionRefusedError."""

    async def digest(self, ledger_id: int) -> Digest | None:
        """How the ledger's entries are sealed; None if that cannot be told now."""
