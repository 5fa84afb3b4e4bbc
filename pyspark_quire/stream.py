"""`spark.readStream.format("quire")`: the stream's side of Spark's Python data sources.

Spark 4.2 has admission control and `Trigger.AvailableNow` for Python sources: `AdmittedReader`.
Before it `latestOffset` has no arguments, and `RememberingReader` bounds a batch by what it
remembers: after a restart it remembers nothing, so the first batch is as large as the backlog.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader

from pyspark_quire.connection import UnreachableError
from pyspark_quire.partition import SplitPartition
from pyspark_quire.stream_core import (
    from_offset,
    limited,
    rows_for_bytes,
    to_offset,
    waits,
)
from pyspark_quire.streaming import StreamLooks
from pyspark_quire.task import read_split
from runtime.logs import kv

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from pyspark_quire.options_core import ReadOptions
    from pyspark_quire.stream_core import Offsets
    from pyspark_quire.streaming import Ends

logger = logging.getLogger(__name__)

#: A trigger without an interval asks all the time; the cluster is asked once in so long.
LOOK_SECONDS = 1.0


class QuireStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """Lives in the driver's Python worker as long as the query, and is copied to the tasks'."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._looks = StreamLooks(options)
        #: Where the last batch ended, as far as is known; and its time.
        self._last: Offsets | None = None
        self._last_batch_at = time.monotonic()
        self._found: Ends | None = None
        self._found_at = -LOOK_SECONDS

    def initialOffset(self) -> dict[str, Any]:
        self._last = self._looks.initial()
        return to_offset(self._last)

    def bounded(
        self,
        start: Offsets,
        rows_max: int | None,
        bytes_max: int | None,
        pinned: Offsets | None = None,
    ) -> Offsets:
        """Where the batch that starts at `start` ends: there, if there is too little, or if the
        cluster does not answer in time. A query outlives that."""
        try:
            found = self._ends(start)
        except UnreachableError as error:
            logger.warning("no_new_offsets", kv(reason=error))
            return start
        begin = {key: start.get(key, found.starts[key]) for key in found.ends}
        end = found.ends
        if pinned is not None:
            end = {key: max(min(end[key], pinned.get(key, begin[key])), begin[key]) for key in end}
        elif self._is_too_little(begin, end):
            return start
        end = {key: max(end[key], begin[key]) for key in end}
        if bytes_max is not None:
            end = limited(begin, end, rows_for_bytes(bytes_max, found.bytes_per_row))
        if rows_max is not None:
            end = limited(begin, end, rows_max)
        if end != start:
            self._last_batch_at = time.monotonic()
        return end

    def _is_too_little(self, start: Offsets, end: Offsets) -> bool:
        """minOffsetsPerTrigger, until maxTriggerDelay is over."""
        rows_min = self._options.min_offsets_per_trigger
        if rows_min is None:
            return False
        waited_ms = (time.monotonic() - self._last_batch_at) * 1000
        return waits(start, end, rows_min) and waited_ms < self._options.max_trigger_delay_ms

    def _ends(self, start: Offsets) -> Ends:
        if self._found is None or time.monotonic() - self._found_at >= LOOK_SECONDS:
            return self.look_now(start)
        return self._found

    def look_now(self, start: Offsets | None = None) -> Ends:
        """DataLossError, UnreachableError."""
        self._found = self._looks.ends(start or {})
        self._found_at = time.monotonic()
        return self._found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[SplitPartition]:
        splits = self._looks.splits_between(from_offset(start), from_offset(end))
        return [SplitPartition(split) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SplitPartition):
            yield from read_split(partition.split, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark's checkpoint has the offsets."""

    def stop(self) -> None:
        """Nothing is held."""


class RememberingReader(QuireStreamReader):
    """For Spark 4.0 and 4.1, which do not tell where a batch starts."""

    def latestOffset(self) -> dict[str, Any]:
        options = self._options
        if self._last is None:
            # After a restart; Spark's log of offsets says later where it was.
            self._last = self._ends({}).ends
        else:
            self._last = self.bounded(
                self._last, options.max_offsets_per_trigger, options.max_bytes_per_trigger
            )
        return to_offset(self._last)


def stream_reader(options: ReadOptions) -> QuireStreamReader:
    """The class that this version of Spark takes."""
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:
        return RememberingReader(options)
    assert SupportsTriggerAvailableNow is not None
    from pyspark_quire.admitted import AdmittedReader

    return AdmittedReader(options)
