"""Configuration of the ledger client, and its settings by BookKeeper's names."""

from __future__ import annotations

from runtime.config import ConfigKey, ConfigType, at_least
from runtime.settings import from_mebibytes, from_seconds, setting
from wire.dataclass import dataclass

INT, BOOLEAN = ConfigType.INT, ConfigType.BOOLEAN

_HEALTH_CHECK = ConfigKey("bookieHealthCheckEnabled", BOOLEAN, "true", "false: no quarantine.")


@dataclass(slots=True, frozen=True)
class LedgerClientConfig:
    """All sizes in bytes of payload."""

    #: Where BookKeeper's tree is in the metadata store.
    ledgers_root: str = "/ledgers"
    #: Appends in flight per ledger; beyond, `append_nowait` raises LedgerBusyError.
    window_entries_max: int = 10_000
    window_bytes_max: int = 64 * 1024 * 1024
    #: Entries that recovery asks for at a time.
    recovery_read_batch: int = setting(
        "recoveryReadBatchSize", INT, "8", at_least(1), unit="entries", doc="Entries at a time."
    )
    #: Entries of a striped ledger (E > Qw) that one read asks for at a time.
    striped_read_batch: int = 16
    #: Of all ledgers' entries in memory, written and read (ledger/entry_cache.py). 0: none are
    #: kept: where bookies are in the same process, they have them in memory.
    entry_cache_bytes: int = setting(
        "quire.entry.cache.size.mb",
        INT,
        "0",
        at_least(0),
        doc="Ends of ledgers; 0: none.",
        convert=from_mebibytes,
    )

    #: Bookies that fail are kept while entries reach their ack quorum.
    delay_ensemble_change: bool = setting(
        "delayEnsembleChange", BOOLEAN, "false", doc="While the ack quorum is reached."
    )
    #: A writer whose oldest entry waits longer stops. 0: never.
    add_quorum_timeout_ms: int = setting(
        "addEntryQuorumTimeoutSec", INT, "0", at_least(0), doc="0: no limit.", convert=from_seconds
    )
    #: How often writers tell bookies their LAC when no entry does. 0: never.
    explicit_lac_interval_ms: int = setting(
        "explicitLacInterval", INT, "0", at_least(0), unit="ms", doc="0: none is told."
    )
    #: The next replica is asked too when one
    #: has not answered for so long; the wait doubles up to the second. 0: it is waited for.
    speculative_read_timeout_ms: int = setting(
        "firstSpeculativeReadTimeout",
        INT,
        "2000",
        at_least(0),
        unit="ms",
        doc="0: one bookie at a time.",
    )
    speculative_read_timeout_max_ms: int = setting(
        "maxSpeculativeReadTimeout", INT, "5000", at_least(1), unit="ms", doc="It grows till then."
    )
    #: The same for long polls of the LAC.
    speculative_lac_timeout_ms: int = setting(
        "firstSpeculativeReadLACTimeout", INT, "1500", at_least(1), unit="ms", doc="Of long polls."
    )
    #: Longest time that a bookie is asked to hold a long poll.
    long_poll_timeout_max_ms: int = 30_000
    #: A ledger with E = Qw is read from one bookie while that answers.
    sticky_reads: bool = setting(
        "stickyReadSEnabled", BOOLEAN, "true", doc="A ledger is read from one bookie."
    )
    bookie_error_threshold: int = setting(
        "bookieErrorThresholdPerInterval", INT, "100", at_least(1), doc="Then quarantine."
    )
    bookie_error_interval_ms: int = setting(
        "bookieHealthCheckIntervalSeconds",
        INT,
        "60",
        at_least(1),
        doc="Errors are counted.",
        convert=from_seconds,
    )
    bookie_quarantine_ms: int = setting(
        "bookieQuarantineTimeSeconds",
        INT,
        "1800",
        at_least(0),
        doc="Without new ledgers.",
        convert=from_seconds,
        others=(_HEALTH_CHECK,),
    )
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
