"""Calls are made once, in order, and no turn makes more than it has room for."""

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from runtime.spread import Spread
from runtime.turn import SPENT_UNITS, Turn


class Turns(Turn):
    """`next` is one step of `Turn.serve`."""

    def next(self):
        self.spent_units = 0
        for _ in range(len(self._later)):
            self._later.popleft()()
            if self.is_spent:
                break
        return bool(self._later)


def test_what_is_too_much_for_a_turn_comes_in_later_ones():
    turn, called = Turns(), []
    spread = Spread(turn, SPENT_UNITS // 10)
    spread.add(partial(called.append, number) for number in range(25))
    assert called == list(range(11)), "the one that finds the turn not spent yet is the last"
    assert turn.next()
    assert called == list(range(22))
    spread.add([partial(called.append, "late")])
    assert called == list(range(22)), "behind those that wait"
    assert not turn.next()
    assert called == [*range(25), "late"]
    spread.add([partial(called.append, "at once")])
    assert called[-1] == "at once"


@given(
    units_each=st.sampled_from([1, 1000, SPENT_UNITS + 1]),
    groups=st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=20),
)
def test_each_is_called_once_in_order(units_each, groups):
    """Also what is added by one of them: it comes behind all that were there."""
    turn, called, added = Turns(), [], []
    spread = Spread(turn, units_each)

    def call(name, adds):
        called.append(name)
        if adds:
            add(1)

    def add(count, adds=False):
        calls = []
        for _ in range(count):
            calls.append(partial(call, len(added), adds))
            added.append(len(added))
        spread.add(calls)

    for count, adds in groups:
        add(count, adds)
        turn.next()
    while turn.next():
        pass
    assert called == added
