"""What a fetch waits for: its partitions' ends, and when all together may suffice.

The end is the high watermark, or the last stable offset for read_committed. That moves with the
high watermark only: a marker counts when it is acknowledged.

Records are counted while a fetch waits, and read when it is answered. What its first look found is
remembered as numbers: no bytes are held. A partition that moves has only what is new in it read
over, for its size; of a fetch that is content with one byte not even that, as the high watermark
says that there is one. The count never falls short of what a look at all partitions finds, so that
no wake-up is lost.

Owner: the event loop's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

from broker.api import Steps, in_slices
from broker.handlers.fetch_look import available_bytes, is_committed
from broker.log.partition import State
from broker.log.read.partition_reader import ENTRY_UNITS
from wire.kafka.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.fetch_sessions import Wanted
    from broker.handlers.fetch_look import Collected
    from broker.log.partition import PartitionLog
    from broker.log.read.partition_reader import ReadResult
    from runtime.turn import Turn
    from wire.kafka.messages.fetch import FetchRequest

#: What one partition costs, in units of `Steps`.
PARTITION_UNITS = 12
#: The same, of one that is watched but not read, and of one that is not watched any more.
WATCH_UNITS = 6
UNWATCH_UNITS = 3
#: So often a request may name a partition, and have each counted by itself when that moves.
NAMED_FEW = 16


class _ColdError(Exception):
    """What is to be counted is not in memory."""


class _Count:
    """How much of one partition a fetch would be given."""

    __slots__ = ("available_bytes", "is_cut", "next_offset", "request", "size_bytes", "wanted")

    def __init__(self, wanted: Wanted, got: ReadResult, end_offset: int) -> None:
        self.wanted = wanted
        #: Another one of the session may have replaced the partition's by now.
        self.request = wanted.request
        self.size_bytes = 0
        self.take(got, end_offset)

    def take(self, got: ReadResult, end_offset: int) -> None:
        """What was read next."""
        self.size_bytes += got.size_bytes
        self.next_offset = got.next_offset
        self._bound(end_offset)

    def add(self, log: PartitionLog, size_max: int, *, committed: bool) -> int:
        """Reads over what is new; how many entries were read. KafkaError; _ColdError if it would
        have to wait."""
        end_offset = log.readable_end(committed=committed)
        left = size_max - self.size_bytes
        if left <= 0 and self.size_bytes:
            self._bound(end_offset)
            return 0
        got = log.reader.read_nowait(
            self.next_offset, left, at_least_one=not self.size_bytes, committed=committed
        )
        if got is None:
            raise _ColdError
        self.take(got, end_offset)
        return got.entries_read

    def _bound(self, end_offset: int) -> None:
        self.is_cut = self.next_offset < end_offset
        self.available_bytes = available_bytes(
            self.request, self.size_bytes, self.next_offset, end_offset
        )

    def is_doubtful(self, size_max: int) -> bool:
        """Whether a look at all partitions may find less of this one: a batch that is above the
        limit comes only if it is the first of all."""
        return self.size_bytes > size_max or (self.is_cut and not self.size_bytes)


class Part:
    """One partition that a fetch waits for. Called when it moves (`PartitionLog.watch`)."""

    __slots__ = ("counts", "log", "look", "offset_min")

    def __init__(self, log: PartitionLog, look: Callable[[Part], None], offset: int) -> None:
        self.log = log
        self.look = look
        #: A client may name a partition twice; empty for a fetch that any byte is enough for.
        self.counts: list[_Count] = []
        self.offset_min = offset

    def __call__(self) -> None:
        self.look(self)

    def has_news(self, *, committed: bool) -> bool:
        """Whether a read gives a batch or an error."""
        log = self.log
        return self.offset_min < log.readable_end(committed=committed) or (
            log.state is not State.ONLINE
        )


class Fetches(Protocol):
    """What fetches have in common that wait (broker/handlers/fetch.py)."""

    #: Is told what they cost.
    turn: Turn
    #: Above any client's limit.
    fetch_bytes_max: int
    waiting_count: int
    waiting_partitions: int

    def log_of(self, wanted: Wanted) -> PartitionLog:
        """KafkaError if it is not held here."""


class Watched:
    """What a fetch waits for, and how much of that is there."""

    __slots__ = (
        "_available_bytes", "_committed", "_count", "_handler", "_limit", "_look", "_min_bytes",
        "_parts", "is_certain",
    )  # fmt: skip

    def __init__(
        self, handler: Fetches, body: FetchRequest, count: int, look: Callable[[Part], None]
    ) -> None:
        """`count`: of its partitions. `look` is called with each that moves after `measured` came
        by it."""
        self._handler = handler
        self._committed = is_committed(body)
        self._min_bytes = body.min_bytes
        self._limit = min(body.max_bytes, handler.fetch_bytes_max)
        self._look = look
        self._parts: dict[PartitionLog, Part] = {}
        self._available_bytes = 0
        self._count = count
        #: A look at all of them finds as much as was counted, and not less.
        self.is_certain = True
        handler.waiting_count += 1
        handler.waiting_partitions += count

    def measured(self, collected: Collected) -> Steps[list[Part]]:
        """Watches all of them. They were just looked at, and none had an error; gives those that
        moved since, of which that is not counted yet. KafkaError if one is gone."""
        assert not self._parts
        self._available_bytes = collected.available_bytes
        self.is_certain = True
        log_of, parts, committed = self._handler.log_of, self._parts, self._committed
        moved = []
        for number, (wanted, data) in enumerate(collected.data):
            yield WATCH_UNITS
            log = log_of(wanted)
            part = parts.get(log)
            offset = wanted.request.fetch_offset
            if part is None:
                part = parts[log] = Part(log, self._look, offset)
                log.watch(part)
            elif offset < part.offset_min:
                part.offset_min = offset
            seen = data.last_stable_offset if committed else data.high_watermark
            if self._min_bytes > 1:
                count = _Count(wanted, collected.reads[number], seen)
                part.counts.append(count)
                if count.is_doubtful(self._size_max(count)):
                    self.is_certain = False
            if log.readable_end(committed=committed) != seen or log.state is not State.ONLINE:
                moved.append(part)
        return moved

    def _size_max(self, count: _Count) -> int:
        return min(count.request.partition_max_bytes, self._limit)

    def has(self, part: Part) -> bool:
        """Whether it is of the last look; what an earlier one's counted is counted in that."""
        return self._parts.get(part.log) is part

    def may_suffice(self, part: Part) -> bool:
        """Whether there may be enough, now that this one moved."""
        if self._min_bytes <= 1:
            return part.has_news(committed=self._committed)
        log = part.log
        if log.state is not State.ONLINE:
            return True
        if len(part.counts) > NAMED_FEW:
            self.is_certain = False
            return True
        turn = self._handler.turn
        for count in part.counts:
            if count.is_cut:
                continue
            turn.spent_units += PARTITION_UNITS  # also if it has to be looked at in a task
            size_max = self._size_max(count)
            before = count.available_bytes
            try:
                if (
                    count.request is not count.wanted.request
                    or count.request.fetch_offset < log.log_start_offset
                ):
                    raise _ColdError
                entries = count.add(log, size_max, committed=self._committed)
            except (KafkaError, _ColdError):
                self.is_certain = False
                return True
            turn.spent_units += entries * ENTRY_UNITS
            self._available_bytes += count.available_bytes - before
            if count.is_doubtful(size_max):
                self.is_certain = False
        # What is cut by the limit of all counts for more there than here.
        return self._available_bytes >= min(self._min_bytes, self._limit)

    def unwatch(self) -> Steps[None]:
        """Until `measured` none of them is heard of."""
        parts = self._parts
        while parts:
            log, part = parts.popitem()
            log.unwatch(part)
            yield UNWATCH_UNITS

    def end(self) -> Steps[None]:
        """Nothing is waited for any more."""
        self._handler.waiting_count -= 1
        self._handler.waiting_partitions -= self._count
        return self.unwatch()


class Watching:
    """A task that waits until its partitions may suffice."""

    def __init__(self, handler: Fetches, body: FetchRequest, count: int) -> None:
        self.moved = trio.Event()
        self._is_measured = False
        self._unseen: dict[Part, None] = {}
        self._watched = Watched(handler, body, count, self._look)

    def _look(self, part: Part) -> None:
        if not self._is_measured:
            self._unseen[part] = None
        elif not self.moved.is_set() and self._watched.may_suffice(part):
            self.moved.set()

    def begin(self) -> None:
        """They are looked at, and `measured` comes next, or `end`."""
        self._is_measured = False

    def measured(self, collected: Collected) -> Steps[None]:
        """`moved` is set once they may suffice, by what came since they were looked at, too."""
        self.moved = trio.Event()
        yield from self._watched.unwatch()
        unseen = self._unseen
        unseen.clear()
        try:
            for part in (yield from self._watched.measured(collected)):
                unseen[part] = None
        except KafkaError:
            self.moved.set()
            return
        while unseen:
            part, _ = unseen.popitem()
            yield PARTITION_UNITS
            if self._watched.may_suffice(part):
                self.moved.set()
                return
        self._is_measured = True

    async def end(self) -> None:
        """In slices; whoever is cancelled ends it, too."""
        self._is_measured = False
        with trio.CancelScope(shield=True):
            await in_slices(self._watched.end())
