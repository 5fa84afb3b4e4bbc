"""Deletions on their way to index and logs, in portions, while ledgers and collectors come between.

Most of the checkpointer is tested where a whole bookie is (tests/bookie)."""

import errno

import pytest
import trio

from bookie.storage import checkpointer, map_walk
from bookie.storage.checkpoint import CHECKPOINT_NAME, encode_checkpoint, read_checkpoint
from runtime.sim_disk import SimFile
from wire.bookkeeper.status import Status

LEDGER = 9
TOGETHER = pytest.mark.parametrize("together", [1, 2, 50_000])


@pytest.fixture
def forgets(monkeypatch):
    """What was deleted is not remembered for long, as after TOMBSTONES_MAX more."""

    def forget(bookie):
        bookie._table.age_tombstones()
        bookie._table.age_tombstones()

    return forget


@TOGETHER
async def test_each_portion_goes_from_logs_and_index(machine, adds_class, monkeypatch, together):
    """At the checkpoint, and not only when the collector looks."""
    monkeypatch.setattr(checkpointer, "DELETIONS_TOGETHER_MAX", together)
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for ledger_id in range(6):
            adds.add(ledger_id, 0)
        await adds.wait(6)
        await bookie.flush()
        for ledger_id in range(5):
            await bookie.delete_ledger(ledger_id)
        await bookie.flush()
        assert not bookie._checkpointer.deletions
        assert set(bookie._checkpointer.current_log.ledgers) == {5}
        assert [ledger_id for ledger_id, _ in machine.index.ledgers()] == [5]


@TOGETHER
async def test_what_was_never_stored_is_not_stored_dead(machine, adds_class, monkeypatch, together):
    """Made and deleted between two checkpoints."""
    monkeypatch.setattr(checkpointer, "DELETIONS_TOGETHER_MAX", together)
    stored = []
    put = type(machine.index).put_ledgers

    def put_ledgers(index, states):
        states = list(states)
        stored.extend(ledger_id for ledger_id, _ in states)
        put(index, states)

    monkeypatch.setattr(type(machine.index), "put_ledgers", put_ledgers)
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for ledger_id in range(4):
            adds.add(ledger_id, 0)
        await adds.wait(4)
        for ledger_id in range(3):
            await bookie.delete_ledger(ledger_id)
        await bookie.flush()
        assert stored == [3]
        assert [ledger_id for ledger_id, _ in machine.index.ledgers()] == [3]


async def test_a_ledger_is_deleted_until_its_deletion_is_done(machine, adds_class, forgets):
    """What a new one got meanwhile went from the index with the old one."""
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        adds.add(LEDGER, 0)
        await adds.wait(1)
        await bookie.flush()
        assert await bookie.delete_ledger(LEDGER) is Status.EOK
        forgets(bookie)
        adds.add(LEDGER, 5)
        assert adds.statuses()[-1] is Status.EFENCED
        await bookie.flush()
        adds.add(LEDGER, 6)
        await adds.wait(3)
        assert adds.statuses()[-1] is Status.EOK
        await bookie.flush()
        assert list(await bookie.entries(LEDGER)) == [6]


async def test_one_that_is_deleted_twice_is_gone_after_a_crash(
    machine_class, adds_class, forgets, monkeypatch
):
    """Should it come back all the same: the first deletion was answered, and is done although the
    second one is not durable when the mark moves past the first."""
    machine = machine_class(1)
    held = []
    is_held = False
    sync = SimFile.sync

    def slow_sync(file, done):
        if is_held and file.path.startswith("/journal"):
            held.append(done)
        else:
            sync(file, done)

    monkeypatch.setattr(SimFile, "sync", slow_sync)
    monkeypatch.setattr(checkpointer, "DELETIONS_PER_TURN", 1)
    came_back = []
    async with machine.running_until_crash() as bookie:
        bookie._table.undone = ()
        adds = adds_class(bookie)
        for ledger_id in (1, 2, LEDGER):
            adds.add(ledger_id, 0, b"first life")
        await adds.wait(3)
        assert await bookie.flush()
        for ledger_id in (1, 2, LEDGER):
            assert await bookie.delete_ledger(ledger_id) is Status.EOK
        forgets(bookie)
        async with trio.open_nursery() as nursery:

            class Turns(checkpointer.Slices):
                async def turn(self):
                    nonlocal is_held
                    if not came_back and bookie._checkpointer._barrier is None:
                        came_back.append(True)
                        is_held = True
                        adds.add(LEDGER, 7, b"late writer")
                        nursery.start_soon(bookie.delete_ledger, LEDGER)
                        for _ in range(5):
                            await trio.lowlevel.checkpoint()
                    await super().turn()

            monkeypatch.setattr(checkpointer, "Slices", Turns)
            assert await bookie.flush()
            assert came_back
            assert held
            nursery.cancel_scope.cancel()
    is_held = False
    async with machine.running() as bookie:
        assert 0 not in list(await bookie.entries(LEDGER) or ())


@pytest.mark.parametrize("when", ["between portions", "before the deletions are forgotten"])
async def test_what_a_collector_saw_too_early_is_looked_at_again(
    machine, adds_class, monkeypatch, when
):
    """So many deletions that all logs are looked at anew; until the last is done, all of them
    count as known."""
    monkeypatch.setattr(map_walk, "AT_ONCE_UNITS", 0)
    monkeypatch.setattr(map_walk, "PENDING_MAX", 3)
    monkeypatch.setattr(checkpointer, "DELETIONS_TOGETHER_MAX", 4)
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for ledger_id in range(10):
            adds.add(ledger_id, 0, b"x" * 100)
        await adds.wait(10)
        await bookie.flush()
        await bookie._checkpointer.roll_log()
        logs = bookie._logs
        (log,) = [each for each in logs.all() if each.map is not None and each.live_count]
        for ledger_id in range(9):
            await bookie.delete_ledger(ledger_id)
        drop, close = logs.drop_ledgers, logs.close_removed_later

        async def drop_and_look(ledger_ids, *, at_once=False):
            removed = await drop(ledger_ids, at_once=at_once)
            if when == "between portions":
                await bookie.gc._drop_dead()
            return removed

        async def look_and_close():
            await bookie.gc._drop_dead()
            await close()

        with monkeypatch.context() as patch:
            patch.setattr(type(logs), "drop_ledgers", lambda _, *a, **k: drop_and_look(*a, **k))
            patch.setattr(type(logs), "close_removed_later", lambda _: look_and_close())
            await bookie.flush()
        await bookie.gc._drop_dead()
        assert sorted(await logs.walk.live_ledgers(log)) == [9]


async def test_both_are_named_while_nobody_knows_which_checkpoint_is_there(
    machine, adds_class, monkeypatch
):
    """Its first file is written and the second finds no space: the start goes by the first."""
    directory = "/ledgers/current"

    def half_written(disk, directory, checkpoint):
        disk.write_file(f"{directory}/{CHECKPOINT_NAME}", encode_checkpoint(checkpoint))
        raise OSError(errno.ENOSPC, "no space for lastMark")

    async with machine.running() as bookie:
        adds = adds_class(bookie)
        adds.add(1, 0, bytes(100))
        await adds.wait(1)
        await bookie.flush()
        names = bookie._checkpointer.checkpoint_log_ids
        assert names == read_checkpoint(machine.disk, directory).log_ids
        with monkeypatch.context() as patch:
            patch.setattr(checkpointer, "write_checkpoint", half_written)
            await bookie._checkpointer.roll_log()
        on_disk = read_checkpoint(machine.disk, directory).log_ids
        assert on_disk != names
        assert bookie._checkpointer.checkpoint_log_ids == names | on_disk
        adds.add(1, 1, bytes(100))
        await adds.wait(2)
        await bookie.flush()
        assert bookie._checkpointer.checkpoint_log_ids == on_disk
