"""One seed, run and judged.

Determinism: trio wakes the tasks of one moment in an order of its own choosing, from a generator
that is seeded here; no thread runs, no socket is open, the clock is virtual. What is left is the
order of sets and the address of objects, which must not matter; tests compare the hashes of runs in
several processes with several PYTHONHASHSEEDs.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import trio

from metadata.faulty import StoreFaults
from sim.clock import StuckError, VirtualClock
from sim.course import Course, LivenessError
from sim.coverage import of_chains
from sim.history import Violation
from sim.plan import draw_kinds, draw_plan
from sim.shape import Shape, draw_shape
from sim.trace import LogLines, Trace
from sim.world import CrashError, World, leaves, origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TextIO

    from sim.clock import VirtualTimers
    from sim.plan import Fault

#: A run that is still not over after so long never will be.
VIRTUAL_SECONDS_MAX = 600


class Outcome(IntEnum):
    """Also the exit code of `python -m sim`."""

    FINE = 0
    CRASH = 3
    LIVENESS = 4
    CORRECTNESS = 5


@dataclass(slots=True)
class Result:
    seed: int
    outcome: Outcome
    digest: str
    events: int
    #: Of the processor: what the machine did meanwhile for others is not in it.
    cpu_seconds: float
    virtual_seconds: float
    error: BaseException | None = None
    #: What the error says, and where it was raised.
    story: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    recent: list[str] = field(default_factory=list)


@contextmanager
def _deterministic(seed: int, timers: VirtualTimers) -> Iterator[None]:
    core: Any = trio._core._run
    before = core._ALLOW_DETERMINISTIC_SCHEDULING, core._r.getstate()
    core._ALLOW_DETERMINISTIC_SCHEDULING = True
    core._r.seed(seed)
    sleep = trio.sleep
    trio.sleep = timers.sleep
    # When the collector comes depends on what ran before; it ends what nobody holds any more (an
    # abandoned generator, a member of a weak set), and that would be an event of its own.
    gc_was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc_was_enabled:
            gc.enable()
        trio.sleep = sleep
        core._ALLOW_DETERMINISTIC_SCHEDULING = before[0]
        core._r.setstate(before[1])


@contextmanager
def _logging(trace: Trace, file: TextIO | None) -> Iterator[None]:
    root = logging.getLogger()
    if file is None:
        before = root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)
        return
    handler, level = LogLines(trace, file), root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def judge(error: BaseException) -> tuple[Outcome, BaseException]:
    """The worst of what a run raised."""
    if isinstance(error, trio.TrioInternalError) and error.__cause__ is not None:
        error = error.__cause__  # the clock's
    found = leaves(error)
    for kind, outcome in (
        (Violation, Outcome.CORRECTNESS),
        (CrashError, Outcome.CRASH),
        (LivenessError, Outcome.LIVENESS),
        (StuckError, Outcome.LIVENESS),
    ):
        for each in found:
            if isinstance(each, kind):
                return outcome, each
    is_late = all(isinstance(each, trio.TooSlowError) for each in found)
    return Outcome.LIVENESS if is_late else Outcome.CRASH, found[0]


def run_seed(
    seed: int,
    *,
    steps: int = 12,
    kinds: tuple[str, ...] | None = None,
    plan: list[Fault] | None = None,
    shape: Shape | None = None,
    file: TextIO | None = None,
) -> Result:
    """`plan`: instead of the one that `steps` and `kinds` (else the seed's) would draw."""
    if plan is None:
        plan = draw_plan(seed, steps, draw_kinds(seed) if kinds is None else kinds)
    trace = Trace(file)
    return run_world(
        World(seed, plan, draw_shape(seed) if shape is None else shape, trace, StoreFaults()), file
    )


def run_world(
    world: World,
    file: TextIO | None = None,
    course: Callable[[World], Course] = Course,
) -> Result:
    """Runs and judges it; `file` gets the log of the code, between the lines of its trace."""
    seed, trace = world.seed, world.trace
    clock = VirtualClock(world.timers)
    outcome, error = Outcome.FINE, None
    start = time.process_time()

    async def main() -> None:
        with trio.fail_after(VIRTUAL_SECONDS_MAX):
            await course(world).run()

    with _deterministic(seed, world.timers), _logging(trace, file):
        try:
            trio.run(main, clock=clock, instruments=[clock])
        except Exception as raised:  # whatever it is, it is this seed's result
            outcome, error = judge(raised)
            if file is not None:
                file.write(f"{type(error).__name__}: {error}\n")
    result = Result(
        seed,
        outcome,
        trace.digest,
        trace.event_count,
        time.process_time() - start,
        clock.current_time(),
        error,
        "" if error is None else origin(error),
        trace.counts,
        list(trace.recent),
    )
    result.counts.update(of_chains(world.history.chains.values()))
    gc.collect()  # what a run leaves must not be finalised within the next one
    return result
