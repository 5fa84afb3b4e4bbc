"""`quire-spark report`: what a cluster holds, by topic, bookie, day and group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.cluster.config_topic import TOPIC_CONFIGS
from broker.cluster.topic import OFFSETS_TOPIC
from ledger.errors import LedgerError
from pyspark_quire.connection import run_within
from pyspark_quire.partitions import TopicGoneError, read_topics, read_view
from runtime.env import RealClock
from spark_jobs.facts import read_facts
from spark_jobs.lag import commit_pieces, find_times, read_commits, times_pieces
from spark_jobs.report_tables import (
    bookie_rows,
    growth_rows,
    lag_rows,
    small_ledger_rows,
    time_rows,
    topic_rows,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from broker.cluster.topic import Topic
    from pyspark_quire.connection import Connection, Where
    from spark_jobs.facts import ClusterFacts
    from spark_jobs.lag import Committed
    from spark_jobs.runner import Run

    Report = dict[str, Any]

#: What planning may take, of 10,000 ledgers a few seconds.
PLAN_SECONDS = 300.0
#: Pieces in which committed offsets are read.
PIECES = 16


def make_report(where: Where, run: Run, topics: Collection[str] = ()) -> Report:
    """Tables by name, `problems` in words, and when it was made. ClickException, LedgerError,
    MetadataError, UnreachableError."""

    async def look(connection: Connection) -> tuple[ClusterFacts, Topic | None]:
        facts = await read_facts(connection, topics)
        return facts, (await read_topics(connection.store)).get(OFFSETS_TOPIC)

    facts, offsets_topic = run_within(where, PLAN_SECONDS, look)
    committed = _committed(where, run, facts, offsets_topic)
    ends = run_within(where, PLAN_SECONDS, lambda connection: _ends(connection, facts, committed))
    now_ms = RealClock().time_ms()
    return {
        "made_ms": now_ms,
        "topics": topic_rows(facts.chains, facts.ledgers),
        "times": time_rows(facts.ledgers),
        "bookies": bookie_rows(facts.ledgers, facts.bookies),
        "growth": growth_rows(facts.ledgers),
        "small_ledgers": small_ledger_rows(facts.ledgers, _segment_bytes(facts)),
        "lag": lag_rows(committed, ends, now_ms),
        "problems": facts.problems,
    }


def _committed(
    where: Where, run: Run, facts: ClusterFacts, offsets_topic: Topic | None
) -> list[Committed]:
    names = {topic.name for topic, _ in facts.chains}
    commits = [
        each
        for _, found in run(read_commits, commit_pieces(where, offsets_topic, PIECES))
        for each in found
        if each.topic in names
    ]
    return [
        each for _, found in run(find_times, times_pieces(where, commits, PIECES)) for each in found
    ]


async def _ends(
    connection: Connection, facts: ClusterFacts, committed: Collection[Committed]
) -> dict[tuple[str, int], int]:
    """Of the partitions that groups have committed in: as far as bookies know them."""
    wanted = {(each.topic, each.partition) for each in committed}
    found = {}
    for (topic, partition), chain in facts.chains.items():
        if (topic.name, partition) in wanted:
            try:
                view = await read_view(connection, topic, partition, chain=chain)
            except TopicGoneError:
                continue  # deleted meanwhile
            except LedgerError as error:
                facts.problems.append(f"{topic.name}-{partition}: where it ends: {error}")
                continue
            found[topic.name, partition] = view.end_offset
    return found


def _segment_bytes(facts: ClusterFacts) -> dict[str, int]:
    """By topic; the broker's own default is not in the metadata, so Kafka's counts without an
    override."""
    key = TOPIC_CONFIGS["segment.bytes"]
    return {
        topic.name: int(topic.configs.get(key.name, key.default) or 0) for topic, _ in facts.chains
    }
