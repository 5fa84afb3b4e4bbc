"""Streaming with event time: packages and bytes per section and window of ten minutes, as files.

    python windows_job.py --source kafka --place 127.0.0.1:9092 --topic packages \
        --output /tmp/windows --checkpoint /tmp/windows-checkpoint
    python windows_job.py --source quire --place quire+unix:///data/metadata.sock ...

- A window is written once, when the watermark has passed its end: the newest record's time, less
  five minutes. Windows that are still open are state, in the checkpoint.
- A record that is late, of a window that was written, is dropped; the job tells how many.
- A package counts once in a window, however often it was sent: also that is state, which goes with
  the watermark.
- The sink is files. Spark's log of them beside the files names each batch's, so that whoever reads
  the folder with Spark sees each window once, whatever was killed.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import session
import sources
from pyspark.sql import functions as sql
from pyspark.sql.functions import col, count, window

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WINDOW, DELAY = "10 minutes", "5 minutes"


def windows(packages: DataFrame) -> DataFrame:
    """Closed ones, as rows of window_start, section, packages, bytes."""
    timely = packages.withWatermark("timestamp", DELAY)
    with_window = timely.withColumn("window", window("timestamp", WINDOW))
    once = with_window.dropDuplicates(["package", "window"])
    totals = once.groupBy("window", "section").agg(
        count("*").alias("packages"), sql.sum("size").alias("bytes")
    )
    return totals.select(col("window.start").alias("window_start"), "section", "packages", "bytes")


def run(
    spark: SparkSession,
    source: str,
    place: str,
    topic: str,
    output: str,
    checkpoint: str,
    records_per_batch: int = 10_000,
) -> dict[str, int]:
    """To the end of the topic as it is; batches, records, and records that came too late."""
    reader = sources.FORMS[source](spark.readStream, place)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    reader = reader.option("maxOffsetsPerTrigger", records_per_batch)
    query = (
        windows(session.packages_of(reader.load()))
        .writeStream.format("parquet")
        .option("path", output)
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress = {row["batchId"]: row for row in query.recentProgress}.values()
    return {
        "batches": len(progress),
        "records": sum(int(row["numInputRows"]) for row in progress),
        "late": sum(
            int(state["numRowsDroppedByWatermark"])
            for row in progress
            for state in row["stateOperators"]
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", choices=sorted(sources.FORMS), default="kafka")
    parser.add_argument("--place", default="127.0.0.1:9092", help="the servers, or the metadata")
    parser.add_argument("--topic", default="packages")
    parser.add_argument("--output", required=True, help="folder for the files")
    parser.add_argument("--checkpoint", required=True, help="folder that remembers what was done")
    arguments = parser.parse_args()
    spark = session.build("packages by window")
    print(
        run(
            spark,
            arguments.source,
            arguments.place,
            arguments.topic,
            arguments.output,
            arguments.checkpoint,
        )
    )
    spark.read.parquet(arguments.output).orderBy("window_start", "section").show(10, False)
    spark.stop()


if __name__ == "__main__":
    main()
