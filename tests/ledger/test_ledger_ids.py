"""LedgerIds: many askers, few requests, and no id twice."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ledger.ledger_ids import LedgerIds
from metadata.memory import MemoryStore
from metadata.store import NUMBERS_MAX, MetadataUnavailableError


class SlowStore(MemoryStore):
    """Each request waits for `gate`, and fails as often as `failures` says."""

    def __init__(self):
        super().__init__()
        self.gate = trio.Event()
        self.counts = []
        self.failures = 0

    async def take_numbers(self, path, count):
        self.counts.append(count)
        await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise MetadataUnavailableError(path, "away")
        return await super().take_numbers(path, count)


@pytest.fixture
def store():
    return SlowStore()


async def test_those_who_wait_share_the_next_request(store):
    ids, taken = LedgerIds(store, "/ledgers"), []

    async def take():
        taken.append(await ids.take())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(take)
        await wait_all_tasks_blocked()
        for _ in range(NUMBERS_MAX + 10):
            nursery.start_soon(take)
        await wait_all_tasks_blocked()
        store.gate.set()
    assert sorted(taken) == list(range(NUMBERS_MAX + 13))
    assert store.counts == [3, NUMBERS_MAX, 10]
    assert await ids.take() == NUMBERS_MAX + 13


async def test_others_go_on_without_one_who_was_cancelled(store):
    ids, taken = LedgerIds(store, "/ledgers"), []

    async def take():
        taken.append(await ids.take())

    async with trio.open_nursery() as nursery:
        scopes = []
        for _ in range(4):
            scopes.append(trio.CancelScope())

            async def cancellable(scope=scopes[-1]):
                with scope:
                    await take()

            nursery.start_soon(cancellable)
            await wait_all_tasks_blocked()
        scopes[0].cancel()  # it asks for itself
        scopes[2].cancel()  # it waits for its turn
        await wait_all_tasks_blocked()
        store.gate.set()
    assert sorted(taken) == [0, 1]


async def test_a_failure_is_told_to_all_that_shared_it(store):
    ids, outcomes = LedgerIds(store, "/ledgers"), []

    async def take():
        try:
            outcomes.append(await ids.take())
        except MetadataUnavailableError as error:
            outcomes.append(str(error.path))

    store.failures = 1
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(take)
        await wait_all_tasks_blocked()
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        store.gate.set()
    assert outcomes == ["/ledgers/idgen/ID-"] * 2 + [0]
