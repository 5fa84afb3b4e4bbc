"""SpreadPlacement: ensembles over racks and regions, by free space (feature 20).

The meaning of RackawareEnsemblePlacementPolicy and RegionAwareEnsemblePlacementPolicy: each write
quorum is on at least so many racks, and regions; where that cannot be, and is not enforced, the
best that can be had is taken. For every place in the ensemble the bookies are preferred whose
region and rack its neighbours in a write quorum do not have; among equals chance decides, by weight
if wanted. A choice that leaves no way for the places behind it is taken back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.placement.policy import Candidate, TooFewBookiesError
from ledger.placement.weights import pick, weights_of
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ledger.bookie_client import BookieId
    from runtime.env import Rng

#: Tries of a place before a search gives up; ensembles are small.
STEPS_MAX = 5_000


@dataclass(slots=True, frozen=True)
class SpreadRules:
    """With BookKeeper's names of options (ClientConfiguration.java)."""

    #: minNumRacksPerWriteQuorum, enforceMinNumRacksPerWriteQuorum
    min_racks: int = 2
    enforce_racks: bool = False
    #: reppMinimumRegionsForDurability: so many regions have each acked entry. 1: regions do not
    #: matter (RackawareEnsemblePlacementPolicy). Enforced while there are two regions or more.
    min_regions: int = 1
    #: reppRegionsToWrite: only there; empty: everywhere.
    regions: tuple[str, ...] = ()
    #: diskWeightBasedPlacementEnabled, and bookieMaxWeightMultipleForWeightBasedPlacement: nobody
    #: weighs more than so many times the median; 0: no limit.
    is_weighted: bool = False
    max_weight_multiple: int = 3

    def __post_init__(self) -> None:
        for name in ("min_racks", "min_regions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, is {getattr(self, name)}")
        if self.max_weight_multiple < 0:
            raise ValueError(f"max_weight_multiple is {self.max_weight_multiple}, below 0")


class SpreadPlacement:
    """`candidates()`: the bookies that are known at that moment, writable or not."""

    __slots__ = ("_candidates", "_rng", "_rules")

    def __init__(
        self,
        candidates: Callable[[], Sequence[Candidate]],
        rng: Rng,
        rules: SpreadRules | None = None,
    ) -> None:
        self._candidates = candidates
        self._rng = rng
        self._rules = rules if rules is not None else SpreadRules()

    async def new_ensemble(
        self,
        ensemble_size: int,
        write_quorum_size: int,
        ack_quorum_size: int,
        excluded: Collection[BookieId] = (),
    ) -> tuple[BookieId, ...]:
        self._check_quorums(write_quorum_size, ack_quorum_size)
        places: list[Candidate | None] = [None] * ensemble_size
        return self._choose(places, write_quorum_size, excluded)

    async def replace(
        self,
        ensemble: tuple[BookieId, ...],
        failed_indexes: Collection[int],
        write_quorum_size: int,
        ack_quorum_size: int,
        excluded: Collection[BookieId],
    ) -> tuple[BookieId, ...]:
        known = {candidate.bookie: candidate for candidate in self._candidates()}
        places = [
            None if index in failed_indexes else known.get(bookie, Candidate(bookie))
            for index, bookie in enumerate(ensemble)
        ]
        return self._choose(places, write_quorum_size, {*ensemble, *excluded})

    def _check_quorums(self, write_quorum_size: int, ack_quorum_size: int) -> None:
        """An entry that is acked must be in `min_regions` regions, whichever bookies acked it
        (the conditions are RegionAwareEnsemblePlacementPolicy.newEnsemble's)."""
        regions = self._rules.min_regions
        if regions > 1 and (
            ack_quorum_size < regions
            or ack_quorum_size <= write_quorum_size - write_quorum_size // regions
        ):
            raise TooFewBookiesError(
                f"an ack quorum of {ack_quorum_size} of {write_quorum_size} does not reach "
                f"{regions} regions"
            )

    def _choose(
        self,
        places: list[Candidate | None],
        write_quorum_size: int,
        excluded: Collection[BookieId],
    ) -> tuple[BookieId, ...]:
        rules = self._rules
        known = [
            candidate
            for candidate in self._candidates()
            if candidate.is_writable and (not rules.regions or candidate.region in rules.regions)
        ]
        candidates = sorted(
            (candidate for candidate in known if candidate.bookie not in excluded),
            key=lambda candidate: candidate.bookie,
        )
        # With one region there is nothing to choose, as BookKeeper has it.
        is_one_region = len({candidate.region for candidate in known}) == 1
        wanted = places.count(None)
        if len(candidates) < wanted:
            raise TooFewBookiesError(
                f"{wanted} bookies are needed, {len(candidates)} can be chosen"
            )
        for is_racks_enforced in (True, False) if not rules.enforce_racks else (True,):
            search = _Search(
                list(places),
                candidates,
                write_quorum_size,
                rules,
                self._rng,
                is_racks_enforced,
                is_one_region,
            )
            if search.fill():
                return tuple(place.bookie for place in search.places if place is not None)
        racks = len({candidate.location for candidate in candidates})
        regions = len({candidate.region for candidate in candidates})
        raise TooFewBookiesError(
            f"{len(candidates)} bookies on {racks} racks in {regions} regions can be chosen, and "
            f"every write quorum of {write_quorum_size} has to be on {rules.min_racks} racks "
            f"and in {rules.min_regions} regions"
        )


class _Search:
    """Fills `places`; those that are taken already stay."""

    def __init__(
        self,
        places: list[Candidate | None],
        candidates: list[Candidate],
        write_quorum_size: int,
        rules: SpreadRules,
        rng: Rng,
        is_racks_enforced: bool,
        is_one_region: bool,
    ) -> None:
        self.places = places
        self._left = candidates
        self._open = [index for index, place in enumerate(places) if place is None]
        self._rng = rng
        multiple = rules.max_weight_multiple
        self._weights = weights_of(candidates, multiple) if rules.is_weighted else {}
        self._racks = min(rules.min_racks, write_quorum_size) if is_racks_enforced else 1
        self._regions = 1 if is_one_region else min(rules.min_regions, write_quorum_size)
        self._is_regional = rules.min_regions > 1
        self._steps = 0
        size = len(places)
        # The write quorums; with E = Qw they are one.
        starts = range(size) if size > write_quorum_size else range(1)
        self._windows = [
            [(start + step) % size for step in range(write_quorum_size)] for start in starts
        ]
        self._windows_of = [[w for w in self._windows if index in w] for index in range(size)]

    def fill(self) -> bool:
        return self._fill_from(0)

    def _fill_from(self, position: int) -> bool:
        if position == len(self._open):
            return True
        index = self._open[position]
        barred: set[str] = set()
        while self._steps < STEPS_MAX:
            self._steps += 1
            chosen = self._pick(index, barred)
            if chosen is None:
                return False
            self.places[index] = chosen
            self._left.remove(chosen)
            if self._is_possible(index) and self._fill_from(position + 1):
                return True
            self.places[index] = None
            self._left.append(chosen)
            # All bookies of a place are the same to the rules.
            barred.add(chosen.location)
        return False

    def _pick(self, index: int, barred: set[str]) -> Candidate | None:
        options = [candidate for candidate in self._left if candidate.location not in barred]
        if not options:
            return None
        scores = {candidate.location: self._score(index, candidate) for candidate in options}
        best = min(scores.values())
        options = [candidate for candidate in options if scores[candidate.location] == best]
        return pick(options, self._weights, self._rng)

    def _score(self, index: int, candidate: Candidate) -> tuple[int, int, int]:
        """How much of it is there already; less is better."""
        neighbours = {other for window in self._windows_of[index] for other in window} - {index}
        near = [place for other in neighbours if (place := self.places[other]) is not None]
        same_rack = sum(place.location == candidate.location for place in near)
        if not self._is_regional:
            return 0, 0, same_rack
        same_region = sum(place.region == candidate.region for place in near)
        in_all = sum(
            place is not None and place.region == candidate.region for place in self.places
        )
        return same_region, in_all, same_rack

    def _is_possible(self, index: int) -> bool:
        """Whether the write quorums of that place can still be spread as they must."""
        for window in self._windows_of[index]:
            taken = [place for other in window if (place := self.places[other]) is not None]
            free = len(window) - len(taken)
            if len({place.location for place in taken}) + free < self._racks:
                return False
            if len({place.region for place in taken}) + free < self._regions:
                return False
        return True
