"""What has to wait for what when a partition is written: reads for the ack, a snapshot of the
producers for the batches that it knows of, a new ledger's writes for the chain that names it."""

import pytest
import trio

from broker.log.partition import State
from broker.log.settings import LogSettings
from wire.kafka.errors import ErrorCode, KafkaError


@pytest.fixture
async def started(sim, nursery, autojump_clock):
    """Makes a cluster: two brokers; topic «t» of one partition, led by broker 1."""
    clusters = []

    async def start(settings=None):
        cluster = sim.Cluster(settings=settings)
        clusters.append(cluster)
        cluster.one = await cluster.start(nursery, 1)
        cluster.two = await cluster.start(nursery, 2)
        topic = await cluster.create_topic(cluster.one, 1)
        cluster.assignments.assign(topic.id, 0, 1)
        await online(cluster.one)
        return cluster

    yield start
    for cluster in clusters:
        for broker in (cluster.one, cluster.two):
            if not broker.wire.dead:
                await broker.kill()


async def online(broker):
    with trio.fail_after(120):
        while (log := broker.log()) is None or log.state is not State.ONLINE:
            await trio.sleep(0.01)
    return log


async def until(condition):
    with trio.fail_after(30):
        while not condition():
            await trio.sleep(0.05)


def lose_from(broker, first_entry_id):
    """The broker's adds of this entry and those behind it get lost; says which adds came."""
    add, seen = broker.bookies.add_entry, []

    def add_entry(bookie, ledger_id, entry_id, *rest):
        seen.append(entry_id)
        if entry_id < first_entry_id:
            add(bookie, ledger_id, entry_id, *rest)

    broker.bookies.add_entry = add_entry
    return seen


def hold_documents(broker):
    """(what lets them go, those that wait): the broker's writes of partitions' documents."""
    put, multi, go_on, waiting = broker.store.put, broker.store.multi, trio.Event(), []

    async def hold(path):
        if path.startswith("/quire/partitions/"):
            waiting.append(path)
            await go_on.wait()

    async def later(path, data, version):
        await hold(path)
        return await put(path, data, version)

    async def later_multi(ops):
        await hold(ops[0].path)
        return await multi(ops)

    broker.store.put, broker.store.multi = later, later_multi
    return go_on, waiting


def put(log, batch):
    """Where the answer comes."""
    answers = []
    log.append_nowait(memoryview(bytearray(batch)), answers.append)
    return answers


async def test_what_is_not_acknowledged_is_not_served(autojump_clock, started, sim):
    """Its bookies may never get it: a reader would have seen a record that a take-over loses."""
    cluster = await started()
    log = cluster.one.log()
    sent = lose_from(cluster.one, 1)
    await log.append(sim.batch(b"acknowledged"))
    answers = put(log, sim.batch(b"on its way"))
    await until(lambda: 1 in sent)
    assert log.next_offset == 2
    assert log.high_watermark == 1
    assert (await log.read(1, 1 << 16)).parts == []
    assert await sim.read_all(log) == [(0, b"acknowledged")]
    with pytest.raises(KafkaError) as caught:
        await log.read(2, 1 << 16)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert answers == []


async def test_a_snapshot_stands_behind_every_batch_that_it_knows_of(autojump_clock, started, sim):
    """Two batches come together, one of them waits as no more may be on their way, and a snapshot
    is due. Only two entries reach the bookies. The producer sends both batches again to the next
    owner: what that one takes for a duplicate has to be in the log."""
    settings = LogSettings(entry_bytes_target=1, entries_in_flight_max=1, snapshot_interval_bytes=1)
    cluster = await started(settings)
    log = cluster.one.log()
    sent = lose_from(cluster.one, 2)
    batches = [
        sim.batch(b"%d" % n, producer_id=7, producer_epoch=0, base_sequence=n) for n in range(2)
    ]
    for batch in batches:
        put(log, batch)
    await until(lambda: 2 in sent)
    await trio.sleep(2)  # a snapshot that was acknowledged is noted in the chain
    await cluster.one.kill()
    cluster.assignments.assign(cluster.topic.id, 0, 2)
    new = await online(cluster.two)
    for batch in batches:
        await new.append(batch)
    assert await sim.read_all(new) == [(0, b"0"), (1, b"1")]


async def test_a_new_ledger_takes_writes_when_the_chain_has_it(autojump_clock, started, sim):
    """The document is written, and the answer takes long: another broker may have taken over
    meanwhile. What had been acknowledged in a ledger that no chain names would be lost."""
    cluster = await started()
    log = cluster.one.log()
    go_on, waiting = hold_documents(cluster.one)
    answers = put(log, sim.batch(b"a"))
    await until(lambda: waiting)
    await trio.sleep(2)
    assert answers == []
    cluster.assignments.alive.discard(cluster.one.incarnation)
    cluster.assignments.assign(cluster.topic.id, 0, 2)
    new = await online(cluster.two)
    go_on.set()
    await until(lambda: answers)
    assert [each.error for each in answers] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert await sim.read_all(new) == []


async def test_a_ledger_is_deleted_when_the_chain_does_not_have_it_any_more(
    autojump_clock, started, sim, nursery
):
    """If the document could not be written after that, the partition would have a ledger that is
    gone: the next owner could not serve it."""
    cluster = await started()
    log, keeper = cluster.one.log(), cluster.one.manager._find("t", 0).keeper
    await log.append(sim.batch(b"old"))
    [old] = log.chain.ledgers
    keeper._roll_asked = True
    await keeper._close_ledger()
    await log.append(sim.batch(b"new"))
    go_on, waiting = hold_documents(cluster.one)
    nursery.start_soon(keeper.delete_records, 1)
    await until(lambda: waiting)
    await trio.sleep(2)
    reader = await cluster.two.ledgers.open_ledger(old.ledger_id, recover=False)
    assert reader.last_add_confirmed >= 0
    go_on.set()
    await until(lambda: log.log_start_offset == 1)
    assert await sim.read_all(log) == [(1, b"new")]
