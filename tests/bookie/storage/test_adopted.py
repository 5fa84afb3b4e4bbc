"""Adopted journals (bookie/storage/adopted.py): large entries are written once, and survive it."""

import errno
import random
import struct

import pytest
from crc32c import crc32c

from bookie.errors import CorruptionError
from bookie.journal.journal_format import (
    GROUP_MAGIC,
    Position,
    align,
    file_name,
    records,
    special_record,
)
from bookie.journal.journal_replay import JournalReplay
from bookie.storage.checkpoint import (
    AdoptedJournal,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    read_checkpoint,
)
from bookie.storage.entry_log_format import MAGIC, read_ledgers_map
from bookie.storage.log_scan import LogScanner
from runtime.sim_disk import SimDisk
from tests.bookie.storage.large_entries import JOURNALS, LEDGERS, SIZE, add, check, payload_of
from wire.bookkeeper.status import Status


@pytest.fixture
def machine(machine_class):
    return machine_class(1, journal_kept_entry_min_bytes=1000, journal_size_bytes=12 * 1024)


def logs_of(machine):
    return [name for name in machine.disk.list(LEDGERS) if name.endswith(".log")]


IDS = [(ledger_id, entry_id) for entry_id in range(6) for ledger_id in (1, 2)]


async def flush_some(machine, bookie, entry_bytes, ids=IDS, size=SIZE):
    for start in range(0, len(ids), 3):
        await add(machine, bookie, ids[start : start + 3], entry_bytes, size)
        assert await bookie.flush()


async def test_large_entries_are_written_once(machine, entry_bytes, autojump_clock):
    async with machine.running() as bookie:
        await flush_some(machine, bookie, entry_bytes)
        statistics = bookie._checkpointer.flush_statistics
        assert statistics.written_bytes == 0
        assert statistics.kept_bytes == sum(
            4 + len(entry_bytes(*ids, payload_of(*ids))) for ids in IDS
        )
        assert statistics.entries == len(IDS)
        await check(bookie, IDS, entry_bytes)
        # More than a journal's worth: the first is a log and nothing else by now.
        assert file_name(1) not in machine.disk.list(JOURNALS)
        assert not any(name.startswith("spare") for name in machine.disk.list(JOURNALS))
        first = min(logs_of(machine))
        assert machine.disk.link_count(f"{LEDGERS}/{first}") == 1
    async with machine.running() as bookie:
        await check(bookie, IDS, entry_bytes)


async def test_after_a_clean_stop_all_are_entry_logs(machine, entry_bytes, autojump_clock):
    """As Apache BookKeeper reads them: header, records one behind the other, map."""
    async with machine.running() as bookie:
        await flush_some(machine, bookie, entry_bytes)
    found = []
    for name in logs_of(machine):
        file = machine.disk.open(f"{LEDGERS}/{name}")
        assert file.pread(4, 0) == MAGIC
        ledgers = read_ledgers_map(file)
        scanner = LogScanner(machine.disk, file, file.size())
        sizes = {}
        while (some := await scanner.next()) is not None:
            for (ledger_id, entry_id), size in zip(some.keys, some.sizes, strict=True):
                found.append((ledger_id, entry_id))
                sizes[ledger_id] = sizes.get(ledger_id, 0) + 4 + size
        assert scanner.damage is None
        assert sizes == ledgers
        assert chain_of(file) == [ids for ids in chain_of(file) if ids[0] >= -1]
    assert sorted(found) == sorted(IDS)
    assert all(machine.disk.link_count(f"{LEDGERS}/{name}") == 1 for name in logs_of(machine))


def chain_of(file):
    """(ledger id, entry id) of all records, by the rule of DefaultEntryLogger's scan: length,
    ledger, and on behind it, -1 passed over."""
    at, ids = 1024, []
    while at < file.size():
        length, ledger_id, entry_id = struct.unpack(">iqq", file.pread(20, at))
        assert length >= 16
        ids.append((ledger_id, entry_id))
        at += 4 + length
    assert at == file.size()
    return ids


async def test_small_entries_are_copied(machine, entry_bytes, autojump_clock):
    async with machine.running() as bookie:
        await flush_some(machine, bookie, entry_bytes, size=100)
        statistics = bookie._checkpointer.flush_statistics
        assert statistics.kept_bytes == 0
        assert statistics.written_bytes > 0
        assert bookie._logs.adopted == {}


async def test_mostly_small_entries_are_copied_with_the_large_one(
    machine, entry_bytes, autojump_clock
):
    small = [(3, entry_id) for entry_id in range(20)]
    async with machine.running() as bookie:
        await add(machine, bookie, small, entry_bytes, 20)
        await add(machine, bookie, [(1, 0)], entry_bytes)
        assert await bookie.flush()
        assert bookie._checkpointer.flush_statistics.kept_bytes == 0
        await check(bookie, [(1, 0)], entry_bytes)


async def test_where_there_are_no_links_all_is_copied(
    machine, entry_bytes, autojump_clock, monkeypatch
):
    def link(_disk, source, _target):
        raise OSError(errno.EXDEV, "over two file systems", source)

    monkeypatch.setattr(SimDisk, "link", link)
    async with machine.running() as bookie:
        await flush_some(machine, bookie, entry_bytes)
        assert bookie._checkpointer.flush_statistics.kept_bytes == 0
        await check(bookie, IDS, entry_bytes)


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("seed", range(12))
async def test_a_crash_after_any_flush(machine_class, entry_bytes, autojump_clock, seed, power):
    """Some is in the checkpoint, some behind it; then another life writes and another crash."""
    machine = machine_class(seed, journal_kept_entry_min_bytes=1000, journal_size_bytes=12 * 1024)
    rng = random.Random(seed)
    ids = []
    for life in range(4):
        async with machine.running_until_crash() as bookie:
            await check(bookie, ids, entry_bytes)
            for _ in range(rng.randrange(1, 8)):
                some = [(life % 2 + 1, len(ids) + number) for number in range(rng.randrange(1, 4))]
                await add(machine, bookie, some, entry_bytes)
                ids += some
                if rng.random() < 0.6:
                    assert await bookie.flush()
            if not power:
                machine.disk.kill()
                machine.index.crash()
    async with machine.running() as bookie:
        await check(bookie, ids, entry_bytes)
    async with machine.running() as bookie:
        await check(bookie, ids, entry_bytes)


async def test_a_flush_that_the_checkpoint_does_not_know(
    machine, entry_bytes, autojump_clock, monkeypatch
):
    """The index points into a journal, its link is durable, and the crash comes before the
    checkpoint says so: the replay has all of it, and the link goes."""
    async with machine.running_until_crash() as bookie:

        async def never(_mark):
            machine.crash()
            raise OSError(errno.EIO, "crashed")

        monkeypatch.setattr(bookie._checkpointer, "_move_mark", never)
        await add(machine, bookie, IDS[:3], entry_bytes)
        await bookie.flush()
    assert any(machine.disk.link_count(f"{LEDGERS}/{name}") == 2 for name in logs_of(machine))
    assert read_checkpoint(machine.disk, LEDGERS).adopted == ()
    async with machine.running() as bookie:
        await check(bookie, IDS[:3], entry_bytes)
        assert bookie._logs.adopted == {}
        assert all(machine.disk.link_count(f"{LEDGERS}/{name}") == 1 for name in logs_of(machine))


async def test_a_torn_header_of_what_becomes_a_log(machine, entry_bytes, autojump_clock):
    """The checkpoint says how far the log is good, whatever its header says."""
    async with machine.running_until_crash() as bookie:
        await add(machine, bookie, IDS[:3], entry_bytes)
        assert await bookie.flush()
        (log,) = bookie._logs.adopted.values()
        path, journal = log.path, f"{JOURNALS}/{file_name(log.journal_id)}"
    # As if the mark had passed the journal: its name is gone, its header half overwritten.
    found = read_checkpoint(machine.disk, LEDGERS)
    (known,) = found.adopted
    moved = Checkpoint(
        Position(known.journal_id + 1, 0, found.mark.sequence),
        found.log_id,
        found.log_end,
        found.ledgers,
        found.index_stamps,
        found.adopted,
    )
    machine.disk.write_file(f"{LEDGERS}/checkpoint", encode_checkpoint(moved))
    machine.disk.remove(f"{LEDGERS}/lastMark")
    next_journal = machine.disk.list(JOURNALS)
    assert file_name(known.journal_id + 1) in next_journal
    machine.disk.remove(journal)
    machine.disk.sync_directory(JOURNALS)
    file = machine.disk.open(path)
    file.pwrite([MAGIC + b"\0\0"], 0)
    await file.wait_synced()
    async with machine.running() as bookie:
        await check(bookie, IDS[:3], entry_bytes)
        log = bookie._logs.get(known.log_id)
        assert log.path == path
        assert not log.is_written
        assert not log.is_doubtful


async def test_a_deleted_ledger_frees_what_was_a_journal(machine, entry_bytes, autojump_clock):
    async with machine.running() as bookie:
        await flush_some(machine, bookie, entry_bytes)
        before = len(logs_of(machine))
        for ledger_id in (1, 2):
            assert await bookie.delete_ledger(ledger_id) is Status.EOK
        assert await bookie.flush()
        await flush_some(machine, bookie, entry_bytes, ids=[(3, n) for n in range(9)])
        assert len(logs_of(machine)) < before + 2
    async with machine.running() as bookie:
        assert bookie.list_ledgers() == [3]
        await check(bookie, [(3, n) for n in range(9)], entry_bytes)


def test_checkpoint_bytes():
    """The third version, cut off anywhere."""
    checkpoint = Checkpoint(
        Position(7, 4096, 12),
        3,
        2048,
        {5: 100},
        (1, 2),
        (AdoptedJournal(6, 9, 5000, {1: 10, 2: 20}), AdoptedJournal(7, 10, 4000, {1: 30})),
    )
    data = encode_checkpoint(checkpoint)
    assert decode_checkpoint("p", data) == checkpoint
    for size in range(len(data) - 4):
        body = data[:size]
        with pytest.raises(CorruptionError):
            decode_checkpoint("p", body + struct.pack(">I", crc32c(body)))
    body = data[:-4] + bytes(8)
    with pytest.raises(CorruptionError, match="behind the adopted"):
        decode_checkpoint("p", body + struct.pack(">I", crc32c(body)))


def old_group(offset, sequence, body_records):
    """Of journal 1, as version 1 had it."""
    body = b"".join(body_records)
    rest = struct.pack(">qqqqII", 1, offset, sequence, sequence - 1, len(body), len(body_records))
    return struct.pack(">II", GROUP_MAGIC, crc32c(body, crc32c(rest))) + rest + body


def test_journals_of_version_1_are_replayed():
    key = struct.pack(">iqqi", 24, 5, -0x1000, 4) + b"key!"
    entry = struct.pack(">iqq", 20, 5, 0) + b"data"
    header = struct.pack(">4sIqIq", b"QKJL", 1, 1, 256, 4096)
    data = bytearray((header + struct.pack(">I", crc32c(header))).ljust(4096, b"\0"))
    at = 256
    for sequence, some in ((1, [key]), (2, [entry]), (3, [entry, entry])):
        group = old_group(at, sequence, some)
        data[at : at + len(group)] = group
        at += align(len(group), 256)
    disk = SimDisk(random.Random(1))
    disk.make_directory("/j")
    file = disk.open("/j/1.txn", create=True)
    file.pwrite([data], 0)
    replay = JournalReplay(disk, "/j", Position(0, 0, 0))
    found = [(ledger_id, kind, bytes(record)[16:]) for ledger_id, kind, record in replay.records()]
    assert found == [(5, -0x1000, b"\0\0\0\4key!")] + [(5, 0, b"data")] * 3
    assert replay.end[:2] == (1, at)
    file.pwrite([b"x"], 256 + 60)
    with pytest.raises(CorruptionError, match="offset 256"):
        list(JournalReplay(disk, "/j", Position(0, 0, 0)).records())


def test_what_is_no_entry_is_passed_over_in_an_entry_log():
    record = special_record(5, -0x1000, b"key!")
    assert struct.unpack(">iqq", record[:20]) == (len(record) - 4, -1, -2)
    assert [(i, k, bytes(r)[16:]) for i, k, r in records(memoryview(record), 1)] == [
        (5, -0x1000, b"\0\0\0\4key!")
    ]
    for size in range(16, 32):
        short = struct.pack(">iqq", size, -1, -2).ljust(4 + size, b"\0")
        with pytest.raises(ValueError, match="no kind"):
            list(records(memoryview(short), 1))


async def test_directories_that_were_copied_without_links(machine, entry_bytes, autojump_clock):
    """The journal and the entry log that it is to become are two files then: what is added to the
    one is not in the other."""
    async with machine.running() as bookie:
        await add(machine, bookie, IDS[:2], entry_bytes)
        assert await bookie.flush()
        (log,) = bookie._logs.adopted.values()
        disk, copy = machine.disk, f"{LEDGERS}/copy"
        old = disk.open(log.path)
        new = disk.open(copy, create=True)
        new.pwrite([old.pread(old.size(), 0)], 0)
        await new.wait_synced()
        disk.rename(copy, log.path)
        log.file = None
        await add(machine, bookie, IDS[2:4], entry_bytes)
        assert await bookie.flush()
        await check(bookie, IDS[:4], entry_bytes)
    async with machine.running() as bookie:
        await check(bookie, IDS[:4], entry_bytes)
