"""Settings of auto-recovery, by BookKeeper's names (ServerConfiguration.java)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ledger.replication import ReplicationConfig
from runtime.config import ConfigKey, ConfigTable, ConfigType, at_least, between

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.config import ConfigValue

BOOLEAN, INT, LONG = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG

DAY_S = 24 * 3600

AUTORECOVERY_CONFIGS = ConfigTable(
    "BookKeeper's auto-recovery",
    (
        ConfigKey(
            "lostBookieRecoveryDelay",
            INT,
            "0",
            "Seconds that a single lost bookie is waited for; the metadata's value wins.",
            at_least(0),
        ),
        ConfigKey(
            "auditorPeriodicBookieCheckInterval",
            LONG,
            str(DAY_S),
            "Seconds between looks for bookies that are named and not there; 0: never.",
            at_least(0),
        ),
        ConfigKey(
            "auditorPeriodicCheckInterval",
            LONG,
            str(7 * DAY_S),
            "Seconds between checks of all ledgers' copies; 0: never.",
            at_least(0),
        ),
        ConfigKey(
            "auditorPeriodicPlacementPolicyCheckInterval",
            LONG,
            "0",
            "Seconds between checks of where copies are; 0: never.",
            at_least(0),
        ),
        ConfigKey(
            "auditorReplicasCheckInterval",
            LONG,
            "0",
            "Seconds between checks of the bookies' lists of entries; 0: never.",
            at_least(0),
        ),
        ConfigKey(
            "auditorLedgerVerificationPercentage",
            LONG,
            "0",
            "Of a fragment's entries that are asked for; 0: the first and the last.",
            between(0, 100),
        ),
        ConfigKey(
            "auditorMaxNumberOfConcurrentOpenLedgerOperations",
            INT,
            "16",
            "Ledgers that are checked at a time.",
            between(1, 1000),
        ),
        ConfigKey(
            "underreplicatedLedgerRecoveryGracePeriod",
            LONG,
            "0",
            "Seconds after which a marked ledger counts as late; 0: never.",
            at_least(0),
        ),
        ConfigKey(
            "openLedgerRereplicationGracePeriod",
            LONG,
            "30000",
            "Time that the writer of an open ledger has to replace a lost bookie; then it is "
            "fenced.",
            at_least(0),
        ),
        ConfigKey(
            "lockReleaseOfFailedLedgerGracePeriod",
            LONG,
            "300000",
            "The longest pause between tries of a ledger that cannot be repaired.",
            at_least(1),
        ),
        ConfigKey(
            "rwRereplicateBackoffMs",
            INT,
            "5000",
            "The first of these pauses; also between looks for marked ledgers.",
            at_least(1),
        ),
        ConfigKey(
            "rereplicationEntryBatchSize",
            LONG,
            "256",
            "Entries that are copied together, up to 1 MiB of them.",
            between(1, 100_000),
        ),
        ConfigKey("replicationRateByBytes", INT, "-1", "Per second; -1: no limit.", at_least(-1)),
        ConfigKey(
            "quire.replication.rate.entries",
            LONG,
            "-1",
            "Entries copied per second; -1: no limit.",
            at_least(-1),
        ),
        ConfigKey(
            "repairedPlacementPolicyNotAdheringBookieEnabled",
            BOOLEAN,
            "false",
            "Ledgers on too few racks are moved, not only counted.",
        ),
        ConfigKey("quire.replication.ledgers", INT, "4", "Repaired at a time.", between(1, 100)),
    ),
    empty_is_unset=True,
)


@dataclass(slots=True, frozen=True)
class AutoRecoveryConfig:
    """Times are seconds or milliseconds, as their names say; intervals of 0: never."""

    lost_bookie_recovery_delay_s: int = 0
    bookie_check_interval_s: int = DAY_S
    ledger_check_interval_s: int = 7 * DAY_S
    placement_check_interval_s: int = 0
    replicas_check_interval_s: int = 0
    #: What the check of placements finds is marked, and workers move copies to other racks.
    repairs_placement: bool = False
    verification_percentage: int = 0
    checked_ledgers_max: int = 16
    late_after_s: int = 0
    open_ledger_grace_ms: int = 30_000
    failed_ledger_pause_max_ms: int = 300_000
    failed_ledger_pause_ms: int = 5_000
    ledgers_at_a_time: int = 4
    replication: ReplicationConfig = field(default_factory=ReplicationConfig)

    def pause_ms(self, failures: int) -> int:
        """After so many failures in a row, at least one: doubled each time."""
        assert failures >= 1
        doubled = self.failed_ledger_pause_ms << min(failures - 1, 32)
        return min(doubled, self.failed_ledger_pause_max_ms)


def autorecovery_config(values: Mapping[str, ConfigValue]) -> AutoRecoveryConfig:
    """`values`: parsed, by BookKeeper's names, only what is set."""
    found = AUTORECOVERY_CONFIGS.with_defaults(values)

    def number(name: str) -> int:
        value = found[name]
        assert isinstance(value, int)
        return value

    return AutoRecoveryConfig(
        lost_bookie_recovery_delay_s=number("lostBookieRecoveryDelay"),
        bookie_check_interval_s=number("auditorPeriodicBookieCheckInterval"),
        ledger_check_interval_s=number("auditorPeriodicCheckInterval"),
        placement_check_interval_s=number("auditorPeriodicPlacementPolicyCheckInterval"),
        replicas_check_interval_s=number("auditorReplicasCheckInterval"),
        repairs_placement=bool(found["repairedPlacementPolicyNotAdheringBookieEnabled"]),
        verification_percentage=number("auditorLedgerVerificationPercentage"),
        checked_ledgers_max=number("auditorMaxNumberOfConcurrentOpenLedgerOperations"),
        late_after_s=number("underreplicatedLedgerRecoveryGracePeriod"),
        open_ledger_grace_ms=number("openLedgerRereplicationGracePeriod"),
        failed_ledger_pause_max_ms=number("lockReleaseOfFailedLedgerGracePeriod"),
        failed_ledger_pause_ms=number("rwRereplicateBackoffMs"),
        ledgers_at_a_time=number("quire.replication.ledgers"),
        replication=ReplicationConfig(
            batch_entries_max=number("rereplicationEntryBatchSize"),
            entries_per_second=max(number("quire.replication.rate.entries"), 0),
            bytes_per_second=max(number("replicationRateByBytes"), 0),
        ),
    )
