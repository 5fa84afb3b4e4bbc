"""How a pass shares the event loop: its steps (steps.py) in slices, and codecs on a thread.

After each slice everybody else has a turn of the loop. A slice is short, as whoever writes beside
a pass waits for half of one on the way in. Behind a long turn of the others, whose requests wait
for each other anyway, it is a longer one, or passes would get no further. If their turns are not
short, clients are at work, and the pass waits for as long as its slices took, some of them at once:
so a busy broker gives at most about half of its time to passes, and an idle one all of it.

What a slice is is counted, not measured, so that a simulation cuts at the same places; the clock is
asked only whether others were busy, which no virtual time passes for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import trio

from broker.log.compact.steps import Work
from runtime.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.log.compact.steps import Steps
    from runtime.env import Env

T = TypeVar("T")

#: A slice, in records: about 0.1 ms of them.
UNITS_PER_SLICE = 50
#: One behind a turn of everybody else that took LONG_SECONDS: 0.3 ms. A single request takes 0.3
#: to 0.6 with its sync, and is to find short ones.
UNITS_PER_LONG_SLICE = 150
LONG_SECONDS = 0.001
#: What a batch costs beside its records: header, checksum, the steps themselves.
UNITS_PER_BATCH = 5
#: Bytes, as they lie in a batch, that a codec may be given on the loop: 8 KiB may become megabytes.
INLINE_BYTES_MAX = 8 << 10
#: A turn of everybody else that took so long was a busy one. After so many records before such
#: turns the pass waits for so long, which is what as many take. A timer for each slice would be
#: later than it is long.
BUSY_SECONDS = 0.0005
BUSY_UNITS_PER_PAUSE = 600
PAUSE_SECONDS = 0.0015


class Pace:
    def __init__(self, env: Env, check: Callable[[], None]) -> None:
        """`check` raises if the pass is to end; it is called after each slice."""
        self._env = env
        self._check = check
        self._short, self._long = Slices(UNITS_PER_SLICE), Slices(UNITS_PER_LONG_SLICE)
        self._slices = self._short
        #: Since the last pause.
        self._busy_units = 0

    async def drive(self, steps: Steps[T]) -> T:
        """All steps of one batch; what they return. What they raise, and what `check` does."""
        if self._slices.due(UNITS_PER_BATCH):
            await self.give_way()
        answer: bytes | None = None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as done:
                result: T = done.value
                return result
            answer = None
            if isinstance(step, Work):
                if step.size_bytes <= INLINE_BYTES_MAX:
                    answer = step.run()
                else:
                    answer = await self._env.disk.run(step.run)
                    self._check()
            elif self._slices.due(step):
                await self.give_way()

    async def step(self, units: int) -> None:
        """So much was done that is no step of the core's."""
        if self._slices.due(units):
            await self.give_way()

    async def give_way(self) -> None:
        """A turn for everybody else."""
        monotonic = self._env.clock.monotonic
        before = monotonic()
        await trio.lowlevel.checkpoint()
        took = monotonic() - before
        if took > BUSY_SECONDS:
            is_long = self._slices is self._long
            self._busy_units += UNITS_PER_LONG_SLICE if is_long else UNITS_PER_SLICE
        self._slices = self._long if took > LONG_SECONDS else self._short
        if self._busy_units >= BUSY_UNITS_PER_PAUSE:
            self._busy_units = 0
            await trio.sleep(PAUSE_SECONDS)
        self._check()
