"""A broker whole, at a clean stop: what is done first, and what is not waited for."""

import trio

from broker.log.partition import State
from wire.kafka.messages import CreateTopicsRequest
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
