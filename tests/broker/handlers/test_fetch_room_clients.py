"""A hundred clients at once that read megabytes: what is held for them, and who else waits."""

from collections import Counter

import pytest
import trio

from broker.handlers import fetch, fetch_room
from broker.log.partition import State
from broker.unsent import UnsentAnswers
from runtime import real_net
from runtime.real_net import SocketTransport
from runtime.turn import BEHIND_BYTES
from tests.broker.handlers.test_fetch_waits import LONG_MS, handler_of

CLIENTS = 100
LARGE = {"max_bytes": 8 << 20, "partition_max_bytes": 8 << 20}


@pytest.fixture
async def four(client):
    """3.6 MB in each of four partitions of «big», and in all of them."""
    await client.create_topic("big", 4)
    for partition in range(4):
        await client.produce("big", [bytes(900_000)], partition=partition)


@pytest.fixture
def held(monkeypatch):
    """The most bytes of all clients that were in the server."""
    most, note = [0], UnsentAnswers.note

    def noted(answers, holder, held_bytes):
        note(answers, holder, held_bytes)
        most[0] = max(most[0], answers.total_bytes)

    monkeypatch.setattr(UnsentAnswers, "note", noted)
    return most


@pytest.mark.parametrize("waits", [False, True])
async def test_what_is_held_for_many_that_read_is_bounded(client, requests, four, held, waits):
    """Asked for at once, or by those that wait for more than there is and whose time is over."""
    others = [await client.server.connect() for _ in range(CLIENTS)]
    options = {"max_wait_ms": 2000, "min_bytes": 4 << 20} if waits else {}
    sizes = []

    async def read(other):
        wanted = [("big", number, 0) for number in range(4)]
        await other.send(requests.fetch(*wanted, **options, **LARGE), version=12)
        answer = await other.receive()
        sizes.append(sum(len(part.records) for part in answer.responses[0].partitions))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for other in others:
                nursery.start_soon(read, other)
    assert min(sizes) > 3_600_000
    assert len(sizes) == CLIENTS
    assert held[0] < BEHIND_BYTES + 32_000_000
    assert handler_of(client.server)._answers.closed_count == 0


async def test_what_is_read_from_disk_for_many_is_bounded(
    start_server, requests, wait_until, held, monkeypatch
):
    """After a restart nothing is in memory."""
    monkeypatch.setattr(fetch_room, "COLD_BYTES_MAX", 8 << 20)
    monkeypatch.setattr(fetch_room, "COLD_WAIT_SECONDS", 60.0)  # a slow machine is not the matter
    server = await start_server()
    client = await server.connect()
    await client.create_topic("t")
    for _ in range(4):
        await client.produce("t", [bytes(900_000)])
    await server.stop()
    server = await start_server()
    client = await server.connect()
    log_state = server.parts["LogManager"].get
    await wait_until(lambda: log_state("t", 0).state is State.ONLINE)
    reading, most, read_cold = 0, 0, fetch.read_cold

    async def counted(collected, bytes_max, *, committed):
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        await read_cold(collected, bytes_max, committed=committed)
        reading -= 1

    monkeypatch.setattr(fetch, "read_cold", counted)
    others = [await server.connect() for _ in range(CLIENTS)]
    sizes = []

    async def read(other):
        await other.send(requests.fetch(("t", 0, 0), **LARGE), version=12)
        answer = await other.receive()
        sizes.append(len(answer.responses[0].partitions[0].records))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for other in others:
                nursery.start_soon(read, other)
    assert len(sizes) == CLIENTS
    assert min(sizes) > 900_000
    assert 0 < most <= 3
    assert held[0] < BEHIND_BYTES + 32_000_000
    assert handler_of(server).room.cold_bytes == 0


async def test_one_at_the_end_of_its_partition_does_not_wait_for_those_that_catch_up(
    client, requests, four, wait_until
):
    server = client.server
    others = [await server.connect() for _ in range(60)]
    tail = await server.connect()
    done, answers, between = False, 0, []

    async def catch_up(other):
        nonlocal answers
        while not done:
            wanted = [("big", number, 0) for number in range(4)]
            await other.send(requests.fetch(*wanted, **LARGE), version=12)
            await other.receive()
            answers += 1

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for other in others:
                nursery.start_soon(catch_up, other)
            await wait_until(lambda: answers > 60)
            for number in range(8):
                body = requests.fetch(("t", 0, number), max_wait_ms=LONG_MS)
                await tail.send(body, version=12)
                await wait_until(lambda: handler_of(server).waiting_count)
                await client.produce("t", [b"x"])
                produced = answers
                await tail.receive()
                between.append(answers - produced)
            done = True
    assert max(between) < 20, "each of 3.6 MB"


@pytest.fixture
def sent_in_turns(client, monkeypatch):
    sent, flush = Counter(), SocketTransport.flush
    turn = handler_of(client.server).turn

    def flushed(transport, bytes_max):
        before = transport.unsent_bytes
        result = flush(transport, bytes_max)
        sent[turn.number] += before - transport.unsent_bytes
        return result

    monkeypatch.setattr(SocketTransport, "flush", flushed)
    return sent


async def test_short_answers_to_very_many_do_not_all_leave_in_one_turn(
    client, requests, wait_until, sent_in_turns
):
    """One append wakes 400, of 63 kB each."""
    others = [await client.server.connect() for _ in range(400)]
    for other in others:
        await other.send(requests.fetch(("t", 0, 0), max_wait_ms=LONG_MS), version=12)
    await wait_until(lambda: handler_of(client.server).waiting_count == len(others))
    await client.produce("t", [bytes(63_000)])
    with trio.fail_after(60):
        for other in others:
            answer = await other.receive()
            assert len(answer.responses[0].partitions[0].records) > 63_000
    assert sum(sent_in_turns.values()) > 400 * 63_000
    assert max(sent_in_turns.values()) <= real_net.PER_TURN_BYTES_MAX + real_net.SHORT_BYTES_MAX


async def test_answers_that_follow_each_other_do_not_all_leave_in_one_turn(
    client, requests, sent_in_turns
):
    """Clients that pipeline: the next answer is made when the one before it has left."""
    await client.produce("t", [bytes(150_000)])
    others = [await client.server.connect() for _ in range(10)]
    with trio.fail_after(60):
        for other in others:
            bodies = [requests.fetch(("t", 0, 0)) for _ in range(20)]
            frames = b"".join(other.frame(body, 12) for body in bodies)
            # All in one burst: no turn of the loop in between.
            other.stream.socket._sock.send(frames)
        for other in others:
            for _ in range(20):
                await other.receive()
    assert sum(sent_in_turns.values()) > 200 * 150_000
    assert max(sent_in_turns.values()) <= real_net.PER_TURN_BYTES_MAX + real_net.SHORT_BYTES_MAX
