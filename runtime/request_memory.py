"""The one limit on what requests may hold in memory (queued.max.request.bytes).

A request counts from the moment it is dispatched for as long as something of its frame is needed:
a produce request until it is answered, others until they are parsed and worked on. Beyond the limit
connections stop reading, which the clients' TCP windows feel: back-pressure, never growth. A
request that is larger than what is left still gets in, so that it cannot starve.

Large frames that are not complete yet count, too, with the memory they were given. They get half of
the limit at most, so that those who never finish theirs cannot stop everybody else, and an eighth
of that is for frames of SMALL_FRAME_BYTES or less; only the oldest may grow beyond it, so that some
frame can always be finished.

Of each frame it is known how long ago its bytes last came in earnest. While somebody waits, those
whose bytes stay out are given up (`overdue`), whatever becomes of the others: a client that leaves
or finishes one of its frames does no good to the rest of them. While somebody still waits after
that, the same pace is asked of all in shorter looks back, for who waits in front may be of the same
kind; and the line is served from both ends, so that it is no wall to who comes after many of them.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

#: So many looks of `overdue` may pass without progress.
LOOKS_MAX = 10
#: What has to arrive in them. Who is slower than this (26 kB/s, with a look a second) does not get
#: a frame of 1 MiB across in the 30 s that Kafka's clients wait for an answer.
PROGRESS_BYTES_MIN = 256 << 10
#: Instead of LOOKS_MAX, once frames were given up, until nobody waits.
SHORT_LOOKS_MAX = 2
#: More for frames that may not grow: they wait for others, which are given up before.
WAITING_LOOKS = 2
#: Up to here frames find room when larger ones do not: most that a producer's `batch.size` makes.
SMALL_FRAME_BYTES = 256 << 10


class Waiter(Protocol):
    @property
    def frame_bytes_received(self) -> int:
        """How much of the unfinished frame is there."""

    def memory_free(self) -> None:
        """There is request memory again."""


class RequestMemory:
    __slots__ = (
        "_looks_max", "_progress", "_unfinished", "_waiting", "_waiting_unfinished", "limit_bytes",
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
        #: Of those: the bytes that were there at the last progress, and the looks since then.
        self._progress: dict[Waiter, tuple[int, int]] = {}
        #: Who asked for more and has not got it, in the order they came.
        self._waiting_unfinished: dict[Waiter, None] = {}
        self._looks_max = LOOKS_MAX

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
        `memory_free` is called whenever it is worth asking again."""
        before = self._unfinished.get(holder, 0)
        after = self.unfinished_bytes - before + size_bytes
        is_oldest = next(iter(self._unfinished), holder) is holder
        limit_bytes = self.limit_bytes // 2
        if size_bytes > SMALL_FRAME_BYTES:
            limit_bytes -= limit_bytes // 8
        if after > limit_bytes and not is_oldest:
            self._waiting_unfinished[holder] = None
            return False
        self._waiting_unfinished.pop(holder, None)
        self._unfinished[holder] = size_bytes
        # It got as far as it could: what is asked of it begins anew with what it may do now.
        self._progress[holder] = holder.frame_bytes_received, 0
        self.unfinished_bytes = after
        return True

    def give_unfinished(self, holder: Waiter) -> None:
        """The holder's frame is finished, or never will be."""
        size_bytes = self._unfinished.pop(holder, 0)
        if not size_bytes:
            return
        del self._progress[holder]
        self.unfinished_bytes -= size_bytes
        line = deque(self._waiting_unfinished)
        while line:
            line.popleft().memory_free()
            if line:
                line.pop().memory_free()
        if self._waiting and not self.is_full:
            self._wake()

    def overdue(self) -> list[Waiter]:
        """To be called about once a second: whose frames are to be given up, as others wait."""
        if not self._waiting_unfinished and not self._waiting:
            self._looks_max = LOOKS_MAX
        looks_max = self._looks_max
        found: list[Waiter] = []
        for holder, (before_bytes, looks) in self._progress.items():
            if holder in self._waiting:
                continue  # it is not read, as requests have all memory
            received_bytes = holder.frame_bytes_received
            if (received_bytes - before_bytes) * LOOKS_MAX >= PROGRESS_BYTES_MIN * looks_max:
                self._progress[holder] = received_bytes, 0
                continue
            self._progress[holder] = before_bytes, looks + 1
            more_looks = WAITING_LOOKS if holder in self._waiting_unfinished else 0
            if looks >= looks_max + more_looks:
                found.append(holder)
        if not self._waiting_unfinished and not self._waiting:
            return []
        if found:
            self._looks_max = SHORT_LOOKS_MAX
        return found
