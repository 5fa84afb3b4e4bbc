"""AsyncClient: the thread client's outcomes, awaited; the loop goes on meanwhile."""

import asyncio
import threading

import pytest

from quire_locks import AsyncClient, Settings, SqliteStore, TooBusyError
from tests.quire_locks.conftest import START, MemoryLog, MemoryTransport, Transfer, apply, look


class Held(Transfer):
    """Executes when it is let go."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.begun, self.go = threading.Event(), threading.Event()

    def execute(self, draft, db):
        self.begun.set()
        assert self.go.wait(30)
        return super().execute(draft, db)


def client(log, path, **settings):
    quick = Settings(poll_seconds=0.01, deadline_seconds=20, **settings)
    return AsyncClient(MemoryTransport(log), SqliteStore(path), apply, settings=quick)


def test_conflicts_are_decided_anew(bank):
    log, paths = MemoryLog(), [bank("one"), bank("two")]

    async def main():
        async with client(log, paths[0]) as one, client(log, paths[1]) as two:
            waits = [one.submit(Transfer(0, 1, 80)), two.submit(Transfer(0, 2, 80))]
            done = await asyncio.gather(*waits)
            for each in (one, two):
                assert await each.wait_applied(0) == 1
            return done

    assert sorted(one.is_done for one in asyncio.run(main())) == [False, True]
    assert [dict(look(path))[0] for path in paths] == [START - 80] * 2


def test_who_is_cancelled_waits_no_more_and_his_place_is_free_when_it_is_over(bank):
    """The transaction was in work: it is written all the same."""
    log, path, held = MemoryLog(), bank(), Held(0, 1, 30)

    async def main():
        async with client(log, path, waiting_max=1) as one:
            waiting = asyncio.create_task(one.submit(held))
            assert await asyncio.to_thread(held.begun.wait, 20)
            with pytest.raises(TooBusyError):
                await one.submit(Transfer(2, 3, 1), wait_seconds=0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            with pytest.raises(TooBusyError):
                await one.submit(Transfer(2, 3, 1), wait_seconds=0.01)
            held.go.set()
            assert (await one.submit(Transfer(2, 3, 1))).is_done

    asyncio.run(main())
    assert dict(look(path))[0] == START - 30


def test_what_execute_raises_is_raised_and_frees_the_place(bank):
    class Fails(Transfer):
        def execute(self, draft, db):
            raise KeyError("no account")

    async def main():
        async with client(MemoryLog(), bank(), waiting_max=1) as one:
            with pytest.raises(KeyError):
                await one.submit(Fails(0, 1, 1))
            assert (await one.submit(Transfer(0, 1, 1))).is_done

    asyncio.run(main())


def test_it_is_used_by_async_with(bank):
    async def main():
        with pytest.raises(RuntimeError, match="async with"):
            await client(MemoryLog(), bank()).submit(Transfer(0, 1, 1))

    asyncio.run(main())


def test_who_is_cancelled_while_it_begins_leaves_nothing_behind(bank):
    """As `async with asyncio.timeout(…)` around it, and a broker that is slow to answer."""
    asked, closed = threading.Event(), threading.Event()

    class Slow(MemoryTransport):
        def facts(self):
            asked.wait(30)
            return super().facts()

        def close(self):
            closed.set()

    async def main():
        client = AsyncClient(Slow(MemoryLog()), SqliteStore(bank()), apply)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), client:
                pass
        asked.set()

    asyncio.run(main())
    assert closed.wait(5), "it applies records for ever, and nobody can close it"
