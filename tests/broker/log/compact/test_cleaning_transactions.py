"""Passes over logs with transactions, on bookies in memory: what readers of committed records see
before and after, whatever passes, crashes and take-overs there were."""

import random
from dataclasses import replace
from functools import partial

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from broker.log.compact.plan_core import Blocker, Due
from broker.log.life.ledger_info import NO_HORIZON
from broker.log.transactions.aborted_list import AbortedCache, AbortedLists
from ledger.errors import NoSuchLedgerError
from tests.broker.log.compact.conftest import Shop, table_of
from tests.broker.log.compact.consumers import (
    CONSUMERS,
    batches_of,
    by_lists,
    is_abort,
    java,
    read_committed,
)
from wire.kafka.errors import WireError
from wire.kafka.records.control import EndTransactionMarker

#: Producers with sequence numbers, as clients have, and one without, as for groups' offsets.
PRODUCERS = (10, 11, 12)
UNSEQUENCED = 12


class Transactions:
    """Writes transactions to a shop's partition, and knows what became of each record."""

    def __init__(self, shop):
        self.shop = shop
        self.sequences = {}
        #: Numbers of transactions: by the offsets of their records, and what is open by producer.
        self.numbers = {}
        self.open = {}
        self.firsts = []
        self.is_committed = {}

    async def put(self, *pairs, pid=None):
        options = {}
        if pid is not None:
            if pid not in self.open:
                self.open[pid] = len(self.firsts)
                self.firsts.append(self.shop.log.next_offset)
            options = {"producer_id": pid, "producer_epoch": 0, "is_transactional": True}
            if pid != UNSEQUENCED:
                sequence = self.sequences.get(pid, 0)
                options["base_sequence"] = sequence
                self.sequences[pid] = sequence + len(pairs)
        base = await self.shop.put(*pairs, **options)
        if pid is not None:
            self.numbers.update(dict.fromkeys(range(base, base + len(pairs)), self.open[pid]))
        return base

    async def end(self, pid, *, commit, coordinator_epoch=0):
        """Of some it ends nothing."""
        done = trio.Event()
        answers = []
        marker = EndTransactionMarker(commit, coordinator_epoch)

        def answered(append):
            answers.append(append)
            done.set()

        self.shop.log.append_marker(pid, 0, marker, 0, answered)
        with trio.fail_after(60):
            await done.wait()
        assert not answers[0].error, answers[0].error
        number = self.open.pop(pid, None)
        if number is not None:
            self.is_committed[number] = commit
        return answers[0].base_offset

    def committed(self):
        """(offset, key, value) of what readers of committed records are to see of the full log."""
        stable = min((self.firsts[each] for each in self.open.values()), default=1 << 60)
        return [
            (offset, key, value)
            for offset, key, value in self.shop.written
            if offset < stable and self.is_committed.get(self.numbers.get(offset), True)
        ]

    async def check(self, rng, tries=4):
        log = self.shop.log
        wanted = self.committed()
        table = table_of((*each, 0) for each in wanted)
        newest = {key: offset for offset, key, _ in wanted}
        for consumer in CONSUMERS:
            found = await read_committed(log, consumer)
            assert set(found) <= set(wanted), "aborted, or not what was written"
            assert table_of((*each, 0) for each in found) == table
            there = {each[0] for each in found}
            for offset, key, value in wanted:
                assert offset in there or newest[key] > offset or value is None
            for _ in range(tries):
                offset = rng.randint(0, log.high_watermark)
                part = await read_committed(log, consumer, offset, rng.choice((1, 150, 1 << 20)))
                assert part == [each for each in found if each[0] >= offset]
        await self.check_rows()

    async def check_rows(self):
        """An aborted transaction is listed => its marker is there, with its record."""
        log = self.shop.log
        markers, offset = set(), 0
        while offset < log.high_watermark:
            got = await log.read(offset, 1 << 20)
            for header, batch in batches_of(got.parts):
                if is_abort(header, batch):
                    markers.add((header.producer_id, header.base_offset))
            offset = got.next_offset
        rows = await log.reader.read_aborted(0, 1 << 60)
        assert {(row.producer_id, row.last_offset) for row in rows} <= markers
        return rows


def with_segments(log, segment_bytes):
    """Smaller ones than a topic may have, so that few records make several groups."""
    log.config = replace(log.config, segment_bytes=segment_bytes)


@pytest.fixture
def transactions(shop):
    return Transactions(shop)


async def test_aborted_data_gone_marker_stays_then_goes(
    autojump_clock, shop, transactions, compaction
):
    await shop.open(delete_retention_ms=100_000)
    await transactions.put((b"a", b"1"))
    await transactions.put((b"a", b"2"), (b"x", b"1"), pid=10)
    marker = await transactions.end(10, commit=False)
    await transactions.put((b"b", b"1"))
    await shop.roll()
    assert shop.log.chain.ledgers[0].aborted_count == 1
    assert not (await shop.compact()).last_error
    [info] = shop.log.chain.ledgers
    # The header of the producer's last data stays, for its sequence, and so the entry does.
    assert (info.aborted_count, info.aborted_entry) == (1, info.index_entry + 1)
    assert info.min_horizon_ms == NO_HORIZON
    rng = random.Random(1)
    await transactions.check(rng)
    records = await compaction.read_records(shop.log)
    assert [each[:2] for each in records if each[0] != marker] == [(0, b"a"), (4, b"b")]
    # A later transaction of the producer: the header goes, in the next pass the entry, and the
    # marker with its horizon.
    await transactions.put((b"c", b"1"), pid=10)
    await transactions.end(10, commit=True)
    await shop.roll()
    for _ in range(2):
        await shop.compact()
        await transactions.check(rng)
        await shop.fill([(b"d", b"1")])
    info = shop.log.chain.ledgers[0]
    assert info.aborted_count == 0
    assert info.min_horizon_ms > 0
    assert marker in [each[0] for each in await compaction.read_records(shop.log)]
    await trio.sleep(110)
    candidate = await shop.cleaner._look()
    assert candidate.plan.due is Due.HORIZON
    await shop.cleaner._clean(candidate)
    await transactions.check(rng)
    assert marker not in [each[0] for each in await compaction.read_records(shop.log)]


async def test_index_entry_implies_marker_committed_after_abort_visible(
    autojump_clock, shop, transactions
):
    """Java would drop what the producer commits after an entry whose marker is gone."""
    await shop.open(delete_retention_ms=1_000)
    rng = random.Random(2)
    for number in range(4):
        await transactions.put((b"a%d" % number, b"1"), pid=10)
        await transactions.end(10, commit=number % 2 == 1)
        await shop.roll()
        await shop.compact()
        await trio.sleep(3)
        await transactions.check(rng)


async def test_marker_behind_the_range_still_decides(autojump_clock, shop, transactions):
    """The abort marker lies in the open ledger, where no pass comes to."""
    await shop.open()
    await transactions.put((b"a", b"old"))
    await transactions.put((b"a", b"new"), pid=10)
    await shop.roll()
    await transactions.end(10, commit=False)
    assert shop.log.writer is not None
    await shop.compact()
    assert shop.log.chain.cleaned_to == 2
    assert await read_committed(shop.log, java) == [(0, b"a", b"old")]
    await transactions.check(random.Random(3))
    assert len(await transactions.check_rows()) == 1


async def test_a_killed_owners_transaction_that_the_next_one_aborts(
    autojump_clock, shop, transactions
):
    """As Kafka Streams' changelogs over a broker's kill: what was committed of a key is its value,
    though the ledger that the kill ended has a newer one, whose abort marker is in the next."""
    await shop.open()
    await transactions.put((b"a", b"1"), (b"b", b"1"), pid=10)
    await transactions.end(10, commit=True)
    await transactions.put((b"a", b"2"), (b"b", b"2"), pid=10)
    await shop.take_over(kill=True)
    assert shop.log.last_stable_offset == 3
    await transactions.end(10, commit=False)
    assert shop.log.writer is not None
    assert not (await shop.compact()).last_error
    assert shop.log.chain.cleaned_to == 5
    assert await read_committed(shop.log, java) == [(0, b"a", b"1"), (1, b"b", b"1")]
    await shop.roll()
    await shop.take_over()
    await transactions.check(random.Random(5))


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_transaction_that_began_before_the_first_ledger_that_is_read(
    autojump_clock, shop, transactions, is_gone
):
    """In the clean part, for the map; before the log start, for the copy: its entry begins in a
    ledger that nobody reads."""
    await shop.open()
    await transactions.put((b"a", b"1"), (b"c", b"1"))
    await transactions.put((b"b", b"1"), pid=10)
    await shop.roll()
    await transactions.put((b"a", b"aborted"), pid=10)
    await transactions.end(10, commit=False)
    await shop.compact()
    assert shop.log.chain.cleaned_to == 3
    await transactions.put((b"c", b"2"))
    await shop.roll()
    if is_gone:
        await shop.broker.manager.delete_records("t", 0, 3)
        with trio.fail_after(60):
            while len(shop.log.chain.ledgers) > 1:
                await trio.sleep(0.1)
    assert not (await shop.compact()).last_error
    start = shop.log.log_start_offset
    found = await read_committed(shop.log, by_lists, start)
    wanted = [(5, b"c", b"2")] if is_gone else [(0, b"a", b"1"), (5, b"c", b"2")]
    assert found == await read_committed(shop.log, java, start) == wanted


async def test_transaction_over_three_groups(autojump_clock, shop, transactions):
    await shop.open()
    with_segments(shop.log, 400)
    for number in range(3):
        await transactions.put((b"a", b"." * 300 + b"%d" % number), pid=10)
        await transactions.put((b"b", b"." * 30), pid=11)
        await shop.roll()
    await transactions.end(10, commit=False)
    await transactions.end(11, commit=True)
    await transactions.put((b"z", b"1"))
    await shop.roll()
    assert len(shop.log.chain.ledgers) == 4
    assert not (await shop.compact()).last_error
    await transactions.check(random.Random(4), tries=20)
    assert await read_committed(shop.log, by_lists) == transactions.committed()[2:]


async def test_open_transaction_bounds_pass_and_releases_it(autojump_clock, shop, transactions):
    await shop.open()
    await shop.fill([(b"a", b"1")], [(b"a", b"2")])
    await transactions.put((b"a", b"3"), pid=10)
    await shop.roll()
    await shop.fill([(b"a", b"4")])
    state = await shop.compact()
    assert state.plan.blocked_by is Blocker.LAST_STABLE_OFFSET
    assert shop.log.chain.cleaned_to == 2
    await transactions.end(10, commit=True)
    await shop.roll()
    await shop.compact()
    assert shop.log.chain.cleaned_to == shop.log.high_watermark
    assert [each[2] for each in await read_committed(shop.log, java)] == [b"4"]


async def test_producer_only_markers_epoch_kept(autojump_clock, shop, transactions, compaction):
    """What is left of a producer whose data were all superseded is known to the next owner."""
    await shop.open(delete_retention_ms=1_000)
    await transactions.put((b"a", b"1"), pid=UNSEQUENCED)
    await transactions.end(UNSEQUENCED, commit=True, coordinator_epoch=5)
    await transactions.put((b"a", b"2"))
    await shop.roll()
    for _ in range(3):
        await shop.compact() if shop.log.chain.cleaned_to < 3 else None
        await trio.sleep(3)
        if (candidate := await shop.cleaner._look()) is not None:
            await shop.cleaner._clean(candidate)
        await shop.fill([(b"z", b"1")])
    log = await shop.take_over()
    known = {pid: epoch for pid, _, epoch in log.producers.last_places(1 << 60)}
    assert known[UNSEQUENCED] == 0
    for _ in range(3):
        await shop.fill([(b"z", b"1")])
        await shop.compact()
        await trio.sleep(3)
    # Also without a snapshot: the header of its marker is there, whose horizon is long over.
    [header] = [each async for each in shop.headers(shop.log) if each.producer_id == UNSEQUENCED]
    assert (header.is_control, header.record_count, header.producer_epoch) == (True, 0, 0)


async def test_a_horizon_pass_copies_the_index(autojump_clock, shop, transactions):
    """It looks at no data: the entries of markers that it keeps, and it keeps all of these."""
    await shop.open(delete_retention_ms=10_000)
    await transactions.put((b"a", b"1"))
    await transactions.put((b"x", b"1"), pid=10)
    await transactions.end(10, commit=False)
    await transactions.put((b"a", None))
    await shop.roll()
    await shop.compact()
    before = await transactions.check_rows()
    await trio.sleep(15)
    candidate = await shop.cleaner._look()
    assert candidate.plan.due is Due.HORIZON
    await shop.cleaner._clean(candidate)
    info = shop.log.chain.ledgers[0]
    assert (info.generation, info.aborted_count) == (2, 1)
    assert await transactions.check_rows() == before
    await transactions.check(random.Random(6))


@pytest.mark.parametrize("error", [NoSuchLedgerError(1, "gone"), WireError("cut")])
async def test_an_index_that_cannot_be_read_ends_the_pass(
    autojump_clock, shop, transactions, monkeypatch, error
):
    """Without it committed and aborted data are not to be told apart: nothing is changed."""
    await shop.open()
    await transactions.put((b"a", b"1"), pid=10)
    await transactions.end(10, commit=False)
    await shop.roll()
    ids, stored = shop.ids(), shop.stored_ids()

    async def failing(*_):
        raise error

    monkeypatch.setattr(AbortedLists, "walk", failing)
    state = await shop.compact()
    assert state.is_uncleanable
    assert (shop.ids(), shop.stored_ids()) == (ids, stored)
    monkeypatch.undo()
    await shop.compact()
    assert shop.ids() != ids


async def test_the_index_of_a_joined_ledger_is_read_whole(autojump_clock, shop, transactions):
    """More rows than one entry has, of several sources, one of which was recovered."""
    await shop.open()
    rng = random.Random(5)
    for number in range(5):
        pid = 1000 + number
        await transactions.put((b"k%d" % number, b"1"), pid=pid)
        await transactions.end(pid, commit=False)
        if number == 2:
            await shop.take_over(kill=True)
        else:
            await shop.roll()
    assert sum(info.aborted_entry is None for info in shop.log.chain.ledgers) == 1
    assert not (await shop.compact()).last_error
    [info] = shop.log.chain.ledgers
    # All five producers live, so their last headers stay, and with these the entries.
    assert info.aborted_count == 5
    await shop.take_over()
    await transactions.check(rng)
    rows = await shop.log.reader.read_aborted(0, 1 << 60)
    assert [row.producer_id for row in rows] == list(range(1000, 1005))


STEPS = st.one_of(
    st.tuples(
        st.just("put"),
        st.sampled_from([None, *PRODUCERS]),
        st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=4),
    ),
    st.tuples(
        st.just("put"),
        st.sampled_from(PRODUCERS),
        st.lists(st.tuples(st.integers(0, 5), st.just(False)), min_size=1, max_size=2),
    ),
    st.tuples(st.just("end"), st.sampled_from(PRODUCERS), st.booleans()),
    st.tuples(st.just("end"), st.sampled_from(PRODUCERS), st.just(False)),
    st.tuples(st.sampled_from(["roll", "roll", "pass", "pass", "small", "join", "crash", "stop"])),
    st.tuples(st.just("wait")),
)


async def run_history(sim, steps, seed):
    async with trio.open_nursery() as nursery:
        shop = Shop(sim, nursery)
        await shop.open(delete_retention_ms=20_000)
        rng = random.Random(seed)
        transactions = Transactions(shop)
        for number, step in enumerate(steps):
            await take_step(shop, transactions, step, number)
            if step[0] in ("pass", "small", "join", "crash", "stop"):
                await transactions.check(rng)
        for pid in list(transactions.open):
            await transactions.end(pid, commit=rng.random() < 0.5)
        await shop.roll()
        for _ in range(4):
            await clean(shop)
            await transactions.check(rng)
            await trio.sleep(30)
        if rng.random() < 0.5:
            shop.log.transactions.aborted._cache = AbortedCache(0)
        await shop.take_over(kill=rng.random() < 0.5)
        await transactions.check(rng)
        nursery.cancel_scope.cancel()


async def take_step(shop, transactions, step, number):
    kind = step[0]
    if kind == "put":
        pairs = [(b"k%d" % key, None if is_null else b"v%d" % number) for key, is_null in step[2]]
        await transactions.put(*pairs, pid=step[1])
    elif kind == "end":
        await transactions.end(step[1], commit=step[2])
    elif kind == "roll":
        await shop.roll()
    elif kind in ("crash", "stop"):
        await shop.take_over(kill=kind == "crash")
    elif kind == "wait":
        await trio.sleep(15)
    else:
        shop.settings.map_bytes_max = 96 if kind == "small" else 1 << 30
        with_segments(shop.log, 1 << 20 if kind == "join" else 600)
        await clean(shop)


async def clean(shop):
    """As the cleaner would, also where nothing but somebody's wish makes it due."""
    shop.cleaner.ask(shop.log)
    candidate = await shop.cleaner._look()
    if candidate is not None:
        await shop.cleaner._clean(candidate)
        state = shop.cleaner.state_of(shop.log)
        assert not state.last_error, state.last_error


@given(steps=st.lists(STEPS, min_size=5, max_size=60), seed=st.integers(0, 1000))
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_random_histories(sim, steps, seed):
    trio.run(partial(run_history, sim), steps, seed, clock=MockClock(autojump_threshold=0))
