"""The longest step of a task, in the loop's thread's own time: how long nobody else was served."""

import time

import trio


class LongestStep(trio.abc.Instrument):
    """Without what other programs took; with what the garbage collector did."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._start: float | None = None  # nothing of the step in which it is added

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._start = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self._start is not None:
            self.seconds = max(self.seconds, time.thread_time() - self._start)
