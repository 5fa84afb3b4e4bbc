"""Failed bookies that nobody can replace: writing goes on without them while every write set has
its ack quorum; they come back, or are replaced later (feature 23)."""

from collections import defaultdict

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from ledger.distribution import Schedule
from ledger.errors import LedgerFencedError, NotEnoughBookiesError
from ledger.pipeline import LOOK_SECONDS
from ledger.underreplication import UnderReplication
from ledger.writer_core import CHANGE, NOTHING, WriterCore
from ledger.writer_marks import WriterMarks
from metadata.store import MetadataUnavailableError
from tests.properties import at_least
from wire.bookkeeper.status import Status

OK, EIO = Status.EOK, Status.EIO


def _ignore(entry_id, error):
    pass


def _core(*sizes, **keywords):
    return WriterCore(7, Schedule(*sizes), tuple("ABCDEFG"[: sizes[0]]), **keywords)


class Model:
    """Who has which entry, who is left out: nothing else. The shell's part is played here."""

    def __init__(self, core, spare_count):
        self.core = core
        self.spares = [f"new{n}" for n in range(spare_count)]
        self.in_flight = []
        self.added = []
        self.confirmed_count = 0
        self.stored = defaultdict(set)  # entry id -> bookies
        self.is_stopped = False
        self.late_count = 0

    def write_set(self, pending):
        return self.core.schedule.write_set(pending.entry_id)

    def send(self, pending, index):
        self.in_flight.append((pending, index, self.core.ensemble[index]))

    def add(self, with_trials):
        core = self.core
        if core.late:
            self.act(core.replace_late())
        pending = core.add(1, _ignore)
        self.added.append(pending)
        for index in core.targets(pending):
            assert index not in core.failed_indexes
            self.send(pending, index)
        if with_trials and core.is_short:
            for index in set(self.write_set(pending)) & set(core.failed_indexes):
                self.send(pending, index)

    def reply(self, position, status):
        pending, index, bookie = self.in_flight.pop(position)
        core = self.core
        if status is OK:
            self.stored[pending.entry_id].add(bookie)
        flags = core.reply(pending, index, bookie, status)
        if status is OK:
            for missing in core.rejoin(index, bookie):
                assert index not in core.failed_indexes
                self.send(missing, index)
        self.act(flags)

    def act(self, flags):
        while flags & CHANGE and not self.is_stopped:
            flags = self.change()

    def change(self):
        core = self.core
        request = core.change_request()
        ensemble = list(request.ensemble)
        for index in request.failed:
            if self.spares:
                ensemble[index] = self.spares.pop()
        if tuple(ensemble) != request.ensemble:
            resend, flags = core.ensemble_changed(tuple(ensemble))
            for pending, index in resend:
                self.send(pending, index)
            return flags
        if core.can_keep(request):
            return core.keep_failed(request)
        self.is_stopped = True
        return NOTHING

    def confirm(self):
        core = self.core
        for pending in core.confirm():
            assert pending.entry_id == self.confirmed_count
            holders = {core.ensemble[index] for index in self.write_set(pending)}
            count = len(holders & self.stored[pending.entry_id])
            assert count >= core.schedule.ack_quorum_size
            self.confirmed_count += 1


@at_least(500)
@given(st.data())
def test_any_history_with_few_spares(data):
    ensemble_size = data.draw(st.integers(1, 5))
    write_quorum_size = data.draw(st.integers(1, ensemble_size))
    ack_quorum_size = data.draw(st.integers(1, write_quorum_size))
    sizes = (ensemble_size, write_quorum_size, ack_quorum_size)
    core = _core(*sizes, delay_ensemble_change=data.draw(st.booleans()))
    model = Model(core, data.draw(st.integers(0, 2)))
    actions = ["add", "add", "trial", "ok", "ok", "fail", "confirm", "look", "spare"]
    for action in data.draw(st.lists(st.sampled_from(actions), max_size=50)):
        if model.is_stopped:
            return
        if action in ("add", "trial"):
            model.add(action == "trial")
        elif action == "confirm":
            model.confirm()
        elif action == "look":
            model.act(core.replace_failed())
        elif action == "spare":
            model.late_count += 1
            model.spares.append(f"late{model.late_count}")
        elif model.in_flight:
            position = data.draw(st.integers(0, len(model.in_flight) - 1))
            model.reply(position, OK if action == "ok" else EIO)
    # From here all goes well: then all is confirmed, with or without those that were kept.
    while model.in_flight and not model.is_stopped:
        model.reply(0, OK)
    model.confirm()
    assert model.is_stopped or model.confirmed_count == len(model.added)


def test_a_kept_bookie_is_left_out_until_it_took_an_entry():
    core = _core(3, 3, 2)
    first = core.add(1, _ignore)
    assert core.reply(first, 0, "A", EIO) == CHANGE
    assert core.keep_failed(core.change_request()) == NOTHING
    second = core.add(1, _ignore)
    assert core.targets(second) == (1, 2)
    # What else it refuses is known already, and its trial too.
    assert core.reply(second, 0, "A", EIO) == NOTHING
    assert core.reply(second, 0, "A", OK) == NOTHING
    assert core.rejoin(0, "A") == [first]
    assert core.targets(core.add(1, _ignore)) == (2, 0, 1)
    assert not core.is_short


def test_what_was_tolerated_is_not_when_there_are_no_others():
    """Delayed change: C's refusal of the entry was harmless while A could still get it."""
    core = _core(3, 3, 2, delay_ensemble_change=True)
    first, second = core.add(1, _ignore), core.add(1, _ignore)
    core.reply(first, 1, "B", OK)
    core.reply(first, 2, "C", OK)
    assert core.reply(second, 2, "C", EIO) == NOTHING
    assert core.reply(first, 0, "A", Status.EREADONLY) == CHANGE
    request = core.change_request()
    assert core.keep_failed(request) == CHANGE
    assert core.change_request().failed == {0: "A", 2: "C"}
    assert not core.can_keep(core.change_request())


async def _append(writer, count, done):
    for _ in range(count):
        writer.append_nowait([b"entry %d" % (writer.last_add_pushed + 1)], done)
    await wait_all_tasks_blocked()


async def _read_all(reader):
    payloads = []
    while len(payloads) <= reader.last_add_confirmed:
        payloads += await reader.read(len(payloads), count_max=100, size_max=1 << 20)
    return payloads


async def _three(nursery, new_world, names="abc", **config):
    world = new_world(names, **config)
    await world.start(nursery)
    return world, await world.create(3, 3, 2)


async def test_one_of_three_dies_and_nobody_waits(nursery, new_world, acks, autojump_clock):
    world, writer = await _three(nursery, new_world)
    await _append(writer, 2, acks)
    before = writer.metadata
    started = trio.current_time()
    world.bookies.dead.add("a")
    await _append(writer, 5, acks)
    assert acks.ids == list(range(7))
    assert trio.current_time() == started
    assert writer.is_short
    # Nothing was written to the metadata, and the dead one is asked no more.
    assert await world.metadata(writer.ledger_id) == before
    count = world.bookies.add_count
    await _append(writer, 100, acks)
    assert world.bookies.add_count == count + 200
    assert (await writer.close()).last_entry_id == 106
    # Both of its ends may look fine on "a", should it come back.
    marked = await UnderReplication(world.store).ledger(writer.ledger_id)
    assert marked is not None
    assert marked.replicas == ("a",)


async def _marked(world, writer):
    marked = await UnderReplication(world.store).ledger(writer.ledger_id)
    return None if marked is None else marked.replicas


async def test_a_writer_says_at_once_what_it_goes_on_without(
    nursery, new_world, acks, autojump_clock
):
    """It may die before it closes the ledger."""
    world, writer = await _three(nursery, new_world)
    await _append(writer, 2, acks)
    world.bookies.dead.add("a")
    await _append(writer, 5, acks)
    assert acks.ids == list(range(7))
    await trio.sleep(0.1)
    assert await _marked(world, writer) == ("a",)


async def test_the_mark_is_made_when_the_metadata_are_back(
    nursery, new_world, acks, autojump_clock, monkeypatch
):
    world, writer = await _three(nursery, new_world)
    original, tries = WriterMarks._mark, []

    async def away(self, ledger_id, missing):
        tries.append(set(missing))
        if len(tries) < 4:
            raise MetadataUnavailableError("/", "no metadata")
        await original(self, ledger_id, missing)

    monkeypatch.setattr(WriterMarks, "_mark", away)
    world.bookies.dead.add("a")
    # Nobody waits for it.
    await _append(writer, 50, acks)
    assert acks.ids == list(range(50))
    await trio.sleep(60)
    assert tries == [{"a"}] * 4
    assert await _marked(world, writer) == ("a",)
    await _append(writer, 50, acks)
    await trio.sleep(60)
    assert len(tries) == 4


async def test_who_recovers_a_ledger_says_what_its_bookies_lack(
    nursery, new_world, acks, autojump_clock
):
    """The writer, and with it what it knew, is gone: the metadata were away till it died."""
    world, writer = await _three(nursery, new_world)
    await _append(writer, 7, acks)
    # «a» takes its adds in some time, and this writer will not live so long.
    world.bookies.held.add("a")
    for _ in range(50):
        await _append(writer, 1, acks)
    assert acks.ids == list(range(57))
    assert len(world.bookies.bookies["a"].ledgers[writer.ledger_id].entries) == 7
    writer.abandon()
    world.bookies.held.clear()
    world.bookies.queue.clear()
    reader = await world.client.open_ledger(writer.ledger_id, recover=True)
    assert reader.metadata.last_entry_id == 56
    assert reader.metadata.segments == writer.metadata.segments
    await trio.sleep(0.1)
    assert await _marked(world, writer) == ("a",)


async def test_who_recovers_a_ledger_asks_a_bookie_that_is_away_again(
    nursery, new_world, acks, autojump_clock
):
    world, writer = await _three(nursery, new_world)
    await _append(writer, 7, acks)
    writer.abandon()
    await world.client.open_ledger(writer.ledger_id, recover=True)
    world.bookies.dead.add("a")
    await trio.sleep(2)
    world.bookies.dead.clear()
    await trio.sleep(60)
    assert await _marked(world, writer) is None
    # One that stays away counts as one that lacks something.
    other = await world.create(3, 3, 2)
    await _append(other, 7, lambda *told: None)
    other.abandon()
    await world.client.open_ledger(other.ledger_id, recover=True)
    world.bookies.dead.add("b")
    await trio.sleep(60)
    assert await _marked(world, other) == ("b",)


async def test_a_recovery_that_goes_on_without_a_bookie_says_so(
    nursery, new_world, acks, autojump_clock
):
    world, writer = await _three(nursery, new_world)
    await _append(writer, 7, acks)
    writer.abandon()
    for entry_id in range(7):
        world.bookies.answers["a", entry_id] = Status.EREADONLY
    await world.client.open_ledger(writer.ledger_id, recover=True)
    await trio.sleep(0.1)
    assert await _marked(world, writer) == ("a",)


async def test_what_was_tolerated_is_marked_too(nursery, new_world, acks, autojump_clock):
    """With delayed ensemble changes an entry may be confirmed in spite of a refusal, which comes
    before or afterwards."""
    world, writer = await _three(nursery, new_world, delay_ensemble_change=True)
    world.bookies.answers["a", 3] = Status.EIO
    await _append(writer, 6, acks)
    assert acks.ids == list(range(6))
    assert not writer.is_short
    await trio.sleep(0.1)
    assert await _marked(world, writer) == ("a",)
    late = await world.create(3, 3, 2)
    world.bookies.held.add("b")
    world.bookies.answers["b", 1] = Status.EIO
    await _append(late, 2, lambda *told: None)
    world.bookies.release()
    world.bookies.held.clear()
    await late.close()
    assert await _marked(world, late) == ("b",)


async def test_a_ledger_that_misses_nothing_is_not_marked(nursery, new_world, acks, autojump_clock):
    world, writer = await _three(nursery, new_world, "abcd")
    await _append(writer, 2, acks)
    world.bookies.dead.add(writer.metadata.last_segment[1][0])
    await _append(writer, 2, acks)
    await writer.close()
    assert await UnderReplication(world.store).ledger(writer.ledger_id) is None


async def test_one_that_comes_back_gets_entries_again(nursery, new_world, acks, autojump_clock):
    world, writer = await _three(nursery, new_world)
    world.bookies.dead.add("a")
    await _append(writer, 3, acks)
    await trio.sleep(LOOK_SECONDS)
    await _append(writer, 3, acks)  # a trial, in vain
    world.bookies.dead.clear()
    await _append(writer, 3, acks)  # too early for another
    assert world.bookies.holders(writer.ledger_id, 8) == {"b", "c"}
    await trio.sleep(LOOK_SECONDS)
    await _append(writer, 1, acks)
    await _append(writer, 1, acks)
    assert acks.ids == list(range(11))
    assert not writer.is_short
    assert world.bookies.holders(writer.ledger_id, 9) == set("abc")
    assert world.bookies.holders(writer.ledger_id, 10) == set("abc")
    reader = await world.client.open_ledger(writer.ledger_id, recover=True)
    assert await _read_all(reader) == [b"entry %d" % n for n in range(11)]


async def test_one_that_comes_later_takes_the_place(nursery, new_world, acks, autojump_clock):
    world, writer = await _three(nursery, new_world, "abcd")
    left = next(iter(set("abcd") - set(writer.metadata.last_segment[1])))
    dead = writer.metadata.last_segment[1][0]
    world.names.remove(left)
    world.bookies.dead.add(dead)
    await _append(writer, 3, acks)
    world.names.append(left)
    await trio.sleep(LOOK_SECONDS)
    await _append(writer, 3, acks)
    assert acks.ids == list(range(6))
    (_, old), (first, new) = (await world.metadata(writer.ledger_id)).segments
    assert (old[0], first, new[0]) == (dead, 3, left)
    assert new[1:] == old[1:]


async def test_a_second_failure_ends_the_ledger(nursery, new_world, acks):
    world, writer = await _three(nursery, new_world)
    world.bookies.dead.add("a")
    await _append(writer, 3, acks)
    world.bookies.dead.add("b")
    await _append(writer, 1, acks)
    assert acks.ids == [0, 1, 2]
    assert [type(error) for error in acks.errors] == [NotEnoughBookiesError]
    assert (await writer.close()).last_entry_id == 2


async def test_one_spare_for_two_that_fail_at_once(nursery, new_world, acks):
    world, writer = await _three(nursery, new_world, "abcd")
    a, b, c = writer.metadata.last_segment[1]
    (spare,) = set("abcd") - {a, b, c}
    world.bookies.held = {a, b}
    await _append(writer, 2, acks)
    world.bookies.dead.update((a, b))
    world.bookies.held = set()
    world.bookies.release()
    await wait_all_tasks_blocked()
    assert acks.ids == [0, 1]
    assert set((await world.metadata(writer.ledger_id)).last_segment[1]) > {spare, c}
    assert world.bookies.holders(writer.ledger_id, 1) == {spare, c}


async def test_a_fence_is_learnt_from_a_trial_too(nursery, new_world, acks, autojump_clock):
    world, writer = await _three(nursery, new_world)
    world.bookies.dead.add("a")
    await _append(writer, 1, acks)
    world.bookies.dead = {"b", "c"}
    world.bookies.answers["b", 1] = world.bookies.answers["c", 1] = Status.EOK
    world.bookies.answers["a", 1] = Status.EFENCED
    await trio.sleep(LOOK_SECONDS)
    await _append(writer, 1, acks)
    assert isinstance(writer.error, LedgerFencedError)


async def test_one_trial_at_a_time_for_one_that_hangs(nursery, new_world, acks, autojump_clock):
    world, writer = await _three(nursery, new_world)
    world.bookies.dead.add("a")
    await _append(writer, 1, acks)
    world.bookies.dead.clear()
    world.bookies.held = {"a"}
    for _ in range(5):
        await trio.sleep(LOOK_SECONDS)
        await _append(writer, 10, acks)
    assert acks.ids == list(range(51))
    assert len(world.bookies.queue) == 1
    world.bookies.held = set()
    world.bookies.release()
    await _append(writer, 1, acks)
    assert world.bookies.holders(writer.ledger_id, 51) == set("abc")


async def test_recovery_goes_on_without_one_too(nursery, new_world, acks):
    world, writer = await _three(nursery, new_world)
    world.bookies.held = {"a", "b"}
    await _append(writer, 3, acks)
    world.bookies.dead.add("a")
    world.bookies.held = set()
    reader = await world.client.open_ledger(writer.ledger_id, recover=True)
    assert await _read_all(reader) == [b"entry 0", b"entry 1", b"entry 2"]
    assert world.bookies.holders(writer.ledger_id, 2) == {"b", "c"}
    assert [bookies for _, bookies in reader.metadata.segments] == [writer.metadata.segments[0][1]]


async def test_no_trial_while_another_takes_the_place(
    nursery, new_world, acks, autojump_clock, monkeypatch
):
    """Seed 217828159: metadata named the successor already, which nobody had been told yet; the
    trial went to a bookie that no reader of the metadata would look for."""
    world = new_world("abcd")
    await world.start(nursery)
    writer = await world.create(3, 2, 1)
    ensemble = writer.metadata.last_segment[1]
    (spare,) = set("abcd") - set(ensemble)
    dead = ensemble[1]  # of the write sets of entries 0 and 1, not of entry 2
    world.names.remove(spare)
    world.bookies.dead.add(dead)
    await _append(writer, 2, acks)
    world.bookies.dead.clear()
    world.names.append(spare)
    told = trio.Event()
    ensembles = type(writer._pipeline._ensembles)
    original = ensembles.store_ensemble

    async def late(self, request, ensemble):
        await original(self, request, ensemble)
        await told.wait()

    monkeypatch.setattr(ensembles, "store_ensemble", late)
    await trio.sleep(LOOK_SECONDS)
    await _append(writer, 1, acks)  # looks, and has no entry for the one that failed
    assert spare in (await world.metadata(writer.ledger_id)).last_segment[1]
    await _append(writer, 4, acks)
    ledger = world.bookies.bookies[dead].ledgers.get(writer.ledger_id)
    assert ledger is None or not ledger.entries
    told.set()
    await _append(writer, 4, acks)
    assert acks.ids == list(range(11))
    assert ledger is None or not ledger.entries
    assert world.bookies.holders(writer.ledger_id, 3) == {ensemble[0], spare}
