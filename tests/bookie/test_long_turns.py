"""No request, and nothing in the background, holds the loop for as long as its input is large.

The longest step of any task is measured, in processor time of the loop's thread; each of these took
a multiple of the bound in one step."""

import gc

import pytest
import trio

from bench.longest_step import LongestStep
from bookie.reads import ENTRIES_PER_READ_MAX
from bookie.server.long_polls import ANSWERED_PER_TURN, LongPolls
from bookie.server.request_limits import BATCHED_PER_TURN, BatchPace
from bookie.storage.entry_log import EntryLog
from bookie.storage.entry_log_format import pack_ledgers_map
from bookie.storage.entry_logs import EntryLogs
from bookie.storage.index import MemoryIndex
from bookie.storage.rocks_index import RocksIndex
from bookie.storage.sorting import sort_in_slices
from bookie.storage.write_cache import LedgerRun
from runtime.real_disk import RealDisk
from runtime.sim_disk import SimDisk
from runtime.timers import Timers
from runtime.turn import Turn
from tests.turns import check_turn
from wire.bookkeeper.entry_set import EntrySet, decode_entry_set
from wire.bookkeeper.requests import ReadRequest
from wire.bookkeeper.status import Status

pytestmark = pytest.mark.turns

BOUND_SECONDS = 0.05
MIB = 1 << 20


async def longest_step(work):
    instrument = LongestStep()

    async def watched():
        trio.lowlevel.add_instrument(instrument)
        await trio.lowlevel.checkpoint()  # what the test did before is not counted
        gc.disable()  # the server has its own way with it (quire/role.py)
        try:
            return await work()
        finally:
            gc.enable()
            trio.lowlevel.remove_instrument(instrument)

    return await watched(), instrument.seconds


async def test_the_list_of_half_a_million_entries(machine):
    async with machine.running() as bookie:
        bookie._adds.create(1, b"k" * 20)
        count = 500_000
        machine.index._tables.sorted_ids[1] = list(range(0, 3 * count, 3))
        (_, encoded), seconds = await longest_step(lambda: bookie.encoded_entries(1))
    assert decode_entry_set(encoded).count == count
    check_turn(seconds, BOUND_SECONDS)


async def test_the_list_of_entries_in_cache_and_index_is_their_union(machine, adds_class):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        expected = [0, 1, 2, 5, 7, 8, 20, 21, 22, 23, 40]
        for number, entry_id in enumerate([20, 21, 5, 0, 1, 2, 40, 22, 7, 8, 23, 21], 1):
            adds.add(1, entry_id)
            await adds.wait(number)
            if number in (3, 7):
                await bookie.flush()
        assert await bookie.entries(1) == EntrySet.of_entries(expected)
        assert await bookie.entries(2) is None


def many_logs(logs, log_count, ledger_count):
    for log_id in range(log_count):
        ledgers = dict.fromkeys(range(ledger_count), 100)
        logs._logs[log_id] = EntryLog(log_id, f"/d/{log_id:x}.log", 10_000, ledgers)


async def test_thousands_of_ledgers_go_from_hundreds_of_logs(machine):
    logs = EntryLogs(machine.config, machine.disk, "/d")
    log_count, ledger_count = 600, 4000
    many_logs(logs, log_count, ledger_count)
    gone = range(1, ledger_count)
    before = [log.live_bytes for log in logs.all()]
    removed, seconds = await longest_step(lambda: logs.drop_ledgers(gone))
    assert removed == 0
    assert before == [100 * ledger_count] * log_count
    assert [log.ledgers for log in logs.all()] == [{0: 100}] * log_count
    assert [log.live_bytes for log in logs.all()] == [100] * log_count
    check_turn(seconds, BOUND_SECONDS)


async def test_a_checkpoint_of_very_many_deletions(machine, monkeypatch):
    """A round of collection may delete all that a bookie has. What is left is a list of their
    numbers and one of what says so, 20 ms for a million; a pair for each took 50."""
    count = 1_000_000
    # The simulation's disk does this on the loop; a real one has a thread for it.
    monkeypatch.setattr(type(machine.index), "sync", lambda index: None)
    async with machine.running() as bookie:
        log = bookie._logs._logs[9] = EntryLog(9, "/d/9.log", 10_000, dict.fromkeys(range(9), 1))
        deletions = bookie._checkpointer.deletions
        deletions.update(dict.fromkeys(range(1, count), bookie._journal.cut()))
        _, seconds = await longest_step(bookie.flush)
        assert not deletions
        assert log.ledgers == {0: 1}
    check_turn(seconds, 0.035)


async def test_what_comes_back_meanwhile_is_not_forgotten(machine):
    """A writer brings a ledger back while the index is asked."""
    logs = EntryLogs(machine.config, machine.disk, "/d")
    many_logs(logs, 3, 10)
    back = set()

    def with_entries(ledger_ids):
        back.add(7)
        return []

    await logs.remove_dead(back.__contains__, with_entries)
    assert [log.ledgers for log in logs.all()] == [{7: 100}] * 3
    assert await logs.walk.unknown(lambda ledger_id: False, 10) == [7]


async def test_ninety_thousand_tiny_entries_are_not_one_read(machine_class, adds_class):
    machine = machine_class(
        write_cache_size_bytes=64 * MIB,
        write_cache_segment_size_bytes=MIB,
        held_adds_max=100_000,
        held_adds_size_max_bytes=64 * MIB,
        journal_size_bytes=16 * MIB,
        journal_queue_size_max_bytes=64 * MIB,
    )
    count = 20_000
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(count):
            adds.add(1, entry_id, b"")
        await adds.wait(count)

        async def read():
            return bookie.read_entries_nowait(1, 0, 0, 5 * MIB)

        (status, entries), seconds = await longest_step(read)
    assert status is Status.EOK
    assert len(entries) == ENTRIES_PER_READ_MAX
    check_turn(seconds, BOUND_SECONDS)


async def test_a_burst_of_batch_reads_is_not_one_turn():
    turn = Turn()
    pace = BatchPace(turn)
    turn.begin()
    assert pace.is_free()
    pace.answered(BATCHED_PER_TURN)
    assert not pace.is_free()
    turn.run()
    assert pace.is_free()
    passes, order = [0], []

    async def count():
        while True:
            await trio.lowlevel.checkpoint()
            passes[0] += 1

    async def read(number):
        await pace.wait()
        order.append((passes[0], number))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        async with trio.open_nursery() as reads:
            for number in range(50):
                reads.start_soon(read, number)
        nursery.cancel_scope.cancel()
    assert len({when for when, _ in order}) >= 49


@pytest.mark.parametrize("is_dense", [True, False])
async def test_a_flush_of_many_ledgers_and_of_many_entries(machine_class, tmp_path, is_dense):
    """Each ledger with one entry, and one ledger with all of them backwards. On a real disk: what
    that does is a worker's, while a simulated one copies its files on the loop's thread."""
    for name in ("journal", "ledgers"):
        (tmp_path / name).mkdir()
    machine = machine_class(
        journal_directory=str(tmp_path / "journal"),
        ledger_directory=str(tmp_path / "ledgers"),
        write_cache_size_bytes=64 * MIB,
        write_cache_segment_size_bytes=MIB,
        journal_size_bytes=16 * MIB,
        journal_queue_size_max_bytes=64 * MIB,
        entry_log_size_limit_bytes=64 * MIB,
        flush_entry_log_bytes=MIB,
    )
    machine.disk = RealDisk()
    machine.index = RocksIndex(str(tmp_path / "index"), 1 << 20)
    count = 40_000
    async with machine.running() as bookie:
        cache = bookie._cache
        for number in reversed(range(count)):
            ledger_id, entry_id = (number, 0) if is_dense else (1, number)
            start = cache.put(ledger_id, entry_id, [bytes(32)], 32)
            cache.commit(ledger_id, entry_id, start, 32)
        done, seconds = await longest_step(bookie.flush)
        assert done
        assert machine.index.get(39_999, 0) if is_dense else machine.index.get(1, 39_999)
    check_turn(seconds, BOUND_SECONDS)


async def test_a_run_is_walked_in_order_whatever_the_order_of_the_adds():
    run = LedgerRun(10)
    expected = {}
    for place, entry_id in enumerate([10, 11, 3, 12, 40, 3, 12, 30, 11, 5]):
        if entry_id == run.next_entry_id:
            run.places.append(place)
            run.next_entry_id += 1
            run.last_entry_id = max(run.last_entry_id, entry_id)
        else:
            run.put_out_of_order(entry_id, place)
        expected[entry_id] = place
    assert list(await run.sorted_places()) == sorted(expected.items())


@pytest.mark.parametrize("count", [0, 1, 1999, 2000, 2001, 10_007])
async def test_sorting_in_slices(machine, count):
    numbers = list(range(count))
    machine.rng.shuffle(numbers)
    assert list(await sort_in_slices(numbers)) == list(range(count))


@pytest.mark.parametrize("count", [1, 10_000, 10_001, 25_003])
async def test_a_map_made_in_slices_is_the_same(machine, count):
    ledgers = {3 * i: i + 1 for i in reversed(range(count))}
    logs = EntryLogs(machine.config, SimDisk(machine.rng), "/d")
    assert b"".join(await logs._pack_batches(ledgers)) == pack_ledgers_map(ledgers)


def ranges_of(index, ledger_ids):
    return list(index._ranges(sorted(ledger_ids)))


def test_deleted_neighbours_are_one_range(tmp_path):
    index = RocksIndex(str(tmp_path), 1 << 20)
    index.open()
    ledger_ids = range(100, 40_000, 13)
    for ledger_id in ledger_ids:
        index.put(ledger_id, [0, 5], [1, 2])
    assert ranges_of(index, ledger_ids) == [(100, ledger_ids[-1])]
    kept = ledger_ids[1000]
    others = [each for each in ledger_ids if each != kept]
    assert ranges_of(index, others) == [(100, ledger_ids[999]), (ledger_ids[1001], others[-1])]
    index.delete_ledgers(others)
    assert index._deletions_in_memory == 2
    assert index.last_entry_id(kept) == 5
    assert index.with_entries([*ledger_ids]) == [kept]
    index.sync()
    index.close()


@pytest.mark.parametrize("seed", range(10))
def test_deletions_in_ranges_delete_the_same(machine_class, tmp_path, seed):
    rng = machine_class(seed).rng
    index, model = RocksIndex(str(tmp_path), 1 << 20), MemoryIndex()
    index.open()
    for _ in range(300):
        ledger_ids = sorted(rng.sample(range(60), rng.randrange(1, 20)))
        match rng.randrange(5):
            case 0 | 1:
                entry_ids = sorted(rng.sample(range(9), rng.randrange(1, 4)))
                for each in (index, model):
                    each.put(ledger_ids[0], entry_ids, [7] * len(entry_ids))
            case 2:
                index.delete_ledgers(ledger_ids)
                model.delete_ledgers(ledger_ids)
            case 3:
                index.sync()
            case 4:
                assert index.with_entries(ledger_ids) == model.with_entries(ledger_ids)
        asked = rng.sample(range(60), 5)
        found = [index.last_entry_id(each) for each in asked]
        assert found == [model.last_entry_id(each) for each in asked]
    assert list(index.locations()) == list(model.locations())
    index.close()


class Reader:
    """A connection that keeps what it is answered, and in which turn."""

    is_closed = False

    def __init__(self, turns):
        self.turns = turns
        self.answers = []

    def answer(self, response):
        self.answers.append((self.turns[0], response.transaction_id))


async def test_thousands_who_wait_for_one_ledger_are_answered_in_turns(machine):
    turns = [0]

    async def count():
        while True:
            await trio.lowlevel.checkpoint()
            turns[0] += 1

    async with machine.running() as bookie, trio.open_nursery() as nursery:
        timers = Timers()
        nursery.start_soon(timers.run)
        nursery.start_soon(count)
        bookie._adds.create(1, b"k" * 20)
        _, lac = await bookie.lacs.follow(1)
        polls = LongPolls(bookie, machine.turn, timers, 10_000)
        reader = Reader(turns)
        number = 10 * ANSWERED_PER_TURN
        for transaction_id in range(number):
            request = ReadRequest(
                1, 0, previous_lac=3, timeout_ms=60_000, transaction_id=transaction_id
            )
            polls.park(reader, request, lac)
        lac.see(4)
        with trio.fail_after(30):
            while polls.count:
                await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    assert [each for _, each in reader.answers] == list(range(number))
    by_turn = [turn for turn, _ in reader.answers]
    assert max(map(by_turn.count, by_turn)) <= 2 * ANSWERED_PER_TURN
