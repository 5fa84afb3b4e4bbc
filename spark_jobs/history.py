"""A topic's whole history as one DataFrame: the archive's files, and from its border on the live
ledgers.

    rows = history(spark, "t", archive="/mnt/archive", metadata="zk+hierarchical://zk:2181/ledgers")

The border is each partition's `next_base`, of one look at the manifests, which comes first: what is
archived meanwhile is read from its ledgers still, and nothing is read twice. With retention that
waits for the archive (`quire.archive.required`) nothing is missing either; else records that were
deleted before they were archived are an error of the read, as `failOnDataLoss` says.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_quire.connection import Where, run_within
from pyspark_quire.partitions import read_topics
from spark_jobs.manifest import Manifest, ManifestError, folder, lives, manifest_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from broker.cluster.topic import Topic
    from pyspark_quire.connection import Connection

BOOKKEEPER = "bookkeeper."
METADATA_SECONDS = 60.0
_OURS = frozenset(
    name.lower()
    for name in (
        "metadata", "assign", "subscribe", "subscribePattern", "includeHeaders", "columns",
        "isolation.level", "kafka.isolation.level", "minTimestamp", "maxTimestamp",
        *(f"{border}{kind}" for border in ("starting", "ending")
          for kind in ("Offsets", "OffsetsByTimestamp", "Timestamp")),
    )
)  # fmt: skip


def history(
    spark: Any,  # noqa: ANN401  # a SparkSession
    topic: str,
    *,
    archive: str,
    metadata: str,
    read_from: str = "both",
    options: Mapping[str, str] | None = None,
) -> Any:  # noqa: ANN401  # a DataFrame
    """`read_from`: live, archive or both. `options`: those of `format("quire")` that say nothing of
    offsets, columns and isolation, which is the archive's. ManifestError; ValueError for
    `read_from` and a topic that is not there; UnreachableError, and Spark's errors."""
    if read_from not in ("live", "archive", "both"):
        raise ValueError(f"read_from: {read_from!r} is none of live, archive, both")
    given = dict(options or {})
    _check_options(given)
    found = _topic(metadata, topic, given)
    manifests = manifests_of(Path(archive), topic, str(found.id)) if read_from != "live" else []
    files = [str(path) for path in _files(Path(archive), manifests)]
    if read_from == "archive":
        if not files:
            raise ManifestError(f"{archive}: no record of topic {topic} is archived")
        return spark.read.parquet(*files)
    reader = spark.read.format("quire").option("metadata", metadata)
    reader = reader.option("subscribe", topic).option("includeHeaders", "true")
    if manifests:
        reader = reader.option("startingOffsets", _borders(found, manifests))
        reader = reader.option("isolation.level", manifests[0].isolation)
    for name, text in given.items():
        reader = reader.option(name, text)
    live = reader.load()
    if not files:
        return live
    return spark.read.parquet(*files).select(*live.columns).unionByName(live)


def _check_options(given: Mapping[str, str]) -> None:
    """ValueError for what is the archive's, or an argument's, to say: with another border records
    would be there twice, or not at all."""
    for name in given:
        if name.lower() in _OURS:
            raise ValueError(f"{name}: is not for `options`: history() says it itself")


def _topic(metadata: str, name: str, options: Mapping[str, str]) -> Topic:
    settings = {
        each.removeprefix(BOOKKEEPER): text
        for each, text in options.items()
        if each.startswith(BOOKKEEPER)
    }

    async def look(connection: Connection) -> dict[str, Topic]:
        return await read_topics(connection.store)

    topics = run_within(Where(metadata, settings), METADATA_SECONDS, look)
    if name not in topics:
        raise ValueError(f"there is no topic {name!r}")
    return topics[name]


def manifests_of(archive: Path, topic: str, topic_id: str) -> list[Manifest]:
    """By partition. ManifestError, OSError."""
    found = [manifest_of(archive, *life) for life in lives(archive, topic, topic_id)]
    return [each for each in found if each is not None]


def _files(archive: Path, manifests: Iterable[Manifest]) -> list[Path]:
    """Those that the manifests name, and no others."""
    return [
        folder(archive, each.topic, each.topic_id, each.partition) / file.name
        for each in manifests
        for file in each.files
        if file.name is not None
    ]


def _borders(topic: Topic, manifests: Iterable[Manifest]) -> str:
    """As `startingOffsets` has it; a partition without a manifest from its beginning on (-2)."""
    offsets = {str(number): -2 for number in range(topic.partition_count)}
    offsets |= {str(each.partition): each.next_base for each in manifests}
    return json.dumps({topic.name: offsets})
