"""A Spark driver that streams a topic into files, and is killed at a point:

    quire_killed.py POINT BOOTSTRAP METADATA TOPIC HOME

SIGKILL to the JVM and to this process, from wherever the point is, in a batch that is not the
first: the stream's Python worker or a task's. With no POINT it goes on to the end, and writes the
offsets that the files have to HOME/rows.
"""

import json
import os
import signal
import sys
from pathlib import Path

import session

from pyspark_quire.admitted import AdmittedReader
from pyspark_quire.source import QuireDataSource

POINT, BOOTSTRAP, METADATA, TOPIC, HOME = sys.argv[1:]


class KilledReader(AdmittedReader):
    """`victims`: whom to kill. Copied to the tasks with the rest."""

    def __init__(self, options, point, victims):
        super().__init__(options)
        self._point = point
        self._victims = victims

    def __getstate__(self):
        return {**super().__getstate__(), "_point": self._point, "_victims": self._victims}

    def _at(self, point):
        if point == self._point:
            for victim in self._victims:
                os.kill(victim, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    def latestOffset(self, start, limit):
        end = super().latestOffset(start, limit)
        if end != start and any(start["parts"].values()):
            self._at("before an offset is logged")
        return end

    def partitions(self, start, end):
        if start != end and any(start["parts"].values()):
            self._at("before its batch is planned")
        return super().partitions(start, end)

    def read(self, partition):
        is_first = partition.split.start == 0
        for batch in super().read(partition):
            yield batch.slice(0, 1)
            if batch.num_rows > 1 and not is_first:
                self._at("in the middle of a task")
            yield batch.slice(1)
        if not is_first:
            self._at("when a task has given all")

    def commit(self, end):
        self._at("when the source is told of the batch before")


def main():
    spark = session.build("killed", HOME)
    gateway = spark.sparkContext._gateway
    victims = (gateway.proc.pid, os.getpid())

    class Source(QuireDataSource):
        def streamReader(self, schema):
            reader = super().streamReader(schema)
            return KilledReader(reader._options, POINT, victims)

    spark.dataSource.register(Source)
    rows = (
        spark.readStream.format("quire")
        .option("metadata", METADATA)
        .option("kafka.bootstrap.servers", BOOTSTRAP)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 50)
        .load()
        .select("offset")
    )
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", f"{HOME}/checkpoint")
        .option("path", f"{HOME}/out")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = sorted(row["offset"] for row in spark.read.parquet(f"{HOME}/out").collect())
    Path(HOME, "rows").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
