"""AsyncClient: the loop goes on while there is no room; cancelled tasks lose nothing."""

import asyncio
import threading

import pytest

from quire_locks import AsyncClient, Client, LocksError, Settings, SqliteStore, TooBusyError
from tests.quire_locks.conftest import (
    ACCOUNTS,
    START,
    MemoryLog,
    MemoryTransport,
    Transfer,
    apply,
    look,
)


class Slow(Transfer):
    """Waits in `execute` until the test lets it go on."""

    def __init__(self):
        super().__init__(0, 1, 1)
        self.is_inside, self.may_go_on = threading.Event(), threading.Event()

    def execute(self, draft, db):
        self.is_inside.set()
        assert self.may_go_on.wait(30)
        return super().execute(draft, db)


def made(path, log, **settings):
    return AsyncClient(
        lambda: Client(
            MemoryTransport(log), SqliteStore(path), apply, settings=Settings(**settings)
        )
    )


def test_transfers_of_many_tasks(bank):
    path, log = bank(), MemoryLog()

    async def program():
        async with made(path, log) as client:
            transfers = [Transfer(n % ACCOUNTS, (n + 1) % ACCOUNTS, 30) for n in range(60)]
            done = await asyncio.gather(*[client.submit(one) for one in transfers])
            assert await client.wait_applied(0) == len(log.records)
            return done

    done = asyncio.run(program())
    assert sum(one.is_done for one in done) == len(log.records)
    balances = dict(look(path))
    assert sum(balances.values()) == ACCOUNTS * START
    assert min(balances.values()) >= 0


def test_the_loop_goes_on_while_there_is_no_room(bank):
    path, log, slow = bank(), MemoryLog(), Slow()

    async def program():
        async with made(path, log, waiting_max=1) as client:
            first = asyncio.create_task(client.submit(slow))
            while not slow.is_inside.is_set():
                await asyncio.sleep(0)
            with pytest.raises(TooBusyError):
                await client.submit(Transfer(0, 1, 1), wait_seconds=0.01)
            second = asyncio.create_task(client.submit(Transfer(0, 1, 1)))
            await asyncio.sleep(0)
            assert not second.done()
            slow.may_go_on.set()
            return [await first, await second]

    assert [one.is_done for one in asyncio.run(program())] == [True, True]
    assert len(log.records) == 2


def test_what_is_in_work_goes_on_when_its_task_is_cancelled(bank):
    path, log, slow = bank(), MemoryLog(), Slow()
    behind = Transfer(0, 1, 1)

    async def program():
        async with made(path, log, concurrent_max=1) as client:
            tasks = [asyncio.create_task(client.submit(one)) for one in (slow, behind)]
            while not slow.is_inside.is_set():
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            assert all(
                isinstance(one, asyncio.CancelledError)
                for one in await asyncio.gather(*tasks, return_exceptions=True)
            )
            slow.may_go_on.set()

    asyncio.run(program())
    assert [one.is_done for one in slow.told] == [True]
    assert behind.told == []
    assert len(log.records) == 1


def test_what_cannot_be_opened_says_so_and_a_closed_one_too(bank):
    async def program():
        def fails():
            raise LocksError("off")

        with pytest.raises(LocksError, match="off"):
            async with AsyncClient(fails):
                pass
        async with made(bank(), MemoryLog()) as client:
            pass
        with pytest.raises(LocksError, match="not open"):
            await client.submit(Transfer(0, 1, 1))

    asyncio.run(program())
