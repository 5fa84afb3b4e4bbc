"""Which partitions a broker holds follows what it is told, also while it starts and in slices."""

from dataclasses import replace

import trio

from broker.log.manager import PARTITIONS_PER_TURN
from broker.log.partition import State
from wire.kafka.errors import ErrorCode, KafkaError

#: Several slices.
PARTITIONS = 1000
LAST = PARTITIONS - 1


async def second_broker(cluster, sim, nursery, one, meanwhile):
    """Broker 2 starts; `meanwhile()` runs when it has followed the first slice of topic «t»."""
    assignments = cluster.assignments
    known = type(one)(cluster, 2)
    assignments.alive.add(known.incarnation)

    async def watch():
        while cluster.topic.id not in known.manager._topics:
            await trio.lowlevel.checkpoint()
        await meanwhile(known)

    nursery.start_soon(watch)
    await nursery.start(known.run)
    await trio.sleep(60)
    return known


async def test_what_is_assigned_while_a_broker_starts_is_held(autojump_clock, sim, nursery):
    cluster = sim.Cluster()
    one = await cluster.start(nursery, 1)
    topic = await cluster.create_topic(one, PARTITIONS)

    async def assign(two):
        two.ownership.seen[topic.id, 0] = cluster.assignments.truth[topic.id, 0] = 2, 1
        for listener in list(two.ownership.listeners):
            listener(topic.id)

    two = await second_broker(cluster, sim, nursery, one, assign)
    log = two.log(0)
    state = None if log is None else log.state
    await one.kill()
    await two.kill()
    assert state is State.ONLINE


async def test_a_topic_deleted_while_a_broker_starts_is_not_found_by_its_id(
    autojump_clock, sim, nursery
):
    cluster = sim.Cluster()
    one = await cluster.start(nursery, 1)
    await cluster.create_topic(one, PARTITIONS)
    old = await one.catalog.create("u", 1, {}, replication_factor=3)
    made = []

    async def make_anew(two):
        await one.catalog.delete("u")
        made.append(await one.catalog.create("u", 1, {}, replication_factor=3))

    two = await second_broker(cluster, sim, nursery, one, make_anew)
    cluster.assignments.assign(made[0].id, 0, 2)
    await trio.sleep(60)
    try:
        found = two.manager.get_by_id(old.id, 0).topic.id
    except KafkaError as error:
        found = error.code
    await one.kill()
    await two.kill()
    assert found is ErrorCode.UNKNOWN_TOPIC_ID, (
        "the id of a deleted topic finds another topic's log"
    )


async def test_changes_of_other_partitions_do_not_keep_a_later_one_from_being_followed(
    autojump_clock, sim, nursery
):
    cluster = sim.Cluster()
    one = await cluster.start(nursery, 1)
    topic = await cluster.create_topic(one, PARTITIONS)
    truth, ownership = cluster.assignments.truth, one.ownership
    truth[topic.id, LAST] = 1, 0
    cluster.assignments.tell(topic.id)
    await trio.sleep(20)
    assert one.log(LAST).state is State.ONLINE

    def give_to_two(partition, epoch):
        truth[topic.id, partition] = 2, epoch
        ownership.seen = dict(truth)
        for listener in list(ownership.listeners):
            listener(topic.id)

    log = one.log(LAST)
    give_to_two(LAST, 1)
    for turn in range(20 * PARTITIONS // PARTITIONS_PER_TURN):
        if turn % 8 == 0:
            give_to_two(100 + turn % 500, turn)
        await trio.lowlevel.checkpoint()
    is_noticed = log.is_closing or log.state is State.OFFLINE
    await one.kill()
    assert is_noticed


async def test_changed_settings_reach_what_is_held(autojump_clock, sim, nursery):
    """Of one topic, and the broker's own; the keeper hears of them, too, for the ledger's age."""
    cluster = sim.Cluster()
    one = await cluster.start(nursery, 1)
    topic = await cluster.create_topic(one, 1)
    cluster.assignments.assign(topic.id, 0, 1)
    await trio.sleep(10)
    log = one.log(0)
    await log.append(sim.batch(b"x"))
    far = log.queue.attention_time - trio.current_time()
    await one.catalog.change_configs(topic.name, lambda _: {"segment.ms": "50000"})
    await trio.sleep(1)
    by_topic = log.config.segment_ms, log.queue.attention_time - trio.current_time()
    in_force = one.catalog.config
    one.catalog.config = lambda asked: replace(in_force(asked), segment_ms=20_000)
    one.manager.refresh_configs()
    by_broker = log.config.segment_ms, log.queue.attention_time - trio.current_time()
    await one.kill()
    assert far > 1_000
    assert by_topic[0] == 50_000
    assert by_topic[1] <= 50
    assert by_broker[0] == 20_000
    assert by_broker[1] <= 20
