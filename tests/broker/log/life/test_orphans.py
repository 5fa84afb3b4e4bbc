"""What the look for orphans asks metadata, when there are many ledgers."""

from types import SimpleNamespace

import pytest

from broker.cluster.topic import PARTITIONS_PATH
from broker.log.life.chain import Chain
from broker.log.life.ledger_info import LedgerInfo
from broker.log.life.orphans import sweep_orphans
from ledger.ledger_walk import METADATA_BATCH
from ledger.metadata import ledger_path
from metadata.memory import MemoryStore, MemoryTree
from wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, serialize

TOPIC_ID = "00000000-0000-4000-8000-000000000001"
PARTITIONS = 3


class Spied(MemoryStore):
    def __init__(self):
        super().__init__(MemoryTree())
        self.asked = []
        #: Called before partitions' documents are read.
        self.before_read = None

    async def get_many(self, paths):
        documents = [path for path in paths if path.startswith(PARTITIONS_PATH)]
        self.asked += documents
        if documents and self.before_read is not None:
            await self.before_read()
        return await super().get_many(paths)


async def make_ledger(store, ledger_id, epoch=1):
    stamps = {"application": b"quire", "topic": b"t", "topic_id": TOPIC_ID.encode()}
    stamps["partition"] = b"%d" % (ledger_id % PARTITIONS)
    stamps["leader_epoch"] = b"%d" % epoch
    metadata = LedgerMetadata(
        1, 1, 1, ((0, ("a:1",)),), LedgerState.CLOSED, 0, 1, custom_metadata=stamps
    )
    path = ledger_path("/ledgers", ledger_id)
    await store.create(path, serialize(metadata), make_parents=True)


def document(ids, epoch):
    infos = [LedgerInfo(each, place, 1, 0, place, 1, 1) for place, each in enumerate(ids)]
    return Chain(leader_epoch=epoch, ledgers=tuple(infos)).to_bytes()


@pytest.fixture
async def many():
    """Ledgers of three partitions; their documents have a later epoch, and do not name one ledger
    of each hundred."""
    store = Spied()
    count = 6 * METADATA_BATCH
    orphans = set(range(17, count, 100))
    for ledger_id in range(count):
        await make_ledger(store, ledger_id)
    for partition in range(PARTITIONS):
        ids = [each for each in range(partition, count, PARTITIONS) if each not in orphans]
        path = f"{PARTITIONS_PATH}/{TOPIC_ID}/{partition}"
        await store.create(path, document(ids, 2), make_parents=True)
    deleted = []

    async def delete_ledger(ledger_id):
        deleted.append(ledger_id)

    manager = SimpleNamespace(root="/ledgers")
    ledgers = SimpleNamespace(manager=manager, delete_ledger=delete_ledger)
    return SimpleNamespace(
        store=store, ledgers=ledgers, orphans=orphans, deleted=deleted, count=count
    )


async def test_a_document_is_read_once_and_for_ledgers_that_it_did_not_name(many):
    """It was read with its archives for each hundred ledgers: of a million ledgers in a thousand
    partitions that were two hours of the processor."""
    assert await sweep_orphans(many.store, many.ledgers) == len(many.orphans)
    assert set(many.deleted) == many.orphans
    assert len(many.store.asked) <= PARTITIONS + len(many.orphans)


async def test_without_orphans_each_is_read_once(many):
    for partition in range(PARTITIONS):
        path = f"{PARTITIONS_PATH}/{TOPIC_ID}/{partition}"
        await many.store.put(path, document(range(partition, many.count, PARTITIONS), 2), 0)
    assert await sweep_orphans(many.store, many.ledgers) == 0
    assert sorted(many.store.asked) == sorted(set(many.store.asked))
    assert len(many.store.asked) == PARTITIONS


async def test_a_ledger_that_was_added_since_the_document_was_read_is_kept(many):
    """The document that the look remembers does not name it: the one of now is asked."""
    path = f"{PARTITIONS_PATH}/{TOPIC_ID}/0"
    late = many.count + 3 * METADATA_BATCH
    assert late % PARTITIONS == 0
    reads = 0

    async def add_after_the_first_read():
        nonlocal reads
        reads += 1
        if reads == 2:
            ids = [*range(0, many.count, PARTITIONS), late]
            await make_ledger(many.store, late)
            await many.store.put(path, document(ids, 3), 0)

    many.store.before_read = add_after_the_first_read
    await sweep_orphans(many.store, many.ledgers)
    assert reads >= 2
    assert await many.store.exists(ledger_path("/ledgers", late))
    assert late not in many.deleted
