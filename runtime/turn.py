"""Turn: work that is put off to the end of the present burst of input, and done once.

One burst of input (all that the sockets held when the loop looked) may add hundreds of records to
one partition. Whoever wants to do something once for all of them, such as cutting entries, writing
the journal, or sending replies, calls `defer(function)` when the first of them arrives; the
function runs at the end of the burst, after every request of it was decoded and queued. Functions
deferred while the turn runs (a partition's flush makes the journal dirty) run in the same turn, in
the order they were deferred.

What may hold the loop up for a while (a sync that is made inline) calls `defer_last`, and runs when
nothing else is left to do: answers to those who asked for something else leave before it.

The network driver calls `run()` after each burst. Work deferred outside of a burst (by a timer, a
background task) is run by the task `Turn.serve`, which costs one task switch.

A burst in which enough was done is *spent* (`is_spent`): whoever has more of the same to do puts it
off with `later`, to a step of `Turn.serve`, and everybody else comes in between. What was done is
counted (`spent_units`), not measured: on a busy machine what waits comes together in large bursts,
and cutting those up would cost most when there is least to spare.

Owner: the event loop's thread. Nothing here may block or await.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from runtime.loop_watch import LoopWatch

Deferred = Callable[[], None]

#: A burst, or a step of `serve`, is spent after so much work, in units of about a microsecond.
SPENT_UNITS = 5_000
#: Who has long answers waits while so many bytes of others wait for their turn to be sent.
BEHIND_BYTES = 4 << 20


def _no_time() -> float:
    return 0.0


class Turn:
    __slots__ = (
        "_in_burst", "_last", "_later", "_queue", "_wake", "number", "spent_units", "unsent_bytes",
        "watch",
    )  # fmt: skip

    def __init__(self) -> None:
        self._queue: deque[Deferred] = deque()
        self._last: deque[Deferred] = deque()
        self._in_burst = False
        self._wake: trio.Event | None = None
        self._later: deque[Deferred] = deque()
        #: Of this burst, or step of `serve`: by it is known that it is another one.
        self.number = 0
        #: Who handles requests adds what each costs; others do not come near the limit.
        self.spent_units = 0
        #: What peers would take, and the driver sends in later turns; it adds and takes away.
        self.unsent_bytes = 0
        #: Told of what is done in a burst. Where a Poller runs, its run's (runtime/loop_watch.py);
        #: else, as in the simulation, one for which no time passes.
        self.watch = LoopWatch(_no_time)

    def defer(self, function: Deferred) -> None:
        """Runs `function()` once, at the end of this burst. The caller sees to it that it defers
        itself only once (a dirty flag); the turn does not compare."""
        self._queue.append(function)
        if not self._in_burst and self._wake is not None:
            self._wake.set()

    def defer_last(self, function: Deferred) -> None:
        """As `defer`, but behind all that was and will be deferred in this turn."""
        self._last.append(function)
        if not self._in_burst and self._wake is not None:
            self._wake.set()

    def later(self, function: Deferred) -> None:
        """Runs `function()` once, soon, but not in this turn."""
        self._later.append(function)
        if self._wake is not None:
            self._wake.set()

    @property
    def is_spent(self) -> bool:
        """Whether enough was done in this burst."""
        return self.spent_units > SPENT_UNITS

    @property
    def is_behind(self) -> bool:
        """Whether so much waits to be sent that long answers are not to be made."""
        return self.unsent_bytes > BEHIND_BYTES

    def begin(self) -> None:
        """A burst of input starts: what is deferred now waits for `run`."""
        self._in_burst = True
        self.number += 1
        self.spent_units = 0

    def run(self) -> None:
        """Ends the burst: runs all that was deferred, and what that defers in turn.

        An exception is a broken invariant: it is not caught, and the rest of the queue stays."""
        queue, last, did = self._queue, self._last, self.watch.did
        while queue or last:
            function = (queue or last).popleft()
            function()
            did(function)
        self._in_burst = False

    async def serve(self) -> None:
        """Runs what is deferred outside of bursts; never returns. One per Turn."""
        later = self._later
        while True:
            self._wake = trio.Event()
            if not self._queue and not self._last and not later:
                await self._wake.wait()
            else:
                await trio.lowlevel.checkpoint()
            self.number += 1
            self.spent_units = 0
            for _ in range(len(later)):
                function = later.popleft()
                function()
                self.watch.did(function)
                if self.is_spent:
                    break
            self.run()


class Gathered:
    """Functions of many of a kind (the flushes of all partitions, say), as one deferred call: what
    each costs the turn beside itself is an element of a list."""

    __slots__ = ("_functions", "_turn")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._functions: list[Deferred] = []

    def defer(self, function: Deferred) -> None:
        """As the turn's, in order with all that came to this one."""
        functions = self._functions
        functions.append(function)
        if len(functions) == 1:
            self._turn.defer(self._run)

    def _run(self) -> None:
        functions, self._functions = self._functions, []
        for function in functions:
            function()
