"""Batch: a topic of packages -> totals per section, as Parquet files and as a topic.

    python batch_job.py --bootstrap 127.0.0.1:9092 --topic packages --output /tmp/sections \
        --summary-topic sections
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import session
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.functions import array, col, count, lit, struct, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping


def read(spark: SparkSession, bootstrap: str, topic: str, options: Mapping[str, Any]) -> DataFrame:
    """A topic's records as they are now. `options` are those of Spark's Kafka source."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribe", topic).option("includeHeaders", "true")
    for key, value in options.items():
        reader = reader.option(key, value)
    return reader.load()


def totals(packages: DataFrame) -> DataFrame:
    """Per section: packages, maintainers, KiB installed, and the largest package."""
    return packages.groupBy("section").agg(
        count("*").alias("packages"),
        sql.countDistinct("maintainer").alias("maintainers"),
        sql.sum("installed_size").alias("installed_size"),
        sql.max_by("package", struct("installed_size", "package")).alias("largest"),
    )


def run(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    output: str,
    summary_topic: str,
    options: Mapping[str, Any] | None = None,
) -> dict[str, int]:
    """Reads, adds up, writes both outputs; how many records went in and sections came out."""
    rows = read(spark, bootstrap, topic, options or {}).cache()
    sections = totals(session.packages_of(rows)).cache()
    sections.write.mode("overwrite").parquet(output)
    header = struct(lit("made-by").alias("key"), lit(b"batch_job").cast("binary").alias("value"))
    summary = sections.select(
        col("section").alias("key"),
        to_json(struct(*sections.columns)).alias("value"),
        array(header).alias("headers"),
    )
    writer = summary.write.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    writer.option("topic", summary_topic).option("includeHeaders", "true").save()
    result = {"records": rows.count(), "sections": sections.count()}
    sections.unpersist()
    rows.unpersist()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="packages")
    parser.add_argument("--output", required=True, help="folder for the Parquet files")
    parser.add_argument("--summary-topic", default="sections")
    parser.add_argument("--since-ms", type=int, help="only records of this time or later")
    arguments = parser.parse_args()
    options = {}
    if arguments.since_ms is not None:
        options["startingTimestamp"] = str(arguments.since_ms)
    spark = session.build("packages by section")
    print(
        run(
            spark,
            arguments.bootstrap,
            arguments.topic,
            arguments.output,
            arguments.summary_topic,
            options,
        )
    )
    spark.read.parquet(arguments.output).orderBy(col("installed_size").desc()).show(10, False)
    spark.stop()


if __name__ == "__main__":
    main()
