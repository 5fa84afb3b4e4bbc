"""A ledger's entries on simulated bookies, from an offset to an offset."""

import pytest

from pyspark_quire.columns import column_set
from pyspark_quire.connection import STRIPED_READ_BATCH
from pyspark_quire.decode import Bounds, Decoder
from pyspark_quire.reading import MissingRecordsError, Range, read_range
from tests.ledger.conftest import World
from tests.pyspark_quire.simulated import SimulatedLog, entry, records
from wire.kafka.errors import WireError


async def offsets(reader, wanted):
    """As a task reads and decodes."""
    columns = column_set("offset", include_headers=False)
    decoder = Decoder("t", 0, columns, Bounds(wanted.start, wanted.end))

    async def take(bodies, _position):
        for body in bodies:
            decoder.feed(body)

    await read_range(reader, wanted, take)
    found = decoder.take()
    return [] if found is None else found.column("offset").to_pylist()


async def test_what_an_entry_says_and_has_not_is_missing(nursery, autojump_clock):
    """Its header tells of offsets 0 to 4, and a batch in the middle is not there. Only compaction
    leaves that, and only a compacted ledger may have it."""
    log = SimulatedLog()
    await log.world.start(nursery)
    await log.open(
        0,
        entry(records(0, b"a", b"b"), records(3, b"d")),
        entry(records(4, b"e")),
        entry(records(5, b"f")),
    )
    reader = log.writer.reader
    assert await offsets(reader, Range(0, 6, is_compacted=True)) == [0, 1, 3, 4, 5]
    with pytest.raises((MissingRecordsError, WireError)):
        await offsets(reader, Range(0, 6))


async def test_every_range_gives_its_offsets(nursery, autojump_clock):
    log = SimulatedLog()
    await log.world.start(nursery)
    await log.open(
        0, *(entry(records(n, b"a", b"b"), records(n + 2, b"c")) for n in range(0, 12, 3))
    )
    reader = log.writer.reader
    for start in range(12):
        for end in range(start + 1, 13):
            wanted = list(range(start, end))
            assert await offsets(reader, Range(start, end)) == wanted
            assert await offsets(reader, Range(start, end, first_entry=0)) == wanted


async def test_a_scan_of_a_striped_ledger_reads_its_bytes_about_once(nursery, autojump_clock):
    """Entries of a quarter of a MiB, as a busy partition has them, on three bookies, two copies."""
    world = World("abc", striped_read_batch=STRIPED_READ_BATCH)
    log = SimulatedLog(world)
    await world.start(nursery)
    log.writer = await world.create(3, 2, 2)
    await log.append(*(entry(records(n, bytes(256 << 10))) for n in range(64)))
    sent, ask = 0, world.bookies.read_entries

    async def counted(*args, **more):
        nonlocal sent
        status, found = await ask(*args, **more)
        sent += sum(map(len, found))
        return status, found

    world.bookies.read_entries = counted
    assert await offsets(log.writer.reader, Range(0, 64)) == list(range(64))
    assert sent < 1.5 * 64 * (256 << 10)
