"""`spark.readStream.format("quire")` in the terms of Spark's Python data sources: what all versions
have. Where a batch ends: remembering.py for Spark 4.0 and 4.1, admitted.py for newer ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader

from pyspark_quire.options_core import for_tasks
from pyspark_quire.pace import Pace
from pyspark_quire.partition import SplitPartition
from pyspark_quire.stream_core import from_offset, to_offset
from pyspark_quire.streaming import StreamLooks
from pyspark_quire.task import read_split

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from pyspark_quire.options_core import ReadOptions
    from pyspark_quire.stream_core import Offsets


class QuireStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """Lives in the driver's Python worker as long as the query; what the tasks get reads only."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._looks = StreamLooks(options)
        self._pace = Pace(self._looks, options)
        #: Decided once: Spark asks again when the first batch runs, and more may be there by then.
        self._initial: Offsets | None = None

    def __getstate__(self) -> dict[str, ReadOptions]:
        """Of what goes to the tasks, which only read."""
        return {"_options": for_tasks(self._options)}

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:
            self._initial = self._looks.initial()
        return to_offset(self._initial)

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
