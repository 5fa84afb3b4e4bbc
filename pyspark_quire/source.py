"""`format("quire")` in the terms of Spark's Python data sources."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader

from pyspark_quire.columns import column_set
from pyspark_quire.options_core import for_tasks, parse_options
from pyspark_quire.partition import SplitPartition
from pyspark_quire.planning import batch_splits
from pyspark_quire.remembering import RememberingReader
from pyspark_quire.task import read_split

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from pyspark_quire.options_core import ReadOptions
    from pyspark_quire.stream import QuireStreamReader


class QuireDataSource(DataSource):  # type: ignore[misc]
    """Options: docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "quire"

    def schema(self) -> str:
        """DDL, the same for a batch and a stream."""
        headers = str(self.options.get("includeHeaders", "false")).lower() == "true"
        return column_set(self.options.get("columns"), include_headers=headers).ddl

    def reader(self, schema: StructType) -> QuireReader:
        options = parse_options(self.options)
        options.columns.check(schema)
        return QuireReader(options)

    def streamReader(self, schema: StructType) -> QuireStreamReader:
        options = parse_options(self.options, is_stream=True)
        options.columns.check(schema)
        if importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
            return RememberingReader(options)
        from pyspark_quire.admitted import AdmittedReader

        return AdmittedReader(options)


class QuireReader(DataSourceReader):  # type: ignore[misc]
    """Of a batch query. Takes no filters: what Spark pushes down is kept with the DataFrame up to
    4.3, and would be in force for the next query, too."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def __getstate__(self) -> dict[str, ReadOptions]:
        """Of what goes to the tasks."""
        return {"_options": for_tasks(self._options)}

    def partitions(self) -> list[SplitPartition]:
        return [SplitPartition(split) for split in batch_splits(self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SplitPartition):
            yield from read_split(partition.split, self._options)
