"""Passes over a real partition on bookies in memory: what is read afterwards."""

import random

import pytest
import trio

from broker.log.append.entry_format import HEADER_SIZE, parse_header
from broker.log.compact import plan_core
from broker.log.compact.plan_core import Due
from broker.log.life.ledger_info import NO_HORIZON
from broker.log.settings import LogSettings
from wire.kafka.records.compression import Compression


async def test_of_each_key_the_newest_stays(autojump_clock, shop, compaction):
    await shop.open()
    await shop.fill([(b"a", b"1"), (b"b", b"1")], [(b"a", b"2")])
    await shop.fill([(b"c", b"1")], [(b"b", b"2"), (b"d", b"1")])
    await shop.put((b"a", b"3"))
    before = await compaction.read_records(shop.log)
    ids, high_watermark = shop.ids(), shop.log.high_watermark
    state = await shop.compact()
    assert not state.last_error
    after = await compaction.read_records(shop.log)
    assert [record[:3] for record in after] == [
        (2, b"a", b"2"),
        (3, b"c", b"1"),
        (4, b"b", b"2"),
        (5, b"d", b"1"),
        (6, b"a", b"3"),
    ]
    assert set(after) <= set(before)
    assert compaction.table_of(after) == compaction.table_of(before)
    assert (shop.log.log_start_offset, shop.log.high_watermark) == (0, high_watermark)
    assert shop.ids()[-1] == ids[-1]
    assert len(shop.ids()) == 2
    assert shop.log.chain.cleaned_to == 6
    assert state.last.records_dropped == 2


async def test_a_horizon_pass_needs_no_dirt(autojump_clock, shop, compaction):
    """A tombstone of a quiet topic is stamped by the first pass, stays for delete.retention.ms,
    and goes by its horizon alone; what it deleted is never seen again."""
    await shop.open(delete_retention_ms=100_000)
    await shop.fill([(b"a", b"1"), (b"b", b"1")], [(b"a", None)], [(b"c", b"1")])
    await shop.compact()
    kept = [(1, b"b", b"1"), (2, b"a", None), (3, b"c", b"1")]
    first = await compaction.read_records(shop.log)
    assert [each[:3] for each in first] == kept
    [info] = shop.log.chain.ledgers
    assert info.min_horizon_ms > 0
    await trio.sleep(50)
    assert await shop.cleaner._look() is None
    await trio.sleep(60)
    candidate = await shop.cleaner._look()
    assert candidate.plan.due is Due.HORIZON
    await shop.cleaner._clean(candidate)
    after = await compaction.read_records(shop.log)
    assert [each[:3] for each in after] == [kept[0], kept[2]]
    assert {each[3] for each in first} >= {each[3] for each in after}
    assert shop.log.chain.ledgers[0].min_horizon_ms == NO_HORIZON
    assert await shop.cleaner._look() is None


async def test_a_replacement_is_as_early_as_the_earliest_of_its_sources(autojump_clock, shop):
    """Where it is known of all; what was left of them is not looked at."""
    await shop.open()
    await shop.fill([(b"a", b"1")], base_timestamp=6000)
    await shop.fill([(b"a", b"2")], base_timestamp=7000)
    assert [info.min_timestamp for info in shop.log.chain.ledgers] == [6000, 7000]
    await shop.compact()
    [info] = shop.log.chain.ledgers
    assert (info.is_compacted, info.min_timestamp) == (True, 6000)


async def test_the_open_ledger_is_left_alone_and_a_closed_last_is_not(autojump_clock, shop):
    await shop.open()
    await shop.put((b"a", b"1"), (b"a", b"2"))
    shop.cleaner.ask(shop.log)
    assert await shop.cleaner._look() is None
    await shop.roll()
    await shop.compact()
    assert shop.log.chain.cleaned_to == shop.log.high_watermark == 2
    assert shop.log.chain.ledgers[0].generation == 1


async def test_keyless_records_of_before_go(autojump_clock, shop, compaction):
    await shop.open(cleanup_policy="delete")
    await shop.fill([(None, b"1"), (b"", b"2"), (None, b"3"), (b"a", b"")])
    await shop.set_config(cleanup_policy="compact", segment_ms=1000)
    await shop.compact()
    records = await compaction.read_records(shop.log)
    assert [each[:3] for each in records] == [(1, b"", b"2"), (3, b"a", b"")]


async def test_what_is_asked_by_time_is_answered_from_what_is_left(
    autojump_clock, shop, compaction
):
    await shop.open()
    now = compaction.now
    await shop.fill(
        [(b"a", b"1"), (b"b", b"1")], [(b"c", b"1"), (b"b", b"2")], [(b"a", b"2"), (b"x", b"1")]
    )
    for number, stamp in enumerate((100, 200)):
        await shop.fill([(b"n%d" % number, b"1"), (b"n", b"1")], base_timestamp=now + stamp)
    await shop.compact()
    records = await compaction.read_records(shop.log)
    for time in {each[3] + step for each in records for step in (-1, 0, 1)}:
        expected = next(((each[0], each[3]) for each in records if each[3] >= time), None)
        assert await shop.log.reader.offset_for_timestamp(time) == expected
    latest = max(each[3] for each in records)
    first = next((each[0], each[3]) for each in records if each[3] == latest)
    assert await shop.log.reader.max_timestamp_offset() == first


async def test_fetch_from_every_offset(autojump_clock, shop, compaction):
    """Also from within holes, with little room, before and after a take-over (cold caches)."""
    await shop.open()
    for number in range(4):
        await shop.fill(*([(b"k%d" % (n % 3), b"%d" % n)] for n in range(number, 7)))
    before = await compaction.read_records(shop.log)
    await shop.compact()
    log = shop.log
    whole = await compaction.read_records(log)
    assert len(whole) < len(before)
    for _ in range(2):
        for offset in range(log.high_watermark + 1):
            wanted = [each for each in whole if each[0] >= offset]
            for size in (1, 100, 1 << 16):
                assert await compaction.read_records(log, offset, size) == wanted
        log = await shop.take_over()


async def test_idempotent_producers_go_on(autojump_clock, shop, compaction):
    """What a producer sent last was compacted away: duplicates are known and its next batch is
    taken, also behind a take-over."""
    await shop.open()
    ids = {"producer_id": 7, "producer_epoch": 0}
    await shop.put((b"a", b"1"), base_sequence=0, **ids)
    await shop.put((b"a", b"2"), base_sequence=1, **ids)
    await shop.fill([(b"a", b"3")])
    await shop.compact()
    records = await compaction.read_records(shop.log)
    assert [each[:3] for each in records] == [(2, b"a", b"3")]
    log = await shop.take_over()
    again = await log.append(compaction.keyed((b"a", b"2"), base_sequence=1, **ids))
    assert again.base_offset == 1
    following = await log.append(compaction.keyed((b"b", b"1"), base_sequence=2, **ids))
    assert following.base_offset == 3


async def test_snapshot_copied_takeover_reads_no_data(autojump_clock, shop, compaction):
    await shop.open()
    await shop.put((b"a", b"1"), base_sequence=0, producer_id=7, producer_epoch=0)
    await shop.fill([(b"a", b"3")])
    await shop.fill([(b"b", b"3")])
    source = shop.log.chain.ledgers[-1]
    reader = await shop.broker.ledgers.open_ledger(source.ledger_id, recover=False)
    [snapshot] = await reader.read(source.snapshot_entry, count_max=1, size_max=1)
    snapshot = bytes(snapshot)
    await shop.compact()
    [info] = shop.log.chain.ledgers
    reader = await shop.broker.ledgers.open_ledger(info.ledger_id, recover=False)
    [copied] = await reader.read(info.snapshot_entry, count_max=1, size_max=1)
    assert bytes(copied) == snapshot
    assert info.entry_count == info.snapshot_entry + 1 == info.index_entry + 2
    reads = []
    read = shop.cluster.bookies.read

    def counted(bookie, ledger_id, entry_id, flags):
        reads.append((ledger_id, entry_id))
        return read(bookie, ledger_id, entry_id, flags)

    shop.cluster.bookies.read = counted
    await shop.take_over()
    assert set(reads) == {(info.ledger_id, info.snapshot_entry)}


@pytest.mark.parametrize("is_followed", [False, True])
async def test_recovered_source_without_seal(autojump_clock, shop, compaction, is_followed):
    """Closed by a recovery, it has no snapshot of its end. What the owner knows is that, or what
    the next ledger begins with; the ledger in its place has it, so that a take-over reads no data,
    and knows also of what was compacted away."""
    await shop.open()
    ids = {"producer_id": 7, "producer_epoch": 0}
    await shop.put((b"a", b"1"), (b"b", b"1"), base_sequence=0, **ids)
    await shop.put((b"a", b"2"), base_sequence=2, **ids)
    await shop.put((b"a", b"3"))
    log = await shop.take_over(kill=True)
    [source] = log.chain.ledgers
    assert (source.is_open, source.snapshot_entry) == (False, None)
    if is_followed:
        await shop.put((b"c", b"1"), log=log)
        await trio.sleep(0.5)
        assert log.chain.ledgers[-1].is_open
    known = [each() for each in log.producers.snapshot()] if not is_followed else None
    await shop.compact(log)
    info = log.chain.ledgers[0]
    assert (info.generation, info.snapshot_entry) == (1, info.index_entry + 1)
    reader = await shop.broker.ledgers.open_ledger(info.ledger_id, recover=False)
    [payload] = await reader.read(info.snapshot_entry, count_max=1, size_max=1)
    assert parse_header(payload).first_offset == info.end_offset == 4
    if known is not None:
        assert [bytes(payload[HEADER_SIZE:])] == known
    log = await shop.take_over()
    records = await compaction.read_records(log)
    assert [each[:3] for each in records][:2] == [(1, b"b", b"1"), (3, b"a", b"3")]
    for sequence, pairs, offset in ((2, [(b"a", b"2")], 2), (0, [(b"a", b"1"), (b"b", b"1")], 0)):
        again = await log.append(compaction.keyed(*pairs, base_sequence=sequence, **ids))
        assert again.base_offset == offset


async def test_epochs_of_merged_ledgers(autojump_clock, shop, compaction):
    await shop.open()
    await shop.fill([(b"a", b"1"), (b"b", b"1")])
    log = await shop.take_over()
    await shop.fill([(b"a", b"2")], log=log)
    log = await shop.take_over()
    before = [log.epoch_of(n) for n in range(log.high_watermark)]
    ends = [log.end_offset_for_epoch(n) for n in range(4)]
    await shop.compact(log)
    assert len(log.chain.ledgers) == 1
    assert [log.epoch_of(n) for n in range(log.high_watermark)] == before
    assert [log.end_offset_for_epoch(n) for n in range(4)] == ends
    batches = [header async for header in shop.headers(log)]
    assert [each.partition_leader_epoch for each in batches] == before[1:]


async def test_a_map_that_is_too_small_takes_more_passes(autojump_clock, shop, compaction):
    """The end is the same; each pass comes further, also within the first ledger."""
    await shop.open()
    for number in range(3):
        pairs = [(b"k%d" % (n % 100), b"%d" % (number * 1000 + n)) for n in range(150)]
        await shop.fill(*(pairs[n : n + 10] for n in range(0, 150, 10)))
    before = compaction.table_of(await compaction.read_records(shop.log))
    shop.settings.map_bytes_max = 70 * 24
    places = []
    while shop.log.chain.cleaned_to < shop.log.high_watermark:
        places.append(shop.log.chain.cleaned_to)
        state = await shop.compact()
        assert not state.last_error
        assert shop.log.chain.cleaned_to > places[-1]
        assert compaction.table_of(await compaction.read_records(shop.log)) == before
    assert len(places) > 3
    assert any(0 < place < 150 for place in places), "it ended within the first ledger"
    shop.settings.map_bytes_max = 1 << 30
    await shop.fill([(b"end", b"1")])
    await shop.compact()
    records = await compaction.read_records(shop.log)
    assert len(records) == 101
    assert compaction.table_of(records) == before | {b"end": b"1"}


async def test_nothing_is_written_where_nothing_is_to_go(autojump_clock, shop, compaction):
    await shop.open()
    await shop.fill(*([(b"k%d" % n, b"1")] for n in range(5)))
    ids = shop.ids()
    stored = shop.stored_ids()
    state = await shop.compact()
    assert shop.ids() == ids
    assert shop.stored_ids() == stored
    assert shop.log.chain.cleaned_to == 5
    assert (state.last.groups_written, state.last.records_dropped) == (0, 0)


async def test_batches_that_span_entries(autojump_clock, shop, compaction):
    """Of the source and of the ledger that is written; what is in front of the first change is
    copied as it is."""
    settings = LogSettings(entry_bytes_target=400, entry_bytes_max=500)
    await shop.open(settings=settings)
    await shop.fill(
        *([(b"k%d" % n, b"%d" % n * 300)] for n in range(20)),
        [(b"big", b"." * 3000)],
        [(b"k19", b"new")],
    )
    before = await compaction.read_records(shop.log)
    await shop.compact()
    [info] = shop.log.chain.ledgers
    after = await compaction.read_records(shop.log)
    assert after == [each for each in before if each[0] != 19]
    assert info.size_bytes > 0
    log = await shop.take_over()
    assert await compaction.read_records(log) == after


@pytest.mark.parametrize("seed", range(6))
async def test_histories(autojump_clock, shop, compaction, seed):
    """Random writes, rolls, passes and take-overs: the table is that of the full log, no record
    changes, and what is gone has a newer one of its key."""
    await shop.open(delete_retention_ms=30_000)
    rng = random.Random(seed)
    full, last, log = {}, {}, shop.log
    for _ in range(60):
        what = rng.random()
        if what < 0.6:
            pairs = [
                (b"k%d" % rng.randrange(12), rng.choice((None, b"v%d" % rng.randrange(1000))))
                for _ in range(rng.randrange(1, 6))
            ]
            base = await shop.put(*pairs, log=log)
            for number, (key, value) in enumerate(pairs):
                full[base + number] = (key, value)
                last[key] = base + number
        elif what < 0.75:
            await shop.roll(log)
        elif what < 0.95:
            shop.settings.map_bytes_max = rng.choice((96, 240, 1 << 30))
            candidate = await shop.cleaner._look()
            if candidate is not None:
                await shop.cleaner._clean(candidate)
                assert not shop.cleaner.state_of(log).last_error
        else:
            log = await shop.take_over(kill=rng.random() < 0.5)
        records = await compaction.read_records(log)
        for offset, key, value, _ in records:
            assert full[offset] == (key, value)
        there = {each[0] for each in records}
        for offset, (key, value) in full.items():
            if offset not in there:
                assert last[key] > offset or value is None
        expected = {key: full[n][1] for key, n in last.items() if full[n][1] is not None}
        assert compaction.table_of(records) == expected
    assert any(info.generation for info in shop.log.chain.ledgers)


async def test_many_small_ledgers_are_joined(autojump_clock, shop, compaction, monkeypatch):
    """Also where nothing is to go: the document has a line for each."""
    monkeypatch.setattr(plan_core, "JOIN_LEDGERS", 10)
    await shop.open()
    for number in range(15):
        await shop.fill([(b"k%d" % number, b"1")])
    before = await compaction.read_records(shop.log)
    await shop.compact()
    assert len(shop.ids()) == 1
    assert await compaction.read_records(shop.log) == before
    for number in range(12):
        await shop.fill([(b"l%d" % number, b"1")])
    while (candidate := await shop.cleaner._look()) is not None:
        await shop.cleaner._clean(candidate)
    assert len(shop.ids()) == 1
    assert len(await compaction.read_records(shop.log)) == 27


@pytest.mark.parametrize("codec", list(Compression))
async def test_codecs(autojump_clock, shop, compaction, codec):
    """Small batches are unpacked on the loop, large ones by a worker."""
    await shop.open()
    jobs = []

    class Disk:
        async def run(self, function):
            jobs.append(function)
            await trio.lowlevel.checkpoint()
            return function()

    object.__setattr__(shop.broker.env, "disk", Disk())
    rng = random.Random(3)
    await shop.put((b"a", b"1"), (b"b", rng.randbytes(30_000)), (b"c", b"1"), compression=codec)
    await shop.fill([(b"a", b"2")], [(b"c", None)], compression=codec)
    full = compaction.table_of(await compaction.read_records(shop.log))
    await shop.compact()
    records = await compaction.read_records(shop.log)
    assert compaction.table_of(records) == full
    assert [each[0] for each in records] == [1, 3, 4]
    assert bool(jobs) == (codec is not Compression.NONE)


async def test_compacted_flag_off_then_on_keeps_cleaned_to(autojump_clock, shop, compaction):
    """What was clean stays so: the next pass maps what came meanwhile, keyless records too, which
    go, and the old value of a key in the clean part."""
    await shop.open()
    await shop.fill([(b"a", b"1"), (b"b", b"1")], [(b"c", b"1")])
    await shop.compact()
    assert shop.log.chain.cleaned_to == 3
    await shop.set_config(cleanup_policy="delete", segment_ms=1000)
    await shop.fill([(None, b"keyless"), (b"a", b"2")])
    assert await shop.cleaner._look() is None
    assert shop.log.chain.cleaned_to == 3
    log = await shop.take_over()
    assert log.chain.cleaned_to == 3
    await shop.set_config(cleanup_policy="compact", segment_ms=1000)
    state = await shop.compact()
    assert state.last.keys == 1
    assert log.chain.cleaned_to == 5
    records = await compaction.read_records(log)
    assert [each[:3] for each in records] == [(1, b"b", b"1"), (2, b"c", b"1"), (4, b"a", b"2")]


async def test_a_map_that_is_full_later_ends_at_a_ledger(autojump_clock, shop, compaction):
    """So that nothing counts as looked at that is not in the map."""
    await shop.open()
    for first in (0, 30, 0, 30):
        await shop.fill(*([(b"k%d" % n, b"%d" % n)] for n in range(first, first + 30)))
    shop.settings.map_bytes_max = 50 * 24
    await shop.compact()
    assert shop.log.chain.cleaned_to == 30
    while shop.log.chain.cleaned_to < 120:
        await shop.compact()
        assert shop.log.chain.cleaned_to % 30 == 0
    shop.settings.map_bytes_max = 1 << 30
    await shop.fill([(b"end", b"1")])
    await shop.compact()
    assert [each[0] for each in await compaction.read_records(shop.log)] == list(range(60, 121))
