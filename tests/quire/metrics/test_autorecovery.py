"""Auto-recovery: metrics by BookKeeper's names, settings in a standalone."""

import pytest

from joined.local_bookie import LocalBookieClient
from joined.node_configs import STANDALONE_CONFIGS
from ledger.autorecovery.config import AutoRecoveryConfig
from ledger.autorecovery.parts import AutoRecoveryParts
from ledger.autorecovery.replication_worker import Held
from ledger.autorecovery.report import Problem, Reason
from ledger.autorecovery.service import AutoRecovery
from ledger.bookie_watcher import BookieWatcher
from ledger.client import LedgerClient
from ledger.placement import RandomPlacement
from metadata.memory import MemoryStore
from quire.autorecovery_node import standalone_config
from quire.metrics.autorecovery import autorecovery_collector
from runtime.config import load_tables
from runtime.env import real_env
from runtime.metrics import Metrics

#: ReplicationStats.java, all of it; False: it means nothing here.
AUDITOR = {
    "election_attempts": True,
    "NUM_UNDER_REPLICATED_LEDGERS": True,
    "UNDER_REPLICATED_LEDGERS_TOTAL_SIZE": True,
    # An audit is one walk over the ledgers, which marks as it goes: AUDIT_BOOKIES_TIME.
    "URL_PUBLISH_TIME_FOR_LOST_BOOKIE": False,
    "BOOKIE_TO_LEDGERS_MAP_CREATION_TIME": False,
    "CHECK_ALL_LEDGERS_TIME": True,
    "PLACEMENT_POLICY_CHECK_TIME": True,
    "REPLICAS_CHECK_TIME": True,
    "AUDIT_BOOKIES_TIME": True,
    "NUM_FRAGMENTS_PER_LEDGER": True,
    "NUM_BOOKIES_PER_LEDGER": True,
    "NUM_LEDGERS_CHECKED": True,
    "NUM_BOOKIE_AUDITS_DELAYED": True,
    "NUM_DELAYED_BOOKIE_AUDITS_CANCELLED": True,
    "NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY": True,
    "NUM_LEDGERS_SOFTLY_ADHERING_TO_PLACEMENT_POLICY": True,
    "NUM_UNDERREPLICATED_LEDGERS_ELAPSED_RECOVERY_GRACE_PERIOD": True,
    "NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY": True,
    "NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY": True,
    "NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY": True,
    # No check is skipped: the next one begins after its interval.
    "NUM_SKIPPING_CHECK_TASK_TIMES": False,
}
WORKER = {
    "rereplicate": True,
    "NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED": True,
    "NUM_ENTRIES_WRITTEN": True,
    "NUM_BYTES_WRITTEN": True,
    # Each entry is read once for all its copies; nothing is timed per entry.
    "NUM_ENTRIES_READ": False,
    "NUM_BYTES_READ": False,
    "READ_DATA_LATENCY": False,
    "WRITE_DATA_LATENCY": False,
    # Counted by reason: quire_repair_failures.
    "exceptions": False,
    "NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER": True,
    "NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION": True,
    # Placement is checked and not repaired.
    "NUM_NOT_ADHERING_PLACEMENT_LEDGERS_REPLICATED": False,
}


@pytest.fixture
async def service():
    env, store = real_env(), MemoryStore()
    bookies = LocalBookieClient({})
    placement = RandomPlacement(list, env.rng)
    parts = AutoRecoveryParts(
        config=AutoRecoveryConfig(),
        env=env,
        store=store,
        client=LedgerClient(store, bookies, env, placement=placement),
        bookies=bookies,
        watcher=BookieWatcher(store),
        placement=placement,
        locations=dict,
    )
    return AutoRecovery(parts, bookie_id="a")


async def test_names_are_bookkeepers(service):
    metrics = Metrics()
    metrics.register(autorecovery_collector(service, real_env().clock))
    text = (await metrics.render()).decode()
    samples = {line.partition(" ")[0].partition("{")[0] for line in text.splitlines()}
    for scope, names in (("auditor_", AUDITOR), ("replication_worker_", WORKER)):
        for name, is_here in names.items():
            found = {f"{scope}{name}", f"{scope}{name}_count"} & samples
            assert bool(found) is is_here, name


async def test_figures_are_what_was_counted(service):
    service.work_statistics.bytes_written = 4711
    service.work_statistics.failures["NO_COPY_LEFT"] = 3
    problems = [Problem(Reason.NO_COPY_LEFT, "gone")] * 2
    service.worker._held[8] = Held(problems, 0.0, is_locked=True)
    metrics = Metrics()
    metrics.register(autorecovery_collector(service, real_env().clock))
    text = (await metrics.render()).decode()
    assert "replication_worker_NUM_BYTES_WRITTEN 4711.0" in text
    assert 'quire_repair_failures_total{reason="NO_COPY_LEFT"} 3.0' in text
    # A ledger counts once for each reason.
    assert 'quire_ledgers_not_repairable{reason="NO_COPY_LEFT"} 1.0' in text
    assert 'quire_ledgers_not_repairable{reason="OPEN"} 0.0' in text


def test_a_standalone_waits_for_its_bookies_unless_it_is_told_otherwise():
    assert standalone_config({}).lost_bookie_recovery_delay_s == 60
    assert standalone_config({"flushInterval": "1"}).lost_bookie_recovery_delay_s == 60
    assert standalone_config({"lostBookieRecoveryDelay": "0"}).lost_bookie_recovery_delay_s == 0
    loaded = load_tables("lostBookieRecoveryDelay=5\nzkTimeout=900\n", {}, [STANDALONE_CONFIGS])
    assert loaded.notes == []
