"""Single reads that bring along what follows: the same answers, fewer look-ups, nothing kept."""

import random

import pytest
import trio

from wire.bookkeeper.status import Status

LEDGERS = (1, 2)
COUNT = 60


async def filled(machine, bookie, adds_class, *, is_flushed):
    adds = adds_class(bookie)
    for number, entry_id in enumerate(range(COUNT), 1):
        for ledger_id in LEDGERS:
            adds.add(ledger_id, entry_id, b"%d" % entry_id * (entry_id % 7 * 40))
        await adds.wait(number * len(LEDGERS))
        if is_flushed and number % 20 == 0:
            await bookie.flush()
    assert set(adds.statuses()) == {Status.EOK}


@pytest.fixture
def look_ups(monkeypatch):
    """Ranges that the reader below is asked for."""
    found = []

    def watch(bookie):
        reader = bookie._reads._ahead._reader

        class Watched:
            statistics = reader.statistics

            @staticmethod
            def read_nowait(ledger_id, first_entry_id, count_max, size_max):
                found.append((ledger_id, first_entry_id, count_max))
                return reader.read_nowait(ledger_id, first_entry_id, count_max, size_max)

        bookie._reads._ahead._reader = Watched
        return found

    return watch


@pytest.mark.parametrize("is_flushed", [False, True])
@pytest.mark.parametrize("stride", [1, 3])
async def test_a_burst_of_reads_looks_up_few(
    machine, adds_class, entry_bytes, look_ups, stride, is_flushed
):
    async with machine.running() as bookie:
        await filled(machine, bookie, adds_class, is_flushed=is_flushed)
        found = look_ups(bookie)
        wanted = range(0, COUNT, stride)
        before = bookie.statistics()
        for entry_id in wanted:
            status, (entry,) = bookie.read_entry_nowait(1, entry_id)
            assert status is Status.EOK
            payload = b"%d" % entry_id * (entry_id % 7 * 40)
            assert bytes(entry) == entry_bytes(1, entry_id, payload)
        assert len(found) < 8, found
        # What was brought along and not asked for is not counted.
        after = bookie.statistics()
        read = [
            after.read_cache_entries - before.read_cache_entries,
            after.read_log_entries - before.read_log_entries,
        ]
        assert sum(read) == len(wanted)
        assert (read[0] == 0) == is_flushed
        sizes = [len(entry_bytes(1, i, b"%d" % i * (i % 7 * 40))) for i in wanted]
        assert after.read_bytes - before.read_bytes == sum(sizes)

        # Behind the end, and another turn: nothing is kept.
        assert bookie.read_entry_nowait(1, COUNT) == (Status.ENOENTRY, [])
        await trio.testing.wait_all_tasks_blocked()
        found.clear()
        assert bookie.read_entry_nowait(1, COUNT - 1)[0] is Status.EOK
        assert found == [(1, COUNT - 1, 1)]


async def test_reads_in_no_order_look_up_one_each(machine, adds_class, look_ups):
    """Else each would bring along dozens for nothing."""
    async with machine.running() as bookie:
        await filled(machine, bookie, adds_class, is_flushed=True)
        found = look_ups(bookie)
        for entry_id in range(COUNT - 1, -1, -1):
            assert bookie.read_entry_nowait(1, entry_id)[0] is Status.EOK
        assert [count_max for _, _, count_max in found] == [1] * COUNT


@pytest.mark.parametrize("seed", range(20))
async def test_answers_are_the_same(machine, adds_class, entry_bytes, seed):
    """As entry by entry, each in a turn of its own: adds and deletions between the reads."""
    rng = random.Random(seed)
    async with machine.running() as bookie:
        await filled(machine, bookie, adds_class, is_flushed=rng.random() < 0.5)
        adds = adds_class(bookie)
        ledger_id, entry_id, end = 1, 0, COUNT
        for _ in range(200):
            action = rng.random()
            if action < 0.02:
                assert await bookie.delete_ledger(ledger_id) is Status.EOK
            elif action < 0.05:
                adds.add(2, end, b"late")
                await adds.wait(end - COUNT + 1)
                end += 1
            elif action < 0.1:
                await trio.testing.wait_all_tasks_blocked()
            elif action < 0.15:
                ledger_id, entry_id = rng.choice(LEDGERS), rng.randrange(COUNT)
            entry_id += rng.choice([1, 1, 1, 2, 3, 9, -1])
            if entry_id < 0:
                continue
            found = bookie.read_entry_nowait(ledger_id, entry_id)
            wanted = bookie.read_entries_nowait(ledger_id, entry_id, 1, 0)
            assert (found is None) == (wanted is None)
            if found is not None:
                assert found[0] is wanted[0]
                assert list(map(bytes, found[1])) == list(map(bytes, wanted[1]))
