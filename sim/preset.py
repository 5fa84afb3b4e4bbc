"""TINY: settings with which a cluster reaches its rare paths within seconds of virtual time."""

from __future__ import annotations

from dataclasses import replace

from bookie.config import BookieConfig
from bookie.space.gc_config import GcConfig
from broker.cluster.config_acls import STANDARD_AUTHORIZER
from broker.log.settings import LogSettings
from ledger.autorecovery.config import AutoRecoveryConfig
from ledger.config import LedgerClientConfig
from ledger.network.config import NetworkConfig
from sim.shape import Shape

KIB = 1024
DEFAULT = Shape()
JOURNAL_DIRECTORY = "/journal"
LEDGER_DIRECTORY = "/ledgers"

#: From which size on entries stay in a bookie's journal (0: none do): bookies next to each other
#: differ.
KEPT_ENTRY_SIZES = (300, 0, 1, 1000)

#: How long metadata keeps the session of a node that it does not hear.
SESSION_TIMEOUT_SECONDS = 3.0

#: Between two looks at a ledger that metadata does not know (joined/ledger_gc.py has a minute).
ABSENT_SECONDS_MIN = 1.0

BROKER_PROPERTIES = {
    "num.partitions": "2",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "log.retention.check.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "10",
    "group.consumer.min.session.timeout.ms": "10",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.min.heartbeat.interval.ms": "10",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "200",
    "group.streams.min.session.timeout.ms": "10",
    "group.streams.session.timeout.ms": "2000",
    "group.streams.min.heartbeat.interval.ms": "10",
    "group.streams.heartbeat.interval.ms": "100",
    "group.streams.assignment.interval.ms": "200",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.num.standby.replicas": "1",
    "group.share.min.session.timeout.ms": "10",
    "group.share.session.timeout.ms": "2000",
    "group.share.min.heartbeat.interval.ms": "10",
    "group.share.heartbeat.interval.ms": "100",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "1000",
    "group.share.delivery.count.limit": "10",
    "share.coordinator.state.topic.num.partitions": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    "share.coordinator.snapshot.update.records.per.snapshot": "5",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    # Producers are away for longer than that now and then.
    "transactional.id.expiration.ms": "6000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "1500",
    # Of __consumer_offsets, too, which is compacted.
    "log.roll.ms": "3000",
    "log.cleaner.backoff.ms": "400",
    "log.cleaner.min.cleanable.ratio": "0.1",
    "log.cleaner.delete.retention.ms": "2000",
    "log.segment.delete.delay.ms": "500",
}


#: Of a broker alone nobody else changes what it has in memory.
AUTHORIZER_PROPERTIES = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "allow.everyone.if.no.acl.found": "true",
}


def broker_properties(shape: Shape) -> dict[str, str]:
    """The usual quorums by Kafka's settings, others by our own."""
    properties = BROKER_PROPERTIES
    if shape.acl_admins and shape.is_cluster:
        properties = properties | AUTHORIZER_PROPERTIES
    if not shape.quorums:
        return properties
    ensemble_size, write_quorum, ack_quorum = map(str, shape.copies)
    return properties | {
        "default.replication.factor": "1",
        "offsets.topic.replication.factor": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": ack_quorum,
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": ack_quorum,
        "min.insync.replicas": ack_quorum,
        "quire.ledger.ensemble.size": ensemble_size,
        "quire.ledger.write.quorum": write_quorum,
        "quire.ledger.ack.quorum": ack_quorum,
    }


#: A topic's ledgers roll by age: after a dozen entries, with the workloads' pace.
TOPIC_CONFIGS = {"segment.ms": "2500"}
#: After a few entries, or none.
SHORT_LEDGER_CONFIGS = {"segment.ms": "300"}
SHORT_LIVED_CONFIGS = {"segment.ms": "1000", "retention.ms": "4000"}


def topic_configs(shape: Shape) -> dict[str, str]:
    return SHORT_LEDGER_CONFIGS if shape.short_ledgers else TOPIC_CONFIGS


#: Of the share group: it reads all there is, and gives no record up soon.
SHARE_GROUP_CONFIGS = {
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": "10",
}


def retention_configs(seed: int) -> dict[str, str]:
    """By time or by size."""
    limit = {"retention.ms": "5000"} if seed % 2 else {"retention.bytes": "4000"}
    return {"segment.ms": "1000", **limit}


def txn_configs(seed: int, shape: Shape) -> dict[str, str]:
    """In one world of three old records go, transactions or not."""
    configs = topic_configs(shape)
    return configs | {"retention.ms": "6000"} if seed % 3 == 0 else configs


def keyed_configs(seed: int) -> dict[str, str]:
    """Compacted by key; in one world of four old records go as well."""
    configs = {"cleanup.policy": "compact", "segment.ms": "600"}
    if seed % 4 == 0:
        configs |= {"cleanup.policy": "compact,delete", "retention.ms": "6000"}
    if seed % 3 == 0:
        configs |= {"min.compaction.lag.ms": "700", "max.compaction.lag.ms": "1500"}
    return configs


def log_settings(shape: Shape) -> LogSettings:
    if not shape.short_queues:
        return LogSettings(entry_bytes_target=2 * KIB)
    return LogSettings(
        entry_bytes_target=200,
        entry_bytes_max=300,
        entries_in_flight_max=2,
        entries_in_flight_eager=1,
        entry_bytes_eager=100,
        bytes_in_flight_max=600,
        snapshot_interval_bytes=1_500,
        read_slack_bytes=64,
        read_entries_max=16,
        spare_ledger_share=1e-6,
        document_ledgers_max=3,
        archive_ledgers=2,
        key_map_bytes_max=8 * 24,  # seven keys
    )


def bookie_config(name: str, instance_id: str, shape: Shape = DEFAULT) -> BookieConfig:
    """Journals of 8 KiB, entry logs of 16 KiB, a write cache of two times 8 KiB; or less."""
    config = _bookie_config(name, instance_id)
    if shape.short_queues:
        config = replace(
            config,
            held_adds_max=2,
            journal_queue_size_max_bytes=1 * KIB,
            journal_group_size_max_bytes=KIB // 2,
            journal_turn_size_max_bytes=300,
            journal_spare_files_max=0,
        )
    if shape.small_caches:
        config = replace(
            config,
            write_cache_size_bytes=8 * KIB,
            write_cache_segment_size_bytes=1 * KIB,
            flush_entry_log_bytes=1 * KIB,
            entry_log_size_limit_bytes=8 * KIB,
            entry_log_open_files_max=1,
            entry_log_cached_size_bytes=0,
            read_ahead_size_bytes=512,
            # What changes of a group of three that goes to the other protocol is one entry.
            entry_size_max_bytes=3 * KIB,
        )
    return config


def _bookie_config(name: str, instance_id: str) -> BookieConfig:
    return BookieConfig(
        bookie_id=name,
        instance_id=instance_id,
        journal_directory=JOURNAL_DIRECTORY,
        ledger_directory=LEDGER_DIRECTORY,
        journal_size_bytes=8 * KIB,
        journal_alignment_bytes=256,
        journal_group_size_max_bytes=2 * KIB,
        journal_turn_size_max_bytes=1000,
        journal_buffered_writes_threshold_bytes=1 * KIB,
        journal_queue_size_max_bytes=4 * KIB,
        journal_spare_files_max=2,
        journal_kept_entry_min_bytes=KEPT_ENTRY_SIZES[sum(name.encode()) % len(KEPT_ENTRY_SIZES)],
        write_cache_size_bytes=16 * KIB,
        write_cache_segment_size_bytes=2 * KIB,
        flush_interval_ms=2_000,
        flush_entry_log_bytes=4 * KIB,
        held_adds_max=8,
        held_adds_size_max_bytes=16 * KIB,
        entry_log_size_limit_bytes=16 * KIB,
        entry_log_open_files_max=4,
        read_ahead_size_bytes=4 * KIB,
        disk_check_interval_ms=500,
        disk_reserve_size_bytes=8 * KIB,
        scrub_interval_ms=20_000,
        entry_size_max_bytes=4 * KIB,
        gc=GcConfig(
            wait_ms=1_500,
            over_replicated_wait_ms=2_000,
            minor_interval_ms=3_000,
            major_interval_ms=6_000,
            rate_entries=10_000,
            rate_bytes=10_000_000,
        ),
    )


def ledger_config(root: str) -> LedgerClientConfig:
    return LedgerClientConfig(
        ledgers_root=root,
        recovery_read_batch=2,
        bookie_error_interval_ms=2_000,
        bookie_quarantine_ms=5_000,
        bookie_rest_ms=1_000,
        speculative_read_timeout_ms=300,
        speculative_read_timeout_max_ms=1_000,
    )


def autorecovery_config() -> AutoRecoveryConfig:
    """A bookie that is away for longer than a second is lost. What is checked is BookKeeper's
    default: all ledgers now and then (sim/copies.py judges by it), no counts of replicas."""
    return AutoRecoveryConfig(
        lost_bookie_recovery_delay_s=1,
        bookie_check_interval_s=4,
        ledger_check_interval_s=6,
        open_ledger_grace_ms=2_000,
        failed_ledger_pause_ms=500,
        failed_ledger_pause_max_ms=2_000,
        ledgers_at_a_time=2,
    )


def network_config() -> NetworkConfig:
    return NetworkConfig(add_timeout_ms=1_500, read_timeout_ms=1_500, connect_timeout_ms=2_000)
