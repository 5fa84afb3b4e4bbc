"""A progress bar for work that a person waits for: replay, rebuild, scrub, compaction by hand.

It appears on stderr, only if that is a terminal, and only after two seconds: what is quick, and
what a script runs, shows nothing. It is drawn by the calls of `step` themselves, at most ten times
a second and without a thread, so work that takes no step for long shows none either.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from runtime.env import RealClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from rich.progress import Progress

    from runtime.env import Clock

SHOW_AFTER_SECONDS = 2.0
REDRAW_INTERVAL_SECONDS = 0.1


class Step(Protocol):
    """Says that `count` more of the total is done: bytes, or whatever the total counts."""

    def __call__(self, count: int, /) -> None: ...


class _Bar:
    __slots__ = (
        "_bytes",
        "_clock",
        "_description",
        "_done",
        "_next_at",
        "_progress",
        "_stream",
        "_total",
    )

    def __init__(
        self, description: str, total: int | None, stream: TextIO, clock: Clock, is_bytes: bool
    ) -> None:
        self._description = description
        self._total = total
        self._stream = stream
        self._clock = clock
        self._bytes = is_bytes
        self._done = 0
        self._progress: Progress | None = None
        self._next_at = clock.monotonic() + SHOW_AFTER_SECONDS

    def step(self, count: int, /) -> None:
        self._done += count
        now = self._clock.monotonic()
        if now < self._next_at:
            return
        self._next_at = now + REDRAW_INTERVAL_SECONDS
        if self._progress is None:
            self._progress = self._start()
        self._progress.update(self._progress.task_ids[0], completed=self._done, refresh=True)

    def _start(self) -> Progress:
        from rich.console import Console  # of no use to most commands, and slow to import
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            ProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as RichProgress

        amount: ProgressColumn = DownloadColumn() if self._bytes else MofNCompleteColumn()
        progress = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            amount,
            TimeRemainingColumn(),
            console=Console(file=self._stream),
            transient=True,
            auto_refresh=False,
        )
        progress.add_task(self._description, total=self._total)
        progress.start()
        return progress

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()


def _no_step(count: int, /) -> None:
    return


@contextmanager
def progress(
    description: str,
    total: int | None,
    *,
    is_bytes: bool = True,
    enabled: bool = True,
    stream: TextIO | None = None,
    clock: Clock | None = None,
) -> Iterator[Step]:
    """`with progress("replay", total_bytes) as step: ... step(n)`.

    `total` None: not known. `is_bytes` False: it counts things. `enabled` False where the bar
    would get in the way of the output, as when that goes to the same terminal."""
    stream = sys.stderr if stream is None else stream
    if not enabled or not stream.isatty():
        yield _no_step
        return
    bar = _Bar(description, total, stream, RealClock() if clock is None else clock, is_bytes)
    try:
        yield bar.step
    finally:
        bar.close()
