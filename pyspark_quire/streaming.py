"""A stream's looks at the cluster, without Spark's classes: where it may go on to, and the splits
between two offsets. Each is one connection, bounded in time.

`splits_between` depends on the two offsets, and on nothing that was remembered: Spark asks again
after a restart. The chain may be another by then, but only replaces ranges by equal ones or gives
up its oldest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ledger.errors import NoSuchLedgerError
from pyspark_quire.choose_core import DataLossError, StalePlanError, checked_range
from pyspark_quire.connection import Where, run_within
from pyspark_quire.partitions import read_topics
from pyspark_quire.plan_core import parts_of
from pyspark_quire.planning import (
    PLANS_MAX,
    OffsetRange,
    borders,
    choose,
    look_at,
    look_until,
    plan,
    planned,
)
from pyspark_quire.stream_core import Offsets, part_key, split_key

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from pyspark_quire.connection import Connection
    from pyspark_quire.options_core import ReadOptions
    from pyspark_quire.planning import Look
    from pyspark_quire.splits import Split

T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class Ends:
    """`starts`: where partitions begin that the query has not met yet."""

    ends: Offsets
    starts: Offsets
    #: Of an offset that is not read yet, on average.
    bytes_per_row: float = 1.0


class StreamLooks:
    """Of one query. Keeps no connection."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._where = Where(options.metadata, options.bookkeeper)
        self._seconds = options.metadata_timeout_ms / 1000

    def initial(self) -> Offsets:
        """Where a new query starts. Errors as of `planning.borders`; UnreachableError."""
        return self._asked(self._initial)

    def _asked(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Anew if a ledger vanished meanwhile: the cleaner or retention took it between the look
        at the chain and the look at the ledger."""
        for left in reversed(range(PLANS_MAX)):
            try:
                return run_within(self._where, self._seconds, work)
            except (StalePlanError, NoSuchLedgerError):
                if not left:
                    raise
        raise AssertionError("the last look returns or raises")

    async def _initial(self, connection: Connection) -> Offsets:
        options = self._options
        looks = await look_at(connection, options, await choose(connection, options))
        starts = await borders(connection, options, looks, is_start=True)
        return {_key(look): starts[look.place] for look in looks}

    def ends(self, start: Offsets) -> Ends:
        """DataLossError if a partition of `start` is gone and that is to fail."""
        return self._asked(partial(self._ends, start))

    async def _ends(self, start: Offsets, connection: Connection) -> Ends:
        options = self._options
        looks = await look_at(connection, options, await choose(connection, options))
        found = {_key(look): look for look in looks}
        self.check_gone(start, found)
        starts = {key: look.view.log_start_offset for key, look in found.items()}
        waiting = [
            part
            for key, look in found.items()
            for part in parts_of(
                look.view.chain.ledgers, start.get(key, starts[key]), look.end_offset
            )
        ]
        rows = sum(part.count for part in waiting)
        size = sum(part.size_bytes for part in waiting)
        # An end never goes back: what bookies know of an open ledger may, when one is away.
        ends = {key: max(look.end_offset, start.get(key, 0)) for key, look in found.items()}
        return Ends(ends, starts, size / max(rows, 1))

    def check_gone(self, start: Offsets, found: Collection[str]) -> None:
        """DataLossError if a partition of `start` is not among `found`, and that is to fail."""
        gone = sorted(start.keys() - set(found))
        if gone and self._options.fails_on_data_loss:
            raise DataLossError(
                f"{', '.join(gone)} (topic id, partition): not there any more, or not chosen. A"
                " topic that was deleted and made again is another one. Set failOnDataLoss to false"
                " to go on with what is there"
            )

    def splits_between(self, start: Offsets, end: Offsets) -> list[Split]:
        """DataLossError, LedgerError, UnreachableError."""
        return planned(self._options, partial(self._splits, start, end))

    async def _splits(self, start: Offsets, end: Offsets, connection: Connection) -> list[Split]:
        options = self._options
        topics = {str(topic.id): topic for topic in (await read_topics(connection.store)).values()}
        # Spark 4.0 and 4.1 do not say where a batch starts when its end is looked for.
        wanted, lost = {}, sorted(start.keys() - end.keys())
        for key, last in end.items():
            topic_id, partition = split_key(key)
            if start.get(key) == last:
                continue
            if topic_id in topics:
                wanted[topics[topic_id], partition] = last
            else:
                lost.append(key)
        if lost and options.fails_on_data_loss:
            raise DataLossError(f"{', '.join(lost)} (topic id, partition): not there any more")
        ranges = []
        for look in await look_until(connection, options, wanted):
            key, first = _key(look), look.view.log_start_offset
            begin, last = checked_range(
                look.view.name,
                start.get(key, first),
                end[key],
                first=first,
                last=_last(look, end[key]),
                fails_on_data_loss=options.fails_on_data_loss,
            )
            ranges.append(OffsetRange(look, begin, last))
        return await plan(connection, options, ranges)


def _last(look: Look, end: int) -> int:
    """Where the log ends, for a batch that ends at `end`: of a ledger that is written bookies may
    know less by now than when the batch's end was found, of one that is closed they do not."""
    reader = look.view.reader
    is_open = reader is not None and not reader.metadata.is_closed
    return max(look.end_offset, end) if is_open else look.end_offset


def _key(look: Look) -> str:
    return part_key(look.view.topic.id, look.view.partition)
