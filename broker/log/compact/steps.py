"""The one error of a pass over damaged bytes, and the steps that a pass is made of."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple, TypeAlias, TypeVar


class CompactionError(Exception):
    """The log at `offset` is not what a pass may copy or judge: `why`. The partition becomes
    uncleanable and its ledgers stay as they are; nothing behind damage is ever copied."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"offset {offset}: {why}")
        self.offset = offset
        self.why = why


class Work(NamedTuple):
    """One call that cannot be sliced: a codec over many bytes. `run()` needs nothing else of the
    pass and may be called on another thread; what it gives or raises goes back into the steps.

    `size_bytes` are those that go in or, if that is known, come out.
    """

    size_bytes: int
    run: Callable[[], bytes]


T = TypeVar("T")
#: Yields the units (records, at least 1) that were done since the last yield, or Work whose result
#: the caller sends (or throws) in. Returns what the call is for.
Steps: TypeAlias = Generator["int | Work", "bytes | None", T]


def run_inline(steps: Steps[T]) -> T:
    """All steps at once, Work included: for tests, benchmarks, and where nobody else waits."""
    answer: bytes | None = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result
        answer = step.run() if isinstance(step, Work) else None
