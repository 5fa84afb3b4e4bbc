"""Which bookies are lost, and whether they are waited for (Auditor.java, submitAuditTask). Pure.

A single bookie that vanished may be restarting: it is waited for `delay_s`. A second one that
vanishes meanwhile ends the waiting for both: now every copy counts (feature 37).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from ledger.bookie_client import BookieId


#: A clock that was slept on may be short by less than this.
TOLERANCE_S = 0.001


class LostBookies:
    """`now` is any clock that only goes forward, in seconds."""

    __slots__ = ("_known", "_since", "cancelled", "delayed")

    def __init__(self) -> None:
        self._known: set[BookieId] = set()
        #: Who is waited for, and since when.
        self._since: dict[BookieId, float] = {}
        #: How often a bookie was waited for, and how often it came back in time.
        self.delayed = 0
        self.cancelled = 0

    @property
    def waiting(self) -> frozenset[BookieId]:
        return frozenset(self._since)

    def look(
        self, registered: Collection[BookieId], now: float, known: Collection[BookieId] = ()
    ) -> None:
        """Who is there now. `known`: bookies that there are, registered or not."""
        self._known.update(registered, known)
        for bookie in self._since.keys() & set(registered):
            del self._since[bookie]
            self.cancelled += 1
        for bookie in sorted(self._known.difference(registered)):
            # It is lost once; whoever is audited stays unknown until it comes back.
            self._known.discard(bookie)
            self._since[bookie] = now
            self.delayed += 1

    def due(self, now: float, delay_s: float) -> frozenset[BookieId]:
        """Those whose ledgers are to be marked now; they are not told again."""
        if len(self._since) > 1 or any(
            now - since >= delay_s - TOLERANCE_S for since in self._since.values()
        ):
            lost = frozenset(self._since)
            self._since.clear()
            return lost
        return frozenset()

    def wait_s(self, now: float, delay_s: float) -> float:
        """Until `due` may tell somebody, if nothing changes; infinity if nobody is waited for."""
        return max(min(self._since.values(), default=float("inf")) + delay_s - now, 0.0)
