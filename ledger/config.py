"""Configuration of the ledger client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class LedgerClientConfig:
    """All sizes in bytes of payload."""

    #: Where BookKeeper's tree is in the metadata store.
    ledgers_root: str = "/ledgers"
    #: Appends in flight per ledger; beyond, `append_nowait` raises LedgerBusyError.
    window_entries_max: int = 10_000
    window_bytes_max: int = 64 * 1024 * 1024
    #: Entries that recovery asks for at a time (BookKeeper: recoveryReadBatchSize).
    recovery_read_batch: int = 8
    #: Entries of a striped ledger (E > Qw) that one read asks for at a time.
    striped_read_batch: int = 16
    #: Of all ledgers' entries in memory, written and read (ledger/entry_cache.py). 0: none are
    #: kept: where bookies are in the same process, they have them in memory.
    entry_cache_bytes: int = 0

    #: delayEnsembleChange: bookies that fail are kept while entries reach their ack quorum.
    delay_ensemble_change: bool = False
    #: addEntryQuorumTimeoutSec: a writer whose oldest entry waits longer stops. 0: never.
    add_quorum_timeout_ms: int = 0
    #: explicitLacInterval: how often writers tell bookies their LAC when no entry does. 0: never.
    explicit_lac_interval_ms: int = 0
    #: speculativeReadTimeout, maxSpeculativeReadTimeout: the next replica is asked too when one
    #: has not answered for so long; the wait doubles up to the second. 0: it is waited for.
    speculative_read_timeout_ms: int = 2_000
    speculative_read_timeout_max_ms: int = 5_000
    #: firstSpeculativeReadLACTimeout: the same for long polls of the LAC.
    speculative_lac_timeout_ms: int = 1_500
    #: Longest time that a bookie is asked to hold a long poll.
    long_poll_timeout_max_ms: int = 30_000
    #: stickyReadsEnabled: a ledger with E = Qw is read from one bookie while that answers.
    sticky_reads: bool = True
    #: bookieErrorThresholdPerInterval, bookieHealthCheckIntervalSeconds,
    #: bookieQuarantineTimeSeconds
    bookie_error_threshold: int = 100
    bookie_error_interval_ms: int = 60_000
    bookie_quarantine_ms: int = 1_800_000
    #: A bookie that failed replaces no other for so long, and is read from last.
    bookie_rest_ms: int = 30_000

    def __post_init__(self) -> None:
        for name in (
            "window_entries_max",
            "window_bytes_max",
            "recovery_read_batch",
            "striped_read_batch",
            "speculative_read_timeout_max_ms",
            "speculative_lac_timeout_ms",
            "long_poll_timeout_max_ms",
            "bookie_error_threshold",
            "bookie_error_interval_ms",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, is {getattr(self, name)}")
        for name in (
            "add_quorum_timeout_ms",
            "explicit_lac_interval_ms",
            "speculative_read_timeout_ms",
            "bookie_quarantine_ms",
            "bookie_rest_ms",
            "entry_cache_bytes",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, is {getattr(self, name)}")
