"""How long something took of the time in which this process could run at all.

For limits that are what a test is about: a busy machine may leave a process lying for seconds,
and that is no delay of what it was doing.
"""

import threading
import time

_TICK_S = 0.02
#: Of a longer gap between two ticks only so much counts: nothing of this process ran meanwhile.
_GAP_MAX_S = 0.1


class AwakeClock:
    """`with AwakeClock() as clock: ...` and then `clock.seconds`. It ticks on a thread of its own,
    so that a loop that is blocked counts in full."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._last = 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "AwakeClock":
        self._last = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._tick()

    def _run(self) -> None:
        while not self._is_over.wait(_TICK_S):
            self._tick()

    def _tick(self) -> None:
        now = time.monotonic()
        self.seconds += min(now - self._last, _GAP_MAX_S)
        self._last = now
