"""Fetches that wait until what was read for others is sent."""

import trio
import trio.testing

from broker.handlers.fetch_room import LET_IN_UNITS, FetchRoom
from runtime.turn import BEHIND_BYTES, SPENT_UNITS, Turn
from tests.broker.handlers.test_fetch_waits import LONG_MS, handler_of


async def test_who_comes_while_there_is_room_does_not_wait():
    turn = Turn()
    room = FetchRoom(turn)
    turn.unsent_bytes = BEHIND_BYTES
    assert not room.is_full
    await room.enter()
    assert not turn._later


async def test_they_are_let_in_in_order_some_in_each_turn():
    turn, order = Turn(), []
    room = FetchRoom(turn)
    turn.unsent_bytes = BEHIND_BYTES + 1

    async def enter(number):
        await room.enter()
        order.append(number)

    most = SPENT_UNITS // LET_IN_UNITS + 1
    async with trio.open_nursery() as nursery:
        for number in range(2 * most + 1):
            nursery.start_soon(enter, number)
            await trio.testing.wait_all_tasks_blocked()
        assert len(room) == 2 * most + 1
        turn._later.popleft()()
        await trio.testing.wait_all_tasks_blocked()
        assert not order
        turn.unsent_bytes = 0
        assert room.is_full, "whoever comes now is behind those who wait"
        for expected in (most, 2 * most, 2 * most + 1):
            turn.spent_units = 0
            turn._later.popleft()()
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(order) == list(range(expected))
    assert not turn._later
    assert not room.is_full


async def test_who_leaves_is_forgotten():
    turn = Turn()
    room = FetchRoom(turn)
    turn.unsent_bytes = BEHIND_BYTES + 1
    entered = trio.Event()

    async def stay():
        await room.enter()
        entered.set()

    async with trio.open_nursery() as nursery:
        with trio.move_on_after(0.01):
            await room.enter()
        nursery.start_soon(stay)
        await trio.testing.wait_all_tasks_blocked()
        assert len(room) == 1
        turn.unsent_bytes = 0
        turn._later.popleft()()
        await entered.wait()
    assert not room.is_full


async def test_a_fetch_is_read_when_those_before_it_are_sent(client, requests, wait_until):
    handler = handler_of(client.server)
    await client.produce("t", [b"x"])
    other = await client.server.connect()
    handler.turn.unsent_bytes += 2 * BEHIND_BYTES
    for _ in range(2):
        await other.send(requests.fetch(("t", 0, 0), max_wait_ms=LONG_MS), version=12)
    await wait_until(lambda: len(handler.room) == 2)
    handler.turn.unsent_bytes -= 2 * BEHIND_BYTES
    with trio.fail_after(5):
        for _ in range(2):
            answer = await other.receive()
            assert requests.values(answer.responses[0].partitions[0].records) == [(0, b"x")]
    assert not handler.room.is_full
