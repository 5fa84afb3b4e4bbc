"""What a task is given: everything that it needs to read its part, so that it asks nobody.

Picklable. The ledgers' metadata have their passwords, as BookKeeper's metadata do: whoever sees a
task's description could read the ledgers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.log.transactions.aborted_index import AbortedTransaction
    from pyspark_quire.plan_core import Part


@dataclass(slots=True, frozen=True)
class LedgerFacts:
    """`metadata`: as in the metadata service; `last_entry`: as far as it was confirmed."""

    metadata: bytes
    version: int
    last_entry: int


@dataclass(slots=True, frozen=True)
class Split:
    """Offsets `start` to `end`, the latter excluded, of one partition."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    parts: tuple[Part, ...]
    ledgers: dict[int, LedgerFacts]
    #: Of the bookies of these ledgers.
    addresses: dict[str, tuple[str, int]]
    aborted: tuple[AbortedTransaction, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"
