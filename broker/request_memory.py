"""The one limit on what requests may hold in memory (queued.max.request.bytes).

A request counts from the moment it is dispatched until it was answered. Beyond the limit
connections stop reading, which the clients' TCP windows feel: back-pressure, never growth. A
request that is larger than what is left still gets in, so that it cannot starve.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.net import Transport


class RequestMemory:
    __slots__ = ("_paused", "limit_bytes", "pauses_count", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.pauses_count = 0
        self._paused: dict[Transport, None] = {}

    @property
    def is_full(self) -> bool:
        return self.used_bytes >= self.limit_bytes

    def take(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        if self._paused and self.used_bytes < self.limit_bytes:
            paused, self._paused = self._paused, {}
            for transport in paused:
                transport.resume_reading()

    def pause(self, transport: Transport) -> None:
        """The connection reads no more until memory is given back."""
        if transport not in self._paused:
            self._paused[transport] = None
            self.pauses_count += 1
            transport.pause_reading()

    def forget(self, transport: Transport) -> None:
        self._paused.pop(transport, None)
