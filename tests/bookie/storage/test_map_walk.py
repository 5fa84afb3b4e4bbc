"""Deleted ledgers are forgotten in logs whose maps are on disk: never one that lives."""

import errno
import random

import pytest
import trio

from bookie.storage import map_walk
from bookie.storage.entry_logs import EntryLogs


class World:
    """Entry logs, and a model: which ledgers live, and which log has bytes of which one. A ledger
    that is made anew is another one, with the same id."""

    def __init__(self, disk, config, rng):
        self.disk, self.config, self.rng = disk, config, rng
        #: By id: the number of its making.
        self.alive = {}
        self.made = 0
        #: By log id: the ledgers that were written, and which making of them.
        self.written = {}
        #: A ledger is made, deleted and written by one at a time, as by a bookie's checkpoint.
        self.checkpoint = trio.Lock()
        self.logs = None

    async def start(self):
        self.logs = EntryLogs(self.config, self.disk, "/d")
        await self.logs.load(-1, self.alive.keys())

    def is_known(self, ledger_id):
        return ledger_id in self.alive

    def with_entries(self, ledger_ids):
        assert list(ledger_ids) == sorted(ledger_ids)
        stored = set()
        for has in self.written.values():
            stored.update(i for i, making in has.items() if self.alive.get(i) == making)
        return [i for i in ledger_ids if i in stored]

    def make(self):
        for ledger_id in self.rng.sample(range(40), 10):
            if ledger_id not in self.alive:
                self.made += 1
                self.alive[ledger_id] = self.made

    async def write_log(self):
        async with self.checkpoint:
            self.make()
            log = await self.logs.create()
            for ledger_id in self.rng.sample(sorted(self.alive), min(len(self.alive), 8)):
                log.ledgers[ledger_id] = self.rng.randrange(1, 100)
            self.written[log.log_id] = {i: self.alive[i] for i in log.ledgers}
        await self.logs.write_map(log)
        await self.logs.walk.settle(log)
        log.is_written = False

    async def delete(self):
        async with self.checkpoint:
            gone = self.rng.sample(
                sorted(self.alive), min(len(self.alive), self.rng.choice([1, 9]))
            )
            for ledger_id in gone:
                del self.alive[ledger_id]
            await self.logs.drop_ledgers(gone, at_once=self.rng.random() < 0.2)

    async def collect(self):
        await self.logs.remove_dead(self.is_known, self.with_entries)
        await self.logs.close_removed()  # else the limit of those that are open is reached

    async def check(self, *, is_quiet):
        for log_id, has in self.written.items():
            living = {i for i, making in has.items() if self.alive.get(i) == making}
            log = self.logs.get(log_id)
            if log is None:
                assert not living, f"log {log_id} went with ledgers {living}"
                continue
            if is_quiet:
                found = await self.logs.walk.live_ledgers(log)
                assert living <= found.keys()
                assert found.keys() <= has.keys() & self.alive.keys()
                assert (log.live_count, log.live_bytes) == (len(found), sum(found.values()))
            else:
                assert not living or log.is_written or log.live_count


def limits(monkeypatch, rng):
    monkeypatch.setattr(map_walk, "AT_ONCE_UNITS", rng.choice([0, 0, 20_000]))
    monkeypatch.setattr(map_walk, "PENDING_MAX", rng.choice([3, 1000]))
    monkeypatch.setattr(map_walk, "ASKED_PER_TURN", rng.choice([1, 200]))
    monkeypatch.setattr(map_walk, "PART_COUNT", rng.choice([2, 2500]))


@pytest.mark.parametrize("seed", range(60))
async def test_history(seed, disk, tiny, monkeypatch, autojump_clock):
    rng = random.Random(seed)
    limits(monkeypatch, rng)
    disk.faults.run_seconds = rng.choice([(0.0, 0.0), (0.0, 0.01)])
    world = World(disk, tiny(entry_log_open_files_max=rng.choice([2, 100])), rng)
    for _ in range(4):
        await world.start()
        await world.check(is_quiet=False)
        async with trio.open_nursery() as nursery:
            for _ in range(rng.randrange(5, 60)):
                work = rng.choice([world.write_log, world.write_log, world.delete, world.collect])
                if rng.random() < 0.5:
                    nursery.start_soon(work)
                else:
                    await work()
                await world.check(is_quiet=False)
        await world.collect()
        await world.check(is_quiet=True)
        # A kill, while some ledgers are deleted of which the logs have not heard.
        world.alive = dict(rng.sample(sorted(world.alive.items()), len(world.alive) * 2 // 3))
        for log_id in list(world.written):
            if world.logs.get(log_id) is None:
                del world.written[log_id]
    await world.start()
    await world.collect()
    await world.check(is_quiet=True)
    world.alive.clear()
    await world.start()
    await world.collect()
    assert [name for name in disk.list("/d") if name.endswith(".log")] == []


@pytest.fixture
async def logs(disk, tiny, monkeypatch):
    """Three logs, of ledgers 0 to 9, whose maps are on disk; walks are left to the collector."""
    monkeypatch.setattr(map_walk, "AT_ONCE_UNITS", 0)
    logs = EntryLogs(tiny(), disk, "/d")
    for _ in range(3):
        await complete(logs, range(10))
    return logs


async def complete(logs, ledger_ids):
    log = await logs.create()
    log.ledgers.update(dict.fromkeys(ledger_ids, 100))
    await logs.write_map(log)
    await logs.walk.settle(log)
    log.is_written = False
    return log


async def all_live(logs):
    return [sorted(await logs.walk.live_ledgers(log)) for log in logs.all()]


def nobody(ledger_ids):
    return []


def everybody(ledger_id):
    return True


async def test_what_waits_for_the_walk_is_not_forgotten_in_a_later_log(logs):
    """Its ledger was made anew; the log has nothing of the old one."""
    assert await logs.drop_ledgers(range(10)) == 0
    later = await complete(logs, [3, 4])
    assert await logs.remove_dead(everybody, nobody) == 3
    assert [log.log_id for log in logs.all()] == [later.log_id]
    assert await all_live(logs) == [[3, 4]]
    # And deleted again.
    assert await logs.drop_ledgers([3, 4]) == 0
    assert await logs.remove_dead(everybody, nobody) == 1


async def test_what_is_deleted_while_a_log_is_written_is_forgotten_in_it(logs):
    log = await logs.create()
    log.ledgers.update(dict.fromkeys(range(5), 100))
    await logs.write_map(log)
    await logs.drop_ledgers([1, 2])
    await logs.walk.settle(log)
    log.is_written = False
    assert log.ledgers is None
    assert sorted(await logs.walk.live_ledgers(log)) == [0, 3, 4]
    assert (log.live_count, log.live_bytes) == (3, 300)


@pytest.mark.parametrize("turns", range(12))
async def test_what_is_deleted_while_a_map_is_looked_through(disk, tiny, monkeypatch, turns):
    """Behind the part of a batch that it is in; the walk leaves the log to `settle` then."""
    monkeypatch.setattr(map_walk, "PART_COUNT", 2)
    logs = EntryLogs(tiny(), disk, "/d")
    log = await logs.create()
    log.ledgers.update(dict.fromkeys(range(9), 100))
    await logs.write_map(log)
    await logs.drop_ledgers([8])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(logs.walk.settle, log)
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
        await logs.drop_ledgers([0])
    log.is_written = False
    await logs.walk.work_off()
    assert sorted(await logs.walk.live_ledgers(log)) == list(range(1, 8))


async def test_too_many_wait(logs, monkeypatch):
    monkeypatch.setattr(map_walk, "PENDING_MAX", 3)
    await logs.drop_ledgers(range(5))
    assert not logs.walk._pending
    assert await logs.remove_dead(lambda ledger_id: ledger_id >= 5, nobody) == 0
    assert await all_live(logs) == [[5, 6, 7, 8, 9]] * 3


async def test_the_table_alone_is_not_believed(logs):
    await logs.drop_ledgers(())
    assert await logs.remove_dead(lambda ledger_id: False, lambda ledger_ids: [2, 7]) == 0
    assert await all_live(logs) == [[2, 7]] * 3
    assert await logs.remove_dead(lambda ledger_id: False, nobody) == 3, "and asked again"


async def test_a_log_is_looked_at_again_for_any_part_of_it(logs, monkeypatch):
    monkeypatch.setattr(map_walk, "PART_COUNT", 5)
    assert await logs.remove_dead(lambda ledger_id: False, lambda ledger_ids: [2]) == 0
    assert [log.map.is_looked_at for log in logs.all()] == [False] * 3


async def test_what_becomes_known_while_the_index_is_asked_is_kept(logs):
    known = set()

    def with_entries(ledger_ids):
        known.add(7)
        return []

    assert await logs.remove_dead(known.__contains__, with_entries) == 0
    assert await all_live(logs) == [[7]] * 3


async def test_a_map_that_is_damaged_keeps_its_log(logs, disk):
    second = logs.all()[1]
    disk.flip_bit(second.path, second.map.offset + 30)
    await logs.drop_ledgers(range(10))
    assert await logs.remove_dead(everybody, nobody) == 2
    assert logs.all() == [second]
    assert not second.is_known
    assert second.is_doubtful
    assert logs.unknown() == [second]


@pytest.mark.parametrize("by", ["drop", "look"])
async def test_a_map_that_cannot_be_read_now_is_read_later(logs, disk, monkeypatch, by):
    second = logs.all()[1]
    is_failing = True
    read = type(second.map).read

    def read_or_fail(self, file, number):
        if is_failing and self is second.map:
            raise OSError(errno.EMFILE, "too many open files")
        return read(self, file, number)

    monkeypatch.setattr(type(second.map), "read", read_or_fail)
    if by == "drop":
        await logs.drop_ledgers(range(10))
    alive = set()
    for log in logs.all():
        log.map.is_looked_at = by == "drop"
    assert await logs.walk.work_off() is None
    assert [log.live_count for log in logs.all()] == ([0, 10, 0] if by == "drop" else [10] * 3)
    assert await logs.remove_dead(alive.__contains__, nobody) == 2
    assert logs.all() == [second]
    assert second.is_known
    is_failing = False
    assert await logs.remove_dead(alive.__contains__, nobody) == 1


async def test_a_log_that_goes_while_its_map_is_read(logs, disk, autojump_clock):
    first, second, third = logs.all()
    disk.faults.run_seconds = (0.1, 0.1)
    await logs.drop_ledgers(range(9))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(logs.walk.work_off)
        await trio.sleep(0.05)
        logs.remove(first)
        logs.remove(second)
    await logs.close_removed()
    assert logs.all() == [third]
    assert await all_live(logs) == [[9]]
    assert first.file is None
    assert second.file is None


async def test_a_walk_that_is_cancelled_is_made_again(logs, disk, autojump_clock):
    disk.faults.run_seconds = (0.1, 0.1)
    await logs.drop_ledgers(range(9))
    with trio.move_on_after(0.15):
        await logs.walk.work_off()
    assert logs.walk._pending
    disk.faults.run_seconds = (0.0, 0.0)
    await logs.walk.work_off()
    assert await all_live(logs) == [[9]] * 3


async def test_only_maps_that_may_have_it_are_read(logs, monkeypatch):
    """By the lowest and the highest id."""
    log = await complete(logs, range(100, 110))
    reads = []
    read = type(log.map).read
    monkeypatch.setattr(type(log.map), "read", lambda *args: reads.append(args[0]) or read(*args))
    await logs.drop_ledgers([105])
    await logs.walk.work_off()
    assert reads == [log.map]


async def test_few_logs_are_walked_at_once(logs, monkeypatch):
    monkeypatch.setattr(map_walk, "AT_ONCE_UNITS", 500_000)
    assert await logs.drop_ledgers(range(10)) == 3


async def test_unknown_ledgers_are_told_in_parts(logs):
    await logs.drop_ledgers([2])
    await logs.walk.work_off()
    unknown = lambda count: logs.walk.unknown({3, 4}.__contains__, count)  # noqa: E731
    assert await unknown(100) == [0, 1, 5, 6, 7, 8, 9]
    assert len(await unknown(3)) == 3
