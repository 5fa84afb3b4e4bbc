"""How passes end early: what moves, stops, fails or is damaged; and what is left behind."""

import pytest
import trio

from broker.log.life import keeper as keeper_module
from broker.log.life.orphans import sweep_orphans
from broker.log.partition import State
from ledger.errors import LedgerError


async def filled(shop, **configs):
    """Two closed ledgers in which every key but one is superseded."""
    await shop.open(**configs)
    await shop.fill(*([(b"k", b"%d" % n), (b"l", b"1")] for n in range(10)))
    await shop.fill(*([(b"k", b"%d" % n), (b"l", b"2")] for n in range(10)))
    return shop.log


class Halt:
    """Stops a pass where it is about to do something: `reached` tells, `go` lets it."""

    def __init__(self, monkeypatch, owner, name, *, after=0):
        self.reached, self.go = trio.Event(), trio.Event()
        self.count = after
        original = getattr(owner, name)

        async def halting(*args, **options):
            self.count -= 1
            if self.count < 0:
                self.reached.set()
                await self.go.wait()
            return await original(*args, **options)

        monkeypatch.setattr(owner, name, halting)


@pytest.fixture
def started(shop, nursery):
    """Begins a pass and gives the state of the partition's cleaning."""

    async def start(log):
        shop.cleaner.ask(log)
        candidate = await shop.cleaner._look()
        nursery.start_soon(shop.cleaner._clean, candidate)
        return candidate.state

    return start


async def until(condition, seconds=30):
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.01)


def halt_at_close(monkeypatch, shop):
    from ledger.writer import LedgerWriter

    return Halt(monkeypatch, LedgerWriter, "close")


async def nothing_is_left(shop, ids):
    """The chain and the store have the ledgers that they had."""
    assert shop.ids() == ids
    assert shop.stored_ids() == set(ids)


async def test_policy_removed_mid_pass_aborts_and_leaves_no_orphan(
    autojump_clock, shop, started, compaction, monkeypatch
):
    log = await filled(shop)
    ids, before = shop.ids(), await compaction.read_records(log)
    halt = halt_at_close(monkeypatch, shop)
    state = await started(log)
    await halt.reached.wait()
    assert len(shop.stored_ids()) == 3
    begun = trio.current_time()
    await shop.set_config(cleanup_policy="delete")
    await until(lambda: state.running is None)
    assert trio.current_time() - begun < 0.5
    await nothing_is_left(shop, ids)
    assert "not to be compacted" in state.last_error
    assert await compaction.read_records(log) == before
    assert log.chain.cleaned_to == 0
    halt.go.set()
    await shop.set_config(cleanup_policy="compact", segment_ms=1000)
    await trio.sleep(2)
    await shop.compact()
    assert log.chain.cleaned_to == 40


async def test_a_topic_that_is_deleted(autojump_clock, shop, started, monkeypatch):
    log = await filled(shop)
    halt = halt_at_close(monkeypatch, shop)
    state = await started(log)
    await halt.reached.wait()
    await shop.broker.catalog.delete("t")
    await until(lambda: state.running is None)
    assert log.state is State.OFFLINE
    await until(lambda: not shop.stored_ids())


async def test_a_hand_over_does_not_wait(autojump_clock, shop, started, compaction, monkeypatch):
    log = await filled(shop)
    ids, before = shop.ids(), await compaction.read_records(log)
    other = await shop.cluster.start(shop.nursery, 2)
    halt = halt_at_close(monkeypatch, shop)
    state = await started(log)
    await halt.reached.wait()
    begun = trio.current_time()
    shop.cluster.assignments.assign(shop.cluster.topic.id, 0, 2)
    after = await shop.online(other)
    assert trio.current_time() - begun < 1
    await until(lambda: state.running is None)
    assert shop.ids(after) == ids
    assert shop.stored_ids() == set(ids)
    assert await compaction.read_records(after) == before


async def test_a_pass_ends_as_soon_as_its_partition_closes(
    autojump_clock, shop, started, monkeypatch
):
    """Its last ledger may still be on the way to being closed: the pass is in the way of that."""
    log = await filled(shop)
    ids = shop.ids()
    halt = halt_at_close(monkeypatch, shop)
    state = await started(log)
    await halt.reached.wait()
    log.is_closing = True
    await until(lambda: state.running is None)
    assert log.state is State.ONLINE
    assert "handed over" in state.last_error
    await nothing_is_left(shop, ids)
    log.is_closing = False


async def test_a_stop_does_not_wait(autojump_clock, shop, nursery, monkeypatch):
    log = await filled(shop)
    ids = shop.ids()
    halt = halt_at_close(monkeypatch, shop)
    scope = trio.CancelScope()

    async def run():
        with scope:
            await shop.cleaner.run()

    shop.cleaner.ask(log)
    nursery.start_soon(run)
    await halt.reached.wait()
    scope.cancel()
    await trio.sleep(0.1)
    await nothing_is_left(shop, ids)


async def test_retention_takes_a_source(autojump_clock, shop, started, compaction, monkeypatch):
    """The group is given up, and with it the pass; nothing after it is stamped."""
    log = await filled(shop, cleanup_policy="compact,delete", segment_bytes=1048576)
    halt = halt_at_close(monkeypatch, shop)
    state = await started(log)
    await halt.reached.wait()
    ids = shop.ids()
    await shop.broker.manager.delete_records("t", 0, 25)
    assert shop.ids() == ids[1:]
    halt.go.set()
    await until(lambda: state.running is None)
    assert "gone" in state.last_error
    assert log.chain.cleaned_to == 0
    await until(lambda: shop.stored_ids() == set(shop.ids()))
    assert log.log_start_offset == 25
    await trio.sleep(2)
    await shop.compact()
    records = await compaction.read_records(log)
    assert [each[:3] for each in records] == [(38, b"k", b"9"), (39, b"l", b"2")]


async def test_a_log_start_within_a_source(autojump_clock, shop, compaction):
    log = await filled(shop, cleanup_policy="compact,delete")
    await shop.broker.manager.delete_records("t", 0, 39)
    await shop.compact()
    assert [each[:3] for each in await compaction.read_records(log)] == [(39, b"l", b"2")]
    assert (log.log_start_offset, log.high_watermark) == (39, 40)


async def test_a_group_of_which_all_is_gone_is_passed_over(
    autojump_clock, shop, started, compaction, monkeypatch
):
    """Retention took it between map and copy: what it had is gone, so the pass goes on."""
    log = await filled(shop, cleanup_policy="compact,delete", segment_bytes=1048576)
    big = b"." * 600_000
    await shop.fill([(b"big", big)])
    await shop.fill([(b"big", big)], [(b"k", b"new")])
    from broker.log.compact.cleaning import Pass

    halt = Halt(monkeypatch, Pass, "_rules")
    state = await started(log)
    await halt.reached.wait()
    await shop.broker.manager.delete_records("t", 0, 40)
    halt.go.set()
    await until(lambda: state.running is None)
    assert not state.last_error or "gone" in state.last_error
    await trio.sleep(2)
    await shop.compact()
    records = await compaction.read_records(log)
    assert [each[:2] for each in records] == [(41, b"big"), (42, b"k")]


async def test_a_deposed_cleaner_changes_nothing(
    autojump_clock, shop, started, compaction, monkeypatch
):
    """It lost the partition and does not know; its compare-and-set fails, sources are whole, and
    the sweep deletes what it made."""
    log = await filled(shop)
    before, ids = await compaction.read_records(log), shop.ids()
    other = await shop.cluster.start(shop.nursery, 2)
    halt = halt_at_close(monkeypatch, shop)
    state = await started(log)
    await halt.reached.wait()
    shop.broker.wire.freeze()
    shop.broker.ownership.is_deaf = True
    shop.cluster.assignments.alive.discard(shop.broker.incarnation)
    shop.cluster.assignments.assign(shop.cluster.topic.id, 0, 2)
    after = await shop.online(other)
    shop.broker.wire.thaw()
    halt.go.set()
    await until(lambda: state.running is None)
    assert log.state is State.OFFLINE
    assert shop.ids(after) == ids
    assert await compaction.read_records(after) == before
    await sweep_orphans(other.store, other.ledgers)
    assert shop.stored_ids() == set(ids)


@pytest.mark.parametrize("is_done", [False, True])
async def test_the_answer_to_the_swap_is_lost(
    autojump_clock, shop, compaction, is_done, monkeypatch
):
    """Whichever it was, the log is whole, and no ledger is lost or left."""
    log = await filled(shop)
    before = compaction.table_of(await compaction.read_records(log))
    store, lost = shop.broker.store, [1]
    change = type(store)._change

    async def losing(self, path, function):
        if self is store and path.startswith("/quire/partitions/") and lost:
            lost.clear()
            if is_done:
                await function()
            from metadata.store import MetadataUnknownOutcomeError

            raise MetadataUnknownOutcomeError(path)
        return await change(self, path, function)

    monkeypatch.setattr(type(store), "_change", losing)
    state = await shop.compact()
    assert not lost
    assert not state.last_error
    assert log.state is State.ONLINE
    assert compaction.table_of(await compaction.read_records(log)) == before
    assert log.chain.cleaned_to == 40
    await trio.sleep(70)
    log.call_keeper()
    await trio.sleep(1)
    assert shop.stored_ids() == set(shop.ids())


async def test_nothing_is_deleted_while_a_swap_is_unknown(
    autojump_clock, shop, started, compaction, monkeypatch
):
    """The pass is cancelled while its compare-and-set is on its way, which is done afterwards: the
    chain names what it had made."""
    log = await filled(shop)
    before = compaction.table_of(await compaction.read_records(log))
    halt = Halt(monkeypatch, keeper_module.Keeper, "_write")
    monkeypatch.setattr("broker.log.compact.cleaning.SWAP_SECONDS", 1.0)
    state = await started(log)
    await halt.reached.wait()
    await until(lambda: state.running is None)
    assert "unknown" in state.last_error
    [made] = shop.stored_ids() - set(shop.ids())
    halt.go.set()
    await until(lambda: made in shop.ids())
    assert log.chain.cleaned_to == 40
    assert compaction.table_of(await compaction.read_records(log)) == before
    assert len(await compaction.read_records(log)) == 2


async def test_a_pass_that_ends_between_groups_has_cleaned_nothing(
    autojump_clock, shop, started, compaction, monkeypatch
):
    """One group is replaced, and the partition moves. Would the next pass take the other one for
    cleaned, it would stamp its tombstones with the values before them in place, which would be back
    once those are gone."""
    monkeypatch.setattr("broker.log.compact.plan_core.SOURCES_MAX", 1)
    await shop.open(delete_retention_ms=0)
    await shop.fill([(b"k", b"1"), (b"l", b"1")], [(b"k", b"2"), (b"l", b"2")])
    await shop.fill([(b"m", b"1"), (b"n", b"1")], [(b"m", None), (b"n", b"2")])
    halt = Halt(monkeypatch, keeper_module.Keeper, "swap", after=1)
    await started(shop.log)
    await halt.reached.wait()
    assert [info.generation for info in shop.log.chain.ledgers] == [1, 0]
    assert shop.log.chain.cleaned_to == 0
    halt.go.set()
    log = await shop.take_over(kill=True)
    assert log.chain.cleaned_to == 0
    for _ in range(3):
        await shop.cleaner._look()
        if (candidate := await shop.cleaner._look()) is not None:
            await shop.cleaner._clean(candidate)
    assert log.chain.cleaned_to == 8
    left = {key: value for _, key, value, _ in await compaction.read_records(log)}
    assert left == {b"k": b"2", b"l": b"2", b"n": b"2"}


async def test_a_horizon_counts_from_its_group_on(
    autojump_clock, shop, started, compaction, monkeypatch
):
    """A pass that takes longer than delete.retention.ms: tombstones of its later groups would go as
    soon as it is done, before whoever has read what they delete comes to them."""
    monkeypatch.setattr("broker.log.compact.plan_core.SOURCES_MAX", 1)
    await shop.open(delete_retention_ms=5_000)
    for key in (b"k", b"m"):
        await shop.fill([(key, b"1"), (key, None)])
    halt = Halt(monkeypatch, keeper_module.Keeper, "swap")
    state = await started(shop.log)
    await halt.reached.wait()
    await trio.sleep(60)
    second_ms = shop.broker.env.clock.time_ms()
    halt.go.set()
    await until(lambda: state.running is None)
    first, second = (info.min_horizon_ms for info in shop.log.chain.ledgers)
    assert first < second_ms < second_ms + 5_000 <= second
    while (candidate := await shop.cleaner._look()) is not None:
        await shop.cleaner._clean(candidate)
    assert [row[1:3] for row in await compaction.read_records(shop.log)] == [(b"m", None)]


STEPS = ("create", "append", "close", "swap", "swapped")


@pytest.mark.parametrize("step", STEPS)
async def test_a_crash_at_each_step(autojump_clock, shop, started, compaction, monkeypatch, step):
    """The next owner has the whole log, and after its sweep every ledger is named."""
    from broker.log.compact import cleaning
    from broker.log.compact.output import ReplacementLedger
    from ledger.client import LedgerClient
    from ledger.writer import LedgerWriter

    log = await filled(shop, file_delete_delay_ms=1000)
    before = await compaction.read_records(log)
    owner, name = {
        "create": (LedgerClient, "create_ledger"),
        "append": (ReplacementLedger, "finish"),
        "close": (LedgerWriter, "close"),
        "swap": (keeper_module.Keeper, "swap"),
        "swapped": (cleaning.Pass, "run"),
    }[step]
    halt = Halt(monkeypatch, owner, name)
    if step == "swapped":
        halt.go.set()
    state = await started(log)
    await halt.reached.wait()
    if step == "swapped":
        await until(lambda: state.running is None)
    halt.go.set()
    log = await shop.take_over(kill=True)
    records = await compaction.read_records(log)
    if step != "swapped":
        assert records == before
    assert compaction.table_of(records) == compaction.table_of(before)
    await shop.cleaner._look()
    if log.chain.cleaned_to < 40:
        await shop.compact()
    assert len(await compaction.read_records(log)) == 2
    await sweep_orphans(shop.broker.store, shop.broker.ledgers)
    await trio.sleep(5)
    log.call_keeper()
    await trio.sleep(1)
    assert shop.stored_ids() == set(shop.ids())


async def test_readers_of_replaced_ledgers(autojump_clock, shop, compaction):
    """One that holds the old ledger reads on it until it is deleted, then the new one; a ledger
    that the chain names and that is gone is an error, and no hole."""
    from broker.log.read.partition_reader import ReadResult
    from wire.kafka.errors import ErrorCode, KafkaError

    log = await filled(shop, file_delete_delay_ms=10_000)
    old = list(log.segments)
    await shop.compact()
    assert [each.info.ledger_id for each in old] != shop.ids()
    got = await old[0].read(0, 1 << 16, at_least_one=True)
    assert len(list(compaction.records_in(got.parts))) == 20
    assert isinstance(await log.read(0, 1 << 16), ReadResult)
    await trio.sleep(15)
    log.call_keeper()
    await trio.sleep(1)
    assert shop.stored_ids() == set(shop.ids())
    fresh = await shop.take_over()
    await shop.broker.ledgers.delete_ledger(shop.ids()[0])
    with pytest.raises(KafkaError) as caught:
        await fresh.read(0, 1 << 16)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("damage", ["lost", "bytes", "batch"])
async def test_damaged_source_marks_uncleanable_others_go_on(
    autojump_clock, shop, compaction, damage
):
    """Its ledgers stay as they are, the others are cleaned, and it is tried again; when it is
    whole it is cleaned."""
    await shop.open(2)
    for partition in range(2):
        log = shop.broker.log(partition)
        await shop.fill([(b"a", b"1"), (b"b", b"1")], [(b"a", b"2")], [(b"a", b"3")], log=log)
    log, other = shop.broker.log(0), shop.broker.log(1)
    [ledger_id], bookies = shop.ids(log), shop.cluster.bookies
    whole = {name: dict(bookies.ledgers[name].get(ledger_id, {})) for name in bookies.names}
    for name in bookies.names:
        entries = bookies.ledgers[name].get(ledger_id, {})
        for entry_id in (1,):
            if entry_id not in entries:
                continue
            if damage == "lost":
                del entries[entry_id]
            elif damage == "bytes":
                entries[entry_id] = entries[entry_id][:-5] + b"12345"
            else:
                entries[entry_id] = broken_batch(entries[entry_id])
    chain = log.chain
    shop.cleaner.ask(log)
    shop.cleaner.ask(other)
    for _ in range(2):
        await shop.cleaner._clean(await shop.cleaner._look())
    state = shop.cleaner.state_of(log)
    assert state.is_uncleanable
    assert state.last_error
    assert log.chain == chain
    assert shop.stored_ids() >= {ledger_id}
    assert len(await compaction.read_records(other)) == 2
    assert shop.cleaner.statistics.uncleanable_count == 1
    assert await shop.cleaner._look() is None
    for name, entries in whole.items():
        bookies.ledgers[name][ledger_id] = entries
    await trio.sleep(3600)
    candidate = await shop.cleaner._look()
    assert candidate.log is log
    await shop.cleaner._clean(candidate)
    assert not state.is_uncleanable
    assert shop.cleaner.statistics.uncleanable_count == 0
    assert len(await compaction.read_records(log)) == 2


def broken_batch(entry):
    """The entry with a bit of its batch changed, and a digest that is right."""
    from wire.bookkeeper.entry import Digest, DigestType, parse_header

    header = parse_header(entry)
    digest = Digest(DigestType.CRC32C, b"")
    [payload] = digest.open_run([entry], header.ledger_id, header.entry_id)
    payload = bytearray(payload)
    payload[-1] ^= 1
    head = digest.seal(
        header.ledger_id,
        header.entry_id,
        header.last_add_confirmed,
        header.length,
        [bytes(payload)],
        len(payload),
    )
    return head + bytes(payload)


async def test_bookies_read_only_pauses_and_resumes(autojump_clock, shop, compaction):
    """The group is given up, nothing is left, the partition is not to blame; later it is done."""
    log = await filled(shop)
    ids = shop.ids()
    shop.cluster.bookies.down.update("cd")
    state = await shop.compact()
    assert "OutputError" in state.last_error
    assert not state.is_uncleanable
    assert log.state is State.ONLINE
    await nothing_is_left(shop, ids)
    assert await shop.cleaner._look() is None
    await trio.sleep(70)
    log.is_suspended = True  # as its keeper says when it needs a ledger, and none can be made
    assert await shop.cleaner._look() is None
    log.is_suspended = False
    shop.cluster.bookies.down.clear()
    candidate = await shop.cleaner._look()
    await shop.cleaner._clean(candidate)
    assert not state.last_error
    assert len(await compaction.read_records(log)) == 2


async def test_a_bookie_lost_in_the_middle(autojump_clock, shop, compaction, monkeypatch):
    """Another takes its place; and where none is left, the pass ends as with too few."""
    log = await filled(shop)
    bookies, add = shop.cluster.bookies, shop.cluster.bookies.add
    known = set(shop.ids())

    def failing(bookie, ledger_id, entry_id, entry, flags):
        if ledger_id not in known and entry_id == 0:
            bookies.down.add("a")
        return add(bookie, ledger_id, entry_id, entry, flags)

    bookies.add = failing
    state = await shop.compact()
    assert not state.last_error
    assert len(await compaction.read_records(log)) == 2


async def test_a_bug_ends_one_pass_only(autojump_clock, shop, nursery, compaction, monkeypatch):
    from broker.log.compact import cleaning

    log = await filled(shop)

    async def broken(*_):
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(cleaning.Pass, "_map", broken)
        shop.settings.backoff_ms = 100
        nursery.start_soon(shop.cleaner.run)
        await until(lambda: (state := shop.cleaner.state_of(log)) and state.is_uncleanable)
    assert shop.cleaner.dead_task_count == 0
    await until(lambda: log.chain.cleaned_to == 40, 4000)
    assert not shop.cleaner.state_of(log).is_uncleanable


def test_errors_are_told_apart():
    """What cannot be written is none of the source's errors."""
    from broker.log.compact.cleaning import OutputError, PassEnded, SourceError

    for error in (OutputError, PassEnded, SourceError):
        assert not issubclass(error, LedgerError)
