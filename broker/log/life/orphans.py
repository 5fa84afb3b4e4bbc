"""Ledgers that no partition has: their maker died between the creation and the chain's
compare-and-set, and what it made is empty. That may be long: the next ledger of a partition is made
before it is needed (broker/log/life/spare.py). One that is made when it is needed is not among
them: the multi that makes it names it.

Each ledger says for which partition and in which leader epoch it was made (its custom metadata):

    application=quire, topic=<name>, topic_id=<uuid>, partition=<n>, leader_epoch=<epoch>

It is deleted in two cases. Either its partition's document is there, names it neither among its
ledgers nor among those to be deleted, and has a higher leader epoch: the compare-and-set that would
add it can never succeed any more, as the document is written with the epoch in it. Or the document
is gone, and a mark says that the topic was deleted (broker/log/life/swept.py). All else is kept: a
ledger of the present epoch (its maker may be about to add it), one without these words (older, or
somebody else's), one whose topic is not in this metadata and has no mark (another cluster's on the
same bookies).
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_left
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import trio

from broker.cluster.topic import PARTITIONS_PATH
from broker.log.life.chain import ChainFormatError
from broker.log.life.document import read_chain
from broker.log.life.swept import count_look, read_marks, swept_among
from ledger.errors import LedgerError
from ledger.ledger_walk import METADATA_BATCH, walk_ledgers
from metadata.store import MetadataError, NoNodeError
from runtime.logs import kv

if TYPE_CHECKING:
    from broker.log.life.chain import Chain
    from broker.log.partition import PartitionLog
    from ledger.client import LedgerClient
    from metadata.store import MetadataStore
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

logger = logging.getLogger(__name__)

APPLICATION = b"quire"


def stamps_of(log: PartitionLog) -> dict[str, bytes]:
    """The custom metadata of a ledger that is made for it now."""
    return {
        "application": APPLICATION,
        "topic": log.topic.name.encode(),
        "topic_id": str(log.topic.id).encode(),
        "partition": str(log.partition).encode(),
        "leader_epoch": str(log.leader_epoch).encode(),
    }


class _Maker(NamedTuple):
    topic_id: str
    partition: int
    leader_epoch: int

    @property
    def path(self) -> str:
        """Of the partition's document."""
        return f"{PARTITIONS_PATH}/{self.topic_id}/{self.partition}"


def _maker(metadata: LedgerMetadata) -> _Maker | None:
    """None if the ledger does not say."""
    stamps = dict(metadata.custom_metadata)
    if stamps.get("application") != APPLICATION:
        return None
    try:
        topic_id = UUID(stamps["topic_id"].decode())
        partition, epoch = int(stamps["partition"]), int(stamps["leader_epoch"])
    except (KeyError, ValueError):
        return None
    return _Maker(str(topic_id), partition, epoch)


class _NamedLedgers:
    """Of each partition the ledgers that its document named when this look read it. Without it
    every few ledgers of the walk would have their partitions' chains read anew, and a chain is as
    long as its partition is old. 8 bytes a ledger.

    It may be as old as the look: what was named once is the partition's own to delete."""

    def __init__(self) -> None:
        #: By the documents' paths; ascending.
        self._ids: dict[str, array[int]] = {}

    def note(self, path: str, chain: Chain) -> None:
        ids = {info.ledger_id for info in chain.ledgers}
        self._ids[path] = array("q", sorted(ids.union(chain.all_deleting)))

    def has(self, path: str, ledger_id: int) -> bool:
        ids = self._ids.get(path, ())
        place = bisect_left(ids, ledger_id)
        return place < len(ids) and ids[place] == ledger_id


async def sweep_orphans(store: MetadataStore, ledgers: LedgerClient) -> int:
    """Deletes them; how many there were. What fails is logged, and left to the next time."""
    deleted = 0
    named = _NamedLedgers()
    try:
        marks = await read_marks(store)
        candidates: dict[int, _Maker] = {}
        async with aclosing(walk_ledgers(store, ledgers.manager.root)) as found:
            async for ledger_id, metadata in found:
                maker = None if isinstance(metadata, str) else _maker(metadata)
                if maker is not None and not named.has(maker.path, ledger_id):
                    candidates[ledger_id] = maker
                if len(candidates) >= METADATA_BATCH:
                    deleted += await _delete_orphans(store, ledgers, candidates, named)
                    candidates = {}
        deleted += await _delete_orphans(store, ledgers, candidates, named)
        await count_look(store, marks)
    except (MetadataError, LedgerError) as error:
        logger.warning("orphans_not_swept", kv(error=error))
    return deleted


async def _delete_orphans(
    store: MetadataStore,
    ledgers: LedgerClient,
    candidates: dict[int, _Maker],
    named: _NamedLedgers,
) -> int:
    """The documents are read after the ledgers: a ledger that was added before is seen in them, and
    a document that is not there was deleted, as it is older than the ledgers that are made for it.
    """
    # Documents that were read since the ledger was found may name it.
    unnamed = {
        ledger_id: maker
        for ledger_id, maker in candidates.items()
        if not named.has(maker.path, ledger_id)
    }
    paths = list(dict.fromkeys(maker.path for maker in unnamed.values()))
    nodes = dict(zip(paths, await store.get_many(paths), strict=True))
    epochs: dict[str, int] = {}
    for path, node in nodes.items():
        try:
            if node is not None:
                chain, _ = await read_chain(store, path, node)
                named.note(path, chain)
                epochs[path] = chain.leader_epoch
                await trio.lowlevel.checkpoint()
        except NoNodeError:
            continue  # its topic was deleted meanwhile
        except ChainFormatError as error:
            logger.warning("orphans_not_swept", kv(document=path, error=error))
    missing = [maker.topic_id for maker in unnamed.values() if nodes[maker.path] is None]
    swept = await swept_among(store, missing) if missing else set()
    deleted = 0
    for ledger_id, maker in unnamed.items():
        if maker.path in epochs:
            if epochs[maker.path] <= maker.leader_epoch or named.has(maker.path, ledger_id):
                continue
        elif nodes[maker.path] is not None or maker.topic_id not in swept:
            continue
        logger.warning(
            "orphan_deleted",
            kv(ledger=ledger_id, document=maker.path, leader_epoch=maker.leader_epoch),
        )
        await ledgers.delete_ledger(ledger_id)
        deleted += 1
    return deleted
