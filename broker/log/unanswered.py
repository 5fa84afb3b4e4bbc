"""Tells of batches that wait for their answer for too long, and of what they wait for.

A partition answers in order, and a connection too, so that one batch that nobody answers holds up
all that its client sends: the client waits until its own request time-out and says nothing, and
neither would we. Nothing is measured per batch: now and then the oldest batch of each partition is
looked at, and if it is the one of the last look it has been waiting since then at least.

Owner: the event loop's thread.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from runtime.logs import kv
from runtime.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from broker.log.append.queue import Append
    from broker.log.partition import PartitionLog

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
#: A batch that waited for so long is told of, and again when it has waited for twice as long.
TOLD_SECONDS = 10.0
#: A look at one is about a microsecond.
PARTITIONS_PER_TURN = 500
#: Partitions that a look tells of by name: where a cluster stands still, thousands wait.
LINES_MAX = 20


class UnansweredWatch:
    """`logs()`: all partitions that are held at the call; others may come while they are looked
    at."""

    def __init__(self, logs: Callable[[], Iterable[PartitionLog]]) -> None:
        self._logs = logs
        #: Of partitions with something unanswered: the oldest batch, when it was seen first to be
        #: that, and after how long it is told of next.
        self._seen: dict[PartitionLog, tuple[Append, float, float]] = {}

    async def run(self) -> None:
        """Never returns."""
        while True:
            await trio.sleep(LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        now = trio.current_time()
        before, self._seen = self._seen, {}
        slices = Slices(PARTITIONS_PER_TURN)
        told = 0
        for log in self._logs():
            if slices.due():
                await slices.turn()
            waiting = log.oldest_unanswered()
            if waiting is None:
                continue
            append, what = waiting
            seen = before.get(log)
            if seen is None or seen[0] is not append:
                seen = append, now, TOLD_SECONDS
            since, told_after = seen[1:]
            if now - since >= told_after:
                told_after *= 2
                told += 1
                if told <= LINES_MAX:
                    logger.warning(
                        "batches_unanswered",
                        kv(partition=log.name, seconds=f"{now - since:.0f}", waits_for=what),
                    )
            self._seen[log] = append, since, told_after
        if told > LINES_MAX:
            logger.warning("batches_unanswered", kv(more_partitions=told - LINES_MAX))
