"""The one limit on what requests may hold in memory (queued.max.request.bytes).

A request counts from the moment it is dispatched until it was answered. Beyond the limit
connections stop reading, which the clients' TCP windows feel: back-pressure, never growth. A
request that is larger than what is left still gets in, so that it cannot starve.
"""

from __future__ import annotations

from typing import Protocol


class Waiter(Protocol):
    def memory_free(self) -> None:
        """There is request memory again."""


class RequestMemory:
    __slots__ = ("_waiting", "limit_bytes", "pauses_count", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.pauses_count = 0
        self._waiting: dict[Waiter, None] = {}

    @property
    def is_full(self) -> bool:
        return self.used_bytes >= self.limit_bytes

    def take(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        self.used_bytes -= size_bytes
        if self._waiting and self.used_bytes < self.limit_bytes:
            waiting, self._waiting = self._waiting, {}
            for waiter in waiting:
                waiter.memory_free()

    def wait(self, waiter: Waiter) -> None:
        """`memory_free` is called once, when memory was given back."""
        if waiter not in self._waiting:
            self._waiting[waiter] = None
            self.pauses_count += 1

    def forget(self, waiter: Waiter) -> None:
        self._waiting.pop(waiter, None)
