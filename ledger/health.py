"""BookieHealth: which bookies failed lately, as one client saw it. Pure; `now` in seconds.

- A bookie that a writer had to replace, or that failed `bookie_error_threshold` times within
  `bookie_error_interval_ms`, is in quarantine for `bookie_quarantine_ms`: ensembles go without it
  as long as others are there (bookieErrorThresholdPerInterval, bookieHealthCheckIntervalSeconds,
  bookieQuarantineTimeSeconds; BookieWatcherImpl.java).
- For `bookie_rest_ms` after its last failure it does not replace others either, else writers could
  go round among broken bookies.
- Reads go to others first for `bookie_rest_ms`.

A bookie that registers anew (`came`) has a clean record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ledger.bookie_client import BookieId
    from ledger.config import LedgerClientConfig


@dataclass(slots=True)
class _Record:
    failed_at: float
    interval_start: float
    error_count: int = 0
    quarantined_until: float = 0.0


class BookieHealth:
    """Has records of bookies that failed only: with none, every question costs one look."""

    __slots__ = ("_config", "_now", "_records")

    def __init__(self, config: LedgerClientConfig, now: Callable[[], float]) -> None:
        self._config = config
        self._now = now
        self._records: dict[BookieId, _Record] = {}

    def erred(self, bookie: BookieId) -> None:
        """It failed, or did not answer in time; nothing was done about it."""
        config, now = self._config, self._now()
        record = self._record(bookie, now)
        if now - record.interval_start > config.bookie_error_interval_ms / 1000:
            record.interval_start, record.error_count = now, 0
        record.error_count += 1
        if record.error_count >= config.bookie_error_threshold:
            record.quarantined_until = now + config.bookie_quarantine_ms / 1000

    def replaced(self, bookie: BookieId) -> None:
        """A writer could not go on with it."""
        now = self._now()
        record = self._record(bookie, now)
        record.quarantined_until = now + self._config.bookie_quarantine_ms / 1000

    def _record(self, bookie: BookieId, now: float) -> _Record:
        record = self._records.get(bookie)
        if record is None:
            record = self._records[bookie] = _Record(now, now)
        record.failed_at = now
        return record

    def came(self, bookie: BookieId) -> None:
        """It has registered anew."""
        self._records.pop(bookie, None)

    @property
    def quarantined(self) -> frozenset[BookieId]:
        now = self._now()
        return frozenset(
            bookie for bookie, record in self._records.items() if now < record.quarantined_until
        )

    @property
    def resting(self) -> frozenset[BookieId]:
        """Those whose last failure is only just over. Old records are dropped."""
        now, rest = self._now(), self._config.bookie_rest_ms / 1000
        interval = self._config.bookie_error_interval_ms / 1000
        for bookie, record in list(self._records.items()):
            if now >= max(record.quarantined_until, record.failed_at + max(rest, interval)):
                del self._records[bookie]
        return frozenset(
            bookie for bookie, record in self._records.items() if now < record.failed_at + rest
        )

    def in_order(self, replicas: Sequence[BookieId]) -> Sequence[BookieId]:
        """For a read: those that failed lately come last."""
        if not self._records:
            return replicas
        resting = self.resting
        if resting.isdisjoint(replicas):
            return replicas
        return sorted(replicas, key=resting.__contains__)
