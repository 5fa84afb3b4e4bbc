"""An audit's findings, when what it planned from is another by the end."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import trio

from ledger.metadata import ledger_path
from metadata.memory import MemoryStore
from pyspark_quire.connection import Connection, Where
from pyspark_quire.partitions import document_path
from spark_jobs import audit
from spark_jobs.audit import AuditOptions, make_audit, make_plan
from spark_jobs.audit_findings import MISSING, Audited, Finding
from tests.pyspark_quire.simulated import SimulatedLog, entry, records
from wire.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState, parse, serialize

WHERE = Where("zk+hierarchical://h/ledgers")


def test_a_copy_that_was_moved_meanwhile_is_not_missing(monkeypatch):
    """Auto-recovery took bookie `a` out of the ledger, which is to have no copy any more. To say
    that one is lost would be wrong, as it is of a ledger that was deleted."""
    store, path = MemoryStore(), ledger_path("/ledgers", 7)
    watcher = SimpleNamespace(writable=set(), read_only=set())
    connection = Connection(store, "/ledgers", None, watcher, None)
    before = LedgerMetadata(2, 2, 2, ((0, ("a", "b")),), LedgerState.CLOSED, 9, 1000)

    def run_within(_where, _seconds, work):
        return trio.run(work, connection)

    def run(_check, pieces):
        """The ledger is moved before its copies are looked at."""
        after = replace(before, segments=((0, ("c", "b")),))
        trio.run(store.put, path, serialize(after), 0)
        for piece in pieces:
            lost = Finding(7, 0, 9, "a", MISSING, "t-0", "ENOENTRY")
            yield piece, Audited(10, 10, 1000, (lost,))

    monkeypatch.setattr(audit, "run_within", run_within)

    async def prepare():
        await store.create(path, serialize(before), make_parents=True)

    trio.run(prepare)
    found = make_audit(WHERE, run, AuditOptions(ledgers=(7,)), lambda _: lambda _: None)
    assert found.ledgers == 1
    assert found.findings == []


def test_a_ledger_that_was_deleted_meanwhile_is_not_missing(monkeypatch):
    store, path = MemoryStore(), ledger_path("/ledgers", 7)
    watcher = SimpleNamespace(writable=set(), read_only=set())
    connection = Connection(store, "/ledgers", None, watcher, None)
    before = LedgerMetadata(2, 2, 2, ((0, ("a", "b")),), LedgerState.CLOSED, 9, 1000)

    def run(_check, pieces):
        trio.run(store.delete, path, 0)
        for piece in pieces:
            yield piece, Audited(10, 10, 0, (Finding(7, 0, 9, "a", MISSING, "t-0", "ENOLEDGER"),))

    monkeypatch.setattr(audit, "run_within", lambda _w, _s, work: trio.run(work, connection))
    trio.run(partial(store.create, path, serialize(before), make_parents=True))
    found = make_audit(WHERE, run, AuditOptions(ledgers=(7,)), lambda _: lambda _: None)
    assert found.findings == []


async def test_what_is_looked_at_is_in_the_ensembles_that_it_is_looked_for_in(
    nursery, autojump_clock
):
    """A writer has another bookie since the metadata were read, and confirmed entries there."""
    log = SimulatedLog()
    await log.world.start(nursery)
    await log.open(0, *(entry(records(n, b"v%d" % n)) for n in range(5)))
    ledger_id = log.writer.ledger_id
    path = ledger_path("/ledgers", ledger_id)
    old = await log.world.store.get(path)
    first, *others = parse(old.data).segments[0][1]
    after = parse(old.data).with_segment(2, ("x", *others))
    log.world.names.append("x")

    class Older:
        """The batch of metadata that `make_plan` reads is from before the change."""

        def __getattr__(self, name):
            return getattr(log.world.store, name)

        async def get_many(self, paths):
            found = await log.world.store.get_many(paths)
            await log.world.store.put(path, serialize(after), old.version)
            return found

    log.world.bookies.bookies["x"] = type(log.world.bookies.bookies[first])()
    log.world.bookies.bookies["x"].ledgers[ledger_id] = log.world.bookies.bookies[first].ledgers[
        ledger_id
    ]
    connection = replace(log.connection, store=Older())
    plan = await make_plan(connection, WHERE, AuditOptions(ledgers=(ledger_id,)))
    for piece in plan.pieces:
        metadata = parse(piece.metadata)
        assert piece.last_entry < 2 or metadata.ensemble_at(2)[0] == "x"


async def audited(log, monkeypatch, topic="t"):
    """Of a topic whose copies are all as they should be, as far as there are ledgers."""

    def run_within(_where, _seconds, work):
        return trio.from_thread.run(work, log.connection)

    def run(_check, pieces):
        for piece in pieces:
            yield piece, Audited(piece.entry_count, 0, 0, ())

    monkeypatch.setattr(audit, "run_within", run_within)
    options = AuditOptions(topics=(topic,))
    return await trio.to_thread.run_sync(make_audit, WHERE, run, options, lambda _: lambda _: None)


async def test_a_ledger_that_a_partition_names_and_that_is_gone_is_told_of(
    nursery, autojump_clock, monkeypatch
):
    """All of its copies are lost; to find fewer things to look at is no good answer."""
    log = SimulatedLog()
    await log.world.start(nursery)
    await log.open(0, entry(records(0, b"a")))
    await log.close(0)
    await log.open(1, entry(records(1, b"b")))
    await log.store_chain()
    found = await audited(log, monkeypatch)
    assert found.is_whole
    assert found.ledgers == 2
    await log.world.client.delete_ledger(log.infos[0].ledger_id)
    found = await audited(log, monkeypatch)
    assert found.has_faults or not found.is_whole


async def test_a_topic_whose_chain_cannot_be_read_was_not_looked_at(
    nursery, autojump_clock, monkeypatch
):
    log = SimulatedLog()
    await log.world.start(nursery)
    await log.open(0, entry(records(0, b"a")))
    await log.store_chain()
    await log.world.store.put(document_path(log.topic, 0), b"damaged", -1)
    found = await audited(log, monkeypatch)
    assert found.has_faults or not found.is_whole
