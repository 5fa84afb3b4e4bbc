"""Limits of the log layer; the composition fills them from the configuration, and changes those
that Kafka lets be changed while a broker runs: every partition has the same object."""

from wire.dataclass import dataclass

#: Entries that one read of a log gives, however small they are: 400 take 1.6 ms. Of larger ones a
#: fetch's bytes are enough sooner.
READ_ENTRIES_MAX = 400


@dataclass(slots=True)
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
    #: What a ledger may hold above segment.bytes: this share of it, or an entry, if that is more.
    #: Batches beyond it wait, without offsets, until there is the next ledger.
    segment_excess_share: float = 0.25
    segment_excess_bytes_min: int = 1 << 20
    #: The next ledger is made once the open one holds this share of segment.bytes.
    spare_ledger_share: float = 0.5
    #: A partition's document with more closed ledgers is written with some of them in archives,
    #: each of so many: about 13 kB, 1 ms of decoding.
    document_ledgers_max: int = 256
    archive_ledgers: int = 128
    #: A snapshot of producer state after so many bytes bounds what a take-over scans.
    snapshot_interval_bytes: int = 64 << 20
    #: A ledger with so many aborted transactions is closed: a seal writes all of them in one turn
    #: of the loop, and a fetch may have to read them.
    aborted_rows_max: int = 32_000
    #: producer.id.expiration.ms, which may change at any time.
    producer_expiration_ms: int = 86_400_000
    #: Producers that are remembered, of a partition and of all that a broker serves: 7 and 140 MB,
    #: and then no new one begins until one expires (broker/log/append/producer_state.py). Memory
    #: would allow for more, but a partition's are snapshotted in one turn of the loop: 20,000 with
    #: five batches each take 2.4 ms of it, 40,000 took 7.
    producers_max: int = 20_000
    producers_total_max: int = 400_000
    #: What a pass of the cleaner may take for its map of keys, whatever the broker's setting is:
    #: for tests, in which one is to be full.
    key_map_bytes_max: int = 1 << 62
    #: What one read asks of a bookie beyond what the reader wants (index slots are sparse).
    read_slack_bytes: int = 64 << 10
    read_entries_max: int = READ_ENTRIES_MAX

    def segment_bytes_max(self, segment_bytes: int) -> int:
        """With so many bytes of batches a ledger takes no more."""
        excess_bytes = int(segment_bytes * self.segment_excess_share)
        return segment_bytes + max(excess_bytes, self.segment_excess_bytes_min)
