"""Progress of work on ledgers: a bar for a person, and for a log a line every few seconds, with
ledgers and bytes that are done and the ids of those under way or held up."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from quire.tools.progress import progress
from runtime.env import RealClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from quire.tools.progress import Step
    from runtime.env import Clock

TELL_SECONDS = 10.0
#: Ids and reasons that a line names at most.
NAMED_MAX = 5


class ToldProgress:
    def __init__(self, what: str, sizes: Mapping[int, int], step: Step, clock: Clock) -> None:
        self._what = what
        self._sizes = sizes
        self._step = step
        self._clock = clock
        self._copied: dict[int, int] = {}
        self._done_count = 0
        self._done_bytes = 0
        self._tell_at = clock.monotonic() + TELL_SECONDS
        #: Ledger -> why it is not done.
        self.problems: dict[int, str] = {}

    def step(self, ledger_id: int, entries: int, size_bytes: int) -> None:
        """So much more of that ledger was copied."""
        del entries
        self._copied[ledger_id] = self._copied.get(ledger_id, 0) + size_bytes
        self._step(size_bytes)
        self.tell()

    def finish(self, ledger_id: int) -> None:
        """That ledger is done."""
        copied = self._copied.pop(ledger_id, 0)
        self._done_count += 1
        self._done_bytes += self._sizes[ledger_id]
        self._step(max(0, self._sizes[ledger_id] - copied))
        self.tell()

    def tell(self) -> None:
        """A line, if it is time for one and there is no bar."""
        now = self._clock.monotonic()
        if now >= self._tell_at and not sys.stderr.isatty():
            self._tell_at = now + TELL_SECONDS
            click.echo(self.line(), err=True)

    def line(self) -> str:
        done_bytes = self._done_bytes + sum(self._copied.values())
        line = (
            f"{self._what}: {self._done_count} of {len(self._sizes)} ledgers, "
            f"{done_bytes / 1e6:.1f} of {sum(self._sizes.values()) / 1e6:.1f} MB"
        )
        if self._copied:
            line += f"; under way: {', '.join(map(str, list(self._copied)[:NAMED_MAX]))}"
        for ledger_id in list(self.problems)[:NAMED_MAX]:
            line += f"; ledger {ledger_id}: {self.problems[ledger_id]}"
        return line


@contextmanager
def told_progress(
    what: str, sizes: Mapping[int, int], clock: Clock | None = None
) -> Iterator[ToldProgress]:
    """`sizes`: ledger -> bytes that are to be copied, as far as is known."""
    clock = RealClock() if clock is None else clock
    with progress(f"{what} {len(sizes)} ledgers", sum(sizes.values()), clock=clock) as step:
        yield ToldProgress(what, sizes, step, clock)
