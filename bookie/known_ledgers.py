"""What a bookie asks about ledgers that it cannot know itself: the seam to the metadata.

The bookie does not see the ledger client; who composes it hands in an implementation
(quire/ledger_gc.py). Without one, a bookie collects nothing by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wire.bookkeeper.entry import Digest


class KnownLedgers(Protocol):
    async def gone(self, ledger_ids: Sequence[int]) -> list[int]:
        """Those that the metadata certainly does not know any more: each of them was looked up
        directly and not there (ledgers.md 2.9.10). On any doubt a ledger is not among them.
        Raises nothing of the metadata's: without an answer the list is empty."""

    async def digest(self, ledger_id: int) -> Digest | None:
        """How the ledger's entries are sealed; None if that cannot be told now."""
