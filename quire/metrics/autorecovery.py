"""Figures of auto-recovery, by BookKeeper's names (ReplicationStats.java): `auditor_...` and
`replication_worker_...`; and what cannot be repaired, by reason."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ledger.autorecovery.report import Reason
from quire.metrics.latency import RecentLatencies, java_summary
from runtime.metrics import counters, gauge, gauges, untyped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from ledger.autorecovery.service import AutoRecovery
    from runtime.env import Clock
    from runtime.metrics import Collector

AUDITOR = "auditor_"
WORKER = "replication_worker_"

#: Name in BookKeeper, what it is, AuditorStatistics' field.
_AUDITOR_COUNTS = (
    ("election_attempts", "Votes given.", "election_attempts"),
    ("NUM_UNDER_REPLICATED_LEDGERS", "Marks written.", "ledgers_marked"),
    ("UNDER_REPLICATED_LEDGERS_TOTAL_SIZE", "Bytes of the ledgers marked.", "marked_bytes"),
    ("NUM_BOOKIE_AUDITS_DELAYED", "Lost bookies waited for.", "audits_delayed"),
    ("NUM_DELAYED_BOOKIE_AUDITS_CANCELLED", "Back in time.", "delayed_audits_cancelled"),
    ("NUM_LEDGERS_CHECKED", "Ledgers whose copies were read.", "ledgers_checked"),
    ("NUM_FRAGMENTS_PER_LEDGER", "Fragments of these, in all.", "fragments_checked"),
    ("NUM_BOOKIES_PER_LEDGER", "Bookies of these, in all.", "bookies_of_checked"),
    (
        "NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY",
        "Closed ledgers on too few racks.",
        "ledgers_not_adhering",
    ),
    (
        "NUM_LEDGERS_SOFTLY_ADHERING_TO_PLACEMENT_POLICY",
        "The same, where there are no more racks.",
        "ledgers_softly_adhering",
    ),
    (
        "NUM_UNDERREPLICATED_LEDGERS_ELAPSED_RECOVERY_GRACE_PERIOD",
        "Marks older than that.",
        "ledgers_late",
    ),
    (
        "NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY",
        "Ledgers with an entry that nobody has.",
        "ledgers_without_copy_of_an_entry",
    ),
    (
        "NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY",
        "Below the ack quorum.",
        "ledgers_below_ack_quorum",
    ),
    (
        "NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY",
        "Below the write quorum.",
        "ledgers_below_write_quorum",
    ),
)
_AUDITOR_TIMES = (
    ("AUDIT_BOOKIES_TIME", "Looks for ledgers of lost bookies.", "audit"),
    ("CHECK_ALL_LEDGERS_TIME", "Checks of all ledgers' copies.", "ledger_check"),
    ("PLACEMENT_POLICY_CHECK_TIME", "Checks of racks.", "placement_check"),
    ("REPLICAS_CHECK_TIME", "Counts of copies.", "replicas_check"),
)
_WORKER_COUNTS = (
    ("NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED", "Ledgers repaired.", "ledgers_repaired"),
    ("NUM_ENTRIES_WRITTEN", "Copies of entries written.", "entries_written"),
    ("NUM_BYTES_WRITTEN", "Their bytes.", "bytes_written"),
    (
        "NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION",
        "Entries that no bookie gave.",
        "entries_unreadable",
    ),
    (
        "NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER",
        "Locks kept for a while.",
        "locks_kept_of_failed",
    ),
)


def autorecovery_collector(service: AutoRecovery, clock: Clock) -> Collector:
    recent = RecentLatencies(clock)

    def collect() -> Iterator[Metric]:
        audit, work, worker = service.audit_statistics, service.work_statistics, service.worker
        for name, text, field in _AUDITOR_COUNTS:
            yield untyped(AUDITOR + name, text, getattr(audit, field))
        for name, text, field in _AUDITOR_TIMES:
            yield java_summary(AUDITOR + name, text, getattr(audit, field), recent)
        for name, text, field in _WORKER_COUNTS:
            yield untyped(WORKER + name, text, getattr(work, field))
        yield java_summary(
            WORKER + "rereplicate",
            "Ledgers worked on.",
            work.rereplicate,
            recent,
            failures=work.rereplicate_failures,
        )
        failures = [((reason.name,), work.failures.get(reason.name, 0)) for reason in Reason]
        yield counters("quire_repair_failures", "Tries that failed.", ("reason",), failures)
        yield gauge("quire_auditor", "1 in the process that audits.", audit.is_auditor)
        yield gauge(
            "quire_ledgers_with_bad_metadata",
            "Found by the last check; nobody knows what they miss.",
            audit.ledgers_unreadable_metadata,
        )
        yield gauge("quire_under_replicated_ledgers", "Marks there are.", worker.marked_count)
        yield gauge("quire_ledgers_in_repair", "Worked on by this process.", len(worker.busy))
        held: Counter[str] = Counter()
        for each in worker.held.values():
            held.update({problem.reason.name for problem in each.problems})
        yield gauges(
            "quire_ledgers_not_repairable",
            "Ledgers that this worker could not repair, and why.",
            ("reason",),
            [((reason.name,), held[reason.name]) for reason in Reason],
        )

    return collect
