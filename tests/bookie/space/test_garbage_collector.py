"""The collector: which ledgers and logs go, when it works, what it says."""

from math import inf

import pytest
import trio

from bookie.errors import IndexReadError
from bookie.known_ledgers import CollectionRefusedError
from bookie.ledger_table import LedgerTable
from bookie.space import garbage_collector
from bookie.space.gc_config import GcConfig, gc_config
from bookie.space.gc_report import Phase
from bookie.storage.index import MemoryIndex
from bookie.storage.rocks_index import RocksIndex
from runtime.config import ConfigError
from runtime.settings import keys_of
from runtime.throttle import Throttle
from wire.bookkeeper.entry import Digest
from wire.bookkeeper.status import Status

KEY = b"k" * 20


class Known:
    def __init__(self):
        self.gone_ids = set()
        self.asked = []
        self.answers = True
        #: Why nothing can be told.
        self.refusal = ""
        #: Found missing once.
        self.missing = set()
        self.missing_at = inf

    async def gone(self, ledger_ids):
        self.asked.append(list(ledger_ids))
        self._refuse()
        return [i for i in ledger_ids if i in self.gone_ids] if self.answers else []

    async def confirmed(self):
        self.asked.append("confirmed")
        self._refuse()
        self.missing_at = inf
        return sorted(self.missing)

    def _refuse(self):
        if self.refusal:
            raise CollectionRefusedError(self.refusal)

    @property
    def seconds_to_confirm(self):
        return max(self.missing_at - trio.current_time(), 0.0)

    async def digest(self, ledger_id):
        return Digest()


@pytest.fixture
def known():
    return Known()


@pytest.fixture
def machine(machine_class, known):
    machine = machine_class(gc=GcConfig(rate_entries=0), disk_reserve_size_bytes=0)
    machine.known_ledgers = known
    return machine


async def fill(bookie, adds_class, ledgers, count=30, size=500):
    adds = adds_class(bookie)
    for entry_id in range(count):
        for ledger_id in ledgers:
            adds.add(ledger_id, entry_id, bytes(size))
        await adds.wait((entry_id + 1) * len(ledgers))
    assert set(adds.statuses()) == {Status.EOK}
    await bookie.flush()


async def test_ledgers_that_the_metadata_does_not_know_go(machine, known, adds_class):
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2, 3))
        assert (await bookie.collect_garbage()).deleted_ledgers == 0
        known.gone_ids = {1, 3, 99}
        report = await bookie.collect_garbage()
        assert (report.deleted_ledgers, report.failed_deletes) == (2, 0)
        assert bookie.list_ledgers() == [2]
        assert machine.index.last_entry_id(1) == -1, "who asks for a round need not wait"
        status = bookie.gc.status()
        assert status.statistics.deleted_ledgers == 2
        assert status.phase is Phase.IDLE
        assert (await bookie.read_entry(2, 0))[0] is Status.EOK
        assert (await bookie.read_entry(1, 0))[0] is Status.ENOLEDGER
    async with machine.running() as bookie:
        assert bookie.list_ledgers() == [2]


async def test_without_an_answer_everything_is_kept(machine, known, adds_class):
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2))
        known.gone_ids, known.answers = {1, 2}, False
        assert (await bookie.collect_garbage()).deleted_ledgers == 0
        assert sorted(bookie.list_ledgers()) == [1, 2]


async def test_one_sync_for_many_deletions(machine, known, adds_class):
    async with machine.running() as bookie:
        await fill(bookie, adds_class, range(1, 9), count=1, size=10)
        known.gone_ids = set(range(1, 9))
        syncs = bookie.statistics().journal_syncs
        assert (await bookie.collect_garbage()).deleted_ledgers == 8
        assert bookie.statistics().journal_syncs - syncs <= 3
        assert bookie.list_ledgers() == []


async def test_ledgers_that_went_by_themselves_hide_no_others(
    machine, known, adds_class, monkeypatch
):
    """Many are deleted together; some that the metadata lacked are not the bookie's any more."""
    monkeypatch.setattr(garbage_collector, "DELETE_BATCH_COUNT", 2)
    async with machine.running() as bookie:
        await fill(bookie, adds_class, range(1, 9), count=1, size=10)

        async def gone(ledger_ids):
            for ledger_id in (3, 4, 5):
                await bookie.delete_ledger(ledger_id)
            return list(range(1, 8))

        monkeypatch.setattr(known, "gone", gone)
        assert (await bookie.collect_garbage()).deleted_ledgers == 4
        assert bookie.list_ledgers() == [8]


async def test_a_ledger_that_comes_back_is_collected_again(machine, known, adds_class):
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2), count=3)
        known.gone_ids = {1}
        await bookie.collect_garbage()
        adds = adds_class(bookie)
        adds.add(1, 3)
        assert adds.statuses() == [Status.EFENCED], "while the deletion is remembered"
    async with machine.running() as bookie:
        adds = adds_class(bookie)
        adds.add(1, 3)
        await adds.wait(1)
        assert adds.statuses() == [Status.EOK], "nobody knows any more"
        assert sorted(bookie.list_ledgers()) == [1, 2]
        assert (await bookie.collect_garbage()).deleted_ledgers == 1
        assert bookie.list_ledgers() == [2]


def test_a_deletion_that_is_not_durable_leaves_the_state_to_be_stored():
    """Else the mark moves past the ledger's key, a crash undoes the deletion, and the journal has
    entries of a ledger whose key is nowhere."""
    table = LedgerTable()
    for ledger_id in (1, 2, 3):
        table.create(ledger_id, KEY)
    table.delete(1)
    table.delete(2)
    states = table.take_dirty({2})
    assert sorted(state.ledger_id for state in states) == [1, 3]
    table.give_back(states)
    assert sorted(state.ledger_id for state in table.take_dirty({1})) == [3]
    assert table.take_dirty() == []


async def test_rounds_come_by_themselves(machine_class, known, adds_class, autojump_clock):
    machine = machine_class(
        gc=GcConfig(wait_ms=1000, minor_interval_ms=5000, major_interval_ms=20_000, rate_entries=0),
        disk_reserve_size_bytes=0,
        flush_interval_ms=100,
    )
    machine.known_ledgers = known
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2, 3, 4, 5, 6, 7, 8, 9, 10))
        asked = len(known.asked)
        await trio.sleep(3.5)
        assert 3 <= len(known.asked) - asked <= 4
        known.gone_ids = set(range(1, 10))
        before = bookie.statistics().entry_log_bytes
        await trio.sleep(8)
        status = bookie.gc.status()
        assert status.statistics.minor_compactions >= 1
        assert status.statistics.major_compactions == 0
        assert bookie.statistics().entry_log_bytes < before * 0.4
        assert status.last_minor_ms is not None
        assert status.last_major_ms is None
        await trio.sleep(20)
        assert bookie.gc.status().statistics.major_compactions == 1
        assert bookie.statistics().entry_log_bytes < before * 0.2
        assert (await bookie.read_entry(10, 29))[0] is Status.EOK


async def test_deletions_do_not_wait_for_a_long_compaction(
    machine_class, known, adds_class, autojump_clock
):
    machine = machine_class(
        gc=GcConfig(wait_ms=1000, rate_entries=4), disk_reserve_size_bytes=0, flush_interval_ms=100
    )
    machine.known_ledgers = known
    async with machine.running() as bookie, trio.open_nursery() as nursery:
        await fill(bookie, adds_class, (1, 2, 3, 4))
        known.gone_ids = {1}
        reports = []

        async def compact():
            reports.append(await bookie.collect_garbage(force_major=True))

        nursery.start_soon(compact)
        await trio.sleep(2)
        known.gone_ids = {1, 2, 3}
        while bookie.list_ledgers() != [4]:
            await trio.sleep(0.5)
        assert not reports, "it should still run"
        while not reports:
            await trio.sleep(1)
        assert reports[0].deleted_ledgers == 3
        assert reports[0].was_major
        # Of 60 that died and 30 that live, what was copied before it was known.
        assert reports[0].copied_entries < 70
        assert (await bookie.read_entry(4, 29))[0] is Status.EOK
        assert (await bookie.read_entry(4, 29))[0] is Status.EOK


async def test_without_metadata_there_are_no_rounds(machine, adds_class, autojump_clock):
    machine.known_ledgers = None
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2))
        await trio.sleep(700)
        assert bookie.gc.statistics.major_compactions == 0
        await bookie.delete_ledger(1)
        await bookie.flush()
        assert (await bookie.collect_garbage(force_major=True)).compacted_logs > 0


async def test_suspended_means_not_even_by_force(machine, adds_class):
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2))
        await bookie.delete_ledger(1)
        await bookie.flush()
        bookie.gc.suspend_major()
        bookie.gc.suspend_major("disk")
        assert bookie.gc.status().is_major_suspended
        assert not (await bookie.collect_garbage(force_major=True)).was_major
        bookie.gc.resume_major("disk")
        assert not (await bookie.collect_garbage(force_major=True)).was_major
        bookie.gc.resume_major()
        assert (await bookie.collect_garbage(force_major=True)).compacted_logs > 0
        bookie.gc.suspend_minor()
        assert not (await bookie.collect_garbage(force_minor=True)).was_minor


async def test_force_of_what_is_disabled_needs_to_be_allowed(machine_class):
    for force_allow in (False, True):
        machine = machine_class(gc=GcConfig(major_interval_ms=0, force_allow=force_allow))
        async with machine.running() as bookie:
            report = await bookie.collect_garbage(force_major=True)
            assert report.was_major is force_allow


async def test_an_ended_bookie_keeps_nobody_waiting(machine, adds_class):
    async with machine.running_until_crash() as bookie:
        bookie.crash()
        assert not (await bookie.collect_garbage()).is_complete
    assert not (await bookie.collect_garbage()).is_complete


async def test_a_block_of_the_index_that_cannot_be_read_keeps_its_log_only(machine, adds_class):
    """RocksDB's checksums tell of one block, in each round anew: what has no entry in it is
    compacted, and a later round tries again."""
    unreadable = set()

    class DamagedIndex(MemoryIndex):
        __slots__ = ()

        def get_many(self, keys):
            if not unreadable.isdisjoint(keys):
                raise IndexReadError("a block is damaged")
            return super().get_many(keys)

    machine.index.__class__ = DamagedIndex
    async with machine.running() as bookie:
        for ledgers in ((1, 2), (4, 3)):
            await fill(bookie, adds_class, ledgers)
        await bookie.delete_ledger(1)
        await bookie.delete_ledger(4)
        await bookie.flush()
        unreadable.update((2, entry_id) for entry_id in range(30))
        report = await bookie.collect_garbage(force_major=True)
        assert report.is_complete
        assert report.compacted_logs >= 1
        assert report.damaged_logs >= 1
        for entry_id in range(30):
            assert (await bookie.read_entry(3, entry_id))[0] is Status.EOK
        unreadable.clear()
        assert (await bookie.collect_garbage(force_major=True)).compacted_logs >= 1
        for entry_id in range(30):
            assert (await bookie.read_entry(2, entry_id))[0] is Status.EOK


async def add_and_read(bookie, adds_class, ledger_id, entry_id):
    adds = adds_class(bookie)
    adds.add(ledger_id, entry_id)
    await adds.wait(1)
    assert (await bookie.read_entry(ledger_id, entry_id))[0] is Status.EOK


async def test_a_failed_sync_ends_the_bookie(machine, adds_class):
    async with machine.running_until_crash() as bookie:
        await fill(bookie, adds_class, (1, 2))
        await bookie.delete_ledger(1)
        await bookie.flush()
        machine.disk.faults.failing_sync_number = machine.disk.sync_count + 3
        report = await bookie.collect_garbage(force_major=True)
        assert not report.is_complete
        adds = adds_class(bookie)
        adds.add(2, 100)
        assert adds.statuses() == [Status.EIO]
    machine.disk.faults.failing_sync_number = None
    async with machine.running() as bookie:
        for entry_id in range(30):
            assert (await bookie.read_entry(2, entry_id))[0] is Status.EOK


async def test_status_counts(machine, known, adds_class):
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2))
        status = bookie.gc.status()
        assert sum(status.usage_buckets) == status.usage_buckets[9] >= 1
        assert status.active_log_bytes == 60 * (4 + 36 + 500)
        assert status.total_log_bytes > status.active_log_bytes
        known.gone_ids = {1, 2}
        report = await bookie.collect_garbage()
        assert report.reclaimed_bytes == bookie.gc.status().reclaimed_by_deletion_bytes > 10_000
        assert bookie.gc.status().active_log_bytes == 0


# -- time and configuration ------------------------------------------------------------------------


async def test_throttle(autojump_clock):
    start = trio.current_time()
    throttle = Throttle(1000)
    for _ in range(100):
        await throttle.take(50)
    # The last one is not waited for, and a tenth of a second's worth is free.
    assert 4.7 <= trio.current_time() - start <= 5
    await trio.sleep(60)
    start = trio.current_time()
    await throttle.take(1000)
    assert trio.current_time() == start, "what was not used before is not owed"
    await throttle.take(1)
    assert trio.current_time() - start == pytest.approx(0.9)
    unlimited = Throttle(0)
    start = trio.current_time()
    for _ in range(1000):
        await unlimited.take(1 << 40)
    assert trio.current_time() == start


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"minor_threshold": 0.8}, "minorCompactionThreshold=0.8: must be less"),
        ({"major_threshold": 1.1}, "majorCompactionThreshold=1.1"),
        ({"minor_interval_ms": 86_400_000}, "minorCompactionInterval=86400: must be less"),
        ({"minor_interval_ms": 1000}, "shorter than gcWaitTime"),
        ({"wait_ms": 0}, "gcWaitTime=0"),
        ({"location_interval_ms": 1000}, "entryLocationCompactionInterval=1:"),
    ],
)
def test_combinations_that_cannot_work(changes, words):
    with pytest.raises(ConfigError, match=words):
        GcConfig(**changes)


def test_what_is_disabled_is_not_compared():
    assert not GcConfig(minor_threshold=0, minor_interval_ms=1).minor_enabled
    assert not GcConfig(minor_interval_ms=-1, minor_threshold=0.9).minor_enabled
    assert GcConfig(major_interval_ms=0).minor_enabled


def test_settings_by_name():
    values = {key.name: key.parse_default() for key in keys_of(GcConfig)}
    assert gc_config(values, GcConfig(wait_ms=1)) == GcConfig()
    quick = GcConfig(wait_ms=10_000, minor_interval_ms=60_000, major_interval_ms=3_600_000)
    assert gc_config({}, quick) is not None
    assert gc_config({"majorCompactionInterval": 600}, quick).major_interval_ms == 600_000
    slow = gc_config({"gcWaitTime": 300_000}, quick)
    assert (slow.wait_ms, slow.minor_interval_ms) == (300_000, 3_600_000), "BookKeeper's then"
    with pytest.raises(ConfigError, match=r"minorCompactionThreshold=0\.9: must be less"):
        gc_config({"minorCompactionThreshold": 0.9}, quick)
    # What is told are the defaults that would be in force.
    with pytest.raises(ConfigError, match="Interval=9: shorter than gcWaitTime=10000 "):
        gc_config({"entryLocationCompactionInterval": 9}, quick)


def test_tombstones_are_bounded_and_age(monkeypatch):
    monkeypatch.setattr("bookie.ledger_table.TOMBSTONES_MAX", 10)
    table = LedgerTable()
    for ledger_id in range(15):
        table.create(ledger_id, KEY)
        table.delete(ledger_id)
    assert all(table.is_deleted(ledger_id) for ledger_id in range(15))
    for ledger_id in range(15, 100):
        table.delete(ledger_id)
    assert not table.is_deleted(50)
    assert table.is_deleted(95)
    table.age_tombstones()
    assert table.is_deleted(99)
    table.age_tombstones()
    assert not table.is_deleted(99)


# -- the index -------------------------------------------------------------------------------------


def test_deleted_neighbours_do_not_stop_a_look_up(tmp_path):
    """pulsar#1737: a seek from a ledger without entries passes what was deleted before it."""
    index = RocksIndex(str(tmp_path), 1 << 20)
    index.open()
    try:
        for ledger_id in range(300):
            index.put(ledger_id, range(100), [1 << 32 | 4] * 100)
        index.sync()
        index.delete_ledgers(range(1, 300))
        index.sync()
        assert (
            int(index._locations.rocks.property_int_value("rocksdb.num-entries-active-mem-table"))
            < 10
        )
        assert index.last_entry_id(1000) == -1
        assert index.last_entry_id(150) == -1
        assert index.last_entry_id(0) == 99
        assert index.get_many([(0, 5), (7, 5), (0, 100)]) == [1 << 32 | 4, 0, 0]
        index.compact()
        files = index._locations.rocks.live_files()
        assert sum(file["num_deletions"] for file in files) == 0
        assert index.get(0, 99) == 1 << 32 | 4
    finally:
        index.close()


async def test_compacting_entry_locations_by_hand_and_by_time(
    machine_class, known, adds_class, autojump_clock, monkeypatch
):
    machine = machine_class(gc=GcConfig(wait_ms=1000, location_interval_ms=10_000))
    machine.known_ledgers = known
    calls = []
    monkeypatch.setattr(type(machine.index), "compact", lambda self: calls.append(1))
    async with machine.running() as bookie:
        await bookie.compact_entry_locations()
        assert len(calls) == 1
        assert bookie.gc.status().last_location_ms is not None
        await trio.sleep(35)
        assert 3 <= len(calls) <= 4


async def test_metadata_that_cannot_be_trusted_keeps_all_and_is_told_once(
    machine, known, adds_class, caplog
):
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2))
        known.gone_ids = {1}
        known.refusal = "LAYOUT is missing"
        for _ in range(3):
            report = await bookie.collect_garbage()
            assert (report.deleted_ledgers, report.refusal) == (0, "LAYOUT is missing")
        assert bookie.list_ledgers() == [1, 2]
        assert bookie.gc.statistics.refused_rounds == 3
        told = [each for each in caplog.records if "LAYOUT is missing" in each.getMessage()]
        assert len(told) == 1
        known.refusal = ""
        report = await bookie.collect_garbage()
        assert (report.deleted_ledgers, report.refusal) == (1, "")
        known.refusal = "again"
        await bookie.collect_garbage()
        assert [each.getMessage() for each in caplog.records if "again" in each.getMessage()][-1:]


async def test_what_was_missing_once_is_looked_at_again_before_the_next_round(
    machine, known, adds_class, autojump_clock
):
    """gcWaitTime is ten minutes; the second look comes when it may, and is at nothing else."""
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2, 3))
        known.asked.clear()
        known.missing, known.missing_at = {2, 77}, trio.current_time() + 60
        await bookie.collect_garbage()
        assert bookie.list_ledgers() == [1, 2, 3]
        await trio.sleep(70)
        assert bookie.list_ledgers() == [1, 3]
        assert known.asked == [[1, 2, 3], "confirmed"]
        assert bookie.gc.statistics.failed_deletes == 0
        await trio.sleep(600)
        assert known.asked[2:] == [[1, 3]]


async def test_a_second_look_that_is_refused_waits_for_the_next_round(
    machine, known, adds_class, autojump_clock
):
    async with machine.running() as bookie:
        await fill(bookie, adds_class, (1, 2))
        known.asked.clear()
        known.missing, known.missing_at = {2}, trio.current_time() + 60
        await bookie.collect_garbage()
        known.refusal = "no metadata"
        await trio.sleep(500)
        assert known.asked == [[1, 2], "confirmed"]
        known.refusal = ""
        await trio.sleep(200)
        assert known.asked == [[1, 2], "confirmed", [1, 2], "confirmed"]
        assert bookie.list_ledgers() == [1]
