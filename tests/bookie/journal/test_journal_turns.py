"""A turn of the loop writes so much of the journal, and no more: the rest follows in later ones."""

import random
import struct

import pytest
import trio
import trio.testing

from bookie.config import BookieConfig
from runtime.sim_disk import SimDisk, SimFile
from tests.bookie.journal.test_journal import Rig, replayed
from wire.bookkeeper.status import Status

TURN_SIZE = 1000


@pytest.fixture
def config(tiny) -> BookieConfig:
    return tiny(journal_size_bytes=64 << 10, journal_group_size_max_bytes=4000)


@pytest.fixture
def writes(monkeypatch):
    """Bytes of each write since the last `clear`."""
    sizes = []
    pwrite = SimFile.pwrite

    def counted(file, buffers, offset):
        sizes.append(sum(map(len, buffers)))
        pwrite(file, buffers, offset)

    monkeypatch.setattr(SimFile, "pwrite", counted)
    return sizes


@pytest.fixture
async def rig(config):
    return await Rig(SimDisk(random.Random(1)), config, TURN_SIZE).open()


def later(turn):
    """A step of `Turn.serve`; whether there was anything."""
    functions = list(turn._later)
    turn._later.clear()
    for function in functions:
        function()
    turn.run()
    return bool(functions)


def add(rig, count, answers, size=300, start=0):
    for entry_id in range(start, start + count):
        rig.add(1, entry_id, bytes([entry_id]) * size, lambda s, e=entry_id: answers.append((e, s)))


async def test_what_is_written_in_one_turn_is_bounded(rig, writes):
    answers = []
    add(rig, 30, answers)  # 9.5 kB, in three groups
    writes.clear()
    rig.turn.run()
    turns = [sum(writes)]
    while later(rig.turn):
        turns.append(sum(writes) - sum(turns))
    assert max(turns) <= TURN_SIZE
    assert len(turns) >= 10
    assert answers == [(entry_id, Status.EOK) for entry_id in range(30)]
    statistics = rig.journal.statistics()
    assert (statistics.groups, statistics.groups_in_slices) == (3, 3)
    assert sum(turns) == statistics.written_bytes
    assert statistics.queued_bytes == 0
    found, replay = replayed(rig.disk)
    assert [entry_id for _, entry_id, _ in found] == list(range(30))
    assert replay.group_count == 3


async def test_nothing_is_told_before_all_of_its_group_is_durable(rig):
    answers = []
    add(rig, 10, answers)
    rig.turn.run()
    told = []
    while later(rig.turn):
        told.append(len(answers))
        found, _ = replayed(rig.disk)
        assert len(answers) <= len(found)
    assert told[0] == 0
    assert told[-1] == 10


async def test_a_crash_within_a_group_is_a_torn_write(rig):
    answers = []
    add(rig, 2, answers)
    rig.turn.run()
    add(rig, 10, answers, start=2)
    rig.turn.run()
    later(rig.turn)
    assert [entry_id for entry_id, _ in answers] == [0, 1]
    found, replay = replayed(rig.disk)
    assert [entry_id for _, entry_id, _ in found] == [0, 1]
    assert replay.group_count == 1


async def test_what_comes_meanwhile_waits_behind(rig):
    answers = []
    add(rig, 10, answers)
    rig.turn.run()
    for number in range(10, 40):
        add(rig, 1, answers, size=20, start=number)
        rig.turn.run()
        later(rig.turn)
    while later(rig.turn):
        pass
    assert [entry_id for entry_id, _ in answers] == list(range(40))
    assert [entry_id for _, entry_id, _ in replayed(rig.disk)[0]] == list(range(40))


async def test_a_write_that_fails_in_the_middle_of_a_group_refuses_all_of_it(rig):
    answers = []
    add(rig, 10, answers)
    rig.turn.run()
    rig.disk.faults.capacity_bytes = 0
    file = rig.journal._file

    class Failing:
        def __getattr__(self, name):
            return getattr(file, name)

        def pwrite(self, buffers, offset):
            raise OSError(5, "Input/output error")

    rig.journal._file = Failing()
    while later(rig.turn):
        pass
    assert len(rig.errors) == 1
    assert answers == []
    rig.journal.refuse_pending(Status.EIO)
    assert answers == [(entry_id, Status.EIO) for entry_id in range(10)]


async def test_who_waits_goes_on_with_it_if_nobody_runs_the_turn(rig):
    """So a bookie that stops ends, whatever ended before it."""
    answers = []
    add(rig, 30, answers)
    group = rig.journal.cut()
    rig.journal.pump()
    with trio.fail_after(5):
        end = await rig.journal.wait_durable(group)
    assert end.sequence == 3
    assert len(answers) == 30


async def test_it_is_not_left_while_a_group_is_half_written(rig):
    answers = []
    add(rig, 10, answers)
    rig.turn.run()
    await rig.files.prepare()
    assert not rig.journal.leave()
    assert not rig.journal.attest()
    while later(rig.turn):
        pass
    assert rig.journal.leave()


@pytest.mark.parametrize("waiters", [1, 4, 16])
async def test_many_who_wait_do_not_write_more_in_one_turn(rig, monkeypatch, waiters):
    """Each of them goes on with what is put off, if nobody else did."""

    class Passes(trio.abc.Instrument):
        number = 0

        def before_io_wait(self, timeout):
            self.number += 1

    passes, written, pwrite = Passes(), {}, SimFile.pwrite
    trio.lowlevel.add_instrument(passes)

    def counted(file, buffers, offset):
        size = sum(map(len, buffers))
        written[passes.number] = written.get(passes.number, 0) + size
        pwrite(file, buffers, offset)

    monkeypatch.setattr(SimFile, "pwrite", counted)
    answers = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.turn.serve)
        await trio.testing.wait_all_tasks_blocked()
        written.clear()
        add(rig, 100, answers)
        group = rig.journal.cut()
        with trio.fail_after(5):
            async with trio.open_nursery() as waits:
                for _ in range(waiters):
                    waits.start_soon(rig.journal.wait_durable, group)
            while len(answers) < 100:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    trio.lowlevel.remove_instrument(passes)
    assert max(written.values()) <= 2 * TURN_SIZE


async def test_who_waits_already_goes_on_with_what_is_put_off(rig):
    add(rig, 30, [])
    group = rig.journal.cut()
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.journal.wait_durable, group)
            await trio.testing.wait_all_tasks_blocked()
            rig.journal.pump()
    assert rig.journal.is_durable(group)


async def test_a_pump_meanwhile_writes_nothing_more(rig, writes):
    add(rig, 30, [])
    rig.turn.run()
    writes.clear()
    rig.journal.pump()
    assert not writes
    rig.turn.spent_units = 0
    later(rig.turn)
    assert sum(writes) == TURN_SIZE
    assert rig.turn.spent_units == TURN_SIZE >> 9


async def test_what_comes_meanwhile_is_one_group(rig):
    answers = []
    add(rig, 30, answers)
    rig.turn.run()
    groups = rig.journal.statistics().groups
    for number in range(30):
        add(rig, 1, answers, size=20, start=30 + number)
        rig.turn.run()
    while later(rig.turn):
        pass
    assert len(answers) == 60
    assert rig.journal.statistics().groups - groups <= 4


async def test_what_was_put_off_ends_with_the_journal(rig):
    add(rig, 30, [])
    rig.turn.run()
    rig.journal.close()
    later(rig.turn)
    assert replayed(rig.disk)[0] == []


async def test_a_sync_follows_in_the_turn_in_which_unsynced_adds_are_answered(rig, monkeypatch):
    """Behind the answers, which leave first."""
    order, sync = [], SimFile.sync

    def noted(file, done):
        order.append("sync")
        sync(file, done)

    monkeypatch.setattr(SimFile, "sync", noted)

    def answered(_status):
        order.append("answer")
        rig.turn.defer(lambda: order.append("sent"))

    rig.journal.append_unsynced(memoryview(b"x" * 100), 0, 100, answered)
    rig.turn.defer(lambda: order.append("request"))
    rig.turn.run()
    assert order == ["request", "answer", "sent", "sync"]
    assert not rig.turn._later


async def test_a_write_in_slices_takes_as_long_as_all_of_them(config, monkeypatch):
    """What other turns do meanwhile is no part of it."""

    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    clock = Clock()
    rig = Rig(SimDisk(random.Random(1)), config, TURN_SIZE)
    rig.journal._clock = clock
    await rig.open()
    pwrite = SimFile.pwrite

    def slow(file, buffers, offset):
        clock.now += 0.25
        pwrite(file, buffers, offset)

    monkeypatch.setattr(SimFile, "pwrite", slow)
    add(rig, 10, [])
    rig.turn.run()
    clock.now += 100
    slices = 1
    while later(rig.turn):
        clock.now += 100
        slices += 1
    statistics = rig.journal.statistics()
    assert statistics.groups == 1
    assert statistics.write_latency.sum_seconds == slices * 0.25


async def test_unsynced_adds_are_answered_once_all_of_their_group_is_written(rig):
    answers, record = [], memoryview(struct.pack(">iqq", 316, 1, 7) + bytes(300))
    for number in range(10):
        rig.journal.append_unsynced(
            record, 0, len(record), lambda _, number=number: answers.append(number)
        )
    rig.turn.run()
    before = []
    while later(rig.turn):
        before.append(len(answers))
        assert len(answers) <= len(replayed(rig.disk)[0])
    assert before[0] == 0
    assert answers == list(range(10))
