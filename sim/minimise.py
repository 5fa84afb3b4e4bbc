"""A smaller case that still fails: fewer faults, fewer steps, fewer clients, fewer nodes.

Delta debugging over the plan's list, then each number of the shape as small as it goes, then the
list once more. A fault that is left out changes nothing of the others (sim/faults.py), though of
course all that follows from it. So a smaller case may fail otherwise; what counts is that it fails
with the same outcome.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from sim.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from sim.case import Case
    from sim.runner import Outcome

RUNS_MAX = 300
#: Numbers of the shape that cannot be 0.
LEAST = {"bookies": 3, "brokers": 1, "partitions": 1}


class _Search:
    def __init__(self, case: Case, outcome: Outcome, say: Callable[[str], None]) -> None:
        self.case = case
        self._outcome = outcome
        self._say = say
        self._left = RUNS_MAX

    def try_case(self, case: Case) -> bool:
        """Keeps it if it fails as it should."""
        if not self._left:
            return False
        self._left -= 1
        if case.run().outcome is not self._outcome:
            return False
        self.case = case
        self._say(case.command)
        return True

    def faults(self) -> None:
        """Until no single fault can be left out."""
        size = max(len(self.case.plan) // 2, 1)
        while self._left:
            numbers = tuple(fault.number for fault in self.case.plan)
            start = 0
            was_smaller = False
            while start < len(numbers):
                part = numbers[:start] + numbers[start + size :]
                if self.try_case(replace(self.case, only=part)):
                    numbers, was_smaller = part, True
                else:
                    start += size
            if size == 1 and not was_smaller:
                return
            size = max(size // 2, 1)

    def shape(self) -> bool:
        """Whether anything became smaller."""
        was_smaller = False
        # Who is there is named after how large the world is.
        for field in reversed(fields(Shape)):
            least = LEAST.get(field.name, 0)
            value = getattr(self.case.full_shape, field.name)
            while value > least:
                value -= 1
                shape = {**dict(self.case.shape), field.name: value}
                if not self.try_case(replace(self.case, shape=tuple(shape.items()))):
                    break
                was_smaller = True
        return was_smaller

    def steps(self) -> None:
        """No more are drawn than the last that is kept."""
        only = self.case.only
        if only:
            last = max(only) + 1
            # Of a plan that is drawn one by one the beginning is the same.
            kept = None if only == tuple(range(last)) else only
            self.try_case(replace(self.case, steps=last, only=kept))


def minimise(
    case: Case, outcome: Outcome, *, say: Callable[[str], None] = lambda _words: None
) -> Case:
    """A case from which no single fault can be left out and of whose shape nothing can be less,
    unless RUNS_MAX runs were not enough. The case fails as `outcome` says. `say` hears the command
    of each smaller one."""
    search = _Search(case, outcome, say)
    search.faults()
    if search.shape():
        search.faults()
    search.steps()
    return search.case
