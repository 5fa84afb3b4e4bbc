"""Who waits is told in order, and no turn tells more than it has room for."""

from __future__ import annotations

import random

from hypothesis import example, given
from hypothesis import strategies as st

from broker.coordinator.telling import RECORD_UNITS, Telling
from broker.coordinator.units import Unit
from runtime.turn import SPENT_UNITS, Turn
from wire.kafka.errors import ErrorCode

UNITS_EACH = 40
#: The one that finds the turn not spent yet is the last.
PER_TURN_MAX = SPENT_UNITS // UNITS_EACH + 1


class Told:
    """A Telling, and what it told, each with the turn in which it did."""

    def __init__(self, units_each=UNITS_EACH):
        self.turn = Turn()
        self.turn_number = 0
        self.freed = []
        self.told = []  # (turn, name, error)
        self.stored = []  # (name, offset)
        self.telling = Telling(self.turn, units_each, lambda unit: self.freed.append(unit))

    def unit(self, name, records_count=1, then=None):
        def done(error):
            self.told.append((self.turn_number, name, error))
            if then is not None:
                then()

        def stored(offset):
            self.stored.append((name, offset))

        return Unit([(b"k", b"v")] * records_count, done, 10, stored)

    def mark(self, name):
        return Unit([], lambda error: self.told.append((self.turn_number, name, error)), 0)

    def next_turn(self):
        """As `Turn.serve`; whether anything was put off to it."""
        self.turn_number += 1
        self.turn.spent_units = 0
        later = self.turn._later
        for _ in range(len(later)):
            later.popleft()()
            if self.turn.is_spent:
                break
        return bool(later)

    def all_turns(self):
        while self.next_turn():
            pass

    @property
    def names(self):
        return [name for _, name, _ in self.told]


def test_a_batch_of_many_units_is_told_in_several_turns():
    all_of = Told()
    batch = all_of.telling.add([all_of.unit(at) for at in range(500)])
    all_of.telling.settle(batch, ErrorCode.NONE, 70)
    assert len(all_of.told) == PER_TURN_MAX, "some at once"
    all_of.all_turns()
    assert all_of.names == list(range(500))
    assert all_of.stored == [(at, 70 + at) for at in range(500)]
    per_turn = [turn for turn, *_ in all_of.told]
    assert max(map(per_turn.count, per_turn)) <= PER_TURN_MAX
    assert per_turn[-1] >= 500 // PER_TURN_MAX


def test_units_of_many_records_cost_more():
    """What each record says is put in force when its unit is told."""
    all_of = Told()
    batch = all_of.telling.add([all_of.unit(at, records_count=101) for at in range(30)])
    all_of.telling.settle(batch, ErrorCode.NONE, 70)
    assert len(all_of.told) == SPENT_UNITS // (UNITS_EACH + 100 * RECORD_UNITS) + 1
    all_of.all_turns()
    assert all_of.names == list(range(30))


def test_a_turn_that_is_spent_tells_nobody():
    all_of = Told()
    all_of.turn.spent_units = SPENT_UNITS + 1
    all_of.telling.settle(all_of.telling.add([all_of.unit("a")]), ErrorCode.NONE, 0)
    assert all_of.told == []
    all_of.all_turns()
    assert all_of.names == ["a"]


def test_what_is_refused_at_once_is_told_behind_what_was_written_before():
    all_of = Told()
    first = all_of.telling.add([all_of.unit("first")])
    refused = all_of.telling.add([all_of.unit("refused")])
    all_of.telling.settle(refused, ErrorCode.NOT_ENOUGH_REPLICAS)
    assert all_of.told == []
    all_of.telling.settle(first, ErrorCode.NONE, 0)
    assert [each[1:] for each in all_of.told] == [
        ("first", ErrorCode.NONE), ("refused", ErrorCode.NOT_ENOUGH_REPLICAS),
    ]  # fmt: skip
    assert all_of.stored == [("first", 0)]


def test_a_mark_that_one_of_them_sets_comes_behind_all_that_are_on_their_way():
    all_of = Told()

    def join():
        assert all_of.telling.join(all_of.mark("mark"))

    batch = all_of.telling.add([all_of.unit("a", then=join), all_of.unit("b")])
    all_of.telling.settle(batch, ErrorCode.NONE, 0)
    assert all_of.names == ["a", "b", "mark"]
    assert not all_of.telling.join(all_of.mark("nothing is on its way"))


def test_whoever_is_told_may_ask_that_all_be_told_now():
    """As one that closes the partition does: the others are told once, in order."""
    all_of = Told(units_each=SPENT_UNITS + 1)
    batch = all_of.telling.add(
        [all_of.unit("a"), all_of.unit("b", then=all_of.telling.tell_settled), all_of.unit("c")]
    )
    waiting = all_of.telling.add([all_of.unit("not acknowledged")])
    all_of.telling.settle(batch, ErrorCode.NONE, 0)
    assert all_of.names == ["a"]
    all_of.next_turn()
    assert all_of.names == ["a", "b", "c"]
    all_of.all_turns()
    all_of.telling.settle(waiting, ErrorCode.NOT_COORDINATOR)
    all_of.all_turns()
    assert all_of.names[3:] == ["not acknowledged"]


@given(seed=st.integers(0, 2**32), units_each=st.sampled_from([1, 1000, SPENT_UNITS + 1]))
@example(seed=8724, units_each=1000)  # One that is told last writes.
def test_the_order_is_that_of_the_log(seed, units_each):
    """Whatever is acknowledged or refused when, and whoever writes or asks in between: each is told
    once, in the order in which it was written, and of what is stored the offset is the log's."""
    rng = random.Random(seed)
    all_of, written, unsettled, offsets = Told(units_each), [], [], {}
    next_offset = 0

    def write(depth=0):
        units = []
        for _ in range(rng.randint(1, 5)):
            name = len(written)
            then = (lambda: write(depth + 1)) if depth < 2 and rng.random() < 0.1 else None
            units.append(all_of.unit(name, rng.randint(1, 3), then))
            written.append(name)
        unsettled.append((all_of.telling.add(units), units, written[-len(units) :]))

    def settle(at, error):
        nonlocal next_offset
        batch, units, names = unsettled.pop(at)
        base = next_offset
        if not error:
            for name, unit in zip(names, units, strict=True):
                offsets[name] = next_offset
                next_offset += len(unit.records)
        all_of.telling.settle(batch, error, base if not error else -1)

    for _ in range(40):
        step = rng.random()
        if step < 0.4:
            write()
        elif step < 0.6 and unsettled:
            settle(0, ErrorCode.NONE)
        elif step < 0.7 and unsettled:
            settle(rng.randrange(len(unsettled)), ErrorCode.MESSAGE_TOO_LARGE)
        elif step < 0.75:
            all_of.telling.tell_settled()
        else:
            all_of.next_turn()
    all_of.all_turns()  # Whoever is told here may write, also if nothing was unsettled before.
    while unsettled:
        settle(0, ErrorCode.NONE)
        all_of.all_turns()
    assert all_of.names == written
    assert dict(all_of.stored) == offsets
    assert [name for name, _ in all_of.stored] == sorted(offsets)
    assert len(all_of.freed) == len(written)
