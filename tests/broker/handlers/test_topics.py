"""CreateTopics, DeleteTopics, CreatePartitions: the answers that Kafka 4.3.1 gave to the same."""

import uuid

import pytest

from wire.kafka.errors import ErrorCode
from wire.kafka.message import ZERO_UUID
from wire.kafka.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)


def topic(name, partitions=1, factor=1, assigned=(), **configs):
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[CreatableReplicaAssignment(n, list(ids)) for n, ids in assigned],
        configs=[
            CreatableTopicConfig(setting.replace("_", "."), value)
            for setting, value in configs.items()
        ],
    )


async def create(broker, *topics, version=None, validate_only=False):
    body = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    return (await broker.call(body, version)).topics


async def test_create_answers_ids_and_every_setting(broker):
    (result,) = await create(broker, topic("a1", 2, retention_ms="5"))
    assert result.error_code == 0
    assert result.error_message is None
    assert result.topic_id == broker.catalog.get("a1").id != ZERO_UUID
    assert (result.num_partitions, result.replication_factor) == (2, 1)
    configs = {one.name: one for one in result.configs}
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("5", 1)
    assert (configs["segment.ms"].value, configs["segment.ms"].config_source) == ("604800000", 5)
    assert not any(one.read_only or one.is_sensitive for one in result.configs)
    assert len([name for name in configs if not name.startswith("quire.")]) == 33


@pytest.mark.parametrize("version", range(2, 8))
async def test_create_in_every_version(broker, version):
    (result,) = await create(broker, topic("t", -1, -1), version=version)
    assert result.error_code == 0
    assert broker.catalog.get("t").partition_count == 4
    assert (result.topic_id != ZERO_UUID) == (version >= 7)
    assert bool(result.configs) == (version >= 5)


@pytest.mark.parametrize(
    ("asked", "code", "message"),
    [
        (topic(""), "INVALID_TOPIC_EXCEPTION", "empty"),
        (topic("a b"), "INVALID_TOPIC_EXCEPTION", "a b"),
        (topic("x" * 250), "INVALID_TOPIC_EXCEPTION", "249"),
        (topic("old"), "TOPIC_ALREADY_EXISTS", "old"),
        (topic("c_d"), "INVALID_TOPIC_EXCEPTION", "c_d"),
        (topic("n", 0), "INVALID_PARTITIONS", "0 partitions"),
        (topic("n", -2), "INVALID_PARTITIONS", "-2 partitions"),
        (topic("n", 10_001), "POLICY_VIOLATION", "10000"),
        (topic("n", 1, 0), "INVALID_REPLICATION_FACTOR", "least is 1"),
        (topic("n", 1, -2), "INVALID_REPLICATION_FACTOR", "least is 1"),
        (topic("n", 1, 2), "INVALID_REPLICATION_FACTOR", "more bookies than the 1"),
        (topic("n", foo="1"), "INVALID_CONFIG", "unknown setting foo"),
        (topic("n", retention_ms="x"), "INVALID_CONFIG", "retention.ms='x'"),
        (topic("n", retention_ms="-2"), "INVALID_CONFIG", "least is -1"),
        (topic("n", retention_ms=None), "INVALID_CONFIG", "no value"),
        (topic("n", cleanup_policy="delte"), "INVALID_CONFIG", "nearest: delete"),
        (topic("n", segment_bytes="1000"), "INVALID_CONFIG", "least is 1048576"),
        (topic("n", preallocate="yes"), "INVALID_CONFIG", "true or false"),
        (topic("n", remote_storage_enable="true"), "INVALID_CONFIG", "tiered"),
        (
            topic("n", max_compaction_lag_ms="5", min_compaction_lag_ms="10"),
            "INVALID_CONFIG",
            "above max.compaction",
        ),
        (topic("n", -1, -1, [(0, [7])]), "INVALID_REPLICA_ASSIGNMENT", "broker 7"),
        (topic("n", 1, -1, [(0, [0])]), "INVALID_REQUEST", "number of partitions"),
        (topic("n", -1, 1, [(0, [0])]), "INVALID_REQUEST", "replication factor"),
        (topic("n", -1, -1, [(1, [0])]), "INVALID_REPLICA_ASSIGNMENT", "gap"),
        (topic("n", -1, -1, [(0, [0]), (2, [0])]), "INVALID_REPLICA_ASSIGNMENT", "gap"),
        (topic("n", -1, -1, [(0, [0]), (0, [0])]), "INVALID_REPLICA_ASSIGNMENT", "twice"),
        (topic("n", -1, -1, [(0, [0, 0])]), "INVALID_REPLICA_ASSIGNMENT", "twice"),
        (topic("n", -1, -1, [(0, [])]), "INVALID_REPLICA_ASSIGNMENT", "no broker"),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
async def test_create_refuses(broker, asked, code, message, validate_only):
    await create(broker, topic("old"), topic("c.d"))
    (result,) = await create(broker, asked, validate_only=validate_only)
    assert ErrorCode(result.error_code).name == code
    assert message in result.error_message
    assert (result.num_partitions, result.replication_factor) == (-1, -1)
    assert broker.catalog.get("n") is None


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("", "Topic name is invalid: the empty string is not allowed"),
        (".", "Topic name is invalid: '.' is not allowed"),
        (
            "a/b",
            "Topic name is invalid: 'a/b' contains one or more characters other than ASCII"
            " alphanumerics, '.', '_' and '-'",
        ),
        (
            "x" * 250,
            f"Topic name is invalid: the length of '{'x' * 250}' is longer than the max allowed"
            " length 249",
        ),
        ("old", "Topic 'old' already exists."),
        ("c_d", "Topic 'c_d' collides with existing topic: c.d"),
    ],
    ids=["empty", "dot", "slash", "long", "old", "collides"],
)
async def test_a_name_is_refused_in_the_words_of_kafka(broker, name, told):
    """Topic.validate and ReplicationControlManager.validateNewTopicNames have them."""
    await create(broker, topic("old"), topic("c.d"))
    (result,) = await create(broker, topic(name))
    assert result.error_message == told


async def test_create_takes_what_kafka_takes(broker, errors):
    asked = [
        topic("s1", -1, -1, [(0, [0]), (1, [0])]),
        topic("s2", cleanup_policy=""),
        topic("s3", cleanup_policy="compact,delete"),
        topic("__consumer_offsets"),
    ]
    results = await create(broker, *asked)
    assert {code for _, code in errors(results)} == {"NONE"}
    assert (results[0].num_partitions, results[0].replication_factor) == (2, 1)
    assert broker.catalog.get("__consumer_offsets").internal


async def test_create_names_twice(broker, errors):
    results = await create(broker, topic("d"), topic("d"), topic("d2"))
    assert sorted(errors(results)) == [("d", "INVALID_REQUEST"), ("d2", "NONE")]
    assert broker.catalog.get("d") is None


async def test_create_validates_only(broker):
    (result,) = await create(broker, topic("v", 3, retention_ms="77"), validate_only=True)
    assert (result.error_code, result.num_partitions) == (0, 3)
    assert {one.value for one in result.configs if one.name == "retention.ms"} == {"77"}
    assert broker.catalog.all() == []
    assert not await broker.store.exists("/quire/topics")


async def test_replication_factor_can_be_clipped(start_broker):
    broker = await start_broker(
        {"quire.clip.replication.factor": "true", "default.replication.factor": "3"}
    )
    results = await create(broker, topic("a", 1, 2), topic("b", 1, -1))
    assert [(one.error_code, one.replication_factor) for one in results] == [(0, 1), (0, 1)]


async def delete(broker, names=(), ids=(), version=6):
    body = DeleteTopicsRequest(topic_names=list(names))
    if version >= 6:
        body = DeleteTopicsRequest(
            topics=[DeleteTopicState(name=name) for name in names]
            + [DeleteTopicState(topic_id=topic_id) for topic_id in ids]
        )
    return (await broker.call(body, version)).responses


@pytest.mark.parametrize("version", range(1, 7))
async def test_delete_by_name_in_every_version(broker, errors, version):
    (made,) = await create(broker, topic("t"))
    results = await delete(broker, ["t", "nope"], version=version)
    assert errors(results) == [("t", "NONE"), ("nope", "UNKNOWN_TOPIC_OR_PARTITION")]
    assert results[0].topic_id == (made.topic_id if version >= 6 else ZERO_UUID)
    assert broker.catalog.all() == []


async def test_delete_by_id(broker, errors):
    (made,) = await create(broker, topic("t"))
    results = await delete(broker, ids=[made.topic_id, uuid.UUID(int=5), ZERO_UUID])
    assert errors(results) == [
        ("t", "NONE"),
        (None, "UNKNOWN_TOPIC_ID"),
        (None, "INVALID_REQUEST"),
    ]
    assert results[1].topic_id == uuid.UUID(int=5)


async def test_delete_names_twice(broker, errors):
    first, second, _ = await create(broker, topic("a"), topic("b"), topic("c"))
    results = await delete(broker, ["a", "c", "c"], [first.topic_id, second.topic_id] * 2)
    assert errors(results) == [
        ("a", "NONE"),
        ("c", "INVALID_REQUEST"),
        (None, "INVALID_REQUEST"),
        (None, "INVALID_REQUEST"),
    ]
    results = await delete(broker, ["b"], [second.topic_id])
    assert errors(results) == [("b", "NONE"), ("b", "INVALID_REQUEST")]
    both = DeleteTopicsRequest(topics=[DeleteTopicState(name="c", topic_id=first.topic_id)])
    assert errors((await broker.call(both)).responses) == [("c", "INVALID_REQUEST")]
    assert [one.name for one in broker.catalog.all()] == ["c"]


async def test_deletion_can_be_disabled(start_broker, errors):
    broker = await start_broker({"delete.topic.enable": "false"})
    await create(broker, topic("t"))
    assert errors(await delete(broker, ["t"])) == [("t", "TOPIC_DELETION_DISABLED")]
    assert errors(await delete(broker, ["t"], version=2)) == [("t", "INVALID_REQUEST")]
    assert broker.catalog.get("t")


async def grow(broker, *asked, version=3, validate_only=False):
    topics = [
        CreatePartitionsTopic(
            name,
            count,
            None if assigned is None else [CreatePartitionsAssignment(list(i)) for i in assigned],
        )
        for name, count, assigned in asked
    ]
    body = CreatePartitionsRequest(topics=topics, validate_only=validate_only)
    return (await broker.call(body, version)).results


@pytest.mark.parametrize("version", range(4))
async def test_create_partitions_echoes_every_topic(broker, errors, version):
    await create(broker, topic("a1"))
    results = await grow(broker, ("a1", 3, None), ("nope", 2, None), version=version)
    assert errors(results) == [("a1", "NONE"), ("nope", "UNKNOWN_TOPIC_OR_PARTITION")]
    assert broker.catalog.get("a1").partition_count == 3


@pytest.mark.parametrize(
    ("count", "assigned", "code"),
    [
        (3, None, "INVALID_PARTITIONS"),
        (1, None, "INVALID_PARTITIONS"),
        (0, None, "INVALID_PARTITIONS"),
        (-1, None, "INVALID_PARTITIONS"),
        (20_000, None, "INVALID_PARTITIONS"),
        (5, [[0]], "INVALID_REPLICA_ASSIGNMENT"),
        (4, [], "INVALID_REPLICA_ASSIGNMENT"),
        (4, [[7]], "INVALID_REPLICA_ASSIGNMENT"),
        (4, [[]], "INVALID_REPLICA_ASSIGNMENT"),
        (4, [[0, 0]], "INVALID_REPLICA_ASSIGNMENT"),
        (5, [[0], [0]], "NONE"),
    ],
)
async def test_create_partitions_checks(broker, errors, count, assigned, code):
    await create(broker, topic("a1", 3))
    results = await grow(broker, ("a1", count, assigned), validate_only=True)
    assert errors(results) == [("a1", code)]
    assert bool(results[0].error_message) == (code != "NONE")
    assert broker.catalog.get("a1").partition_count == 3
    await grow(broker, ("a1", count, assigned))
    assert broker.catalog.get("a1").partition_count == (count if code == "NONE" else 3)


async def test_create_partitions_names_twice(broker, errors):
    await create(broker, topic("a1"))
    results = await grow(broker, ("a1", 2, None), ("a1", 3, None))
    assert errors(results) == [("a1", "INVALID_REQUEST")]
    assert broker.catalog.get("a1").partition_count == 1


async def test_metadata_that_does_not_answer_is_retriable(broker, errors, nursery):
    await create(broker, topic("t"))
    await broker.store.aclose()
    assert errors(await create(broker, topic("u"))) == [("u", "REQUEST_TIMED_OUT")]
    assert errors(await delete(broker, ["t"])) == [("t", "REQUEST_TIMED_OUT")]
    assert errors(await grow(broker, ("t", 2, None))) == [("t", "REQUEST_TIMED_OUT")]
