"""Fetches of very many tiny batches, counted in entries: each costs the same whatever its size."""

from types import SimpleNamespace

import pytest
import trio

from broker.handlers import fetch
from broker.handlers.fetch_watch import PARTITION_UNITS, Watched, _Count
from broker.log.partition import State
from broker.log.read.partition_reader import ENTRY_UNITS, PARTS_FEW, ReadResult
from broker.log.settings import READ_ENTRIES_MAX
from runtime.turn import BEHIND_BYTES, Turn
from tests.broker.handlers.test_fetch_waits import LONG_MS, handler_of


async def filled(client, topic, count, partition=0):
    """One after the other, so that each is an entry."""
    for number in range(count):
        await client.produce(topic, [b"%d" % number], partition=partition)


def counts_of(requests, answer):
    return {
        part.partition_index: len(requests.values(part.records))
        for topic in answer.responses
        for part in topic.partitions
        if part.records
    }


async def test_an_answer_has_some_entries_and_the_next_one_the_rest(client, requests):
    more = 50
    await client.create_topic("tiny")
    await filled(client, "tiny", READ_ENTRIES_MAX + more)
    handler, spent, offset = handler_of(client.server), [], 0
    real, handler.turn = handler.turn, Turn()
    for expected in (READ_ENTRIES_MAX, more):
        handler.turn.spent_units = 0
        # They count as what was asked for, though less is read: the rest is there already.
        body = requests.fetch(("tiny", 0, offset), min_bytes=100_000 if not offset else 1)
        body.max_wait_ms = LONG_MS
        with trio.fail_after(5):
            answer = await client.call(body, 12)
        spent.append(handler.turn.spent_units)
        found = requests.values(answer.responses[0].partitions[0].records)
        assert [offset for offset, _ in found] == list(range(offset, offset + expected))
        offset += expected
    handler.turn = real
    assert spent[0] > READ_ENTRIES_MAX * ENTRY_UNITS
    assert more * ENTRY_UNITS < spent[1] < READ_ENTRIES_MAX * ENTRY_UNITS


async def test_a_look_at_many_partitions_has_a_bound_for_all_of_them(client, requests, monkeypatch):
    """What it did not come to is what the next one begins with."""
    monkeypatch.setattr(fetch, "READ_ENTRIES_MAX", 10)
    monkeypatch.setattr(fetch, "ENTRIES_EACH", 1)
    await client.create_topic("many", 4)
    for partition in range(4):
        await filled(client, "many", 8, partition)
    offsets, rounds = dict.fromkeys(range(4), 0), []
    while set(offsets.values()) != {8}:
        order = sorted(offsets, key=lambda number: (offsets[number], number))
        body = requests.fetch(*[("many", number, offsets[number]) for number in order])
        found = counts_of(requests, await client.call(body, 12))
        rounds.append(sum(found.values()))
        for number, count in found.items():
            offsets[number] += count
    assert rounds == [14, 14, 4]


async def test_what_is_read_in_vain_is_charged(client, requests):
    """The first batch of the second partition does not fit, and those behind it were read."""
    await client.create_topic("paid", 2)
    await client.produce("paid", [bytes(5000)])
    await client.produce("paid", [bytes(5000)], partition=1)
    await filled(client, "paid", 30, 1)
    handler = handler_of(client.server)
    real, handler.turn = handler.turn, Turn()
    await client.call(requests.fetch(("paid", 0, 0), ("paid", 1, 0), max_bytes=5100), 12)
    spent, handler.turn = handler.turn.spent_units, real
    assert spent > fetch.MISFIT_UNITS + 2 * PARTITION_UNITS + fetch.READ_UNITS + 30 * ENTRY_UNITS


async def test_who_is_given_many_waits_for_room(client, requests, wait_until):
    """Though they are few bytes; who is given few does not."""
    handler = handler_of(client.server)
    await client.create_topic("tiny")
    await filled(client, "tiny", 2 * fetch.SHORT_ENTRIES)
    handler.turn.unsent_bytes += 2 * BEHIND_BYTES
    with trio.fail_after(5):
        few = await client.fetch("tiny", fetch.SHORT_ENTRIES + 1)
        assert len(requests.values(few.records)) == fetch.SHORT_ENTRIES - 1
        await client.send(requests.fetch(("tiny", 0, 0), max_wait_ms=LONG_MS), version=12)
        await wait_until(lambda: len(handler.room) == 1)
        handler.turn.unsent_bytes -= 2 * BEHIND_BYTES
        answer = await client.receive()
    assert counts_of(requests, answer) == {0: 2 * fetch.SHORT_ENTRIES}
    assert handler.room._usual_bytes > 2 * fetch.SHORT_ENTRIES * ENTRY_UNITS << 11


class Got:
    """What a segment gave."""

    has_records = True

    def __init__(self, sizes):
        self.parts = [memoryview(bytes([n % 251]) * size) for n, size in enumerate(sizes)]
        self.size_bytes, self.next_offset, self.entries_read = sum(sizes), len(sizes), len(sizes)


@pytest.mark.parametrize(
    ("sizes", "count"),
    [([69] * 100, 1), ([69] * PARTS_FEW, PARTS_FEW), ([2000] * 20, 20), ([69] * 19 + [90_000], 20)],
)
def test_small_parts_are_joined(sizes, count):
    result, got = ReadResult([], 0, 0), Got(sizes)
    result.add(got)
    assert len(result.parts) == count
    assert b"".join(result.parts) == b"".join(got.parts)
    assert (result.size_bytes, result.entries_read) == (sum(sizes), len(sizes))
    assert all(type(part) is memoryview for part in result.parts)


@pytest.mark.parametrize("is_cold", [False, True])
def test_what_is_counted_over_costs_as_much_as_what_is_read(is_cold):
    """And a partition that has to be looked at in a task its own units, all the same."""

    class Log:
        """A partition, and its reader."""

        state = State.ONLINE
        log_start_offset = 0

        def readable_end(self, **_):
            return 30

        def read_nowait(self, offset, _size_max, **_):
            return None if is_cold else ReadResult([], 69 * (30 - offset), 30, True, 30 - offset)

    class Wanted:
        class request:  # an attribute
            partition_max_bytes = 1 << 20
            fetch_offset = 0

    log, turn = Log(), Turn()
    log.reader = log
    count = _Count(Wanted, ReadResult([], 690, 10), 10)
    count.is_cut, count.wanted = False, Wanted
    watched = SimpleNamespace(
        _min_bytes=1 << 20,
        _limit=1 << 20,
        _handler=SimpleNamespace(turn=turn),
        _committed=False,
        _available_bytes=690,
        _size_max=lambda _: 1 << 20,
        is_certain=True,
    )
    assert Watched.may_suffice(watched, SimpleNamespace(log=log, counts=[count])) is is_cold
    assert watched.is_certain is not is_cold
    entries = 0 if is_cold else 20
    assert turn.spent_units == PARTITION_UNITS + entries * ENTRY_UNITS
    assert count.size_bytes == 690 + entries * 69
