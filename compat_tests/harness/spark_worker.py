"""Runs in the virtual environment that has pyspark: one session, many jobs, over a pipe.

Each line on standard input is {"job": NAME, "options": {...}}; each line on file descriptor 3 is
{"result": ...} or {"error": TEXT}. Jobs are the `run` of the modules of spark_examples/, and the
functions here. Spark's own output goes where it likes.
"""

import json
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "spark_examples"))

import batch_job
import quire_faults
import quire_jobs
import session
import streaming_job


def read_parquet(spark, path):
    return [row.asDict() for row in spark.read.parquet(path).collect()]


def read_topic(spark, bootstrap, options):
    """Records as lists: key, value, partition, offset, timestamp in ms, headers if asked for."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    for key, value in options.items():
        reader = reader.option(key, value)
    rows = reader.load()
    columns = ["key", "value", "partition", "offset", "timestamp"]
    columns += ["headers"] if "headers" in rows.columns else []
    return [
        [
            None if row["key"] is None else row["key"].decode(),
            None if row["value"] is None else row["value"].decode(),
            row["partition"],
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            [[h["key"], h["value"].decode()] for h in row["headers"] or []]
            if "headers" in columns
            else None,
        ]
        for row in rows.select(*columns).collect()
    ]


def partition_count(spark, bootstrap, options):
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    for key, value in options.items():
        reader = reader.option(key, value)
    return reader.load().rdd.getNumPartitions()


JOBS = {
    "batch_job": batch_job.run,
    "streaming_job": streaming_job.run,
    "read_parquet": read_parquet,
    "read_topic": read_topic,
    "partition_count": partition_count,
    **quire_jobs.JOBS,
    **quire_faults.JOBS,
}


def main():
    spark = session.build("compat", sys.argv[1])
    with os.fdopen(3, "w") as answers:
        print(json.dumps({"result": spark.version}), file=answers, flush=True)
        for line in sys.stdin:
            call = json.loads(line)
            try:
                answer = {"result": JOBS[call["job"]](spark, **call["options"])}
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
