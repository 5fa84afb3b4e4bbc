"""Copies of confirmed entries that are missing in the end: the core names the bookie of each."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.distribution import Schedule
from ledger.errors import LedgerClosedError
from ledger.writer_core import CHANGE, MISSED, NOTHING, WriterCore
from ledger.writer_modes_core import AdvCore
from tests.properties import at_least
from wire.bookkeeper.status import Status

OK, EIO, READ_ONLY = Status.EOK, Status.EIO, Status.EREADONLY


def _ignore(entry_id, error):
    pass


def _core(*sizes, core_type=WriterCore, **keywords):
    return core_type(7, Schedule(*sizes), tuple("ABCDEFG"[: sizes[0]]), **keywords)


def _confirmed_without_c(core, count=1):
    """Entries that A and B have, and C was sent and has not answered."""
    pendings = [core.add(1, _ignore) for _ in range(count)]
    for pending in pendings:
        core.reply(pending, 0, "A", OK)
        core.reply(pending, 1, "B", OK)
    assert core.confirm() == pendings
    return pendings


class Model:
    """Who has which entry, and which ensembles are durable. The shell's part is played here."""

    def __init__(self, core, spare_count):
        self.core = core
        self.segments = {0: core.ensemble}
        self.spares = [f"new{n}" for n in range(spare_count)]
        self.in_flight = []
        self.count = 0
        self.confirmed_count = 0
        self.stored = defaultdict(set)  # entry id -> bookies
        self.told = set()

    def send(self, pending, index):
        self.in_flight.append((pending, index, self.core.ensemble[index]))

    def add(self, with_trials):
        core = self.core
        if core.late:
            self.act(core.replace_late())
        if core.error is not None:
            return
        pending = (
            core.add_at(self.count, 1, _ignore)
            if isinstance(core, AdvCore)
            else core.add(1, _ignore)
        )
        self.count += 1
        for index in core.targets(pending):
            self.send(pending, index)
        if with_trials and core.is_short:
            for index in set(core.schedule.write_set(pending.entry_id)) & set(core.failed_indexes):
                self.send(pending, index)

    def reply(self, position, status):
        pending, index, bookie = self.in_flight.pop(position)
        core = self.core
        if status is OK:
            self.stored[pending.entry_id].add(bookie)
        flags = core.reply(pending, index, bookie, status)
        # Whoever is missed is told at once, and not only when something else happens.
        assert bool(flags & MISSED) >= bool(core.missed)
        self.take_missed()
        if status is OK:
            for missing in core.rejoin(index, bookie):
                self.send(missing, index)
        self.act(flags)

    def take_missed(self):
        self.told |= self.core.missed
        self.core.missed.clear()

    def act(self, flags):
        while flags & CHANGE and self.core.error is None:
            flags = self.change()

    def change(self):
        core = self.core
        request = core.change_request()
        ensemble = list(request.ensemble)
        for index in request.failed:
            if self.spares:
                ensemble[index] = self.spares.pop()
        if tuple(ensemble) != request.ensemble:
            self.segments[request.first_entry_id] = tuple(ensemble)
            resend, flags = core.ensemble_changed(tuple(ensemble))
            for pending, index in resend:
                self.send(pending, index)
            return flags
        if not core.can_keep(request):
            return core.stop(LedgerClosedError(7, "nobody in their places"))
        self.told |= set(request.failed.values())
        return core.keep_failed(request)

    def confirm(self):
        self.confirmed_count += len(self.core.confirm())
        self.take_missed()

    def check(self):
        for entry_id in range(self.confirmed_count):
            first = max(first for first in self.segments if first <= entry_id)
            ensemble = self.segments[first]
            for index in self.core.schedule.write_set(entry_id):
                bookie = ensemble[index]
                assert bookie in self.stored[entry_id] | self.told, (entry_id, bookie)


@at_least(500)
@given(st.data())
def test_every_copy_that_is_missing_is_told(data):
    ensemble_size = data.draw(st.integers(1, 5))
    write_quorum_size = data.draw(st.integers(1, ensemble_size))
    ack_quorum_size = data.draw(st.integers(1, write_quorum_size))
    core = _core(
        *(ensemble_size, write_quorum_size, ack_quorum_size),
        core_type=data.draw(st.sampled_from([WriterCore, AdvCore])),
        delay_ensemble_change=data.draw(st.booleans()),
    )
    model = Model(core, data.draw(st.integers(0, 4)))
    statuses = {"ok": OK, "fail": EIO, "read_only": READ_ONLY}
    actions = ["add", "add", "trial", "ok", "ok", "ok", "fail", "read_only", "confirm", "look"]
    for action in data.draw(st.lists(st.sampled_from(actions), max_size=50)):
        if action in ("add", "trial"):
            model.add(action == "trial")
        elif action == "confirm":
            model.confirm()
        elif action == "look":
            model.act(core.replace_failed())
        elif model.in_flight:
            position = data.draw(st.integers(0, len(model.in_flight) - 1))
            model.reply(position, statuses[action])
    if data.draw(st.booleans()):
        core.stop(LedgerClosedError(7, "was closed"))
    # Every add is answered some day: a bookie that hangs is one that fails.
    while model.in_flight:
        model.reply(0, data.draw(st.sampled_from([OK, EIO])))
        model.confirm()
    model.check()


def test_who_hangs_and_is_replaced_is_missed_where_it_had_not_answered():
    core = _core(3, 3, 2)
    first, second = _confirmed_without_c(core, 2)
    third = core.add(1, _ignore)
    assert core.reply(third, 2, "C", EIO) == CHANGE
    assert core.missed == set()
    assert core.change_request() == (2, ("A", "B", "C"), {2: "C"})
    assert core.ensemble_changed(("A", "B", "D")) == ([(third, 2)], NOTHING)
    assert core.reply(first, 2, "C", OK) == NOTHING
    assert core.reply(second, 2, "C", EIO) == MISSED
    assert core.missed == {"C"}


def test_the_first_refusal_of_a_confirmed_entry_is_both_a_failure_and_a_copy_less():
    core = _core(3, 3, 2)
    first, second = _confirmed_without_c(core, 2)
    assert core.reply(first, 2, "C", EIO) == CHANGE | MISSED
    # While the new ensemble is made, and after the ledger has ended.
    core.missed.clear()
    assert core.reply(second, 2, "C", EIO) == MISSED
    core.missed.clear()
    core.stop(LedgerClosedError(7, "was closed"))
    assert core.reply(second, 2, "C", EIO) == MISSED
    assert core.missed == {"C"}


@pytest.mark.parametrize("status", [Status.EFENCED, Status.EUA])
def test_who_fences_a_ledger_that_has_ended_looks_for_its_copies(status):
    core = _core(3, 3, 2)
    (first,) = _confirmed_without_c(core)
    core.stop(LedgerClosedError(7, "was closed"))
    assert core.reply(first, 2, "C", status) == NOTHING
    assert core.missed == set()


def test_what_was_sent_to_another_one_is_not_missed():
    """It was in flight when C was replaced, and D has it."""
    core = _core(3, 3, 2)
    first, second = core.add(1, _ignore), core.add(1, _ignore)
    assert core.reply(first, 2, "C", EIO) == CHANGE
    core.ensemble_changed(("A", "B", "D"))
    for pending in (first, second):
        for index, bookie in enumerate("ABD"):
            core.reply(pending, index, bookie, OK)
    assert core.confirm() == [first, second]
    assert core.reply(second, 2, "C", EIO) == NOTHING
    assert core.missed == set()
