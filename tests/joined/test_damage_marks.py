"""What a bookie finds damaged is marked for auto-recovery, with its name."""

import pytest
import trio

from joined.damage_marks import DamageMarks
from ledger.metadata import LedgerManager
from ledger.underreplication import UnderReplication
from metadata.memory import MemoryStore
from metadata.store import MetadataUnavailableError
from runtime.env import real_env
from wire.bookkeeper.entry import DigestType
from wire.bookkeeper.ledger_metadata import LedgerMetadata


@pytest.fixture
async def marked():
    store = MemoryStore()
    manager = LedgerManager(store, real_env())
    await manager.ensure_layout()
    made = DamageMarks(manager, "b1")
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        yield manager, made, UnderReplication(store)
        nursery.cancel_scope.cancel()


async def ledger(manager, *ensemble):
    metadata = LedgerMetadata(
        len(ensemble), len(ensemble), 1, ((0, ensemble),), digest_type=DigestType.CRC32C
    )
    ledger_id, _ = await manager.create(metadata, None)
    return ledger_id


async def test_ledgers_that_name_this_bookie_are_marked(marked, autojump_clock):
    manager, marks, records = marked
    ours, others = await ledger(manager, "b1", "b2"), await ledger(manager, "b2", "b3")
    for ledger_id in (ours, others, 77):
        marks.found(ledger_id)
    await trio.sleep(1)
    assert [each async for each in records.ledger_ids()] == [ours]
    task = await records.task(ours)
    assert task.marked.replicas == ("b1",)
    # A worker that has looked at it is told that there is more.
    marks.found(ours)
    await trio.sleep(1)
    again = await records.task(ours)
    assert (again.marked, again.version) == (task.marked, task.version + 1)
    assert not await records.finish(ours, task.version)


async def test_it_is_tried_again_while_the_metadata_are_away(marked, autojump_clock, monkeypatch):
    manager, marks, records = marked
    ours = await ledger(manager, "b1", "b2")
    original, tries = UnderReplication.mark, []

    async def away(self, *arguments, **keywords):
        tries.append(arguments)
        if len(tries) < 3:
            raise MetadataUnavailableError("/", "away")
        return await original(self, *arguments, **keywords)

    monkeypatch.setattr(UnderReplication, "mark", away)
    marks.found(ours)
    await trio.sleep(60)
    assert len(tries) == 3
    assert [each async for each in records.ledger_ids()] == [ours]
