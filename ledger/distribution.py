"""Which bookies of an ensemble have an entry, and how many must answer (feature 3).

Pure. An entry goes to the Qw bookies that follow `entry_id mod E` in the ensemble
(RoundRobinDistributionSchedule.java). «Covered» follows invariants C: a property holds for enough
bookies when no Qa of a write set could lack it.
"""

from __future__ import annotations


class Schedule:
    """Round-robin over an ensemble. Immutable."""

    __slots__ = (
        "ack_quorum_size",
        "ensemble_size",
        "is_striped",
        "negative_size",
        "write_quorum_size",
        "write_sets",
    )

    def __init__(self, ensemble_size: int, write_quorum_size: int, ack_quorum_size: int) -> None:
        """ValueError unless E >= Qw >= Qa >= 1."""
        if not ensemble_size >= write_quorum_size >= ack_quorum_size >= 1:
            raise ValueError(
                "ensemble, write quorum and ack quorum must fall and be at least 1: "
                f"{ensemble_size}/{write_quorum_size}/{ack_quorum_size}"
            )
        self.ensemble_size = ensemble_size
        self.write_quorum_size = write_quorum_size
        self.ack_quorum_size = ack_quorum_size
        #: So many bookies of a write set without an entry prove that it was never acked.
        self.negative_size = write_quorum_size - ack_quorum_size + 1
        #: Consecutive entries are on different bookies: no bookie has them all.
        self.is_striped = ensemble_size > write_quorum_size
        #: Ensemble indexes by `entry_id % ensemble_size`.
        self.write_sets = tuple(
            tuple((start + step) % ensemble_size for step in range(write_quorum_size))
            for start in range(ensemble_size)
        )

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        return self.write_sets[entry_id % self.ensemble_size]

    def is_covered(self, known_mask: int) -> bool:
        """Whether every write set has fewer than Qa bookies whose bit in `known_mask` is not set
        (RRQuorumCoverageSet.checkCovered)."""
        ack_quorum_size = self.ack_quorum_size
        for write_set in self.write_sets:
            unknown_count = 0
            for index in write_set:
                if not known_mask >> index & 1:
                    unknown_count += 1
            if unknown_count >= ack_quorum_size:
                return False
        return True
