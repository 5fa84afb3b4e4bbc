"""Acquiring: which of the records that were read a member is given. Pure.

The batches of a read are walked in order. What of them is in flight is given if it is available;
what nobody had yet, as far as there are locks. In mode batch_optimized a record batch is taken
whole even if it has more records than are wanted; in record_limit (KIP-1206) it is cut.

A record that nobody can process is not to take its neighbours with it. From half of the limit of
deliveries on fewer are given together with each attempt, those alone; the last attempt is made of
one record alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.share.partition.runs import ACQUIRED, ARCHIVED, Run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.share.partition.share_partition_core import SharePartitionCore
    from broker.share.ports import ShareGroupSettings


#: Of runs in flight that are given or archived one by one, so many in one walk: some 1 ms.
RUNS_MAX = 500


class LogBatch(NamedTuple):
    """A record batch. `is_hidden`: nobody is given it (a control batch, one of an aborted
    transaction, one without records)."""

    first: int
    last: int
    is_hidden: bool = False


class Taker(NamedTuple):
    """Who wants records, and how."""

    member: str
    now_ms: int
    records_max: int
    #: Acquired ranges end where a record batch ends, once they have so many.
    batch_size: int
    is_record_limit: bool = False


class Acquired(NamedTuple):
    first: int
    last: int
    #: This one included.
    deliveries: int


def acquire(
    core: SharePartitionCore,
    taker: Taker,
    fetch_offset: int,
    batches: Iterable[LogBatch],
    settings: ShareGroupSettings,
) -> list[Acquired]:
    """What the taker is given of what was read from `fetch_offset` on. `batches` are all that the
    log has from there up to the last of them; no more is looked at than is needed."""
    if taker.records_max <= 0:
        return []
    walk = _Walk(core, taker, settings)
    at = max(fetch_offset, core.start)
    for batch in batches:
        if walk.is_full():
            break
        if batch.first > at:
            walk.missing(at, batch.first - 1)
        if walk.is_full():
            break
        walk.take(batch)
        at = max(at, batch.last + 1)
    walk.flush()
    core.runs.advance()
    return walk.found


class _Walk:
    def __init__(
        self, core: SharePartitionCore, taker: Taker, settings: ShareGroupSettings
    ) -> None:
        self._core = core
        self._runs = core.runs
        self._taker = taker
        self._settings = settings
        limit = settings.delivery_count_limit
        #: Deliveries from which on a run is given alone, and in parts.
        self._throttle = max(2, (limit + 1) // 2)
        self._deadline_ms = taker.now_ms + settings.record_lock_duration_ms
        self.found: list[Acquired] = []
        self.total = 0
        self.is_over = False
        self._runs_left = RUNS_MAX
        #: Once something is given alone: how much more of it.
        self._alone_left = -1
        self._open: Acquired | None = None
        self._new: Run | None = None

    def is_full(self) -> bool:
        return self.is_over or self.total >= self._taker.records_max

    def missing(self, first: int, last: int) -> None:
        """The log has nothing there: what could be delivered of it never will be."""
        runs = self._runs
        first = max(first, runs.start)
        if first > last:
            return
        if first < runs.end:
            self._hide(first, min(last, runs.end - 1))
        if last < runs.end:
            return
        runs.advance()
        if not len(runs):
            runs.begin_at(last + 1)
        elif last - runs.start < self._settings.partition_max_record_locks:
            self._append(Run(runs.end, last, ARCHIVED, 0))
        else:
            self.is_over = True

    def take(self, batch: LogBatch) -> None:
        runs = self._runs
        first = max(batch.first, runs.start)
        if first > batch.last:
            return
        if first < runs.end:
            last = min(batch.last, runs.end - 1)
            if batch.is_hidden:
                self._hide(first, last)
            else:
                self._take_known(first, last)
        if not self.is_over and self._alone_left < 0 and batch.last >= runs.end:
            self._take_new(batch)
        if self._alone_left >= 0:
            self.is_over = True
        opened = self._open
        if opened is None or self._taker.is_record_limit:
            return
        if opened.last - opened.first + 1 >= self._taker.batch_size:
            self.flush()

    def _hide(self, first: int, last: int) -> None:
        runs = self._runs
        number = runs.find(first)
        while number < len(runs) and runs[number].first <= last:
            run = runs[number]
            if run.is_available:
                number = runs.carve(number, max(first, run.first), min(last, run.last))
                runs[number].become(ARCHIVED)
                self._runs_left -= 1
            number += 1

    def _take_known(self, first: int, last: int) -> None:
        runs, taker = self._runs, self._taker
        number = runs.find(first)
        while number < len(runs) and runs[number].first <= last:
            run = runs[number]
            if not run.is_available:
                number += 1
                continue
            from_offset = max(first, run.first)
            size = min(last, run.last) - from_offset + 1
            if run.count >= self._settings.delivery_count_limit:  # it was lowered
                number = runs.carve(number, from_offset, from_offset + size - 1)
                runs[number].become(ARCHIVED)
                number += 1
                continue
            if taker.is_record_limit:
                size = min(size, taker.records_max - self.total)
            size = self._given_alone(run, size)
            if size <= 0:
                self.is_over = True
                return
            number = runs.carve(number, from_offset, from_offset + size - 1)
            self._give(runs[number])
            number += 1
            self._runs_left -= 1
            if self._alone_left == 0 or self._runs_left <= 0:
                self.is_over = True
                return

    def _given_alone(self, run: Run, size: int) -> int:
        """How much is given of so many available offsets of the run; 0: nothing any more."""
        limit = self._settings.delivery_count_limit
        if run.count >= self._throttle and limit > 2:
            if self.total and (self._alone_left < 0 or run.count == limit - 1):
                return 0
            if self._alone_left < 0:
                halvings = run.count - self._throttle + 1
                is_last = run.count == limit - 1
                self._alone_left = 1 if is_last else max(1, run.span >> halvings)
        if self._alone_left >= 0:
            size = min(size, self._alone_left)
            self._alone_left -= size
        return size

    def _give(self, run: Run) -> None:
        run.state = run.target = ACQUIRED
        run.count += 1
        run.member = self._taker.member
        run.deadline_ms = self._deadline_ms
        self._new = None
        self._note(run.first, run.last, run.count)

    def _take_new(self, batch: LogBatch) -> None:
        runs, taker = self._runs, self._taker
        first = runs.end
        room = self._settings.partition_max_record_locks - (first - runs.start)
        if batch.is_hidden and len(runs) == 0:
            runs.begin_at(batch.last + 1)
            return
        if taker.is_record_limit and not batch.is_hidden:
            room = min(room, taker.records_max - self.total)
        last = min(batch.last, first + room - 1)
        self.is_over = last < batch.last
        if last < first:
            return
        if batch.is_hidden:
            self._append(Run(first, last, ARCHIVED, 0))
            return
        self._note(first, last, 1)
        if self._new is not None:
            runs.grow(self._new, last)
            return
        run = Run(first, last, ACQUIRED, 1)
        run.member, run.deadline_ms = taker.member, self._deadline_ms
        runs.append(run)
        self._new = run

    def _append(self, run: Run) -> None:
        self._runs.append(run)
        self._new = None

    def _note(self, first: int, last: int, count: int) -> None:
        self.total += last - first + 1
        opened = self._open
        if opened is not None and opened.last + 1 == first and opened.deliveries == count:
            self._open = Acquired(opened.first, last, count)
            return
        self.flush()
        self._open = Acquired(first, last, count)

    def flush(self) -> None:
        """What comes next begins another range."""
        if self._open is not None:
            self.found.append(self._open)
            self._open = None
        self._new = None
