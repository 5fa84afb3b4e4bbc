"""What a broker does when it cannot be sure, or cannot go on: producers' errors from a state that
may be old, take-overs that hang, ledgers that no partition has."""

import pytest
import trio

from broker.log import manager as manager_module
from broker.log.life import keeper as keeper_module
from broker.log.life.chain import Chain
from broker.log.life.keeper import TAKEOVER_SECONDS
from broker.log.life.orphans import sweep_orphans
from broker.log.partition import State
from ledger.ledger_walk import walk_ledger_ids
from metadata.store import MetadataUnavailableError, MetadataUnknownOutcomeError
from wire.kafka.errors import ErrorCode, KafkaError

PATH = "/quire/partitions/{}/0"


@pytest.fixture
async def cluster(sim, nursery, autojump_clock):
    """Two brokers; topic «t» of one partition, led by broker 1."""
    cluster = sim.Cluster()
    cluster.one = await cluster.start(nursery, 1)
    cluster.two = await cluster.start(nursery, 2)
    topic = await cluster.create_topic(cluster.one, 1)
    cluster.assignments.assign(topic.id, 0, 1)
    await online(cluster.one)
    yield cluster
    for broker in (cluster.one, cluster.two):
        if not broker.wire.dead:
            broker.wire.thaw()
            await broker.kill()


async def online(broker, seconds=120):
    with trio.fail_after(seconds):
        while (log := broker.log()) is None or log.state is not State.ONLINE:
            await trio.sleep(0.01)
    return log


async def refusal(log, batch):
    with pytest.raises(KafkaError) as caught:
        await log.append(batch)
    return caught.value.code


def sequence(sim, number, epoch=0):
    values = [b"%d" % number]
    return sim.batch(*values, producer_id=7, producer_epoch=epoch, base_sequence=number)


async def test_a_wrong_sequence_is_told_by_the_owner(autojump_clock, cluster, sim):
    log = cluster.one.log()
    await log.append(sequence(sim, 0))
    assert await refusal(log, sequence(sim, 5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    # What was refused has no part in the order, and the partition goes on.
    await log.append(sequence(sim, 1))
    await log.append(sequence(sim, 0, epoch=1))
    assert await refusal(log, sequence(sim, 1)) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert [value for _, value in await sim.read_all(log)] == [b"0", b"1", b"0"]


async def test_a_deposed_broker_does_not_judge_by_its_old_state(autojump_clock, cluster, sim):
    """It has no open ledger, so nothing of it was fenced, and it has heard of nothing. Batches 1-2
    went to the new owner; a client that ignores epochs sends batch 3 to the old one."""
    old = cluster.one.log()
    await old.append(sequence(sim, 0))
    keeper = cluster.one.manager._find("t", 0).keeper
    keeper._roll_asked = True
    await keeper._close_ledger()
    cluster.one.ownership.is_deaf = True
    cluster.assignments.alive.discard(cluster.one.incarnation)
    cluster.assignments.assign(cluster.topic.id, 0, 2)
    new = await online(cluster.two)
    for number in (1, 2):
        await new.append(sequence(sim, number))
    assert old.state is State.ONLINE, "it does not know yet"
    assert await refusal(old, sequence(sim, 3)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert old.state is State.OFFLINE, "now it does"
    await new.append(sequence(sim, 3))


async def test_who_cannot_ask_does_not_judge(autojump_clock, cluster, sim):
    log = cluster.one.log()
    await log.append(sequence(sim, 0))
    cluster.one.store.away = True
    assert await refusal(log, sequence(sim, 5)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await log.append(sequence(sim, 1))  # its ledger takes writes
    cluster.one.store.away = False
    assert await refusal(log, sequence(sim, 5)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_what_is_in_doubt_is_answered_when_the_partition_goes(autojump_clock, cluster, sim):
    log = cluster.one.log()
    await log.append(sequence(sim, 0))
    cluster.one.wire.freeze()
    answers = []
    log.append_nowait(memoryview(bytearray(sequence(sim, 5))), answers.append)
    await trio.sleep(1)
    assert not answers
    log.go_offline("by accident")
    cluster.one.manager._find("t", 0).scope.cancel()
    await trio.sleep(0.1)
    assert [each.error for each in answers] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


async def test_a_take_over_that_hangs_gives_its_place_to_others(
    autojump_clock, cluster, sim, monkeypatch, nursery
):
    """One place for all, and the first partition's ledger cannot be read for 100 s."""
    await cluster.one.kill()
    three = await cluster.start(nursery, 3)
    three.manager._slots = trio.CapacityLimiter(1)
    hang = trio.Event()
    take_over = manager_module.Keeper.take_over
    limits = []

    async def slow(self, node=None, *, limit_seconds):
        limits.append((self._path, limit_seconds))
        return await take_over(self, node, limit_seconds=limit_seconds)

    async def hanging(claim, stores, **options):
        if claim.path.endswith("/0"):
            await hang.wait()
        return await original(claim, stores, **options)

    original = keeper_module.take_over
    monkeypatch.setattr(keeper_module, "take_over", hanging)
    monkeypatch.setattr(manager_module.Keeper, "take_over", slow)
    topic = await three.catalog.create("u", 3, {"min.insync.replicas": "2"}, replication_factor=3)
    for number in range(3):
        cluster.assignments.assign(topic.id, number, 3)
    # Whoever comes first: the one that hangs holds the others up for this long at most.
    with trio.fail_after(TAKEOVER_SECONDS + 5):
        while any(
            (log := three.log(n, "u")) is None or log.state is not State.ONLINE for n in (1, 2)
        ):
            await trio.sleep(0.1)
    with trio.fail_after(60):
        while (log := three.log(0, "u")) is None or log.failure_count < 1:
            await trio.sleep(0.1)
    assert "not done after 30 s" in log.last_failure
    with trio.fail_after(200):
        while sum(path.endswith("/0") for path, _ in limits) < 3:
            await trio.sleep(1)
    assert [limit for path, limit in limits if path.endswith("/0")] == [30.0, 60.0, 120.0]
    hang.set()
    with trio.fail_after(200):
        while (log := three.log(0, "u")) is None or log.state is not State.ONLINE:
            await trio.sleep(0.1)
    assert three.manager._failures == {}
    await three.kill()


def test_the_limit_has_a_limit():
    assert manager_module.takeover_limit_seconds(0) == TAKEOVER_SECONDS
    assert manager_module.takeover_limit_seconds(99) == manager_module.TAKEOVER_SECONDS_MAX


async def test_a_ledger_that_the_document_may_name_is_kept(
    autojump_clock, cluster, sim, monkeypatch
):
    """The answer to the write that names a new ledger is lost, and the document written once more
    before it is looked up: who is deposed by that must leave the ledger to its successor."""
    log = cluster.one.log()
    await log.append(sequence(sim, 0))
    keeper = cluster.one.manager._find("t", 0).keeper
    keeper._roll_asked = True
    await keeper._close_ledger()
    store, path = cluster.one.store, PATH.format(cluster.topic.id)
    multi = store.multi

    async def lose_the_answer(ops):
        await multi(ops)
        if ops[0].path == path:
            monkeypatch.setattr(store, "multi", multi)
            await store.put(path, ops[0].data, ops[0].version + 1)
            raise MetadataUnknownOutcomeError(path, "lost")

    monkeypatch.setattr(store, "multi", lose_the_answer)
    assert await refusal(log, sequence(sim, 1)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert log.state is State.OFFLINE
    chain = Chain.from_bytes((await store.get(path)).data)
    named = [info.ledger_id for info in chain.ledgers]
    assert len(named) == 2
    assert set(named) <= await _ledger_ids(cluster.one)
    cluster.assignments.alive.discard(cluster.one.incarnation)
    cluster.assignments.assign(cluster.topic.id, 0, 2)
    new = await online(cluster.two)
    await new.append(sequence(sim, 1))
    assert [value for _, value in await sim.read_all(new)] == [b"0", b"1"]
    # It was empty, so the take-over took it out of the chain.
    assert named[1] not in await _ledger_ids(cluster.two)


async def test_a_ledger_whose_maker_died_before_the_chain_had_it(autojump_clock, cluster, sim):
    """The maker is cut off from metadata before it can name the ledger that it had in reserve."""
    one, two = cluster.one, cluster.two
    log = one.log()
    await log.append(sim.batch(b"one"))
    keeper = one.manager._find("t", 0).keeper
    await keeper._make_spare()
    write = keeper._write

    async def no_write(chain, new_ledger=None):
        assert new_ledger is None, "it has one in reserve"
        if chain.ledgers and chain.ledgers[-1].is_open:
            await one.kill()
            await trio.sleep_forever()
        await write(chain)

    keeper._write = no_write
    log.config = log.config.__class__(**{
        **{name: getattr(log.config, name) for name in log.config.__dataclass_fields__},
        "segment_bytes": 1,
    })  # fmt: skip
    with trio.fail_after(60):
        while not one.wire.dead:
            # The one behind the roll needs the next ledger.
            one.nursery.start_soon(_ignore_errors, log.append, sim.batch(b"two" * 100))
            log.call_keeper()
            await trio.sleep(0.1)
    ids = await _ledger_ids(two)
    # Metadata's own word: what the mirrors know may be older.
    document = await two.store.get(PATH.format(cluster.topic.id))
    (orphan,) = ids - {info.ledger_id for info in Chain.from_bytes(document.data).ledgers}
    # As long as its epoch is the chain's, its maker might be about to add it.
    assert await sweep_orphans(two.store, two.ledgers) == 0
    cluster.assignments.assign(cluster.topic.id, 0, 2)
    second = await online(two)
    await second.append(sim.batch(b"four"))
    before = await sim.read_all(second)
    assert await sweep_orphans(two.store, two.ledgers) == 1
    assert orphan not in await _ledger_ids(two)
    assert await sweep_orphans(two.store, two.ledgers) == 0
    assert await sim.read_all(second) == before
    await second.append(sim.batch(b"five"))


async def test_ledgers_of_others_are_kept(autojump_clock, cluster, sim):
    log = cluster.one.log()
    await log.append(sim.batch(b"one"))
    ledgers = cluster.one.ledgers
    stamps = {"application": b"quire", "topic_id": str(cluster.topic.id).encode()}
    stamps |= {"partition": b"0", "leader_epoch": b"-1"}
    strange = [
        {},
        {"application": b"quire", "topic": b"t", "partition": b"0"},  # before there were stamps
        {**stamps, "application": b"another"},
        {**stamps, "leader_epoch": b"x"},
        {**stamps, "topic_id": b"\xff"},
        {**stamps, "partition": b"1"},  # no such document
        {**stamps, "topic_id": b"00000000-0000-4000-8000-000000000000"},
        {**stamps, "leader_epoch": str(log.leader_epoch).encode()},
    ]
    for custom in strange:
        await ledgers.create_ledger(custom_metadata=custom)
    ids = await _ledger_ids(cluster.one)
    assert await sweep_orphans(cluster.one.store, ledgers) == 0
    assert await _ledger_ids(cluster.one) == ids
    await ledgers.create_ledger(custom_metadata=stamps)
    cluster.one.store.away = True
    assert await sweep_orphans(cluster.one.store, ledgers) == 0
    cluster.one.store.away = False
    assert await sweep_orphans(cluster.one.store, ledgers) == 1
    assert await _ledger_ids(cluster.one) == ids


async def _ignore_errors(function, *args):
    try:
        await function(*args)
    except (KafkaError, MetadataUnavailableError):
        return


async def _ledger_ids(broker):
    return {each async for ids in walk_ledger_ids(broker.store, "/ledgers") for each in ids}
