"""Placement: which bookies a ledger is written to (features 19, 20, 23, 24)."""

from ledger.placement.policy import Candidate, Placement, TooFewBookiesError
from ledger.placement.random_choice import RandomPlacement
from ledger.placement.spread import SpreadPlacement, SpreadRules

__all__ = [
    "Candidate",
    "Placement",
    "RandomPlacement",
    "SpreadPlacement",
    "SpreadRules",
    "TooFewBookiesError",
]
