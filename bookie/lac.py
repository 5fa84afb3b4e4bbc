"""Of which ledgers a bookie follows the last add confirmed (bookie/ledger_lac.py).

A bookie's LAC of a ledger is the highest that any of its entries or an explicit LAC tells
(TransientLedgerInfo.java). It is followed only for ledgers that somebody asks about, from the first
question on until nobody has asked for a while; adds to all others pay one comparison.

Owner: the event loop's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookie.ledger_lac import LedgerLac
from wire.bookkeeper.status import LAST_ADD_CONFIRMED_ENTRY, Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bookie.ledger_table import LedgerTable
    from runtime.env import Clock

#: As long as BookKeeper keeps its TransientLedgerInfo.
IDLE_SECONDS = 600.0
#: Beyond it the one that was asked for longest ago is dropped, unless it is waited for.
FOLLOWED_MAX = 10_000


class LedgerLacs:
    """The followed ledgers. `LedgerState.lac` holds the same object, for the path of an add."""

    __slots__ = ("_clock", "_followed", "_read_entry", "_table")

    def __init__(
        self,
        clock: Clock,
        table: LedgerTable,
        read_entry: Callable[[int, int], Awaitable[tuple[Status, memoryview]]],
    ) -> None:
        """`read_entry(ledger id, entry id)`: the bookie's."""
        self._clock = clock
        self._table = table
        self._read_entry = read_entry
        self._followed: dict[int, LedgerLac] = {}

    def get(self, ledger_id: int) -> LedgerLac | None:
        """The ledger's, if it is followed already."""
        state = self._table.get(ledger_id)
        if state is None or state.lac is None:
            return None
        state.lac.used_at = self._clock.monotonic()
        return state.lac

    async def follow(self, ledger_id: int) -> tuple[Status, LedgerLac | None]:
        """Follows the ledger from now on. ENOLEDGER; EIO if its last entry cannot be read."""
        followed = self.get(ledger_id)
        if followed is not None:
            return Status.EOK, followed
        state = self._table.get(ledger_id)
        if state is None:
            return Status.ENOLEDGER, None
        # First it follows, then it looks at what was there before: nothing is missed in between.
        followed = state.lac = LedgerLac(self._clock, -1)
        followed.is_ended = state.fenced
        self._make_room()
        self._followed[ledger_id] = followed
        if state.explicit_lac is not None:
            followed.see_packet(state.explicit_lac)
        status, entry = await self._read_entry(ledger_id, LAST_ADD_CONFIRMED_ENTRY)
        if status is Status.EOK:
            followed.see_entry(entry)
        elif status is not Status.ENOENTRY:
            self._drop(ledger_id)
            return status, None
        return Status.EOK, followed

    def _make_room(self) -> None:
        if len(self._followed) < FOLLOWED_MAX:
            return
        oldest = sorted(self._followed.items(), key=lambda item: item[1].used_at)
        for ledger_id, followed in oldest[: FOLLOWED_MAX // 10]:
            if not followed.is_waited_for:
                self._drop(ledger_id)

    def drop_idle(self) -> None:
        """Forgets those that nobody asked for in IDLE_SECONDS."""
        now = self._clock.monotonic()
        for ledger_id, followed in list(self._followed.items()):
            if not followed.is_waited_for and now - followed.used_at > IDLE_SECONDS:
                self._drop(ledger_id)

    def _drop(self, ledger_id: int) -> None:
        self._followed.pop(ledger_id, None)
        state = self._table.get(ledger_id)
        if state is not None:
            state.lac = None
