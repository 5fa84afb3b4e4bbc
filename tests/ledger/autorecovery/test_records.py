"""Marks, locks and votes as records: what two auditors and two workers do to each other."""

import trio

from ledger.autorecovery.auditor_election import AuditorElection
from ledger.autorecovery.statistics import AuditorStatistics
from ledger.underreplication import UnderReplication
from metadata.memory import MemoryStore
from wire.bookkeeper.records import parse_holder


class Office:
    """Counts who audits at the same time."""

    def __init__(self):
        self.holders = []

    def of(self, name):
        async def audit():
            self.holders.append(name)
            try:
                await trio.sleep_forever()
            finally:
                self.holders.remove(name)

        return audit


async def stand(nursery, tree, name, office):
    store = MemoryStore(tree)
    statistics = AuditorStatistics()
    election = AuditorElection(store, "/ledgers", name, statistics)
    scope = trio.CancelScope()

    async def run(*, task_status):
        with scope:
            await election.run(office.of(name), task_status=task_status)

    await nursery.start(run)
    return store, scope, statistics


async def until(condition):
    with trio.fail_after(30):
        while not condition():
            await trio.sleep(0.01)


async def test_the_lowest_vote_audits_and_others_follow(nursery, autojump_clock):
    store, office = MemoryStore(), Office()
    made = [await stand(nursery, store.tree, name, office) for name in "abc"]
    await until(lambda: office.holders == ["a"])
    assert [statistics.is_auditor for _, _, statistics in made] == [True, False, False]
    parent = await store.get("/ledgers/underreplication/auditorelection")
    assert parse_holder(parent.data) == "a"
    # One in the middle goes: nothing changes for the others.
    made[1][1].cancel()
    await trio.sleep(5)
    assert office.holders == ["a"]
    made[0][1].cancel()
    await until(lambda: office.holders == ["c"])
    assert await UnderReplication(store).auditor() == "c"


async def test_a_lost_session_ends_the_office(nursery, autojump_clock):
    store, office = MemoryStore(), Office()
    first = await stand(nursery, store.tree, "a", office)
    await stand(nursery, store.tree, "b", office)
    await until(lambda: office.holders == ["a"])
    first[0].expire_session()
    await until(lambda: office.holders == ["b"])
    # It stands again, behind the other one.
    names = await store.children("/ledgers/underreplication/auditorelection")
    with trio.fail_after(10):
        while len(names) < 2:
            await trio.sleep(0.1)
            names = await store.children("/ledgers/underreplication/auditorelection")
    assert first[2].election_attempts == 2
    assert office.holders == ["b"]


async def test_an_audit_that_fails_is_tried_again(nursery, autojump_clock):
    tried = []

    async def audit():
        tried.append(trio.current_time())
        async with trio.open_nursery() as inner:
            inner.start_soon(store.get, "/not/there")
            await trio.sleep_forever()

    store = MemoryStore()
    election = AuditorElection(store, "/ledgers", "a", AuditorStatistics())
    await nursery.start(election.run, audit)
    await until(lambda: len(tried) == 3)
    assert len(await store.children("/ledgers/underreplication/auditorelection")) == 1


async def test_marks_are_merged_and_written_once():
    store = MemoryStore()
    records = UnderReplication(store)
    assert await records.mark(7, ["b"], 1000)
    before = await records.task(7)
    assert not await records.mark(7, ["b"], 2000)
    assert await records.task(7) == before
    assert await records.mark(7, ["a", "b"], 3000)
    after = await records.task(7)
    assert after.marked.replicas == ("b", "a")
    assert (before.version, after.version) == (0, 1)
    # Who saw it before does not take it away.
    assert not await records.finish(7, before.version)
    assert await records.finish(7, after.version)
    assert await records.finish(7, after.version)
    assert [each async for each in records.ledger_ids()] == []
    # Nothing is left of its directories.
    assert await store.children("/ledgers/underreplication/ledgers") == []


async def test_two_auditors_mark_at_the_same_time(nursery):
    store = MemoryStore()

    async def mark_all(names):
        records = UnderReplication(MemoryStore(store.tree))
        for ledger_id in range(50):
            for name in names:
                await records.mark(ledger_id, [name], 1)

    async with trio.open_nursery() as inner:
        inner.start_soon(mark_all, ["a", "b"])
        inner.start_soon(mark_all, ["b", "a"])
    records = UnderReplication(store)
    for ledger_id in range(50):
        task = await records.task(ledger_id)
        assert sorted(task.marked.replicas) == ["a", "b"]
        assert task.version == 1


async def test_locks_are_a_sessions_own():
    store = MemoryStore()
    other = MemoryStore(store.tree)
    assert await UnderReplication(store).lock(5, "x")
    assert await UnderReplication(store).lock(5, "x")
    assert not await UnderReplication(other).lock(5, "y")
    await UnderReplication(other).unlock(5)
    assert [lock.holder for lock in await UnderReplication(other).locks()] == ["x"]
    store.expire_session()
    assert await UnderReplication(other).lock(5, "y")
    await UnderReplication(other).unlock(5)
    assert await UnderReplication(other).locks() == []
