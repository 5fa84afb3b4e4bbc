"""A share partition's rules (KIP-932): who has which records, until when, and what is over.

Pure: the time is given, in milliseconds of a clock that never goes back, and what is to be stored
is returned. A record is AVAILABLE, ACQUIRED by one member for the time of a lock, ACKNOWLEDGED or
ARCHIVED. What is not in flight is below `start` (the SPSO), and over, or from `end` on, and was
never delivered.

- An acknowledgement is a `Change`: begun, stored by the caller, and then `commit`ted or `fail`ed as
  a whole. What is changing nobody else may change. If its lock ends meanwhile, storing decides:
  what was stored is acknowledged, and what was not is free again. So exactly one of them wins.
- A lock that ended and a member that left need nobody's consent: their records are free at once,
  and that it was written is only wished for.
- `start` never falls. Nor does a record come back that was acknowledged, once that is committed.
- At most `partition_max_record_locks` offsets lie between `start` and `end` by acquiring. What was
  loaded may be more, from a time with another limit; then only that is delivered again.

Known deviations from Kafka 4.3: the bound is exact, as a record batch is cut at it, where Kafka
takes the whole batch; offsets that the log does not have, control batches and batches of aborted
transactions are archived here rather than acquired for the client to report them as gaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.share.partition.acknowledgements import RELEASE, RENEW, STATE_OF
from broker.share.partition.runs import ACQUIRED, ARCHIVED, AVAILABLE, Change, Run, Runs
from broker.share.ports import StateBatch
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from broker.share.partition.acknowledgements import Acknowledgement
    from broker.share.ports import ShareGroupSettings

#: What a run costs that is cut out and changed, in microseconds.
RUN_UNITS = 3
#: Of locks that end together, so many are ended before others have the loop: some 2 ms.
ENDED_AT_ONCE = 1_000


class SharePartitionCore:
    def __init__(self, start: int, stored: Sequence[StateBatch] = ()) -> None:
        """Begins at `start`, with what is stored of the records from there on. What lies between
        stored batches was in somebody's hands: it is delivered again (KAFKA-18494)."""
        self.runs = Runs(start)
        for batch in sorted(stored):
            end = self.runs.end
            if batch.last_offset < end:
                continue
            if batch.first_offset > end:
                self.runs.append(Run(end, batch.first_offset - 1, AVAILABLE, 0))
            first = max(batch.first_offset, end)
            # 3 is what a later version is about to archive.
            state = ARCHIVED if batch.delivery_state == 3 else batch.delivery_state
            self.runs.append(Run(first, batch.last_offset, state, batch.delivery_count))
        self.runs.advance()
        #: Nothing is AVAILABLE if it is false.
        self.may_have_available = True

    @property
    def start(self) -> int:
        return self.runs.start

    @property
    def end(self) -> int:
        return self.runs.end

    # -- what to fetch ---------------------------------------------------------------------------

    def next_fetch_offset(self) -> int:
        """The first offset that could be delivered."""
        if self.may_have_available:
            for run in self.runs:
                if run.is_available:
                    return run.first
            self.may_have_available = False
        return self.runs.end

    def can_acquire(self, settings: ShareGroupSettings) -> bool:
        """Whether anything may be acquired that the log has."""
        runs = self.runs
        if runs.end - runs.start < settings.partition_max_record_locks:
            return True
        return self.next_fetch_offset() < runs.end

    def log_start_moved(self, offset: int) -> None:
        """Records before it are gone. What is acknowledged of them is ignored from now on."""
        self.runs.drop_below(offset)
        self.runs.advance()

    # -- acknowledgements ------------------------------------------------------------------------

    def acknowledge(
        self,
        member: str,
        acknowledgements: Iterable[Acknowledgement],
        now_ms: int,
        settings: ShareGroupSettings,
        undone: Callable[[int], None] = lambda deadline_ms: None,
    ) -> Generator[int, None, tuple[ErrorCode, Change]]:
        """Begins a change to all of them, in steps of some microseconds, between which anything may
        happen. With an error it has ended already. One without runs needs no storing.

        INVALID_RECORD_STATE: not acquired, another member's, or changing. INVALID_REQUEST: never
        delivered. With them, or if the caller closes it in between, all is as it was. `undone` is
        told the first deadline of what had been begun: `next_deadline_ms` left it out meanwhile."""
        change = Change()
        renewed: list[Run] = []
        is_begun = False
        try:
            for each in acknowledgements:
                for first, last, kind in each.pieces(self.start):
                    before = len(change.runs) + len(renewed)
                    error = self._begin(member, (first, last, kind), change, renewed, settings)
                    if error is not ErrorCode.NONE:
                        return error, Change()
                    yield RUN_UNITS * (1 + len(change.runs) + len(renewed) - before)
                yield 1  # of what is below the start there is nothing else
            is_begun = True
        finally:
            if not is_begun and change.runs:
                _undo(change, undone)
        for run in renewed:
            if run.state == ACQUIRED and run.member == member:
                run.deadline_ms = now_ms + settings.record_lock_duration_ms
        return ErrorCode.NONE, change

    def _begin(
        self,
        member: str,
        piece: tuple[int, int, int],
        change: Change,
        renewed: list[Run],
        settings: ShareGroupSettings,
    ) -> ErrorCode:
        first, last, kind = piece
        runs = self.runs
        first = max(first, runs.start)
        if first > last:
            return ErrorCode.NONE  # it is over
        if kind == RENEW and not settings.renew_acknowledge_enable:
            return ErrorCode.INVALID_RECORD_STATE
        if last >= runs.end:
            return ErrorCode.INVALID_REQUEST if len(runs) else ErrorCode.INVALID_RECORD_STATE
        number = runs.find(first)
        while first <= last:
            run = runs[number]
            if run.state != ACQUIRED or run.change is not None or run.member != member:
                return ErrorCode.INVALID_RECORD_STATE
            number = runs.carve(number, first, min(last, run.last))
            run = runs[number]
            if kind == RENEW:
                renewed.append(run)
            else:
                run.change = change
                run.target = STATE_OF[kind]
                if kind == RELEASE and run.count >= settings.delivery_count_limit:
                    run.target = ARCHIVED
                change.runs.append(run)
            first = run.last + 1
            number += 1
        return ErrorCode.NONE

    def commit(self, change: Change) -> None:
        """It is stored."""
        for run in change.runs:
            if run.change is change:
                run.become(run.target)
                if run.state == AVAILABLE:
                    self.may_have_available = True
        change.runs.clear()
        self.runs.advance()

    def fail(self, change: Change, now_ms: int, settings: ShareGroupSettings) -> list[StateBatch]:
        """It is not stored, or nobody knows. Gives what is to be written of locks that ended."""
        ended = []
        for run in change.runs:
            if run.change is change:
                run.change = None
                run.target = run.state
                if run.deadline_ms <= now_ms:
                    self._free(run, settings)
                    ended.append(run)
        change.runs.clear()
        self.runs.advance()
        return stored_form(ended)

    # -- locks -----------------------------------------------------------------------------------

    def expire(self, now_ms: int, settings: ShareGroupSettings) -> tuple[list[StateBatch], bool]:
        """Ends the locks whose time is over; gives what is to be written, and whether that were
        all, as it ends ENDED_AT_ONCE runs at most."""
        due = [
            run
            for run in self.runs
            if run.state == ACQUIRED and run.change is None and run.deadline_ms <= now_ms
        ]
        return self._end_locks(due, settings)

    def release(self, member: str, settings: ShareGroupSettings) -> tuple[list[StateBatch], bool]:
        """The member has left: what it holds counts as not delivered, and is free. As `expire`,
        which ends what is too much for it. It concerns nothing that the member is given later."""
        held = []
        for run in self.runs:
            if run.state == ACQUIRED and run.member == member:
                run.deadline_ms = 0  # if it is changing, and not stored, nobody is left to hold it
                if run.change is None:
                    run.member = ""
                    run.count -= 1
                    held.append(run)
        return self._end_locks(held, settings)

    def give_back(
        self, member: str, ranges: Iterable[tuple[int, int]], settings: ShareGroupSettings
    ) -> list[StateBatch]:
        """(first, last) of what was acquired just now, and is not sent after all. As `expire`."""
        held = []
        for first, last in ranges:
            if first < self.start or last >= self.end:
                continue  # the log's start moved
            number = self.runs.find(first)
            while number < len(self.runs) and self.runs[number].first <= last:
                run = self.runs[number]
                if run.state == ACQUIRED and run.member == member and run.change is None:
                    number = self.runs.carve(number, max(first, run.first), min(last, run.last))
                    held.append(self.runs[number])
                number += 1
        for run in held:
            run.count -= 1
            self._free(run, settings)
        self.runs.advance()
        return stored_form(held)

    def _end_locks(
        self, ended: list[Run], settings: ShareGroupSettings
    ) -> tuple[list[StateBatch], bool]:
        some = ended[:ENDED_AT_ONCE]
        for run in some:
            self._free(run, settings)
        batches = stored_form(some)
        self.runs.advance()
        return batches, len(some) == len(ended)

    def _free(self, run: Run, settings: ShareGroupSettings) -> None:
        if run.count >= settings.delivery_count_limit:
            run.become(ARCHIVED)
        else:
            run.become(AVAILABLE)
            self.may_have_available = True

    def is_any_held(self) -> bool:
        """Somebody was given something that he has not acknowledged yet."""
        return any(run.state == ACQUIRED for run in self.runs)

    def next_deadline_ms(self) -> int | None:
        """When the first lock ends."""
        deadlines = (
            run.deadline_ms for run in self.runs if run.state == ACQUIRED and run.change is None
        )
        return min(deadlines, default=None)

    # -- what is stored --------------------------------------------------------------------------

    def complete_count(self) -> int:
        """Of offsets from `start` on; with those that are being stored so."""
        return sum(run.size for run in self.runs if run.is_complete)


def _undo(change: Change, undone: Callable[[int], None]) -> None:
    """It was begun, and is not made."""
    runs = changing(change)
    for run in runs:
        run.change = None
        run.target = run.state
    change.runs.clear()
    if runs:
        undone(min(run.deadline_ms for run in runs))


def stored_form(runs: Iterable[Run]) -> list[StateBatch]:
    """As they are, or are about to be; neighbours in the same state are one."""
    found: list[StateBatch] = []
    for run in sorted(runs, key=lambda each: each.first):
        if found:
            first, last, state, count = found[-1]
            if last + 1 == run.first and (state, count) == (run.target, run.count):
                found[-1] = StateBatch(first, run.last, state, count)
                continue
        found.append(StateBatch(run.first, run.last, run.target, run.count))
    return found


def changing(change: Change) -> list[Run]:
    """What is left of it: not what was dropped."""
    return [run for run in change.runs if run.change is change]
