"""Streaming into a database: the newest version of each package, by `foreachBatch`.

    python upsert_job.py --source quire --place quire+unix:///data/metadata.sock \
        --topic packages --database /tmp/packages.db --checkpoint /tmp/upsert-checkpoint

A batch that was interrupted is run again, with the same number. So the database has the number of
the last one that it holds, changed in the same transaction as the rows: a batch that is there
already is passed by. And of a package's records the one at the largest offset counts, so that what
comes twice changes nothing. The database here is SQLite, which every Python has; the driver writes
to it, and a batch's rows pass through its memory.
"""

from __future__ import annotations

import argparse
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import session
import sources

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLES = """
CREATE TABLE IF NOT EXISTS package (
    name TEXT PRIMARY KEY, version TEXT, section TEXT, partition INTEGER, position INTEGER);
CREATE TABLE IF NOT EXISTS done (id INTEGER PRIMARY KEY CHECK (id = 0), batch INTEGER);
"""
#: Keys are on one partition each, so offsets of the same key can be compared.
UPSERT = """
INSERT INTO package VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET version = excluded.version, section = excluded.section,
    partition = excluded.partition, position = excluded.position
WHERE excluded.position > package.position
"""


def apply(database: str, batch: DataFrame, number: int) -> bool:
    """Whether it was not there yet."""
    rows = batch.select("package", "version", "section", "partition", "offset").toLocalIterator()
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("BEGIN IMMEDIATE")
        done = connection.execute("SELECT batch FROM done").fetchone()
        if done is not None and done[0] >= number:
            return False
        connection.executemany(UPSERT, (tuple(row) for row in rows))
        connection.execute("INSERT OR REPLACE INTO done VALUES (0, ?)", (number,))
    return True


def run(
    spark: SparkSession,
    source: str,
    place: str,
    topic: str,
    database: str,
    checkpoint: str,
    records_per_batch: int = 10_000,
) -> dict[str, int]:
    """To the end of the topic as it is; batches that were new, and packages in the database."""
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(TABLES)
    reader = sources.FORMS[source](spark.readStream, place)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    reader = reader.option("maxOffsetsPerTrigger", records_per_batch)
    applied = []
    query = (
        session.packages_of(reader.load())
        .writeStream.foreachBatch(
            lambda batch, number: applied.append(apply(database, batch, number))
        )
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    with closing(sqlite3.connect(database)) as connection:
        [packages] = connection.execute("SELECT count(*) FROM package").fetchone()
    return {"batches": sum(applied), "packages": packages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", choices=sorted(sources.FORMS), default="kafka")
    parser.add_argument("--place", default="127.0.0.1:9092", help="the servers, or the metadata")
    parser.add_argument("--topic", default="packages")
    parser.add_argument("--database", required=True)
    parser.add_argument("--checkpoint", required=True, help="folder that remembers what was done")
    arguments = parser.parse_args()
    spark = session.build("packages, the newest of each")
    print(
        run(
            spark,
            arguments.source,
            arguments.place,
            arguments.topic,
            arguments.database,
            arguments.checkpoint,
        )
    )
    spark.stop()


if __name__ == "__main__":
    main()
