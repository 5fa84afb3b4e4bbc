"""The one limit on what requests may hold in memory (queued.max.request.bytes).

A request counts from the moment it is dispatched for as long as something of its frame is needed:
a produce request until it is answered, others until they are parsed and worked on. Beyond the limit
connections stop reading, which the clients' TCP windows feel: back-pressure, never growth. A
request that is larger than what is left still gets in, so that it cannot starve.

Large frames that are not complete yet count, too, with the memory they were given. They get half of
the limit at most, so that those who never finish theirs cannot stop everybody else; only the oldest
may grow beyond it, so that some frame can always be finished. If for a while none is, although
somebody waits, those that have been under way for so long are given up (`overdue`).
"""

from __future__ import annotations

from typing import Protocol

#: So many looks of `overdue`, in which nothing was finished while somebody waited, are too many.
LOOKS_MAX = 10


class Waiter(Protocol):
    def memory_free(self) -> None:
        """There is request memory again."""


class RequestMemory:
    __slots__ = (
        "_ages", "_looks", "_unfinished", "_waiting", "_waiting_unfinished", "limit_bytes",
        "pauses_count", "requests_bytes", "unfinished_bytes",
    )  # fmt: skip

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        #: Of requests that are whole.
        self.requests_bytes = 0
        self.unfinished_bytes = 0
        self.pauses_count = 0
        self._waiting: dict[Waiter, None] = {}
        #: Whose frames are unfinished, and how large they are by now; the oldest first.
        self._unfinished: dict[Waiter, int] = {}
        self._ages: dict[Waiter, int] = {}
        self._waiting_unfinished: dict[Waiter, None] = {}
        self._looks = 0

    @property
    def used_bytes(self) -> int:
        return self.requests_bytes + self.unfinished_bytes

    @property
    def is_full(self) -> bool:
        if self.requests_bytes + self.unfinished_bytes < self.limit_bytes:
            return False
        unfinished = min(self.unfinished_bytes, self.limit_bytes // 2)
        return self.requests_bytes + unfinished >= self.limit_bytes

    def take(self, size_bytes: int) -> None:
        self.requests_bytes += size_bytes

    def give(self, size_bytes: int) -> None:
        self.requests_bytes -= size_bytes
        if self._waiting and not self.is_full:
            self._wake()

    def _wake(self) -> None:
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
        self._waiting_unfinished.pop(waiter, None)
        self.give_unfinished(waiter)

    # -- unfinished frames ---------------------------------------------------------------------

    def take_unfinished(self, holder: Waiter, size_bytes: int) -> bool:
        """Whether the holder's one unfinished frame may have `size_bytes` in all. If not,
        `memory_free` is called once it is worth asking again."""
        before = self._unfinished.get(holder, 0)
        after = self.unfinished_bytes - before + size_bytes
        is_oldest = next(iter(self._unfinished), holder) is holder
        if after > self.limit_bytes // 2 and not is_oldest:
            self._waiting_unfinished[holder] = None
            return False
        self._unfinished[holder] = size_bytes
        self._ages.setdefault(holder, 0)
        self.unfinished_bytes = after
        return True

    def give_unfinished(self, holder: Waiter) -> None:
        """The holder's frame is finished, or never will be."""
        size_bytes = self._unfinished.pop(holder, 0)
        if not size_bytes:
            return
        del self._ages[holder]
        self.unfinished_bytes -= size_bytes
        self._looks = 0
        waiting, self._waiting_unfinished = self._waiting_unfinished, {}
        for waiter in waiting:
            waiter.memory_free()
        if self._waiting and not self.is_full:
            self._wake()

    def overdue(self) -> list[Waiter]:
        """To be called about once a second: whose frames are to be given up, as others wait."""
        for holder in self._ages:
            self._ages[holder] += 1
        if not self._waiting_unfinished:
            self._looks = 0
            return []
        self._looks += 1
        if self._looks <= LOOKS_MAX:
            return []
        return [holder for holder, age in self._ages.items() if age > LOOKS_MAX]
