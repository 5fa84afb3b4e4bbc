"""Groups of the newer protocols, and a client that means harm: what no client of Kafka's sends.

Each request is answered, with an error that says what is wrong. Nothing of it stays, nobody else
notices, and no handler fails (conftest.py looks at the log)."""

import uuid

import pytest
import trio

from wire.kafka.errors import ErrorCode as E
from wire.kafka.messages.configs import IncrementalAlterConfigsRequest
from wire.kafka.messages.configs import (
    IncrementalAlterConfigsRequestAlterableConfig as AlterableConfig,
)
from wire.kafka.messages.configs import (
    IncrementalAlterConfigsRequestAlterConfigsResource as AlterConfigsResource,
)
from wire.kafka.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from wire.kafka.messages.groups import DescribeGroupsRequest, FindCoordinatorRequest
from wire.kafka.messages.security import DescribeUserScramCredentialsRequest, UserName
from wire.kafka.messages.share_groups import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    ShareGroupDescribeRequest,
    ShareGroupHeartbeatRequest,
)
from wire.kafka.messages.streams_groups import (
    CopartitionGroup,
    KeyValue,
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequestSubtopology,
    StreamsGroupHeartbeatRequestTopology,
    TaskIds,
    TopicInfo,
)

LONG = "x" * 32_767
LAST = 2**31 - 1
LAST_OFFSET = 2**63 - 1
NOBODYS = uuid.UUID(int=77)


@pytest.fixture
async def client(start_server):
    server = await start_server({"group.consumer.assignment.interval.ms": "0"})
    client = await server.connect()
    client.topic_id = await client.create_topic("t", 4)
    await client.call(FindCoordinatorRequest(coordinator_keys=["g"]), 6)
    while (await consumer(client, "g", "m", 3))[0] == "NOT_COORDINATOR":
        await trio.sleep(0.05)
    return client


def told(answer):
    return E(answer.error_code).name, answer.member_epoch


async def consumer(client, group, member, epoch, **given):
    request = ConsumerGroupHeartbeatRequest(group, member, epoch)
    if epoch == 0:
        request.rebalance_timeout_ms, request.topic_partitions = 60_000, []
        request.subscribed_topic_names = ["t"]
    for name, value in given.items():
        setattr(request, name, value)
    return told(await client.call(request))


async def share(client, group, member, epoch, **given):
    request = ShareGroupHeartbeatRequest(group, member, epoch)
    if epoch == 0:
        request.subscribed_topic_names = ["t"]
    for name, value in given.items():
        setattr(request, name, value)
    return told(await client.call(request))


async def streams(client, group, member, epoch, **given):
    request = StreamsGroupHeartbeatRequest(group, member, epoch, 0)
    request.active_tasks = request.standby_tasks = request.warmup_tasks = []
    if epoch == 0:
        request.rebalance_timeout_ms, request.process_id = 60_000, "p"
        request.topology = topology("t")
    for name, value in given.items():
        setattr(request, name, value)
    return told(await client.call(request))


def topology(*sources, epoch=0, **given):
    part = StreamsGroupHeartbeatRequestSubtopology("0", list(sources))
    for name, value in given.items():
        setattr(part, name, value)
    return StreamsGroupHeartbeatRequestTopology(epoch, [part])


BEATS = {"consumer": consumer, "share": share, "streams": streams}
DESCRIBES = (
    ConsumerGroupDescribeRequest,
    ShareGroupDescribeRequest,
    StreamsGroupDescribeRequest,
)


async def test_the_longest_names(client):
    """An error that tells one is longer than a string may be, unless it is cut."""
    for kind, beat in BEATS.items():
        assert await beat(client, LONG, "m", 5) == ("GROUP_ID_NOT_FOUND", 0)
        assert await beat(client, kind, "m", 0) == ("NONE", 2 if kind == "consumer" else 1)
        assert await beat(client, kind, LONG, 5) == ("UNKNOWN_MEMBER_ID", 0)
        assert (await beat(client, kind, LONG, 0, rack_id=LONG))[0] == "NONE"
    for beat in (share, streams):
        assert await beat(client, "consumer", "m", 0) == ("GROUP_ID_NOT_FOUND", 0)
    for describe in DESCRIBES:
        [group] = (await client.call(describe([LONG]))).groups
        assert (group.error_code, group.group_id) == (E.GROUP_ID_NOT_FOUND, LONG)
        assert len(group.error_message) < 3_000
    [group] = (await client.call(DescribeGroupsRequest([LONG]), 6)).groups
    assert group.error_code == E.GROUP_ID_NOT_FOUND
    assert (await consumer(client, "c", "m", 0, server_assignor=LONG))[0] == "UNSUPPORTED_ASSIGNOR"
    error, _ = await consumer(client, "c", "m", 0, subscribed_topic_regex=LONG)
    assert error == "INVALID_REGULAR_EXPRESSION"
    assert (await streams(client, "streams", LONG, 0, shutdown_application=True))[0] == "NONE"
    bad = topology(*(f"{n} {'x' * 200}" for n in range(500)))
    assert (await streams(client, "b", "m", 0, topology=bad))[0] == "STREAMS_INVALID_TOPOLOGY"
    users = DescribeUserScramCredentialsRequest([UserName(LONG)])
    [result] = (await client.call(users)).results
    assert (result.user, result.error_code) == (LONG, E.RESOURCE_NOT_FOUND)


@pytest.mark.parametrize("kind", BEATS)
async def test_epochs_that_are_none(client, kind):
    beat = BEATS[kind]
    for epoch in (LAST, 1, -1):
        assert await beat(client, "g", "m", epoch) == ("GROUP_ID_NOT_FOUND", 0)
    first = await beat(client, "g", "m", 0)
    for epoch in (LAST, 2**30):
        assert await beat(client, "g", "m", epoch) == ("FENCED_MEMBER_EPOCH", 0)
        assert await beat(client, "g", "other", epoch) == ("UNKNOWN_MEMBER_ID", 0)
    for epoch in (-2, -3, -LAST):
        assert await beat(client, "g", "m", epoch) == ("INVALID_REQUEST", 0)
    assert await beat(client, "g", "other", -1) == ("UNKNOWN_MEMBER_ID", 0)
    assert await beat(client, "g", "m", first[1]) == first, "it is as it was"


async def test_partitions_that_nobody_gave(client):
    first = await consumer(client, "g", "m", 0)
    assert first == ("NONE", 2)
    for topic_id, numbers in (
        (client.topic_id, [-1, LAST, 0, 0]),
        (NOBODYS, [0]),
        (client.topic_id, list(range(10_000))),
    ):
        owned = [ConsumerGroupHeartbeatRequestTopicPartitions(topic_id, numbers)] * 2
        beat = {"topic_partitions": owned}
        assert await consumer(client, "g", "m", 2, **beat) == ("NONE", 2)
        assert await consumer(client, "g", "m", 1, **beat) == ("FENCED_MEMBER_EPOCH", 0)
    assert await consumer(client, "g", "m", 2) == first


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"active_tasks": [TaskIds("9", [0])]}, "INVALID_REQUEST"),
        ({"active_tasks": [TaskIds("0", [4])]}, "INVALID_REQUEST"),
        ({"active_tasks": [TaskIds("0", [0, -1])]}, "INVALID_REQUEST"),
        ({"standby_tasks": [TaskIds("0", [LAST, -LAST])]}, "INVALID_REQUEST"),
        ({"standby_tasks": None}, "INVALID_REQUEST"),
        ({"active_tasks": [TaskIds("0", [0, 0]), TaskIds("0", [0])]}, "NONE"),
        ({"endpoint_information_epoch": LAST}, "NONE"),
        ({"endpoint_information_epoch": -LAST}, "NONE"),
        ({"rebalance_timeout_ms": -7}, "NONE"),
    ],
)
async def test_tasks_that_nobody_gave(client, given, error):
    assert await streams(client, "g", "m", 0) == ("NONE", 1)
    assert (await streams(client, "g", "m", 1, **given))[0] == error
    assert await streams(client, "g", "m", 1) == ("NONE", 1)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"repartition_source_topics": [TopicInfo("r", LAST)]}, "NONE"),
        ({"repartition_source_topics": [TopicInfo("r", -LAST)]}, "STREAMS_INVALID_TOPOLOGY"),
        ({"copartition_groups": [CopartitionGroup([32_767], [], [])]}, "STREAMS_INVALID_TOPOLOGY"),
        ({"copartition_groups": [CopartitionGroup([-1], [], [])]}, "STREAMS_INVALID_TOPOLOGY"),
        ({"repartition_sink_topics": [LONG]}, "STREAMS_INVALID_TOPOLOGY"),
        ({"state_changelog_topics": [TopicInfo("c", replication_factor=-7)]}, "NONE"),
        ({"state_changelog_topics": [TopicInfo("c", replication_factor=32_767)]}, "NONE"),
        (
            {"state_changelog_topics": [TopicInfo("c", topic_configs=[KeyValue(LONG, LONG)])]},
            "NONE",
        ),
    ],
)
async def test_topologies_that_cannot_be(client, given, error):
    for _ in range(2):  # internal topics are made between the two, or are not
        told = topology("t", **given)
        assert (await streams(client, "g", "m", 0, topology=told))[0] == error
        await trio.sleep(0.1)


# --- share sessions


class Member:
    """Of share group «g», on a connection of its own; it knows its epoch, unless it is told one."""

    def __init__(self, client, topic_id, name="m"):
        self.client, self.topic_id, self.name = client, topic_id, name
        self.epoch = 0

    def _next(self, epoch):
        if epoch is None:
            epoch, self.epoch = self.epoch, self.epoch + 1
        return epoch

    async def fetch(self, *acks, numbers=(0,), forgotten=(), epoch=None, **given):
        """(error, [(partition, error, error of acknowledging, [(first, last)])])"""
        options = {"max_wait_ms": 0, "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500}
        options |= given
        topic_id = options.pop("topic_id", self.topic_id)
        wanted = [FetchPartition(n, acknowledgement_batches=batches(acks)) for n in numbers]
        gone = [ForgottenTopic(topic_id, list(forgotten))]
        request = ShareFetchRequest("g", self.name, self._next(epoch), **options)
        request.topics, request.forgotten_topics_data = [FetchTopic(topic_id, wanted)], gone
        answer = await self.client.call(request, 2)
        return E(answer.error_code).name, [
            (
                each.partition_index,
                E(each.error_code).name,
                E(each.acknowledge_error_code).name,
                [(one.first_offset, one.last_offset) for one in each.acquired_records],
            )
            for topic in answer.responses
            for each in topic.partitions
        ]

    async def acknowledge(self, *acks, numbers=(0,), epoch=None, renews=False, topic_id=None):
        wanted = [AcknowledgePartition(n, batches(acks)) for n in numbers]
        topics = [AcknowledgeTopic(topic_id or self.topic_id, wanted)]
        request = ShareAcknowledgeRequest("g", self.name, self._next(epoch), topics=topics)
        request.is_renew_ack = renews
        answer = await self.client.call(request, 2)
        codes = [each.error_code for topic in answer.responses for each in topic.partitions]
        return E(answer.error_code or max(codes, default=0)).name


def batches(acks):
    return [AcknowledgementBatch(first, last, list(types)) for first, last, *types in acks]


@pytest.fixture
async def member(client):
    """It was given 0 to 9 of partition 0, where 100 records are."""
    reset = AlterableConfig("share.auto.offset.reset", 0, "earliest")
    await client.call(IncrementalAlterConfigsRequest([AlterConfigsResource(32, "g", [reset])]))
    for _ in range(10):
        await client.produce("t", [b"x"] * 10)
    assert (await share(client, "g", "m", 0))[0] == "NONE"
    member = Member(await client.server.connect(), client.topic_id)
    while True:
        error, found = await member.fetch(max_records=10, max_wait_ms=500, min_bytes=1)
        assert error == "NONE"
        if found:
            assert found == [(0, "NONE", "NONE", [(0, 9)])]
            return member


@pytest.mark.parametrize(
    "given",
    [
        {"max_records": 0}, {"max_records": -1}, {"max_bytes": -1}, {"min_bytes": -1},
        {"batch_size": 0}, {"batch_size": -5}, {"max_wait_ms": -5}, {"numbers": (0, 0, 0)},
        {"forgotten": (7, -1, LAST)}, {"forgotten": (0,)}, {"forgotten": (0, 0), "numbers": ()},
    ],
)  # fmt: skip
async def test_fetches_of_odd_numbers(member, given):
    error, found = await member.fetch(**given)
    assert error == "NONE"
    assert all(each[1:3] == ("NONE", "NONE") for each in found)
    assert await member.acknowledge((0, 9, 1)) == "NONE", "it holds what it held"


async def test_partitions_that_there_are_not(member):
    for numbers in ((-1,), (LAST,)):
        _, found = await member.fetch(numbers=numbers, forgotten=(0,))
        assert (numbers[0], "UNKNOWN_TOPIC_OR_PARTITION", "NONE", []) in found
        error = await member.acknowledge((0, 1, 1), numbers=numbers)
        assert error == "UNKNOWN_TOPIC_OR_PARTITION"
    _, found = await member.fetch(topic_id=NOBODYS)
    assert (0, "UNKNOWN_TOPIC_ID", "NONE", []) in found
    assert await member.acknowledge((0, 1, 1), topic_id=NOBODYS) == "UNKNOWN_TOPIC_ID"
    assert await member.acknowledge((0, 9, 1)) == "NONE"


@pytest.mark.parametrize(
    ("acks", "given"),
    [
        ([(0, LAST_OFFSET, 1)], {}),
        ([(LAST_OFFSET - 1, LAST_OFFSET, 1)], {}),
        ([(-5, 3, 1)], {}),
        ([(3, 0, 1)], {}),
        ([(0, 3, 1), (3, 5, 1)], {}),
        ([(0, 3)], {}),
        ([(0, 3, 127)], {}),
        ([(0, 3, -128)], {}),
        ([(0, 3, 4)], {}),
        ([(0, LAST_OFFSET, 4)], {"renews": True}),
    ],
)
async def test_acknowledgements_of_nonsense(member, acks, given):
    assert await member.acknowledge(*acks, **given) == "INVALID_REQUEST"
    if not given:
        error, found = await member.fetch(*acks)
        assert (error, [each[2] for each in found]) == ("NONE", ["INVALID_REQUEST"])
    assert await member.acknowledge((0, 9, 1)) == "NONE"


async def test_the_session_of_another(client, member):
    thief = Member(await client.server.connect(), client.topic_id)
    for epoch in (member.epoch, -1, LAST):
        assert await thief.fetch(epoch=epoch) == ("SHARE_SESSION_NOT_FOUND", [])
        assert await thief.acknowledge((0, 9, 1), epoch=epoch) == "SHARE_SESSION_NOT_FOUND"
    for epoch in (member.epoch + 1, LAST, -2, -LAST):
        assert await member.fetch(epoch=epoch) == ("INVALID_SHARE_SESSION_EPOCH", [])
        error = await member.acknowledge((0, 9, 1), epoch=epoch)
        assert error == "INVALID_SHARE_SESSION_EPOCH"
    assert await member.acknowledge((0, 1, 1)) == "NONE"
    # Who knows the member's id can open its session anew, as in Kafka: a member is its id.
    assert (await thief.fetch(epoch=0, max_records=1))[0] == "NONE"
    assert await member.fetch() == ("SHARE_SESSION_NOT_FOUND", [])
    stranger = Member(await client.server.connect(), client.topic_id, "stranger")
    assert (await stranger.fetch(max_records=1))[0] == "NONE"
    assert await stranger.acknowledge((2, 9, 1)) == "INVALID_RECORD_STATE"
    await thief.client.aclose()
    error, found = await stranger.fetch(max_wait_ms=10_000, min_bytes=1)
    assert (error, found[0][3][0][0]) == ("NONE", 2), "it is free"
