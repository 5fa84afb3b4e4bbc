"""Figures of the ledger client, by BookKeeper's names: `bookkeeper_client_...`.

Adds are counted and not timed (the journal's and the broker's times are what there is to know in
one process); operations on whole ledgers are timed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.metrics.latency import FAILURE, SUCCESS, RecentLatencies, java_summary
from runtime.metrics import SAMPLES_PER_TURN, counter, gauge, untyped, untyped_family

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from ledger.entry_cache import EntryCache
    from ledger.statistics import LedgerStatistics
    from runtime.env import Clock
    from runtime.metrics import Collector

CLIENT = "bookkeeper_client_"


def ledger_client_collector(
    now: LedgerStatistics, clock: Clock, cache: EntryCache | None = None
) -> Collector:
    """`now`: the client's live statistics; `cache`: of entries, if there is one."""
    recent = RecentLatencies(clock)

    def collect() -> Iterator[Metric | None]:
        for name, text, operation in (
            ("CREATE", "Ledgers made.", now.create),
            ("OPEN", "Ledgers opened to read.", now.open),
            ("RECOVER", "Ledgers recovered.", now.recover),
            ("DELETE", "Ledgers deleted from the metadata.", now.delete),
        ):
            yield java_summary(
                f"{CLIENT}LEDGER_{name}",
                text,
                operation.latency,
                recent,
                failures=operation.failures,
            )
        yield _counted("ADD_ENTRY", "Entries acknowledged, and failed.", now.adds, now.add_failures)
        yield _counted(
            "READ_ENTRY", "Runs of entries read, and answers without.", now.reads, now.read_failures
        )
        yield untyped(
            CLIENT + "READ_ENTRY_DM", "Replicas with a wrong digest.", now.digest_mismatches
        )
        yield untyped(CLIENT + "NUM_ENSEMBLE_CHANGE", "Bookies replaced.", now.ensemble_changes)
        pending = 0
        for number, reference in enumerate(now.writers.valuerefs(), 1):
            writer = reference()
            pending += 0 if writer is None else writer.pending_count
            if not number % SAMPLES_PER_TURN:
                yield None
        yield gauge(CLIENT + "NUM_PENDING_ADD", "Entries in flight.", pending)
        yield gauge("quire_ledger_writers", "Ledgers being written.", len(now.writers))
        yield counter("quire_ledger_creates", "Ledgers made.", now.create.latency.count)
        if cache is not None:
            yield from _of_cache(cache)

    return collect


def _of_cache(cache: EntryCache) -> Iterator[Metric]:
    yield gauge("quire_entry_cache_bytes", "Entries in memory.", cache.size_bytes)
    yield gauge("quire_entry_cache_bytes_max", "What they may take.", cache.size_max_bytes)
    yield gauge("quire_entry_cache_entries", "Their number.", len(cache))
    yield counter("quire_entry_cache_hits", "Reads that asked no bookie.", cache.hits)
    yield counter("quire_entry_cache_misses", "Reads that did.", cache.misses)
    yield counter("quire_entry_cache_shared", "Reads that waited for another's.", cache.shared)
    yield counter("quire_entry_cache_evictions", "Entries that had to go.", cache.evicted)


def _counted(name: str, text: str, successes: int, failures: int) -> Metric:
    """The count of a summary that has no times."""
    family = untyped_family(f"{CLIENT}{name}_count", text)
    family.add_sample(f"{CLIENT}{name}_count", dict(SUCCESS), successes)
    family.add_sample(f"{CLIENT}{name}_count", dict(FAILURE), failures)
    return family
