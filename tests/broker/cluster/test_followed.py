"""What other brokers change in metadata arrives by watches: topics and dynamic settings."""

import functools
import random
import time

import pytest
import trio

from broker.cluster import catalog as catalog_module
from broker.cluster.catalog import TopicChange
from broker.cluster.registry import DEFAULT_BROKER, Room
from metadata.store import MetadataError, MetadataUnavailableError, NoNodeError
from wire.kafka.errors import ErrorCode, KafkaError

CREATED, ADDED = TopicChange.CREATED, TopicChange.PARTITIONS_ADDED
CONFIG, DELETED = TopicChange.CONFIG_CHANGED, TopicChange.DELETED


@pytest.fixture
def open_following(open_node, nursery):
    async def open_one(static=None):
        node = await open_node(static)
        await nursery.start(node.registry.run)
        await nursery.start(node.catalog.run)
        return node

    return open_one


async def settled():
    await trio.testing.wait_all_tasks_blocked(0.002)


async def test_everything_that_happens_to_a_topic_is_seen_elsewhere(open_following):
    one, two = await open_following(), await open_following()
    made = await one.catalog.create("t", 2)
    await settled()
    assert two.catalog.get("t") == made
    grown = await one.catalog.add_partitions("t", 5)
    await settled()
    assert two.catalog.get_by_id(made.id) == grown
    await two.catalog.change_configs("t", lambda _: {"retention.ms": "7"})
    await settled()
    assert one.catalog.config(one.catalog.get("t")).retention_ms == 7
    await one.catalog.delete("t")
    await settled()
    assert two.catalog.all() == []
    again = await two.catalog.create("t", 1)
    await settled()
    assert one.catalog.get("t").id == again.id != made.id
    assert one.events == [
        (CREATED, "t"), (ADDED, "t"), (CONFIG, "t"), (DELETED, "t"),
        (TopicChange.DISCARDED, "t"), (CREATED, "t"),
    ]  # fmt: skip
    assert two.events == [
        (CREATED, "t"), (ADDED, "t"), (CONFIG, "t"), (DELETED, "t"), (CREATED, "t"),
    ]  # fmt: skip


async def test_after_a_lost_session_all_is_read_again_and_nothing_told_twice(open_following):
    one, two = await open_following(), await open_following()
    for number in range(5):
        await one.catalog.create(f"t{number}", 1)
    await settled()
    before = list(two.events)
    two.store.expire_session()
    await settled()
    assert two.events == before
    await one.catalog.delete("t3")
    two.store.expire_session()
    await one.catalog.create("t3", 9)
    await settled()
    assert two.catalog.get("t3") == one.catalog.get("t3")


async def test_metadata_that_is_away_is_tried_again(open_following, monkeypatch, autojump_clock):
    one, two = await open_following(), await open_following()
    monkeypatch.setattr(catalog_module.WatchedFolder, "_children", _away)
    read = two.store.get_many

    async def away(paths):
        raise MetadataUnavailableError(paths[0], "away")

    type(two.store).get_many, original = away_for(two.store, away), type(two.store).get_many
    try:
        await one.catalog.create("t", 1)
        await trio.sleep(3)
        assert two.catalog.get("t") is None
    finally:
        type(two.store).get_many = original
        monkeypatch.undo()
    await trio.sleep(3)
    assert two.catalog.get("t") is not None
    assert await read([]) == []


async def _away(self):
    raise MetadataUnavailableError("/", "away")


def away_for(store, instead):
    original = type(store).get_many

    async def get_many(self, paths):
        return await (instead(paths) if self is store else original(self, paths))

    return get_many


async def test_a_deletion_that_its_broker_did_not_finish(open_following, autojump_clock):
    one, two = await open_following(), await open_following()
    topic = await one.catalog.create("t", 3)
    # The deleting broker dies between its first and second step.
    await one.store.delete("/quire/topics/t", topic.version)
    await trio.sleep(catalog_module.DISCARD_AFTER_SECONDS - 1)
    assert len(await two.store.children(f"/quire/partitions/{topic.id}")) == 3
    await trio.sleep(2)
    assert len(await two.store.children(f"/quire/deleted/{topic.id}")) == 3
    assert not await two.store.exists(f"/quire/partitions/{topic.id}")
    told = [node.events.count((TopicChange.DISCARDED, "t")) for node in (one, two)]
    assert sum(told) >= 1


async def _configure(node):
    await node.catalog.change_configs("t", lambda _: {"retention.ms": "1"})


async def _grow(node):
    await node.catalog.add_partitions("t", 5)


async def _delete(node):
    await node.catalog.delete("t")


@pytest.mark.parametrize("change", [_configure, _grow, _delete])
async def test_a_change_meant_for_a_topic_that_was_made_anew_under_its_name(
    open_node, change, autojump_clock
):
    """`one` follows nothing: it has the old topic in memory, of the very version that the new one
    has. Its first try must not touch the new one."""
    one, two = await open_node(), await open_node()
    old = await one.catalog.create("t", 1)
    await two.load()
    await two.catalog.delete("t")
    new = await two.catalog.create("t", 2)
    assert (old.version, one.catalog.get("t").id) == (new.version, old.id)
    seen = []
    multi = one.store.multi

    class Watching:
        async def multi(self, ops):
            try:
                await multi(ops)
            except MetadataError as error:
                seen.append(error)
                raise

        def __getattr__(self, name):
            return getattr(one.store, name)

    one.catalog._store = Watching()
    await change(one)
    assert [type(error) for error in seen] == [NoNodeError], "the first try is refused"
    await two.load()
    topic = two.catalog.get("t")
    # The second was made from what is there now.
    if change is _delete:
        assert topic is None
    else:
        assert (topic.id, topic.version) == (new.id, 1)
        assert topic.partition_count == (5 if change is _grow else 2)


async def test_a_topic_without_its_folder_is_told(node):
    topic = await node.catalog.create("t", 1)
    await node.store.delete(f"/quire/partitions/{topic.id}/0")
    await node.store.delete(f"/quire/partitions/{topic.id}")
    for change in (_configure, _delete):
        with pytest.raises(KafkaError, match="damaged") as raised:
            await change(node)
        assert raised.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


async def test_settings_that_are_taken_back_leave_no_node_to_be_made_anew(open_node):
    one, two = await open_node(), await open_node()
    await one.registry.change(Room.GROUPS, "g", lambda _: {"consumer.session.timeout.ms": "50000"})
    path = "/quire/configs/groups/" + (await one.store.children("/quire/configs/groups"))[0]
    before = (await one.store.get(path)).version
    await one.registry.change(Room.GROUPS, "g", lambda _: {})
    await one.registry.change(Room.GROUPS, "g", lambda _: {"consumer.session.timeout.ms": "40000"})
    assert (await one.store.get(path)).version == before + 2
    await one.registry.change(Room.GROUPS, "g", lambda _: {})
    await two.registry.load()
    assert two.registry._dynamic[Room.GROUPS] == {}


async def test_a_topic_of_a_newer_format_harms_nobody(open_following, caplog):
    one = await open_following()
    await one.store.create("/quire/topics/new", b'{"format":99}', make_parents=True)
    await one.store.create("/quire/topics/odd", b"\xff", make_parents=True)
    await one.catalog.create("t", 1)
    await settled()
    assert [topic.name for topic in one.catalog.all()] == ["t"]
    assert sum("topic_not_understood" in each.message for each in caplog.records) == 2


@pytest.mark.parametrize("seed", range(30))
async def test_brokers_that_change_the_same_topics_agree(open_following, seed):
    """Whatever they do at once; and each of them hears of a topic's versions in order."""
    rng = random.Random(seed)
    nodes = [await open_following() for _ in range(3)]
    heard = [{} for _ in nodes]
    names = [f"t{n}" for n in range(12)]  # each made once: versions of a name begin anew

    def listen(seen, event):
        alive, version = seen.get(event.topic.id, (False, -1))
        if event.change is TopicChange.CREATED:
            assert not alive
            assert version == -1, "a deleted topic came back"
            seen[event.topic.id] = True, event.topic.version
        elif event.change is not TopicChange.DISCARDED:
            assert alive, f"{event.change} of a topic that was not there"
            assert event.topic.version > version or event.change is TopicChange.DELETED
            seen[event.topic.id] = event.change is not TopicChange.DELETED, event.topic.version

    for node, seen in zip(nodes, heard, strict=True):
        node.catalog.subscribe(functools.partial(listen, seen))

    async def act(node):
        for _ in range(25):
            name = rng.choice([topic.name for topic in node.catalog.all()] or ["none"])
            try:
                match rng.randrange(5):
                    case 0 | 1:
                        if names:
                            await node.catalog.create(names.pop(0), rng.randrange(1, 4))
                    case 2:
                        await node.catalog.delete(name)
                    case 3:
                        await node.catalog.add_partitions(name, rng.randrange(2, 9))
                    case 4:
                        value = {"retention.ms": str(rng.randrange(9))}
                        await node.catalog.change_configs(name, lambda _, value=value: value)
            except KafkaError:
                pass
            for _ in range(rng.randrange(4)):
                await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as actors:
        for node in nodes:
            actors.start_soon(act, node)
            actors.start_soon(act, node)
    await settled()
    pictures = [sorted(node.catalog.all(), key=lambda t: t.name) for node in nodes]
    assert pictures[0] == pictures[1] == pictures[2]
    assert [t.version for t in pictures[0]] == [t.version for t in pictures[1]]
    stored = await nodes[0].store.children("/quire/topics")
    assert [topic.name for topic in pictures[0]] == stored
    for node, seen in zip(nodes, heard, strict=True):
        assert {i for i, (alive, _) in seen.items() if alive} == {t.id for t in node.catalog.all()}


async def test_settings_of_other_brokers_arrive(open_following):
    one = await open_following({"node.id": "1"})
    two = await open_following({"node.id": "2"})
    told = []
    two.registry.subscribe(lambda: told.append(1))

    def put(**texts):
        return lambda before: {**before, **{k.replace("_", "."): v for k, v in texts.items()}}

    await one.registry.change(Room.BROKERS, DEFAULT_BROKER, put(log_retention_ms="7000"))
    await settled()
    assert two.registry.topic_config({}).retention_ms == 7000
    assert len(told) == 1
    await one.registry.change(Room.BROKERS, "2", put(log_retention_ms="9000"))
    await settled()
    assert two.registry.topic_config({}).retention_ms == 9000
    assert one.registry.topic_config({}).retention_ms == 7000
    assert len(told) == 2
    await one.registry.change(Room.GROUPS, "g", put(consumer_session_timeout_ms="50000"))
    await settled()
    assert two.registry.stored(Room.GROUPS, "g") == {"consumer.session.timeout.ms": "50000"}
    await two.registry.change(Room.BROKERS, "2", lambda before: {})
    await settled()
    assert two.registry.topic_config({}).retention_ms == 7000
    assert one.registry.stored(Room.BROKERS, "2") == {}
    # Of version 9, say: what was in force stays.
    path = f"/quire/configs/brokers/{DEFAULT_BROKER}"
    node = await one.store.get(path)
    await one.store.put(path, b'{"log.retention.ms":"many"}', node.version)
    await settled()
    assert two.registry.topic_config({}).retention_ms == 7000


async def test_a_thousand_topics_made_elsewhere(open_following):
    one, two = await open_following(), await open_following()
    started = time.process_time()
    for number in range(1000):
        await one.catalog.create(f"topic-{number}", 1)
    with trio.fail_after(60):
        while len(two.catalog.all()) < 1000:
            await trio.sleep(0.01)
    assert len(two.events) == 1000
    assert time.process_time() - started < 20
