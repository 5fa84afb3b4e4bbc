"""What the metadata tell of topics and partitions, and where a partition's log ends.

    topics = await read_topics(connection.store)
    view = await read_view(connection, topics["t"], 0)          # as far as bookies know
    view.chain.log_start_offset, view.end_offset

Reads change nothing: a ledger is never opened for recovery, so no writer is fenced.

The end of an open ledger: what its bookies know to be confirmed. They learn that from the next
entry, so without a broker's word (`high_watermark`: ListOffsets) the end may lag by what was in
flight when writing paused. With it, the entries up to there are read as what they are: confirmed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.cluster.topic import PARTITIONS_PATH, TOPICS_PATH, decode_topic
from broker.log.append.entry_format import FLAG_CONTINUES, KIND_BATCHES, parse_header
from broker.log.life.document import READ_COUNT_MAX, read_chain
from ledger.errors import LedgerError, LedgerReadError, NoSuchLedgerError
from metadata.store import NoNodeError
from runtime.logs import kv

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.cluster.topic import Topic
    from broker.log.append.entry_format import EntryHeader
    from broker.log.life.chain import Chain
    from ledger.reader import LedgerReader
    from metadata.store import MetadataStore
    from pyspark_quire.connection import Connection

logger = logging.getLogger(__name__)

#: A chain is read again if its open ledger was closed, or is gone, by the time it is looked at.
LOOKS_MAX = 5


class TopicGoneError(Exception):
    """The topic, or this life of it, is not there any more; names it."""


@dataclass(slots=True)
class PartitionView:
    """One look at a partition. `reader`: of the open ledger, as far as it is confirmed."""

    topic: Topic
    partition: int
    chain: Chain
    #: One past the last record that may be read.
    end_offset: int
    reader: LedgerReader | None = None

    @property
    def name(self) -> str:
        return f"{self.topic.name}-{self.partition}"

    @property
    def log_start_offset(self) -> int:
        return self.chain.log_start_offset


async def read_topics(store: MetadataStore, damaged: list[str] | None = None) -> dict[str, Topic]:
    """All that there are, by name. One whose document is damaged is left out, and told in the log,
    or added to `damaged`, in words: it is no reason not to read the others. MetadataError."""
    await store.sync(TOPICS_PATH)
    try:
        names = await store.children(TOPICS_PATH)
    except NoNodeError:
        return {}
    found = {}
    for start in range(0, len(names), READ_COUNT_MAX):
        chunk = names[start : start + READ_COUNT_MAX]
        nodes = await store.get_many([f"{TOPICS_PATH}/{name}" for name in chunk])
        for name, node in zip(chunk, nodes, strict=True):
            if node is None:
                continue
            try:
                found[name] = decode_topic(name, node.data, node.version)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                words = f"topic {name}: its document is damaged: {error!r}"
                logger.warning("topic_damaged", kv(topic=name, reason=words))
                if damaged is not None:
                    damaged.append(words)
    return found


def document_path(topic: Topic, partition: int) -> str:
    """Of a partition's chain."""
    return f"{PARTITIONS_PATH}/{topic.id}/{partition}"


async def read_chains(
    store: MetadataStore, topic: Topic, partitions: Sequence[int]
) -> dict[int, Chain]:
    """With archives. TopicGoneError, MetadataError, ChainFormatError."""
    found = {}
    for start in range(0, len(partitions), READ_COUNT_MAX):
        chunk = partitions[start : start + READ_COUNT_MAX]
        paths = [document_path(topic, partition) for partition in chunk]
        nodes = await store.get_many(paths)
        for partition, path, node in zip(chunk, paths, nodes, strict=True):
            if node is None:
                raise TopicGoneError(f"{topic.name}-{partition} (topic id {topic.id}) is not there")
            try:
                found[partition], _ = await read_chain(store, path, node)
            except NoNodeError:
                raise TopicGoneError(f"topic {topic.name} was deleted") from None
    return found


async def read_view(
    connection: Connection,
    topic: Topic,
    partition: int,
    *,
    chain: Chain | None = None,
    high_watermark: int | None = None,
) -> PartitionView:
    """`chain`: if it was read before; its open ledger may be closed by now, and then the chain is
    read again. `high_watermark`: of the partition's leader, asked before. TopicGoneError,
    LedgerError (also if no copy has what the leader confirms), MetadataError, ChainFormatError."""
    looks = 0
    while True:
        looks += 1
        is_fresh = chain is None
        if chain is None:
            chain = (await read_chains(connection.store, topic, [partition]))[partition]
        view = PartitionView(topic, partition, chain, 0)
        failed: LedgerError | None = None
        try:
            failed = await _look(connection, view, high_watermark)
        except NoSuchLedgerError as error:
            failed = error
        else:
            is_closed = view.reader is not None and view.reader.metadata.is_closed
            reaches = high_watermark is None or view.end_offset >= high_watermark
            if reaches and (is_fresh or not is_closed):
                return view
        if looks == LOOKS_MAX:
            if failed is not None:
                raise failed
            return view
        chain = None
        await connection.store.sync(document_path(topic, partition))


async def _look(
    connection: Connection, view: PartitionView, high_watermark: int | None
) -> LedgerError | None:
    """Fills end and reader; gives what kept it from reaching the high watermark.
    NoSuchLedgerError: the chain is another by now."""
    chain, failed = view.chain, None
    end = chain.closed_end_offset
    if chain.ledgers and chain.ledgers[-1].is_open:
        info = chain.ledgers[-1]
        reader = await connection.ledgers.open_ledger(info.ledger_id, recover=False)
        if not reader.metadata.is_closed:
            # What the writer told the bookies without an entry (explicitLacInterval) counts, too.
            await reader.read_last_add_confirmed()
        end = max(await end_of(reader), info.base_offset)
        if high_watermark is not None and not reader.metadata.is_closed:
            end, failed = await _confirm(reader, end, high_watermark)
        view.reader = reader
    if high_watermark is not None:
        end = min(end, high_watermark)
    # Records may be deleted up to an end that the bookies do not know to be confirmed yet.
    view.end_offset = max(end, chain.log_start_offset)
    return failed


async def end_of(reader: LedgerReader) -> int:
    """One past the last record of what is confirmed; -1 of a ledger without an entry. LedgerError,
    EntryFormatError."""
    last = reader.last_add_confirmed
    if last < 0:
        return -1
    [payload] = await reader.read(last, count_max=1, size_max=1)
    return offset_behind(parse_header(payload))


def offset_behind(header: EntryHeader) -> int:
    """Where the log ends with this entry; within a batch that goes on, where the batch begins."""
    if header.kind == KIND_BATCHES and not header.flags & FLAG_CONTINUES:
        return header.first_offset + header.record_count
    return header.first_offset


async def _confirm(
    reader: LedgerReader, end: int, high_watermark: int
) -> tuple[int, LedgerReadError | None]:
    """Raises the reader's LAC over entries that the broker's word confirms, and no others; the
    end of the log then, and why it is no further."""
    while end < high_watermark:
        entry_id = reader.last_add_confirmed + 1
        reader.last_add_confirmed = entry_id
        try:
            [payload] = await reader.read(entry_id, count_max=1, size_max=1)
        except LedgerReadError as error:
            # It is closed by now, or was, and another ledger goes on; or no copy has it.
            reader.last_add_confirmed = entry_id - 1
            return end, error
        header = parse_header(payload)
        if header.kind == KIND_BATCHES and header.first_offset >= high_watermark:
            reader.last_add_confirmed = entry_id - 1
            return end, None
        end = max(end, offset_behind(header))
    return end, None
