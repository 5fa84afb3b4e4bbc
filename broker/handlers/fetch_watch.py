"""What a fetch waits for: its partitions' high watermarks, and when all together may suffice.

With few partitions all are looked at whenever one moves. With many, a batch for one of them would
have hundreds looked at, for each fetch that waits: there only the one that moved is, and how much
each has to be read is remembered, until the sum may be `min_bytes`. The sum never falls short of
what a look at all of them finds, so that no wake-up is lost.

Owner: the event loop's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from wire.kafka.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.fetch_sessions import FetchContext, Wanted
    from broker.handlers.fetch import FetchHandler
    from broker.log.partition import PartitionLog, ReadResult
    from wire.kafka.messages.fetch import FetchRequest, PartitionData

#: What one partition costs, in units of `Steps`.
PARTITION_UNITS = 10
#: Of so few all are looked at, whichever moved.
PARTITIONS_FEW = 16


@dataclass(slots=True)
class Collected:
    """One look at all partitions of a fetch."""

    data: list[tuple[Wanted, PartitionData]]
    size_bytes: int
    #: What is there to be read, each partition up to its limit; not less than `size_bytes`.
    available_bytes: int
    failed: bool  # some partition answered with an error: do not wait
    cold: list[tuple[Wanted, PartitionData, PartitionLog]]  # cannot be read without waiting
    #: `available_bytes` of each, if none is cold and none failed.
    sizes: list[int]


class Part:
    """One partition that a fetch waits for, and how much of it there is to be read. Called when it
    moves (`PartitionLog.watch`)."""

    __slots__ = ("available_bytes", "log", "look", "wanted")

    def __init__(self, log: PartitionLog, look: Callable[[Part], None]) -> None:
        self.log = log
        self.look = look
        self.wanted: list[Wanted] = []  # a client may name a partition twice
        self.available_bytes = 0

    def __call__(self) -> None:
        self.look(self)


class Watched:
    """What a fetch waits for. With many partitions only the one that moved is looked at, until all
    together may suffice."""

    __slots__ = ("_available_bytes", "_body", "_handler", "_limit", "_parts", "count")

    def __init__(
        self,
        handler: FetchHandler,
        body: FetchRequest,
        context: FetchContext,
        look: Callable[[Part], None],
    ) -> None:
        self._handler = handler
        self._body = body
        self._limit = min(body.max_bytes, handler.fetch_bytes_max)
        self._available_bytes = 0
        self._parts: dict[PartitionLog, Part] = {}
        self.count = len(context.wanted)
        for wanted in context.wanted:
            try:
                log = handler.log_of(wanted)
            except KafkaError:
                continue
            part = self._parts.get(log)
            if part is None:
                part = self._parts[log] = Part(log, look)
                log.watch(part)
            part.wanted.append(wanted)
        handler.waiting_count += 1
        handler.waiting_partitions += self.count

    def measured(self, collected: Collected) -> None:
        """All of them were looked at, and none moved since."""
        self._available_bytes = collected.available_bytes
        for part in self._parts.values():
            part.available_bytes = 0
        for (wanted, _), size in zip(collected.data, collected.sizes, strict=True):
            if size:
                self._parts[self._handler.log_of(wanted)].available_bytes += size

    def may_suffice(self, part: Part) -> bool:
        """Whether all are to be looked at, now that this one moved."""
        if self.count <= PARTITIONS_FEW or len(part.wanted) > PARTITIONS_FEW:
            return True
        available = 0
        for wanted in part.wanted:
            self._handler.turn.spent_units += PARTITION_UNITS
            request = wanted.request
            size_max = min(request.partition_max_bytes, self._limit)
            try:
                got = part.log.read_nowait(request.fetch_offset, size_max)
            except KafkaError:
                return True
            if got is None:
                return True
            available += available_bytes_of(wanted, part.log, got)
        self._available_bytes += available - part.available_bytes
        part.available_bytes = available
        # What is cut by the limit of all counts for more there than here.
        return self._available_bytes >= min(self._body.min_bytes, self._limit)

    def end(self) -> None:
        for part in self._parts.values():
            part.log.unwatch(part)
        self._parts.clear()
        self._handler.waiting_count -= 1
        self._handler.waiting_partitions -= self.count


def available_bytes_of(wanted: Wanted, log: PartitionLog, got: ReadResult) -> int:
    if got.next_offset < log.high_watermark:  # there is more that did not fit
        return max(got.size_bytes, wanted.request.partition_max_bytes)
    return got.size_bytes


class Watching:
    """A task that waits until its partitions may suffice."""

    def __init__(self, handler: FetchHandler, body: FetchRequest, context: FetchContext) -> None:
        self.moved = trio.Event()
        self._is_measured = False
        self._watched = Watched(handler, body, context, self._look)

    def _look(self, part: Part) -> None:
        if not self._is_measured or self._watched.may_suffice(part):
            self.moved.set()

    def begin(self) -> None:
        """They are looked at; `moved` is set by any that moves meanwhile."""
        self._is_measured = False
        if self.moved.is_set():
            self.moved = trio.Event()

    def measured(self, collected: Collected) -> None:
        if not self.moved.is_set():
            self._watched.measured(collected)
            self._is_measured = True

    def end(self) -> None:
        self._watched.end()
