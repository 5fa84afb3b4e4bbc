"""AutoRecoveryConfig, and its settings by BookKeeper's names (ServerConfiguration.java)."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from ledger.replication import ReplicationConfig
from runtime.config import ConfigKey, ConfigTable, ConfigType, at_least, between
from runtime.settings import field_values, keys_of, made_of, setting
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.config import ConfigValue

BOOLEAN, INT, LONG = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG

DAY_S = 24 * 3600


@dataclass(slots=True, frozen=True)
class AutoRecoveryConfig:
    """Times are seconds or milliseconds, as their names say; intervals of 0: never."""

    lost_bookie_recovery_delay_s: int = setting(
        "lostBookieRecoveryDelay",
        INT,
        "0",
        at_least(0),
        unit="s",
        doc="Seconds that a single lost bookie is waited for; the metadata's value wins.",
    )
    bookie_check_interval_s: int = setting(
        "auditorPeriodicBookieCheckInterval",
        LONG,
        str(DAY_S),
        at_least(0),
        unit="s",
        doc="Seconds between looks for bookies that are named and not there; 0: never.",
    )
    ledger_check_interval_s: int = setting(
        "auditorPeriodicCheckInterval",
        LONG,
        str(7 * DAY_S),
        at_least(0),
        unit="s",
        doc="Seconds between checks of all ledgers' copies; 0: never.",
    )
    placement_check_interval_s: int = setting(
        "auditorPeriodicPlacementPolicyCheckInterval",
        LONG,
        "0",
        at_least(0),
        unit="s",
        doc="Seconds between checks of where copies are; 0: never.",
    )
    replicas_check_interval_s: int = setting(
        "auditorReplicasCheckInterval",
        LONG,
        "0",
        at_least(0),
        unit="s",
        doc="Seconds between checks of the bookies' lists of entries; 0: never.",
    )
    #: What the check of placements finds is marked, and workers move copies to other racks.
    repairs_placement: bool = setting(
        "repairedPlacementPolicyNotAdheringBookieEnabled",
        BOOLEAN,
        "false",
        doc="Ledgers on too few racks are moved, not only counted.",
    )
    verification_percentage: int = setting(
        "auditorLedgerVerificationPercentage",
        LONG,
        "0",
        between(0, 100),
        unit="percent",
        doc="Of a fragment's entries that are asked for; 0: the first and the last.",
    )
    checked_ledgers_max: int = setting(
        "auditorMaxNumberOfConcurrentOpenLedgerOperations",
        INT,
        "16",
        between(1, 1000),
        doc="Ledgers that are checked at a time.",
    )
    late_after_s: int = setting(
        "underreplicatedLedgerRecoveryGracePeriod",
        LONG,
        "0",
        at_least(0),
        unit="s",
        doc="Seconds after which a marked ledger counts as late; 0: never.",
    )
    open_ledger_grace_ms: int = setting(
        "openLedgerRereplicationGracePeriod",
        LONG,
        "30000",
        at_least(0),
        unit="ms",
        doc="Time that the writer of an open ledger has to replace a lost bookie; then it is "
        "fenced.",
    )
    failed_ledger_pause_max_ms: int = setting(
        "lockReleaseOfFailedLedgerGracePeriod",
        LONG,
        "300000",
        at_least(1),
        unit="ms",
        doc="The longest pause between tries of a ledger that cannot be repaired.",
    )
    failed_ledger_pause_ms: int = setting(
        "rwRereplicateBackoffMs",
        INT,
        "5000",
        at_least(1),
        doc="The first of these pauses; also between looks for marked ledgers.",
    )
    ledgers_at_a_time: int = setting(
        "quire.replication.ledgers", INT, "4", between(1, 100), doc="Repaired at a time."
    )
    replication: ReplicationConfig = field(
        default_factory=ReplicationConfig,
        metadata=made_of(
            ConfigKey(
                "rereplicationEntryBatchSize",
                LONG,
                "256",
                "Entries that are copied together, up to 1 MiB of them.",
                between(1, 100_000),
                unit="entries",
            ),
            ConfigKey(
                "replicationRateByBytes",
                INT,
                "-1",
                "Per second; -1: no limit.",
                at_least(-1),
                unit="bytes/s",
            ),
            ConfigKey(
                "quire.replication.rate.entries",
                LONG,
                "-1",
                "Entries copied per second; -1: no limit.",
                at_least(-1),
                unit="entries/s",
            ),
        ),
    )

    def pause_ms(self, failures: int) -> int:
        """After so many failures in a row, at least one: doubled each time."""
        assert failures >= 1
        doubled = self.failed_ledger_pause_ms << min(failures - 1, 32)
        return min(doubled, self.failed_ledger_pause_max_ms)


AUTORECOVERY_CONFIGS = ConfigTable(
    "BookKeeper's auto-recovery", keys_of(AutoRecoveryConfig), empty_is_unset=True
)


def autorecovery_config(values: Mapping[str, ConfigValue]) -> AutoRecoveryConfig:
    """`values`: parsed, by BookKeeper's names, only what is set."""
    found = AUTORECOVERY_CONFIGS.with_defaults(values)

    def number(name: str) -> int:
        value = found[name]
        assert isinstance(value, int)
        return value

    replication = ReplicationConfig(
        batch_entries_max=number("rereplicationEntryBatchSize"),
        entries_per_second=max(number("quire.replication.rate.entries"), 0),
        bytes_per_second=max(number("replicationRateByBytes"), 0),
    )
    return AutoRecoveryConfig(**field_values(AutoRecoveryConfig, values), replication=replication)
