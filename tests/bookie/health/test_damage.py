"""Damaged files of a bookie: each kind of damage, and what a reader is then told."""

import os
import random
import re
import shutil
import struct
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from bookie.errors import BookieStartError
from bookie.health import damage as damage_module
from bookie.health.damage import DAMAGES_MAX, LINES_MAX, DamageReports
from bookie.storage.entry_log_format import log_name
from bookie.storage.index import MemoryIndex
from bookie.storage.rocks_index import RocksIndex
from bookie.storage.verified_ranges import RANGES_MAX, VerifiedRanges
from checks.damage_bookie import (
    Outcome,
    add_all,
    damage_everywhere,
    files_of,
    fill,
    make_config,
    make_entry,
    one_case,
    prepare,
    serving,
)
from runtime.env import RealClock
from wire.bookkeeper.status import FLAG_RECOVERY_ADD, Status

CURRENT = "ledgers/current"
LOG = re.compile(r"current/[0-9a-f]+\.log$")


@pytest.mark.slow
async def test_random_damage_never_loses_and_never_invents(tmp_path):
    """A property over all files: right bytes, EIO, or a refusal that names a path."""
    outcomes = await damage_everywhere(str(tmp_path), 120, seed=11)
    stories = [story for outcome in outcomes.values() for story in outcome.stories]
    totals = [
        sum(getattr(outcome, name) for outcome in outcomes.values())
        for name in ("cases", "intact", "unreadable", "refused", "lost", "invented")
    ]
    print("cases, intact, some EIO, refused, lost, invented:", *totals)
    assert stories == []
    assert totals[0] == sum(totals[1:]) == 120
    assert min(totals[1:4]) > 0
    assert totals[4:] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["locations", "ledgers"])
@pytest.mark.parametrize("suffix", ["MANIFEST", ".log"])
async def test_an_index_whose_log_or_manifest_seems_to_end_early(tmp_path, name, suffix):
    """RocksDB opens without a word where a flipped length makes its log end. The stamps tell."""
    rng = random.Random(5)
    base = str(tmp_path / "base")
    stored = await fill(str(tmp_path / "live"), base, rng)
    files = [os.path.basename(each) for each in files_of(f"{base}/{CURRENT}/{name}")]
    (file,) = (each for each in files if suffix in each)
    outcome = Outcome()
    for number in range(12):
        kind = "truncate" if number % 2 else "flip"
        path = str(tmp_path / f"case{number}")
        await one_case(base, path, f"{CURRENT}/{name}/{file}", kind, rng, stored, outcome)
    print(outcome)
    assert outcome.stories == []
    assert outcome.intact + outcome.refused == outcome.cases
    assert outcome.refused > 0


# The index as a whole.


async def filled(tmp_path):
    """(its directory, what is stored) of a bookie that was killed."""
    base = str(tmp_path / "base")
    stored = await fill(str(tmp_path / "live"), base, random.Random(3))
    prepare_path = str(tmp_path / "node")
    shutil.copytree(base, prepare_path)
    prepare(prepare_path)
    return prepare_path, stored


async def refusal(path):
    with pytest.raises(BaseExceptionGroup) as error:
        async with serving(make_config(path)):
            pass
    found = [e for e in error.value.exceptions if isinstance(e, BookieStartError)]
    assert found, error.value.exceptions
    return str(found[0])


@pytest.mark.parametrize("names", [("locations",), ("ledgers",), ("locations", "ledgers")])
async def test_a_lost_index_refuses_the_start(tmp_path, names):
    path, _ = await filled(tmp_path)
    for name in names:
        shutil.rmtree(f"{path}/{CURRENT}/{name}")
    for _ in range(2):  # nor does a second try take the empty one that a first may have made
        words = await refusal(path)
        assert f"{path}/{CURRENT}/{names[0]}" in words
        assert "quire bookie rebuild-index" in words
    assert not files_of(f"{path}/{CURRENT}/{names[0]}"), "made an empty one"


async def test_an_older_index_refuses_the_start(tmp_path):
    path, _ = await filled(tmp_path)
    old = RocksIndex(str(tmp_path / "old"), 1 << 20)
    old.open()
    old.put(1, [0], [1 << 32 | 1028])
    old.put_ledgers([(1, b"\x1a\x00")])
    old.sync()
    old.close()
    shutil.rmtree(f"{path}/{CURRENT}/locations")
    shutil.copytree(tmp_path / "old" / "locations", f"{path}/{CURRENT}/locations")
    words = await refusal(path)
    assert "has sync 1 as its last" in words
    assert "rebuild-index" in words


async def test_a_new_index_object_on_old_files_refuses(machine, adds_class):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        adds.add(1, 0)
        await adds.wait(1)
    machine.index = MemoryIndex()
    with pytest.raises(BaseExceptionGroup) as error:
        async with machine.running():
            pass
    assert error.group_contains(BookieStartError, match="rebuild-index")


def test_stamps_of_an_index(tmp_path):
    index = RocksIndex(str(tmp_path), 1 << 20)
    index.open()
    assert index.stamps == (0, 0)
    index.sync()
    assert index.stamps == (0, 0), "nothing was to be made durable"
    index.put(1, [0], [5])
    index.sync()
    assert index.stamps == (1, 0)
    index.put_ledgers([(1, b"x")])
    index.delete_ledgers([2])
    index.sync()
    assert index.stamps == (2, 1)
    index.close()
    index.open(must_exist=True)
    assert index.stamps == (2, 1)
    assert index.ledgers() == [(1, b"x")]
    assert list(index.locations()) == [(1, 0, 5)]
    # One of them lost: a table of the index is gone.
    index.put(1, [1], [6])
    index.sync()
    index._locations.rocks.delete(struct.pack(">qq", -0x5154, 2))
    index.close()
    with pytest.raises(BookieStartError, match=r"locations: .*lost a part .*the first is 2"):
        index.open()


@pytest.mark.parametrize("suffix", ["MANIFEST", ".log"])
async def test_a_log_that_rocksdb_would_read_for_ever(tmp_path, suffix):
    """The type of a record turned into that of a reused log: RocksDB 9.8 never ends opening it."""
    path, _ = await filled(tmp_path)
    files = files_of(f"{path}/{CURRENT}/locations")
    (file,) = (each for each in files if suffix in os.path.basename(each))
    with open(file, "r+b") as opened:  # noqa: ASYNC230
        content = opened.read()
        (length,) = struct.unpack_from("<H", content, 4)
        second = 7 + length
        assert content[second + 6] == 1, "a whole record"
        opened.seek(second + 6)
        opened.write(bytes([1 ^ 4]))
    words = await refusal(path)
    assert f"{file}: offset {second}: a record of type 5" in words
    assert "rebuild-index" in words


def test_many_stamps_are_pruned_and_still_add_up(tmp_path):
    index = RocksIndex(str(tmp_path), 1 << 20)
    for _ in range(3):
        index.open()
        for entry_id in range(1500):
            index.put(1, [entry_id], [entry_id + 1])
            index.sync()
        index.close()
    index.open()
    assert index.stamps == (4500, 0)
    kept = [key for key, _ in index._locations.items(struct.pack(">qq", -0x5154, 0))]
    assert 1000 <= len(kept) <= 3001
    index.close()


# Entry logs.


async def test_damage_in_logs_of_a_real_bookie(tmp_path):
    """Header, map, payload, ids, length, the whole file: what is read then."""
    path, stored = await filled(tmp_path)
    log = Path(min(each for each in files_of(f"{path}/{CURRENT}") if LOG.search(each)))
    content = log.read_bytes()  # noqa: ASYNC240

    async def read_after(damaged):
        if damaged is None:
            log.unlink()  # noqa: ASYNC240
        else:
            log.write_bytes(damaged)  # noqa: ASYNC240
        prepare(path)
        counts = dict.fromkeys(Status, 0)
        async with serving(make_config(path)) as bookie:
            for key, entry in stored.items():
                status, found = await bookie.read_entry(*key)
                counts[status] += 1
                assert status is not Status.EOK or bytes(found) == entry
            listed = bookie.statistics().damaged_records
        assert counts[Status.EOK] + counts[Status.EIO] == len(stored)
        assert listed == counts[Status.EIO]
        return counts[Status.EIO]

    def flipped(at):
        changed = bytearray(content)
        changed[at] ^= 0x40
        return bytes(changed)

    map_offset = struct.unpack_from(">q", content, 8)[0]
    assert map_offset
    assert await read_after(flipped(2)) == 0, "the header is not needed to read"
    assert await read_after(flipped(9)) == 0, "nor is the map"
    assert await read_after(flipped(map_offset + 30)) == 0
    assert await read_after(flipped(1024 + 3)) == 1, "a length"
    assert await read_after(flipped(1024 + 4 + 7)) == 1, "a ledger id"
    assert await read_after(flipped(1024 + 4 + 15)) == 1, "an entry id"
    assert await read_after(flipped(1024 + 4 + 40)) == 1, "payload"
    assert await read_after(content[: map_offset // 2]) > 1, "the second half"
    assert await read_after(None) > 100, "all of it"


async def test_entries_before_a_damaged_one_are_served(tmp_path):
    config = make_config(str(tmp_path))
    entries = {(1, i): make_entry(1, i, bytes([i]) * 300) for i in range(40)}
    async with serving(config) as bookie:
        await add_all(bookie, entries)
        await bookie.flush()
        location = bookie._index.get(1, 20)
    log = tmp_path / CURRENT / log_name(location >> 32)
    with open(log, "r+b") as file:  # noqa: ASYNC230
        file.seek((location & 0xFFFFFFFF) + 100)
        file.write(b"!")
    async with serving(config) as bookie:
        for _ in range(3):
            status, found = bookie.read_entries_nowait(1, 5, 0, 1 << 20)
            assert status is Status.EOK
            assert [bytes(e) for e in found] == [entries[1, i] for i in range(5, 20)]
            assert await bookie.read_entries(1, 20, 0, 1 << 20) == (Status.EIO, [])
            status, found = await bookie.read_entries(1, 21, 0, 1 << 20)
            assert [bytes(e) for e in found] == [entries[1, i] for i in range(21, 40)]
        (damage,) = bookie.scrubber.damages()
        assert (damage.ledger_id, damage.entry_id) == (1, 20)
        assert damage.path == str(log)
        assert damage.offset == (location & 0xFFFFFFFF) - 4
        assert "digest" in damage.reason


async def add_forty(bookie, adds_class):
    """Entries of ledger 1, in an entry log."""
    adds = adds_class(bookie)
    for entry_id in range(40):
        adds.add(1, entry_id, b"x" * 50)
    await adds.wait(40)
    await bookie.flush()


async def test_what_was_checked_is_not_checked_again(machine_class, adds_class):
    machine = machine_class(verify_digest_on_write=True, read_ahead_size_bytes=1 << 20)
    async with machine.running() as bookie:
        await add_forty(bookie, adds_class)
        verified = bookie._reader.statistics
        for first in (0, 10, 0, 20, 30, 5, 25):
            status, _ = bookie.read_entries_nowait(1, first, 10, 1 << 20)
            assert status is Status.EOK
        assert verified.verified_entries == 40
        # What has to come from the disk again is checked again.
        machine.disk.faults.cached_share = 0.0
        await bookie.read_entries(1, 0, 10, 1 << 20)
        machine.disk.faults.cached_share = 1.0
        assert verified.verified_entries == 50
        await bookie.read_entries(1, 10, 10, 1 << 20)
        assert verified.verified_entries == 60


@pytest.mark.parametrize("how", ["a neighbour's cold read", "a look that does not wait"])
async def test_what_may_have_come_from_the_disk_again_is_checked_again(
    machine_class, adds_class, how
):
    """Pages leave memory unseen; the kernel reads a whole page where a neighbour's bytes are
    wanted, and some ahead where it is only asked whether they are there."""
    machine = machine_class(verify_digest_on_write=True)
    async with machine.running() as bookie:
        await add_forty(bookie, adds_class)
        assert (await bookie.read_entries(1, 0, 40, 1 << 20))[0] is Status.EOK
        location = bookie._index.get(1, 10)
        path = bookie._logs.get(location >> 32).path
        machine.disk.flip_bit(path, (location & 0xFFFFFFFF) + 40)
        machine.disk.faults.cached_share = 0.0
        if how == "a neighbour's cold read":
            assert (await bookie.read_entries(1, 15, 1, 1 << 20))[0] is Status.EOK
        else:
            assert bookie.read_entries_nowait(1, 15, 1, 1 << 20) is None
        machine.disk.faults.cached_share = 1.0
        assert bookie.read_entries_nowait(1, 10, 1, 1 << 20) == (Status.EIO, [])


async def test_without_the_digest_type_nothing_is_checked(machine, adds_class):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        adds.add(1, 0, entry=[struct.pack(">qqqq", 1, 0, -1, 5) + b"no digest here"])
        await adds.wait(1)
        await bookie.flush()
        assert (await bookie.read_entry(1, 0))[0] is Status.EOK
        machine.disk.faults.cached_share = 0.0
        assert (await bookie.read_entry(1, 0))[0] is Status.EOK


# Parts.


def test_verified_ranges_are_a_set_of_bytes():
    rng = random.Random(2)
    ranges = VerifiedRanges()
    model = set()
    for _ in range(3000):
        start = rng.randrange(300)
        end = start + rng.randrange(1, 30)
        action = rng.random()
        if action < 0.4:
            ranges.add(7, start, end)
            model |= set(range(start, end))
        elif action < 0.42:
            ranges.forget(7)
            model.clear()
        assert ranges.covers(7, start, end) == (set(range(start, end)) <= model)
    assert not ranges.covers(8, 0, 1)
    for start in range(0, 100 * RANGES_MAX, 50):
        ranges.add(9, start, start + 10 + start % 7)
    assert sum(ranges.covers(9, start, start + 10) for start in range(0, 6400, 50)) <= RANGES_MAX


def test_damage_is_listed_once_and_lines_are_limited(caplog):
    now = [0.0]

    class Clock(RealClock):
        def monotonic(self):
            return now[0]

    reports = DamageReports(Clock())
    for number in range(100):
        for _ in range(2):
            reports.report("/d/1.log", number, 1, number, "why")
    assert reports.count == 100
    assert len(caplog.records) == LINES_MAX
    now[0] = 61.0
    reports.report("/d/2.log", 0, 1, 0, "why")
    assert "80 more records" in caplog.text
    for number in range(DAMAGES_MAX + 10):
        reports.report("/d/3.log", number, 1, number, "why")
    assert reports.count == 101 + DAMAGES_MAX + 10
    assert len(reports.listed()) == DAMAGES_MAX


def test_the_list_has_room_again_for_what_is_found_later():
    reports = DamageReports(RealClock())
    told = []
    reports.on_damage(told.append)
    for number in range(DAMAGES_MAX):
        reports.report("/d/1.log", number, 1, number, "why")
    reports.report("/d/1.log", 0, 2, 7, "why")
    assert (reports.entries_of(2), reports.unlisted_of(2)) == ([], 1)
    assert told[-1] == 2
    reports.are_sound(1, 10, 5)
    assert reports.entries_of(1) == [*range(10), *range(15, DAMAGES_MAX)]
    assert len(reports.listed()) == DAMAGES_MAX - 5
    # All entries of ledger 2 are read: the one that is damaged is found again, and listed.
    reports.report("/d/1.log", 0, 2, 7, "why")
    reports.all_were_read(2, 1)
    assert (reports.entries_of(2), reports.unlisted_of(2)) == ([7], 0)
    reports.forget_ledger(1)
    assert [damage.ledger_id for damage in reports.listed()] == [2]
    reports.are_sound(2, 7, 1)
    assert reports.listed() == []


def test_what_finds_no_room_while_all_is_read_is_not_forgotten():
    reports = DamageReports(RealClock())
    for number in range(DAMAGES_MAX):
        reports.report("/d/1.log", number, 1, number, "why")
    reports.report("/d/1.log", 0, 2, 7, "why")
    reports.report("/d/1.log", 9, 2, 3, "why")
    reports.all_were_read(2, 1)
    assert reports.unlisted_of(2) == 2
    reports.forget_ledger(2)
    assert reports.unlisted_of(2) == 0


def test_cuts_go_with_their_logs():
    reports = DamageReports(RealClock())
    for log_id in (1, 2):
        for position in (300, 100, 200, 100):
            reports.cut_reads_at(log_id, position)
    assert [reports.first_cut(1, start, 1000) for start in (0, 101, 201, 301)] == [
        100,
        200,
        300,
        -1,
    ]
    reports.forget_logs_but(lambda log_id: log_id == 2)
    assert (reports.first_cut(1, 0, 1000), reports.first_cut(2, 0, 1000)) == (-1, 100)
    reports.forget_logs_but(lambda _: False)
    assert not reports.has_cuts


async def test_an_entry_damaged_after_the_list_is_full_is_told_and_not_listed(
    machine_class, adds_class, monkeypatch
):
    """As a disk with a few MiB of bad blocks has them: entries are smaller than 1 KiB. Once it is
    written again it is listed, and nothing of it is left over."""
    monkeypatch.setattr(damage_module, "DAMAGES_MAX", 100)
    machine = machine_class(
        journal_size_bytes=4 << 20,
        journal_queue_size_max_bytes=4 << 20,
        write_cache_size_bytes=4 << 20,
        held_adds_size_max_bytes=4 << 20,
    )
    count = 2500
    bad = (1, 2, 1200, count - 1)
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(count):
            adds.add(1, entry_id, bytes(300))
        await adds.wait(count)
        await bookie.flush()
        told = []
        bookie.on_damage(told.append)
        for number in range(100):
            bookie._damages.report("/ledgers/current/0.log", 1024 + number, 2, number, "damaged")
        told.clear()
        for entry_id in bad:
            location = machine.index.get(1, entry_id)
            file = machine.disk.open(bookie._logs.get(location >> 32).path)
            file.pwrite([b"\xff" * 16], location & 0xFFFFFFFF)
            file.close()
        status, _ = await bookie.read_entry(1, bad[0])
        assert status is Status.EIO
        assert told == [1], "auto-recovery is told of it"
        for _ in range(2):
            listed = await bookie.sound_entries(1)
            assert [each for each in range(count) if each not in listed] == list(bad)
        adds = adds_class(bookie)
        for entry_id in bad:
            adds.add(1, entry_id, bytes(300), flags=FLAG_RECOVERY_ADD)
        await adds.wait(len(bad))
        assert list(await bookie.sound_entries(1)) == list(range(count))
        assert bookie._damages.unlisted_of(1) == 0
