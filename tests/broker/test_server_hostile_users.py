"""Who is let in and takes what he can get: sessions, requests, names and waits without end. What
it costs is bounded, and others are served."""

import trio

from tests.broker.handlers.test_fetch_waits import handler_of
from wire.kafka.api_keys import ApiKey
from wire.kafka.messages import (
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    OffsetFetchRequest,
)
from wire.kafka.messages.offsets import OffsetFetchRequestGroup
from wire.kafka.messages.transactions import EndTxnRequest
from wire.kafka.messages.transactions_admin import DescribeTransactionsRequest

SLOTS = 10
LONG_MS = 600_000
MIB = 1 << 20
NAMES = 20_000


async def test_attack_50_sessions_of_one_who_opens_them_without_end(start_server, requests):
    """The slots stay what they are; who was there and fetches keeps his session, and everybody is
    answered."""
    server = await start_server({"max.incremental.fetch.session.cache.slots": str(SLOTS)})
    honest, flood = await server.connect(), await server.connect()
    await honest.create_topic("t", 2)
    await honest.produce("t", [b"x"])
    opened = await honest.call(requests.fetch(("t", 0, 0), session_id=0, session_epoch=0), 12)
    assert opened.session_id > 0
    sessions = handler_of(server)._sessions
    for number in range(200):
        answer = await flood.call(requests.fetch(("t", 1, 0), session_id=0, session_epoch=0), 12)
        assert answer.error_code == 0
        assert len(sessions) <= SLOTS
        if number % 20 == 0:
            again = await honest.call(
                requests.fetch(
                    ("t", 0, 1), session_id=opened.session_id, session_epoch=1 + number // 20
                ),
                12,
            )
            assert again.error_code == 0
            assert again.session_id == opened.session_id


async def test_attack_52_a_thousand_requests_of_a_megabyte_whose_answers_nobody_reads(
    start_server, requests, wait_until
):
    """Memory of requests is what queued.max.request.bytes says, and somebody else's is served."""
    server = await start_server({"queued.max.request.bytes": str(16 * MIB)})
    honest = await server.connect()
    await honest.create_topic("t", 2)
    flood = await server.connect()
    memory = server.parts["KafkaServer"].memory
    peak = 0
    sent = 0
    batch = requests.batch([bytes(MIB - 1000)])
    frame = flood.frame(requests.produce(("t", 0, batch)), 9)

    async def send_all():
        nonlocal sent
        while sent < 1000:
            await flood.stream.send_all(frame)
            sent += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_all)
        for _ in range(10):
            with trio.fail_after(20):
                assert (await honest.produce("t", [b"x"], partition=1)).error_code == 0
            peak = max(peak, memory.used_bytes)
        nursery.cancel_scope.cancel()
    assert sent > 0
    assert 0 < peak <= 17 * MIB
    await flood.aclose()
    await wait_until(lambda: memory.used_bytes == 0)


async def test_attack_54_names_of_groups_and_transactions_without_end(start_server):
    """Nothing of those that are only asked about is kept."""
    server = await start_server()
    client = await server.connect()
    await client.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    names = [f"group-{number}" for number in range(NAMES)]
    for at in range(0, NAMES, 1000):
        some = names[at : at + 1000]
        await client.call(DescribeGroupsRequest(groups=some), 5)
        groups = [OffsetFetchRequestGroup(group_id=each, topics=None) for each in some]
        await client.call(OffsetFetchRequest(groups=groups), 8)
        await client.call(DescribeTransactionsRequest(transactional_ids=some), 0)
        for each in some[:50]:
            await client.call(HeartbeatRequest(group_id=each, generation_id=1, member_id="m"), 4)
            await client.call(LeaveGroupRequest(group_id=each, members=[]), 4)
            await client.call(
                EndTxnRequest(transactional_id=each, producer_id=1, producer_epoch=1), 3
            )
    assert server.parts["GroupCoordinator"].statistics()["groups"] == 0
    ending = server.parts["Dispatcher"]._apis[ApiKey.END_TXN].handle.__self__
    assert ending._coordinator.statistics()["transactional_ids"] == 0


async def test_attack_55_fetches_that_wait_on_as_many_connections_as_there_may_be(
    start_server, requests, wait_until
):
    """At max.connections all wait; who is there is served, nobody holds anything once he left."""
    most = 200
    server = await start_server({"max.connections": str(most)})
    client = await server.connect()
    await client.create_topic("t", 2)
    crowd = [await server.connect() for _ in range(most - 1)]
    body = requests.fetch(("t", 1, 0), max_wait_ms=LONG_MS)
    for each in crowd:
        await each.send(body, version=12)
    handler = handler_of(server)
    await wait_until(lambda: handler.waiting_count == most - 1)
    with trio.fail_after(20):
        for _ in range(50):
            assert (await client.produce("t", [b"x"])).error_code == 0
    assert handler.waiting_count == most - 1
    for each in crowd:
        await each.aclose()
    await wait_until(lambda: handler.waiting_count == 0)
    assert not server.parts["LogManager"].get("t", 1)._watchers
    late = await server.connect()
    assert (await late.produce("t", [b"x"])).error_code == 0
