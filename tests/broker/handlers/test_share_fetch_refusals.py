"""What members of share groups are told that cannot be served, or whose records are others'."""

from uuid import UUID

import trio

from tests.broker.calls import errors_in
from tests.broker.handlers.test_features import SAFE, UPGRADE, World
from wire.kafka.errors import ErrorCode as E
from wire.kafka.messages import MetadataRequest

NAME = "share.version"


async def acknowledged(member, *acks, **fields):
    """What a ShareFetch tells of the records that it acknowledges."""
    answer = await member.fetch(*acks, **fields)
    assert answer.error_code == 0, answer
    codes = [each.acknowledge_error_code for topic in answer.responses for each in topic.partitions]
    return E(max(codes, default=0)).name


async def test_share_groups_are_switched_off_and_on(share_member):
    """As in Kafka 4.3, whose brokers look at the feature before all else."""
    member = await share_member("one")
    await member.admin.produce("t", [b"a"])
    assert await member.take() == [(0, 0, 1)]
    features = World(member.admin)
    assert (await features.update((NAME, 0, SAFE)))[1] == "NONE"
    for version in (1, 2):
        for request in (member.fetch_request(epoch=1), member.acknowledge_request(epoch=1)):
            answer = await member.client.call(request, version)
            assert errors_in(answer) == {"UNSUPPORTED_VERSION"}
            assert answer.responses == []
    assert (await features.update((NAME, 1, UPGRADE)))[1] == "NONE"
    assert await member.acknowledge((0, 0, 1), epoch=1) == "NONE", "the session is as it was"


async def test_records_that_another_member_has(share_member):
    member, other = await share_member("one"), await share_member("two")
    await member.admin.produce("t", [b"a"])
    assert await member.take() == [(0, 0, 1)]
    assert await other.take(max_wait_ms=1) == []
    assert await acknowledged(other, (0, 0, 1)) == "INVALID_RECORD_STATE"
    assert await acknowledged(member, (0, 0, 1)) == "NONE"


async def test_what_the_share_coordinator_says_is_told_as_kafka_does(shares, share_member):
    """Of acknowledgements that it did not store."""
    member = await share_member("one")
    for refusal, told in (
        (E.NOT_COORDINATOR, "COORDINATOR_NOT_AVAILABLE"),
        (E.COORDINATOR_LOAD_IN_PROGRESS, "COORDINATOR_NOT_AVAILABLE"),
        (E.FENCED_STATE_EPOCH, "NOT_LEADER_OR_FOLLOWER"),
        (E.FENCED_LEADER_EPOCH, "NOT_LEADER_OR_FOLLOWER"),
    ):
        for is_fetch in (True, False):
            await member.admin.produce("t", [b"a"])
            taken = [(first, last, 1) for first, last, _ in await member.take()]
            assert taken
            shares.persister.refusal = refusal
            acknowledge = acknowledged(member, *taken) if is_fetch else member.acknowledge(*taken)
            assert await acknowledge == told, refusal
            shares.persister.refusal = None


async def test_a_topic_that_is_none(share_member):
    member = await share_member("one")
    assert (await member.fetch()).error_code == 0
    member.topic_id = UUID(int=5)
    assert await member.acknowledge((0, 0, 1)) == "UNKNOWN_TOPIC_ID"


async def test_records_that_no_bookie_has(shares, start_server, share_member):
    """The ledger is gone, and with it what was to be read."""
    member = await share_member("one")
    await member.admin.produce("t", [b"a"])
    await member.admin.server.stop()
    server = await start_server()
    member.client = await server.connect()
    await member.client.call(MetadataRequest(topics=None))
    for ledger_id in list(server.parts["Bookie"].list_ledgers()):
        await server.parts["Bookie"].delete_ledger(ledger_id)
    with trio.fail_after(10):
        answer = await member.fetch(max_wait_ms=5_000)
        while not answer.responses:
            answer = await member.fetch(max_wait_ms=5_000)
        (data,) = answer.responses[0].partitions
    assert E(data.error_code).name == "KAFKA_STORAGE_ERROR"
    assert not data.acquired_records
