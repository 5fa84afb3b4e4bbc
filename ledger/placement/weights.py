"""Chance by weight: bookies with more free space are chosen more often, within limits
(WeightedRandomSelectionImpl.java)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ledger.bookie_client import BookieId
    from ledger.placement.policy import Candidate
    from runtime.env import Rng


def weights_of(candidates: Sequence[Candidate], max_multiple: int) -> dict[BookieId, int]:
    """Free bytes, at most `max_multiple` times the median (0: no limit); who told of none counts
    as the smallest. Empty if nobody told: then all are equals."""
    told = sorted(candidate.free_bytes for candidate in candidates if candidate.free_bytes)
    if not told:
        return {}
    limit = max_multiple * _median(told) if max_multiple else told[-1]
    return {
        candidate.bookie: max(1, min(candidate.free_bytes or told[0], limit))
        for candidate in candidates
    }


def _median(ordered: Sequence[int]) -> int:
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) // 2


def pick(options: Sequence[Candidate], weights: Mapping[BookieId, int], rng: Rng) -> Candidate:
    """One of them; all alike if there are no weights."""
    if not weights:
        return options[rng.randrange(len(options))]
    number = rng.randrange(sum(weights[candidate.bookie] for candidate in options))
    for candidate in options:
        number -= weights[candidate.bookie]
        if number < 0:
            return candidate
    raise AssertionError("the weights changed while they were counted")
