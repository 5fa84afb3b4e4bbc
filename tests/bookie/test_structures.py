"""Each on-disk or in-memory structure by itself."""

import random
import struct

import pytest

from bookie.cookie import Cookie, check_cookies, parse_cookie
from bookie.errors import BookieStartError, CorruptionError
from bookie.journal.journal_format import UNKNOWN_SEQUENCE, Position
from bookie.ledger_table import LedgerTable, decode_ledger_state
from bookie.storage.checkpoint import (
    NO_CHECKPOINT,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from bookie.storage.entry_log import EntryLogs
from bookie.storage.entry_log_format import log_id_of, log_name, pack_header, pack_ledgers_map
from bookie.storage.entry_log_writer import EntryLogWriter
from bookie.storage.index import MemoryIndex
from bookie.storage.rocks_database import NO_SPACE
from bookie.storage.rocks_index import RocksIndex
from bookie.storage.write_cache import WriteCache
from runtime.real_disk import RealDisk
from runtime.sim_disk import SimDisk
from wire.bookkeeper.status import Status

KEY = b"k" * 20


@pytest.fixture
def disk():
    disk = SimDisk(random.Random(0))
    disk.make_directory("/d")
    return disk


# Write cache.


def put(cache, ledger_id, entry_id, payload):
    start = cache.put(ledger_id, entry_id, (payload[:3], payload[3:]), len(payload))
    if start >= 0:
        cache.commit(ledger_id, entry_id, start, len(payload))
    return start >= 0


def read(cache, ledger_id, first, count_max=1 << 60, size_max=1 << 60):
    entries = []
    cache.read(ledger_id, first, count_max, size_max, entries)
    return [bytes(entry) for entry in entries]


async def test_write_cache_is_a_map(tiny):
    rng = random.Random(3)
    cache = WriteCache(tiny(write_cache_size_bytes=1 << 20))
    model = {}
    for step in range(2000):
        ledger_id = rng.randrange(3)
        entry_id = rng.randrange(300) if rng.random() < 0.5 else step
        payload = rng.randbytes(rng.randrange(0, 120))
        if not put(cache, ledger_id, entry_id, payload):
            break
        model[ledger_id, entry_id] = payload
        if step == 1000:
            cache.swap()
    assert len(model) > 800
    for ledger_id in range(3):
        ids = [entry for ledger, entry in model if ledger == ledger_id]
        assert cache.last_entry_id(ledger_id) == max(ids)
        for first in range(0, 2001, 7):
            expected = []
            while (key := (ledger_id, first + len(expected))) in model:
                expected.append(model[key])
            assert read(cache, ledger_id, first) == expected
            assert read(cache, ledger_id, first, 2) == expected[:2]
            sizes = 0
            fitting = []
            for entry in expected:
                sizes += len(entry)
                if fitting and sizes > 200:
                    break
                fitting.append(entry)
            assert read(cache, ledger_id, first, size_max=200) == fitting
    generation = cache.active
    for ledger_id, run in generation.runs.items():
        ids = [entry for entry, _ in await run.sorted_places()]
        assert ids == sorted(set(ids))
        for entry, place in await run.sorted_places():
            assert bytes(generation.entry(place)) == model[ledger_id, entry]


def test_a_generation_is_bounded_and_its_memory_used_again(tiny):
    config = tiny()
    cache = WriteCache(config)
    filled = 0
    while put(cache, 1, filled, b"x" * 100):
        filled += 1
    half = config.write_cache_size_bytes // 2
    assert half * 0.6 < cache.active.record_size_bytes <= half
    first = [id(segment.data) for segment in cache.active.segments]
    cache.swap()
    assert put(cache, 1, filled, b"y" * 100)
    cache.flushed()
    cache.swap()
    while put(cache, 1, filled, b"z" * 100):
        filled += 1
    assert {id(segment.data) for segment in cache.active.segments} <= set(first)


def test_a_view_pins_its_segment_until_it_is_gone(tiny):
    cache = WriteCache(tiny())
    put(cache, 1, 0, b"entry zero")
    entries = []
    cache.read(1, 0, 1, 100, entries)
    assert entries[0].readonly
    cache.swap()
    cache.flushed()
    assert cache.statistics().pinned_size_bytes == 2048
    for entry_id in range(100):
        put(cache, 1, entry_id, b"other bytes")
    assert bytes(entries[0]) == b"entry zero"
    entries.clear()
    cache.swap()
    cache.flushed()
    assert cache.statistics().pinned_size_bytes == 0


def test_too_much_pinned_gives_copies(tiny):
    cache = WriteCache(tiny(write_cache_pinned_size_max_bytes=2047))
    held = []
    for _ in range(2):
        put(cache, 1, 0, b"entry zero")
        cache.read(1, 0, 1, 100, held)
        cache.swap()
        cache.flushed()
    assert cache.statistics().copied_reads == 1
    assert cache.statistics().pinned_size_bytes == 2048
    assert [bytes(entry) for entry in held] == [b"entry zero"] * 2


# Entry log.


def test_ledgers_map_bytes():
    """BookKeeper's layout, written by hand (feature 7)."""
    data = pack_ledgers_map({7: 100, 3: 50})
    assert data.hex() == (
        "00000034"
        "ffffffffffffffff"
        "fffffffffffffffe"
        "00000002"
        "0000000000000003"
        "0000000000000032"
        "0000000000000007"
        "0000000000000064"
    )
    header = pack_header(5000, 2)
    assert len(header) == 1024
    assert header[:20].hex() == "424b4c4f00000001000000000000138800000002"


async def test_ledgers_map_in_batches(disk, tiny):
    ledgers = {i: i * 10 for i in range(25_000)}
    file = disk.open("/d/5.log", create=True)
    file.pwrite([pack_header(1024, len(ledgers)), pack_ledgers_map(ledgers)], 0)
    logs = EntryLogs(tiny(), disk, "/d")
    await logs.load(-1)
    assert logs.get(5).ledgers == ledgers
    # A header that is not true must not make ledgers vanish (bookkeeper PR 4607).
    whole = pack_header(1024, len(ledgers))
    for header in (
        pack_header(1024, len(ledgers) + 1),
        pack_header(1024, len(ledgers) - 1),
        *(whole[:torn].ljust(1024, b"\0") for torn in range(8, 20)),
    ):
        file.pwrite([header], 0)
        logs = EntryLogs(tiny(), disk, "/d")
        await logs.load(-1)
        assert logs.get(5).ledgers in (None, ledgers)
        assert header == whole or await logs.drop_ledgers([]) == 0
        assert disk.exists("/d/5.log")


async def test_log_ids_are_never_used_twice(disk, tiny):
    logs = EntryLogs(tiny(), disk, "/d")
    await logs.load(9)
    await EntryLogWriter(tiny(), disk, logs).start_log()
    assert disk.list("/d") == ["a.log"]
    for log_id in (0, 10, 255, 1 << 40):
        assert log_id_of(log_name(log_id)) == log_id
    assert log_id_of("0a.log") is None
    assert log_id_of("x.log") is None


async def test_open_files_are_limited(disk, tiny):
    logs = EntryLogs(tiny(entry_log_open_files_max=3), disk, "/d")
    await logs.load(-1)
    writer = EntryLogWriter(logs._config, disk, logs)
    for _ in range(8):
        await writer.start_log()
        writer.current.ledgers[1] = 10  # a log in which nothing is goes when the next is started
    assert sum(logs.get(i).file is not None for i in range(8)) <= 3
    for i in range(8):
        assert logs.file(logs.get(i)).size() >= 1024
    assert sum(logs.get(i).file is not None for i in range(8)) <= 3


async def test_only_so_much_of_what_was_written_stays_in_the_page_cache(tmp_path, tiny):
    disk = RealDisk()
    logs = EntryLogs(tiny(entry_log_cached_size_bytes=130 << 10), disk, str(tmp_path))
    await logs.load(-1)
    writer = EntryLogWriter(logs._config, disk, logs)
    written = []  # (log, offset)
    for count in range(40):
        if count % 8 == 0:
            await writer.start_log()
            writer.current.ledgers[1] = 10
        written.append((writer.current, writer.current.size_bytes))
        await writer.write([bytes(16 << 10)], 16 << 10)
        await writer.sync()

    def is_cached(log, offset):
        return logs.file(log).is_cached(1, offset + (8 << 10))

    # From the end: to look is to start reading ahead.
    assert [is_cached(*each) for each in written[::-1]] == [True] * 8 + [False] * 32


# Cookie.

COOKIE = Cookie("127.0.0.1:31810", "/path/journal", "/path/ledgers", "88d2da4f")


def test_cookie_text_is_bookkeepers():
    assert COOKIE.encode() == (
        '5\nbookieHost: "127.0.0.1:31810"\njournalDir: "/path/journal"\n'
        'ledgerDirs: "1\\t/path/ledgers"\ninstanceId: "88d2da4f"\n'
    )
    odd = Cookie('a"b\\c', "/with space", "/tab\there", "")
    for cookie in (COOKIE, odd):
        assert parse_cookie(cookie.encode()) == cookie


@pytest.mark.parametrize(
    "text", ["", "4\n", "5\n", "5\nbookieHost: 1\n", '5\nbookieHost: "b"\njournalDir: "j"\n']
)
def test_bad_cookies(text):
    with pytest.raises(ValueError, match=r"version|field|no "):
        parse_cookie(text)


def test_cookies_of_directories(disk):
    disk.make_directory("/a")
    disk.make_directory("/b")
    assert check_cookies(disk, COOKIE, ["/a", "/b"])
    disk.open("/a/1.txn", create=True)
    assert not check_cookies(disk, COOKIE, ["/a", "/b"])
    for name in ("bookie_id", "instance_id", "journal_directory", "ledger_directory"):
        values = {field: getattr(COOKIE, field) for field in Cookie.__slots__}
        with pytest.raises(BookieStartError, match=f"/a/VERSION: {name}"):
            check_cookies(disk, Cookie(**{**values, name: "other"}), ["/a", "/b"])
    disk.remove("/b/VERSION")
    with pytest.raises(BookieStartError, match="/b/VERSION is missing, but /a has data"):
        check_cookies(disk, COOKIE, ["/a", "/b"])
    disk.remove("/a/VERSION")
    with pytest.raises(BookieStartError, match="missing"):
        check_cookies(disk, COOKIE, ["/a", "/b"])


# Checkpoint.


def test_checkpoint_round_trip_and_damage(disk):
    checkpoint = Checkpoint(Position(3, 4096, 77), 12, 5000, {1: 10, 2: 20}, (7, 8))
    assert read_checkpoint(disk, "/d") == NO_CHECKPOINT
    write_checkpoint(disk, "/d", checkpoint)
    assert read_checkpoint(disk, "/d") == checkpoint
    assert disk.open("/d/lastMark").pread(99, 0) == struct.pack(">qq", 3, 4096)
    data = encode_checkpoint(checkpoint)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 4
        with pytest.raises(CorruptionError, match="path"):
            decode_checkpoint("path", bytes(damaged))
        with pytest.raises(CorruptionError, match="path"):
            decode_checkpoint("path", data[:at])


def test_a_last_mark_ahead_of_the_checkpoint_refuses(disk):
    """Ours never is: followed, a damaged one would skip what only the journal has."""
    write_checkpoint(disk, "/d", Checkpoint(Position(3, 4096, 77), 12, 5000, {1: 10}))
    for journal_id, offset in ((4, 0), (3, 8192), (3 | 1 << 62, 4096)):
        disk.write_file("/d/lastMark", struct.pack(">qq", journal_id, offset))
        with pytest.raises(CorruptionError, match=r"/d/lastMark: offset 0: .* is ahead"):
            read_checkpoint(disk, "/d")
    disk.write_file("/d/lastMark", struct.pack(">qq", 2, 0))
    assert read_checkpoint(disk, "/d").mark == Position(3, 4096, 77)
    disk.remove("/d/checkpoint")
    mark = Position(2, 0, UNKNOWN_SEQUENCE)
    assert read_checkpoint(disk, "/d") == Checkpoint(mark, -1, 0, {})


# Ledger table.


def test_ledger_data_is_bookkeepers_protobuf():
    table = LedgerTable()
    state = table.create(5, b"\x01\x02\x03")
    assert state.encode().hex() == "080110001a03010203"
    state.fenced = True
    state.explicit_lac = b"\xff" * 200
    assert state.encode() == bytes.fromhex("080110011a0301020322c801") + b"\xff" * 200
    again = decode_ledger_state(5, state.encode() + bytes.fromhex("2800"))
    assert (again.fenced, again.master_key, again.explicit_lac) == (
        True,
        b"\x01\x02\x03",
        b"\xff" * 200,
    )
    for bad in (b"", b"\x08", b"\x1a\x05abc", b"\x0d\x00\x00\x00\x00", b"\x08\x01\x10\x01"):
        with pytest.raises(ValueError, match=r"ledger 5|number"):
            decode_ledger_state(5, bad)


def test_deleted_ledgers_are_remembered():
    table = LedgerTable()
    table.create(5, KEY)
    table.delete(5)
    assert table.get(5) is None
    assert table.is_deleted(5)
    assert table.take_dirty({5}) == []


# Index.


@pytest.fixture(params=["memory", "rocks"])
def index(request, tmp_path):
    index = MemoryIndex() if request.param == "memory" else RocksIndex(str(tmp_path), 1 << 20)
    index.open()
    yield index
    index.close()


def test_index(index):
    assert index.get(1, 0) == 0
    assert index.last_entry_id(1) == -1
    index.put(1, [0, 1, 2, 500], [10, 11, 12, 1 << 40])
    index.put(2, [7], [70])
    index.put(3, [1], [30])
    assert [index.get(1, i) for i in (0, 2, 3, 500)] == [10, 12, 0, 1 << 40]
    assert [index.last_entry_id(i) for i in (0, 1, 2, 3, 4)] == [-1, 500, 7, 1, -1]
    index.put(1, [1], [99])
    assert index.get(1, 1) == 99
    index.put_ledgers([(1, b"one"), (2, b"two"), (300, b"x")])
    assert index.ledgers() == [(1, b"one"), (2, b"two"), (300, b"x")]
    index.delete_ledgers([2, 300])
    assert index.ledgers() == [(1, b"one")]
    assert [index.last_entry_id(i) for i in (1, 2, 3)] == [500, -1, 1]
    assert index.get(2, 7) == 0
    index.sync()


class LateNoSpace:
    """RocksDB on a disk that is full: a write is told to have failed, and its log has it."""

    def __init__(self, rocks):
        self._rocks = rocks

    def __getattr__(self, name):
        return getattr(self._rocks, name)

    def write(self, batch):
        self._rocks.write(batch)
        raise OSError(f"IO error: {NO_SPACE}: While appending to file")


def test_a_mended_index_remembers_no_ends_of_before(tmp_path):
    """A write that found no space may come back with the log when the database is opened again:
    then an entry is there behind the one that was remembered as the ledger's last."""
    index = RocksIndex(str(tmp_path), 1 << 20)
    index.open()
    index.put(1, [0, 1], [10, 11])
    assert index.last_entry_id(1) == 1
    locations = index._locations
    locations.rocks = LateNoSpace(locations.rocks)
    with pytest.raises(OSError, match=NO_SPACE):
        index.put(1, [2], [12])
    assert locations.is_stuck
    assert index.last_entry_id(1) == 1
    index.mend()
    assert index.get(1, 2) == 12
    assert index.last_entry_id(1) == 2
    index.close()


def test_rocks_keys_and_values_are_bookkeepers(tmp_path):
    from rocksdict import Options, Rdict

    index = RocksIndex(str(tmp_path), 1 << 20)
    index.open()
    index.put(0x0102, [0x0304], [5 << 32 | 1028])
    index.put_ledgers([(9, b"data")])
    index.sync()
    index.close()
    database = Rdict(str(tmp_path / "locations"), Options(raw_mode=True))
    assert [(key.hex(), value.hex()) for key, value in database.items()] == [
        ("00000000000001020000000000000304", "0000000500000404"),
        ("ffffffffffffaeac0000000000000001", "0000000000000001"),  # the sync's stamp, ours
    ]
    database.close()
    index.open()
    assert index.get(0x0102, 0x0304) == 5 << 32 | 1028
    assert index.ledgers() == [(9, b"data")]
    index.close()


def test_memory_index_forgets_what_was_not_synced():
    index = MemoryIndex()
    index.put(1, [0], [10])
    index.put_ledgers([(1, b"one")])
    index.sync()
    index.put(1, [1], [11])
    index.delete_ledgers([1])
    index.crash()
    assert index.get(1, 0) == 10
    assert index.last_entry_id(1) == 0
    assert index.ledgers() == [(1, b"one")]


# Damage in an entry log, through the bookie.


@pytest.mark.parametrize("cached_share", [1.0, 0.0])
async def test_damage_is_eio_and_never_enoentry(machine, adds_class, cached_share):
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(3):
            adds.add(1, entry_id, b"x" * 50)
        await adds.wait(3)
        await bookie.flush()
        machine.disk.faults.cached_share = cached_share
        location = machine.index.get(1, 1)
        name = f"/ledgers/current/{log_name(location >> 32)}"
        offset = location & 0xFFFFFFFF
        for at in (offset - 4, offset + 1, offset + 15):
            machine.disk.flip_bit(name, at)
            assert (await bookie.read_entry(1, 1))[0] is Status.EIO
            status, entries = await bookie.read_entries(1, 0, 0, 1 << 20)
            assert (status, len(entries)) == (Status.EOK, 1), "what is before it is fine"
            machine.disk.flip_bit(name, at)
            assert (await bookie.read_entry(1, 1))[0] is Status.EOK
        machine.index.put(1, [7], [77 << 32 | 1028])
        assert (await bookie.read_entry(1, 7))[0] is Status.EIO
        assert bookie.statistics().damaged_records == 4


async def test_a_shortened_entry_log_refuses_the_start(machine, adds_class):
    async with machine.running_until_crash() as bookie:
        adds = adds_class(bookie)
        for entry_id in range(5):
            adds.add(1, entry_id)
        await adds.wait(5)
        await bookie.flush()
    name = f"/ledgers/current/{log_name(machine.index.get(1, 0) >> 32)}"
    machine.disk.open(name).truncate(1100)
    with pytest.raises(BaseExceptionGroup) as error:
        async with machine.running():
            pass
    assert error.group_contains(CorruptionError, match="offset 1100")
