"""An audit of what lies: ledgers that are not there, entries that are not what they say, metadata
that claim too much; and what an audit may take of memory and of a bookie's time."""

import subprocess
import sys
import tracemalloc
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import trio
from trio.testing import MockClock

from ledger.ledger_check import LedgerCheck
from pyspark_quire.connection import Where
from spark_jobs import audit as audit_module
from spark_jobs import audit_task
from spark_jobs.audit import AuditOptions, AuditReport, make_audit, make_plan
from spark_jobs.audit_findings import MISSING, Audited, AuditPiece, Finding, joined
from spark_jobs.audit_task import content_fault
from tests.pyspark_quire.in_memory import Cluster, batch, closed, entry, topic
from wire.bookkeeper.ledger_metadata import LedgerMetadata, serialize
from wire.kafka.records.batch import complete, parse_header
from wire.kafka.records.compression import Compression

WHERE = Where("quire+unix:///none")


async def report_of(cluster, **options):
    plan = await make_plan(cluster, WHERE, AuditOptions(**options))
    return AuditReport(plan.ledgers, unreadable=plan.unreadable), plan


async def test_a_ledger_that_a_topic_names_and_that_is_gone_is_told():
    """Of all losses the largest: nothing of it is left to be looked at."""
    cluster = Cluster()
    await cluster.add(topic(), closed(1, 0, 60), closed(2, 60, 100), has_metadata=False)
    report, _ = await report_of(cluster, topics=("t",))
    assert report.has_faults or not report.is_whole


async def test_a_ledger_that_was_asked_for_must_be_there():
    report, _ = await report_of(Cluster(), ledgers=(4711,))
    assert report.has_faults or not report.is_whole


async def test_a_ledger_that_is_shorter_than_its_chain_says_is_told():
    """The chain has 60 records in it, its metadata no entry at all."""
    cluster = Cluster()
    await cluster.add(topic(), closed(1, 0, 60, index_entry=None))
    [path] = [path for path in ("/ledgers/00/0000/L0001",) if await cluster.store.exists(path)]
    empty = LedgerMetadata(1, 1, 1, ((0, ("b1",)),)).closed_at(-1, 0)
    await cluster.store.put(path, serialize(empty), 0)
    report, plan = await report_of(cluster, topics=("t",))
    assert plan.pieces == []
    assert report.has_faults or not report.is_whole


def test_a_copy_that_was_moved_while_the_audit_ran_is_not_missing(monkeypatch):
    """Auto-recovery, or an operator, put it on another bookie; the old one has given it up."""
    cluster = Cluster()
    trio.run(partial(cluster.add, topic(), closed(1, 0, 60)))
    monkeypatch.setattr(
        audit_module, "run_within", lambda _where, _seconds, work: trio.run(partial(work, cluster))
    )

    def run(_work, pieces):
        [piece] = pieces
        moved = LedgerMetadata(1, 1, 1, ((0, ("b2",)),)).closed_at(0, 6000)
        trio.run(cluster.store.put, "/ledgers/00/0000/L0001", serialize(moved), 0)
        yield piece, Audited(1, 1, 0, (Finding(1, 0, 0, "b1", MISSING, "t-0", "ENOLEDGER"),))

    report = make_audit(WHERE, run, AuditOptions(topics=("t",)), lambda _: lambda _: None)
    assert not report.has_faults


def unpacked_junk():
    """A batch whose checksum is right, and whose records no zstd made."""
    found = bytearray(batch(0, 5, compression=Compression.ZSTD))
    found[61:65] = b"junk"
    complete(found, parse_header(bytes(found)))
    return bytes(found)


CONTENTS = {
    "more records than it has": entry(0, 10, batch(0, 5)),
    "another first offset": entry(77, 5, batch(0, 5)),
    "nothing": entry(0, 10, b""),
    "offsets twice": entry(0, 10, batch(0, 5) * 2),
    "a kind that is none": entry(0, 10, b"junk", kind=9),
    "a flag that is none": entry(0, 10, b"junk", flags=0x80),
    "an index that is none": entry(0, 0, b"junk", kind=2),
    "records that nobody unpacks": entry(0, 5, unpacked_junk()),
}


@pytest.mark.parametrize("payload", CONTENTS.values(), ids=CONTENTS)
def test_an_entry_that_no_reader_can_use_is_told(payload):
    """«the copies hold no record batches that can be read»"""
    assert content_fault(memoryview(payload)) is not None


CUT = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from itertools import islice
from spark_jobs.audit_findings import cut
try:
    list(islice(cut(2**62, 2**62, 1_000_000), 3))
except ValueError:
    pass  # refused in words
"""


def test_metadata_that_claim_exabytes_do_not_fill_the_drivers_memory():
    """One ledger's length is 2^62: the plan of all others must not die of it."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", CUT], timeout=5, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        pytest.fail("one ledger's metadata hold the driver")
    assert done.returncode == 0, done.stderr[-300:]


def test_findings_are_joined_in_a_time_that_grows_with_them(monkeypatch):
    """Of a bookie that lost its disk there are as many as ledgers. Comparisons are counted."""
    compared = []
    real = Finding.__eq__

    def equal(one, other):
        compared.append(1)
        return real(one, other)

    monkeypatch.setattr(Finding, "__eq__", equal)
    found = [
        Finding(ledger, part, part, "b", MISSING, "t-0") for ledger in range(300) for part in (0, 1)
    ]
    assert len(joined(found)) == 300
    assert len(compared) < 30 * len(found)


class Checker:
    """In the place of LedgerChecker: each entry has one good copy of `SIZE` bytes."""

    SIZE = 1

    def __init__(self, _bookies, _ledger, _metadata, on_good):
        self._on_good = on_good

    async def check(self, last, step=None, *, first_entry_id=0):
        payload = memoryview(bytes(self.SIZE))
        self.calls.append((trio.current_time(), self.SIZE * (last - first_entry_id + 1)))
        for number in range(first_entry_id, last + 1):
            self._on_good("b1", number, payload)
        count = last - first_entry_id + 1
        return LedgerCheck(1, count, count)


@pytest.fixture
def checker(monkeypatch):
    async def run(*, task_status=trio.TASK_STATUS_IGNORED):
        task_status.started()
        await trio.sleep_forever()

    @asynccontextmanager
    async def nothing(_env, _stack):
        yield

    async def start_env(_env, _stack):
        return

    fresh = type("Fresh", (Checker,), {"calls": []})
    monkeypatch.setattr(audit_task, "LedgerChecker", fresh)
    monkeypatch.setattr(audit_task, "NetworkBookieClient", lambda *_: SimpleNamespace(run=run))
    monkeypatch.setattr(audit_task, "start_env", start_env)
    return fresh


def piece(count, rate=0):
    metadata = serialize(LedgerMetadata(1, 1, 1, ((0, ("b1",)),)).closed_at(count - 1, count))
    return AuditPiece(WHERE, 1, "t-0", metadata, 0, count - 1, (), False, rate)


def test_a_piece_of_many_small_entries_takes_bounded_memory(checker):
    """«of each a few numbers are kept until then»: of a thousand, and not of all. An open ledger is
    one piece, whatever its length."""
    tracemalloc.start()
    try:
        trio.run(audit_task._check, piece(50_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 << 20


def test_a_bound_of_bytes_for_each_second_is_kept_within_a_piece(checker):
    """250 entries of 1 MB at 1 MB/s: not all of them in the first second, and then sleep."""
    checker.SIZE = 1_000_000
    trio.run(audit_task._check, piece(250, 1_000_000), clock=MockClock(autojump_threshold=0.05))
    begun, _ = checker.calls[0]
    ended, last = checker.calls[-1]
    assert ended - begun >= 249 - last / 1_000_000
    largest = max(size for _, size in checker.calls)
    assert largest <= 16_000_000


def test_a_step_leaves_no_entry_out(checker):
    found = trio.run(audit_task._check, piece(2_501))
    assert found.entries == found.copies == found.bytes == 2_501
