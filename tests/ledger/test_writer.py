"""The writer: windows, closing, failing, ensemble changes."""

from dataclasses import replace

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ledger.errors import (
    LedgerBusyError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
    NoSuchEntryError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from ledger.writer import LedgerWriter
from metadata.memory import MemoryStore
from metadata.store import MetadataUnknownOutcomeError, NoNodeError
from tests.ledger_ids import ledger_ids
from wire.bookkeeper.entry import DigestType, parse_header
from wire.bookkeeper.ledger_metadata import LedgerState
from wire.bookkeeper.status import Status

SIZES = [(1, 1, 1), (2, 2, 1), (3, 3, 2), (3, 2, 2), (5, 3, 2)]


async def append(writer, payloads, done):
    ids = [writer.append_nowait([payload], done) for payload in payloads]
    await wait_all_tasks_blocked()
    return ids


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("digest_type", list(DigestType))
async def test_write_close_open_read(world, acks, sizes, digest_type):
    writer = await world.create(*sizes, digest_type=digest_type, password=b"pw")
    assert isinstance(writer, LedgerWriter)
    payloads = [b"entry %d" % n for n in range(20)]
    assert await append(writer, payloads, acks) == list(range(20))
    assert acks.told == [(n, None) for n in range(20)]
    assert writer.last_add_confirmed == writer.last_add_pushed == 19
    assert writer.length == sum(map(len, payloads))
    got = await writer.reader.read(0, count_max=7, size_max=10_000)
    assert got == payloads[:7]
    metadata = await writer.close()
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 19)
    assert metadata.length == writer.length
    assert await world.metadata(writer.ledger_id) == metadata
    reader = await world.client.open_ledger(writer.ledger_id, password=b"pw", recover=False)
    got = []
    while len(got) < 20:
        got += await reader.read(len(got), count_max=6, size_max=10_000)
    assert got == payloads
    with pytest.raises(NoSuchEntryError):
        await reader.read(20, count_max=1, size_max=1)


@pytest.mark.parametrize("sizes", SIZES)
async def test_each_entry_is_on_its_write_set_and_tells_the_lac(world, acks, sizes):
    writer = await world.create(*sizes)
    ensemble = writer.metadata.last_segment[1]
    await append(writer, [b"x"] * 3, acks)
    await append(writer, [b"yy"] * 4, acks)
    for entry_id in range(7):
        expected = {ensemble[(entry_id + i) % sizes[0]] for i in range(sizes[1])}
        assert world.bookies.holders(writer.ledger_id, entry_id) == expected
        bookie = world.bookies.bookies[min(expected)]
        header = parse_header(bookie.ledgers[writer.ledger_id].entries[entry_id])
        # The first three went out together, before any of them was confirmed.
        assert header.last_add_confirmed == (-1 if entry_id < 3 else 2)
        assert header.length == (entry_id + 1 if entry_id < 3 else 3 + 2 * (entry_id - 2))


async def test_a_payload_in_pieces(world, acks):
    writer = await world.create(1, 1, 1)
    writer.append_nowait([b"ab", memoryview(b"cde"), bytearray(b"f")], acks)
    writer.append_nowait([], acks)
    await wait_all_tasks_blocked()
    assert await writer.reader.read(0, count_max=2, size_max=100) == [b"abcdef", b""]
    assert writer.length == 6


async def test_callbacks_come_in_order_and_in_one_pass(world, acks):
    writer = await world.create(3, 3, 2)
    world.bookies.held = set("abcdef")
    lacs = []
    for n in range(4):
        writer.append_nowait(
            [b"%d" % n], lambda *told: (acks(*told), lacs.append(writer.last_add_confirmed))
        )
    first, second, third = writer.metadata.last_segment[1]
    world.bookies.release(bookie=first)
    world.bookies.release(bookie=third, entry_id=3)
    world.bookies.release(bookie=second, entry_id=1)
    await wait_all_tasks_blocked()
    assert acks.told == []
    assert writer.pending_count == 4
    world.bookies.release(bookie=second, entry_id=0)
    world.bookies.release(bookie=second, entry_id=2)
    await wait_all_tasks_blocked()
    assert acks.ids == [0, 1, 2, 3]
    assert lacs == [3, 3, 3, 3]
    assert (writer.pending_count, writer.pending_bytes) == (0, 0)
    world.bookies.release()
    await wait_all_tasks_blocked()
    assert acks.ids == [0, 1, 2, 3]


async def test_done_is_never_called_from_inside_the_append(world):
    writer = await world.create(1, 1, 1)
    told = []
    entry_id = writer.append_nowait([b"x"], lambda *args: told.append(args))
    assert told == []
    await wait_all_tasks_blocked()
    assert told == [(entry_id, None)]


async def test_a_full_window_refuses(nursery, new_world, acks):
    world = new_world(window_entries_max=3, window_bytes_max=100)
    await world.start(nursery)
    writer = await world.create(1, 1, 1)
    world.bookies.held = set(world.names)
    for _ in range(3):
        assert writer.has_room
        writer.append_nowait([b"x"], acks)
    assert not writer.has_room
    with pytest.raises(LedgerBusyError, match="3 entries of 3 bytes"):
        writer.append_nowait([b"x"], acks)
    rooms = []
    writer.when_room(lambda: rooms.append(writer.pending_count))
    world.bookies.release(entry_id=0)
    await wait_all_tasks_blocked()
    assert rooms == [2]
    writer.append_nowait([bytes(150)], acks)
    world.bookies.release(entry_id=1)
    await wait_all_tasks_blocked()
    with pytest.raises(LedgerBusyError, match="151 bytes"):
        writer.append_nowait([b""], acks)
    world.bookies.release()
    await wait_all_tasks_blocked()
    assert acks.ids == [0, 1, 2, 3]
    assert writer.has_room


async def test_who_is_told_that_an_entry_is_stored_may_read_it_at_once(world):
    """Readers wake up in the callback: what they then see of the LAC has all that was confirmed."""
    writer = await world.create(3, 3, 2)
    told = []

    def done(entry_id, error):
        assert error is None
        known = writer.reader.last_add_confirmed
        found = None
        if known >= entry_id:
            found = writer.reader.read_nowait(entry_id, count_max=1, size_max=99)
        told.append((known, found))

    await append(writer, [b"0", b"1", b"2"], done)
    assert told == [(2, [b"0"]), (2, [b"1"]), (2, [b"2"])]


async def test_a_bookie_that_fails_is_replaced(world, acks):
    writer = await world.create(3, 3, 2)
    await append(writer, [b"0", b"1"], acks)
    old = writer.metadata.last_segment[1]
    world.bookies.dead.add(old[1])
    await append(writer, [b"2", b"3"], acks)
    assert acks.ids == [0, 1, 2, 3]
    (first, bookies), (start, new) = (await world.metadata(writer.ledger_id)).segments
    assert (first, bookies, start) == (0, old, 2)
    assert (new[0], new[2]) == (old[0], old[2])
    assert new[1] not in old
    for entry_id in (2, 3):
        assert world.bookies.holders(writer.ledger_id, entry_id) == set(new)
    assert await writer.reader.read(2, count_max=9, size_max=99) == [b"2", b"3"]
    assert (await writer.close()).last_entry_id == 3


async def test_a_failure_before_the_first_ack_replaces_the_first_segment(world, acks):
    writer = await world.create(2, 2, 2)
    old = writer.metadata.last_segment[1]
    world.bookies.dead.add(old[0])
    await append(writer, [b"0"], acks)
    ((first, new),) = (await world.metadata(writer.ledger_id)).segments
    assert (first, new[1]) == (0, old[1])
    assert new[0] not in old
    assert acks.ids == [0]


class GatedStore(MemoryStore):
    """Puts wait at a gate, or get lost on the way back."""

    __slots__ = ("gate", "lose_reply", "lose_request", "put_count")

    def __init__(self, tree):
        super().__init__(tree)
        self.gate = trio.Event()
        self.gate.set()
        self.lose_reply = self.lose_request = 0
        self.put_count = 0

    async def put(self, path, data, version):
        self.put_count += 1
        await self.gate.wait()
        if self.lose_request:
            self.lose_request -= 1
            raise MetadataUnknownOutcomeError(path, "connection lost")
        result = await super().put(path, data, version)
        if self.lose_reply:
            self.lose_reply -= 1
            raise MetadataUnknownOutcomeError(path, "connection lost")
        return result

    async def create(self, path, data=b"", **keywords):
        result = await super().create(path, data, **keywords)
        if self.lose_reply and data:
            self.lose_reply -= 1
            raise MetadataUnknownOutcomeError(path, "connection lost")
        return result


@pytest.fixture
async def gated(world, nursery):
    """The world with a client whose metadata store can be held up."""
    store = GatedStore(world.store.tree)
    world.client = world.new_client(store)
    await nursery.start(world.client.run)
    return store


async def test_nothing_is_acked_on_an_ensemble_that_is_not_durable(world, gated, acks):
    """bk#1591. While the change is under way, Qa acks from the old and the new bookies together
    confirm nothing, and the new bookie is not even asked."""
    writer = await world.create(3, 3, 2)
    old = writer.metadata.last_segment[1]
    gated.gate = trio.Event()
    world.bookies.dead.add(old[0])
    await append(writer, [b"0", b"1"], acks)
    assert acks.told == []
    assert writer.last_add_confirmed == -1
    assert world.bookies.holders(writer.ledger_id, 0) == {old[1], old[2]}
    gated.gate.set()
    await wait_all_tasks_blocked()
    assert acks.ids == [0, 1]
    new = (await world.metadata(writer.ledger_id)).last_segment[1]
    assert world.bookies.holders(writer.ledger_id, 1) == set(new)


async def test_failures_during_a_change_are_replaced_too(world, gated, acks):
    writer = await world.create(3, 3, 3)
    old = writer.metadata.last_segment[1]
    world.bookies.held = {old[1]}
    gated.gate = trio.Event()
    world.bookies.dead.add(old[0])
    await append(writer, [b"0"], acks)
    world.bookies.dead.add(old[1])
    world.bookies.release()
    await wait_all_tasks_blocked()
    gated.gate.set()
    await wait_all_tasks_blocked()
    ((first, new),) = (await world.metadata(writer.ledger_id)).segments
    assert (first, new[2]) == (0, old[2])
    assert not {new[0], new[1]} & set(old)
    assert acks.ids == [0]
    assert writer.metadata.last_segment[1] == new


@pytest.mark.parametrize("what", ["lose_reply", "lose_request"])
async def test_an_unknown_outcome_is_read_back(world, gated, acks, what):
    writer = await world.create(2, 2, 2)
    old = writer.metadata.last_segment[1]
    setattr(gated, what, 1)
    world.bookies.dead.add(old[0])
    await append(writer, [b"0"], acks)
    assert acks.ids == [0]
    assert gated.put_count == (1 if what == "lose_reply" else 2)
    setattr(gated, what, 1)
    assert (await writer.close()).last_entry_id == 0
    assert (await world.metadata(writer.ledger_id)).is_closed


async def test_a_create_whose_reply_was_lost_is_recognised(world, gated, acks):
    gated.lose_reply = 1
    writer = await world.create(1, 1, 1)
    assert gated.lose_reply == 0
    assert await ledger_ids(world.client.manager) == [writer.ledger_id]
    await append(writer, [b"0"], acks)
    assert acks.ids == [0]


async def test_no_bookie_left_fails_all_and_the_ledger_can_still_be_closed(world, acks):
    writer = await world.create(6, 6, 4)
    await append(writer, [b"0", b"1"], acks)
    world.bookies.dead.update("abc")
    await append(writer, [b"2", b"3"], acks)
    assert acks.ids == [0, 1]
    assert [type(error) for error in acks.errors] == [NotEnoughBookiesError] * 2
    assert isinstance(writer.error, NotEnoughBookiesError)
    # A later append is told the same way, in its turn.
    assert writer.append_nowait([b"4"], acks) == 4
    await wait_all_tasks_blocked()
    assert acks.told[-1] == (4, acks.errors[0])
    assert (await writer.close()).last_entry_id == 1


async def test_without_a_running_client_a_failure_ends_the_writing(world, acks):
    client = world.new_client()
    writer = await client.create_ledger()
    world.bookies.dead.update(world.names)
    await append(writer, [b"0"], acks)
    assert "run() is not running" in str(acks.errors[0])


async def test_a_fenced_writer_acks_nothing_more(world, acks):
    writer = await world.create(3, 3, 2)
    await append(writer, [b"0"], acks)
    reader = await world.client.open_ledger(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 0
    await append(writer, [b"1", b"2"], acks)
    assert acks.ids == [0]
    assert [type(error) for error in acks.errors] == [LedgerFencedError] * 2
    with pytest.raises(LedgerFencedError):
        await writer.close()
    assert (await world.metadata(writer.ledger_id)).last_entry_id == 0


@pytest.mark.parametrize(
    ("state", "error"),
    [(LedgerState.IN_RECOVERY, LedgerFencedError), (LedgerState.CLOSED, LedgerClosedError)],
)
async def test_a_change_finds_the_ledger_taken_over(world, acks, state, error):
    writer = await world.create(2, 2, 2)
    manager = world.client.manager
    versioned = await manager.read(writer.ledger_id)
    await manager.update(
        writer.ledger_id,
        versioned,
        lambda md: None if md.state is state else replace(md, state=state),
    )
    world.bookies.dead.add(writer.metadata.last_segment[1][0])
    await append(writer, [b"0"], acks)
    assert [type(e) for e in acks.errors] == [error]


async def test_a_change_finds_another_ensemble(world, acks):
    writer = await world.create(2, 2, 2)
    manager = world.client.manager
    versioned = await manager.read(writer.ledger_id)
    mine = versioned.metadata.last_segment[1]
    others = tuple(name for name in world.names if name not in mine)[:2]
    await manager.update(
        writer.ledger_id,
        versioned,
        lambda md: None if md.last_segment[1] == others else md.with_segment(0, others),
    )
    world.bookies.dead.add(mine[0])
    await append(writer, [b"0"], acks)
    assert [type(e) for e in acks.errors] == [MetadataConflictError]
    with pytest.raises(MetadataConflictError):
        await writer.close()


async def test_another_key_is_unauthorized(world, acks):
    writer = await world.create(1, 1, 1)
    (bookie,) = writer.metadata.last_segment[1]
    world.bookies.answers[bookie, 0] = Status.EUA
    await append(writer, [b"0"], acks)
    assert [type(e) for e in acks.errors] == [UnauthorizedError]


async def test_close_waits_for_what_is_in_flight(world, nursery, acks):
    writer = await world.create(2, 2, 2)
    world.bookies.held = set(world.names)
    await append(writer, [b"0", b"1"], acks)
    closed = []

    async def close():
        closed.append(await writer.close())

    nursery.start_soon(close)
    await wait_all_tasks_blocked()
    with pytest.raises(LedgerClosedError):
        writer.append_nowait([b"2"], acks)
    assert closed == []
    world.bookies.release()
    await wait_all_tasks_blocked()
    assert closed[0].last_entry_id == 1
    assert await writer.close() == closed[0]
    assert acks.ids == [0, 1]


async def test_a_close_that_was_cancelled_can_be_repeated(world, acks):
    writer = await world.create(1, 1, 1)
    await append(writer, [b"0"], acks)
    with trio.CancelScope() as scope:
        scope.cancel()
        await writer.close()
    assert scope.cancelled_caught
    assert (await writer.close()).last_entry_id == 0


async def test_close_after_somebody_elses_close(world, acks):
    writer = await world.create(1, 1, 1)
    await append(writer, [b"0"], acks)
    await world.client.open_ledger(writer.ledger_id, recover=True)
    # The very same end: nothing is lost, and nothing is to be said.
    assert (await writer.close()).last_entry_id == 0
    other = await world.create(1, 1, 1)
    world.bookies.held = set(world.names)
    await append(other, [b"0"], acks)
    world.bookies.held = set()
    await world.client.open_ledger(other.ledger_id, recover=True)
    world.bookies.release()
    with pytest.raises(LedgerFencedError):
        await other.close()


async def test_an_empty_ledger(world):
    writer = await world.create(3, 2, 2)
    metadata = await writer.close()
    assert (metadata.last_entry_id, metadata.length) == (-1, 0)
    with pytest.raises(NoSuchEntryError):
        await writer.reader.read(0, count_max=1, size_max=1)


async def test_abandon_fails_what_is_in_flight_and_leaves_the_metadata(world, acks):
    writer = await world.create(1, 1, 1)
    world.bookies.held = set(world.names)
    await append(writer, [b"0", b"1"], acks)
    writer.abandon()
    world.bookies.held = set()
    world.bookies.release()
    await wait_all_tasks_blocked()
    assert [type(e) for e in acks.errors] == [LedgerClosedError] * 2
    with pytest.raises(LedgerClosedError):
        writer.append_nowait([b"2"], acks)
    assert (await world.metadata(writer.ledger_id)).state is LedgerState.OPEN
    # The entries are there all the same: recovery finds them.
    reader = await world.client.open_ledger(writer.ledger_id, recover=True)
    assert reader.last_add_confirmed == 1


async def test_too_few_bookies_for_a_new_ledger(world):
    with pytest.raises(NotEnoughBookiesError, match="7 bookies are needed, 6"):
        await world.create(7, 7, 4)
    with pytest.raises(ValueError, match="must fall"):
        await world.create(1, 2, 1)
    with pytest.raises(NoNodeError, match="/ledgers"):
        await ledger_ids(world.client.manager)  # nothing was ever made


async def test_a_bookie_that_came_back_is_used_again(nursery, new_world, acks, autojump_clock):
    """Not at once: writers would go round among bookies that fail."""
    world = new_world("abcd", bookie_rest_ms=1_000)
    await world.start(nursery)
    writer = await world.create(3, 3, 2)
    first = writer.metadata.last_segment[1][0]
    world.bookies.dead.add(first)
    await append(writer, [b"0"], acks)
    second = writer.metadata.last_segment[1][0]
    assert second != first
    world.bookies.dead = {second}
    await trio.sleep(1.1)
    await append(writer, [b"1"], acks)
    assert acks.ids == [0, 1]
    assert writer.metadata.last_segment[1][0] == first
    # It has failed a moment ago, and the others are in the ensemble.
    world.bookies.dead = {first}
    await append(writer, [b"2"], acks)
    assert acks.ids == [0, 1, 2]
    assert writer.metadata.last_segment[1][0] == first


async def test_a_bookie_that_registers_anew_is_used_at_once(nursery, new_world, acks):
    world = new_world("abcd")
    await world.start(nursery)
    writer = await world.create(3, 3, 2)
    first = writer.metadata.last_segment[1][0]
    world.bookies.dead = {first}
    await append(writer, [b"0"], acks)
    world.bookies.dead = {writer.metadata.last_segment[1][0]}
    world.client.health.came(first)
    await append(writer, [b"1"], acks)
    assert acks.ids == [0, 1]
    assert writer.metadata.last_segment[1][0] == first
