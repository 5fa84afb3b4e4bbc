"""A broker whole, at its start and a clean stop: what is done first, and what is not waited for."""

from types import SimpleNamespace

import trio

from broker.log.partition import State
from broker.node.member import ClusterMember
from wire.kafka.messages import CreateTopicsRequest, MetadataRequest
from wire.kafka.messages.topics import CreatableTopic

WAIT_SECONDS = 60
PARTITIONS = 4


async def test_a_request_that_takes_long_does_not_delay_a_stop(client, nursery):
    server = client.server
    asked, answer = trio.Event(), trio.Event()

    async def hang(*_given, **_options):
        asked.set()
        await answer.wait()

    server.parts["TopicCatalog"].create = hang
    topic = CreatableTopic(name="u", num_partitions=1, replication_factor=1)
    await client.send(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
    with trio.fail_after(WAIT_SECONDS):
        await asked.wait()
    server.scope.cancel()
    with trio.move_on_after(WAIT_SECONDS):
        await server.stopped.wait()
    is_stopped = server.stopped.is_set()
    answer.set()
    assert is_stopped
    assert await client.is_closed(), "without an answer"


async def test_groups_are_let_go_before_the_partitions_are_closed(client):
    """Members look for another coordinator at once: closing may take many seconds."""
    parts = client.server.parts
    await client.produce("t", [b"x"])
    log = parts["LogManager"].get("t", 0)
    seen = []
    log.watch(lambda: seen.append((log.state, parts["GroupCoordinator"].base.is_running)))
    await client.server.stop()
    assert seen[-1] == (State.OFFLINE, False)


async def test_others_have_the_partitions_before_anything_is_stopped(start, wait_until):
    """Their producers find the new leaders; else they wait until the old one's session ends."""
    one, two = await start(1), await start(2)
    for broker in (one, two):
        members = broker.parts.member.membership
        await wait_until(lambda members=members: len(members.live) == 2, WAIT_SECONDS)
    await one.parts.logs._catalog.create("t", PARTITIONS, {}, 1)

    def led(broker):
        return [log for log in broker.parts.logs.all() if log.state is State.ONLINE]

    await wait_until(lambda: led(one) and len(led(one) + led(two)) == PARTITIONS, WAIT_SECONDS)
    ends = []
    for log in led(one):

        def look(log=log):
            if log.state is State.OFFLINE:
                ends.append(one.parts.dispatcher.is_stopped)

        log.watch(look)
    count = len(led(one))
    one.scope.cancel()
    with trio.fail_after(WAIT_SECONDS):
        await one.stopped.wait()
    assert ends == [False] * count
    await wait_until(lambda: len(led(two)) == PARTITIONS, WAIT_SECONDS)
    two.scope.cancel()
    await two.stopped.wait()


async def test_no_client_is_served_before_the_broker_is_registered(
    start, connect, nursery, monkeypatch
):
    """Who comes before it is registered is sent to others, however long that takes."""
    join, addresses = ClusterMember.join, []
    may_join, started = trio.Event(), trio.Event()

    async def join_late(self, view, place):
        addresses.extend((each.host, each.port) for _, each in view.endpoints.items())
        await may_join.wait()
        await join(self, view, place)

    async def run():
        await start(7)
        started.set()

    monkeypatch.setattr(ClusterMember, "join", join_late)
    nursery.start_soon(run)
    with trio.fail_after(WAIT_SECONDS):
        while not addresses:
            await trio.sleep(0.01)
    starting = SimpleNamespace(address=addresses[0])
    for _ in range(3):
        client = await connect(starting)
        assert await client.is_closed(), "without an answer"
    may_join.set()
    with trio.fail_after(WAIT_SECONDS):
        await started.wait()
    client = await connect(starting)
    answer = await client.call(MetadataRequest(topics=[]))
    assert [broker.node_id for broker in answer.brokers] == [7]
    assert answer.controller_id == 7
