"""RandomPlacement: bookies as equals (DefaultEnsemblePlacementPolicy.java)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.placement.policy import TooFewBookiesError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ledger.bookie_client import BookieId
    from runtime.env import Rng


class RandomPlacement:
    """A random choice among the bookies that `bookies()` names at that moment."""

    __slots__ = ("_bookies", "_rng")

    def __init__(self, bookies: Callable[[], Sequence[BookieId]], rng: Rng) -> None:
        self._bookies = bookies
        self._rng = rng

    async def new_ensemble(
        self,
        ensemble_size: int,
        write_quorum_size: int,
        ack_quorum_size: int,
        excluded: Collection[BookieId] = (),
    ) -> tuple[BookieId, ...]:
        return tuple(self._choose(ensemble_size, excluded))

    async def replace(
        self,
        ensemble: tuple[BookieId, ...],
        failed_indexes: Collection[int],
        write_quorum_size: int,
        ack_quorum_size: int,
        excluded: Collection[BookieId],
    ) -> tuple[BookieId, ...]:
        chosen = self._choose(len(failed_indexes), {*ensemble, *excluded})
        replaced = list(ensemble)
        for index, bookie in zip(sorted(failed_indexes), chosen, strict=True):
            replaced[index] = bookie
        return tuple(replaced)

    def _choose(self, count: int, excluded: Collection[BookieId]) -> list[BookieId]:
        # Sorted, so that a seed gives the same choice whatever order the bookies were named in.
        candidates = sorted(set(self._bookies()).difference(excluded))
        if len(candidates) < count:
            raise TooFewBookiesError(f"{count} bookies are needed, {len(candidates)} can be chosen")
        for position in range(count):
            other = position + self._rng.randrange(len(candidates) - position)
            candidates[position], candidates[other] = candidates[other], candidates[position]
        return candidates[:count]
