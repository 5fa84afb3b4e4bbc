"""Limits of the log layer; the composition fills them from the configuration."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class LogSettings:
    """Sizes in bytes, times in milliseconds."""

    #: Batches queued at one moment travel together up to this size; a larger batch goes alone.
    entry_bytes_target: int = 1 << 20
    #: The largest payload a bookie takes (5 MiB frames on Java bookies, less header and digest).
    entry_bytes_max: int = (5 << 20) - (64 << 10)
    #: Entries of one ledger that may be on their way; more batches wait and coalesce.
    entries_in_flight_max: int = 64
    #: With so many on their way, less than so many bytes of batches wait for an ack and travel
    #: together: over a network an entry costs each of its bookies a frame, a sync and an answer.
    entries_in_flight_eager: int = 2
    entry_bytes_eager: int = 32 << 10
    bytes_in_flight_max: int = 32 << 20
    #: A snapshot of producer state after so many bytes bounds what a take-over scans.
    snapshot_interval_bytes: int = 64 << 20
    producer_expiration_ms: int = 86_400_000
    #: Producers that are remembered, of a partition and of all that a broker serves: 6 and 120 MB,
    #: and then no new one begins until one expires (broker/log/producer_state.py).
    producers_max: int = 20_000
    producers_total_max: int = 400_000
    #: What one read asks of a bookie beyond what the reader wants (index slots are sparse).
    read_slack_bytes: int = 64 << 10
    read_entries_max: int = 4096
