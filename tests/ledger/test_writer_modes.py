"""Out-of-order adds and deferred sync: cores against the rules, writers on naive bookies; explicit
LACs and the time-out of ack quorums, which all writers have."""

from collections import Counter

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from ledger import client
from ledger.distribution import Schedule
from ledger.errors import (
    AddTimeoutError,
    DuplicateEntryError,
    LedgerClosedError,
    LedgerExistsError,
    LedgerForceError,
    NotEnoughBookiesError,
)
from ledger.writer import LedgerWriter
from ledger.writer_modes_core import AdvCore, DeferredSyncCore
from tests.properties import at_least
from wire.bookkeeper.entry import parse_header
from wire.bookkeeper.status import Status

OK = Status.EOK
SIZES = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2}


def _ignore(entry_id, error):
    pass


@at_least(300)
@given(st.permutations(range(12)), st.data())
def test_ids_in_any_order_are_confirmed_in_theirs(entry_ids, data):
    """All that may be confirmed is the run of complete ids from 0 on, whatever happens when."""
    core = AdvCore(7, Schedule(2, 2, 1), ("A", "B"))
    complete, confirmed, in_flight = set(), [], []
    given_sizes = {}
    for entry_id in entry_ids:
        given_sizes[entry_id] = data.draw(st.integers(0, 9))
        pending = core.add_at(entry_id, given_sizes[entry_id], _ignore)
        assert pending.length == sum(given_sizes.values())
        assert pending.last_add_confirmed == len(confirmed) - 1
        in_flight.append(pending)
        while in_flight and data.draw(st.booleans()):
            acked = in_flight.pop(data.draw(st.integers(0, len(in_flight) - 1)))
            core.reply(acked, 0, "A", OK)
            complete.add(acked.entry_id)
            if data.draw(st.booleans()):
                confirmed += core.confirm()
        with pytest.raises(DuplicateEntryError):
            core.add_at(entry_id, 1, _ignore)
    for acked in in_flight:
        core.reply(acked, 1, "B", OK)
    confirmed += core.confirm()
    assert [pending.entry_id for pending in confirmed] == list(range(12))
    assert core.confirmed_length == core.length == sum(given_sizes.values())
    assert core.pending_bytes == 0


def test_a_gap_waits_and_nobody_waits_for_it():
    core = AdvCore(7, Schedule(1, 1, 1), ("A",))
    later = core.add_at(1, 1, _ignore)
    core.reply(later, 0, "A", OK)
    assert core.confirm() == []
    assert not core.is_waiting
    first = core.add_at(0, 1, _ignore)
    assert core.is_waiting
    core.reply(first, 0, "A", OK)
    assert core.confirm() == [first, later]


def test_deferred_acks_move_no_lac():
    core = DeferredSyncCore(7, Schedule(3, 2, 1), ("A", "B", "C"))
    first = core.add(5, _ignore)
    core.reply(first, 0, "A", OK)
    assert core.confirm() == [first]
    assert core.add(5, _ignore).last_add_confirmed == -1
    assert core.indexes_with_entries(0) == {0, 1}
    assert core.indexes_with_entries(9) == {0, 1, 2}
    core.forced(0, 5)
    assert core.add(5, _ignore).last_add_confirmed == 0
    core.forced(-1, 0)
    assert (core.last_add_forced, core.forced_length) == (0, 5)


async def test_adds_out_of_order(world, acks):
    writer = await world.client.create_ledger_adv(ledger_id=4711, **SIZES)
    assert writer.ledger_id == 4711
    with pytest.raises(LedgerExistsError, match="4711"):
        await world.client.create_ledger_adv(ledger_id=4711, **SIZES)
    for entry_id in (2, 0, 4):
        writer.add_nowait(entry_id, [b"entry ", b"%d" % entry_id], acks)
    await wait_all_tasks_blocked()
    assert acks.ids == [0]
    with pytest.raises(DuplicateEntryError):
        writer.add_nowait(2, [b"again"], acks)
    with pytest.raises(DuplicateEntryError):
        writer.add_nowait(0, [b"again"], acks)
    with pytest.raises(ValueError, match="-1"):
        writer.add_nowait(-1, [b""], acks)
    writer.add_nowait(1, [b"entry 1"], acks)
    await wait_all_tasks_blocked()
    assert acks.ids == [0, 1, 2]
    metadata = await writer.close()
    await wait_all_tasks_blocked()
    # Entry 4 waited for 3, which never came.
    assert (metadata.last_entry_id, metadata.length) == (2, 21)
    assert [type(error) for error in acks.errors] == [LedgerClosedError]
    got = await writer.reader.read(0, count_max=9, size_max=999)
    assert got == [b"entry 0", b"entry 1", b"entry 2"]


async def test_out_of_order_adds_survive_a_change(world, acks):
    writer = await world.client.create_ledger_adv(**SIZES)
    for entry_id in (1, 0, 3):
        writer.add_nowait(entry_id, [b"%d" % entry_id], acks)
    await wait_all_tasks_blocked()
    world.bookies.dead.add(writer.metadata.last_segment[1][0])
    writer.add_nowait(2, [b"2"], acks)
    await wait_all_tasks_blocked()
    assert acks.ids == [0, 1, 2, 3]
    assert [first for first, _ in writer.metadata.segments] == [0, 2]
    reader = await world.client.open_ledger(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 3
    for entry_id in (2, 3):
        holders = world.bookies.holders(writer.ledger_id, entry_id)
        assert holders >= set(writer.metadata.last_segment[1])


async def test_force_makes_the_lac_move(world, acks):
    writer = await world.client.create_ledger_deferred_sync(**SIZES)
    for n in range(3):
        writer.append_nowait([b"%d" % n], acks)
    await wait_all_tasks_blocked()
    assert acks.ids == [0, 1, 2]
    assert (writer.last_add_confirmed, writer.last_add_acked) == (-1, 2)
    assert writer.reader.last_add_confirmed == -1
    ledgers = [bookie.ledgers.get(writer.ledger_id) for bookie in world.bookies.bookies.values()]
    assert [ledger.unsynced for ledger in ledgers if ledger] == [{0, 1, 2}] * 3
    assert await writer.force() == 2
    assert [ledger.unsynced for ledger in ledgers if ledger] == [set()] * 3
    assert (writer.last_add_confirmed, writer.reader.last_add_confirmed) == (2, 2)
    writer.append_nowait([b"3"], acks)
    await wait_all_tasks_blocked()
    entry = next(iter(filter(None, ledgers))).entries[3]
    assert parse_header(entry).last_add_confirmed == 2
    metadata = await writer.close()  # forces what is left
    assert (metadata.last_entry_id, metadata.length) == (3, 4)


async def test_a_force_needs_every_bookie(world, acks):
    writer = await world.client.create_ledger_deferred_sync(
        ensemble_size=3, write_quorum_size=2, ack_quorum_size=1
    )
    a, b, c = writer.metadata.last_segment[1]
    writer.append_nowait([b"0"], acks)
    await wait_all_tasks_blocked()
    assert world.bookies.holders(writer.ledger_id, 0) == {a, b}
    assert await writer.force() == 0  # the third has no entry, and does not know the ledger
    writer.append_nowait([b"1"], acks)
    await wait_all_tasks_blocked()
    world.bookies.dead.add(a)
    with pytest.raises(LedgerForceError, match=f"{a}: EIO"):
        await writer.force()
    assert writer.last_add_confirmed == 0
    world.bookies.dead.clear()
    assert await writer.force() == 1
    # A bookie that lost what it acked cannot be forced; the ledger ends where it was.
    writer.append_nowait([b"2"], acks)
    await wait_all_tasks_blocked()
    world.bookies.bookies[c].lose_power()
    assert (await writer.close()).last_entry_id == 1


async def test_deferred_sync_replaces_nobody(world, acks):
    writer = await world.client.create_ledger_deferred_sync(**SIZES)
    writer.append_nowait([b"0"], acks)
    await wait_all_tasks_blocked()
    await writer.force()
    world.bookies.dead.add(writer.metadata.last_segment[1][0])
    writer.append_nowait([b"1"], acks)
    await wait_all_tasks_blocked()
    assert [type(error) for error in acks.errors] == [NotEnoughBookiesError]
    assert "deferred sync" in str(writer.error)
    with pytest.raises(NotEnoughBookiesError):
        await writer.force()
    metadata = await writer.close()
    assert (metadata.last_entry_id, len(metadata.segments)) == (0, 1)


async def test_an_explicit_lac_shows_an_idle_ledgers_end(nursery, new_world, acks, autojump_clock):
    world = new_world(explicit_lac_interval_ms=100)
    await world.start(nursery)
    writer = await world.create(3, 3, 2)
    for n in range(2):
        writer.append_nowait([b"%d" % n], acks)
        await trio.sleep(0.001)
    reader = await world.client.open_ledger(writer.ledger_id, recover=False)
    assert reader.last_add_confirmed == 0
    await trio.sleep(0.25)
    assert await reader.read_last_add_confirmed() == 1
    assert await reader.read(1, count_max=1, size_max=9) == [b"1"]
    # Once is enough, and an entry in flight that tells it is as good.
    assert not await writer.tell_lac()
    world.bookies.held = set(world.names)
    writer.append_nowait([b"2"], acks)
    assert not await writer.tell_lac()


async def test_writers_are_looked_at_in_slices(nursery, new_world, autojump_clock, monkeypatch):
    monkeypatch.setattr(client, "WRITERS_PER_TURN", 2)
    world = new_world(add_quorum_timeout_ms=1_000)
    await world.start(nursery)
    writers = [await world.create(3, 3, 2) for _ in range(5)]
    looks, steps = Counter(), 0

    class Steps(trio.abc.Instrument):
        def before_task_step(self, task):
            nonlocal steps
            steps += 1

    def counted(writer, now, timeout_seconds):
        looks[steps] += 1

    monkeypatch.setattr(LedgerWriter, "look_for_timeout", counted)
    trio.lowlevel.add_instrument(Steps())
    await trio.sleep(0.15)
    assert list(looks.values()) == [2, 2, 1]
    assert len(writers) == 5


async def test_an_entry_without_its_quorum_ends_the_writer(
    nursery, new_world, acks, autojump_clock
):
    world = new_world(add_quorum_timeout_ms=1_000)
    await world.start(nursery)
    writer = await world.create(3, 3, 2)
    writer.append_nowait([b"0"], acks)
    await trio.sleep(5)
    assert acks.ids == [0]
    world.bookies.silent.update(writer.metadata.last_segment[1][:2])
    writer.append_nowait([b"1"], acks)
    start = trio.current_time()
    while not acks.errors:
        await trio.sleep(0.05)
    assert 0.9 <= trio.current_time() - start <= 1.3
    assert isinstance(acks.errors[0], AddTimeoutError)
    assert world.client.statistics.add_timeouts == 1
    assert (await writer.close()).last_entry_id == 0
