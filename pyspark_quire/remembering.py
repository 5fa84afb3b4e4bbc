"""The stream's reader for Spark 4.0 and 4.1, which do not say where a batch starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark_quire.stream import QuireStreamReader
from pyspark_quire.stream_core import from_offset, to_offset

if TYPE_CHECKING:
    from pyspark_quire.partition import SplitPartition
    from pyspark_quire.stream_core import Offsets


class RememberingReader(QuireStreamReader):
    """After a restart it knows where the last batch ended if Spark tells that, by asking for its
    partitions; else the first batch is as large as the backlog."""

    _last: Offsets | None = None

    def initialOffset(self) -> dict[str, Any]:
        found = super().initialOffset()
        if self._last is None:
            self._last = from_offset(found)
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[SplitPartition]:
        if self._last is None:
            self._last = from_offset(end)
        return super().partitions(start, end)

    def latestOffset(self) -> dict[str, Any]:
        options = self._options
        if self._last is None:
            self._last = self._pace.look_now().ends
        else:
            rows_max, bytes_max = options.max_offsets_per_trigger, options.max_bytes_per_trigger
            self._last = self._pace.next_end(self._last, rows_max, bytes_max)
        return to_offset(self._last)
