"""Which transactions are open at the end of a log: its last stable offset. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.log.life.ledger_info import LedgerInfo


def last_sealed(ledgers: Sequence[LedgerInfo]) -> int:
    """Number of the last ledger that ends with a snapshot of the producers, which tells what was
    open there; -1 if none does. What is behind it has to be read."""
    for number in range(len(ledgers) - 1, -1, -1):
        info = ledgers[number]
        if not info.is_open and info.index_entry is not None and info.snapshot_entry is not None:
            return number
    return -1


def stable_end(end_offset: int, log_start_offset: int, open_transactions: dict[int, int]) -> int:
    """`open_transactions`: by producer, the first offset of its open one, which may be before the
    log's start."""
    return max(min([end_offset, *open_transactions.values()]), log_start_offset)


def undecided(open_transactions: Mapping[int, int], end_offset: int) -> bool:
    """Whether one of them began before `end_offset`."""
    return any(first < end_offset for first in open_transactions.values())
