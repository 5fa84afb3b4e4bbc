"""What the metadata say of the whole cluster: topics, chains, and where each ledger is.

    facts = await read_facts(connection, topics=())

All in the driver: 10,000 ledgers are a few hundred reads of metadata and some MB of memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from broker.log.life.chain import ChainFormatError
from ledger.metadata import ledger_path
from pyspark_quire.partitions import TopicGoneError, read_chains, read_topics
from wire.bookkeeper.ledger_metadata import MetadataFormatError, parse

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from broker.cluster.topic import Topic
    from broker.log.life.chain import Chain
    from broker.log.life.ledger_info import LedgerInfo
    from pyspark_quire.connection import Connection
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

#: Ledgers whose metadata are read together.
METADATA_BATCH = 100


@dataclass(slots=True, frozen=True)
class LedgerFacts:
    """One ledger of a partition. `metadata` is None if the ledger was deleted since, or its
    metadata cannot be read; `raw` and `version` are as they are stored."""

    topic: Topic
    partition: int
    info: LedgerInfo
    metadata: LedgerMetadata | None
    raw: bytes = b""
    version: int = -1

    @property
    def name(self) -> str:
        return f"{self.topic.name}-{self.partition}"


@dataclass(slots=True)
class ClusterFacts:
    chains: dict[tuple[Topic, int], Chain] = field(default_factory=dict)
    ledgers: list[LedgerFacts] = field(default_factory=list)
    #: Bookies that are registered now.
    bookies: frozenset[str] = frozenset()
    #: What could not be read, in words.
    problems: list[str] = field(default_factory=list)


async def read_facts(connection: Connection, topics: Collection[str] = ()) -> ClusterFacts:
    """`topics`: only these; all if none is named. ClickException names one that is not there.
    MetadataError."""
    damaged: list[str] = []
    known = await read_topics(connection.store, damaged)
    for name in topics:
        if name not in known:
            words = [each for each in damaged if each.startswith(f"topic {name}:")]
            raise click.ClickException(words[0] if words else f"there is no topic {name!r}")
    watcher = connection.watcher
    facts = ClusterFacts(bookies=frozenset(watcher.writable | watcher.read_only))
    facts.problems += damaged
    for name in sorted(topics or known):
        topic = known[name]
        try:
            chains = await read_chains(connection.store, topic, range(topic.partition_count))
        except TopicGoneError:
            continue  # deleted meanwhile
        except ChainFormatError as error:
            facts.problems.append(f"topic {name}: {error}")
            continue
        for partition, chain in chains.items():
            facts.chains[topic, partition] = chain
    await _add_ledgers(connection, facts)
    return facts


async def _add_ledgers(connection: Connection, facts: ClusterFacts) -> None:
    wanted = [
        (topic, partition, info)
        for (topic, partition), chain in facts.chains.items()
        for info in chain.ledgers
    ]
    for start in range(0, len(wanted), METADATA_BATCH):
        chunk = wanted[start : start + METADATA_BATCH]
        await _add_chunk(connection, facts, chunk)


async def _add_chunk(
    connection: Connection, facts: ClusterFacts, chunk: Sequence[tuple[Topic, int, LedgerInfo]]
) -> None:
    paths = [ledger_path(connection.root, info.ledger_id) for _, _, info in chunk]
    nodes = await connection.store.get_many(paths)
    for (topic, partition, info), node in zip(chunk, nodes, strict=True):
        if node is None:
            facts.ledgers.append(LedgerFacts(topic, partition, info, None))
            continue
        try:
            metadata = parse(node.data)
        except MetadataFormatError as error:
            facts.problems.append(f"ledger {info.ledger_id}: {error}")
            facts.ledgers.append(LedgerFacts(topic, partition, info, None))
            continue
        facts.ledgers.append(LedgerFacts(topic, partition, info, metadata, node.data, node.version))
