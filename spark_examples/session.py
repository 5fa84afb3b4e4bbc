"""A SparkSession that can read and write Kafka topics, small enough for a laptop.

Spark's Kafka connector is no part of PySpark. `compat_tests/peers.sh jars` fetches it; elsewhere
set SPARK_KAFKA_JARS to the folder that holds the connector and its three jars.
"""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

PACKAGE = StructType(
    [
        StructField("package", StringType()),
        StructField("version", StringType()),
        StructField("architecture", StringType()),
        StructField("maintainer", StringType()),
        StructField("section", StringType()),
        StructField("priority", StringType()),
        StructField("installed_size", LongType()),
        StructField("size", LongType()),
        StructField("depends", ArrayType(StringType())),
    ]
)


def connector_jars() -> list[str]:
    """Paths of the connector's jars; raises FileNotFoundError if there are none."""
    explicit = os.environ.get("SPARK_KAFKA_JARS")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(os.environ.get("QUIRE_CACHE") or cache / "quire")
    folder = Path(explicit) if explicit else cache / "jars" / "spark"
    jars = sorted(str(path) for path in folder.glob("*.jar"))
    if not jars:
        raise FileNotFoundError(f"no jars in {folder}: run compat_tests/peers.sh jars")
    return jars


def build(name: str, scratch: str | None = None) -> SparkSession:
    """A local session on two cores; `scratch` takes what Spark would put in the current folder."""
    settings = {
        "spark.jars": ",".join(connector_jars()),
        "spark.driver.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
    }
    if scratch is not None:
        settings["spark.local.dir"] = f"{scratch}/local"
        settings["spark.sql.warehouse.dir"] = f"{scratch}/warehouse"
    builder = SparkSession.builder.master("local[2]").appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def packages_of(rows: DataFrame) -> DataFrame:
    """The packages in a data frame of Kafka records, with their place in the log."""
    parsed = from_json(col("value").cast("string"), PACKAGE).alias("record")
    return rows.select(parsed, "partition", "offset", "timestamp").select(
        "record.*", "partition", "offset", "timestamp"
    )
