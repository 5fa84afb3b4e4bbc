"""Sorting on the loop: what input can make long is sorted in slices and merged as it is walked.

Owner: the event loop's thread. Between two slices others have the loop.
"""

from __future__ import annotations

from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING

from runtime.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

#: Sorted at once: some 0.3 ms.
SORTED_SLICE_COUNT = 2000


async def sort_in_slices(numbers: Collection[int]) -> Iterator[int]:
    """The numbers, ascending. They are copied first: the collection may change meanwhile."""
    copied = list(numbers)
    if len(copied) <= SORTED_SLICE_COUNT:
        copied.sort()
        return iter(copied)
    slices = Slices(SORTED_SLICE_COUNT)
    sorted_slices: list[list[int]] = []
    rest = iter(copied)
    while some := sorted(islice(rest, SORTED_SLICE_COUNT)):
        if slices.due(len(some)):
            await slices.turn()
        sorted_slices.append(some)
    return merge(*sorted_slices)
