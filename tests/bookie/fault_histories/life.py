"""One life of a bookie: its start, whatever happens while it serves, and its end."""

import trio

from bookie.bookie import Bookie
from bookie.errors import BookieStartError
from runtime.disk import is_full
from runtime.env import Env
from runtime.sim_disk_life import DiskLife
from runtime.turn import Turn
from tests.bookie.fault_histories.judge import BrokenPromiseError, check_entries, check_ledgers
from tests.seeded import VirtualClock

#: Of virtual time: nothing here takes as long, unless it waits for what never comes.
PATIENCE_SECONDS = 300


class Life:
    """Is its bookie's task status, too: a start that ends before is no error of the harness."""

    def __init__(self, machine, known, metadata):
        self._machine = machine
        self._known = known
        self._turn = Turn()
        env = Env(
            clock=VirtualClock(),
            rng=machine.rng,
            net=None,
            disk=DiskLife(machine.disk),
            turn=self._turn,
        )
        self.bookie = Bookie(machine.config, env, index=machine.index, known_ledgers=metadata)
        self.is_serving = False
        self._scope = trio.CancelScope()
        self._settled = trio.Event()
        self._ended = trio.Event()

    async def start(self, nursery):
        """Whether the bookie serves."""
        self._known.note("start")
        nursery.start_soon(self._turn.serve)
        nursery.start_soon(self._run)
        await self._wait_for(self._settled, "start")
        return self.is_serving

    def started(self, value=None):
        self.is_serving = True
        self._settled.set()

    async def check(self):
        """What is to hold after every start."""
        await check_entries(self.bookie, self._known, self._machine)
        if not self._machine.crashed:
            check_ledgers(self.bookie, self._known)

    async def stop(self):
        """A clean one, which ends; it may be cut short by a crash that was to come anyway."""
        self._known.note("clean stop")
        self._scope.cancel()
        await self._wait_for(self._ended, "clean stop")

    async def crash(self):
        """Here, if the disk did not end the life before."""
        if not self._machine.crashed:
            self._machine.crash()
        self._known.note("crash:", self._machine.crashed)
        self.bookie.crash()
        await self._wait_for(self._ended, "crash")

    async def _run(self):
        try:
            with self._scope:
                await self.bookie.run(task_status=self)
        except Exception as error:
            if not self._may_end_by(error):
                raise
            self._known.note("ended by", repr(error))
        finally:
            self._settled.set()
            self._ended.set()

    def _may_end_by(self, error):
        """Nothing else is allowed: no error of an operation that found no space ends a bookie that
        serves, and no start is refused for what an earlier life left."""
        if self._machine.crashed:
            # All that the bookie does fails from then on, and it ends by the first that it sees.
            return not isinstance(error, AssertionError)
        if self.is_serving:
            return False
        # A start needs some space, and here it may find none, or none at its next operations.
        if isinstance(error, BookieStartError):
            return "no space" in str(error) or "the disk is full" in str(error)
        return isinstance(error, OSError) and is_full(error)

    async def _wait_for(self, event, what):
        with trio.move_on_after(PATIENCE_SECONDS):
            await event.wait()
            return
        self.bookie.crash()  # or its stop would be waited for, too
        raise BrokenPromiseError(f"the {what} does not end")


async def live(machine, known, metadata, make_steps, *, step_count, is_clean):
    """A life of so many steps; it may be shorter. `make_steps(bookie, nursery)`."""
    life = Life(machine, known, metadata)
    async with trio.open_nursery() as nursery:
        if await life.start(nursery):
            await life.check()
            steps = make_steps(life.bookie, nursery)
            for _ in range(step_count):
                if machine.crashed:
                    break
                if not life.bookie.is_running:
                    raise BrokenPromiseError(f"it ended by itself: {life.bookie._failure!r}")
                await steps.make_one()
        if is_clean and life.is_serving and not machine.crashed:
            if machine.rng.random() < 0.3:
                machine.crash_after(machine.rng.choice([1, 3, 10, 30, 100]))
            await life.stop()
            known.note("crash:", machine.crashed or "none")
        else:
            await life.crash()
        nursery.cancel_scope.cancel()


async def live_in_peace(machine, known, metadata):
    """A life without faults: it starts, checkpoints, and has all that was promised."""
    life = Life(machine, known, metadata)
    async with trio.open_nursery() as nursery:
        if not await life.start(nursery):
            raise BrokenPromiseError("there is space, and the bookie does not start")
        await life.check()
        await life.bookie.flush()
        await life.check()
        if life.bookie.is_read_only:
            raise BrokenPromiseError("there is space, and the bookie is read-only")
        await life.stop()
        nursery.cancel_scope.cancel()
