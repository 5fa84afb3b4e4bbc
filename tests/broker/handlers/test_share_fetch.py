"""ShareFetch on a real server: sessions, what is acquired, and what becomes of it."""

import trio

from broker.api import ConnectionInfo, Request
from broker.log.read.partition_reader import PartitionReader
from broker.share.ports import ShareKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.share_groups import ForgottenTopic, ShareFetchRequest

E = ErrorCode


async def test_share_two_members_no_overlap(share_member, requests):
    one, two = await share_member("one"), await share_member("two")
    await one.admin.produce("t", [b"a", b"b"])
    await one.admin.produce("t", [b"c"])
    answer = await one.fetch(max_records=1, max_wait_ms=5_000)
    (data,) = answer.responses[0].partitions
    assert requests.values(data.records) == [(0, b"a"), (1, b"b")]
    assert [(each.first_offset, each.last_offset) for each in data.acquired_records] == [(0, 1)]
    assert answer.acquisition_lock_timeout_ms == 30_000
    assert (data.current_leader.leader_id, data.current_leader.leader_epoch) == (-1, -1)
    assert await two.take() == [(2, 2, 1)]
    assert await one.take((0, 1, 1), max_wait_ms=1) == []


async def test_each_version(share_member):
    for version in (1, 2):
        member = await share_member(f"member-{version}")
        await member.admin.produce("t", [b"a"])
        assert await member.take(version=version) == [(version - 1, version - 1, 1)]
        assert await member.acknowledge((version - 1, version - 1, 1), version=version) == "NONE"


async def test_a_fetch_waits_for_records(share_member, nursery):
    member = await share_member("one")
    await member.client.send(member.fetch_request(max_wait_ms=60_000), version=2)
    await trio.sleep(0.05)
    await member.admin.produce("t", [b"a"])
    answer = await member.client.receive()
    assert answer.responses[0].partitions[0].acquired_records[0].last_offset == 0


async def test_a_fetch_waits_for_bytes(share_member):
    member = await share_member("one")
    request = member.fetch_request(max_wait_ms=60_000, min_bytes=150)
    await member.client.send(request, version=2)
    await trio.sleep(0.05)
    await member.admin.produce("t", [b"a"])
    await trio.sleep(0.05)
    await member.admin.produce("t", [b"x" * 100])
    answer = await member.client.receive()
    assert [each.last_offset for each in answer.responses[0].partitions[0].acquired_records] == [1]


async def test_what_is_there_is_given_when_its_time_is_over(share_member):
    member = await share_member("one")
    await member.admin.produce("t", [b"a"])
    assert await member.take(min_bytes=1 << 20, max_wait_ms=50) == [(0, 0, 1)]


async def test_reconnect_old_session(share_member):
    member = await share_member("one")
    await member.admin.produce("t", [b"a"])
    assert await member.take() == [(0, 0, 1)]
    other = await share_member("one")
    assert (await other.fetch(epoch=1)).error_code == E.SHARE_SESSION_NOT_FOUND
    assert (await member.fetch(epoch=1)).error_code == 0


async def test_close_releases(share_member):
    member, other = await share_member("one"), await share_member("two")
    await member.admin.produce("t", [b"a", b"b"])
    assert await member.take() == [(0, 1, 1)]
    await other.client.send(other.fetch_request(max_wait_ms=60_000), version=2)
    await member.client.aclose()
    answer = await other.client.receive()
    (acquired,) = answer.responses[0].partitions[0].acquired_records
    assert (acquired.last_offset, acquired.delivery_count) == (1, 1), "it was not delivered"


async def test_the_last_epoch_acknowledges_and_releases(share_member):
    member, other = await share_member("one"), await share_member("two")
    await member.admin.produce("t", [b"a", b"b"])
    assert await member.take() == [(0, 1, 1)]
    assert (await member.fetch((0, 0, 1), epoch=-1)).error_code == 0
    assert await other.take() == [(1, 1, 1)]
    assert (await member.fetch(epoch=-1)).error_code == E.SHARE_SESSION_NOT_FOUND


async def test_a_lone_member_that_opens_its_session_anew_keeps_what_it_holds(share_member):
    member = await share_member("one")
    await member.admin.produce("t", [b"a", b"b"])
    assert await member.take() == [(0, 1, 1)]
    assert (await member.fetch(epoch=0)).error_code == 0
    assert await member.acknowledge((0, 0, 1), epoch=1) == "NONE"
    assert (await member.fetch(epoch=0, partitions=(1,))).error_code == 0
    assert (await member.fetch(epoch=1, partitions=(0,))).responses == []
    assert await member.acknowledge((1, 1, 1), epoch=2) == "NONE"


async def test_a_lone_member_that_forgets_a_partition_keeps_what_it_holds(share_member):
    member = await share_member("one")
    await member.admin.produce("t", [b"a", b"b"])
    assert await member.take() == [(0, 1, 1)]
    request = member.fetch_request(partitions=())
    request.forgotten_topics_data = [ForgottenTopic(topic_id=member.topic_id, partitions=[0])]
    assert (await member.client.call(request)).responses == []
    assert await member.take(max_wait_ms=50) == []
    assert await member.acknowledge((0, 1, 1)) == "NONE"


async def test_what_ends_of_a_large_session_is_not_what_the_next_one_was_given(share_member):
    member, other = await share_member("one"), await share_member("two")
    member.topic_id = other.topic_id = await member.admin.create_topic("many", 300)
    await member.admin.produce("many", [b"a"], partition=0)
    await member.admin.produce("many", [b"b"], partition=5)
    answer = await member.fetch(partitions=range(300), max_wait_ms=10_000, max_records=1)
    assert [each.partition_index for each in answer.responses[0].partitions] == [0]
    last = member.fetch_request(epoch=-1, partitions=())
    first = member.fetch_request(epoch=0, partitions=(5,), max_wait_ms=10_000)
    await member.client.send(last, first, version=2)
    assert (await member.client.receive()).error_code == 0
    answer = await member.client.receive()
    assert [each.partition_index for each in answer.responses[0].partitions] == [5]
    await trio.sleep(0.05)
    answer = await other.fetch(partitions=(0, 5), max_wait_ms=10_000)
    assert [each.partition_index for each in answer.responses[0].partitions] == [0]
    assert await member.acknowledge((0, 0, 1), epoch=1, partition=5) == "NONE"


async def test_who_goes_away_while_a_fetch_begins_to_wait_leaves_nothing(share_member):
    member = await share_member("one")
    member.topic_id = await member.admin.create_topic("many", 300)
    handler = member.client.server.parts["Dispatcher"]._apis[78].handle.__self__
    await member.fetch(partitions=range(300))
    (session,) = handler.sessions._sessions.values()
    request = Request(
        key=78, version=2, correlation_id=1, client_id="test",
        connection=ConnectionInfo(session.connection, "127.0.0.1", "PLAINTEXT"),
        body=member.fetch_request(partitions=(), max_wait_ms=60_000),
    )  # fmt: skip
    steps = handler.share_fetch(request)
    shares = [
        share for key, share in handler.partitions._held.items() if key.topic_id == member.topic_id
    ]
    while not any(share._watchers for share in shares):
        next(steps)
    assert handler.waiting_partitions == 300
    steps.close()
    await trio.sleep(0.05)
    assert handler.waiting_partitions == 0
    assert not any(share._watchers for share in shares)


async def test_session_limit(shares, share_member):
    member, other = await share_member("one"), await share_member("two")
    handler = member.client.server.parts["Dispatcher"]._apis[78].handle.__self__
    handler.sessions._sessions_max = 1
    assert (await member.fetch()).error_code == 0
    with trio.fail_after(10):
        begun = trio.current_time()
        answer = await other.fetch(max_wait_ms=200)
    assert answer.error_code == E.SHARE_SESSION_LIMIT_REACHED
    assert trio.current_time() - begun >= 0.2, "so that it does not spin"
    assert (await member.fetch(epoch=0)).error_code == 0, "its own is replaced"


async def test_refusals_of_whole_requests(share_member):
    member = await share_member("one")
    assert (await member.fetch((0, 0, 1), epoch=0)).error_code == E.INVALID_REQUEST
    assert (await member.fetch(epoch=7)).error_code == E.SHARE_SESSION_NOT_FOUND
    assert (await member.fetch(epoch=0)).error_code == 0
    assert (await member.fetch(epoch=7)).error_code == E.INVALID_SHARE_SESSION_EPOCH
    assert (await member.fetch(share_acquire_mode=2)).error_code == E.INVALID_REQUEST
    assert (await member.fetch(is_renew_ack=True)).error_code == E.INVALID_REQUEST
    call = member.client.call
    for group, name in ((None, "m"), ("g", None), ("", "m"), ("g", "m" * 37)):
        answer = await call(ShareFetchRequest(group_id=group, member_id=name))
        assert answer.error_code == E.INVALID_REQUEST


async def test_errors_of_partitions(share_member):
    member = await share_member("one")
    answer = await member.fetch(partitions=(0, 9))
    (data,) = answer.responses[0].partitions
    assert (data.partition_index, data.error_code) == (9, E.UNKNOWN_TOPIC_OR_PARTITION)
    member.topic_id = type(member.topic_id)(int=5)
    answer = await member.fetch()
    codes = {each.error_code for topic in answer.responses for each in topic.partitions}
    assert codes == {E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_ID}


async def test_what_is_forgotten_is_not_fetched(share_member):
    member = await share_member("one")
    await member.admin.produce("t", [b"a"])
    gone = [ForgottenTopic(topic_id=member.topic_id, partitions=[0])]
    await member.fetch(partitions=(1,))
    request = member.fetch_request(partitions=(1,))
    request.forgotten_topics_data = gone
    assert (await member.client.call(request)).responses == []
    assert await member.take(partitions=(0,)) == [(0, 0, 1)]


async def test_what_is_acknowledged_with_the_fetch_that_forgets_it_is_not_fetched_again(
    share_member,
):
    """The member was relieved of the partition: others are to have what comes, at once."""
    member, other = await share_member("one"), await share_member("two")
    await member.admin.produce("t", [b"a"])
    assert await member.take() == [(0, 0, 1)]
    request = member.fetch_request((0, 0, 1))
    request.forgotten_topics_data = [ForgottenTopic(topic_id=member.topic_id, partitions=[0])]
    (answer,) = (await member.client.call(request, 2)).responses
    assert [each.acknowledge_error_code for each in answer.partitions] == [0]
    await member.admin.produce("t", [b"b"])
    assert (await member.fetch(partitions=(1,))).responses == []
    assert await other.take() == [(1, 1, 1)]


async def test_record_limit_one(share_member):
    member = await share_member("one")
    await member.admin.produce("t", [b"a", b"b", b"c"])
    for offset in range(3):
        taken = await member.take(share_acquire_mode=1, max_records=1)
        assert taken == [(offset, offset, 1)]


async def test_delete_records_moves_spso(share_member):
    member = await share_member("one")
    for _ in range(4):
        await member.admin.produce("t", [b"a"])
    assert await member.take(max_records=2) == [(0, 1, 1)]
    logs = member.client.server.parts["LogManager"]
    await logs.delete_records("t", 0, 3)
    assert await member.take() == [(3, 3, 1)]
    assert await member.acknowledge((0, 1, 1)) == "NONE", "they are over"
    assert await member.acknowledge((3, 3, 1)) == "NONE"


async def test_records_are_deleted_while_they_are_read(share_member, monkeypatch):
    """The simulation's seed 1117736024: the client was told OFFSET_OUT_OF_RANGE, which is no answer
    of a share group's, as it names no offset."""
    member = await share_member("one")
    for _ in range(4):
        await member.admin.produce("t", [b"a"])
    logs = member.client.server.parts["LogManager"]
    nowait = PartitionReader.read_nowait
    reads = []

    def cold(self, offset, *arguments, **keywords):
        return None if offset == 0 else nowait(self, offset, *arguments, **keywords)

    async def deleted_meanwhile(self, offset, size_max):
        reads.append(offset)
        await logs.delete_records("t", 0, 3)
        assert logs.get("t", 0).log_start_offset == 3
        raise KafkaError(E.OFFSET_OUT_OF_RANGE)

    monkeypatch.setattr(PartitionReader, "read_nowait", cold)
    monkeypatch.setattr(PartitionReader, "read", deleted_meanwhile)
    taken = []
    while not taken:
        taken = await member.take()
    assert (taken, reads) == ([(3, 3, 1)], [0])


async def test_a_partition_with_an_error_keeps_no_other_from_being_read(share_member, monkeypatch):
    """The simulation's seed 2026113291: a session had a partition that is led elsewhere, which was
    told at once each time, and one whose records had to be read, which never were."""
    member = await share_member("one")
    await member.admin.produce("t", [b"a"])
    monkeypatch.setattr(PartitionReader, "read_nowait", lambda *_, **__: None)
    answer = await member.fetch(partitions=(0, 77))
    for _ in range(3):
        codes = {each.partition_index: each.error_code for each in answer.responses[0].partitions}
        assert codes[77] == E.UNKNOWN_TOPIC_OR_PARTITION
        if codes.get(0) == E.NONE:
            break
        answer = await member.fetch(partitions=())
    (data,) = (each for each in answer.responses[0].partitions if each.partition_index == 0)
    assert [(each.first_offset, each.last_offset) for each in data.acquired_records] == [(0, 0)]


async def test_leader_moves_with_acquired(shares, share_member, wait_until):
    member, other = await share_member("one"), await share_member("two")
    await member.admin.produce("t", [b"a", b"b"])
    await member.admin.produce("t", [b"c"])
    assert await member.take() == [(0, 2, 1)]
    assert await member.acknowledge((0, 0, 1)) == "NONE"
    await other.client.send(other.fetch_request(max_wait_ms=60_000), version=2)
    await trio.sleep(0.05)
    logs = member.client.server.parts["LogManager"]
    old = logs.get("t", 0)
    old.go_offline("a test")
    answer = await other.client.receive()
    assert answer.responses[0].partitions[0].error_code == E.NOT_LEADER_OR_FOLLOWER
    await wait_until(lambda: logs.get("t", 0) is not old and logs.get("t", 0).leader_epoch > 0)
    taken = []
    while not taken:
        answer = await other.fetch(max_wait_ms=200)
        taken = [
            (each.first_offset, each.last_offset)
            for topic in answer.responses
            for partition in topic.partitions
            for each in partition.acquired_records
        ]
    assert taken == [(1, 2)], "acknowledged never, acquired again"


async def test_old_leader_writes(shares, share_member):
    member = await share_member("one")
    await member.admin.produce("t", [b"a"])
    assert await member.take() == [(0, 0, 1)]
    key = ShareKey("g", member.topic_id, 0)
    await shares.persister.read([(key, 1_000)])
    assert await member.acknowledge((0, 0, 1)) == "NOT_LEADER_OR_FOLLOWER"
    assert shares.persister.states[key][2] == -1, "nothing was written"


async def test_a_coordinator_that_is_away_is_waited_for(shares, share_member):
    shares.persister.refusal = E.COORDINATOR_NOT_AVAILABLE
    member = await share_member("one")
    await member.admin.produce("t", [b"a"])
    assert await member.take(max_wait_ms=100) == []
    shares.persister.refusal = None
    assert await member.take() == [(0, 0, 1)]


async def test_many_partitions_are_looked_at_in_slices(share_member):
    member = await share_member("one")
    member.topic_id = await member.admin.create_topic("many", 300)
    await member.admin.produce("many", [b"a"], partition=299)
    answer = await member.fetch(partitions=range(300), max_wait_ms=10_000)
    (data,) = answer.responses[0].partitions
    assert data.partition_index == 299
    await member.client.send(member.fetch_request(partitions=(), max_wait_ms=60_000), version=2)
    await trio.sleep(0.1)
    await member.admin.produce("many", [b"a"], partition=7)
    answer = await member.client.receive()
    assert [each.partition_index for each in answer.responses[0].partitions] == [7]
