"""LogScanner: the records of a log, whatever is behind or between them, and where it must stop."""

import random
import struct

import pytest

from bookie.storage import log_scan
from bookie.storage.entry_log_format import HEADER_SIZE, pack_ledgers_map
from bookie.storage.log_scan import LogScanner
from runtime.sim_disk import SimDisk


def record(ledger_id, entry_id, size):
    body = struct.pack(">qq", ledger_id, entry_id) + bytes([7]) * (size - 16)
    return struct.pack(">i", size) + body


async def scan(tail, records=(), end=None):
    """(what was found, where there was damage)"""
    disk = SimDisk(random.Random(1))
    file = disk.open("/log", create=True)
    data = bytes(HEADER_SIZE) + b"".join(record(*each) for each in records) + tail
    file.pwrite([data], 0)
    scanner = LogScanner(disk, file, len(data) if end is None else end)
    found = []
    while (slice_ := await scanner.next()) is not None:
        for i, key in enumerate(slice_.keys):
            start = slice_.offsets[i] - slice_.origin
            assert slice_.data[start : start + 16] == struct.pack(">qq", *key)
            assert slice_.data[start + slice_.sizes[i] - 1] in (7, key[1] & 255)
            found.append((*key, slice_.sizes[i]))
    return found, scanner.damage


@pytest.fixture(autouse=True, params=[64, 1000, 1 << 20])
def chunk_size(request, monkeypatch):
    monkeypatch.setattr(log_scan, "CHUNK_SIZE_BYTES", request.param)


RECORDS = [(1, 0, 40), (1, 1, 16), (2, 5, 3000), (1, 2, 36), (3, 0, 63), (3, 1, 64)] * 60


async def test_all_records_are_found():
    assert await scan(b"", RECORDS) == (RECORDS, None)
    assert await scan(b"") == ([], None)


@pytest.mark.parametrize("size", [1, 3, 4, 19, 20, 21, 500, 5000])
async def test_zeros_at_the_end_are_no_damage(size):
    assert await scan(bytes(size), RECORDS) == (RECORDS, None)


async def test_zeros_with_something_behind_are_damage():
    found, damage = await scan(bytes(3000) + b"x", RECORDS)
    assert found == RECORDS
    assert damage == (HEADER_SIZE + sum(4 + size for _, _, size in RECORDS), damage[1])


async def test_maps_are_passed_over():
    records = b"".join(record(*each) for each in RECORDS[:7])
    data = pack_ledgers_map({1: 2, 3: 4}) + records + pack_ledgers_map({5: 6})
    assert await scan(data, RECORDS) == (RECORDS + RECORDS[:7], None)


async def test_a_map_that_is_cut_off_ends_the_log():
    ledgers_map = pack_ledgers_map({1: 2, 3: 4})
    for size in range(len(ledgers_map)):
        assert await scan(ledgers_map[:size], RECORDS[:9]) == (RECORDS[:9], None), size


@pytest.mark.parametrize("length", [-1, 0, 15, 1 << 20, (1 << 31) - 1])
async def test_a_length_that_cannot_be_is_damage(length):
    bad = struct.pack(">iqq", length, 1, 2) + bytes([7]) * 100
    found, damage = await scan(bad, RECORDS)
    assert found == RECORDS
    assert damage is not None


async def test_ids_that_cannot_be_are_damage():
    for ids in ((-5, 0), (1, -1), (-1, -3)):
        found, damage = await scan(record(*ids, 40), RECORDS)
        assert found == RECORDS
        assert damage is not None


async def test_a_record_cut_off_is_damage():
    whole = record(1, 2, 100)
    for size in range(5, len(whole)):
        found, damage = await scan(whole[:size], RECORDS[:5])
        assert (found, damage is not None) == (RECORDS[:5], True), size


async def test_a_shorter_file_than_expected_is_damage():
    found, damage = await scan(b"", RECORDS[:5], end=10_000)
    assert damage is not None
    assert set(found) <= set(RECORDS)
