"""Fetches that an append wakes, thousands of them; and one that reads more than a turn may."""

import pytest
import trio

from broker.handlers import fetch
from broker.handlers.fetch_wait import LOOK_UNITS, WaitingFetch, Wakes
from broker.handlers.fetch_watch import PARTITION_UNITS, Part
from runtime.turn import BEHIND_BYTES, SPENT_UNITS, Turn
from tests.broker.handlers.test_fetch_waits import LONG_MS, handler_of

CLIENTS, EACH = 20, 60


@pytest.fixture
def waiting(wait_until):
    return lambda server, count: wait_until(lambda: handler_of(server).waiting_count == count)


@pytest.fixture
def looks_per_turn(monkeypatch):
    """How many fetches were looked at before the turn was another one."""
    counts = [0]
    look = WaitingFetch.look

    def counting(waiting_fetch, part):
        turn = waiting_fetch._handler.turn
        if turn.spent_units < counting.spent:
            counts.append(0)
        look(waiting_fetch, part)
        counting.spent = turn.spent_units
        counts[-1] += 1

    counting.spent = 0
    monkeypatch.setattr(WaitingFetch, "look", counting)
    return counts


async def test_those_that_one_append_wakes_are_looked_at_in_several_turns(
    client, requests, waiting, looks_per_turn
):
    server = client.server
    # Of one connection the first is answered only, until that is sent.
    others = [await server.connect() for _ in range(CLIENTS * EACH)]
    for other in others:
        await other.send(requests.fetch(("t", 0, 0), max_wait_ms=LONG_MS), version=12)
    await waiting(server, len(others))
    await client.produce("t", [b"x"])
    with trio.fail_after(60):
        for other in others:
            answer = await other.receive()
            assert requests.values(answer.responses[0].partitions[0].records) == [(0, b"x")]
    assert sum(looks_per_turn) == len(others)
    assert max(looks_per_turn) < len(others) // 2, "a turn is not all of them"
    assert handler_of(server).waiting_count == 0
    assert len(handler_of(server).wakes) == 0


async def test_what_is_put_off_may_have_ended_or_been_looked_at_since(
    client, requests, waiting, monkeypatch
):
    """One that left, one whose partition moves again, and one that is measured anew meanwhile."""
    server = client.server
    handler = handler_of(server)
    leaving, one = await server.connect(), await server.connect()
    await leaving.send(requests.fetch(("t", 0, 0), max_wait_ms=LONG_MS), version=12)
    await one.send(
        requests.fetch(("t", 0, 0), ("t", 1, 0), max_wait_ms=LONG_MS, min_bytes=400), version=12
    )
    await waiting(server, 2)
    put_off = handler.wakes.put_off

    def spent(waiting_fetch, part):
        handler.turn.spent_units += SPENT_UNITS
        return put_off(waiting_fetch, part)

    monkeypatch.setattr(handler.wakes, "put_off", spent)
    for partition in (0, 1, 0):
        await client.produce("t", [bytes(10)], partition=partition)
    assert handler.waiting_count == 1
    await leaving.receive()
    await leaving.aclose()
    await client.produce("t", [bytes(300)], partition=1)
    with trio.fail_after(5):
        answer = await one.receive()
    found = [len(requests.values(part.records)) for part in answer.responses[0].partitions]
    assert found == [2, 2]
    assert handler.waiting_count == 0


@pytest.fixture
async def many(client, monkeypatch):
    """40 partitions of 20 kB each, of which a turn reads a few."""
    monkeypatch.setattr(fetch, "AT_ONCE_UNITS", 60)
    await client.create_topic("many", 40)
    for partition in range(40):
        await client.produce("many", [bytes([partition]) * 20_000], partition=partition)
    return [("many", partition, 0) for partition in range(40)]


def check_all(requests, answer):
    found = {
        part.partition_index: requests.values(part.records)
        for topic in answer.responses
        for part in topic.partitions
    }
    assert found == {number: [(0, bytes([number]) * 20_000)] for number in range(40)}


async def test_one_that_reads_more_than_a_turn_may_goes_on_with_it(
    client, requests, many, monkeypatch, reads
):
    units = []
    begin = fetch.FetchHandler._begin

    def counted(handler, *arguments):
        before = handler.turn.spent_units
        is_all = begin(handler, *arguments)
        units.append((handler.turn.spent_units - before, is_all))
        return is_all

    monkeypatch.setattr(fetch.FetchHandler, "_begin", counted)
    other = await client.server.connect()
    await other.send(requests.fetch(*many, max_wait_ms=LONG_MS), version=12)
    check_all(requests, await other.receive())
    ((spent, is_all),) = units
    assert not is_all
    assert 60 < spent < 150
    assert len(reads) == 40, "each once"


async def test_it_is_read_anew_if_others_are_answered_before(
    client, requests, many, waiting, reads
):
    other = await client.server.connect()
    await other.send(requests.fetch(("t", 0, 0), max_wait_ms=LONG_MS), version=12)
    await waiting(client.server, 1)
    await other.send(requests.fetch(*many, max_wait_ms=LONG_MS), version=12)
    await trio.sleep(0.05)
    assert 0 < len(reads) < 10, "before it can be sent only what shows that it is much"
    await client.produce("t", [b"x"])
    first = await other.receive()
    assert requests.values(first.responses[0].partitions[0].records) == [(0, b"x")]
    check_all(requests, await other.receive())
    assert len(reads) < 55, "once more in all"


async def test_it_waits_if_all_of_it_is_too_little(client, requests, many, waiting):
    other = await client.server.connect()
    body = requests.fetch(*many, max_wait_ms=LONG_MS, min_bytes=810_000)
    await other.send(body, version=12)
    await waiting(client.server, 1)
    await client.produce("many", [bytes(9000)], partition=3)
    answer = await other.receive()
    sizes = [
        len(requests.values(part.records)) for topic in answer.responses
        for part in topic.partitions
    ]  # fmt: skip
    assert sum(sizes) == 41


def test_wakes_go_on_until_all_are_looked_at():
    turn, looked = Turn(), []
    wakes = Wakes(turn)

    class Fetch:
        def look(self, part):
            looked.append(part)
            turn.spent_units += SPENT_UNITS // 2

    turn.spent_units = SPENT_UNITS
    parts, one, turns = list(range(7)), Fetch(), 0
    assert all(wakes.put_off(one, part) for part in parts)
    while turn._later:
        turn.spent_units = 0
        turn._later.popleft()()
        turns += 1
    assert (looked, turns) == (parts, 4)
    assert turn.spent_units == SPENT_UNITS // 2 + LOOK_UNITS


def test_long_ones_wait_while_much_is_to_be_sent_and_others_do_not():
    turn, looked = Turn(), []
    wakes = Wakes(turn)

    class Fetch:
        def look(self, part):
            looked.append(part)
            if part < 3:
                turn.unsent_bytes += BEHIND_BYTES

        def answer(self):
            looked.append(None)

    one = Fetch()
    turn.unsent_bytes = BEHIND_BYTES + 1
    assert not wakes.put_off(one, 3), "it may be short"
    for part in range(3):
        wakes.put_off_long(one, part)
    turn.spent_units = SPENT_UNITS
    assert wakes.put_off(one, 4)
    assert wakes.put_off(one, None)
    turn.spent_units = 0
    for behind, expected in (
        (BEHIND_BYTES + 1, [4, None]), (0, [4, None, 0, 1]), (0, [4, None, 0, 1, 2])
    ):  # fmt: skip
        turn.unsent_bytes = behind
        turn._later.popleft()()
        assert looked == expected
    assert not turn._later
    assert not len(wakes)


async def test_the_last_partition_is_read_whatever_it_costs(client, requests, monkeypatch):
    monkeypatch.setattr(fetch, "AT_ONCE_UNITS", 1)
    await client.produce("t", [b"x"])
    got = await client.fetch("t", 0)
    assert requests.values(got.records) == [(0, b"x")]


@pytest.mark.parametrize("size", [1, 500_000])
async def test_what_a_read_costs_grows_with_its_bytes(client, requests, monkeypatch, size):
    await client.produce("t", [bytes(size)])
    steps = []
    begin = fetch.FetchHandler._begin

    def counted(handler, *arguments):
        before = handler.turn.spent_units
        is_all = begin(handler, *arguments)
        steps.append(handler.turn.spent_units - before)
        return is_all

    monkeypatch.setattr(fetch.FetchHandler, "_begin", counted)
    await client.fetch("t", 0)
    (units,) = steps
    least = PARTITION_UNITS + fetch.READ_UNITS + fetch.ENTRY_UNITS
    assert units == least + ((size + 70) >> fetch.READ_BYTES_SHIFT)


async def test_a_wake_for_what_is_not_watched_any_more_is_none(
    client, requests, waiting, monkeypatch
):
    """What was put off may be of an earlier look: what it counted is counted since."""
    made, looks = [], []
    collect = fetch.FetchHandler.collect

    class Noted(WaitingFetch):
        def __init__(self, *arguments):
            made.append(self)
            super().__init__(*arguments)

    def counting(handler, body, context, *collected):
        looks.append(body)
        return collect(handler, body, context, *collected)

    monkeypatch.setattr(fetch, "WaitingFetch", Noted)
    monkeypatch.setattr(fetch.FetchHandler, "collect", counting)
    await client.produce("t", [b"x"], partition=1)
    other = await client.server.connect()
    await other.send(requests.fetch(("t", 0, 0), max_wait_ms=LONG_MS), version=12)
    await waiting(client.server, 1)
    log = handler_of(client.server)._logs.get("t", 1)
    made[0].look(Part(log, made[0].look, 0))
    assert len(looks) == 1
