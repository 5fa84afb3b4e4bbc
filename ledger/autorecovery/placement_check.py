"""Whether a ledger's copies are on enough racks (RackawareEnsemblePlacementPolicy.java's
isEnsembleAdheringToPlacementPolicy). Pure."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from ledger.fragments import schedule_of
from ledger.placement.policy import DEFAULT_LOCATION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ledger.bookie_client import BookieId
    from ledger.distribution import Schedule
    from wire.bookkeeper.ledger_metadata import LedgerMetadata


class Adherence(Enum):
    STRICT = auto()
    #: As far as there are racks: on fewer than wanted, and no more are known.
    SOFT = auto()
    FAIL = auto()


def adherence(
    metadata: LedgerMetadata, locations: Mapping[BookieId, str], min_racks: int
) -> Adherence:
    """The worst of the ledger's write quorums. `locations`: of all bookies that are known; one that
    is not is in the default rack."""
    wanted = min(min_racks, metadata.write_quorum_size)
    known_racks = len(set(locations.values()))
    worst = Adherence.STRICT
    schedule = schedule_of(metadata)
    for _, ensemble in metadata.segments:
        for write_set in schedule.write_sets:
            racks = {locations.get(ensemble[index], DEFAULT_LOCATION) for index in write_set}
            if len(racks) >= wanted:
                continue
            if len(racks) < min(wanted, known_racks):
                return Adherence.FAIL
            worst = Adherence.SOFT
    return worst


def _racks(
    ensemble: Sequence[BookieId], write_set: Sequence[int], locations: Mapping[BookieId, str]
) -> list[str]:
    return [locations.get(ensemble[index], DEFAULT_LOCATION) for index in write_set]


def spread_of(
    ensemble: Sequence[BookieId],
    schedule: Schedule,
    locations: Mapping[BookieId, str],
    min_racks: int,
) -> int:
    """The racks that count, of all write sets together: a move that does not raise it is none."""
    wanted = min(min_racks, schedule.write_quorum_size)
    return sum(
        min(wanted, len(set(_racks(ensemble, write_set, locations))))
        for write_set in schedule.write_sets
    )


def crowded(
    ensemble: Sequence[BookieId],
    schedule: Schedule,
    locations: Mapping[BookieId, str],
    min_racks: int,
) -> list[BookieId]:
    """Whose place another bookie could better have: those of a write set on too few racks who are
    not alone in theirs. None if all is as good as there are racks for."""
    wanted = min(min_racks, schedule.write_quorum_size, len(set(locations.values())))
    found: dict[BookieId, None] = {}
    for write_set in schedule.write_sets:
        racks = _racks(ensemble, write_set, locations)
        if len(set(racks)) >= wanted:
            continue
        for index, rack in zip(write_set, racks, strict=True):
            if racks.count(rack) > 1:
                found[ensemble[index]] = None
    return list(found)
