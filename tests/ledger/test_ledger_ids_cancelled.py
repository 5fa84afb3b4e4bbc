"""Those who share a request for ids with one that is cancelled, and whose errors are passed on."""

from types import SimpleNamespace

import pytest
import trio
import trio.testing

from ledger.ledger_ids import LedgerIds
from ledger.metadata import LedgerManager
from metadata.store import NodeExistsError, NoNodeError


class Store:
    def __init__(self):
        self.counts = []
        self.askers = []
        self.may_answer = trio.Event()

    async def take_numbers(self, path, count):
        first = sum(self.counts)
        self.counts.append(count)
        self.askers.append(trio.lowlevel.current_task())
        await self.may_answer.wait()
        return list(range(first, first + count))


async def test_who_shares_a_request_outlives_the_one_that_made_it(nursery, autojump_clock):
    store = Store()
    ids = LedgerIds(store, "/ledgers")
    taken = []
    scopes = {}

    async def take():
        with trio.CancelScope() as scopes[trio.lowlevel.current_task()]:
            taken.append(await ids.take())

    for _ in range(4):
        nursery.start_soon(take)
    await trio.testing.wait_all_tasks_blocked()
    assert store.counts == [4]
    scopes[store.askers[0]].cancel()
    await trio.testing.wait_all_tasks_blocked()
    store.may_answer.set()
    with trio.fail_after(5):
        while len(taken) < 3:
            await trio.sleep(0.01)
    assert len(set(taken)) == 3


@pytest.mark.parametrize("error", [NodeExistsError, NoNodeError])
async def test_what_the_caller_has_beside_the_ledger_is_his_affair(error):
    manager = LedgerManager(None, SimpleNamespace())
    calls = []

    async def place(ledger_id, new_ledger):
        calls.append(ledger_id)
        raise error("/topics/t/0")

    for folder in ("", "/ledgers/00/0000"):
        manager._known_folder = folder
        calls.clear()
        with pytest.raises(error):
            await manager._place_node(7, b"", place)
        assert calls == [7]
