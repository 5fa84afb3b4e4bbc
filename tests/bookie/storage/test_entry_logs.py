"""Entry logs: BookKeeper's ledgers map, ids that are never used twice, files and pages that are
kept open and in memory, and damage through the bookie."""

import pytest

from bookie.errors import CorruptionError
from bookie.storage.entry_log_format import log_id_of, log_name, pack_header, pack_ledgers_map
from bookie.storage.entry_log_writer import EntryLogWriter
from bookie.storage.entry_logs import EntryLogs
from runtime.real_disk import RealDisk
from wire.bookkeeper.status import Status


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
    assert await logs.walk.live_ledgers(logs.get(5)) == ledgers
    assert logs.get(5).ledgers is None, "they are not in memory"
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
        log = logs.get(5)
        assert not log.is_known or await logs.walk.live_ledgers(log) == ledgers
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

    async def write_some():
        written = []  # (log, offset)
        for count in range(40):
            if count % 8 == 0:
                await writer.start_log()
                writer.current.ledgers[1] = 10
            written.append((writer.current, writer.current.size_bytes))
            await writer.write([bytes(16 << 10)], 16 << 10)
            await writer.sync()
        return written

    def is_cached(log, offset):
        return logs.file(log).is_cached(1, offset + (8 << 10))

    for _ in range(10):
        # From the end: to look is to start reading ahead.
        cached = [is_cached(*each) for each in (await write_some())[::-1]]
        if cached == [True] * 8 + [False] * 32:
            return
    # The kernel leaves a page that somebody holds just then; not every time.
    pytest.fail(f"cached, from the end: {cached}")


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
