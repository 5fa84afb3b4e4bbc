"""Reader: what a reader that goes on costs: look-ups, looks into logs, and bytes copied by them."""

import pytest

import bookie.storage.reader as reader_module
from bookie.storage.entry_log_format import LENGTH_SIZE
from bookie.storage.reader import BEHIND_BYTES, WINDOW_SIZE_MIN_BYTES
from tests.bookie.storage.large_entries import add, check, payload_of
from wire.bookkeeper.status import Status

MIB = 1 << 20
#: What is behind the last one is looked for, too.
END = 1


class Through:
    """Stands before an object with slots, some of whose methods are others."""

    def __init__(self, behind, **others):
        self.behind = behind
        self.__dict__.update(others)

    def __getattr__(self, name):
        return getattr(self.behind, name)


class Watched:
    """What the reader of a bookie does to the index and to the logs."""

    def __init__(self, bookie):
        self.look_ups = 0
        self.looks = []
        self.reader = reader = bookie._reader
        logs, index = reader._logs, reader._index
        reader._logs = Through(logs, file=lambda log: self._watched(logs.file(log)))
        reader._index = Through(index, get=lambda *ids: self._look_up(index, *ids))

    def _look_up(self, index, *ids):
        self.look_ups += 1
        return index.get(*ids)

    def _watched(self, file):
        def read_cached(size, position):
            self.looks.append(size)
            return file.read_cached(size, position)

        return Through(file, read_cached=read_cached)

    def read_all(self, ledger_id, count, size_max):
        """Answers of `size_max` bytes one after the other; gives the entries of each."""
        answers, entry_id = [], 0
        while entry_id < count:
            found = self.reader.read_nowait(ledger_id, entry_id, 4096, size_max)
            assert found
            answers.append([bytes(entry) for entry in found])
            entry_id += len(found)
        return answers


LARGE_MACHINE = {
    "journal_size_bytes": 64 * MIB,
    "journal_group_size_max_bytes": MIB,
    "journal_queue_size_max_bytes": 8 * MIB,
    "write_cache_size_bytes": 64 * MIB,
    "write_cache_segment_size_bytes": 4 * MIB,
    "flush_entry_log_bytes": 16 * MIB,
    "entry_log_size_limit_bytes": 64 * MIB,
    "entry_size_max_bytes": 2 * MIB,
    "held_adds_size_max_bytes": 32 * MIB,
}


@pytest.fixture
def sorting(machine_class):
    """A flush sorts by ledger what it writes; nothing is adopted."""
    return machine_class(1, journal_kept_entry_min_bytes=0, **LARGE_MACHINE)


@pytest.fixture
def keeping(machine_class):
    """Entries stay where the journal has them, between those of others."""
    return machine_class(1, journal_kept_entry_min_bytes=1000, **LARGE_MACHINE)


async def fill(machine, bookie, entry_bytes, ledgers, count, size):
    for entry_id in range(count):
        await add(machine, bookie, [(each, entry_id) for each in ledgers], entry_bytes, size)
    assert await bookie.flush()


def entries_of(entry_bytes, ledger_id, count, size):
    return [
        entry_bytes(ledger_id, each, payload_of(ledger_id, each, size)) for each in range(count)
    ]


@pytest.mark.parametrize("size", [900, 20_000, 70_000, 400_000])
async def test_a_reader_that_goes_on_is_not_looked_up_again(
    sorting, entry_bytes, autojump_clock, size
):
    """Entries of just over 64 KiB were looked for in the index one by one, and read twice."""
    count = max(16, 3 * MIB // size)
    async with sorting.running() as bookie:
        await fill(sorting, bookie, entry_bytes, (1, 2), count, size)
        watched = Watched(bookie)
        answers = watched.read_all(1, count, MIB)
        assert [each for some in answers for each in some] == entries_of(
            entry_bytes, 1, count, size
        )
        assert all(sum(map(len, some)) <= MIB for some in answers)
        assert watched.look_ups == 1 + END
        # Where the ledger ends another one begins, which the last look has seen.
        read = count * (size + 100) + MIB
        assert sum(watched.looks) < read + len(answers) * (WINDOW_SIZE_MIN_BYTES + size)
        # Two for each answer, and those until it is known how large the entries are.
        assert len(watched.looks) <= 2 * len(answers) + 6


@pytest.mark.parametrize("size", [30_000, 70_000, 400_000])
@pytest.mark.parametrize("others", [(), (2, 3, 4)])
async def test_what_lies_between_others_is_not_copied_with_them(
    keeping, entry_bytes, autojump_clock, size, others
):
    """In a journal that was adopted: where the next entry is not behind the last one, no more is
    looked at than one entry takes."""
    count = 3 * MIB // size
    async with keeping.running() as bookie:
        await fill(keeping, bookie, entry_bytes, (1, *others), count, size)
        assert bookie._checkpointer.flush_statistics.written_bytes == 0
        watched = Watched(bookie)
        answers = watched.read_all(1, count, MIB)
        assert [each for some in answers for each in some] == entries_of(
            entry_bytes, 1, count, size
        )
        assert all(sum(map(len, some)) <= MIB for some in answers)
        behind = BEHIND_BYTES + WINDOW_SIZE_MIN_BYTES
        assert sum(watched.looks) < count * (size + 100 + behind)
        # The end of a group is passed: what is behind it is the next entry, if nobody wrote beside.
        assert watched.look_ups == (count if others else 1) + END


async def test_the_last_entry_of_an_answer_is_found_again(sorting, entry_bytes, autojump_clock):
    """A broker goes on inside it, if only a part of it had room in an answer."""
    size, count = 20_000, 50
    async with sorting.running() as bookie:
        await fill(sorting, bookie, entry_bytes, (1, 2), count, size)
        watched = Watched(bookie)
        entry_id, found = 0, []
        while entry_id < count - 1:
            found = watched.reader.read_nowait(1, entry_id, 4096, 10 * size)
            entry_id += len(found) - 1
        assert bytes(found[-1]) == entries_of(entry_bytes, 1, count, size)[-1]
        assert watched.look_ups == 1 + END


async def test_an_entry_written_again_is_read_where_the_index_has_it(
    sorting, entry_bytes, autojump_clock
):
    """What is known of the place of one that was read does not outlive its log's damage."""
    async with sorting.running() as bookie:
        await fill(sorting, bookie, entry_bytes, (1,), 8, 20_000)
        reader = bookie._reader
        assert len(reader.read_nowait(1, 0, 4096, MIB)) == 8
        (log,) = {hint.log_id for hint in reader._hints.values()}
        position = reader._hints[1, 7].position
        bookie._damages.cut_reads_at(log, position)
        await add(sorting, bookie, [(1, 7)], entry_bytes, 20_000)
        assert await bookie.flush()
        status, entry = await bookie.read_entry(1, 7)
        assert status is Status.EOK
        assert entry == entry_bytes(1, 7, payload_of(1, 7, 20_000))


@pytest.mark.parametrize("ledgers", [1, 30])
async def test_a_place_behind_what_an_adopted_journal_keeps(
    machine_class, entry_bytes, autojump_clock, ledgers
):
    """The next entry lies there, is in a log of its own later, and the journal is cut: the place is
    behind the end then, or in the ledgers map. Nobody remembers it."""
    machine = machine_class(
        1,
        journal_kept_entry_min_bytes=1000,
        journal_size_bytes=96 * 1024,
        journal_turn_size_max_bytes=1 << 20,  # a burst is one group, and has no filler behind it
        write_cache_size_bytes=128 * 1024,
    )
    small = [(1, each) for each in range(3, 6)]
    async with machine.running() as bookie:
        await add(machine, bookie, [(each, 0) for each in range(2, 1 + ledgers)], entry_bytes, 1000)
        await add(machine, bookie, [(1, each) for each in range(3)], entry_bytes, 3000)
        assert await bookie.flush()
        (log,) = bookie._logs.adopted.values()
        await add(machine, bookie, small, entry_bytes, 50)
        assert len(bookie._reader.read_nowait(1, 0, 4096, MIB)) == 6
        assert (1, 2) in bookie._reader._hints
        assert (1, 3) not in bookie._reader._hints
        others = iter(range(100, 200))
        while log.journal_id >= 0:
            assert await bookie.flush()
            other = next(others)
            await add(machine, bookie, [(other, each) for each in range(20)], entry_bytes, 200)
        assert log.size_bytes > log.records_end, "it has its map"
        await check(bookie, small, entry_bytes, 50)


async def test_no_place_of_a_ledger_outlives_it(sorting, entry_bytes, autojump_clock):
    """Made anew, long after, it may have the same id, while its log is kept for others."""
    ids = [(1, each) for each in range(8)]
    async with sorting.running() as bookie:
        await add(sorting, bookie, [*ids, (2, 0)], entry_bytes, 1000)
        for other in (3, 4):
            assert await bookie.flush()
            await add(sorting, bookie, [(other, 0)], entry_bytes)
        assert len(bookie._reader.read_nowait(1, 0, 4, MIB)) == 4
        assert {(1, 3), (1, 4)} <= bookie._reader._hints.keys()
        assert await bookie.delete_ledger(1) is Status.EOK
        for _ in range(2):
            assert await bookie.flush()
            bookie._table.age_tombstones()
        await add(sorting, bookie, ids, entry_bytes, 900)
        for other in (5, 6):
            assert await bookie.flush()
            await add(sorting, bookie, [(other, 0)], entry_bytes)
        await check(bookie, ids[3:5], entry_bytes, 900)


async def test_the_last_entry_before_damage_is_found_where_it_is(
    sorting, entry_bytes, autojump_clock
):
    async with sorting.running() as bookie:
        await fill(sorting, bookie, entry_bytes, (1,), 8, 20_000)
        reader = bookie._reader
        assert len(reader.read_nowait(1, 0, 4096, MIB)) == 8
        log, position = reader._hints[1, 7][:2]
        bookie._damages.cut_reads_at(log, position)
        assert len(reader.read_nowait(1, 0, 4096, MIB)) == 7
        before = LENGTH_SIZE + len(entry_bytes(1, 6, bytes(20_000)))
        assert reader._hints[1, 6][:2] == (log, position - before)


async def test_what_lies_behind_what_was_checked_is_checked(
    machine_class, entry_bytes, autojump_clock
):
    machine = machine_class(
        1, journal_kept_entry_min_bytes=0, verify_digest_on_write=True, **LARGE_MACHINE
    )
    async with machine.running() as bookie:
        await fill(machine, bookie, entry_bytes, (1,), 8, 1000)
        await fill(machine, bookie, entry_bytes, (2,), 8, 1000)
        reader = bookie._reader
        assert len(reader.read_nowait(1, 0, 3, MIB)) == 3
        log, position = reader._hints[1, 3][:2]
        file = bookie._logs.file(bookie._logs.get(log))
        (entry,) = bookie._reader.read_nowait(1, 3, 1, 0)
        at = position + 2 * (LENGTH_SIZE + len(entry)) + 500
        file.pwrite([bytes([file.pread(1, at)[0] ^ 1])], at)
        assert len(reader.read_nowait(1, 0, 4096, MIB)) == 5


async def test_places_are_remembered_up_to_a_number(
    sorting, entry_bytes, autojump_clock, monkeypatch
):
    monkeypatch.setattr(reader_module, "HINTS_MAX", 3)
    async with sorting.running() as bookie:
        await fill(sorting, bookie, entry_bytes, (1, 2, 3, 4), 4, 1000)
        await fill(sorting, bookie, entry_bytes, (5,), 1, 1000)
        for ledger_id in (1, 2, 3, 4):
            assert len(bookie._reader.read_nowait(ledger_id, 0, 2, MIB)) == 2
        assert list(bookie._reader._hints) == [(3, 2), (4, 1), (4, 2)]


async def test_a_small_answer_is_not_all_that_was_looked_at(sorting, entry_bytes, autojump_clock):
    """Who keeps it would keep that."""
    async with sorting.running() as bookie:
        await fill(sorting, bookie, entry_bytes, (1, 2), 10, 1000)
        await fill(sorting, bookie, entry_bytes, (3,), 10, 1000)
        (entry,) = bookie._reader.read_nowait(1, 9, 4096, MIB)
        assert len(entry.obj) == len(entry)


async def test_pages_are_asked_for_once_and_beside_the_loop(sorting, entry_bytes, autojump_clock):
    async with sorting.running() as bookie:
        await fill(sorting, bookie, entry_bytes, (1,), 8, 400_000)
        reader = bookie._reader
        logs, disk = reader._logs, reader._disk
        inside, asked = [False], []

        async def run(function, *arguments):
            def beside():
                inside[0] = True
                try:
                    return function(*arguments)
                finally:
                    inside[0] = False

            return await disk.run(beside)

        def file(log):
            behind = logs.file(log)

            def prefetch(size, position):
                asked.append((inside[0], size, position))
                behind.prefetch(size, position)

            return Through(behind, prefetch=prefetch)

        reader._disk = Through(disk, run=run)
        reader._logs = Through(logs, file=file)
        sorting.disk.faults.cached_share = 0.0
        await reader.read(1, 2, 1, 1)  # more than the first window
        location = bookie._index.get(1, 2)
        log, position = logs.get(location >> 32), (location & 0xFFFFFFFF) - 4
        size = min(reader._config.read_ahead_size_bytes, log.size_bytes - position)
        assert asked == [(True, size, position)]
