"""The last add confirmed of one ledger, as a bookie knows it, and who waits for it to move.

It is the highest LAC that any of the ledger's entries or an explicit LAC tells. Which ledgers have
one is decided in bookie/lac.py.

Owner: the event loop's thread.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from runtime.env import Clock
    from wire.buffers import Buffer

    #: Called once: the LAC moved beyond what the waiter knows, or the ledger was fenced or deleted.
    Waiter = Callable[[], None]

_unpack_lac = struct.Struct(">q").unpack_from
_LAC_OFFSET_IN_ENTRY = 16
_LAC_OFFSET_IN_PACKET = 8


class LedgerLac:
    """One followed ledger."""

    __slots__ = ("_clock", "_waiters", "is_ended", "lac", "updated_ms", "used_at")

    def __init__(self, clock: Clock, lac: int) -> None:
        self._clock = clock
        self.lac = lac
        self.updated_ms = clock.time_ms()
        self.used_at = clock.monotonic()
        #: Fenced or deleted: nobody needs to wait for more.
        self.is_ended = False
        self._waiters: dict[Waiter, int] = {}

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiters)

    def see_entry(self, entry: Buffer, start: int = 0) -> None:
        """An entry was added; it begins at `start`."""
        self.see(_unpack_lac(entry, start + _LAC_OFFSET_IN_ENTRY)[0])

    def see_packet(self, packet: Buffer) -> None:
        """An explicit LAC was written. What is too short for one tells nothing."""
        if len(packet) >= _LAC_OFFSET_IN_PACKET + 8:
            self.see(_unpack_lac(packet, _LAC_OFFSET_IN_PACKET)[0])

    def see(self, lac: int) -> None:
        if lac <= self.lac:
            return
        self.lac = lac
        self.updated_ms = self._clock.time_ms()
        if self._waiters:
            for waiter in [each for each, known in self._waiters.items() if known < lac]:
                del self._waiters[waiter]
                waiter()

    def end(self) -> None:
        self.is_ended = True
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            waiter()

    def wait(self, previous_lac: int, waiter: Waiter) -> None:
        """Calls `waiter()` when there is more than `previous_lac`; not from inside this call."""
        assert self.lac <= previous_lac
        assert not self.is_ended
        self._waiters[waiter] = previous_lac

    def forget(self, waiter: Waiter) -> None:
        self._waiters.pop(waiter, None)
