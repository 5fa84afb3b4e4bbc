"""What is to be stored of a share partition: one write at a time, of all that came meanwhile.

So writes reach the share coordinator in the order of their start offsets, and a slow coordinator
gets larger writes rather than more of them. What waits is bounded by what is in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.share.partition.share_partition_core import changing, stored_form
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.share.partition.runs import Change
    from broker.share.partition.share_partition_core import SharePartitionCore
    from broker.share.ports import Persister, ShareKey, StateBatch

    #: Told how storing a change ended.
    Done = Callable[[ErrorCode], None]

#: Of which whoever asks may hope that they pass.
RETRIABLE = frozenset((
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
))  # fmt: skip
#: Another leader has taken the partition over, or the group began it anew: what is known is old.
FENCED = frozenset((ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH))
_AS_THEY_ARE = frozenset((
    ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
))  # fmt: skip


def as_told(error: ErrorCode) -> ErrorCode:
    """What a client is told when the persister says this."""
    if error in _AS_THEY_ARE:
        return error
    if error in RETRIABLE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if error in FENCED else ErrorCode.UNKNOWN_SERVER_ERROR


class Storing:
    """Of one share partition while it is loaded. Owner: the event loop's thread."""

    def __init__(
        self,
        key: ShareKey,
        epochs: tuple[int, int],
        core: SharePartitionCore,
        persister: Persister,
        written: Callable[[list[tuple[Change, Done]], ErrorCode], None],
    ) -> None:
        """`epochs`: the state's and the leader's. `written` is called after each write, with the
        changes that were part of it."""
        self._key = key
        self._epochs = epochs
        self._core = core
        self._persister = persister
        self._written = written
        self._changes: list[tuple[Change, Done]] = []
        #: What is free already, be it written or not.
        self._ended: list[StateBatch] = []
        self._under_way: list[tuple[Change, Done]] = []
        self._is_stopped = False
        self.is_writing = False

    @property
    def is_wanted(self) -> bool:
        """Whether somebody has to `run` it."""
        return bool(self._changes or self._ended) and not self.is_writing

    def put(self, change: Change, done: Done) -> None:
        """`done` is called exactly once, after the change was committed or failed."""
        self._changes.append((change, done))

    def put_ended(self, batches: list[StateBatch]) -> None:
        self._ended += batches

    def stop(self) -> list[tuple[Change, Done]]:
        """All that has no answer yet; `written` is not called any more."""
        self._is_stopped = True
        waiting = self._under_way + self._changes
        self._under_way, self._changes, self._ended = [], [], []
        return waiting

    def _has_stopped(self) -> bool:
        return self._is_stopped

    async def run(self) -> None:
        """Writes until nothing is left."""
        self.is_writing = True
        try:
            while (self._changes or self._ended) and not self._has_stopped():
                self._under_way, self._changes = self._changes, []
                ended, self._ended = self._ended, []
                runs = [run for change, _ in self._under_way for run in changing(change)]
                core, (state_epoch, leader_epoch) = self._core, self._epochs
                error = ErrorCode.NONE
                if runs or ended:
                    error = await self._persister.write(
                        self._key,
                        state_epoch,
                        leader_epoch,
                        core.start,
                        core.complete_count(),
                        ended + stored_form(runs),
                    )
                if self._has_stopped():
                    return
                done, self._under_way = self._under_way, []
                self._written(done, error)
        finally:
            self.is_writing = False
