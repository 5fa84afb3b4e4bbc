"""Ledgers as a Spark data source: `spark.read.format("quire")`, `spark.readStream.format("quire")`.

The driver plans from metadata, tasks read entries from bookies in parallel and give Arrow batches;
brokers are not asked for records. docs/spark.md is the page for users; the extra `spark` has what
it needs. Spark finds `DefaultSource` by this package's name, if it is on the Python path; else
`register(spark)` tells it.

    options_core, columns       what a query may say, and which columns it gets
    connection, partitions      metadata and bookies; topics, chains, ends of logs
    choose_core, plan_core, planning, splits    which offsets, which tasks
    reading, decode, varints    a ledger's entries -> record batches -> Arrow
    transactions, stable_core   read_committed
    leader_ends, leader_client, leader_login    what a broker knows better, and how it is asked
    task, worker_logs           one split, in a Spark worker; what is logged there
    source, stream              the classes of Spark's API: the only modules that need pyspark
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class of pyspark's
    """The data source when it is asked for: all else is of use without pyspark, too."""
    if name == "DefaultSource":
        from pyspark_quire.source import QuireDataSource

        return QuireDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register(spark: SparkSession) -> None:
    """Makes `format("quire")` known to a SparkSession."""
    from pyspark_quire.source import QuireDataSource

    spark.dataSource.register(QuireDataSource)
