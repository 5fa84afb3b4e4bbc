"""Streaming: a topic of packages -> running totals per maintainer, to another topic.

    python streaming_job.py --bootstrap 127.0.0.1:9092 --topic packages \
        --totals-topic maintainers --checkpoint /tmp/maintainers

It takes what is there in small batches, then ends; started again with the same checkpoint folder,
it goes on where it was, whether it ended by itself or was stopped in the middle.
"""

from __future__ import annotations

import argparse
import time

import session
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.functions import col, count, struct, to_json


def run(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    totals_topic: str,
    checkpoint: str,
    records_per_batch: int = 10_000,
    stop_after_batches: int | None = None,
) -> dict[str, int]:
    """Runs to the end of the topic, or stops in the middle; batches and records of this run.

    The totals topic gets, after each batch, the new totals of every maintainer whom the batch
    changed: the last value of a key is its total.
    """
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    source = source.option("subscribe", topic).option("startingOffsets", "earliest")
    source = source.option("maxOffsetsPerTrigger", records_per_batch)
    packages = session.packages_of(source.load())
    running = packages.groupBy("maintainer").agg(
        count("*").alias("packages"),
        sql.sum("installed_size").alias("installed_size"),
    )
    changed = running.select(
        col("maintainer").alias("key"), to_json(struct(*running.columns)).alias("value")
    )
    query = (
        changed.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", totals_topic)
        .option("checkpointLocation", checkpoint)
        .outputMode("update")
        .trigger(availableNow=True)
        .start()
    )
    while query.isActive:
        done = query.lastProgress
        batches = len({progress["batchId"] for progress in query.recentProgress})
        if stop_after_batches is not None and done and batches >= stop_after_batches:
            query.stop()
        time.sleep(0.05)
    query.awaitTermination()  # raises what ended the query, if anything did
    progress = {row["batchId"]: int(row["numInputRows"]) for row in query.recentProgress}
    return {"batches": len(progress), "records": sum(progress.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="packages")
    parser.add_argument("--totals-topic", default="maintainers")
    parser.add_argument("--checkpoint", required=True, help="folder that remembers what was done")
    arguments = parser.parse_args()
    spark = session.build("packages by maintainer")
    print(
        run(
            spark,
            arguments.bootstrap,
            arguments.topic,
            arguments.totals_topic,
            arguments.checkpoint,
        )
    )
    spark.stop()


if __name__ == "__main__":
    main()
