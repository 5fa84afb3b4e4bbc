"""What is kept in memory of a log's ledgers map, and what is read of it again."""

import errno
import random
import struct

import pytest

from bookie.errors import CorruptionError
from bookie.storage.entry_log_format import (
    HEADER_SIZE,
    MapBatch,
    pack_header,
    pack_ledgers_map,
    pack_map_batch,
    pack_map_items,
    read_ledgers_map,
    unpack_map_batch,
)
from bookie.storage.ledgers_map import LedgersMap, outline_map

COUNTS = [1, 2, 9_999, 10_000, 10_001, 25_003]


def write_log(disk, ledgers_map, count, *, is_checked=True):
    file = disk.open("/d/5.log", create=True)
    header = pack_header(HEADER_SIZE, count, ledgers_map if is_checked else b"")
    file.pwrite([header, ledgers_map], 0)
    return file


def read_all(found, file):
    """(ledger id, bytes) of all that are not forgotten, in the map's order."""
    items = []
    for number in range(found.batch_count):
        first, _ = found.place_of(number)
        for i, item in enumerate(zip(*found.read(file, number), strict=True)):
            if not found.is_forgotten(first + i):
                items.append(item)
    return items


@pytest.mark.parametrize("count", COUNTS)
def test_sums_and_batches(disk, count):
    ledgers = {3 * i: i + 1 for i in range(count)}
    file = write_log(disk, pack_ledgers_map(ledgers), count)
    found = outline_map(file)
    assert (found.count, found.live_count) == (count, count)
    assert found.live_bytes == sum(ledgers.values())
    assert (found.first_id, found.last_id) == (0, 3 * (count - 1))
    assert dict(read_all(found, file)) == ledgers == read_ledgers_map(file)


@pytest.mark.parametrize("count", COUNTS)
def test_what_is_forgotten_is_forgotten_once(disk, count):
    rng = random.Random(count)
    ledgers = {i: rng.randrange(1, 1000) for i in range(count)}
    file = write_log(disk, pack_ledgers_map(ledgers), count)
    found = outline_map(file)
    gone = set(rng.sample(range(count), count // 3))
    for _ in range(2):
        for number in range(found.batch_count):
            first, _ = found.place_of(number)
            ledger_ids, sizes = found.read(file, number)
            found.forget(first, [i for i, each in enumerate(ledger_ids) if each in gone], sizes)
    left = {ledger_id: size for ledger_id, size in ledgers.items() if ledger_id not in gone}
    assert dict(read_all(found, file)) == left
    assert (found.live_count, found.live_bytes) == (len(left), sum(left.values()))


def test_what_is_read_is_what_was_written(disk):
    """The outline that is made with the map, and the one that a start makes."""
    ledgers = dict.fromkeys(range(25_003), 7)
    file = write_log(disk, pack_ledgers_map(ledgers), len(ledgers))
    read = outline_map(file)
    made = LedgersMap(HEADER_SIZE)
    at = HEADER_SIZE
    for count in (10_000, 10_000, 5003):
        record = file.pread(24 + 16 * count, at)
        at += len(record)
        made.add(MapBatch(*unpack_map_batch(record), record))
    assert read_all(made, file) == read_all(read, file)
    assert (made.live_count, made.live_bytes) == (read.live_count, read.live_bytes)


@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize("count", [3, 10_003])
def test_a_map_that_changed_is_not_believed(disk, count, is_checked):
    """Also one of BookKeeper's, without a checksum: it was read once."""
    file = write_log(
        disk, pack_ledgers_map(dict.fromkeys(range(count), 5)), count, is_checked=is_checked
    )
    found = outline_map(file)
    for at in range(HEADER_SIZE, file.size(), max(1, count // 50)):
        disk.flip_bit("/d/5.log", at)
        with pytest.raises(CorruptionError, match="not what it was"):
            read_all(found, file)
        disk.flip_bit("/d/5.log", at)
    assert len(read_all(found, file)) == count


def test_a_map_that_is_cut_off_is_not_believed(disk):
    file = write_log(disk, pack_ledgers_map({1: 5, 2: 6}), 2)
    found = outline_map(file)
    file.truncate(file.size() - 1)
    with pytest.raises(CorruptionError):
        read_all(found, file)
    with pytest.raises(CorruptionError):
        outline_map(file)


def test_bookkeepers_maps_have_no_order(disk):
    """A ConcurrentLongLongHashMap's, and no checksum."""
    ledgers = {i * 7919 % 20_011: i for i in range(1, 12_000)}
    items = list(ledgers.items())
    parts = [pack_map_items(items[start : start + 10_000]) for start in (0, 10_000)]
    file = write_log(
        disk, b"".join(pack_map_batch([part]) for part in parts), len(items), is_checked=False
    )
    found = outline_map(file)
    assert read_all(found, file) == items
    assert (found.first_id, found.last_id) == (min(ledgers), max(ledgers))


def test_a_ledger_that_comes_twice_is_damage(disk):
    one = pack_map_batch([pack_map_items([(1, 5), (1, 5)])])
    two = pack_map_batch([pack_map_items([(1, 5)])]) * 2
    for records in (one, two):
        file = write_log(disk, records, 2)
        with pytest.raises(CorruptionError, match="1 readable ledgers of 2"):
            outline_map(file)


def test_which_maps_are_looked_at_again(disk):
    ledgers = dict.fromkeys(range(10_002), 1)
    file = write_log(disk, pack_ledgers_map(ledgers), len(ledgers))
    assert outline_map(file, ledgers.keys()).is_looked_at
    for missing in (0, 5000, 10_001):
        assert not outline_map(file, ledgers.keys() - {missing}).is_looked_at


def test_a_lost_sector_is_damage_and_other_errors_are_not(disk, monkeypatch):
    file = write_log(disk, pack_ledgers_map({1: 5}), 1)
    found = outline_map(file)
    number = errno.EIO

    def pread(size, offset):
        raise OSError(number, "x")

    monkeypatch.setattr(type(file), "pread", lambda self, size, offset: pread(size, offset))
    for read in (outline_map, read_ledgers_map, lambda file: found.read(file, 0)):
        number = errno.EIO
        with pytest.raises(CorruptionError):
            read(file)
        number = errno.EMFILE
        with pytest.raises(OSError, match="x") as error:
            read(file)
        assert error.value.errno == errno.EMFILE


def test_a_count_that_is_not_true_takes_no_memory(disk):
    """What the header and the record claim is not read beyond the file."""
    items = pack_map_items([(1, 5)])
    start = struct.pack(">iqqi", 20 + 16 * (1 << 26), -1, -2, 1 << 26)
    header = pack_header(HEADER_SIZE, 1 << 26, start + items)
    file = disk.open("/d/5.log", create=True)
    file.pwrite([header, start, items], 0)
    with pytest.raises(CorruptionError, match="0 readable ledgers"):
        outline_map(file)
