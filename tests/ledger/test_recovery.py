"""Recovery's scenarios, each named after what went wrong somewhere once (invariants R)."""

from dataclasses import replace

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ledger.errors import (
    DigestMismatchError,
    LedgerFencedError,
    LedgerReadError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from ledger.recovery import LedgerReads
from wire.bookkeeper.entry import parse_header
from wire.bookkeeper.ledger_metadata import LedgerState
from wire.bookkeeper.status import Status

SIZES = [(1, 1, 1), (2, 2, 1), (3, 3, 2), (3, 3, 3), (4, 3, 2), (5, 2, 2)]


async def append(writer, count, done):
    for _ in range(count):
        writer.append_nowait([b"entry %d" % (writer.last_add_pushed + 1)], done)
    await wait_all_tasks_blocked()


async def read_all(reader):
    payloads = []
    while len(payloads) <= reader.last_add_confirmed:
        payloads += await reader.read(len(payloads), count_max=100, size_max=1 << 20)
    return payloads


def expected(count):
    return [b"entry %d" % n for n in range(count)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("count", [0, 1, 5, 30])
async def test_all_acked_entries_and_no_others(world, acks, sizes, count):
    writer = await world.create(*sizes)
    await append(writer, count // 2, acks)
    await append(writer, count - count // 2, acks)
    assert len(acks.ids) == count
    reader = await world.client.open_ledger(writer.ledger_id, recover=True)
    assert reader.metadata.is_closed
    assert reader.last_add_confirmed == count - 1
    assert reader.metadata.length == writer.length
    assert await read_all(reader) == expected(count)
    again = await world.client.open_ledger(writer.ledger_id, recover=True)
    assert again.metadata == reader.metadata


async def test_entries_in_flight_are_kept_whole_and_get_their_quorum(world, acks):
    """Entries 2 to 4 have their quorum on the bookies, but the writer was never told."""
    writer = await world.create(3, 3, 2)
    await append(writer, 2, acks)
    _, b, c = ensemble = writer.metadata.last_segment[1]
    world.bookies.held = {c}
    world.bookies.lost_replies = {b}
    await append(writer, 3, acks)
    assert acks.ids == [0, 1]
    reader = await world.client.open_ledger(writer.ledger_id, recover=True)
    assert await read_all(reader) == expected(5)
    assert reader.metadata.length == writer.length
    for entry_id in range(2, 5):
        holders = world.bookies.holders(writer.ledger_id, entry_id)
        assert len(holders) >= 2
        for bookie in holders:
            entry = world.bookies.bookies[bookie].ledgers[writer.ledger_id].entries[entry_id]
            header = parse_header(entry)
            assert header.length == (entry_id + 1) * len(b"entry 0")
            assert header.last_add_confirmed >= 1
    assert ensemble == reader.metadata.last_segment[1]
    # The adds that c held back arrive after all: too late.
    world.bookies.release()
    await wait_all_tasks_blocked()
    assert acks.ids == [0, 1]
    assert [type(error) for error in acks.errors] == [LedgerFencedError] * 3


async def test_a_bookie_that_missed_the_fence_is_fenced_by_the_reads(world, acks):
    """bk#2614. Entry 1 is on c, whose ack the writer has, and on its way to b. Recovery's fence
    does not reach b; then c does not answer for entry 1, and a and b do not have it: it was never
    acked, so the ledger ends at 0. Now the add arrives at b: were b not fenced by that read, entry
    1 would have its quorum, be acked, and be beyond the end."""
    writer = await world.create(3, 3, 2)
    await append(writer, 1, acks)
    a, b, c = writer.metadata.last_segment[1]
    world.bookies.held = {a, b}
    await append(writer, 1, acks)
    assert world.bookies.holders(writer.ledger_id, 1) == {c}
    read = world.bookies.read_entry

    async def read_entry(bookie, ledger_id, entry_id, **keywords):
        if (bookie, entry_id) in ((b, -1), (c, 1)):
            return Status.EIO, memoryview(b"")
        return await read(bookie, ledger_id, entry_id, **keywords)

    world.bookies.read_entry = read_entry
    world.bookies.held = set()
    reader = await world.client.open_ledger(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 0
    world.bookies.release(bookie=b)
    await wait_all_tasks_blocked()
    assert acks.ids == [0], "acked, but beyond the end of the closed ledger"
    assert [type(error) for error in acks.errors] == [LedgerFencedError]


async def test_recovery_never_starts_before_the_last_segment(world, acks):
    """bk#2615: the new segment's bookies know a LAC that is older than the segment. Entries before
    the segment are on bookies that recovery did not ask, and would be judged lost."""
    writer = await world.create(2, 2, 2)
    await append(writer, 4, acks)
    old = writer.metadata.last_segment[1]
    world.bookies.dead.update(old)
    await append(writer, 1, acks)
    metadata = await world.metadata(writer.ledger_id)
    assert [first for first, _ in metadata.segments] == [0, 4]
    for bookie in metadata.last_segment[1]:
        entries = world.bookies.bookies[bookie].ledgers[writer.ledger_id].entries
        assert parse_header(entries[4]).last_add_confirmed <= 3
        del entries[4]  # nobody has anything of the new segment
    reader = await world.client.open_ledger(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 3
    world.bookies.dead.clear()
    assert await read_all(reader) == expected(4)


async def test_a_recovery_that_ends_early_leaves_no_lac_of_bookies_that_nobody_names(
    world, acks, monkeypatch
):
    """One that took another's place confirmed what was written back; then the recovery ended before
    its ensemble was stored. The next one believed that LAC and closed over single copies."""
    writer = await world.create(3, 2, 2)
    _, b, _ = ensemble = writer.metadata.last_segment[1]
    world.bookies.held = {b}  # whose adds are lost
    world.bookies.lost_replies = set(ensemble)
    await append(writer, 6, acks)
    assert not acks.ids
    world.bookies.dead.add(b)
    manager = world.client.manager
    update, calls = manager.update, []

    async def dies_before_it_closes(*arguments):
        calls.append(arguments)
        if len(calls) > 1:
            raise RuntimeError("the process ends")
        return await update(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(manager, "update", dies_before_it_closes)
        with pytest.raises(RuntimeError, match="the process ends"):
            await world.client.open_ledger(writer.ledger_id, recover=True)
    assert len(calls) == 2
    for bookie in world.bookies.bookies.values():
        for entry in getattr(bookie.ledgers.get(writer.ledger_id), "entries", {}).values():
            assert parse_header(entry).last_add_confirmed == -1
    # b is back and has none of it. Whether its «no» or another's entry comes first decides where
    # the ledger ends; up to there each entry has its copies.
    world.bookies.dead.clear()
    reader = await world.client.open_ledger(writer.ledger_id, recover=True)
    assert reader.metadata.last_segment[1] == ensemble
    for entry_id in range(reader.last_add_confirmed + 1):
        named = {ensemble[(entry_id + n) % 3] for n in range(2)}
        assert named <= set(world.bookies.holders(writer.ledger_id, entry_id))


async def test_a_negative_needs_no_answer_from_a_bookie_that_hangs(world, acks):
    """bk#1067."""
    writer = await world.create(3, 3, 2)
    await append(writer, 3, acks)
    world.bookies.silent.add(writer.metadata.last_segment[1][1])
    with trio.fail_after(5):
        reader = await world.client.open_ledger(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 2


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 3, 2), (3, 3, 3), (2, 2, 1)])
async def test_without_coverage_it_stays_in_recovery_and_can_be_tried_again(world, acks, sizes):
    writer = await world.create(*sizes)
    await append(writer, 5, acks)
    ensemble = writer.metadata.last_segment[1]
    # Qa bookies of one write set: they could have acked something that nobody else knows.
    dead = set(ensemble[: sizes[2]])
    world.bookies.dead.update(dead)
    with pytest.raises(NotEnoughBookiesError, match="EIO"):
        await world.client.open_ledger(writer.ledger_id, recover=True)
    assert (await world.metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
    world.bookies.dead.clear()
    reader = await world.client.open_ledger(writer.ledger_id, recover=True)
    assert await read_all(reader) == expected(5)


async def test_an_entry_that_cannot_be_judged_aborts(world, acks):
    """One bookie lost entry 2 honestly, the two others cannot say: not found is not proven."""
    writer = await world.create(3, 3, 2)
    await append(writer, 3, acks)
    a, b, c = writer.metadata.last_segment[1]
    del world.bookies.bookies[a].ledgers[writer.ledger_id].entries[2]
    read = world.bookies.read_entry

    async def read_entry(bookie, ledger_id, entry_id, **keywords):
        if bookie in (b, c) and entry_id == 2:
            return Status.EUNKNOWNLEDGERSTATE, memoryview(b"")
        return await read(bookie, ledger_id, entry_id, **keywords)

    world.bookies.read_entry = read_entry
    with pytest.raises(LedgerReadError, match=r"entry 2 .*EUNKNOWNLEDGERSTATE"):
        await world.client.open_ledger(writer.ledger_id, recover=True)
    world.bookies.read_entry = read
    reader = await world.client.open_ledger(writer.ledger_id, recover=True)
    assert await read_all(reader) == expected(3)


async def test_a_damaged_copy_is_passed_over(world, acks):
    writer = await world.create(3, 3, 2)
    await append(writer, 3, acks)
    a, b, c = writer.metadata.last_segment[1]
    world.bookies.corrupt(a, writer.ledger_id, 2)
    world.bookies.corrupt(b, writer.ledger_id, 2)
    reader = await world.client.open_ledger(writer.ledger_id, recover=True)
    assert await read_all(reader) == expected(3)
    # It was written back to all.
    for bookie in (a, b, c):
        entry = world.bookies.bookies[bookie].ledgers[writer.ledger_id].entries[2]
        assert bytes(entry).endswith(b"entry 2")


async def test_all_copies_damaged_aborts(world, acks):
    writer = await world.create(2, 2, 1)
    await append(writer, 3, acks)
    for bookie in writer.metadata.last_segment[1]:
        world.bookies.corrupt(bookie, writer.ledger_id, 2)
    with pytest.raises(LedgerReadError, match="digest mismatch"):
        await world.client.open_ledger(writer.ledger_id, recover=True)
    assert (await world.metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY


async def test_bookies_that_fail_the_write_back_are_replaced_at_the_close_only(
    world, acks, monkeypatch
):
    writer = await world.create(3, 3, 2)
    await append(writer, 3, acks)
    await append(writer, 1, acks)
    a, _, _ = old = writer.metadata.last_segment[1]
    for entry_id in range(10):
        world.bookies.answers[a, entry_id] = Status.EREADONLY
    states = []
    write = world.client.manager._store.put

    async def noting_put(path, data, version):
        result = await write(path, data, version)
        states.append(await world.metadata(writer.ledger_id))
        return result

    monkeypatch.setattr(type(world.store), "put", lambda _, *args: noting_put(*args))
    reader = await world.client.open_ledger(writer.ledger_id, recover=True)
    assert [md.state for md in states] == [LedgerState.IN_RECOVERY, LedgerState.CLOSED]
    assert states[0].segments == ((0, old),)
    (first, ensemble), (start, new) = reader.metadata.segments
    assert (first, ensemble, start) == (0, old, 3)
    assert a not in new
    assert world.bookies.holders(writer.ledger_id, 3) >= set(new)
    assert await read_all(reader) == expected(4)


async def test_no_bookie_left_for_the_write_back(world, acks):
    writer = await world.create(6, 6, 4)
    await append(writer, 2, acks)
    for name in "abc":
        world.bookies.answers[name, 1] = Status.EREADONLY
    with pytest.raises(NotEnoughBookiesError):
        await world.client.open_ledger(writer.ledger_id, recover=True)
    # The ack quorum is enough, as it is for the writer.
    del world.bookies.answers["a", 1]
    assert (await world.client.open_ledger(writer.ledger_id, recover=True)).last_add_confirmed == 1


async def test_somebody_else_closed_it_first(world, acks):
    """The end that is in the metadata is the end, also for a recoverer that saw more."""
    writer = await world.create(2, 2, 1)
    await append(writer, 3, acks)
    manager = world.client.manager
    read = world.bookies.read_entry
    closed = []

    async def read_entry(*args, **keywords):
        if not closed:
            closed.append(True)
            with trio.CancelScope(shield=True):  # the read may be cancelled, this may not
                await manager.update(
                    writer.ledger_id,
                    await manager.read(writer.ledger_id),
                    lambda md: None if md.is_closed else md.closed_at(1, 14),
                )
        return await read(*args, **keywords)

    world.bookies.read_entry = read_entry
    reader = await world.client.open_ledger(writer.ledger_id, recover=True)
    assert (reader.last_add_confirmed, reader.metadata.length) == (1, 14)


async def test_metadata_that_changes_under_recovery_is_merged(world, acks):
    """A replication worker changes an older segment between the start and the close."""
    writer = await world.create(2, 2, 2)
    await append(writer, 2, acks)
    world.bookies.dead.add(writer.metadata.last_segment[1][0])
    await append(writer, 2, acks)
    manager = world.client.manager
    read = world.bookies.read_entry
    done = []

    async def read_entry(*args, **keywords):
        if not done:
            done.append(True)
            with trio.CancelScope(shield=True):  # the read may be cancelled, this may not
                await manager.update(
                    writer.ledger_id,
                    await manager.read(writer.ledger_id),
                    lambda md: (
                        replace(md, segments=((0, ("copy1", "copy2")), *md.segments[1:]))
                        if md.segments[0][1][0] != "copy1"
                        else None
                    ),
                )
        return await read(*args, **keywords)

    world.bookies.read_entry = read_entry
    reader = await world.client.open_ledger(writer.ledger_id, recover=True)
    assert reader.metadata.segments[0] == (0, ("copy1", "copy2"))
    assert (reader.metadata.last_entry_id, len(reader.metadata.segments)) == (3, 2)


async def test_the_password_is_checked_before_any_bookie_is_asked(world):
    writer = await world.create(1, 1, 1, password=b"right")
    for recover in (True, False):
        with pytest.raises(UnauthorizedError, match="password"):
            await world.client.open_ledger(writer.ledger_id, password=b"wrong", recover=recover)
    assert not any(bookie.ledgers for bookie in world.bookies.bookies.values())
    await world.client.open_ledger(writer.ledger_id, password=b"right", recover=True)


async def test_a_bookie_with_another_key_ends_recovery(world, acks):
    writer = await world.create(2, 2, 1)
    await append(writer, 1, acks)
    bookie = world.bookies.bookies[writer.metadata.last_segment[1][0]]
    bookie.ledgers[writer.ledger_id].master_key = b"another"
    with pytest.raises(UnauthorizedError, match="master key"):
        await world.client.open_ledger(writer.ledger_id, recover=True)


async def test_no_such_ledger(world, acks):
    with pytest.raises(NoSuchLedgerError, match="ledger 99"):
        await world.client.open_ledger(99, recover=True)
    writer = await world.create(1, 1, 1)
    await append(writer, 1, acks)
    await world.client.delete_ledger(writer.ledger_id)
    await world.client.delete_ledger(writer.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await world.client.open_ledger(writer.ledger_id, recover=False)
    with pytest.raises(NoSuchLedgerError, match="deleted"):
        await writer.close()


async def test_opening_without_recovery_disturbs_nobody(world, acks):
    writer = await world.create(3, 3, 2)
    await append(writer, 3, acks)
    reader = await world.client.open_ledger(writer.ledger_id, recover=False)
    # All three were sent before any was confirmed, so no bookie knows of a LAC.
    assert reader.last_add_confirmed == -1
    await append(writer, 1, acks)
    reader = await world.client.open_ledger(writer.ledger_id, recover=False)
    assert reader.last_add_confirmed == 2
    assert await read_all(reader) == expected(3)
    await append(writer, 1, acks)
    assert acks.ids == [0, 1, 2, 3, 4]
    assert (await world.metadata(writer.ledger_id)).state is LedgerState.OPEN


async def test_readers_pass_over_bad_replicas(world, acks):
    writer = await world.create(3, 3, 2)
    await append(writer, 4, acks)
    a, b, c = writer.metadata.last_segment[1]
    world.bookies.corrupt(a, writer.ledger_id, 0)
    world.bookies.dead.add(b)
    reader = writer.reader
    assert reader.read_nowait(0, count_max=9, size_max=999) is None
    assert await reader.read(0, count_max=9, size_max=999) == expected(4)
    assert reader.read_nowait(1, count_max=9, size_max=999) == expected(4)[1:]
    world.bookies.corrupt(c, writer.ledger_id, 0)
    with pytest.raises(LedgerReadError, match="EIO"):
        await reader.read(0, count_max=1, size_max=999)
    world.bookies.dead.clear()
    world.bookies.corrupt(b, writer.ledger_id, 0)
    with pytest.raises(DigestMismatchError, match="entry 0"):
        await reader.read(0, count_max=1, size_max=999)
    # Entries in front of a damaged one are given, if this is all that the replica has.
    world.bookies.corrupt(a, writer.ledger_id, 0)
    world.bookies.corrupt(a, writer.ledger_id, 2)
    assert await reader.read(0, count_max=9, size_max=999) == expected(2)


async def test_reads_stop_at_sizes_counts_and_segments(world, acks):
    writer = await world.create(2, 2, 1)
    await append(writer, 3, acks)
    world.bookies.dead.add(writer.metadata.last_segment[1][0])
    await append(writer, 3, acks)
    world.bookies.dead.clear()
    reader = writer.reader
    assert len(await reader.read(0, count_max=100, size_max=1 << 20)) == 3
    assert len(await reader.read(3, count_max=100, size_max=1 << 20)) == 3
    assert len(await reader.read(3, count_max=2, size_max=1 << 20)) == 2
    assert len(await reader.read(3, count_max=100, size_max=1)) == 1
    assert len(reader.read_nowait(3, count_max=100, size_max=1)) == 1


@pytest.mark.parametrize("has_it", [True, False])
async def test_the_length_is_known_from_any_answer(world, acks, has_it):
    """The last entry that is seen, 1, is not the one that is confirmed, 0: whoever has that tells
    its length, or else entry 1 does, by what it has more. It is not read for its own sake."""
    writer = await world.create(3, 3, 2)
    _, b, c = writer.metadata.last_segment[1]
    await append(writer, 1, acks)
    world.bookies.held = {b, c}
    await append(writer, 1, acks)
    world.bookies.dead.add(c)
    if not has_it:
        del world.bookies.bookies[b].ledgers[writer.ledger_id].entries[0]
    reads = LedgerReads(
        writer.ledger_id, writer.metadata, writer._digest, writer._master_key, world.bookies
    )
    assert await reads.end() == (0, len(b"entry 0"))
