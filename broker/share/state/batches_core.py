"""Stretches of records and the state that each is in: how what is new is put over what is stored.

Of two states of one record the one with more deliveries is the later, and of as many the higher
state: AVAILABLE before ACKNOWLEDGED before ARCHIVED. So it does not matter in which order writes
come, nor how often. What lies below the start offset is done with. Neighbours in the same state
are one batch (Kafka's PersisterStateBatchCombiner).

Batches that are stored are in order and do not overlap, so what is new is put into the stretch that
it touches; the others are neither looked at nor copied one by one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING

from broker.share.ports import StateBatch

if TYPE_CHECKING:
    from collections.abc import Sequence

Batches = tuple[StateBatch, ...]

#: What may be stored; 1, acquired, is its leader's business.
STORED_STATES = frozenset((0, 2, 3, 4))

_first = attrgetter("first_offset")
_last = attrgetter("last_offset")


def are_valid(batches: Sequence[StateBatch]) -> bool:
    """Whether each of them may be stored; they may overlap."""
    return all(
        0 <= first <= last and state in STORED_STATES and count >= 0
        for first, last, state, count in batches
    )


def normal(batches: Sequence[StateBatch], start_offset: int) -> Batches:
    """The same in order, without overlaps, from the start offset on."""
    kept = [
        each if each.first_offset >= start_offset else each._replace(first_offset=start_offset)
        for each in batches
        if each.last_offset >= start_offset
    ]
    kept.sort(key=_first)
    return tuple(_flattened(kept))


def merged(stored: Batches, new: Batches, start_offset: int) -> Batches:
    """What is stored then, from the start offset on. Both are `normal`."""
    if new:
        low = bisect_left(stored, new[0].first_offset - 1, key=_last)
        high = bisect_right(stored, new[-1].last_offset + 1, key=_first)
        stored = (*stored[:low], *_overlay(stored[low:high], new), *stored[high:])
    at = bisect_left(stored, start_offset, key=_last)
    if at:
        stored = stored[at:]
    if stored and stored[0].first_offset < start_offset:
        stored = (stored[0]._replace(first_offset=start_offset), *stored[1:])
    return stored


def _flattened(batches: list[StateBatch]) -> Sequence[StateBatch]:
    """In halves, as all of them may overlap."""
    if len(batches) < 2:
        return batches
    middle = len(batches) // 2
    return _overlay(_flattened(batches[:middle]), _flattened(batches[middle:]))


def _overlay(left: Sequence[StateBatch], right: Sequence[StateBatch]) -> list[StateBatch]:
    """Both are in order and without overlaps."""
    found: list[StateBatch] = []
    lefts, rights = iter(left), iter(right)
    one, other = next(lefts, None), next(rights, None)
    while one is not None and other is not None:
        if one.last_offset < other.first_offset:
            _put(found, one)
            one = next(lefts, None)
        elif other.last_offset < one.first_offset:
            _put(found, other)
            other = next(rights, None)
        elif one.first_offset < other.first_offset:
            _put(found, one._replace(last_offset=other.first_offset - 1))
            one = one._replace(first_offset=other.first_offset)
        elif other.first_offset < one.first_offset:
            _put(found, other._replace(last_offset=one.first_offset - 1))
            other = other._replace(first_offset=one.first_offset)
        else:
            end = min(one.last_offset, other.last_offset)
            later = one if _rank(one) >= _rank(other) else other
            _put(found, later if later.last_offset == end else later._replace(last_offset=end))
            one = (
                next(lefts, None) if one.last_offset == end else one._replace(first_offset=end + 1)
            )
            other = (
                next(rights, None)
                if other.last_offset == end
                else other._replace(first_offset=end + 1)
            )
    for rest, others in ((one, lefts), (other, rights)):
        if rest is not None:
            _put(found, rest)
            for each in others:
                _put(found, each)
    return found


def _rank(batch: StateBatch) -> tuple[int, int]:
    return batch.delivery_count, batch.delivery_state


def _put(found: list[StateBatch], batch: StateBatch) -> None:
    """Behind the others, or as part of the last."""
    if found:
        last = found[-1]
        if last.last_offset + 1 == batch.first_offset and last[2:] == batch[2:]:
            found[-1] = last._replace(last_offset=batch.last_offset)
            return
    found.append(batch)
