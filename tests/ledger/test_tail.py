"""Following an open ledger; slow, hanging and changing replicas."""

from dataclasses import replace

import pytest
import trio

from ledger.errors import LedgerReadError, NoSuchLedgerError
from wire.bookkeeper.status import Status

SIZE = 1 << 20


@pytest.fixture
async def timed(nursery, new_world):
    """For tests that ask for `autojump_clock` themselves: a fixture's is not the test's."""
    world = new_world()
    await world.start(nursery)
    return world


async def append(writer, count):
    for _ in range(count):
        writer.append_nowait([b"%d" % (writer.last_add_pushed + 1)], lambda *_: None)
        await trio.sleep(0.001)


def payloads(count, first=0):
    return [b"%d" % n for n in range(first, first + count)]


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 3, 2), (4, 2, 2)])
async def test_a_reader_follows_a_writer(timed, autojump_clock, nursery, sizes):
    writer = await timed.create(*sizes)
    await append(writer, 1)
    reader = await timed.client.open_ledger(writer.ledger_id, recover=False)
    assert reader.last_add_confirmed == -1
    got = []

    async def follow():
        while len(got) < 20:
            await reader.wait_for(len(got), timeout_ms=60_000)
            while len(got) <= reader.last_add_confirmed:
                got.extend(await reader.read(len(got), count_max=99, size_max=SIZE))

    async with trio.open_nursery() as following:
        following.start_soon(follow)
        for _ in range(20):
            await append(writer, 1)
            await trio.sleep(0.05)
    assert got[:20] == payloads(20)
    assert timed.client.statistics.long_polls > 0


async def test_the_wait_ends_in_time(timed, autojump_clock):
    writer = await timed.create(3, 3, 2)
    await append(writer, 2)
    reader = await timed.client.open_ledger(writer.ledger_id, recover=False)
    start = trio.current_time()
    assert await reader.wait_for(7, timeout_ms=700) == 0
    assert 0.69 < trio.current_time() - start < 0.8
    assert await reader.wait_for(0, timeout_ms=0) == 0


async def test_the_end_of_the_ledger_ends_the_wait(timed, autojump_clock, nursery):
    writer = await timed.create(3, 3, 2)
    await append(writer, 3)
    reader = await timed.client.open_ledger(writer.ledger_id, recover=False)
    start = trio.current_time()

    async def close():
        await trio.sleep(0.5)
        await writer.close()

    nursery.start_soon(close)
    assert await reader.wait_for(9, timeout_ms=60_000) == 2
    assert trio.current_time() - start < 0.6
    assert reader.metadata.is_closed
    assert await reader.read(0, count_max=9, size_max=SIZE) == payloads(3)


async def test_a_recovery_ends_the_wait(timed, autojump_clock, nursery):
    writer = await timed.create(3, 3, 2)
    await append(writer, 3)
    reader = await timed.client.open_ledger(writer.ledger_id, recover=False)
    nursery.start_soon(lambda: timed.client.open_ledger(writer.ledger_id, recover=True))
    assert await reader.wait_for(9, timeout_ms=60_000) == 2


async def test_a_deleted_ledger_ends_the_wait(timed, autojump_clock, nursery):
    writer = await timed.create(3, 3, 2)
    await append(writer, 1)
    reader = await timed.client.open_ledger(writer.ledger_id, recover=False)

    async def delete():
        await trio.sleep(0.1)
        await timed.client.delete_ledger(writer.ledger_id)

    nursery.start_soon(delete)
    with pytest.raises(NoSuchLedgerError):
        await reader.wait_for(9, timeout_ms=60_000)


@pytest.mark.parametrize("how", ["silent", "dead"])
async def test_a_bookie_that_says_nothing_does_not_hold_up_the_tail(timed, autojump_clock, how):
    writer = await timed.create(3, 3, 2)
    await append(writer, 2)
    reader = await timed.client.open_ledger(writer.ledger_id, recover=False)
    members = writer.metadata.last_segment[1]
    getattr(timed.bookies, how).add(members[2])  # the one that is asked first
    await append(writer, 1)
    start = trio.current_time()
    assert await reader.wait_for(1, timeout_ms=60_000) == 1
    assert trio.current_time() - start < 1.7


async def test_a_segment_none_of_whose_bookies_is_left_is_left_behind(
    timed, autojump_clock, nursery
):
    writer = await timed.create(2, 2, 2)
    await append(writer, 2)
    reader = await timed.client.open_ledger(writer.ledger_id, recover=False)
    assert reader.last_add_confirmed == 0
    timed.bookies.dead.update(writer.metadata.last_segment[1])
    nursery.start_soon(append, writer, 3)
    assert await reader.wait_for(3, timeout_ms=60_000) >= 3
    assert await reader.read(2, count_max=2, size_max=SIZE) == payloads(2, first=2)


async def test_a_new_ensemble_is_followed(timed, autojump_clock, nursery):
    writer = await timed.create(2, 2, 2)
    await append(writer, 2)
    reader = await timed.client.open_ledger(writer.ledger_id, recover=False)

    async def replace_all():
        for bookie in writer.metadata.last_segment[1]:
            timed.bookies.dead.add(bookie)
            await append(writer, 1)
        await append(writer, 2)

    nursery.start_soon(replace_all)
    assert await reader.wait_for(4, timeout_ms=60_000) >= 4
    timed.bookies.dead.clear()
    got = []
    while len(got) < 5:
        got += await reader.read(len(got), count_max=99, size_max=SIZE)
    assert got[:5] == payloads(5)


async def _move_segment(world, writer, new_names):
    """What a replication worker does: copies entries, then changes the metadata."""
    manager = world.client.manager
    versioned = await manager.read(writer.ledger_id)
    (first, old), *rest = versioned.metadata.segments
    for name, other in zip(new_names, old, strict=True):
        source = world.bookies.bookies[other].ledgers
        world.bookies.bookies[name].ledgers[writer.ledger_id] = source.pop(writer.ledger_id)
    await manager.update(
        writer.ledger_id,
        versioned,
        lambda md: (
            None
            if md.segments[0][1] == new_names
            else replace(md, segments=((first, new_names), *rest))
        ),
    )


async def test_entries_that_moved_are_found(timed, autojump_clock):
    """After re-replication a reader without a watch looks into the metadata again."""
    writer = await timed.create(2, 2, 2)
    await append(writer, 3)
    await writer.close()
    reader = await timed.client.open_ledger(writer.ledger_id, recover=False)
    old = writer.metadata.last_segment[1]
    new = tuple(name for name in timed.names if name not in old)[:2]
    await _move_segment(timed, writer, new)
    assert await reader.read(0, count_max=9, size_max=SIZE) == payloads(3)
    timed.bookies.dead.update(new)
    with pytest.raises(LedgerReadError, match=new[0]):
        await reader.read(0, count_max=9, size_max=SIZE)


async def test_a_watched_ledger_is_kept_current(timed, autojump_clock):
    writer = await timed.create(2, 2, 2)
    await append(writer, 3)
    reader = await timed.client.open_ledger(writer.ledger_id, recover=False, keep_updated=True)
    await writer.close()
    await trio.sleep(0.1)
    assert reader.metadata.is_closed
    old = writer.metadata.last_segment[1]
    new = tuple(name for name in timed.names if name not in old)[:2]
    await _move_segment(timed, writer, new)
    await trio.sleep(0.1)
    assert reader.metadata.segments == ((0, new),)
    reader.close()
    await trio.sleep(0.1)
    await _move_segment(timed, writer, old)
    await trio.sleep(0.1)
    assert reader.metadata.segments == ((0, new),)


@pytest.mark.parametrize("sizes", [(3, 3, 2), (5, 3, 2)])
async def test_a_hanging_replica_costs_one_timeout(timed, autojump_clock, sizes):
    writer = await timed.create(*sizes)
    await append(writer, 12)
    await writer.close()
    reader = await timed.client.open_ledger(writer.ledger_id, recover=False)
    timed.bookies.silent.add(writer.metadata.last_segment[1][0])
    start = trio.current_time()
    got = []
    while len(got) < 12:
        got += await reader.read(len(got), count_max=4, size_max=SIZE)
    assert got == payloads(12)
    assert 1.9 < trio.current_time() - start < 2.2
    assert timed.client.statistics.speculative_reads >= 1


async def test_a_slow_replica_may_still_win(timed, autojump_clock):
    """The first is asked again next to the second: if only it has the entry, it gives it."""
    writer = await timed.create(2, 2, 2)
    await append(writer, 1)
    await writer.close()
    a, b = writer.metadata.last_segment[1]
    read = timed.bookies.read_entries

    async def slowly(bookie, *args, **keywords):
        await trio.sleep(2.5 if bookie == a else 0)
        if bookie == b:
            return Status.ENOENTRY, []
        return await read(bookie, *args, **keywords)

    timed.bookies.read_entries = slowly
    start = trio.current_time()
    assert await writer.reader.read(0, count_max=1, size_max=9) == [b"0"]
    assert 4.4 < trio.current_time() - start < 4.6


async def test_one_bookie_is_read_from_while_it_answers(timed, autojump_clock):
    writer = await timed.create(3, 3, 2)
    await append(writer, 9)
    reads = timed.bookies.reads
    for entry_id in range(8):
        await writer.reader.read(entry_id, count_max=1, size_max=9)
    (sticky,) = {bookie for bookie, _ in reads}
    timed.bookies.dead.add(sticky)
    reads.clear()
    for entry_id in range(8):
        await writer.reader.read(entry_id, count_max=1, size_max=9)
    assert [bookie for bookie, _ in reads].count(sticky) == 1


async def test_without_stickiness_all_are_read_from(nursery, new_world, autojump_clock):
    world = new_world(sticky_reads=False)
    await world.start(nursery)
    writer = await world.create(3, 3, 2)
    await append(writer, 9)
    for entry_id in range(6):
        await writer.reader.read(entry_id, count_max=1, size_max=9)
    members = writer.metadata.last_segment[1]
    assert world.bookies.reads == [(members[n % 3], n) for n in range(6)]


@pytest.mark.parametrize("sizes", [(4, 3, 2), (5, 2, 2), (6, 4, 2)])
async def test_a_striped_run_is_read_from_all_at_once(timed, autojump_clock, sizes):
    ensemble_size, run, _ = sizes
    writer = await timed.create(*sizes)
    await append(writer, 30)
    reads = timed.bookies.reads
    got = await writer.reader.read(3, count_max=12, size_max=SIZE)
    assert got == payloads(12, 3)
    members = writer.metadata.last_segment[1]
    # Each was asked for Qw entries in a row, which it has all.
    expected = {(members[(s + run - 1) % ensemble_size], s) for s in range(3, 15, run)}
    assert set(reads) == expected
    got = await writer.reader.read(0, count_max=30, size_max=90)
    assert 1 <= len(got) < 30
    assert got == payloads(len(got))


async def test_metadata_that_change_during_a_striped_read(timed, autojump_clock, nursery):
    writer = await timed.create(4, 2, 2)
    await append(writer, 20)
    await writer.close()
    reader = await timed.client.open_ledger(writer.ledger_id, recover=False)
    read = timed.bookies.read_entries

    async def read_entries(*args, **keywords):
        versioned = await timed.client.manager.read(writer.ledger_id)
        reader.set_metadata(replace(versioned, version=reader._version + 1))
        return await read(*args, **keywords)

    timed.bookies.read_entries = read_entries
    timed.bookies.dead.add(writer.metadata.last_segment[1][1])
    got = []
    while len(got) < 20:
        got += await reader.read(len(got), count_max=16, size_max=SIZE)
    assert got == payloads(20)


async def test_metadata_that_are_older_say_nothing(timed, autojump_clock):
    writer = await timed.create(3, 2, 2)
    before = await timed.client.manager.read(writer.ledger_id)
    await append(writer, 5)
    await writer.close()
    reader = await timed.client.open_ledger(writer.ledger_id, recover=False)
    assert before.version < reader._version
    for version in (before.version, reader._version):
        reader.set_metadata(replace(before, version=version))
        assert reader.metadata.is_closed
        assert reader.last_add_confirmed == 4
    assert await reader.read(0, count_max=9, size_max=9 * SIZE) == payloads(5)
