"""Blocking functions side by side, each in a thread of its own: for command lines, which have no
loop."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")


class Stop:
    """Whether those who run side by side are to end. `is_set` and `wait` may be called by all."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = threading.Event()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Waits for so long, or until it is set; whether it is."""
        return self._event.wait(seconds)


def side_by_side(functions: Sequence[Callable[[Stop], T]]) -> Iterator[T]:
    """Their results, as they end. The first that raises stops the others, and is raised when all
    have ended; so does a caller who goes no further."""
    stop = Stop()
    with ThreadPoolExecutor(max(len(functions), 1)) as pool:
        try:
            futures = [pool.submit(function, stop) for function in functions]
            for future in as_completed(futures):
                yield future.result()
        finally:
            stop.set()
