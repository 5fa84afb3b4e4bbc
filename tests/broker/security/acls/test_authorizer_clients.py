"""Clients who log in and have some rights: what they write, read and see."""

import logging
import uuid

from tests.broker.conftest import fetch_request, produce_request, values_of
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    DescribeConfigsRequest,
    FindCoordinatorRequest,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
)
from wire.kafka.messages.configs import DescribeConfigsResource
from wire.kafka.messages.configs import (
    IncrementalAlterConfigsRequestAlterableConfig as AlterableConfig,
)
from wire.kafka.messages.configs import (
    IncrementalAlterConfigsRequestAlterConfigsResource as AlterConfigsResource,
)
from wire.kafka.messages.metadata import MetadataRequestTopic

REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
ZERO = uuid.UUID(int=0)


def topics_of(answer):
    return [(one.name, ErrorCode(one.error_code).name) for one in answer.topics]


async def test_who_may_write_writes_and_the_other_topic_is_told_beside(guarded):
    await guarded.admin.create_topic("mine")
    await guarded.admin.create_topic("theirs")
    await guarded.allow("alice WRITE TOPIC mine", "bob READ TOPIC m*")
    alice, bob = await guarded.login("alice"), await guarded.login("bob")
    ask = produce_request(("theirs", 0, [b"x"]), ("mine", 0, [b"y"]), ("none", 3, [b"z"]))
    answer = await alice.call(ask, 9)
    assert {
        one.name: [(each.index, each.error_code) for each in one.partition_responses]
        for one in answer.responses
    } == {"mine": [(0, 0)], "theirs": [(0, REFUSED)], "none": [(3, REFUSED)]}
    assert values_of((await bob.fetch("mine", 0)).records) == [(0, b"y")]
    for topic in ("theirs", "none"):
        data = await bob.fetch(topic, 0)
        assert (data.error_code, data.high_watermark, bytes(data.records)) == (REFUSED, -1, b"")
    assert (await alice.fetch("mine", 0)).error_code == REFUSED
    assert (await bob.produce("mine", [b"x"])).error_code == REFUSED


async def test_acks_0_closes(guarded):
    await guarded.admin.create_topic("mine")
    await guarded.admin.create_topic("theirs")
    await guarded.allow("alice WRITE TOPIC mine")
    for parts in ([("theirs", 0, [b"x"])], [("theirs", 0, [b"x"]), ("mine", 0, [b"y"])]):
        alice = await guarded.login("alice")
        await alice.stream.send_all(alice.frame(produce_request(*parts, acks=0), 9))
        assert await alice.is_closed()
    assert values_of((await guarded.admin.fetch("mine", 0)).records) == [(0, b"y")]
    assert values_of((await guarded.admin.fetch("theirs", 0)).records) == []


async def test_metadata_shows_what_may_be_described(guarded):
    theirs = await guarded.admin.create_topic("theirs")
    mine = await guarded.admin.create_topic("mine")
    await guarded.allow("alice READ TOPIC mine", "alice DESCRIBE TOPIC new")
    alice = await guarded.login("alice")
    for version, everything in ((0, []), (1, None), (13, None)):
        answer = await alice.call(MetadataRequest(topics=everything), version)
        assert topics_of(answer) == [("mine", "NONE")]
    named = [MetadataRequestTopic(name=name) for name in ("theirs", "mine", "absent")]
    for version in (0, 4, 9, 13):
        answer = await alice.call(MetadataRequest(topics=list(named)), version)
        assert sorted(topics_of(answer)) == [
            ("absent", REFUSED.name),
            ("mine", "NONE"),
            ("theirs", REFUSED.name),
        ]
        assert all(one.topic_id == ZERO for one in answer.topics if one.name != "mine")
        assert all(not one.partitions for one in answer.topics if one.name != "mine")
    ids = (theirs, mine, uuid.UUID(int=5))
    answer = await alice.call(
        MetadataRequest(topics=[MetadataRequestTopic(topic_id=one, name=None) for one in ids])
    )
    assert {one.topic_id: (one.name, one.error_code) for one in answer.topics} == {
        theirs: (None, REFUSED),
        mine: ("mine", 0),
        ids[2]: (None, ErrorCode.UNKNOWN_TOPIC_ID),
    }


async def test_a_topic_is_made_for_who_may_create_it(guarded):
    """Attack 42."""
    await guarded.allow("alice DESCRIBE TOPIC new*", "alice CREATE TOPIC new-1")
    alice = await guarded.login("alice")
    for name, error in (("new-2", REFUSED.name), ("new-1", "NONE")):
        ask = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        assert topics_of(await alice.call(ask)) == [(name, error)]
    assert topics_of(await guarded.admin.call(MetadataRequest(topics=None))) == [("new-1", "NONE")]
    await guarded.allow("alice CREATE CLUSTER")
    ask = MetadataRequest(topics=[MetadataRequestTopic(name="new-2")])
    assert topics_of(await alice.call(ask)) == [("new-2", "NONE")]


async def test_an_acl_counts_from_the_next_fetch_of_a_session_on(guarded):
    """Attack 46: of one that names no topics."""
    for name in ("t", "u"):
        await guarded.admin.create_topic(name)
        await guarded.admin.produce(name, [b"x"])
    await guarded.allow("alice READ TOPIC t", "alice READ TOPIC u")
    alice = await guarded.login("alice")
    first = await alice.call(fetch_request(("t", 0, 0), ("u", 0, 0), session_epoch=0), 12)
    assert {one.topic for one in first.responses} == {"t", "u"}
    session = first.session_id
    assert session
    await guarded.take_back("alice READ TOPIC u")
    following = fetch_request(session_id=session, session_epoch=1)
    second = await alice.call(following, 12)
    found = {one.topic: [each.error_code for each in one.partitions] for one in second.responses}
    assert found["u"] == [REFUSED]
    assert all(
        not each.records for one in second.responses for each in one.partitions if one.topic == "u"
    )
    await guarded.allow("alice READ TOPIC u")
    third = await alice.call(fetch_request(session_id=session, session_epoch=2), 12)
    assert [
        values_of(each.records)
        for one in third.responses
        for each in one.partitions
        if one.topic == "u"
    ] == [[(0, b"x")]]


async def test_a_session_is_nobody_elses(guarded):
    await guarded.admin.create_topic("t")
    await guarded.allow("alice READ TOPIC t", "bob READ TOPIC t")
    alice, bob = await guarded.login("alice"), await guarded.login("bob")
    first = await alice.call(fetch_request(("t", 0, 0), session_epoch=0), 12)
    stolen = fetch_request(session_id=first.session_id, session_epoch=1)
    answer = await bob.call(stolen, 12)
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    closing = fetch_request(("t", 0, 0), session_id=first.session_id, session_epoch=-1)
    assert (await bob.call(closing, 12)).error_code == 0
    following = fetch_request(session_id=first.session_id, session_epoch=1)
    assert (await alice.call(following, 12)).error_code == 0


async def test_who_says_it_is_a_broker_has_to_be_one(guarded):
    """Attack 39."""
    await guarded.admin.create_topic("t")
    await guarded.admin.produce("t", [b"x"])
    await guarded.allow("alice READ TOPIC t")
    alice = await guarded.login("alice")
    assert (await alice.fetch("t", 0, replica_id=1)).error_code == REFUSED
    await guarded.allow("alice CLUSTER_ACTION CLUSTER")
    assert values_of((await alice.fetch("t", 0, replica_id=1)).records) == [(0, b"x")]


async def test_a_fetch_waits_beside_what_it_may_not_read(guarded, wait_until):
    """What is refused does not answer at once for what is allowed."""
    for name in ("t", "u"):
        await guarded.admin.create_topic(name)
    await guarded.allow("alice READ TOPIC t")
    alice = await guarded.login("alice")
    handlers = guarded.server.parts["Dispatcher"]
    await alice.send(
        fetch_request(("t", 0, 0), ("u", 0, 0), max_wait_ms=20_000, min_bytes=1), version=12
    )
    await wait_until(lambda: any(len(one._line) for one in handlers.connections))
    await guarded.admin.produce("t", [b"x"])
    answer = await alice.receive()
    assert {one.topic: one.partitions[0].error_code for one in answer.responses} == {
        "t": 0,
        "u": REFUSED,
    }


async def test_a_client_that_calls_itself_a_tool_writes_no_internal_topic(guarded):
    """Attack 38."""
    ready = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
    assert (await guarded.admin.call(ready)).coordinators[0].error_code == 0
    await guarded.allow("alice ALL TOPIC __consumer_offsets")
    alice = await guarded.login("alice")
    ask = produce_request(("__consumer_offsets", 0, [(b"k", b"v")]))

    async def code():
        await alice.stream.send_all(alice.frame(ask, 9, client_id="__admin_client"))
        return (await alice.receive()).responses[0].partition_responses[0].error_code

    assert await code() == ErrorCode.INVALID_TOPIC_EXCEPTION
    await guarded.allow("alice ALTER CLUSTER")
    assert await code() != ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_secrets_and_rights_are_not_to_be_had_by_settings(guarded):
    """Attack 48: neither passwords nor super users by DescribeConfigs and AlterConfigs."""
    broker = DescribeConfigsResource(resource_type=4, resource_name="0")
    answer = await guarded.admin.call(DescribeConfigsRequest(resources=[broker]))
    values = {one.name: one.value for one in answer.results[0].configs}
    assert "super.users" in values
    assert not any("PlainLoginModule" in (value or "") for value in values.values())
    for name in ("super.users", "authorizer.class.name", "allow.everyone.if.no.acl.found"):
        config = AlterableConfig(name=name, config_operation=0, value="User:alice")
        resource = AlterConfigsResource(resource_type=4, resource_name="0", configs=[config])
        answer = await guarded.admin.call(IncrementalAlterConfigsRequest(resources=[resource]))
        assert answer.responses[0].error_code in (
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_CONFIG,
        )


async def test_the_audit_log_has_a_level_of_its_own(guarded, caplog):
    name = "kafka.authorizer.logger"
    config = AlterableConfig(name=name, config_operation=0, value="DEBUG")
    resource = AlterConfigsResource(resource_type=8, resource_name="0", configs=[config])
    try:
        answer = await guarded.admin.call(IncrementalAlterConfigsRequest(resources=[resource]))
        assert answer.responses[0].error_code == 0
        await guarded.admin.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]))
        allowed = [record for record in caplog.records if record.getMessage() == "Allowed"]
        assert any(record.args["rule"] == "SuperUser" for record in allowed)
    finally:
        logging.getLogger(name).setLevel(logging.NOTSET)
