"""Trio's runs that are the same each time."""

import gc

import trio
from trio.testing import MockClock


class VirtualClock:
    """trio's, so that a MockClock moves it."""

    def time_ms(self):
        return 1_700_000_000_000 + int(trio.current_time() * 1000)

    def monotonic(self):
        return trio.current_time()


def run_seeded(main, seed):
    """`trio.run(main)` under virtual time; the same seed, the same order of tasks."""
    scheduling = trio._core._run
    state = scheduling._ALLOW_DETERMINISTIC_SCHEDULING, scheduling._r.getstate()
    scheduling._ALLOW_DETERMINISTIC_SCHEDULING = True
    scheduling._r.seed(seed)
    # When the collector comes depends on what ran before, and it ends generators that nobody holds.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        trio.run(main, clock=MockClock(autojump_threshold=0))
    finally:
        if was_enabled:
            gc.enable()
        scheduling._ALLOW_DETERMINISTIC_SCHEDULING = state[0]
        scheduling._r.setstate(state[1])
