"""Ledgers that follow one another: how large one becomes while its successor is on its way, what a
roll waits for, and what becomes of a successor that nobody needed."""

from dataclasses import replace

import pytest
import trio

from broker.log.life.document import read_chain
from broker.log.life.orphans import sweep_orphans
from broker.log.partition import State
from broker.log.settings import LogSettings
from metadata.memory import MemoryStore
from metadata.store import MetadataUnavailableError
from tests.broker.log.test_partition import PATH, World, batch
from tests.ledger_ids import ledger_ids

SEGMENT_BYTES = 100_000
EXCESS_BYTES = 20_000
VALUE_BYTES = 1000


class SlowStore(MemoryStore):
    """Each change takes its time, as on a busy disk; `done` names them, `away` refuses all."""

    seconds = 0.0
    away = False

    def __init__(self):
        super().__init__()
        self.done = []

    async def _slowly(self, name, path, function):
        if self.away:
            await trio.lowlevel.checkpoint()
            raise MetadataUnavailableError(path, "away")
        await trio.sleep(self.seconds)
        result = await function()
        self.done.append((name, path))
        return result

    async def create(self, path, data=b"", **options):
        change = super().create
        return await self._slowly("create", path, lambda: change(path, data, **options))

    async def put(self, path, data, version):
        change = super().put
        return await self._slowly("put", path, lambda: change(path, data, version))

    async def delete(self, path, version=-1):
        change = super().delete
        return await self._slowly("delete", path, lambda: change(path, version))


@pytest.fixture
async def world(tmp_path, nursery, monkeypatch):
    monkeypatch.setattr("tests.broker.log.test_partition.MemoryStore", SlowStore)
    settings = LogSettings(segment_excess_bytes_min=EXCESS_BYTES, segment_excess_share=0.1)
    world = World(str(tmp_path), nursery, settings)
    world.config.segment_bytes = SEGMENT_BYTES
    await world.start()
    return world


def send(world, count, value_bytes=VALUE_BYTES):
    """Appends at full speed: all at once. What is answered is added to the list."""
    answers = []
    for number in range(count):
        view = memoryview(bytearray(batch(b"%08d" % number + bytes(value_bytes - 8))))
        world.log.append_nowait(view, answers.append)
    return answers


async def until(condition, seconds=60):
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.002)


def largest(world):
    return max(segment.size_bytes for segment in world.log.segments)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seconds", [0.0, 0.02])
async def test_a_ledger_is_bounded_however_slow_metadata_are(world, seconds):
    world.store.seconds = seconds
    answers = send(world, 2000)
    await until(lambda: len(answers) == 2000)
    assert not any(append.error for append in answers)
    assert [append.base_offset for append in answers] == list(range(2000))
    batch_bytes = len(batch(bytes(VALUE_BYTES))) + 100
    assert largest(world) <= SEGMENT_BYTES + EXCESS_BYTES + batch_bytes
    assert len(world.log.segments) >= 2000 * VALUE_BYTES // (SEGMENT_BYTES + EXCESS_BYTES)
    values = [value[:8] for _, value in await world.values()]
    assert values == [b"%08d" % number for number in range(2000)]
    await world.crash()
    assert [value[:8] for _, value in await world.values()] == values


async def test_retention_acts_while_writing_goes_on(world):
    world.store.seconds = 0.01
    world.config.retention_bytes = 3 * SEGMENT_BYTES
    answers = send(world, 3000)
    while len(answers) < 3000:
        world.keeper.check_retention()
        await trio.sleep(0.05)
    world.keeper.check_retention()
    limit = 5 * (SEGMENT_BYTES + EXCESS_BYTES)
    await until(lambda: world.log.size_bytes <= limit)
    assert world.log.log_start_offset > 0
    await until(lambda: not world.log.chain.all_deleting)


async def test_the_next_ledger_is_there_when_it_is_needed(world):
    """Between the end of one ledger and the start of the next, metadata are changed twice: the old
    one is closed, and the chain says so and names the new."""
    for number in range(60):
        await world.append(bytes([number]) * VALUE_BYTES)
    await until(lambda: not world.keeper._spare.is_wanted(world.log.writer.ledger_id))
    world.store.done.clear()
    first = world.log.writer
    for number in range(60, 120):
        await world.append(bytes([number]) * VALUE_BYTES)
    await until(lambda: world.log.writer not in (None, first))
    assert [name for name, _ in world.store.done[:2]] == ["put", "put"]


async def test_a_roll_goes_before_deletions(world):
    world.store.seconds = 0.01
    answers = send(world, 1000)
    await until(lambda: len(answers) == 1000)
    world.keeper._wanted_start = world.log.high_watermark
    world.log.call_keeper()
    await until(lambda: world.log.chain.deleting)
    waiting = len(world.log.chain.deleting)
    before = world.log.writer
    answers = send(world, 150)
    await until(lambda: world.log.writer not in (None, before))
    assert len(world.log.chain.deleting) > waiting - 6
    await until(lambda: not world.log.chain.all_deleting and len(answers) == 150)


async def test_without_metadata_the_open_ledger_takes_all(world):
    await world.append(b"x")
    world.store.away = True
    world.keeper._is_metadata_away = lambda: True
    world.keeper.metadata_changed()
    answers = send(world, 300)
    await until(lambda: len(answers) == 300)
    assert not any(append.error for append in answers)
    assert len(world.log.segments) == 1
    world.store.away = False
    world.keeper._is_metadata_away = lambda: False
    world.keeper.metadata_changed()
    await until(lambda: world.log.writer is None)  # rolled; nothing waits for the next
    await world.append(b"y")
    assert len(world.log.segments) == 2


async def test_without_metadata_an_old_ledger_is_not_looked_at_by_each_append(world):
    world.store.away = True
    world.keeper._is_metadata_away = lambda: True
    world.keeper.configure(replace(world.log.config, segment_ms=1, segment_bytes=1 << 20))
    await trio.sleep(0.1)
    looks = 0
    attend = world.keeper._attend

    async def counting():
        nonlocal looks
        looks += 1
        await attend()

    world.keeper._attend = counting
    for _ in range(200):
        await world.append(b"x")
        await trio.sleep(0.01)
    assert 1 <= looks < 50
    assert len(world.log.segments) == 1


async def test_what_waits_is_refused_when_the_partition_goes(world):
    world.store.seconds = 0.05
    answers = send(world, 1000)
    await until(lambda: answers)
    world.log.go_offline("test")
    assert len(answers) == 1000


async def ids_of(world):
    return set(await ledger_ids(world.ledgers.manager))


async def test_a_spare_ledger_that_is_not_used_is_deleted(world):
    for number in range(70):
        await world.append(bytes([number]) * VALUE_BYTES)
    await until(lambda: world.keeper._spare._writer is not None)
    named = {info.ledger_id for info in world.log.chain.ledgers}
    assert len(await ids_of(world) - named) == 1
    await world.keeper.close()
    assert await ids_of(world) == named


async def test_a_spare_ledger_is_made_anew_when_bookies_changed(world):
    for number in range(70):
        await world.append(bytes([number]) * VALUE_BYTES)
    await until(lambda: world.keeper._spare._writer is not None)
    spare = world.keeper._spare._writer.ledger_id
    world.keeper.bookies_changed()
    world.log.call_keeper()
    await until(lambda: world.keeper._spare._writer is None)
    for number in range(70, 130):
        await world.append(bytes([number]) * VALUE_BYTES)
    assert spare not in {info.ledger_id for info in world.log.chain.ledgers}
    assert spare not in await ids_of(world)
    assert len(await world.values()) == 130


async def test_a_hand_over_does_not_wait_for_deletions(world):
    answers = send(world, 1000)
    await until(lambda: len(answers) == 1000)
    world.store.seconds = 0.05
    world.keeper._wanted_start = world.log.high_watermark
    world.log.call_keeper()
    await until(lambda: world.log.chain.deleting)
    waiting = len(world.log.chain.deleting)
    await world.keeper.close(release=True)
    chain, _ = await read_chain(world.store, PATH)
    assert chain.owner is None
    assert len(chain.deleting) > waiting - 4


async def test_the_spare_ledger_of_a_dead_broker_is_an_orphan_and_a_live_ones_is_not(
    nursery, autojump_clock, sim
):
    cluster = sim.Cluster(settings=LogSettings(spare_ledger_share=1e-9))
    one, two = await cluster.start(nursery, 1), await cluster.start(nursery, 2)
    topic = await cluster.create_topic(one, 1)
    cluster.assignments.assign(topic.id, 0, 1)
    await until(lambda: one.log() is not None and one.log().state is State.ONLINE)
    await one.log().append(sim.batch(b"1"))
    await one.log().append(sim.batch(b"2"))
    spare = one.manager._find("t", 0).keeper._spare
    await until(lambda: spare._writer is not None)
    assert await sweep_orphans(two.store, two.ledgers) == 0
    await one.kill()
    cluster.assignments.assign(topic.id, 0, 2)
    await until(lambda: two.log() is not None and two.log().state is State.ONLINE)
    await two.log().append(sim.batch(b"3"))
    await two.log().append(sim.batch(b"4"))
    own = two.manager._find("t", 0).keeper._spare
    await until(lambda: own._writer is not None)
    assert await sweep_orphans(two.store, two.ledgers) == 1
    ids = await ledger_ids(two.ledgers.manager)
    assert spare._writer.ledger_id not in ids
    assert own._writer.ledger_id in ids
    assert [value for _, value in await sim.read_all(two.log())] == [b"1", b"2", b"3", b"4"]
    await two.kill()


async def test_a_spare_ledger_is_given_out_once(world):
    """What the chain names is no spare any more, and must not be deleted as one."""
    await world.append(bytes(SEGMENT_BYTES * 9 // 10))
    spare = world.keeper._spare
    await until(lambda: spare._writer is not None)
    number = spare._writer.ledger_id
    await world.append(bytes(SEGMENT_BYTES // 5))
    await world.append(b"more")
    await until(lambda: world.log.chain.ledgers[-1].ledger_id == number)
    assert spare.take() is None
    await spare.discard()
    assert number in await ledger_ids(world.ledgers.manager)
