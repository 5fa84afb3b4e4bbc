"""The steps that a pass is made of, and the one error of a pass over damaged bytes.

A pass is pure and does not wait; who drives it gives the loop away between its steps:

    steps = copying.keep(batch, header, is_compacted=..., is_range_end=...)
    answer = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as done:
            kept = done.value
            break
        answer = None
        if isinstance(step, Work):
            answer = step.run()  # or on a worker thread, if step.size_bytes is much
        elif slices.due(step):
            await slices.turn()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

#: Records between two yields: 2 µs each, with a hash, a look at the map and a copy.
RECORDS_PER_STEP = 64
#: And their bytes, if keys are long: a hash of so many takes 0.3 ms.
BYTES_PER_STEP = 256 << 10
#: A key that is longer is hashed on a thread.
LONG_KEY_BYTES = 64 << 10
#: Bytes that cost what a record does.
BYTES_PER_UNIT = 2 << 10


class CompactionError(Exception):
    """The log at `offset` is not what a pass may copy or judge: `why`. The partition becomes
    uncleanable and its ledgers stay as they are; nothing behind damage is ever copied."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(f"offset {offset}: {why}")
        self.offset = offset
        self.why = why


class Work(NamedTuple):
    """One call that cannot be sliced: a codec over many bytes. `run()` needs nothing else of the
    pass and may be called on another thread; the caller sends its result into the steps. If it
    raises (CompactionError), the steps are over, too.

    `size_bytes` are those that go in.
    """

    size_bytes: int
    run: Callable[[], bytes]


T = TypeVar("T")
#: Yields the units (records, at least 1) that were done since the last yield, or Work whose result
#: the caller sends in. Returns what the call is for; raises CompactionError.
Steps: TypeAlias = "Generator[int | Work, bytes | None, T]"


def run_inline(steps: Steps[T]) -> T:
    """All steps at once, Work included: for tests and benchmarks, where nobody else waits."""
    answer: bytes | None = None
    while True:
        try:
            step = steps.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result
        answer = step.run() if isinstance(step, Work) else None
