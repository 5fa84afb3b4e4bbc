"""Which partition is cleaned next, by how many, when not; and what people are told."""

import pytest
import trio

from broker.log.compact import cleaner as cleaner_module
from broker.log.compact.cleaner import CleanerSettings
from broker.log.compact.plan_core import Due


async def until(condition, seconds=60):
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.01)


def dirty(count, value=b"v"):
    """`count` records, half of them of one key."""
    return [[(b"k", value), (b"k%d" % n, value)] for n in range(count)]


async def test_it_cleans_by_itself(autojump_clock, shop, nursery, compaction):
    await shop.open()
    nursery.start_soon(shop.cleaner.run)
    await shop.fill(*dirty(5))
    await until(lambda: shop.log.chain.cleaned_to == 10)
    assert len(await compaction.read_records(shop.log)) == 6
    statistics = shop.cleaner.statistics
    assert (statistics.passes, statistics.passes_failed, statistics.records_dropped) == (1, 0, 4)
    assert 0 < statistics.last_recopy_percent < 100
    assert 0 < statistics.last_map_percent <= 100
    assert statistics.bytes_before > statistics.bytes_after > 0


async def test_the_dirtiest_comes_first_and_who_asked_before_it(autojump_clock, shop):
    await shop.open(4)
    logs = [shop.broker.log(n) for n in range(4)]
    for number, log in enumerate(logs[:3]):
        await shop.fill(*dirty(10), log=log)
        if number != 1:
            await shop.compact(log)
        await shop.fill(*dirty((12, 1, 40)[number]), log=log)
    cleaned = []
    while (candidate := await shop.cleaner._look()) is not None:
        cleaned.append(candidate.log.partition)
        await shop.cleaner._clean(candidate)
        if len(cleaned) == 1:
            shop.cleaner.ask(logs[0])
    # All of 1 is dirty; of 2 more than of 0, which somebody asked for.
    assert cleaned == [1, 0, 2]


async def test_ratio_has_to_be_exceeded(autojump_clock, shop):
    await shop.open(min_cleanable_dirty_ratio=1.0)
    await shop.fill(*dirty(5))
    assert await shop.cleaner._look() is None
    assert shop.cleaner.statistics.max_dirty_percent == 100
    await shop.set_config(cleanup_policy="compact", min_cleanable_dirty_ratio=0.99)
    assert (await shop.cleaner._look()).plan.due is Due.RATIO


async def test_topics_of_other_policies_are_not_touched(autojump_clock, shop):
    await shop.open(cleanup_policy="delete")
    await shop.fill(*dirty(5))
    assert await shop.cleaner._look() is None
    assert not shop.cleaner.is_candidate(shop.log)
    assert shop.cleaner.state_of(shop.log) is None


async def test_no_pass_while_a_broker_could_not_read_its_document(autojump_clock, shop):
    await shop.open()
    await shop.fill(*dirty(5))
    formats = [2]
    shop.cleaner._chain_format = lambda: formats[0]
    assert await shop.cleaner._look() is None
    formats[0] = 3
    assert await shop.cleaner._look() is not None


async def test_no_backoff_is_no_busy_loop(autojump_clock, shop, nursery):
    """log.cleaner.backoff.ms=0: the loop has a rest between two looks."""
    await shop.open()
    shop.settings.backoff_ms = 0
    looks, look = [], shop.cleaner._look

    async def counted():
        looks.append(trio.current_time())
        return await look()

    shop.cleaner._look = counted
    nursery.start_soon(shop.cleaner.run)
    for _ in range(500):  # no time passes while somebody is at work
        await trio.lowlevel.checkpoint()
    assert len(looks) <= 2
    await trio.sleep(1)
    assert 10 < len(looks) <= 102


async def test_a_partition_that_may_not_swap_keeps_no_other_waiting(
    autojump_clock, shop, nursery, monkeypatch
):
    """Of one so many ledgers wait for file.delete.delay.ms that no more may be replaced: its pass
    gives its place to others, deletes what it made, and is tried again."""
    monkeypatch.setattr("broker.log.life.deletions.DELETING_MAX", 4)
    await shop.open(2, file_delete_delay_ms=400_000, min_cleanable_dirty_ratio=0.0)
    first, second = (shop.broker.log(n) for n in range(2))
    for _ in range(2):
        await shop.fill(*dirty(3), log=first)
        await shop.compact(first)
    assert len(first.chain.deleting) >= 2
    await shop.fill(*dirty(30), log=first)
    await shop.fill(*dirty(3), log=second)
    shop.cleaner.ask(first)  # so that it is the first
    nursery.start_soon(shop.cleaner.run)
    await until(lambda: second.chain.cleaned_to == 6, seconds=1800)
    state = shop.cleaner.state_of(first)
    assert "file.delete.delay.ms" in state.last_error
    assert (state.failures, state.is_uncleanable, first.chain.cleaned_to) == (1, False, 12)
    named = {*shop.ids(first), *shop.ids(second), *first.chain.deleting, *second.chain.deleting}
    assert shop.stored_ids() == named
    # The delay is over at last, and the pass gets its turn.
    await until(lambda: first.chain.cleaned_to == 72, seconds=1800)
    assert state.failures == 0


async def test_two_tasks_clean_two_partitions_at_a_time(autojump_clock, shop, nursery, monkeypatch):
    await shop.open(3)
    shop.settings.threads = 2
    together, most = [], []

    async def slow(self):
        together.append(self._log)
        assert len(set(together)) == len(together), "one pass at a time on a partition"
        most.append(len(together))
        await trio.sleep(1)
        together.remove(self._log)

    monkeypatch.setattr(cleaner_module.Pass, "run", slow)
    for partition in range(3):
        await shop.fill(*dirty(5), log=shop.broker.log(partition))
    nursery.start_soon(shop.cleaner.run)
    await until(lambda: shop.cleaner.statistics.passes >= 3)
    assert max(most) == 2
    shop.settings.threads = 1
    shop.cleaner.settings_changed()
    await trio.sleep(2)
    assert shop.cleaner._task_count == 1
    shop.settings.threads = 4
    shop.cleaner.settings_changed()
    await trio.sleep(0.1)
    assert shop.cleaner._task_count == 4
    assert shop.cleaner.dead_task_count == 0


async def test_the_throttle_is_obeyed_and_may_change(autojump_clock, shop, nursery, compaction):
    """Bytes read in both walks and written count."""
    await shop.open()
    value = b"." * 10_000
    await shop.fill(*dirty(10, value))
    size = shop.log.size_bytes
    shop.settings.bytes_per_second = 20_000.0
    begun = trio.current_time()
    await shop.compact()
    moved = 2 * size + shop.log.size_bytes
    seconds = trio.current_time() - begun
    assert moved / 20_000 - 1 < seconds < moved / 20_000 + 2
    await shop.fill(*dirty(10, value))
    shop.settings.bytes_per_second = 1.0
    shop.cleaner.ask(shop.log)
    nursery.start_soon(shop.cleaner._clean, await shop.cleaner._look())
    await trio.sleep(10)
    state = shop.cleaner.state_of(shop.log)
    assert state.running is not None
    shop.settings.bytes_per_second = 1e9
    await until(lambda: state.running is None, 2)
    assert not state.last_error


async def test_a_pass_that_waits_at_the_throttle_ends_at_once(autojump_clock, shop, nursery):
    await shop.open()
    await shop.fill(*dirty(10, b"." * 1000))
    shop.settings.bytes_per_second = 1.0
    shop.cleaner.ask(shop.log)
    nursery.start_soon(shop.cleaner._clean, await shop.cleaner._look())
    await trio.sleep(5)
    state = shop.cleaner.state_of(shop.log)
    begun = trio.current_time()
    await shop.broker.stop()
    assert trio.current_time() - begun < 1
    await until(lambda: state.running is None, 1)


@pytest.mark.parametrize("settings", [{"threads": 4}, {"load_factor": 7.0}, {"load_factor": 0.0}])
def test_limits_of_a_pass(settings):
    limits = CleanerSettings(dedupe_buffer_bytes=8 << 20, **settings).limits()
    assert limits.key_map_bytes == (8 << 20) // settings.get("threads", 1)
    assert 0.1 <= limits.load_factor <= 0.95


async def test_a_partition_of_which_nothing_is_held_is_forgotten(autojump_clock, shop):
    await shop.open()
    await shop.fill(*dirty(5))
    await shop.compact()
    log = shop.log
    assert shop.cleaner.state_of(log) is not None
    await shop.broker.catalog.delete("t")
    await trio.sleep(1)
    await shop.cleaner._look()
    assert shop.cleaner.state_of(log) is None


async def test_a_take_over_forgets_failures(autojump_clock, shop):
    await shop.open()
    await shop.fill(*dirty(5))
    state = shop.cleaner.ask(shop.log)
    state.is_uncleanable, state.retry_ms = True, 1 << 62
    assert await shop.cleaner._look() is None
    await shop.take_over()
    assert await shop.cleaner._look() is not None


async def test_suspended_partitions_are_left_alone(autojump_clock, shop):
    await shop.open()
    await shop.fill(*dirty(5))
    shop.log.is_suspended = True
    assert await shop.cleaner._look() is None
    shop.log.is_suspended = False
    assert await shop.cleaner._look() is not None
