"""Jobs of spark_worker.py about `format("quire")` when something else happens meanwhile: each call
is one step, and what lasts over several is kept here."""

import os
import threading
from pathlib import Path

from quire_jobs import plain, reader_of

#: By name: what a `plan` came to, and the streams that run.
_PLANNED: dict = {}
_QUERIES: dict = {}
_SLOW: dict = {}


def plan(spark, name, metadata, options, bootstrap=None):
    """Plans a query and reads nothing: how many tasks it will have."""
    _PLANNED[name] = reader_of(spark, "quire", bootstrap, metadata, options).rdd
    return _PLANNED[name].getNumPartitions()


def read_planned(spark, name):
    """Runs the tasks of that plan."""
    return sorted([plain(each) for each in row] for row in _PLANNED[name].collect())


def start_stream(spark, name, metadata, options, bootstrap=None, seconds=0.2):
    """A query that goes on, into a table in memory."""
    source = reader_of(spark, "quire", bootstrap, metadata, options, is_stream=True)
    _QUERIES[name] = (
        source.select("partition", "offset")
        .writeStream.format("memory")
        .queryName(name)
        .trigger(processingTime=f"{seconds} seconds")
        .start()
    )


def stream_rows(spark, name):
    """What is in the table by now; and the error, if the query ended."""
    rows = [[row["partition"], row["offset"]] for row in spark.table(name).collect()]
    error = _QUERIES[name].exception()
    return {"rows": sorted(rows), "active": _QUERIES[name].isActive, "error": error and str(error)}


def stop_stream(spark, name):
    _QUERIES.pop(name).stop()


def start_slow(spark, name, metadata, options, bootstrap=None):
    """A job whose tasks take one row and then nothing more for a long time."""

    def take_one(rows):
        next(rows)
        threading.Event().wait(600)
        return iter(())

    frame = reader_of(spark, "quire", bootstrap, metadata, options)

    def run():
        spark.sparkContext.setJobGroup(name, name, interruptOnCancel=True)
        try:
            frame.rdd.mapPartitions(take_one).count()
        except Exception as error:
            _SLOW[name].append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    _SLOW[name] = [thread]
    thread.start()


def slow_tasks(spark, name):
    """How many tasks of it run."""
    tracker = spark.sparkContext.statusTracker()
    stages = [
        tracker.getStageInfo(stage)
        for job in tracker.getJobIdsForGroup(name)
        for stage in tracker.getJobInfo(job).stageIds
    ]
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def cancel_slow(spark, name):
    """Its error."""
    spark.sparkContext.cancelJobGroup(name)
    _SLOW[name][0].join(60)
    return _SLOW.pop(name)[1]


def python_workers(spark):
    """Of Spark's Python workers that run: {pid: [threads, descriptors]}. They are the children of
    the daemon, which is a child of the JVM, which is ours."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
        except OSError:
            continue
        parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    mine = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    found = {}
    for pid in mine - {os.getpid()}:
        try:
            words = (Path("/proc") / str(pid) / "cmdline").read_text()
            if "pyspark" in words and "java" not in words.split("\0")[0]:
                folder = Path("/proc") / str(pid)
                found[pid] = [len(os.listdir(folder / "task")), len(os.listdir(folder / "fd"))]
        except OSError:
            continue
    return found


JOBS = {
    each.__name__: each
    for each in (
        *(plan, read_planned, start_stream, stream_rows, stop_stream),
        *(start_slow, slow_tasks, cancel_slow, python_workers),
    )
}
