"""The journal's writer and its replay, damaged in every way."""

import random
import struct
from dataclasses import replace

import pytest
import trio
from crc32c import crc32c

from bookie.config import BookieConfig
from bookie.errors import BookieStartError, CorruptionError
from bookie.journal.journal import Journal
from bookie.journal.journal_files import JournalFiles, list_journals
from bookie.journal.journal_format import (
    LEDGER_KEY,
    Position,
    align,
    file_name,
    first_group_offset,
    journal_id_of,
    pack_file_header,
    parse_file_header,
    records,
    special_record,
    special_value,
)
from bookie.journal.journal_replay import JournalReplay
from runtime.sim_disk import SimDisk
from runtime.turn import Turn
from wire.bookkeeper.status import Status

DIRECTORY = "/j"
GENESIS = Position(0, 0, 0)


class Rig:
    """A journal alone, on a disk."""

    def __init__(self, disk, config, turn_size_max=1 << 20):
        config = replace(config, journal_turn_size_max_bytes=turn_size_max)
        self.disk = disk
        self.errors = []
        self.turn = Turn()
        if not disk.exists(DIRECTORY):
            disk.make_directory(DIRECTORY)
            disk.sync_directory("/")
        self.files = JournalFiles(config, disk, DIRECTORY)
        self.journal = Journal(config, self.turn, self.files, self.errors.append, lambda: None)

    async def open(self, mark_id=0, sequence=0):
        self.files.load(mark_id)
        await self.files.prepare()
        self.journal.open(sequence)
        return self

    def add(self, ledger_id, entry_id, payload, done=lambda status: None):
        record = struct.pack(">iqq", 16 + len(payload), ledger_id, entry_id) + payload
        self.journal.append(memoryview(record), 0, len(record), done)


@pytest.fixture
def config(tiny) -> BookieConfig:
    return tiny(journal_size_bytes=8192 + 768 + 1024)


@pytest.fixture
async def rig(config):
    return await Rig(SimDisk(random.Random(1)), config).open()


def replayed(disk, mark=GENESIS):
    replay = JournalReplay(disk, DIRECTORY, mark)
    found = [(ledger, entry, bytes(record[16:])) for ledger, entry, record in replay.records()]
    return found, replay


async def test_groups_and_syncs(rig):
    answers = []
    for entry_id in range(10):
        rig.add(1, entry_id, b"%d" % entry_id, answers.append)
    assert answers == []
    rig.turn.run()
    assert answers == [Status.EOK] * 10
    statistics = rig.journal.statistics()
    assert (statistics.groups, statistics.syncs, statistics.records) == (1, 1, 10)
    rig.add(2, 0, b"x")
    rig.turn.run()
    found, replay = replayed(rig.disk)
    assert found == [(1, i, b"%d" % i) for i in range(10)] + [(2, 0, b"x")]
    assert (replay.group_count, replay.record_count, replay.sequence) == (2, 11, 2)


async def test_contiguous_records_are_one_buffer(rig):
    memory = memoryview(bytearray(1000))
    struct.pack_into(">iqq", memory, 100, 46, 1, 0)
    struct.pack_into(">iqq", memory, 150, 46, 1, 1)
    rig.journal.append(memory, 100, 150, lambda s: None)
    rig.journal.append(memory, 150, 200, lambda s: None)
    group = rig.journal.cut()
    assert [len(b) for b in group.buffers] == [100]
    rig.journal.pump()
    assert [(e, len(p)) for _, e, p in replayed(rig.disk)[0]] == [(0, 30), (1, 30)]


@pytest.mark.parametrize("seed", range(30))
async def test_checksums_that_are_known_are_those_of_what_is_written(tiny, seed):
    """Of records one behind the other or not, of one whose checksum is known behind one whose is
    not, and of groups that are full in between."""
    rng = random.Random(seed)
    size_max = rng.choice([500, 5000])
    config = tiny(journal_size_bytes=64 << 10, journal_group_size_max_bytes=size_max)
    rig = await Rig(SimDisk(random.Random(1)), config).open()
    memories = [memoryview(bytearray(8000)) for _ in range(2)]
    positions = [0, 0]
    expected = []
    for entry_id in range(rng.randrange(1, 40)):
        which = rng.choice([0, 0, 0, 1])
        start = positions[which] + rng.choice([0, 0, 0, 8])
        payload = rng.randbytes(rng.randrange(150))
        record = struct.pack(">iqq", 16 + len(payload), 1, entry_id) + payload
        positions[which] = end = start + len(record)
        memories[which][start:end] = record
        crc = rng.choice([crc32c(record), None])
        rig.journal.append(memories[which], start, end, lambda status: None, crc)
        expected.append((1, entry_id, payload))
        if rng.random() < 0.2:
            rig.turn.run()
    rig.turn.run()
    assert replayed(rig.disk)[0] == expected


async def test_a_checksum_that_is_wrong_is_that_of_another_group(rig):
    """So the known one is used, and the bytes are not read for it."""
    rig.add(1, 0, b"before")
    rig.turn.run()
    record = struct.pack(">iqq", 22, 1, 1) + b"behind"
    rig.journal.append(memoryview(record), 0, len(record), lambda status: None, crc32c(record) ^ 1)
    rig.turn.run()
    assert replayed(rig.disk)[0] == [(1, 0, b"before")]


async def test_while_a_sync_runs_the_next_group_builds(config, wait_until):
    disk = SimDisk(random.Random(1))
    rig = await Rig(disk, config).open()
    disk.faults.sync_seconds = (0.01, 0.01)
    order = []
    for entry_id in range(6):
        rig.add(1, entry_id, b"", lambda status, i=entry_id: order.append((i, status)))
        rig.turn.run()
    assert order == []
    await wait_until(lambda: len(order) == 6)
    assert order == [(i, Status.EOK) for i in range(6)]
    assert rig.journal.statistics().syncs == 2, "one for the first, one for all that queued"


async def test_rolls_only_into_prepared_files_and_recycles(config, rig, wait_until):
    expected = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.files.run, rig.journal.pump, rig.journal.filled_bytes)
        for entry_id in range(100):
            answers = []
            payload = bytes([entry_id]) * 700
            rig.add(1, entry_id, payload, answers.append)
            rig.turn.run()
            await wait_until(lambda answers=answers: answers)
            expected.append((1, entry_id, payload))
        assert len(list_journals(rig.disk, DIRECTORY)) > 9
        assert replayed(rig.disk)[0] == expected
        group = rig.journal.cut()
        mark = await rig.journal.wait_durable(group)
        await rig.files.recycle(mark.journal_id)
        assert len(list_journals(rig.disk, DIRECTORY)) <= 2
        names = rig.disk.list(DIRECTORY)
        # The preparation of the next journal, beside this, may have taken one already.
        spares = sum(name.startswith("spare-") for name in names)
        assert config.journal_spare_files_max - 1 <= spares <= config.journal_spare_files_max
        # Reused files are full of groups of their earlier lives: none is taken for one of now.
        assert replayed(rig.disk, mark)[0] == []
        expected.clear()
        for entry_id in range(40):
            answers = []
            rig.add(2, entry_id, b"new", answers.append)
            rig.turn.run()
            await wait_until(lambda answers=answers: answers)
            expected.append((2, entry_id, b"new"))
            assert replayed(rig.disk, mark)[0] == expected
        nursery.cancel_scope.cancel()


async def test_a_write_error_ends_it(rig):
    answers = []
    rig.disk.faults.failing_sync_number = rig.disk.sync_count + 1
    rig.add(1, 0, b"", answers.append)
    rig.turn.run()
    assert answers == []
    assert len(rig.errors) == 1
    rig.add(1, 1, b"", answers.append)
    rig.turn.run()
    assert answers == []
    with pytest.raises(OSError, match="Input/output"):
        await rig.journal.wait_durable(rig.journal.cut())
    rig.journal.refuse_pending(Status.EIO)
    assert answers == [Status.EIO, Status.EIO]
    assert len(rig.errors) == 1


async def filled(config, groups=6, seed=1):
    """A journal of several groups of several records; what each group holds."""
    disk = SimDisk(random.Random(seed))
    rig = await Rig(disk, config).open()
    rng = random.Random(seed)
    contents = []
    for number in range(groups):
        content = [(number, i, rng.randbytes(rng.randrange(0, 60))) for i in range(3)]
        for record in content:
            rig.add(*record)
        rig.turn.run()
        contents.append((content, rig.journal._durable.offset))
    return disk, contents


def copy_of(data):
    disk = SimDisk(random.Random(0))
    disk.make_directory(DIRECTORY)
    file = disk.open(f"{DIRECTORY}/1.txn", create=True)
    file.pwrite([data], 0)
    return disk


def replayed_or_error(disk):
    try:
        return replayed(disk)[0], None
    except CorruptionError as error:
        return None, error


def content_of(disk):
    file = disk.open(f"{DIRECTORY}/1.txn")
    return file.pread(file.size(), 0)


async def test_truncated_at_every_byte_it_refuses(config):
    disk, _ = await filled(config)
    data = content_of(disk)
    for size in range(len(data)):
        with pytest.raises(CorruptionError, match=r"/j/1\.txn: offset"):
            replayed(copy_of(data[:size]))


async def test_zeroed_from_every_byte_on_it_keeps_all_before(config):
    disk, contents = await filled(config)
    data = content_of(disk)
    end = contents[-1][1]
    for at in range(first_group_offset(config.journal_alignment_bytes), end):
        found, _ = replayed(copy_of(data[:at] + bytes(len(data) - at)))
        whole = [record for content, group_end in contents if group_end <= at for record in content]
        # The last group's padding is zeros anyway, so it may be whole though it was cut into.
        assert found[: len(whole)] == whole
        assert found in ([r for c, _ in contents[:n] for r in c] for n in range(len(contents) + 1))


async def test_any_flipped_bit_is_found(config):
    """Each group but the last two is known to have been durable: damage in it refuses the start
    and names the place. In the last ones it cuts, and never yields another record."""
    disk, contents = await filled(config)
    data = content_of(disk)
    rng = random.Random(5)
    ends = [first_group_offset(config.journal_alignment_bytes)] + [end for _, end in contents]
    refused = cut = 0
    for at in sorted(rng.sample(range(ends[-1]), 500)) + list(range(36)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << rng.randrange(8)
        number = sum(end <= at for end in ends) - 1  # -1: the header
        found, error = replayed_or_error(copy_of(damaged))
        if error is not None:
            assert error.file == "/j/1.txn"
            assert error.offset == (ends[number] if number >= 0 else 0)
            assert number < len(contents) - 1
            refused += 1
            continue
        everything = [record for content, _ in contents for record in content]
        if found != everything:  # else it was padding
            assert number == len(contents) - 1
            assert found == [r for c, _ in contents[:-1] for r in c]
            cut += 1
    assert refused > 100
    assert cut > 10


async def test_unsynced_groups_may_be_kept_in_any_mixture(config):
    """Two groups written before one sync: the second may survive a crash and the first not. That
    is a torn tail and no corruption."""
    for seed in range(40):
        disk = SimDisk(random.Random(seed))
        rig = await Rig(disk, config).open()
        rig.add(1, 0, b"durable")
        rig.turn.run()
        disk.faults.sync_seconds = (1, 1)
        rig.journal._buffered_writes_threshold = 1
        for entry_id in range(1, 4):
            rig.add(1, entry_id, b"x" * 300)
            rig.turn.run()
        assert rig.journal.statistics().groups == 4
        disk.crash()
        found, _ = replayed(disk)
        assert found[0] == (1, 0, b"durable")
        assert [entry for _, entry, _ in found] == list(range(len(found)))


@pytest.mark.parametrize("is_one_turn", [True, False])
async def test_a_file_is_left_only_when_all_of_it_is_durable(
    config, wait_until, autojump_clock, is_one_turn
):
    """The file's last group is written and its sync has not begun (both groups come in one turn),
    or runs (they come in two). The next file's first group tells a replay that the file before it
    is complete, and the syncs from then on are of the next file."""
    disk = SimDisk(random.Random(1))
    rig = await Rig(disk, config).open()
    rig.journal._buffered_writes_threshold = 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.files.run, rig.journal.pump, rig.journal.filled_bytes)
        await wait_until(lambda: rig.files._next is not None)
        answers = []
        start = end = first_group_offset(config.journal_alignment_bytes)
        while end + 2 * (end - start or 700) <= rig.files.size_bytes:
            start = end
            rig.add(1, 0, bytes(700), answers.append)
            rig.turn.run()
            end = rig.journal._durable.offset
        answers.clear()
        disk.faults.sync_seconds = (1, 1)
        for entry_id in range(2):
            rig.add(1, entry_id, bytes(700), answers.append)
            rig.journal.cut()
            if not is_one_turn:
                rig.turn.run()
        rig.turn.run()
        second = disk.open(f"{DIRECTORY}/{file_name(2)}")
        behind_header = first_group_offset(config.journal_alignment_bytes)
        assert not any(second.pread(second.size(), behind_header))
        assert answers == []
        await wait_until(lambda: len(answers) == 1)
        assert rig.journal._durable.journal_id == 1
        await wait_until(lambda: len(answers) == 2)
        assert rig.journal._durable.journal_id == 2
        assert any(second.pread(second.size(), behind_header))
        nursery.cancel_scope.cancel()


async def test_a_missing_journal_refuses(config, rig):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.files.run, rig.journal.pump, rig.journal.filled_bytes)
        for entry_id in range(60):
            rig.add(1, entry_id, b"x" * 700)
            rig.turn.run()
            await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    ids = list_journals(rig.disk, DIRECTORY)
    assert ids[:4] == [1, 2, 3, 4]
    mark = Position(2, 256, 10**6)
    rig.disk.remove(f"{DIRECTORY}/3.txn")
    with pytest.raises(BookieStartError, match=r"3\.txn is missing"):
        replayed(rig.disk)
    rig.disk.remove(f"{DIRECTORY}/2.txn")
    with pytest.raises(BookieStartError, match=r"2\.txn is missing"):
        replayed(rig.disk, mark)


async def test_a_journal_cut_short_in_the_middle_of_a_chain_refuses(config, rig):
    """All groups of file 2 are gone, nothing in that file tells: the next file's number does."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rig.files.run, rig.journal.pump, rig.journal.filled_bytes)
        for entry_id in range(40):
            rig.add(1, entry_id, b"x" * 700)
            rig.turn.run()
            await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    file = rig.disk.open(f"{DIRECTORY}/2.txn")
    start = first_group_offset(256)
    file.pwrite([bytes(file.size() - start)], start)
    with pytest.raises(CorruptionError, match=r"2\.txn: offset 1280: group .* is missing"):
        replayed(rig.disk)


def test_names():
    for journal_id in (1, 10, 255, 2**40):
        assert journal_id_of(file_name(journal_id)) == journal_id
    for name in ("spare-1", "1.log", ".txn", "01.txn", "FF.txn", "x.txn", "1.txn.tmp"):
        assert journal_id_of(name) is None


def test_file_header():
    header = pack_file_header(77, 512, 1 << 20)
    assert len(header) == first_group_offset(512) == 1536
    assert parse_file_header(header)[:3] == (77, 512, 1 << 20)
    for at in range(32):
        damaged = bytearray(header)
        damaged[at] ^= 1
        with pytest.raises(ValueError, match=r"magic|checksum|version"):
            parse_file_header(damaged)
    assert [align(n, 512) for n in (0, 1, 511, 512, 513)] == [0, 512, 512, 512, 1024]


def test_records_of_a_body():
    body = special_record(5, LEDGER_KEY, b"key") + struct.pack(">iqq", 19, 5, 0) + b"abc"
    found = list(records(memoryview(body), 2))
    assert [(ledger, entry) for ledger, entry, _ in found] == [(5, LEDGER_KEY), (5, 0)]
    assert special_value(found[0][2]) == b"key"
    for bad, count in ((body, 1), (body[:-1], 2), (body + b"x", 2), (bytes(20), 1)):
        with pytest.raises(ValueError, match="record"):
            list(records(memoryview(bad), count))
