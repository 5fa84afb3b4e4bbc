"""Delayed ensemble change (invariant W5): the core against a naive model, and the writer."""

from collections import defaultdict

import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from ledger.distribution import Schedule
from ledger.writer_core import CHANGE, MISSED, NOTHING, WriterCore
from tests.properties import at_least
from wire.bookkeeper.status import Status

OK, EIO, READ_ONLY = Status.EOK, Status.EIO, Status.EREADONLY


def _ignore(entry_id, error):
    pass


def _core(*sizes):
    return WriterCore(7, Schedule(*sizes), tuple("ABCDEFG"[: sizes[0]]), delay_ensemble_change=True)


class Model:
    """Per entry, who has it and who refused it; who of the ensemble has to go."""

    def __init__(self, core):
        self.core = core
        self.schedule = core.schedule
        self.tolerance = self.schedule.write_quorum_size - self.schedule.ack_quorum_size
        self.in_flight = []
        self.added = []
        self.confirmed_count = 0
        self.stored = defaultdict(set)
        self.refused = defaultdict(set)  # entry id -> bookies
        self.must_go = set()
        self.late = set()
        self.fresh_count = 0

    def add(self):
        core = self.core
        if core.late:
            self.must_go |= {bookie for bookie in self.late if bookie in core.ensemble}
            self.late.clear()
            was_changing = core.changing
            flags = core.replace_late()
            assert flags == (CHANGE if self.must_go and not was_changing else NOTHING)
        pending = core.add(1, _ignore)
        self.added.append(pending)
        targets = core.targets(pending)
        wanted = {i for i in self.write_set(pending) if core.ensemble[i] not in self.must_go}
        assert set(targets) == wanted
        self.in_flight += [(pending, index, core.ensemble[index]) for index in targets]

    def write_set(self, pending):
        return self.schedule.write_set(pending.entry_id)

    def reply(self, position, status):
        pending, index, bookie = self.in_flight.pop(position)
        core, was_changing = self.core, self.core.changing
        is_current = core.ensemble[index] == bookie
        if status is OK:
            self.stored[pending.entry_id].add(bookie)
        is_late = pending.entry_id < self.confirmed_count
        flags = core.reply(pending, index, bookie, status)
        if not is_current or status is OK:
            assert not flags & CHANGE
            return
        assert bool(flags & MISSED) == is_late
        flags &= ~MISSED
        refused = self.refused[pending.entry_id]
        refused.add(bookie)
        current = {core.ensemble[i] for i in self.write_set(pending)} & refused
        if is_late and status is not READ_ONLY:
            self.late.add(bookie)
            assert flags == NOTHING
        elif status is READ_ONLY or len(current) > self.tolerance:
            self.must_go |= current
            assert flags == (NOTHING if was_changing else CHANGE)
        else:
            assert flags == NOTHING

    def change(self, extra, data):
        core = self.core
        request = core.change_request()
        assert set(request.failed.values()) == self.must_go
        for _ in range(extra):
            if self.in_flight:
                self.reply(0, data.draw(st.sampled_from([EIO, READ_ONLY])))
        ensemble = list(core.ensemble)
        for index in request.failed:
            self.fresh_count += 1
            ensemble[index] = f"new{self.fresh_count}"
        resend, flags = core.ensemble_changed(tuple(ensemble))
        self.must_go &= set(ensemble)
        assert bool(flags & CHANGE) == bool(self.must_go)
        self.in_flight += [(pending, index, core.ensemble[index]) for pending, index in resend]

    def confirm(self):
        got = self.core.confirm()
        for pending in got:
            holders = {self.core.ensemble[i] for i in self.write_set(pending)}
            count = len(holders & self.stored[pending.entry_id])
            assert count >= self.schedule.ack_quorum_size
            assert pending.entry_id == self.confirmed_count
            self.confirmed_count += 1
        if not self.must_go and self.confirmed_count < len(self.added):
            head = self.added[self.confirmed_count]
            holders = {self.core.ensemble[i] for i in self.write_set(head)}
            count = len(holders & self.stored[head.entry_id])
            assert count < self.schedule.ack_quorum_size, "complete, and not confirmed"


def test_who_took_a_refusers_place_does_not_answer_for_it():
    """Of an entry that is confirmed: first one bookie is read-only and replaced, then another."""
    core = _core(4, 4, 1)
    pending = core.add(1, _ignore)
    core.reply(pending, 0, "A", OK)
    assert core.confirm() == [pending]
    assert core.reply(pending, 2, "C", READ_ONLY) & CHANGE
    assert core.ensemble_changed(("A", "B", "new", "D")) == ([], NOTHING)
    assert core.reply(pending, 3, "D", READ_ONLY) & CHANGE
    assert core.change_request().failed == {3: "D"}


@at_least(300)
@given(st.data())
def test_any_history(data):
    ensemble_size = data.draw(st.integers(1, 5))
    write_quorum_size = data.draw(st.integers(1, ensemble_size))
    ack_quorum_size = data.draw(st.integers(1, write_quorum_size))
    model = Model(_core(ensemble_size, write_quorum_size, ack_quorum_size))
    actions = ["add", "add", "ok", "ok", "fail", "fail", "read_only", "confirm", "confirm"]
    for action in data.draw(st.lists(st.sampled_from(actions), max_size=40)):
        if model.must_go and data.draw(st.booleans()):
            model.change(data.draw(st.integers(0, 2)), data)
        if action == "add":
            model.add()
        elif action == "confirm":
            model.confirm()
        elif model.in_flight:
            position = data.draw(st.integers(0, len(model.in_flight) - 1))
            model.reply(position, {"ok": OK, "fail": EIO, "read_only": READ_ONLY}[action])
    # From here all goes well: then all is confirmed.
    while model.in_flight or model.must_go:
        if model.must_go:
            model.change(0, data)
        else:
            model.reply(0, OK)
        model.confirm()
    model.confirm()
    assert model.confirmed_count == len(model.added)


def test_so_many_failures_as_the_quorums_allow_are_tolerated():
    core = _core(3, 3, 2)
    first, second = core.add(1, _ignore), core.add(1, _ignore)
    assert core.reply(first, 0, "A", EIO) == NOTHING
    assert core.reply(second, 1, "B", EIO) == NOTHING  # another entry's failure counts for itself
    assert core.reply(first, 1, "B", EIO) == CHANGE
    assert core.change_request().failed == {0: "A", 1: "B"}


def test_read_only_is_not_tolerated():
    core = _core(3, 3, 2)
    pending = core.add(1, _ignore)
    assert core.reply(pending, 2, "C", READ_ONLY) == CHANGE
    assert core.change_request().failed == {2: "C"}


def test_a_late_failure_is_replaced_before_the_next_add():
    core = _core(3, 3, 2)
    pending = core.add(1, _ignore)
    core.reply(pending, 0, "A", OK)
    core.reply(pending, 1, "B", OK)
    assert core.confirm() == [pending]
    assert core.reply(pending, 2, "C", EIO) == MISSED
    assert core.late == {2: "C"}
    assert core.replace_late() == CHANGE
    assert core.change_request() == (1, ("A", "B", "C"), {2: "C"})
    assert core.targets(core.add(1, _ignore)) == (1, 0)


async def _append(writer, payloads, done):
    for payload in payloads:
        writer.append_nowait([payload], done)
    await wait_all_tasks_blocked()


async def test_a_writer_goes_on_without_a_bookie(nursery, new_world, acks):
    world = new_world(delay_ensemble_change=True)
    await world.start(nursery)
    writer = await world.create(3, 3, 2)
    a, b, _ = old = writer.metadata.last_segment[1]
    world.bookies.dead.add(a)
    await _append(writer, [b"0", b"1"], acks)
    assert acks.ids == [0, 1]
    assert world.client.statistics.adds_under_replicated == 2
    # The failure came before the ack or after it: at the latest now a late one is replaced.
    world.bookies.dead.add(b)
    await _append(writer, [b"2"], acks)
    assert acks.ids == [0, 1, 2]
    assert not {a, b} & set(writer.metadata.last_segment[1])
    assert writer.metadata.segments[0][1] == old
    reader = await world.client.open_ledger(writer.ledger_id, recover=True)
    world.bookies.dead.clear()
    got = []
    while len(got) < 3:
        got += await reader.read(len(got), count_max=9, size_max=99)
    assert got == [b"0", b"1", b"2"]


async def test_a_late_failure_of_a_writer(nursery, new_world, acks):
    world = new_world(delay_ensemble_change=True)
    await world.start(nursery)
    writer = await world.create(3, 3, 2)
    late = writer.metadata.last_segment[1][2]
    world.bookies.held = {late}
    await _append(writer, [b"0"], acks)
    assert acks.ids == [0]
    world.bookies.dead.add(late)
    world.bookies.held = set()
    world.bookies.release()
    await trio.lowlevel.checkpoint()
    assert late in writer.metadata.last_segment[1]
    await _append(writer, [b"1"], acks)
    assert acks.ids == [0, 1]
    assert late not in writer.metadata.last_segment[1]
    assert [first for first, _ in writer.metadata.segments] == [0, 1]
