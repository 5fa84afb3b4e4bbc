"""Swaps of compacted ledgers: what a cleaner is told, what readers see, what a crash leaves."""

import pytest
import trio
import trio.testing

from broker.log.life.chain import Chain
from broker.log.life.document import read_chain
from broker.log.life.orphans import sweep_orphans
from broker.log.life.retention import ROLL_AGE_MS_MIN
from broker.log.life.swap import Swap, SwapOutcome
from broker.log.partition import State
from broker.log.settings import LogSettings
from metadata.memory import MemoryStore
from metadata.store import (
    MetadataUnavailableError,
    MetadataUnknownOutcomeError,
)
from tests.broker.log.test_partition import PATH, World
from tests.broker.log.thinning import swap_of, thin
from wire.kafka.errors import ErrorCode, KafkaError


class Store(MemoryStore):
    """`before_put` and `after_put` may fail a write of the document, or do something first."""

    before_put = after_put = None
    writes = 0

    async def put(self, path, data, version):
        if path == PATH and self.before_put is not None:
            await self.before_put()
        result = await super().put(path, data, version)
        if path == PATH:
            self.writes += 1
            if self.after_put is not None:
                await self.after_put()
        return result


@pytest.fixture
async def world(tmp_path, nursery, monkeypatch):
    monkeypatch.setattr("tests.broker.log.test_partition.MemoryStore", Store)
    # This partition's document is not where its topic's id says.
    monkeypatch.setattr("broker.log.life.orphans._Maker.path", property(lambda _: PATH))
    world = World(str(tmp_path), nursery, LogSettings())
    world.config.segment_bytes = 200
    world.config.file_delete_delay_ms = 60_000
    await world.start()
    return world


async def until(condition, seconds=60):
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.002)


async def fill(world, count, per_batch=2):
    """So many closed ledgers of one batch each."""
    for _ in range(count):
        first = world.log.next_offset
        await world.append(*(b"%d" % (first + n) + bytes(200) for n in range(per_batch)))
        await until(lambda: not world.log.chain.ledgers[-1].is_open)
    assert len(world.log.chain.ledgers) >= count


def infos(world, start, stop):
    return world.log.chain.ledgers[start:stop]


async def offsets(world, start=None):
    return [offset for offset, _ in await world.values(start)]


async def stored(world):
    return (await read_chain(world.store, PATH))[0]


async def there(world, ledger_id):
    try:
        await world.ledgers.open_ledger(ledger_id, recover=False)
    except Exception:
        return False
    return True


async def asked(world, swap):
    with trio.fail_after(20):
        assert await world.keeper.swap(swap) is swap.outcome
    return swap.outcome


def even(offset):
    return offset % 4 == 0


async def test_what_is_swapped_is_read_and_stored(world):
    await fill(world, 4)
    swap = await swap_of(world, infos(world, 0, 3), even, cleaned_to=6)
    assert await asked(world, swap) is SwapOutcome.DONE
    assert not swap.may_delete
    chain = await stored(world)
    assert chain == world.log.chain
    assert [info.ledger_id for info in chain.ledgers] == [swap.infos[0].ledger_id, 3]
    assert (chain.cleaned_to, chain.deleting) == (6, (0, 1, 2))
    assert [segment.info for segment in world.log.segments] == list(chain.ledgers)
    assert await offsets(world) == [0, 4, 6, 7]
    await world.append(b"more")
    assert await offsets(world) == [0, 4, 6, 7, 8]
    await world.restart()
    assert await offsets(world) == [0, 4, 6, 7, 8]
    await world.crash()
    assert await offsets(world) == [0, 4, 6, 7, 8]


async def test_cleaned_to_alone(world):
    await fill(world, 2)
    assert await asked(world, Swap((), (), 4)) is SwapOutcome.DONE
    assert (await stored(world)).cleaned_to == 4


async def test_retention_drops_source_during_pass(world):
    await fill(world, 4)
    swap = await swap_of(world, infos(world, 0, 2), even)
    world.config.retention_bytes = 2 * world.log.segments[0].size_bytes
    world.keeper.check_retention()
    await until(lambda: world.log.log_start_offset > 0)
    before = await stored(world)
    assert await asked(world, swap) is SwapOutcome.GONE
    assert swap.may_delete
    assert swap.infos[0].ledger_id not in before.all_deleting
    assert [info.ledger_id for info in (await stored(world)).ledgers] == [2, 3]


async def test_delete_records_into_source_during_pass(world):
    await fill(world, 4)
    swap = await swap_of(world, infos(world, 0, 3), even)
    assert await world.keeper.delete_records(3) == 3
    wide = Swap((0, 1, 2), swap.infos)  # the first ledger is gone by now
    assert await asked(world, wide) is SwapOutcome.GONE
    swap = await swap_of(world, infos(world, 0, 2), even)
    assert await asked(world, swap) is SwapOutcome.DONE
    assert world.log.log_start_offset == 3
    assert await offsets(world) == [4, 6, 7]


async def test_several_groups_share_one_write(world):
    await fill(world, 6)
    swaps = [await swap_of(world, infos(world, n, n + 2), even) for n in (0, 2, 4)]
    stale = Swap((0, 1), swaps[0].infos)
    writes = world.store.writes
    async with trio.open_nursery() as nursery:
        for swap in (*swaps, stale):
            nursery.start_soon(world.keeper.swap, swap)
    assert [swap.outcome for swap in swaps[1:]] == [SwapOutcome.DONE] * 2
    # Whichever of the two came first.
    assert {swaps[0].outcome, stale.outcome} == {SwapOutcome.DONE, SwapOutcome.GONE}
    assert world.store.writes == writes + 1
    assert len(world.log.segments) == len(world.log.chain.ledgers) == 3
    assert await offsets(world) == [0, 4, 8]


async def test_a_bug_in_one_swap_leaves_nobody_waiting(world, monkeypatch):
    """The keeper ends with it; who asked, and who asked together with it, is told so."""
    await fill(world, 3)
    swaps = [await swap_of(world, infos(world, n, n + 1), even) for n in range(3)]
    change = Swap.change

    def broken(self, chain):
        assert self is not swaps[1], "as one that does not fit"
        return change(self, chain)

    monkeypatch.setattr(Swap, "change", broken)
    told = []

    async def ask(swap):
        with trio.fail_after(20):
            told.append(await world.keeper.swap(swap))

    swap_ledgers = world.keeper._swap_ledgers

    async def failing():
        try:
            await swap_ledgers()
        except AssertionError:
            errors.append(1)  # here nobody ends the keeper for it

    errors = []
    monkeypatch.setattr(world.keeper, "_swap_ledgers", failing)
    async with trio.open_nursery() as nursery:
        for swap in swaps:
            nursery.start_soon(ask, swap)
    assert (len(told), len(errors)) == (3, 1)
    assert swaps[1].may_delete
    assert all(swap.may_delete or swap.outcome is SwapOutcome.DONE for swap in swaps)


async def test_appends_never_wait_for_a_swap(world):
    world.config.segment_bytes = 1 << 20
    await fill_rolled(world, 2)
    await world.append(b"open")
    swap = await swap_of(world, infos(world, 0, 2), even)
    hold = trio.Event()
    world.store.before_put = hold.wait
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.keeper.swap, swap)
        await until(lambda: swap.outcome is SwapOutcome.UNKNOWN)
        for _ in range(20):
            await world.append(b"x")
        assert swap.outcome is SwapOutcome.UNKNOWN
        assert [segment.info.ledger_id for segment in world.log.segments[:2]] == [0, 1]
        world.store.before_put = None
        hold.set()
    assert swap.outcome is SwapOutcome.DONE
    assert len(await offsets(world)) == 21 + 1


async def fill_rolled(world, count):
    large = world.config.segment_bytes
    world.config.segment_bytes = 200
    await fill(world, count)
    world.config.segment_bytes = large


async def test_topic_deleted_mid_pass(world):
    await fill(world, 2)
    swap = await swap_of(world, infos(world, 0, 2), even)
    await world.store.delete(PATH)
    assert await asked(world, swap) is SwapOutcome.GONE
    await until(lambda: world.log.state is State.OFFLINE)


async def test_hand_over_mid_pass_under_1s(world):
    """What waits is refused at once; the keeper leaves as quickly as without it."""
    await fill(world, 2)
    swap = await swap_of(world, infos(world, 0, 2), even)
    hold, first = trio.Event(), Swap((), (), 0)
    world.store.before_put = hold.wait
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.keeper.swap, first)
        await until(lambda: first.outcome is SwapOutcome.UNKNOWN)
        nursery.start_soon(world.keeper.swap, swap)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(lambda: world.keeper.close(release=True))
        await until(lambda: swap not in world.keeper._swaps, 1)
        assert swap.may_delete
        world.store.before_put = None
        hold.set()
    assert first.outcome is SwapOutcome.DONE
    assert swap.outcome is SwapOutcome.NOT_ASKED
    chain = await stored(world)
    assert chain.owner is None
    assert swap.infos[0].ledger_id not in {info.ledger_id for info in chain.ledgers}
    assert await asked(world, Swap((), (), 0)) is SwapOutcome.NOT_ASKED


async def test_who_asked_is_cancelled(world):
    """Before it was sent: nothing is. Afterwards: nothing may be deleted."""
    await fill(world, 4)
    waiting = await swap_of(world, infos(world, 2, 4), even)
    sent = await swap_of(world, infos(world, 0, 2), even)
    hold = trio.Event()
    world.store.before_put = hold.wait
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.keeper.swap, sent)
        await until(lambda: sent.outcome is SwapOutcome.UNKNOWN)
        nursery.start_soon(world.keeper.swap, waiting)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert (sent.outcome, waiting.outcome) == (SwapOutcome.UNKNOWN, SwapOutcome.NOT_ASKED)
    world.store.before_put = None
    hold.set()
    await until(lambda: sent.outcome is SwapOutcome.DONE)
    await world.append(b"x")
    assert waiting.outcome is SwapOutcome.NOT_ASKED
    assert [info.ledger_id for info in world.log.chain.ledgers][1:3] == [2, 3]


async def test_deposed_cleaner_loses_cas_sources_intact(world):
    await fill(world, 2)
    swap = await swap_of(world, infos(world, 0, 2), even)
    chain, version = await read_chain(world.store, PATH)
    await world.store.put(PATH, chain.with_epoch(9).to_bytes(), version)
    assert await asked(world, swap) is SwapOutcome.UNKNOWN
    assert not swap.may_delete
    await until(lambda: world.log.state is State.OFFLINE)
    assert [await there(world, n) for n in (0, 1)] == [True, True]
    assert swap.infos[0].ledger_id not in {info.ledger_id for info in (await stored(world)).ledgers}


@pytest.mark.parametrize("is_done", [False, True])
async def test_cas_answer_lost_both_ways(world, is_done):
    """It is looked up; the cleaner hears DONE, once."""
    await fill(world, 2)
    swap = await swap_of(world, infos(world, 0, 2), even)

    async def lose():
        world.store.before_put = world.store.after_put = None
        raise MetadataUnknownOutcomeError(PATH, "lost")

    if is_done:
        world.store.after_put = lose
    else:
        world.store.before_put = lose
    assert await asked(world, swap) is SwapOutcome.DONE
    assert [info.ledger_id for info in (await stored(world)).ledgers] == [swap.infos[0].ledger_id]
    assert await offsets(world) == [0]


async def test_metadata_that_are_away_are_waited_for(world):
    await fill(world, 2)
    swap = await swap_of(world, infos(world, 0, 2), even)
    count = 0

    async def fail():
        nonlocal count
        count += 1
        if count == 2:
            world.store.before_put = None
        raise MetadataUnavailableError(PATH, "away")

    world.store.before_put = fail
    assert await asked(world, swap) is SwapOutcome.DONE
    assert count == 2


@pytest.mark.parametrize("step", ["closed", "not sent", "sent", "written", "swapped"])
async def test_crash_at_each_step(world, step):
    """The log is whole whatever the step was; of the two sets of ledgers one goes, by a chain's
    `deleting` or by the sweep."""
    await fill(world, 3)
    sources = infos(world, 0, 2)
    swap = await swap_of(world, sources, even)
    stuck = trio.Event()

    async def die():
        stuck.set()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        if step == "sent":
            world.store.before_put = die
        elif step == "written":
            world.store.after_put = die
        if step in ("sent", "written"):
            nursery.start_soon(world.keeper.swap, swap)
            await stuck.wait()
        elif step == "swapped":
            assert await asked(world, swap) is SwapOutcome.DONE
        elif step == "not sent":
            world.keeper._is_metadata_away = lambda: True
            nursery.start_soon(world.keeper.swap, swap)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        world.store.before_put = world.store.after_put = None
        world.scope.cancel()
        world.log.go_offline("crash")
    is_named = step in ("written", "swapped")
    expected = {"closed": "not asked", "not sent": "not asked", "swapped": "done"}
    assert swap.outcome.value == expected.get(step, "unknown")
    await world.open()
    assert await offsets(world) == ([0, 4, 5] if is_named else list(range(6)))
    chain = world.log.chain
    named = {info.ledger_id for info in chain.ledgers}
    new_id = swap.infos[0].ledger_id
    assert (new_id in named) == is_named
    assert set(chain.deleting) == ({0, 1} if is_named else set())
    swept = await sweep_orphans(world.store, world.ledgers)
    assert swept == (0 if is_named else 1)
    assert await there(world, new_id) == is_named


async def test_orphan_of_old_epoch_swept_of_present_spared(world):
    await fill(world, 2)
    info = await thin(world, infos(world, 0, 2), even)
    assert await sweep_orphans(world.store, world.ledgers) == 0
    assert await there(world, info.ledger_id)
    await world.crash()
    assert await sweep_orphans(world.store, world.ledgers) == 1
    assert not await there(world, info.ledger_id)


async def test_sources_wait_and_retention_does_not(world):
    world.config.file_delete_delay_ms = 400
    await fill(world, 4)
    swap = await swap_of(world, infos(world, 0, 2), even)
    assert await asked(world, swap) is SwapOutcome.DONE
    start = trio.current_time()
    await world.keeper.delete_records(6)
    await until(lambda: 2 not in world.log.chain.all_deleting)
    assert not await there(world, 2)
    if trio.current_time() - start < 0.3:
        assert {0, 1} <= set(world.log.chain.deleting)
        assert await there(world, 0)
    await until(lambda: not world.log.chain.all_deleting)
    assert trio.current_time() - start >= 0.4
    assert not await there(world, 0)


async def test_a_new_owner_lets_them_wait_anew(world):
    await fill(world, 3)
    swap = await swap_of(world, infos(world, 0, 2), even)
    await asked(world, swap)
    world.config.file_delete_delay_ms = 500
    await world.crash()
    start = trio.current_time()
    assert await there(world, 0)
    await until(lambda: not (world.log.chain.all_deleting))
    assert trio.current_time() - start >= 0.4
    assert not await there(world, 0)


async def test_a_shorter_delay_holds_for_ledgers_that_wait_already(world):
    await fill(world, 3)
    swap = await swap_of(world, infos(world, 0, 2), even)
    assert await asked(world, swap) is SwapOutcome.DONE
    await trio.testing.wait_all_tasks_blocked()
    assert await there(world, 0)
    world.config.file_delete_delay_ms = 0
    world.keeper.check_retention()  # the periodic look
    await until(lambda: not world.log.chain.deleting)
    assert not await there(world, 0)


async def test_reader_holds_old_ledger_past_delay(world):
    """It reads on in what it has, or looks at the chain again; never an error, never less."""
    world.config.file_delete_delay_ms = 0
    await fill(world, 3)
    old = world.log.segments[0]
    swap = await swap_of(world, infos(world, 0, 2), even)
    read, found = old.read, []

    async def slowly(*args, **options):
        assert await asked(world, swap) is SwapOutcome.DONE
        await until(lambda: not world.log.chain.all_deleting)
        found.append(old not in world.log.segments)
        old.reader = None  # nothing of it is in memory
        return await read(*args, **options)

    type(old).read, kept = slowly_of(slowly, old), type(old).read
    try:
        old.reader = None
        got = await world.log.read(0, 1)
    finally:
        type(old).read = kept
    assert found == [True]
    assert (got.next_offset, got.has_records) == (2, True)


def slowly_of(slowly, old):
    read = type(old).read

    async def function(self, *args, **options):
        if self is old:
            type(old).read = read
            return await slowly(*args, **options)
        return await read(self, *args, **options)

    return function


async def test_missing_ledger_is_an_error_not_a_hole(world):
    await fill(world, 3)
    await world.restart()
    await world.ledgers.delete_ledger(1)
    with pytest.raises(KafkaError) as caught:
        await world.log.read(2, 1000)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError) as caught:
        await world.values()
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_compacted_topic_rolls_at_its_lag(world):
    world.config.segment_bytes = 1 << 20
    world.config.max_compaction_lag_ms = 1  # a ledger lives for a second, however short it is
    await world.append(b"x")
    await trio.sleep(ROLL_AGE_MS_MIN / 1000 + 0.05)
    world.keeper.check_retention()
    assert not world.log.chain.ledgers[-1].last_offset
    assert not world.keeper._roll_due()
    world.config.cleanup_policy = ("compact",)
    world.keeper.check_retention()
    await until(lambda: not world.log.chain.ledgers[-1].is_open)
    assert world.log.writer is None


async def test_a_successor_writes_what_a_pass_has_cleaned_to(world):
    await fill(world, 2)
    await asked(world, Swap((), (), 2))
    await world.crash()
    assert Chain.from_bytes((await world.store.get(PATH)).data).cleaned_to == 2
    await fill(world, 1)
    assert (await stored(world)).cleaned_to == 2
