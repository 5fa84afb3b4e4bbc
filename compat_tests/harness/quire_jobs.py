"""Jobs of spark_worker.py on `format("quire")`, and on the stock source beside it."""

import re
from pathlib import Path

COLUMNS = ["topic", "partition", "offset", "key", "value", "timestamp", "timestampType"]


def reader_of(spark, form, bootstrap, metadata, options, is_stream=False):
    """The DataFrame of a query; `metadata` is of ours alone."""
    reader = (spark.readStream if is_stream else spark.read).format(form)
    if bootstrap is not None:
        reader = reader.option("kafka.bootstrap.servers", bootstrap)
    if form == "quire":
        reader = reader.option("metadata", metadata)
    for key, value in options.items():
        reader = reader.option(key, value)
    return reader.load()


def plain(value):
    if isinstance(value, bytearray | bytes):
        return bytes(value).hex()
    if hasattr(value, "timestamp"):
        return round(value.timestamp() * 1000)
    if isinstance(value, list):
        return [[each["key"], plain(each["value"])] for each in value]
    return value


def _rows(frame):
    names = [*COLUMNS, *(["headers"] if "headers" in frame.columns else [])]
    found = [[plain(each) for each in row] for row in frame.select(*names).collect()]
    return sorted(found, key=lambda row: row[:3])


def _outcome(work):
    """Rows, or the error's words."""
    try:
        return work(), None
    except Exception as error:
        return None, str(error)


def compare(spark, bootstrap, metadata, options, more=None, by_broker=True):
    """The same query of both sources, row by row. `more`: options of ours alone. Without
    `by_broker` ours asks no broker."""
    stock, stock_error = _outcome(
        lambda: _rows(reader_of(spark, "kafka", bootstrap, metadata, options))
    )
    broker = bootstrap if by_broker else None
    ours, error = _outcome(
        lambda: _rows(reader_of(spark, "quire", broker, metadata, {**options, **(more or {})}))
    )
    if ours is None or stock is None:
        return {"stock_error": stock_error, "error": error}
    different = [pair for pair in zip(stock, ours, strict=False) if pair[0] != pair[1]]
    return {
        "rows": len(ours),
        "stock_rows": len(stock),
        "equal": ours == stock,
        "first_difference": different[:1],
        "offsets": [row[1:3] for row in ours],
    }


def read_quire(spark, metadata, options, bootstrap=None):
    """Rows of ours alone, and in how many tasks."""
    frame = reader_of(spark, "quire", bootstrap, metadata, options)
    return {"rows": [[plain(each) for each in row] for row in frame.collect()],
            "columns": frame.columns, "tasks": frame.rdd.getNumPartitions()}  # fmt: skip


def explained(spark, form, metadata, options, bootstrap=None):
    """Whatever Spark tells of a query, beside its rows."""
    frame = reader_of(spark, form, bootstrap, metadata, options)
    execution = frame._jdf.queryExecution()
    frame.collect()
    plans = [execution.toString(), execution.simpleString()]
    plans += [execution.executedPlan().treeString(), execution.logical().toString()]
    return "\n".join([*plans, frame.rdd.toDebugString().decode()])


def limit_one(spark, metadata, options, bootstrap=None):
    return len(reader_of(spark, "quire", bootstrap, metadata, options).limit(1).collect())


def filtered_then_not(spark, metadata, options, pushdown, bootstrap=None):
    """Counts of one DataFrame: filtered, then whole."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", str(pushdown).lower())
    try:
        frame = reader_of(spark, "quire", bootstrap, metadata, options)
        return [frame.filter("offset < 3").count(), frame.count()]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def stream_to_parquet(spark, metadata, options, checkpoint, output, bootstrap=None):
    """All that is there now, then ends; how many batches had rows, and their sizes."""
    reader = spark.readStream.format("quire").option("metadata", metadata)
    if bootstrap is not None:
        reader = reader.option("kafka.bootstrap.servers", bootstrap)
    for key, value in options.items():
        reader = reader.option(key, value)
    rows = reader.load().select("topic", "partition", "offset")
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", checkpoint)
        .option("path", output)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    if query.isActive:
        query.stop()
        raise TimeoutError("the stream did not come to its end")
    if query.exception() is not None:
        raise RuntimeError(str(query.exception()))
    sizes = [progress["numInputRows"] for progress in query.recentProgress]
    return [size for size in sizes if size]


def _floor_source(ddl, batch, count):
    """A Python source of `count` rows that has one batch, and gives it again and again."""
    from pyspark.sql.datasource import DataSource, DataSourceReader

    class Floor(DataSource):
        @classmethod
        def name(cls):
            return "floor"

        def schema(self):
            return ddl

        def reader(self, schema):
            return Reader()

    class Reader(DataSourceReader):
        def read(self, partition):
            for _ in range(count // batch.num_rows):
                yield batch
            if rest := count % batch.num_rows:
                yield batch.slice(0, rest)

    return Floor


def scan(spark, form, bootstrap, metadata, options, columns, records, size):
    """Reads all of it and keeps nothing; for bench/spark_scan.py."""
    if form == "floor":
        import pyarrow as pa

        from pyspark_quire.columns import column_set

        wanted = column_set(columns, include_headers=False)
        one = {"key": b"k%09d" % 0, "value": bytes(size), "topic": "scanned", "partition": 0,
               "offset": 0, "timestamp": 0, "timestampType": 0}  # fmt: skip
        rows = [{name: one[name] for name in wanted.names}] * 25_000
        batch = pa.RecordBatch.from_pylist(rows, schema=wanted.arrow)
        spark.dataSource.register(_floor_source(wanted.ddl, batch, records))
        frame = spark.read.format("floor").load()
    else:
        more = {"columns": columns} if columns and form == "quire" else {}
        frame = reader_of(spark, form, bootstrap, metadata, {**options, **more})
        if columns:
            frame = frame.select(*columns.split(","))
    frame.write.format("noop").mode("overwrite").save()


def walk_through(spark, page, replaced, scratch):
    """Runs a page's blocks of Python, one after the other; the numbers that they come to."""
    text = Path(page).read_text()
    for old, new in replaced.items():
        assert old in text, old
        text = text.replace(old, new)
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    names = {"spark": spark, "scratch": scratch}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    records = {row["partition"]: row["records"] for row in names["rows"]}
    return {"blocks": len(blocks), "records": records, "spent": names["spent"]}


JOBS = {
    each.__name__: each
    for each in (
        *(
            compare,
            read_quire,
            explained,
            limit_one,
            filtered_then_not,
            stream_to_parquet,
            walk_through,
            scan,
        ),
    )
}
