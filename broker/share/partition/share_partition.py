"""One partition as one share group sees it, while this broker leads the partition.

    LOADING --read from the persister--> ACTIVE --leader moved, fenced, refused--> GONE

The rules are in share_partition_core.py. This is what they need: the log is read, what changed is
stored, the timer of the first lock is armed, and whoever waits is told that something changed; told
at the end of the turn, when the change is over, and never from inside of it (KAFKA-17848). Those
who wait are functions: none of them has a task.

GONE is for good: locks die with it, changes that have no answer are NOT_LEADER_OR_FOLLOWER, and
whoever asks again gets another one, that begins with what is stored.

Owner of all state: the event loop's thread.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from broker.log.partition import State as LogState
from broker.share.partition.acquiring import Acquired, Taker, acquire
from broker.share.partition.log_batches import LogBatches
from broker.share.partition.share_partition_core import SharePartitionCore
from broker.share.partition.storing import FENCED, Storing, as_told
from runtime.logs import kv
from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from broker.log.partition import PartitionLog
    from broker.log.read.partition_reader import ReadResult
    from broker.log.transactions.aborted_index import AbortedTransaction
    from broker.share.partition.acknowledgements import Acknowledgement
    from broker.share.partition.runs import Change
    from broker.share.partition.storing import Done
    from broker.share.ports import (
        Persister,
        ShareGroups,
        ShareGroupSettings,
        ShareKey,
        ShareState,
        StateBatch,
    )
    from runtime.env import Env
    from runtime.timers import Timer, Timers

logger = logging.getLogger(__name__)

#: So many reads in a row may find nothing to give (control batches, say) before others have a turn.
READS_AT_ONCE = 4
#: So many are told in any case of those who wait, however much was done in the turn.
TOLD_AT_LEAST = 4


class State(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    GONE = "gone"


class Taken(NamedTuple):
    """What a member was given: the batches have all of it, and more."""

    acquired: Sequence[Acquired]
    parts: Sequence[memoryview]

    @property
    def records(self) -> int:
        return sum(last - first + 1 for first, last, _ in self.acquired)

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.parts))


NOTHING = Taken((), ())


@dataclass(slots=True, frozen=True)
class Surroundings:
    """What all share partitions of a broker have together."""

    persister: Persister
    groups: ShareGroups
    env: Env
    timers: Timers
    #: Runs a function as a task.
    start: Callable[..., None]

    def now_ms(self) -> int:
        return int(self.env.clock.monotonic() * 1000)


class SharePartition:
    def __init__(self, key: ShareKey, log: PartitionLog, around: Surroundings) -> None:
        self.key = key
        self.log = log
        self.state = State.LOADING
        #: Why it is GONE.
        self.error = ErrorCode.NONE
        self.core = SharePartitionCore(0)
        self._around = around
        self._storing: Storing | None = None
        #: Somebody waits for the disk, and will be given what comes.
        self._is_reading = False
        self._timer: Timer | None = None
        self._timer_ms = 0
        self._watchers: OrderedDict[Callable[[], None], None] = OrderedDict()
        self._untold = 0
        self._is_telling = False
        log.watch(self._log_moved)

    @property
    def settings(self) -> ShareGroupSettings:
        return self._around.groups.settings(self.key.group_id)

    # -- life ------------------------------------------------------------------------------------

    def begin(self, stored: ShareState, start: int) -> None:
        """With what is stored; `start` is where it begins if that does not say so."""
        if self.state is not State.LOADING:
            return
        assert stored.error is ErrorCode.NONE
        start = max(stored.start_offset, start, self.log.log_start_offset)
        self.core = SharePartitionCore(start, stored.batches)
        epochs = stored.state_epoch, self.log.leader_epoch
        self._storing = Storing(self.key, epochs, self.core, self._around.persister, self._written)
        self.state = State.ACTIVE
        self.tell()

    def end(self, error: ErrorCode) -> None:
        if self.state is State.GONE:
            return
        logger.info(
            "share_partition_gone",
            kv(group=self.key.group_id, partition=self.log.name, error=error.name),
        )
        self.state = State.GONE
        self.error = error
        self.log.unwatch(self._log_moved)
        if self._timer is not None:
            self._timer.cancel()
        waiting = self._storing.stop() if self._storing is not None else []
        self.core = SharePartitionCore(0)
        self.tell()
        for _, done in waiting:
            done(error)

    def _log_moved(self) -> None:
        if self.log.state is LogState.OFFLINE:
            self.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif self._watchers:
            self.tell()

    # -- who waits -------------------------------------------------------------------------------

    def watch(self, function: Callable[[], None]) -> None:
        """`function()` is called at the end of each turn in which something changed here."""
        self._watchers[function] = None

    def unwatch(self, function: Callable[[], None]) -> None:
        self._watchers.pop(function, None)

    def tell(self) -> None:
        if self._watchers:
            self._untold = len(self._watchers)
            if not self._is_telling:
                self._is_telling = True
                self._around.env.turn.defer(self._tell_some)

    def _tell_some(self) -> None:
        """Those first who were told longest ago; all of them, but not all in one turn."""
        watchers, turn = self._watchers, self._around.env.turn
        told = 0
        while self._untold > 0 and watchers:
            if told >= TOLD_AT_LEAST and turn.is_spent:
                turn.later(self._tell_some)
                return
            told += 1
            self._untold -= 1
            turn.spent_units += 2
            function = next(iter(watchers))
            watchers.move_to_end(function)
            function()
        self._is_telling = False

    # -- taking ----------------------------------------------------------------------------------

    def has_some(self) -> bool:
        """Whether there may be something to take, or to be told."""
        if self.state is not State.ACTIVE:
            return self.state is State.GONE
        if self._is_reading or not self.core.can_acquire(self.settings):
            return False
        end = self.log.readable_end(committed=self.settings.reads_committed)
        return self.core.next_fetch_offset() < end

    def readable_bytes(self, size_max: int) -> int:
        """About how many a `take` would give; all of `size_max` if that cannot be said at once."""
        if not self.has_some() or self.state is not State.ACTIVE:
            return 0
        committed = self.settings.reads_committed
        offset = max(self.core.next_fetch_offset(), self.log.log_start_offset)
        got = self.log.reader.read_nowait(offset, size_max, committed=committed)
        return size_max if got is None else got.size_bytes

    def take(self, taker: Taker, size_max: int) -> Taken | None:
        """Acquires what can be had without waiting; None: `read` has to. KafkaError."""
        self.check_active()
        settings = self.settings
        for _ in range(READS_AT_ONCE):
            offset = self._offset_to_read(settings)
            if offset is None:
                return NOTHING
            committed = settings.reads_committed
            got = self.log.reader.read_nowait(offset, size_max, committed=committed)
            aborted: Sequence[AbortedTransaction] | None = ()
            if got is not None and committed:
                aborted = self.log.transactions.aborted.find_nowait(offset, got.next_offset)
            if got is None or aborted is None:
                return None
            if not got.parts:
                return NOTHING
            taken = self._acquire(taker, offset, got, aborted)
            if taken.acquired or self.core.next_fetch_offset() == offset:
                return taken
        self._around.env.turn.later(self.tell)
        return NOTHING

    async def read(self, taker: Taker, size_max: int, is_wanted: Callable[[], bool]) -> Taken:
        """As `take`, from disk or network. Nobody else takes anything meanwhile. `is_wanted` is
        asked before anything is acquired. KafkaError."""
        self.check_active()
        settings = self.settings
        offset = self._offset_to_read(settings)
        if offset is None or self._is_reading:
            return NOTHING
        self._is_reading = True
        try:
            if settings.reads_committed:
                got, aborted = await self.log.reader.read_committed(offset, size_max)
            else:
                got, aborted = await self.log.reader.read(offset, size_max), []
        except KafkaError as error:
            # The log's start moved past it meanwhile; the group's start moves, too.
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and offset < self.log.log_start_offset:
                return NOTHING
            raise
        finally:
            self._is_reading = False
            self.tell()
        self.check_active()
        if not got.parts or not is_wanted():
            return NOTHING
        taker = taker._replace(now_ms=self._around.now_ms())
        return self._acquire(taker, offset, got, aborted)

    def check_active(self) -> None:
        """KafkaError if it is GONE. It is not called while it is LOADING."""
        if self.state is State.GONE:
            raise KafkaError(self.error)
        assert self.state is State.ACTIVE

    def _offset_to_read(self, settings: ShareGroupSettings) -> int | None:
        core, log = self.core, self.log
        if log.log_start_offset > core.start:
            core.log_start_moved(log.log_start_offset)
        if self._is_reading or not core.can_acquire(settings):
            return None
        offset = core.next_fetch_offset()
        return offset if offset < log.readable_end(committed=settings.reads_committed) else None

    def _acquire(
        self, taker: Taker, offset: int, got: ReadResult, aborted: Sequence[AbortedTransaction]
    ) -> Taken:
        read = LogBatches(got.parts, aborted)
        settings = self.settings
        self._around.env.turn.spent_units += len(read.batches)
        acquired = acquire(self.core, taker, offset, read.batches, settings)
        if not acquired:
            return NOTHING
        self._arm(taker.now_ms + settings.record_lock_duration_ms)
        return Taken(acquired, read.cut(got.parts, acquired[0].first, acquired[-1].last))

    def give_back(self, member: str, taken: Taken) -> None:
        """It is not sent."""
        if self.state is State.ACTIVE:
            ranges = [(first, last) for first, last, _ in taken.acquired]
            self._ended(self.core.give_back(member, ranges, self.settings))

    # -- acknowledging ---------------------------------------------------------------------------

    def acknowledge(
        self, member: str, acknowledgements: Sequence[Acknowledgement], done: Done
    ) -> Generator[int, None, None]:
        """In steps. `done` is told, possibly before this ends, and not before it is stored; if this
        is closed between two steps, never."""
        settings = self.settings
        now_ms = self._around.now_ms()
        error, change = yield from self.core.acknowledge(
            member, acknowledgements, now_ms, settings, self._undone
        )
        if self.state is not State.ACTIVE:
            error = self.error
        if error is not ErrorCode.NONE or not change.runs:
            done(error)
            return
        assert self._storing is not None
        self._storing.put(change, done)
        self._store()

    def release(self, member: str) -> None:
        """The member has left: what it holds is free."""
        if self.state is State.ACTIVE:
            batches, is_all = self.core.release(member, self.settings)
            self._ended(batches)
            if not is_all:
                self._around.env.turn.later(self._expire)

    def _store(self) -> None:
        assert self._storing is not None
        if self._storing.is_wanted:
            self._storing.is_writing = True
            self._around.start(self._storing.run)

    def _written(self, changes: list[tuple[Change, Done]], error: ErrorCode) -> None:
        """The state changes first; then whoever asked for it is told."""
        if error in FENCED:
            self.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            for _, done in changes:
                done(self.error)
            return
        assert self._storing is not None
        settings, now_ms = self.settings, self._around.now_ms()
        for change, _ in changes:
            if error is ErrorCode.NONE:
                self.core.commit(change)
            else:
                self._storing.put_ended(self.core.fail(change, now_ms, settings))
        deadline_ms = self.core.next_deadline_ms()
        if deadline_ms is not None:
            self._arm(deadline_ms)
        self.tell()
        for _, done in changes:
            done(as_told(error))

    # -- locks -----------------------------------------------------------------------------------

    def _arm(self, deadline_ms: int) -> None:
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_ms = max(deadline_ms - self._around.now_ms(), 0)
        self._timer = self._around.timers.after(delay_ms / 1000, self._expire)

    def _undone(self, deadline_ms: int) -> None:
        if self.state is State.ACTIVE:
            self._arm(deadline_ms)

    def _expire(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self.state is not State.ACTIVE:
            return
        batches, is_all = self.core.expire(self._around.now_ms(), self.settings)
        self._ended(batches)
        if not is_all:
            self._around.env.turn.later(self._expire)
            return
        deadline_ms = self.core.next_deadline_ms()
        if deadline_ms is not None:
            self._arm(max(deadline_ms, self._around.now_ms() + 1))

    def _ended(self, batches: list[StateBatch]) -> None:
        if batches:
            assert self._storing is not None
            self._storing.put_ended(batches)
            self._store()
            self.tell()
