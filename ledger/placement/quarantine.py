"""QuarantinePlacement: another placement, without the bookies that failed lately, while it can do
without them (BookieWatcherImpl.newEnsemble, replaceBookie)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ledger.placement.policy import TooFewBookiesError

if TYPE_CHECKING:
    from collections.abc import Collection

    from ledger.bookie_client import BookieId
    from ledger.health import BookieHealth
    from ledger.placement.policy import Placement


class QuarantinePlacement:
    __slots__ = ("_health", "_placement")

    def __init__(self, placement: Placement, health: BookieHealth) -> None:
        self._placement = placement
        self._health = health

    async def new_ensemble(
        self,
        ensemble_size: int,
        write_quorum_size: int,
        ack_quorum_size: int,
        excluded: Collection[BookieId] = (),
    ) -> tuple[BookieId, ...]:
        sizes = (ensemble_size, write_quorum_size, ack_quorum_size)
        quarantined = self._health.quarantined
        if quarantined:
            try:
                return await self._placement.new_ensemble(*sizes, {*excluded, *quarantined})
            except TooFewBookiesError:
                pass  # better one that may work than none
        return await self._placement.new_ensemble(*sizes, excluded)

    async def replace(
        self,
        ensemble: tuple[BookieId, ...],
        failed_indexes: Collection[int],
        write_quorum_size: int,
        ack_quorum_size: int,
        excluded: Collection[BookieId],
    ) -> tuple[BookieId, ...]:
        """Those at `failed_indexes` are in quarantine from now on."""
        health = self._health
        for index in failed_indexes:
            health.replaced(ensemble[index])
        try:
            return await self._placement.replace(
                ensemble,
                failed_indexes,
                write_quorum_size,
                ack_quorum_size,
                {*excluded, *health.quarantined},
            )
        except TooFewBookiesError:
            return await self._placement.replace(
                ensemble,
                failed_indexes,
                write_quorum_size,
                ack_quorum_size,
                {*excluded, *health.resting},
            )
