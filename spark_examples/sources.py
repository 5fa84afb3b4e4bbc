"""A topic in the two forms of reading it: Spark's `kafka` source, and `quire`, which reads the
ledgers where they lie (docs/spark.md). All that differs between them is the line of each here.
"""

from __future__ import annotations

from typing import Any


def kafka(reader: Any, bootstrap: str) -> Any:
    """`reader`: spark.read or spark.readStream."""
    return reader.format("kafka").option("kafka.bootstrap.servers", bootstrap)


def quire(reader: Any, metadata: str) -> Any:
    """The same options after it, and the same columns."""
    return reader.format("quire").option("metadata", metadata)


FORMS = {"kafka": kafka, "quire": quire}
