"""How many requests a bookie has under way at most, and how many it had."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from runtime.config import ConfigType, at_least
from runtime.settings import setting
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from runtime.turn import Turn

#: Entries of batch reads that one turn of the loop gives: some 2 ms.
BATCHED_PER_TURN = 1000
INT = ConfigType.INT


@dataclass(slots=True)
class ProcessorSettings:
    """How many requests are under way, or wait, at most."""

    adds_in_progress_max: int = setting(
        "maxAddsInProgressLimit", INT, "0", at_least(0), doc="0: no limit."
    )
    reads_in_progress_max: int = setting(
        "maxReadsInProgressLimit", INT, "0", at_least(0), doc="0: no limit."
    )
    pending_reads_max: int = setting(
        "maxPendingReadRequestsPerThread",
        INT,
        "10000",
        at_least(1),
        doc="Reads that wait for the disk; then ETOOMANYREQUESTS.",
    )
    long_polls_max: int = 10_000
    batch_read_size_max_bytes: int = setting(
        "maxBatchReadSize",
        ConfigType.LONG,
        str(5 << 20),
        at_least(1),
        doc="Of one answer.",
        unit="bytes",
    )

    @property
    def waiting_reads_max(self) -> int:
        """What is read at once never waits: both limit the reads that wait for the disk."""
        return min(self.pending_reads_max, self.reads_in_progress_max or self.pending_reads_max)


@dataclass(slots=True)
class RequestCounts:
    """Requests by outcome, for metrics; and the adds that have none yet."""

    adds_in_progress: int = 0
    adds: int = 0
    adds_failed: int = 0
    reads: int = 0
    reads_failed: int = 0
    fences: int = 0
    long_polls: int = 0
    refused: int = 0


class BatchPace:
    """A burst of batch reads is not one turn of the loop: each is for a thousand entries. Those
    beyond BATCHED_PER_TURN wait for turns of their own."""

    __slots__ = ("_entries", "_one", "_turn")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._entries = 0
        self._one = trio.Lock()

    def is_free(self) -> bool:
        """Whether one may be answered in this turn."""
        return self._entries < BATCHED_PER_TURN

    def answered(self, entry_count: int) -> None:
        if not self._entries:
            self._turn.defer(self._begin)
        self._entries += 1 + entry_count

    def _begin(self) -> None:
        self._entries = 0

    async def wait(self) -> None:
        """For its turn, behind those that wait already."""
        async with self._one:
            await trio.lowlevel.checkpoint()
