"""Attack 43: what a group shows to who may not describe its topics; share groups' records."""

import pytest

from tests.broker.handlers.test_conformance import (
    World,
    consumer_member,
    share_fetch,
    share_member,
    streams_member,
)
from wire.kafka import messages as m
from wire.kafka.errors import ErrorCode
from wire.kafka.message import ZERO_UUID
from wire.kafka.messages.metadata import Cursor, TopicRequest
from wire.kafka.messages.share_groups import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
)

REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.fixture
async def world(guarded, requests):
    admin = guarded.admin
    topic_id = await admin.create_topic("t", 2)
    await admin.produce("t", [b"a"])
    ready = m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    assert (await admin.call(ready)).coordinators[0].error_code == 0
    return World(topic_id, requests)


async def test_a_group_of_forbidden_topics_is_refused_whole(guarded, world):
    admin = guarded.admin
    await guarded.allow("alice DESCRIBE GROUP *", "alice READ GROUP x")
    alice = await guarded.login("alice")
    await consumer_member(admin, 1, "consumer")
    await share_member(admin, "share")
    await streams_member(admin, 0, "streams")
    asked = (
        m.ConsumerGroupDescribeRequest(["consumer"], include_authorized_operations=True),
        m.ShareGroupDescribeRequest(["share"], include_authorized_operations=True),
        m.StreamsGroupDescribeRequest(["streams"], include_authorized_operations=True),
    )
    for body in asked:
        [group] = (await alice.call(body)).groups
        assert (group.error_code, group.members) == (REFUSED, []), body
        assert "authorized to describe" in group.error_message
        [group] = (await admin.call(body)).groups
        assert group.error_code == 0
        assert group.members
    await guarded.allow("alice DESCRIBE TOPIC t")
    for body in asked:
        [group] = (await alice.call(body)).groups
        assert group.error_code == 0
        assert group.authorized_operations == 1 << 8, "DESCRIBE"


async def test_share_records_that_may_not_be_read(guarded, world):
    """Also of a session that goes on, and acknowledgements."""
    admin = guarded.admin
    await guarded.allow("alice READ GROUP shared")
    alice = await guarded.login("alice")
    offset = await share_fetch(admin, 2, world, "shared")
    await admin.produce("t", [b"y"], partition=1)  # nobody's yet
    ask = m.ShareFetchRequest(
        "shared", "other", 0, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, max_records=10,
        batch_size=10,
        topics=[
            m.share_groups.FetchTopic(world.topic_id, [m.share_groups.FetchPartition(1)])
        ],
    )  # fmt: skip
    answer = await alice.call(ask)
    [data] = answer.responses[0].partitions
    assert (answer.error_code, data.error_code) == (0, REFUSED)
    assert (bytes(data.records), data.acquired_records) == (b"", [])
    following = m.ShareFetchRequest(
        "shared", "other", 1, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, max_records=10,
        batch_size=10, topics=[],
    )  # fmt: skip
    [data] = (await alice.call(following)).responses[0].partitions
    assert data.error_code == REFUSED
    batch = AcknowledgementBatch(offset, offset, [1])
    topic = AcknowledgeTopic(world.topic_id, [AcknowledgePartition(1, [batch])])
    answer = await alice.call(m.ShareAcknowledgeRequest("shared", "other", 2, topics=[topic]))
    assert answer.responses[0].partitions[0].error_code == REFUSED
    await guarded.allow("alice READ TOPIC t")
    following.share_session_epoch = 3
    [data] = (await alice.call(following)).responses[0].partitions
    assert data.error_code == 0
    assert [one.first_offset for one in data.acquired_records] == [1]


async def test_operations_are_those_of_the_client(guarded, world):
    await guarded.allow(
        "alice READ TOPIC t",
        "alice DESCRIBE CLUSTER",
        "-alice DESCRIBE_CONFIGS TOPIC *",
        "bob CREATE CLUSTER",  # which does not imply DESCRIBE
    )
    alice, bob = await guarded.login("alice"), await guarded.login("bob")
    ask = m.MetadataRequest(topics=None, include_topic_authorized_operations=True)
    [topic] = (await alice.call(ask)).topics
    assert topic.topic_authorized_operations == 1 << 3 | 1 << 8
    pages = m.DescribeTopicPartitionsRequest(topics=[], response_partition_limit=9)
    [topic] = (await alice.call(pages)).topics
    assert topic.topic_authorized_operations == 1 << 3 | 1 << 8
    ask = m.DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert (await alice.call(ask)).cluster_authorized_operations == 1 << 8
    assert (await bob.call(ask)).cluster_authorized_operations == 0
    ask = m.DescribeClusterRequest(include_cluster_authorized_operations=False)
    assert (await bob.call(ask)).cluster_authorized_operations == -(1 << 31)
    ask = m.MetadataRequest(topics=[], include_cluster_authorized_operations=True)
    assert (await bob.call(ask, 10)).cluster_authorized_operations == 0


async def test_settings_of_what_was_made_are_told_to_who_may_see_them(guarded):
    await guarded.allow("alice CREATE TOPIC *")
    alice = await guarded.login("alice")
    made = m.topics.CreatableTopic(name="new", num_partitions=3, replication_factor=1)
    [topic] = (await alice.call(m.CreateTopicsRequest(topics=[made], timeout_ms=1000))).topics
    assert (topic.error_code, topic.topic_config_error_code) == (0, REFUSED)
    assert (topic.num_partitions, topic.replication_factor, topic.configs) == (-1, -1, [])


async def test_deleting_by_id_names_what_may_be_described(guarded, world):
    """Attack 41."""
    alice = await guarded.login("alice")
    state = m.topics.DeleteTopicState(name=None, topic_id=world.topic_id)
    ask = m.DeleteTopicsRequest(topics=[state], timeout_ms=1000)
    for name, acl in ((None, "alice DESCRIBE TOPIC t"), ("t", "alice DELETE TOPIC t")):
        [one] = (await alice.call(ask)).responses
        assert (one.error_code, one.name, one.topic_id) == (REFUSED, name, world.topic_id)
        await guarded.allow(acl)
    [one] = (await alice.call(ask)).responses
    assert (one.error_code, one.name) == (0, "t")


async def test_deleting_by_an_id_that_is_heard_of_meanwhile(guarded):
    """Another broker made the topic, and this one learns of it because the client named its id."""
    topic_id = await guarded.admin.create_topic("new")
    catalog = guarded.server.parts["TopicCatalog"]
    topic = catalog.get("new")
    alice = await guarded.login("alice")
    state = m.topics.DeleteTopicState(name=None, topic_id=topic_id)
    ask = m.DeleteTopicsRequest(topics=[state], timeout_ms=1000)
    for name, acl in ((None, "alice DESCRIBE TOPIC new"), ("new", "alice DELETE TOPIC new")):
        del catalog._topics["new"], catalog._by_id[topic_id]
        [one] = (await alice.call(ask)).responses
        assert (one.error_code, one.name, one.topic_id) == (REFUSED, name, topic_id)
        assert catalog.get("new") == topic
        await guarded.allow(acl)
    del catalog._topics["new"], catalog._by_id[topic_id]
    [one] = (await alice.call(ask)).responses
    assert (one.error_code, one.name) == (0, "new")


@pytest.mark.parametrize("named", [[], ["hidden"], ["hidden", "shown"]])
async def test_a_cursor_shows_no_topic_that_may_not_be_described(guarded, named):
    """DescribeTopicPartitions: pages go on behind it, and it is not told of."""
    for name in ("hidden", "shown"):
        await guarded.admin.create_topic(name, 2)
    await guarded.allow("alice DESCRIBE TOPIC shown")
    alice = await guarded.login("alice")
    ask = m.DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name) for name in named],
        response_partition_limit=9,
        cursor=Cursor("hidden", 0),
    )
    told = [
        (topic.error_code, topic.name, topic.topic_id != ZERO_UUID, len(topic.partitions))
        for topic in (await alice.call(ask)).topics
    ]
    expected = [(REFUSED, "hidden", False, 0)] if named else []
    if named != ["hidden"]:
        expected.append((0, "shown", True, 2))
    assert sorted(told) == sorted(expected)
    topics = (await guarded.admin.call(ask)).topics
    assert topics[0].name == "hidden", "the cursor of who may see it begins there"
