"""DescribeCluster, DescribeTopicPartitions, DescribeLogDirs: as Kafka 4.3.1 answered the same."""

import uuid

import pytest

from wire.kafka.errors import ErrorCode
from wire.kafka.message import ZERO_UUID
from wire.kafka.messages.cluster import DescribableLogDirTopic, DescribeLogDirsRequest
from wire.kafka.messages.metadata import (
    Cursor,
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)

ABSENT = -(2**31)


@pytest.mark.parametrize("version", range(3))
async def test_describe_cluster(broker, version):
    answer = await broker.call(DescribeClusterRequest(), version)
    assert (answer.error_code, answer.error_message) == (0, None)
    assert (answer.cluster_id, answer.controller_id) == ("A" * 22, 0)
    (one,) = answer.brokers
    assert (one.broker_id, one.host, one.port, one.rack) == (0, "127.0.0.1", 9092, None)
    assert answer.cluster_authorized_operations == ABSENT
    asked = DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert (await broker.call(asked, version)).cluster_authorized_operations == 8096


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, "MISMATCHED_ENDPOINT_TYPE"), (3, "UNSUPPORTED_ENDPOINT_TYPE")],
)
async def test_describe_cluster_of_other_endpoints(broker, endpoint_type, code):
    answer = await broker.call(DescribeClusterRequest(endpoint_type=endpoint_type))
    assert ErrorCode(answer.error_code).name == code
    assert (answer.cluster_id, answer.controller_id, answer.brokers) == ("", -1, [])


@pytest.fixture
async def topics(broker):
    """a1 with 5 partitions, c.d with 1, s8 with 2, and an internal one."""
    for name, count in (("s8", 2), ("a1", 5), ("c.d", 1), ("__transaction_state", 1)):
        await broker.catalog.create(name, count)

    async def describe(names, limit=2000, cursor=None):
        body = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name) for name in names],
            response_partition_limit=limit,
            cursor=None if cursor is None else Cursor(*cursor),
        )
        answer = await broker.call(body)
        described = [
            (one.name, ErrorCode(one.error_code).name, [p.partition_index for p in one.partitions])
            for one in answer.topics
        ]
        following = answer.next_cursor
        return described, following and (following.topic_name, following.partition_index)

    return describe


async def test_pages_in_order_of_names(topics):
    names = ["s8", "a1", "nope", "c.d", "a1"]
    everything = [
        ("a1", "NONE", [0, 1, 2, 3, 4]),
        ("c.d", "NONE", [0]),
        ("nope", "UNKNOWN_TOPIC_OR_PARTITION", []),
        ("s8", "NONE", [0, 1]),
    ]
    assert await topics(names) == (everything, None)
    assert await topics(names, 3) == ([("a1", "NONE", [0, 1, 2])], ("a1", 3))
    assert await topics(names, 3, ("a1", 3)) == (
        [("a1", "NONE", [3, 4]), ("c.d", "NONE", [0])],
        ("nope", 0),
    )
    assert await topics(names, 3, ("nope", 0)) == (everything[2:], None)
    assert await topics(["a1", "s8"], 5) == (everything[:1], ("s8", 0))
    assert await topics(["s8"], 0) == ([("s8", "NONE", [0])], ("s8", 1))
    assert await topics(["a1"], -1) == ([("a1", "NONE", [0])], ("a1", 1))
    assert await topics(["a1", "s8"], 2000, ("a1", 100)) == (
        [("a1", "NONE", []), ("s8", "NONE", [0, 1])],
        None,
    )


async def test_pages_of_all_topics(topics, broker):
    assert await topics([], 2) == (
        [("__transaction_state", "NONE", [0]), ("a1", "NONE", [0])],
        ("a1", 1),
    )
    assert await topics([], 5, ("a1", 1)) == (
        [("a1", "NONE", [1, 2, 3, 4]), ("c.d", "NONE", [0])],
        ("s8", 0),
    )
    await broker.catalog.delete("a1")
    assert await topics([], 5, ("a1", 1)) == (
        [
            ("a1", "UNKNOWN_TOPIC_OR_PARTITION", []),
            ("c.d", "NONE", [0]),
            ("s8", "NONE", [0, 1]),
        ],
        None,
    )


async def test_every_partition_comes_once_whatever_the_page_size(topics):
    whole, _ = await topics([])
    wanted = {(name, n) for name, _, numbers in whole for n in numbers}
    for limit in range(1, 11):
        seen, cursor, pages = [], None, 0
        while pages == 0 or cursor is not None:
            described, cursor = await topics([], limit, cursor)
            page = [(name, n) for name, _, numbers in described for n in numbers]
            assert len(page) <= limit
            seen += page
            pages += 1
        assert len(seen) == len(wanted)
        assert set(seen) == wanted


@pytest.mark.parametrize("cursor", [("a2", 3), ("zz", 0), ("a1", -1)])
async def test_cursors_that_cannot_be(topics, cursor):
    described, following = await topics(["s8", "a1"], 2, cursor)
    assert described == [("s8", "INVALID_REQUEST", []), ("a1", "INVALID_REQUEST", [])]
    assert following is None


async def test_the_broker_limits_a_page(start_broker):
    broker = await start_broker({"max.request.partition.size.limit": "3"})
    await broker.catalog.create("t", 5)
    answer = await broker.call(DescribeTopicPartitionsRequest())
    assert len(answer.topics[0].partitions) == 3
    assert answer.next_cursor.partition_index == 3


async def test_what_is_told_of_a_partition(topics, broker):
    body = DescribeTopicPartitionsRequest(
        topics=[TopicRequest("s8"), TopicRequest("__transaction_state"), TopicRequest("a b")]
    )
    internal, invalid, topic = (await broker.call(body)).topics
    assert topic.topic_id == broker.catalog.get("s8").id
    assert (topic.is_internal, internal.is_internal) == (False, True)
    assert topic.topic_authorized_operations == 3576
    assert ErrorCode(invalid.error_code).name == "INVALID_TOPIC_EXCEPTION"
    assert invalid.topic_id == ZERO_UUID
    second = topic.partitions[1]
    assert (second.error_code, second.leader_id, second.leader_epoch) == (0, 0, 2)
    assert (second.replica_nodes, second.isr_nodes, second.offline_replicas) == ([0], [0], [])
    assert (second.eligible_leader_replicas, second.last_known_elr) == ([], [])
    assert isinstance(topic.topic_id, uuid.UUID)


@pytest.mark.parametrize("version", range(1, 6))
async def test_describe_log_dirs(topics, broker, version):
    async def sizes(asked):
        body = DescribeLogDirsRequest(
            topics=None
            if asked is None
            else [DescribableLogDirTopic(name, numbers) for name, numbers in asked]
        )
        answer = await broker.call(body, version)
        (directory,) = answer.results
        assert (answer.error_code, directory.error_code, directory.log_dir) == (0, 0, "/data")
        expected = (1000, 600) if version >= 4 else (-1, -1)
        assert (directory.total_bytes, directory.usable_bytes) == expected
        assert not any(
            p.is_future_key or p.offset_lag for t in directory.topics for p in t.partitions
        )
        return {
            topic.name: {p.partition_index: p.partition_size for p in topic.partitions}
            for topic in directory.topics
        }

    assert await sizes([("a1", [0, 9]), ("nope", [0])]) == {"a1": {0: 100}}
    assert await sizes([]) == {}
    broker.logs.missing.add(("s8", 1))  # not held by this broker
    assert await sizes(None) == {
        "s8": {0: 100},
        "a1": {n: 100 * (n + 1) for n in range(5)},
        "c.d": {0: 100},
        "__transaction_state": {0: 100},
    }
