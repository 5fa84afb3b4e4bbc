"""The scrub and the local consistency check find what is damaged, and nothing else."""

import random
import struct
import zlib

import pytest
import trio
import trio.testing

from bookie.errors import BookieStartError, IndexReadError
from bookie.health.damage import DamageReports
from bookie.health.digest_guess import DigestGuess, crc32_matches
from bookie.health.scrub_state import FILE_NAME, ScrubState
from bookie.storage.entry_log_format import log_name
from bookie.storage.index import MemoryIndex
from runtime.env import RealClock
from wire.bookkeeper.entry import Digest, DigestType
from wire.bookkeeper.status import FLAG_RECOVERY_ADD, Status

SCRUB_FILE = f"/ledgers/current/{FILE_NAME}"


def place(machine, ledger_id, entry_id):
    """(path of the log, offset of the entry)"""
    location = machine.index.get(ledger_id, entry_id)
    assert location
    return f"/ledgers/current/{log_name(location >> 32)}", location & 0xFFFFFFFF


async def fill(machine, adds_class, *, ledgers=3, entries=60, entry=None):
    """Leaves complete logs with these entries."""
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(entries):
            for ledger_id in range(1, ledgers + 1):
                made = None if entry is None else [entry(ledger_id, entry_id)]
                adds.add(ledger_id, entry_id, b"%d" % entry_id * 40, entry=made)
            await adds.wait((entry_id + 1) * ledgers)


def sealed(digest_type, password=b""):
    digest = Digest(digest_type, password)

    def entry(ledger_id, entry_id):
        payload = b"%d" % entry_id * 40
        size = len(payload)
        return digest.seal(ledger_id, entry_id, -1, size, (payload,), size) + payload

    return entry


async def test_a_pass_over_intact_logs_finds_nothing(machine, adds_class):
    await fill(machine, adds_class)
    async with machine.running() as bookie:
        progress = []
        total = bookie.scrubber.total_bytes()
        status = await bookie.scrubber.scrub(progress.append)
        assert status.damaged_entries == 0
        assert status.verified_entries == 180
        assert status.unverifiable_entries == 0
        assert status.bytes == status.total_bytes == total > 0
        assert 0 < sum(progress) <= total
        assert status.passes == 1
        assert not status.is_running
        assert bookie.scrubber.damages() == []


@pytest.mark.parametrize("kind", ["known", "crc32c", "crc32"])
async def test_flipped_bits_of_payloads_and_headers(machine_class, adds_class, kind):
    machine = machine_class(verify_digest_on_write=kind == "known")
    digest_type = DigestType.CRC32 if kind == "crc32" else DigestType.CRC32C
    await fill(machine, adds_class, entry=sealed(digest_type))
    rng = random.Random(1)
    flipped = {(1, 30), (2, 59), (3, 7)}
    for key in flipped:
        path, offset = place(machine, *key)
        machine.disk.flip_bit(path, offset + rng.randrange(16, 70), rng.randrange(8))
    async with machine.running() as bookie:
        status = await bookie.scrubber.scrub()
        assert status.damaged_entries == 3
        assert {(d.ledger_id, d.entry_id) for d in bookie.scrubber.damages()} == flipped
        for key in flipped:
            path, offset = place(machine, *key)
            assert any(d.path == path and d.offset == offset - 4 for d in bookie.scrubber.damages())
            assert (await bookie.read_entry(*key))[0] is Status.EIO, "it is known by now"
        status, found = await bookie.read_entries(1, 25, 0, 1 << 20)
        assert (status, len(found)) == (Status.EOK, 5)
        status, found = await bookie.read_entries(1, 31, 0, 1 << 20)
        assert (status, len(found)) == (Status.EOK, 29)


async def test_damaged_entries_are_told_and_not_listed_until_they_are_written_again(
    machine, adds_class
):
    """Also a reader that goes on from the entry in front of it is given the new copy."""
    entry = sealed(DigestType.CRC32C)
    await fill(machine, adds_class, entry=entry)
    for key in ((1, 30), (1, 31), (2, 59)):
        path, offset = place(machine, *key)
        machine.disk.flip_bit(path, offset + 50, 3)
    async with machine.running() as bookie:
        told = []
        bookie.on_damage(told.append)
        assert list(await bookie.sound_entries(1)) == list(range(60))
        await bookie.scrubber.scrub()
        assert set(told) == {1, 2}
        count = len(told)
        await bookie.scrubber.scrub()
        assert len(told) == count, "it is known, for a while"
        assert list(await bookie.sound_entries(1)) == [*range(30), *range(32, 60)]
        assert list(await bookie.sound_entries(2)) == list(range(59))
        assert list(await bookie.sound_entries(3)) == list(range(60))
        assert await bookie.sound_entries(4) is None
        adds = adds_class(bookie)
        adds.add(1, 30, flags=FLAG_RECOVERY_ADD, entry=[entry(1, 30)])
        await adds.wait(1)
        assert list(await bookie.sound_entries(1)) == [*range(31), *range(32, 60)]
        await bookie.flush()
        assert list(await bookie.sound_entries(1)) == [*range(31), *range(32, 60)]
        statuses = [(await bookie.read_entry(1, entry_id))[0] for entry_id in range(28, 34)]
        assert statuses == [Status.EOK] * 3 + [Status.EIO] + [Status.EOK] * 2


async def test_what_was_written_again_is_not_looked_for_where_it_cannot_be_read(
    machine, adds_class
):
    """A reader that comes from the entry in front of it would go on in the log that has a bad
    sector, though the index says where the new copy is: every second read failed."""
    entry = sealed(DigestType.CRC32C)
    await fill(machine, adds_class, ledgers=1, entry=entry)
    path, offset = place(machine, 1, 30)
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        adds.add(1, 30, flags=FLAG_RECOVERY_ADD, entry=[entry(1, 30)])
        await adds.wait(1)
        await bookie.flush()
        assert place(machine, 1, 30)[0] != path
        # Within what is looked at from entry 30 on, and behind that from 29 on.
        size = bookie._reader._single_size
        machine.disk.make_unreadable(path, offset - 4 + size - 20, 10)
        for _ in range(4):
            for entry_id in (29, 30):
                bookie._reader._single_size = size
                assert (await bookie.read_entry(1, entry_id))[0] is Status.EOK
        assert 30 in await bookie.sound_entries(1)


def test_a_mended_entry_whose_new_copy_is_damaged_is_told_at_once():
    """Though its ledger was told of a moment ago: that mark was served."""
    damages = DamageReports(RealClock())
    told = []
    damages.on_damage(told.append)
    for path, count in (("0.log", 1), ("0.log", 1), ("3.log", 2), ("3.log", 2), ("0.log", 2)):
        damages.report(path, 1024, 1, 30, "digest mismatch")
        assert told == [1] * count


async def test_entries_with_a_mac_cannot_be_checked_and_are_not_blamed(machine, adds_class):
    await fill(machine, adds_class, entry=sealed(DigestType.HMAC, b"secret"))
    async with machine.running() as bookie:
        status = await bookie.scrubber.scrub()
        assert (status.damaged_entries, status.unverifiable_entries) == (0, 180)


@pytest.mark.parametrize("at", [-4, 3, 12], ids=["length", "ledger", "entry"])
async def test_a_record_that_is_none(machine, adds_class, at):
    """The log cannot be followed, or a record lies about what it is: the index's side tells."""
    await fill(machine, adds_class)
    path, offset = place(machine, 2, 20)
    machine.disk.flip_bit(path, offset + at, 7)
    async with machine.running() as bookie:
        status = await bookie.scrubber.scrub()
        assert status.damaged_entries >= 1
        report = await bookie.scrubber.check_index()
        assert report.entries == 180
        assert report.damaged == 1
        assert report.first.startswith(f"{path}: offset {offset - 4}: ledger 2 entry 20")
        assert (await bookie.read_entry(2, 20))[0] is Status.EIO
        assert (await bookie.read_entry(2, 21))[0] is Status.EOK


@pytest.mark.parametrize("is_live", [True, False], ids=["live", "overwritten"])
@pytest.mark.parametrize("kind", ["known", "crc32c", "crc32"])
async def test_a_rotten_entry_behind_a_rotten_length(machine_class, adds_class, kind, is_live):
    """The log cannot be followed up to it, so the scan never sees it; also where what is broken
    there is a record that nobody needs any more."""
    machine = machine_class(verify_digest_on_write=kind == "known")
    entry = sealed(DigestType.CRC32 if kind == "crc32" else DigestType.CRC32C)
    await fill(machine, adds_class, entry=entry)
    path, broken = place(machine, 2, 20)
    keys = [(ledger_id, entry_id) for ledger_id in (1, 2, 3) for entry_id in range(60)]
    there = sorted(
        (place(machine, *key)[1], key) for key in keys if place(machine, *key)[0] == path
    )
    before = [key for offset, key in there if offset < broken]
    behind = [key for offset, key in there if offset > broken]
    rotten = {before[0], behind[1], behind[-1]}
    if not is_live:
        async with machine.running() as bookie:
            adds = adds_class(bookie)
            adds.add(2, 20, flags=FLAG_RECOVERY_ADD, entry=[entry(2, 20)])
            await adds.wait(1)
    for key in rotten:
        machine.disk.flip_bit(path, place(machine, *key)[1] + 50, 3)
    machine.disk.flip_bit(path, broken - 4, 7)
    async with machine.running() as bookie:
        told = []
        bookie.on_damage(told.append)
        for _ in range(2):
            status = await bookie.scrubber.scrub()
            # One is the place where the log breaks.
            assert status.damaged_entries == len(rotten) + 1 + is_live
            damages = {(d.ledger_id, d.entry_id) for d in bookie.scrubber.damages()}
            assert damages == rotten | {(-1, -1)} | ({(2, 20)} if is_live else set())
        blamed = rotten | ({(2, 20)} if is_live else set())
        assert set(told) == {ledger_id for ledger_id, _ in blamed}
        for ledger_id in set(told):
            sound = {(ledger_id, entry_id) for entry_id in await bookie.sound_entries(ledger_id)}
            assert sound == {key for key in keys if key[0] == ledger_id} - blamed


async def test_a_missing_log_and_a_cut_one(machine, adds_class):
    await fill(machine, adds_class)
    path, offset = place(machine, 3, 0)
    machine.disk.open(path).truncate(offset + 10)
    async with machine.running() as bookie:
        report = await bookie.scrubber.check_index()
        assert 0 < report.damaged < 180
        gone = report.damaged
        machine.disk.remove(path)
    async with machine.running() as bookie:
        report = await bookie.scrubber.check_index()
        assert report.damaged >= gone
        assert "the entry log is missing" in report.first


async def test_an_entry_that_the_index_lost(machine, adds_class):
    await fill(machine, adds_class)
    del machine.index._tables.locations[2][30]
    async with machine.running() as bookie:
        status = await bookie.scrubber.scrub()
        (damage,) = bookie.scrubber.damages()
        assert (damage.ledger_id, damage.entry_id) == (2, 30)
        assert "index" in damage.reason
        assert status.damaged_entries == 1


async def test_an_index_that_cannot_be_read_hides_no_other_damage(machine, adds_class):
    """RocksDB's checksums tell of one block, and of all keys that are asked for with one of it."""
    await fill(machine, adds_class, entry=sealed(DigestType.CRC32C))
    unreadable = {(2, entry_id) for entry_id in range(10, 14)}
    rotten = [(1, 0), (1, 11), (3, 59)]
    for key in rotten:
        path, offset = place(machine, *key)
        machine.disk.flip_bit(path, offset + 50, 3)

    class DamagedIndex(MemoryIndex):
        __slots__ = ()

        def get(self, ledger_id, entry_id):
            if (ledger_id, entry_id) in unreadable:
                raise IndexReadError("a block is damaged")
            return super().get(ledger_id, entry_id)

    machine.index.__class__ = DamagedIndex
    async with machine.running() as bookie:
        told = []
        bookie.on_damage(told.append)
        status = await bookie.scrubber.scrub()
        found = {(d.ledger_id, d.entry_id) for d in bookie.scrubber.damages()}
        assert found == unreadable | set(rotten)
        assert status.damaged_entries == len(found)
        assert (status.passes, status.is_running) == (1, False)
        assert set(told) == {1, 2, 3}
        assert list(await bookie.sound_entries(2)) == [*range(10), *range(14, 60)]
        # Once they are in memory, no read asks the index for them.
        adds = adds_class(bookie)
        for entry_id in range(10, 14):
            entry = [sealed(DigestType.CRC32C)(2, entry_id)]
            adds.add(2, entry_id, flags=FLAG_RECOVERY_ADD, entry=entry)
        await adds.wait(4)
        assert list(await bookie.sound_entries(2)) == list(range(60))
        status = await bookie.scrubber.scrub()
        assert status.damaged_entries == len(rotten)


async def test_the_check_at_the_start(machine_class, adds_class):
    machine = machine_class(local_consistency_check_on_startup=True)
    await fill(machine, adds_class)
    async with machine.running():
        pass
    path, offset = place(machine, 1, 5)
    machine.disk.flip_bit(path, offset + 15)
    with pytest.raises(BaseExceptionGroup) as error:
        async with machine.running():
            pass
    assert error.group_contains(BookieStartError, match="1 of 180 entries damaged; the first: /led")


async def test_while_others_write_and_delete_nothing_is_blamed(machine, adds_class, entry_bytes):
    await fill(machine, adds_class)
    machine.disk.faults.cached_share = 0.5
    async with machine.running() as bookie:
        adds = adds_class(bookie)

        async def work():
            for round_number in range(8):
                for entry_id in range(20):
                    adds.add(9 + round_number, entry_id, b"x" * 100)
                await adds.wait(20 * (round_number + 1))
                await bookie.flush()
                if round_number == 3:
                    assert await bookie.delete_ledger(2) is Status.EOK
            stop.set()

        stop = trio.Event()
        passes = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            while not stop.is_set():
                status = await bookie.scrubber.scrub()
                assert status.damaged_entries == 0, bookie.scrubber.damages()
                assert (await bookie.scrubber.check_index()).damaged == 0
                passes += 1
        assert passes >= 2


async def test_a_pass_goes_on_after_a_restart(machine_class, adds_class, autojump_clock):
    machine = machine_class(scrub_interval_ms=1000, scrub_rate_bytes=4000)
    await fill(machine, adds_class, entries=120)
    with trio.fail_after(1000):
        async with machine.running() as bookie:
            while bookie.scrubber.status().log_id < 1:
                await trio.sleep(0.05)
            under_way = bookie.scrubber.status()
            assert under_way.is_running
        started_ms, next_log_id = map(int, machine.disk.open(SCRUB_FILE).pread(64, 0).split())
        assert (started_ms, next_log_id) == (under_way.started_ms, under_way.log_id)
        async with machine.running() as bookie:
            while not bookie.scrubber.status().passes:
                await trio.sleep(0.5)
            assert bookie.scrubber.status().started_ms == started_ms
    words = machine.disk.open(SCRUB_FILE).pread(64, 0).split()
    assert words[1] == b"-1"
    machine.disk.write_file(SCRUB_FILE, b"garbage")
    async with machine.running() as bookie:
        while not bookie.scrubber.status().passes:
            await trio.sleep(0.5)
        assert bookie.scrubber.status().verified_entries == 360


async def test_a_log_may_go_while_the_scrub_notes_that_it_is_next(
    machine_class, adds_class, autojump_clock, monkeypatch
):
    machine = machine_class(scrub_interval_ms=1000, entry_log_size_limit_bytes=9 << 10)
    await fill(machine, adds_class)
    store, at = ScrubState.store, []
    async with machine.running() as bookie:

        async def stored_while_it_goes(state):
            await store(state)
            if state.next_log_id >= 0 and not at:
                at.append(state.next_log_id)
                for ledger_id in bookie.list_ledgers():
                    await bookie.delete_ledger(ledger_id)
                await bookie.flush()

        monkeypatch.setattr(ScrubState, "store", stored_while_it_goes)
        await trio.sleep(10)
        assert at
        assert bookie._logs.get(at[0]) is None
        assert bookie.is_running


async def test_the_log_that_is_written_is_looked_at(machine, adds_class):
    """As far as it is durable."""
    entry = sealed(DigestType.CRC32C)
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(20):
            adds.add(1, entry_id, entry=[entry(1, entry_id)])
        await adds.wait(20)
        assert (await bookie.scrubber.scrub()).bytes == 0
        await bookie.flush()
        (log,) = bookie._logs.all()
        assert log.is_written
        path, offset = place(machine, 1, 7)
        assert path == log.path
        machine.disk.flip_bit(path, offset + 50, 3)
        total = bookie.scrubber.total_bytes()
        status = await bookie.scrubber.scrub()
        assert status.bytes == status.total_bytes == total == log.size_bytes
        assert (status.verified_entries, status.damaged_entries) == (20, 1)
        assert list(await bookie.sound_entries(1)) == [*range(7), *range(8, 20)]
        for entry_id in range(20, 30):
            adds.add(1, entry_id, entry=[entry(1, entry_id)])
        await adds.wait(30)
        await bookie.flush()
        assert (await bookie.scrubber.scrub()).verified_entries == 30


@pytest.mark.parametrize("is_killed", [False, True])
async def test_damage_is_known_soon_after_a_restart(machine, adds_class, wait_until, is_killed):
    """Before that the bookie would say that it has what it has not, and its mark would be taken
    away. No pass is due for hours."""
    await fill(machine, adds_class, entries=120, entry=sealed(DigestType.CRC32C))
    path, offset = place(machine, 2, 7)
    machine.disk.flip_bit(path, offset + 50, 3)
    async with machine.running_until_crash() if is_killed else machine.running() as bookie:
        assert (await bookie.scrubber.scrub()).damaged_entries == 1
    for _ in range(2):
        async with machine.running() as bookie:
            told = []
            bookie.on_damage(told.append)
            await wait_until(lambda: bookie.scrubber.damages())
            assert told == [2]
            await wait_until(lambda: not bookie.scrubber.status().is_running)
            status = bookie.scrubber.status()
            assert (status.logs, status.passes) == (1, 0)
            assert list(await bookie.sound_entries(2)) == [*range(7), *range(8, 120)]
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        adds.add(2, 7, flags=FLAG_RECOVERY_ADD, entry=[sealed(DigestType.CRC32C)(2, 7)])
        await adds.wait(1)
        await bookie.flush()
        await wait_until(lambda: not bookie.scrubber._state.suspects)
        assert list(await bookie.sound_entries(2)) == list(range(120))
        await bookie.scrubber.scrub()
        assert bookie.scrubber.damages() == []
    async with machine.running() as bookie:
        # The damaged record is still there, behind the one of entry 6.
        await wait_until(lambda: bookie.scrubber.status().finished_ms)
        assert bookie.scrubber.status().logs == 1
        assert bookie.scrubber.damages() == []


@pytest.mark.parametrize("is_known", [False, True])
async def test_the_damaged_record_of_a_mended_entry_is_not_read_after_a_restart(
    machine_class, adds_class, wait_until, is_known
):
    """Who reads on from the entry in front finds it there; the index is not asked."""
    machine = machine_class(verify_digest_on_write=False)
    if is_known:
        machine.known_ledgers = Sealed()
    await fill(machine, adds_class, entry=sealed(DigestType.CRC32C), entries=120)
    entries = [sealed(DigestType.CRC32C)(2, number) for number in range(120)]
    path, offset = place(machine, 2, 7)
    machine.disk.flip_bit(path, offset + 50, 3)
    async with machine.running() as bookie:
        assert (await bookie.scrubber.scrub()).damaged_entries == 1
        adds = adds_class(bookie)
        adds.add(2, 7, flags=FLAG_RECOVERY_ADD, entry=[entries[7]])
        await adds.wait(1)
        await bookie.flush()
    for _ in range(2):
        async with machine.running() as bookie:
            await wait_until(lambda: bookie.scrubber.status().finished_ms)
            at, most = 0, 0
            while at < 120:
                status, found = await bookie.read_entries(2, at, 120, 1 << 20)
                assert status is Status.EOK
                assert [bytes(entry) for entry in found] == entries[at : at + len(found)]
                at, most = at + len(found), max(most, len(found))
            assert most > 20
            assert bookie.scrubber.damages() == []


class Sealed:
    """Metadata that says how all ledgers are sealed."""

    seconds_to_confirm = float("inf")

    async def gone(self, ledger_ids):
        return []

    async def confirmed(self):
        return []

    async def over_replicated(self, ledger_ids, give_up):
        return None

    async def digest(self, ledger_id):
        return Digest(DigestType.CRC32C)


async def test_damage_that_a_read_found_is_known_after_a_restart(machine, adds_class, wait_until):
    await fill(machine, adds_class)
    path, offset = place(machine, 1, 30)
    machine.disk.flip_bit(path, offset + 3, 3)
    async with machine.running() as bookie:
        assert (await bookie.read_entry(1, 30))[0] is Status.EIO
        log_id = machine.index.get(1, 30) >> 32
        await wait_until(lambda: machine.disk.exists(SCRUB_FILE))
    words = machine.disk.open(SCRUB_FILE).pread(64, 0).split()
    assert list(map(int, words[1:])) == [-1, log_id]
    async with machine.running() as bookie:
        await wait_until(lambda: 30 in bookie._damages.entries_of(1))


async def test_it_is_throttled(machine_class, adds_class, autojump_clock):
    machine = machine_class(scrub_interval_ms=1, scrub_rate_bytes=5_000)
    await fill(machine, adds_class)
    if machine.disk.exists(SCRUB_FILE):
        machine.disk.remove(SCRUB_FILE)  # or it goes on where it stood
    async with machine.running() as bookie:
        started = trio.current_time()
        while not bookie.scrubber.status().passes:
            await trio.sleep(0.1)
        seconds = trio.current_time() - started
        size = bookie.scrubber.status().bytes
        assert seconds > 0.7 * size / 5_000
        assert size > 15_000


def test_guessing_digests():
    guess = DigestGuess()
    crc32c, crc32 = sealed(DigestType.CRC32C), sealed(DigestType.CRC32)
    mac = sealed(DigestType.HMAC, b"secret")

    def matches(ledger_id, entry):
        return guess.matches(ledger_id, memoryview(b"pad" + entry), 3, len(entry))

    for ledger_id, entry in ((1, crc32c), (2, crc32)):
        assert matches(ledger_id, b"\xff" + entry(ledger_id, 0)[1:]) is None, "nothing known yet"
        assert matches(ledger_id, entry(ledger_id, 1)) is True
        assert matches(ledger_id, b"\xff" + entry(ledger_id, 0)[1:]) is False
        assert matches(ledger_id, mac(ledger_id, 0)) is False
    assert matches(3, mac(3, 0)) is None
    assert matches(3, bytes(32)) is None
    assert DigestGuess(is_crc32c=True).matches(3, memoryview(bytes(40)), 0, 40) is False
    header = struct.pack(">qqqq", 1, 2, 3, 4)
    entry = header + struct.pack(">q", zlib.crc32(b"abc", zlib.crc32(header))) + b"abc"
    assert crc32_matches(memoryview(entry), 0, len(entry))
    assert not crc32_matches(memoryview(entry[:39]), 0, 39)
