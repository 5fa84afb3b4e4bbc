"""How far a stream's next micro-batch goes: what the cluster has, bounded by what the query asks
for. Needs no pyspark: the classes of Spark's API are in stream.py and admitted.py."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from metadata.store import MetadataUnavailableError, MetadataUnknownOutcomeError
from pyspark_quire.connection import UnreachableError
from pyspark_quire.stream_core import are_fewer, limited, rows_for_bytes
from runtime.logs import kv

if TYPE_CHECKING:
    from pyspark_quire.options_core import ReadOptions
    from pyspark_quire.stream_core import Offsets
    from pyspark_quire.streaming import Ends, StreamLooks

logger = logging.getLogger(__name__)

#: A trigger without an interval asks all the time; the cluster is asked once in so long.
LOOK_SECONDS = 1.0


class Pace:
    """Of one query. Picklable: it goes to the tasks with the reader, and does nothing there."""

    def __init__(self, looks: StreamLooks, options: ReadOptions) -> None:
        self._looks = looks
        self._options = options
        self._last_batch_at = time.monotonic()
        self._found: Ends | None = None
        self._found_at = 0.0

    @property
    def known_ends(self) -> Offsets | None:
        """As of the last look."""
        return None if self._found is None else self._found.ends

    def next_end(
        self,
        start: Offsets,
        rows_max: int | None,
        bytes_max: int | None,
        pinned: Ends | None = None,
        *,
        waits: bool = True,
    ) -> Offsets:
        """Where the batch that starts at `start` ends: there, if there is too little (unless it is
        not to wait), or if the cluster does not answer in time: a query outlives that. `pinned`: an
        earlier look, beyond which nothing is wanted; nobody is asked again then, since an end that
        is the start would say that all was read. DataLossError."""
        try:
            found = self._ends(start) if pinned is None else pinned
        except (UnreachableError, MetadataUnavailableError, MetadataUnknownOutcomeError) as error:
            logger.warning("no_new_offsets", kv(reason=error))
            return start
        self._looks.check_gone(start, found.ends)  # the look may be of another start
        begin = {key: start.get(key, found.starts[key]) for key in found.ends}
        end = found.ends
        if pinned is None and waits and self._is_too_little(begin, end):
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
        return are_fewer(start, end, rows_min) and waited_ms < self._options.max_trigger_delay_ms

    def _ends(self, start: Offsets) -> Ends:
        if self._found is None or time.monotonic() - self._found_at >= LOOK_SECONDS:
            return self.look_now(start)
        return self._found

    def look_now(self, start: Offsets | None = None) -> Ends:
        """DataLossError, UnreachableError."""
        self._found = self._looks.ends(start or {})
        self._found_at = time.monotonic()
        return self._found
