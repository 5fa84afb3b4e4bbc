"""Coverage: what runs reached, counted from the trace and summed over many runs.

A simulation that no longer reaches its rare paths still says «fine». So what must be reached is
listed here, and `python -m sim --require-coverage` takes a zero for an error.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

from sim.plan import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from broker.log.life.chain import Chain

#: Reached by any few hundred seeds of the default shape, besides every kind of fault.
REQUIRED = (
    "bookie crashes: killed",
    "bookie crashes: power",
    "broker crashes: killed",
    "broker crashes: power",
    "crashes at an effect",
    "clean stops",
    "gave up",
    "partitions",
    "connections reset",
    "sessions lost",
    "stale metadata reads",
    "ensemble changes",
    "recoveries",
    "take-overs",
    "ledger rolls",
    "journal files retired",
    "entry logs begun",
    "journals that became entry logs",
    "checkpoints",
    "compactions",
    "ledgers collected",
    "surplus copies collected",
    "refused read-only",
    "speculative reads",
    "digest mismatches",
    "wrong bookies refused",
    "bits rotten",
    "bookies lost to damage",
    "read errors",
    "crashes at a moment",
    "ledgers repaired",
    "entries repaired",
    "entries judged",
    "records deleted",
    "partitions added",
    "group generations",
    "offsets committed",
    "streams group assignments",
    "streams status MISSING_INTERNAL_TOPICS",
    "standby tasks changed",
    "static members away",
    "members upgraded",
    "rights given",
    "rights taken",
    "brokers whose rights were judged",
    "members downgraded",
    "classic joins of a group of KIP-848's",
    "times looked up",
    "topics deleted",
    "passes",
    "passes ended early",
    "records compacted away",
    "keyed readings",
    "bank: committed",
    "bank: given up",
    "bank: produce INVALID_RECORD",
    "bank: conflicts in a batch",
    "produce NOT_LEADER_OR_FOLLOWER",
    "transactions committed",
    "transactions aborted",
    "transactions of unknown end, committed",
    "transactions: stall, told False",
    "transactional producers that went on",
    "end PRODUCER_FENCED",
    "end INVALID_TXN_STATE",
    "transactional produce INVALID_PRODUCER_EPOCH",
    "ends that came late",
    "batches that came late",
    "offsets of transactions looked at",
    *KINDS,
)


def of_chains(chains: Iterable[Chain]) -> Counter[str]:
    """What the partitions' last documents tell: an epoch for each take-over, and ledgers that
    follow one another within an epoch, which is a roll. What retention took away is not seen."""
    counts: Counter[str] = Counter()
    for chain in chains:
        counts["take-overs"] += max(chain.leader_epoch, 0)
        epochs = [info.leader_epoch for info in chain.ledgers]
        counts["ledger rolls"] += sum(a == b for a, b in pairwise(epochs))
    return counts


class Coverage:
    """Sums over runs."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        #: Runs that reached it at all.
        self.runs: Counter[str] = Counter()
        self.run_count = 0

    def add(self, counts: Mapping[str, int]) -> None:
        self.run_count += 1
        for name, count in counts.items():
            if count:
                self.totals[name] += count
                self.runs[name] += 1

    def missing(self) -> list[str]:
        """What no run reached, and some must."""
        return [name for name in REQUIRED if not self.totals[name]]

    def table(self) -> str:
        """One line for each name: in all, runs that reached it, and `!` for a zero that must not
        be."""
        names = sorted({*self.totals, *REQUIRED})
        width = max(map(len, names))
        lines = [f"{'reached':<{width}} {'in all':>9} {'in runs':>9} of {self.run_count}"]
        for name in names:
            mark = " !" if name in REQUIRED and not self.totals[name] else ""
            lines.append(f"{name:<{width}} {self.totals[name]:9} {self.runs[name]:9}{mark}")
        return "\n".join(lines) + "\n"
