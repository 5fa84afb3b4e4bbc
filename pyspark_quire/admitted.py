"""The stream's reader for Spark 4.2 and newer: admission control and `Trigger.AvailableNow`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pyspark_quire.stream import QuireStreamReader
from pyspark_quire.stream_core import from_offset, to_offset

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

    from pyspark_quire.options_core import ReadOptions
    from pyspark_quire.streaming import Ends


class AdmittedReader(QuireStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Spark says what a batch may have, and where it starts."""

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        #: With Trigger.AvailableNow: where the query ends, whatever is written meanwhile.
        self._pinned: Ends | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._pinned = self._pace.look_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = from_offset(start)
        options = self._options
        rows_max, bytes_max = options.max_offsets_per_trigger, options.max_bytes_per_trigger
        takes_all = isinstance(limit, ReadAllAvailable)
        if takes_all:
            rows_max = bytes_max = None
        elif isinstance(limit, ReadMaxRows):
            rows_max = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            bytes_max = limit.max_bytes
        end = self._pace.next_end(begin, rows_max, bytes_max, self._pinned, waits=not takes_all)
        return to_offset(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        ends = self._pace.known_ends
        return None if ends is None else to_offset(ends)
