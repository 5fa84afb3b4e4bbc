"""What is in flight of a share partition: runs of offsets that have the same state.

From the share partition's start offset to its end, in order and without holes. A run is what was
acquired together; it is cut where an acknowledgement, a fetch or the log's start does not end at
its end. So the cost is that of the runs, and there are never more runs than offsets in flight.

Pure. Owner of the state: the share partition's core.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: States of a record, as they are stored and counted (KIP-932). 3 is another version's «archiving».
AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = 0, 1, 2, 4

_FIRST = attrgetter("first")


class Change:
    """Runs that are to get another state as soon as that is stored; all of them, or none."""

    __slots__ = ("runs",)

    def __init__(self) -> None:
        #: Those that were dropped meanwhile have another `change`, or none.
        self.runs: list[Run] = []


class Run:
    """Offsets `first` to `last`. `member` and `deadline_ms` are those of the lock while it is
    ACQUIRED. While `change` is there, it is to become `target`, and nobody else may touch it."""

    __slots__ = (
        "change", "count", "deadline_ms", "first", "last", "member", "span", "state", "target",
    )  # fmt: skip

    def __init__(self, first: int, last: int, state: int, count: int) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.count = count
        #: Of how many offsets it was once a part: those that a bad record can be hidden among.
        self.span = last - first + 1
        self.member = ""
        self.deadline_ms = 0
        self.change: Change | None = None
        self.target = state

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    @property
    def is_available(self) -> bool:
        return self.state == AVAILABLE and self.change is None

    @property
    def is_complete(self) -> bool:
        """Nobody is given it any more, if what is being stored will have been stored."""
        return self.target in (ACKNOWLEDGED, ARCHIVED)

    def become(self, state: int) -> None:
        """It is nobody's now."""
        self.state = self.target = state
        self.member = ""
        self.deadline_ms = 0
        self.change = None

    def cut(self, offset: int) -> Run:
        """Ends before `offset`; gives the rest."""
        assert self.first < offset <= self.last
        rest = Run(offset, self.last, self.state, self.count)
        rest.span, rest.member, rest.deadline_ms = self.span, self.member, self.deadline_ms
        rest.target, rest.change = self.target, self.change
        if rest.change is not None:
            rest.change.runs.append(rest)
        self.last = offset - 1
        return rest


class Runs:
    """`start` up to, but without, `end`."""

    __slots__ = ("_runs", "end", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.end = start
        self._runs: list[Run] = []

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)

    def __getitem__(self, number: int) -> Run:
        return self._runs[number]

    def find(self, offset: int) -> int:
        """The number of the run that `offset` is in; there is one."""
        assert self.start <= offset < self.end
        return bisect_right(self._runs, offset, key=_FIRST) - 1

    def carve(self, number: int, first: int, last: int) -> int:
        """Cuts a run so that one of its parts is `first` to `last`; the number of that part."""
        run = self._runs[number]
        assert run.first <= first <= last <= run.last
        if first > run.first:
            run = run.cut(first)
            number += 1
            self._runs.insert(number, run)
        if last < run.last:
            self._runs.insert(number + 1, run.cut(last + 1))
        return number

    def append(self, run: Run) -> None:
        assert run.first == self.end
        self._runs.append(run)
        self.end = run.last + 1

    def grow(self, run: Run, last: int) -> None:
        """The last one, by offsets that nobody had."""
        assert run is self._runs[-1]
        run.last = last
        run.span = run.size
        self.end = last + 1

    def begin_at(self, offset: int) -> None:
        """Nothing is in flight, and the log has nothing before `offset`."""
        assert not self._runs
        assert offset >= self.start
        self.start = self.end = offset

    def drop_below(self, offset: int) -> None:
        """The log has nothing before `offset` any more, be it acquired or not."""
        if offset <= self.start:
            return
        kept = []
        if offset < self.end:
            number = self.find(offset)
            run = self._runs[number]
            number = self.carve(number, max(offset, run.first), run.last)
            kept = self._runs[number:]
            del self._runs[number:]
        for run in self._runs:
            run.become(ARCHIVED)
        self._runs = kept
        self.start = offset
        self.end = max(self.end, offset)

    def advance(self) -> bool:
        """Passes over what is done with at the front; whether there was any."""
        runs, count = self._runs, 0
        while count < len(runs):
            run = runs[count]
            if run.change is not None or not run.is_complete:
                break
            count += 1
        if not count:
            return False
        self.start = runs[count - 1].last + 1
        del runs[:count]
        return True
