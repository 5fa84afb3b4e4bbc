"""The topic catalog: names, changes, and what a crash at any point leaves behind."""

import time

import pytest
import trio

from broker.cluster import documents
from broker.cluster.catalog import TopicChange, check_name
from metadata.store import MetadataUnknownOutcomeError, NoNodeError
from wire.kafka.errors import ErrorCode, KafkaError

DOCUMENT = b'{"document":"of broker/log"}'


def refused(code, match=None):
    class Refused:
        def __enter__(self):
            self.raises = pytest.raises(KafkaError, match=match)
            self.caught = self.raises.__enter__()

        def __exit__(self, *exc):
            done = self.raises.__exit__(*exc)
            assert self.caught.value.code is code
            return done

    return Refused()


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets"])
def test_good_names(name):
    check_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a b", "a/b", "é", "a\n", "a:b"])
def test_bad_names(name):
    with refused(ErrorCode.INVALID_TOPIC_EXCEPTION):
        check_name(name)


async def test_create_makes_topic_and_partitions_at_once(node):
    topic = await node.catalog.create("t", 3, {"retention.ms": "5"})
    assert node.catalog.get("t") is topic
    assert node.catalog.get_by_id(topic.id) is topic
    assert node.catalog.all() == [topic]
    assert topic.partition_count == 3
    assert not topic.internal
    assert topic.id.version == 4
    paths = [f"/quire/partitions/{topic.id}/{n}" for n in range(4)]
    assert [found and found.data for found in await node.store.get_many(paths)] == [
        *[DOCUMENT] * 3,
        None,
    ]
    assert node.events == [(TopicChange.CREATED, "t")]


async def test_a_restart_sees_the_same_topics(node, open_node):
    made = [await node.catalog.create(f"t{n}", n + 1, {"segment.ms": "7"}) for n in range(3)]
    made.append(await node.catalog.create("__consumer_offsets", 2))
    made[1] = await node.catalog.add_partitions("t1", 9)
    made[2] = await node.catalog.change_configs("t2", lambda _: {"retention.ms": "1"})
    again = await open_node()
    assert sorted(again.catalog.all(), key=lambda t: t.name) == sorted(made, key=lambda t: t.name)
    assert {t.name: t.version for t in again.catalog.all()} == {t.name: t.version for t in made}
    assert again.catalog.get("__consumer_offsets").internal


async def test_create_refuses(node):
    create = node.catalog.create
    await create("a.b", 1)
    with refused(ErrorCode.TOPIC_ALREADY_EXISTS):
        await create("a.b", 1)
    with refused(ErrorCode.INVALID_TOPIC_EXCEPTION, match="collides with existing topic: a.b"):
        await create("a_b", 1)
    with refused(ErrorCode.INVALID_TOPIC_EXCEPTION):
        await create("a b", 1)
    with refused(ErrorCode.INVALID_PARTITIONS):
        await create("c", 0)
    with refused(ErrorCode.INVALID_PARTITIONS, match="10001"):
        await create("c", 10_001)
    with refused(ErrorCode.INVALID_CONFIG, match=r"nearest known name is retention\.ms"):
        await create("c", 1, {"retention.m": "1"})
    with refused(ErrorCode.INVALID_CONFIG, match=r"retention\.ms='x'"):
        await create("c", 1, {"retention.ms": "x"})
    assert [topic.name for topic in node.catalog.all()] == ["a.b"]
    await node.catalog.delete("a.b")
    await create("a_b", 1)


async def test_two_creations_at_once(node):
    outcomes = []

    async def create(name):
        try:
            outcomes.append((await node.catalog.create(name, 1)).name)
        except KafkaError as error:
            outcomes.append(error.code)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(create, "a.b")
        nursery.start_soon(create, "a.b")
    assert sorted(outcomes, key=str) == sorted(["a.b", ErrorCode.TOPIC_ALREADY_EXISTS], key=str)
    assert len(node.catalog.all()) == 1


async def test_two_brokers_create_the_same_topic(node, open_node):
    other = await open_node()
    made = await node.catalog.create("t", 1)
    with refused(ErrorCode.TOPIC_ALREADY_EXISTS):
        await other.catalog.create("t", 1)
    assert other.catalog.get("t") == made  # it learnt of it


async def test_delete_leaves_documents_to_sweep(node):
    topic = await node.catalog.create("t", 700)  # more than one multi moves
    await node.store.put(f"/quire/partitions/{topic.id}/3", b"ledgers 1, 2", 0)
    deleted = await node.catalog.delete("t")
    assert deleted.id == topic.id
    assert node.catalog.get("t") is None
    assert node.catalog.get_by_id(topic.id) is None
    assert node.events[1:] == [(TopicChange.DELETED, "t"), (TopicChange.DISCARDED, "t")]
    left = await node.store.children(f"/quire/deleted/{topic.id}")
    assert len(left) == 700
    assert (await node.store.get(f"/quire/deleted/{topic.id}/3")).data == b"ledgers 1, 2"
    assert await node.store.children("/quire/partitions") == []
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        await node.catalog.delete("t")


async def test_recreated_topic_has_a_new_id(node):
    first = await node.catalog.create("t", 1)
    await node.catalog.delete("t")
    second = await node.catalog.create("t", 1)
    assert second.id != first.id
    assert node.catalog.get_by_id(first.id) is None


@pytest.mark.parametrize("survivors", range(7))
async def test_a_crash_anywhere_in_a_deletion_leaks_nothing(node, open_node, survivors):
    """The node's store works for so many more calls; then the node is gone."""
    keep = await node.catalog.create("keep", 2)
    topic = await node.catalog.create("t", 4)
    documents = {str(n): f"ledgers of {n}".encode() for n in range(4)}
    for n, data in documents.items():
        await node.store.put(f"/quire/partitions/{topic.id}/{n}", data, 0)
    real, calls = node.store, 0

    class Crashing:
        def __getattr__(self, name):
            nonlocal calls
            calls += 1
            if calls > survivors:
                raise InterruptedError
            return getattr(real, name)

    node.catalog._store = Crashing()
    try:
        await node.catalog.delete("t")
        crashed = False
    except InterruptedError:
        crashed = True
    again = await open_node()
    assert again.catalog.get("keep") == keep
    assert await real.children("/quire/partitions") == sorted(
        str(t.id) for t in again.catalog.all()
    )
    if survivors == 0:
        assert crashed
        assert again.catalog.get("t") == topic
        return
    assert again.catalog.get("t") is None
    nodes = await real.get_many([f"/quire/deleted/{topic.id}/{n}" for n in documents])
    assert [found.data for found in nodes] == list(documents.values())
    assert crashed == (survivors < calls)


async def test_the_last_write_of_a_partition_is_moved_too(node):
    """The holder of a partition writes its document between the read and the move."""
    topic = await node.catalog.create("t", 2)
    real, path = node.store, f"/quire/partitions/{topic.id}/1"

    class Racing:
        def __getattr__(self, name):
            return getattr(real, name)

        async def multi(self, ops):
            if (await real.get(path)).version == 0:
                await real.put(path, b"late", 0)
            await real.multi(ops)

    node.catalog._store = Racing()
    await node.catalog.delete("t")
    assert (await real.get(f"/quire/deleted/{topic.id}/1")).data == b"late"


async def test_add_partitions(node):
    topic = await node.catalog.create("t", 2)
    grown = await node.catalog.add_partitions("t", 5)
    assert (grown.id, grown.partition_count) == (topic.id, 5)
    assert node.catalog.get("t") is grown
    assert len(await node.store.children(f"/quire/partitions/{topic.id}")) == 5
    assert node.events[-1] == (TopicChange.PARTITIONS_ADDED, "t")
    with refused(ErrorCode.INVALID_PARTITIONS, match=r"Topic already has 5 partition\(s\)\."):
        await node.catalog.add_partitions("t", 5)
    for count in (4, 0, -1):
        told = rf"The topic t currently has 5 partition\(s\); {count} would not be an increase\."
        with refused(ErrorCode.INVALID_PARTITIONS, match=told):
            await node.catalog.add_partitions("t", count)
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        await node.catalog.add_partitions("nope", 5)


async def test_two_brokers_change_one_topic(node, open_node):
    """The slower one reads again, and loses nothing of the quicker one's change."""
    await node.catalog.create("t", 1)
    other = await open_node()
    await node.catalog.add_partitions("t", 3)
    changed = await other.catalog.change_configs("t", lambda _: {"retention.ms": "9"})
    assert (changed.partition_count, dict(changed.configs)) == (3, {"retention.ms": "9"})
    assert other.events == [(TopicChange.PARTITIONS_ADDED, "t"), (TopicChange.CONFIG_CHANGED, "t")]
    with refused(ErrorCode.INVALID_PARTITIONS):
        await node.catalog.add_partitions("t", 3)
    await node.catalog.delete("t")
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        await other.catalog.change_configs("t", lambda _: {})
    assert other.events[-1] == (TopicChange.DELETED, "t")


async def test_an_unknown_outcome_is_looked_up(node):
    """The connection is lost after the change was made, or before."""
    real = node.store

    class Lossy:
        made = True

        def __getattr__(self, name):
            return getattr(real, name)

        async def multi(self, ops):
            if self.made:
                await real.multi(ops)
            raise MetadataUnknownOutcomeError(ops[0].path)

    node.catalog._store = Lossy()
    topic = await node.catalog.create("t", 1)
    assert node.catalog.get("t").id == topic.id
    Lossy.made = False
    with refused(ErrorCode.REQUEST_TIMED_OUT):
        await node.catalog.create("u", 1)
    assert node.catalog.get("u") is None
    with refused(ErrorCode.REQUEST_TIMED_OUT):
        await node.catalog.add_partitions("t", 2)
    node.catalog._store = real
    assert (await node.catalog.add_partitions("t", 2)).partition_count == 2
    await node.catalog.create("u", 1)


async def test_config_is_cached_until_something_changes(node):
    topic = await node.catalog.create("t", 1, {"retention.ms": "5"})
    config = node.catalog.config(topic)
    assert (config.retention_ms, config.segment_ms) == (5, 604_800_000)
    assert node.catalog.config(topic) is config
    changed = await node.catalog.change_configs("t", lambda _: {"retention.ms": "6"})
    assert node.catalog.config(changed).retention_ms == 6
    assert node.catalog.config(topic).retention_ms == 5  # an old picture tells the old value


async def test_config_of_a_deleted_topic_is_not_kept(node):
    topic = await node.catalog.create("t", 1)
    await node.catalog.delete("t")
    assert node.catalog.config(topic).retention_ms == 604_800_000
    assert node.catalog._configs == {}


async def test_a_thousand_topics_load_quickly(node, open_node):
    for n in range(1000):
        await node.catalog.create(f"topic-{n}", 1)
    fresh = await open_node()
    start = time.process_time()
    await fresh.catalog.load()
    elapsed = time.process_time() - start
    assert len(fresh.catalog.all()) == 1000
    assert elapsed < 0.5, f"{elapsed:.3f} s"


async def test_unknown_format_is_refused(node, open_node):
    await node.store.create("/quire/topics/t", b'{"format":2}', make_parents=True)
    with pytest.raises(ValueError, match="format 2"):
        await open_node()


async def test_event_topics_are_what_is_now(node):
    seen = []
    node.catalog.subscribe(
        lambda event: seen.append(node.catalog.get(event.topic.name) is event.topic)
    )
    await node.catalog.create("t", 1)
    await node.catalog.add_partitions("t", 2)
    await node.catalog.delete("t")
    assert seen == [True, True, False, False]
    with pytest.raises(NoNodeError):
        await node.store.get("/quire/topics/t")


# -- topics that are larger than one request ----------------------------------------------------

MANY = 10_000


async def children(node, path):
    try:
        return await node.store.children(path)
    except NoNodeError:
        return []


async def is_whole(node, topic, count):
    numbers = {str(n) for n in range(count)}
    return set(await children(node, f"/quire/partitions/{topic.id}")) == numbers


@pytest.mark.timeout(120)
async def test_a_topic_of_10_000_partitions(node, open_node):
    """As many as are allowed: larger than ZooKeeper takes in one request."""
    topic = await node.catalog.create("t", MANY)
    assert await is_whole(node, topic, MANY)
    assert await children(node, "/quire/staged") == []
    another = await open_node()
    assert another.catalog.get("t").partition_count == MANY
    await node.catalog.delete("t")
    assert len(await children(node, f"/quire/deleted/{topic.id}")) == MANY
    assert await children(node, f"/quire/partitions/{topic.id}") == []


@pytest.mark.timeout(120)
async def test_a_topic_grows_to_10_000_partitions(node, open_node):
    topic = await node.catalog.create("t", 2)
    # Left over from a broker that died while it added some.
    await node.store.create(f"/quire/partitions/{topic.id}/17", DOCUMENT)
    grown = await node.catalog.add_partitions("t", MANY)
    assert grown.partition_count == MANY
    assert await is_whole(node, topic, MANY)


async def test_left_over_documents_do_not_stop_a_small_growth(node):
    topic = await node.catalog.create("t", 2)
    await node.store.create(f"/quire/partitions/{topic.id}/2", DOCUMENT)
    with trio.fail_after(5):
        assert (await node.catalog.add_partitions("t", 4)).partition_count == 4


async def test_no_multi_of_a_large_topic_holds_the_loop(node):
    """A store in this process does it within one turn: some 7 us for each op."""
    counts = []

    class Counting(type(node.store)):
        async def multi(self, ops):
            counts.append(len(ops))
            await super().multi(ops)

    node.catalog._store = Counting(node.store.tree)
    topic = await node.catalog.create("t", 1500)
    await node.catalog.add_partitions("t", 3000)
    assert await is_whole(node, topic, 3000)
    await node.catalog.delete("t")
    assert sum(counts) > 3 * 3000
    assert max(counts) <= 500


@pytest.fixture
def small_portions(monkeypatch):
    monkeypatch.setattr("broker.cluster.documents.PORTION_BYTES", 1000)


class Stop(BaseException):
    """The process ends here."""


def broken(store, at, error):
    """The multi number `at` fails with `error`, and nothing is done after it."""
    inner = store.tree
    count = 0

    class Broken(type(store)):
        async def multi(self, ops):
            nonlocal count
            count += 1
            if count >= at:
                raise error
            await super().multi(ops)

    made = Broken(inner)
    return made


@pytest.mark.parametrize("at", range(1, 9))
async def test_a_maker_that_dies_leaves_no_half_topic(node, open_node, small_portions, at):
    node.catalog._store = broken(node.store, at, Stop())
    if at < 8:  # seven portions and the end
        with pytest.raises(Stop):
            await node.catalog.create("t", 30)
    else:
        await node.catalog.create("t", 30)
    another = await open_node()
    topics = another.catalog.all()
    assert [topic.partition_count for topic in topics] == ([30] if at == 8 else [])
    assert await children(node, "/quire/staged") == []
    for topic in topics:
        assert await is_whole(node, topic, 30)
    ids = {str(topic.id) for topic in topics}
    assert set(await children(node, "/quire/partitions")) == ids
    await another.catalog.create("u", 30)


async def test_a_broker_that_starts_meanwhile_ends_what_is_being_made(
    node, open_node, small_portions
):
    """It cannot know whether the maker lives; the maker is told, and no half of it stays."""
    count = 0
    multi = type(node.store).multi

    class Interrupted(type(node.store)):
        async def multi(self, ops):
            nonlocal count
            count += 1
            if count == 4:
                await open_node()
            await multi(self, ops)

    node.catalog._store = Interrupted(node.store.tree)
    with refused(ErrorCode.REQUEST_TIMED_OUT):
        await node.catalog.create("t", 30)
    assert await children(node, "/quire/partitions") == []
    assert await children(node, "/quire/staged") == []
    assert node.catalog.get("t") is None
    node.catalog._store = node.store
    topic = await node.catalog.create("t", 30)
    assert await is_whole(node, topic, 30)


async def test_who_gives_up_too_late_changes_nothing(node, small_portions):
    topic = await node.catalog.create("t", 30)
    assert not await documents.give_up(node.store, topic.id)
    assert await is_whole(node, topic, 30)
    await node.catalog.add_partitions("t", 31)


async def test_the_end_of_a_topic_whose_name_is_used_again_leaves_no_gap(node, open_node):
    """Another broker deletes it and makes it anew, and this one hears of both at once."""
    other = await open_node()
    old = await node.catalog.create("t", 1)
    seen = []
    node.catalog.subscribe(lambda event: seen.append((event, node.catalog.get("t"))))
    await other.catalog.catch_up()
    await other.catalog.delete("t")
    new = await other.catalog.create("t", 2)
    await node.catalog._reread("t")
    assert [(event.change, event.topic.id, now.id) for event, now in seen] == [
        (TopicChange.DELETED, old.id, new.id),
        (TopicChange.CREATED, new.id, new.id),
    ]


async def test_catching_up_tells_what_others_made_and_deleted(node, open_node):
    other = await open_node()
    await node.catalog.create("mine", 1)
    await node.catalog.create("kept", 1)
    await other.catalog.catch_up()
    assert {topic.name for topic in other.catalog.all()} == {"mine", "kept"}
    await other.catalog.delete("mine")
    await other.catalog.create("theirs", 1)
    assert node.catalog.get("theirs") is None
    await node.catalog.catch_up()
    assert {topic.name for topic in node.catalog.all()} == {"kept", "theirs"}


ARCHIVE = {"quire.archive.required": "true"}


async def test_an_archive_is_for_what_is_not_compacted(node):
    await node.catalog.create("t", 1, {**ARCHIVE, "cleanup.policy": "delete"})
    for policy in ("compact", "compact,delete"):
        with refused(ErrorCode.INVALID_CONFIG, "quire.archive.required=true cannot be kept"):
            node.catalog.check_configs("u", {**ARCHIVE, "cleanup.policy": policy})
    node.catalog.check_configs(
        "u", {"quire.archive.required": "false", "cleanup.policy": "compact"}
    )
    with refused(ErrorCode.INVALID_CONFIG, "is not for __consumer_offsets"):
        node.catalog.check_configs("__consumer_offsets", ARCHIVE)
    with refused(ErrorCode.INVALID_CONFIG, "true or false"):
        node.catalog.check_configs("u", {"quire.archive.required": "perhaps"})
