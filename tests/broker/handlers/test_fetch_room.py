"""Fetches that wait until what was read for others is sent."""

import pytest
import trio
import trio.testing

from broker.api import ANSWER_BYTES_MAX
from broker.handlers import fetch_room
from broker.handlers.fetch_room import FetchRoom
from runtime.turn import BEHIND_BYTES, SPENT_UNITS, Turn
from tests.broker.handlers.test_fetch_waits import LONG_MS, handler_of


async def test_who_comes_while_there_is_room_does_not_wait():
    turn = Turn()
    room = FetchRoom(turn)
    turn.unsent_bytes = BEHIND_BYTES
    assert not room.is_full
    await room.enter()
    assert not turn._later


@pytest.mark.parametrize(
    ("read_bytes", "entries", "most"),
    [(0, 0, 13), (1 << 20, 0, 10), (4 << 20, 0, 3), (0, 400, 4), (2 << 20, 400, 2)],
)
async def test_they_are_let_in_in_order_some_in_each_turn(read_bytes, entries, most):
    """As many as read what a turn may, if they read as much as those before them."""
    turn, order = Turn(), []
    room = FetchRoom(turn)
    for _ in range(30):
        room.read(read_bytes, entries)
    turn.unsent_bytes = BEHIND_BYTES + 1

    async def enter(number):
        await room.enter()
        order.append(number)

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


async def test_much_that_is_read_at_once_fills_its_turn_and_no_other():
    turn = Turn()
    room = FetchRoom(turn)
    turn.number = 7
    room.read_at_once(fetch_room.AT_ONCE_BYTES - 1)
    assert not room.is_busy
    room.read_at_once(1)
    assert room.is_busy
    turn.number = 8
    assert not room.is_busy
    room.read_at_once(1)
    assert not room.is_busy


MUCH = 100_000


async def test_a_fetch_is_read_when_those_before_it_are_sent(client, requests, wait_until):
    """The second one comes to the room when it is the next of its connection: what it read before
    that could not be sent."""
    handler = handler_of(client.server)
    await client.produce("t", [bytes(MUCH)])
    other = await client.server.connect()
    handler.turn.unsent_bytes += 2 * BEHIND_BYTES
    for _ in range(2):
        await other.send(requests.fetch(("t", 0, 0), max_wait_ms=LONG_MS), version=12)
    await wait_until(lambda: len(handler.room) == 1)
    await trio.sleep(0.02)
    assert len(handler.room) == 1
    handler.turn.unsent_bytes -= 2 * BEHIND_BYTES
    with trio.fail_after(5):
        for _ in range(2):
            answer = await other.receive()
            assert requests.values(answer.responses[0].partitions[0].records) == [(0, bytes(MUCH))]
    assert not handler.room.is_full
    assert handler.room._usual_bytes < ANSWER_BYTES_MAX // 10 * 6, "twice a quarter was learnt"


async def test_what_is_read_without_waiting_is_told(client, requests, monkeypatch):
    """Of a turn that had as much as leaves in one, the others wait. What is short does not count;
    a task that begins to read counts as those before it, before it does."""
    told = []
    monkeypatch.setattr(FetchRoom, "read_at_once", lambda _, size_bytes: told.append(size_bytes))
    await client.create_topic("many", 150)
    await client.produce("many", [bytes(100)])
    await client.fetch("many", 0)
    assert not told
    await client.call(requests.fetch(*[("many", number, 0) for number in range(150)]), 12)
    assert told == [ANSWER_BYTES_MAX]
    await client.produce("many", [bytes(MUCH)], partition=1)
    await client.fetch("many", 0, partition=1)
    assert told[1:] == [MUCH + 72]


@pytest.mark.parametrize("partitions", [1, 150])
async def test_who_is_given_little_waits_for_nobody(client, requests, partitions):
    """Such as a consumer that has all but the last record: it is also woken ahead of the others."""
    handler = handler_of(client.server)
    await client.create_topic("many", partitions)
    await client.produce("many", [b"x"])
    handler.turn.unsent_bytes += 2 * BEHIND_BYTES
    other = await client.server.connect()
    with trio.fail_after(5):
        for offset in range(3):
            wanted = [("many", number, 0 if number else offset) for number in range(partitions)]
            await other.send(requests.fetch(*wanted, max_wait_ms=LONG_MS), version=12)
            if offset:
                await trio.sleep(0.02)
                await client.produce("many", [b"x"])
            answer = await other.receive()
            records = answer.responses[0].partitions[0].records
            assert requests.values(records) == [(offset, b"x")]
    handler.turn.unsent_bytes = 0


@pytest.mark.parametrize("wakes", [False, True])
async def test_who_waited_is_given_much_when_that_of_others_is_sent(
    client, requests, wait_until, wakes
):
    """Woken by what came, or because its time is over."""
    handler = handler_of(client.server)
    await client.produce("t", [bytes(MUCH)])
    other = await client.server.connect()
    wait_ms, min_bytes = (LONG_MS, MUCH + MUCH // 2) if wakes else (100, LONG_MS)
    body = requests.fetch(("t", 0, 0), max_wait_ms=wait_ms, min_bytes=min_bytes)
    await other.send(body, version=12)
    await wait_until(lambda: handler.waiting_count == 1)
    handler.turn.unsent_bytes += 2 * BEHIND_BYTES
    if wakes:
        await client.produce("t", [bytes(MUCH)])
    await wait_until(lambda: len(handler.wakes) == 1)
    await trio.sleep(0.05)
    assert len(handler.wakes) == 1
    handler.turn.unsent_bytes -= 2 * BEHIND_BYTES
    with trio.fail_after(5):
        answer = await other.receive()
    found = requests.values(answer.responses[0].partitions[0].records)
    assert found == [(number, bytes(MUCH)) for number in range(1 + wakes)]
    assert not handler.waiting_count


async def test_who_leaves_while_its_answer_waits_is_not_answered(client, requests, wait_until):
    """Nor does its request's memory stay counted."""
    handler = handler_of(client.server)
    memory = client.server.parts["KafkaServer"].memory
    await client.produce("t", [bytes(MUCH)])
    other = await client.server.connect()
    body = requests.fetch(("t", 0, 0), max_wait_ms=100, min_bytes=LONG_MS)
    await other.send(body, version=12)
    await wait_until(lambda: handler.waiting_count == 1)
    handler.turn.unsent_bytes += 2 * BEHIND_BYTES
    await wait_until(lambda: len(handler.wakes) == 1)
    sent = handler.bytes_out
    await other.aclose()
    await wait_until(lambda: len(handler.wakes) == 0)
    handler.turn.unsent_bytes = 0
    await trio.sleep(0.05)
    assert handler.bytes_out == sent
    assert memory.used_bytes == 0


async def test_very_many_whose_time_is_over_are_not_all_answered_in_one_turn(
    client, requests, wait_until
):
    """And one that leaves before it is answered is forgotten."""
    handler = handler_of(client.server)
    await client.produce("t", [bytes(MUCH)])
    others = [await client.server.connect() for _ in range(3)]
    for other in others:
        body = requests.fetch(("t", 0, 0), max_wait_ms=100, min_bytes=LONG_MS)
        await other.send(body, version=12)
    await wait_until(lambda: handler.waiting_count == 3)
    handler.wakes._turn = turn = Turn()  # which nobody serves
    turn.spent_units = SPENT_UNITS
    await wait_until(lambda: len(handler.wakes) == 3)
    assert handler.waiting_count == 0
    await others[0].aclose()
    await wait_until(lambda: len(handler.wakes) == 2)
    turn.spent_units = 0
    (look_at_some,) = turn._later
    handler.turn.later(look_at_some)
    with trio.fail_after(5):
        for other in others[1:]:
            answer = await other.receive()
            found = requests.values(answer.responses[0].partitions[0].records)
            assert found == [(0, bytes(MUCH))]


async def test_who_leaves_before_its_turn_gives_its_memory_back(client, requests, wait_until):
    """Its time is over, and another answer is to leave first."""
    handler = handler_of(client.server)
    memory = client.server.parts["KafkaServer"].memory
    other = await client.server.connect()
    for wait_ms in (LONG_MS, 50):
        await other.send(requests.fetch(("t", 0, 0), max_wait_ms=wait_ms), version=12)
    await wait_until(lambda: handler.waiting_count == 2)
    await wait_until(lambda: handler.waiting_count == 1)
    await other.aclose()
    await wait_until(lambda: handler.waiting_count == 0)
    assert memory.used_bytes == 0


async def test_what_is_read_from_disk_at_once_is_bounded(monkeypatch):
    """And one more; in order, whoever leaves meanwhile."""
    monkeypatch.setattr(fetch_room, "COLD_BYTES_MAX", 100)
    turn, reading, ends = Turn(), [], {}
    room = FetchRoom(turn)
    scopes = {number: trio.CancelScope() for number in range(8)}

    async def read(number):
        ends[number] = trio.Event()
        with scopes[number]:
            async with room.for_cold(60):
                reading.append(number)
                await ends[number].wait()

    async def settle():
        await trio.testing.wait_all_tasks_blocked()
        while turn._later:
            turn._later.popleft()()
            await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(read, number)
            await trio.testing.wait_all_tasks_blocked()
        assert reading == [0, 1]
        scopes[2].cancel()
        await settle()
        ends[0].set()
        await trio.testing.wait_all_tasks_blocked()
        assert reading == [0, 1], "its answer is not in line yet"
        await settle()
        assert reading == [0, 1, 3]
        scopes[3].cancel()
        await settle()
        assert reading == [0, 1, 3, 4]
        turn.unsent_bytes = BEHIND_BYTES + 1
        ends[1].set()
        await trio.testing.wait_all_tasks_blocked()
        turn._later.popleft()()
        scopes[6].cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert (reading, len(room)) == ([0, 1, 3, 4], 1), "what was read before is not sent"
        turn.unsent_bytes = 0
        for number in (4, 5, 7):
            ends[number].set()
            await settle()
    assert reading == [0, 1, 3, 4, 5, 7]
    assert room.cold_bytes == 0


async def test_one_that_is_let_in_as_it_leaves_lets_in_another(monkeypatch):
    monkeypatch.setattr(fetch_room, "COLD_BYTES_MAX", 0)
    turn = Turn()
    room = FetchRoom(turn)

    async def read(scope):
        with scope:
            async with room.for_cold(1):
                pass

    async with trio.open_nursery() as nursery:
        room.cold_bytes = 1
        scopes = [trio.CancelScope(), trio.CancelScope()]
        for scope in scopes:
            nursery.start_soon(read, scope)
            await trio.testing.wait_all_tasks_blocked()
        scopes[0].cancel()
        room._leave_cold(1)
        await trio.testing.wait_all_tasks_blocked()
        while turn._later:
            turn._later.popleft()()
            await trio.testing.wait_all_tasks_blocked()
    assert room.cold_bytes == 0


async def test_reads_that_do_not_end_do_not_keep_others_from_reading(autojump_clock, monkeypatch):
    """They may be of bookies that do not answer."""
    monkeypatch.setattr(fetch_room, "COLD_BYTES_MAX", 100)
    turn, began = Turn(), []
    room = FetchRoom(turn)

    async def read():
        async with room.for_cold(60):
            began.append(trio.current_time())
            await trio.sleep_forever()

    start = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(read)
        await trio.sleep(fetch_room.COLD_WAIT_SECONDS + 1)
        assert [round(each - start, 1) for each in began] == [0, 0] + [
            fetch_room.COLD_WAIT_SECONDS
        ] * 2
        assert room.cold_bytes == 240
        nursery.cancel_scope.cancel()
    while turn._later:
        turn._later.popleft()()
    assert room.cold_bytes == 0
    assert not room._cold
