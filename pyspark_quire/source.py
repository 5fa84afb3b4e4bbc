"""`format("quire")` in the terms of Spark's Python data sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader

from pyspark_quire.connection import Where, run_within
from pyspark_quire.options_core import parse_options
from pyspark_quire.partition import SplitPartition
from pyspark_quire.planning import StalePlanError, plan_batch
from pyspark_quire.task import read_split

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from pyspark_quire.options_core import ReadOptions
    from pyspark_quire.stream import QuireStreamReader

#: A plan is made again when a ledger vanished under it.
PLANS_MAX = 3


class QuireDataSource(DataSource):  # type: ignore[misc]
    """Options: docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "quire"

    def schema(self) -> str:
        """DDL. The options of a batch and of a stream have the same columns."""
        from pyspark_quire.columns import column_set

        headers = str(self.options.get("includeHeaders", "false")).lower() == "true"
        return column_set(self.options.get("columns"), include_headers=headers).ddl

    def reader(self, schema: StructType) -> QuireReader:
        return QuireReader(parse_options(self.options))

    def streamReader(self, schema: StructType) -> QuireStreamReader:
        from pyspark_quire.stream import stream_reader

        return stream_reader(parse_options(self.options, is_stream=True))


class QuireReader(DataSourceReader):  # type: ignore[misc]
    """Of a batch query. Takes no filters: what Spark pushes down is kept with the DataFrame up to
    4.3, and would be in force for the next query, too."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[SplitPartition]:
        options = self._options
        where = Where(options.metadata, options.bookkeeper)
        for left in reversed(range(PLANS_MAX)):
            try:
                splits = run_within(
                    where,
                    options.metadata_timeout_ms / 1000,
                    lambda connection: plan_batch(connection, options),
                )
                break
            except StalePlanError:
                if not left:
                    raise
        return [SplitPartition(split) for split in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SplitPartition):
            yield from read_split(partition.split, self._options)
