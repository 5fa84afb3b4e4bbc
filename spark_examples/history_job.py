"""Batch over a topic's whole history: what is archived from its files, the rest from its ledgers.

    python history_job.py --metadata quire+unix:///data/metadata.sock --archive /mnt/archive \
        --topic packages

Prints, for each partition, how many records there are, and whether any offset is there twice.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import session
from pyspark.sql import functions as sql
from pyspark.sql.functions import count, countDistinct

import pyspark_quire
from spark_jobs.history import history

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def totals(rows: DataFrame) -> DataFrame:
    return rows.groupBy("partition").agg(
        count("*").alias("records"),
        (count("*") - countDistinct("offset")).alias("twice"),
        sql.min("timestamp").alias("first"),
        sql.max("timestamp").alias("last"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--metadata", required=True)
    parser.add_argument("--archive", required=True)
    parser.add_argument("--topic", default="packages")
    arguments = parser.parse_args()
    spark = session.build("history")
    pyspark_quire.register(spark)
    rows = history(spark, arguments.topic, archive=arguments.archive, metadata=arguments.metadata)
    totals(rows).orderBy("partition").show(100, False)
    spark.stop()


if __name__ == "__main__":
    main()
