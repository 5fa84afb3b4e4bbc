"""Reads that wait for the disk: a recovery's are not behind the others, nor is the flush."""

import pytest
import trio
import trio.testing

from bookie.storage.cold_reads import ALL_MAX, ORDINARY_MAX, ColdReads
from wire.bookkeeper.status import FLAG_DO_FENCING, FLAG_HIGH_PRIORITY, Status

KEY = b"k" * 20
READS = 400


@pytest.mark.parametrize("flags", [FLAG_DO_FENCING, FLAG_HIGH_PRIORITY])
async def test_a_recovery_does_not_wait_behind_cold_reads(
    flags, machine, adds_class, autojump_clock
):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for ledger_id in (1, 2):
            adds.add(ledger_id, 0)
        await adds.wait(2)
        await bookie.flush()
        machine.disk.faults.cached_share = 0.0
        machine.disk.faults.run_seconds = (1.0, 1.0)
        done = []

        async def read():
            status, _ = await bookie.read_entry(1, 0)
            assert status is Status.EOK
            done.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            for _ in range(READS):
                nursery.start_soon(read)
            await trio.sleep(0.5)
            start = trio.current_time()
            status, _ = await bookie.read_entry(2, 0, flags=flags, master_key=KEY)
            assert status is Status.EOK
            assert trio.current_time() - start < 2
            adds.add(3, 0)
            start = trio.current_time()
            await bookie.flush()
            assert trio.current_time() - start < 15
            assert len(done) < READS // 2
            machine.disk.faults.run_seconds = (0.0, 0.0)
        assert len(done) == READS


async def test_turns_are_given_in_order_and_given_back(autojump_clock):
    cold_reads = ColdReads()
    told = []

    async def read(name, *, is_urgent, seconds=1.0):
        async with cold_reads.turn(is_urgent=is_urgent):
            told.append(name)
            await trio.sleep(seconds)

    async with trio.open_nursery() as nursery:
        for number in range(ORDINARY_MAX):
            nursery.start_soon(lambda number=number: read(number, is_urgent=False, seconds=10))
        await trio.sleep(0.1)
        async with trio.open_nursery() as given_up:
            for _ in range(3):
                given_up.start_soon(lambda: read("given up", is_urgent=False))
            await trio.sleep(0.1)
            assert cold_reads.waiting == 3
            given_up.cancel_scope.cancel()
        nursery.start_soon(lambda: read("late", is_urgent=False))
        for _ in range(ALL_MAX):
            nursery.start_soon(lambda: read("urgent", is_urgent=True))
        await trio.sleep(0.1)
        assert told.count("urgent") == ALL_MAX - ORDINARY_MAX
    assert "given up" not in told
    assert told[-1] == "late"
    assert sorted(map(str, told)).count("urgent") == ALL_MAX
    assert cold_reads.waiting == 0


async def test_a_turn_that_comes_to_one_who_was_just_cancelled_goes_to_the_next():
    cold_reads = ColdReads()
    scope, release = trio.CancelScope(), [trio.Event() for _ in range(ORDINARY_MAX)]

    async def hold(event):
        async with cold_reads.turn(is_urgent=False):
            await event.wait()

    async def leave():
        with scope:
            async with cold_reads.turn(is_urgent=False):
                raise AssertionError("it was cancelled")

    async with trio.open_nursery() as nursery:
        for event in release:
            nursery.start_soon(hold, event)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(leave)
        await trio.testing.wait_all_tasks_blocked()
        assert cold_reads.waiting == 1
        # It is told both in one turn of the loop, the cancellation first.
        scope.cancel()
        cold_reads._ordinary.running -= 1
        cold_reads._let_go_on()
        await trio.testing.wait_all_tasks_blocked()
        cold_reads._ordinary.running += 1
        for event in release:
            event.set()
    assert (cold_reads.waiting, cold_reads._ordinary.running) == (0, 0)


async def test_ordinary_reads_go_on_while_recoveries_read(autojump_clock):
    """Nine reads of recoveries (or of any client that sets the high-priority flag) at a time."""
    cold_reads = ColdReads()
    counts = {True: 0, False: 0}

    async def read(is_urgent):
        while True:
            async with cold_reads.turn(is_urgent=is_urgent):
                await trio.sleep(0.01)
            counts[is_urgent] += 1

    with trio.move_on_after(10):
        async with trio.open_nursery() as nursery:
            for _ in range(9):
                nursery.start_soon(read, True)
            await trio.sleep(0.005)
            for _ in range(8):
                nursery.start_soon(read, False)
    assert counts[False] > 0, counts
