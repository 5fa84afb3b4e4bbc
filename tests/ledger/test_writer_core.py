"""WriterCore against a naive model: random quorums, replies in any order, failures, ensemble
changes, failures during changes, fencing."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.distribution import Schedule
from ledger.errors import LedgerClosedError, LedgerFencedError, UnauthorizedError
from ledger.writer_core import CHANGE, DELIVER, MISSED, NOTHING, STOPPED, WriterCore
from tests.properties import at_least
from wire.bookkeeper.status import Status

OK, FENCED, EIO = Status.EOK, Status.EFENCED, Status.EIO


def _ignore(entry_id, error):
    pass


def _core(ensemble_size, write_quorum_size, ack_quorum_size, **keywords):
    schedule = Schedule(ensemble_size, write_quorum_size, ack_quorum_size)
    return WriterCore(7, schedule, tuple("ABCDEFG"[:ensemble_size]), **keywords)


class Model:
    """What every bookie stored, and who was told to be in the ensemble: nothing else."""

    def __init__(self, core):
        self.core = core
        self.in_flight = []  # (pending, index, bookie), sent and not answered
        self.added = []
        self.confirmed = []
        self.stored = defaultdict(set)  # bookie -> entry ids it acked
        self.ensemble = core.ensemble
        self.failed = set()
        self.fresh_count = 0
        self.delivery_due = False
        self.stopped = False

    def send(self, pending, index):
        self.in_flight.append((pending, index, self.core.ensemble[index]))

    def add(self, size):
        length = sum(p.size for p in self.added) + size
        pending = self.core.add(size, _ignore)
        assert pending.entry_id == len(self.added)
        assert pending.length == length
        assert pending.last_add_confirmed == len(self.confirmed) - 1
        self.added.append(pending)
        write_set = self.core.schedule.write_set(pending.entry_id)
        targets = self.core.targets(pending)
        assert set(targets) == {i for i in write_set if self.ensemble[i] not in self.failed}
        for index in targets:
            self.send(pending, index)

    def note(self, flags):
        self.delivery_due |= bool(flags & DELIVER)
        self.stopped |= bool(flags & STOPPED)

    def reply(self, position, status):
        pending, index, bookie = self.in_flight.pop(position)
        if status is OK:
            self.stored[bookie].add(pending.entry_id)
        flags = self.core.reply(pending, index, bookie, status)
        is_current = self.ensemble[index] == bookie and not self.stopped
        is_late = status is EIO and pending.entry_id < len(self.confirmed)
        assert is_late >= bool(flags & MISSED)
        assert bool(flags & MISSED) >= (is_late and self.ensemble[index] == bookie)
        flags &= ~MISSED
        if not is_current:
            assert flags == NOTHING
        elif status is FENCED:
            assert flags == STOPPED
        elif status is not OK:
            assert flags == (NOTHING if self.failed else CHANGE)
            self.failed.add(bookie)
        self.note(flags)

    def change(self, extra):
        """The shell made a new ensemble durable: fresh bookies at all indexes that had failed when
        it asked; `extra` more failures arrive before it tells the core."""
        request = self.core.change_request()
        assert request.first_entry_id == len(self.confirmed)
        assert request.ensemble == self.ensemble
        assert set(request.failed.values()) == self.failed
        for _ in range(extra):
            if self.in_flight:
                self.reply(0, EIO)
        ensemble = list(self.ensemble)
        for index in request.failed:
            self.fresh_count += 1
            ensemble[index] = f"new{self.fresh_count}"
        resend, flags = self.core.ensemble_changed(tuple(ensemble))
        expected = {
            (pending.entry_id, index)
            for pending in self.added[len(self.confirmed) :]
            for index in self.core.schedule.write_set(pending.entry_id)
            if index in request.failed
        }
        assert {(pending.entry_id, index) for pending, index in resend} == expected
        assert len(resend) == len(expected)
        self.ensemble = tuple(ensemble)
        self.failed = {bookie for bookie in self.failed if bookie in self.ensemble}
        assert bool(flags & CHANGE) == bool(self.failed)
        for pending, index in resend:
            self.send(pending, index)
        self.note(flags)

    def is_complete(self, entry_id):
        """Qa different bookies of the durable ensemble's write set have the entry."""
        holders = {
            self.ensemble[index]
            for index in self.core.schedule.write_set(entry_id)
            if entry_id in self.stored[self.ensemble[index]]
        }
        return len(holders) >= self.core.schedule.ack_quorum_size

    def confirm(self):
        before = len(self.confirmed)
        got = self.core.confirm()
        expected = before
        if not self.failed and not self.stopped:
            while expected < len(self.added) and self.is_complete(expected):
                expected += 1
        assert got == self.added[before:expected]
        if got:
            assert self.delivery_due, "an entry became complete and nobody was told"
        self.delivery_due = False
        self.confirmed += got
        assert self.core.last_add_confirmed == len(self.confirmed) - 1
        assert self.core.confirmed_length == sum(p.size for p in self.confirmed)
        assert self.core.pending_bytes == sum(p.size for p in self.added[len(self.confirmed) :])


@at_least(300)
@given(st.data())
def test_any_history(data):
    ensemble_size = data.draw(st.integers(1, 5))
    write_quorum_size = data.draw(st.integers(1, ensemble_size))
    core = _core(ensemble_size, write_quorum_size, data.draw(st.integers(1, write_quorum_size)))
    model = Model(core)
    with_fence = data.draw(st.booleans())
    actions = ["add", "add", "ok", "ok", "ok", "fail", "confirm"] + ["fence"] * with_fence
    for action in data.draw(st.lists(st.sampled_from(actions), max_size=40)):
        if model.failed and not model.stopped and data.draw(st.booleans()):
            model.change(data.draw(st.integers(0, 2)))
            model.confirm()
        if action == "add" and not model.stopped:
            model.add(data.draw(st.integers(0, 5)))
        elif action == "confirm":
            model.confirm()
        elif action in ("ok", "fail", "fence") and model.in_flight:
            position = data.draw(st.integers(0, len(model.in_flight) - 1))
            model.reply(position, {"ok": OK, "fail": EIO, "fence": FENCED}[action])
    # From here all goes well: then all is confirmed, unless the ledger was fenced.
    while not model.stopped and (model.in_flight or model.failed):
        if model.failed:
            model.change(0)
        else:
            model.reply(0, OK)
        model.confirm()
    model.confirm()
    if model.stopped:
        assert isinstance(core.error, LedgerFencedError)
        confirmed_count = len(model.confirmed)
        assert core.take_failed() == model.added[confirmed_count:]
        assert core.take_failed() == []
        while model.in_flight:
            model.reply(0, OK)
        assert core.confirm() == []
    else:
        assert len(model.confirmed) == len(model.added)


def _added(core, count):
    return [core.add(1, _ignore) for _ in range(count)]


def test_one_bookie_is_the_same_rules():
    core = _core(1, 1, 1)
    first, second = _added(core, 2)
    assert core.reply(second, 0, "A", OK) == NOTHING
    assert core.confirm() == []
    assert core.reply(first, 0, "A", OK) == DELIVER
    assert core.confirm() == [first, second]
    assert core.last_add_confirmed == 1


def test_a_late_ack_of_a_replaced_bookie_says_nothing():
    core = _core(2, 2, 2)
    (entry,) = _added(core, 1)
    assert core.reply(entry, 0, "A", EIO) == CHANGE
    assert core.ensemble_changed(("X", "B")) == ([(entry, 0)], NOTHING)
    assert core.reply(entry, 0, "A", OK) == NOTHING
    assert core.reply(entry, 0, "A", FENCED) == NOTHING
    assert core.reply(entry, 1, "B", OK) == NOTHING
    assert core.confirm() == []
    assert core.reply(entry, 0, "X", OK) == DELIVER


def test_a_change_takes_acks_away_before_anything_is_confirmed():
    """bk#3005: entry 0 has its quorum from A and B, then A is replaced; with A's ack gone it must
    wait, although its completion was already flagged."""
    core = _core(3, 3, 2)
    first, second = _added(core, 2)
    core.reply(first, 0, "A", OK)
    assert core.reply(first, 1, "B", OK) == DELIVER
    assert core.reply(second, 0, "A", EIO) == CHANGE
    assert core.confirm() == []
    resend, flags = core.ensemble_changed(("X", "B", "C"))
    assert resend == [(first, 0), (second, 0)]
    assert flags == NOTHING
    assert core.confirm() == []
    assert core.reply(first, 2, "C", OK) == DELIVER
    assert core.confirm() == [first]


def test_the_lac_stands_still_during_a_change():
    """bk#4097, bk#4651: else the new segment would begin before entries that were confirmed."""
    core = _core(3, 2, 1)
    entries = _added(core, 3)
    assert core.reply(entries[1], 1, "B", EIO) == CHANGE
    request = core.change_request()
    assert request.first_entry_id == 0
    assert core.reply(entries[0], 0, "A", OK) == NOTHING
    assert core.confirm() == []
    assert core.add(1, _ignore).last_add_confirmed == -1
    resend, flags = core.ensemble_changed(("A", "X", "C"))
    assert [(pending.entry_id, index) for pending, index in resend] == [(0, 1), (1, 1), (3, 1)]
    assert flags == DELIVER
    assert core.confirm() == [entries[0]]


def test_a_second_failure_during_a_change_asks_again_and_an_empty_rest_unfreezes():
    core = _core(2, 2, 1)
    (entry,) = _added(core, 1)
    assert core.reply(entry, 0, "A", EIO) == CHANGE
    assert core.reply(entry, 1, "B", EIO) == NOTHING
    resend, flags = core.ensemble_changed(("X", "B"))
    assert (resend, flags) == ([(entry, 0)], CHANGE)
    assert core.change_request().failed == {1: "B"}
    assert core.reply(entry, 0, "X", OK) == NOTHING
    resend, flags = core.ensemble_changed(("X", "Y"))
    assert (resend, flags) == ([(entry, 1)], DELIVER)
    assert core.confirm() == [entry]


def test_an_ack_of_a_stopped_core_counts_for_nothing():
    core = _core(1, 1, 1)
    first, second = _added(core, 2)
    assert core.reply(first, 0, "A", OK) == DELIVER
    assert core.reply(second, 0, "A", Status.EUA) == STOPPED
    assert core.confirm() == []
    assert isinstance(core.error, UnauthorizedError)
    assert core.stop(LedgerClosedError(7, "later")) == NOTHING
    assert isinstance(core.error, UnauthorizedError)
    assert core.take_failed() == [first, second]
    assert core.pending_bytes == 0


def test_a_change_that_ends_after_the_stop_does_nothing():
    core = _core(1, 1, 1)
    (entry,) = _added(core, 1)
    assert core.reply(entry, 0, "A", EIO) == CHANGE
    core.stop(LedgerFencedError(7, "x"))
    assert core.ensemble_changed(("B",)) == ([], NOTHING)


def test_recovery_starts_behind_the_lac_with_lengths_given():
    core = _core(2, 2, 2, last_add_confirmed=41, length=1000)
    core.length = 5000
    pending = core.add(10, _ignore)
    assert (pending.entry_id, pending.last_add_confirmed, pending.length) == (42, 41, 5010)


@pytest.mark.parametrize("status", [s for s in Status if s not in (OK, FENCED, Status.EUA)])
def test_every_other_refusal_replaces_the_bookie(status):
    core = _core(2, 2, 2)
    (entry,) = _added(core, 1)
    assert core.reply(entry, 1, "B", status) == CHANGE
    assert core.change_request().failed == {1: "B"}
