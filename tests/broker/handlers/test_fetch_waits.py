"""A fetch that waits counts what comes, and reads it once, when it is answered."""

import random
from functools import partial

import pytest

from broker.handlers import fetch
from broker.log.partition import State
from wire.kafka.api_keys import ApiKey

LONG_MS = 600_000


def handler_of(server):
    return server.parts["Dispatcher"]._apis[ApiKey.FETCH].handle.__self__


@pytest.fixture
def waiting(wait_until):
    """await waiting(server, count): so many fetches are parked."""
    return lambda server, count: wait_until(lambda: handler_of(server).waiting_count == count)


@pytest.fixture
def looks(monkeypatch):
    """The partitions of each look that was made at all of a fetch's."""
    found = []
    collect = fetch.FetchHandler.collect

    def counting(handler, body, context, *collected):
        found.append([wanted.request.partition for wanted in context.wanted])
        return collect(handler, body, context, *collected)

    monkeypatch.setattr(fetch.FetchHandler, "collect", counting)
    return found


@pytest.mark.parametrize("partitions", [1, 40, 300])
@pytest.mark.parametrize("wakes", [1, 5])
async def test_each_record_is_counted_once_and_read_once(
    client, requests, waiting, looks, reads, wait_until, partitions, wakes
):
    await client.create_topic("many", partitions)
    other = await client.server.connect()
    wanted = [("many", number, 0) for number in range(partitions)]
    min_bytes = wakes * 1000

    def is_read(times):
        return len(reads) == times

    await other.send(requests.fetch(*wanted, max_wait_ms=LONG_MS, min_bytes=min_bytes), version=12)
    await waiting(client.server, 1)
    at = partitions - 1
    for number in range(wakes):
        await client.produce("many", [bytes(1000)], partition=at)
        if number < wakes - 1:
            await wait_until(partial(is_read, number + 1))
    answer = await other.receive()
    records = answer.responses[-1].partitions[-1].records
    assert [offset for offset, _ in requests.values(records)] == list(range(wakes))
    assert len(looks) == 2, "when it came, and when it was answered"
    assert reads == [(number, len(records) // wakes) for number in range(wakes)] + [
        (0, len(records))
    ]


@pytest.mark.parametrize("partitions", [1, 40, 300])
async def test_who_wants_any_byte_has_nothing_read_before_the_answer(
    client, requests, waiting, looks, reads, partitions
):
    await client.create_topic("many", partitions)
    other = await client.server.connect()
    wanted = [("many", number, 0) for number in range(partitions)]
    await other.send(requests.fetch(*wanted, max_wait_ms=LONG_MS), version=12)
    await waiting(client.server, 1)
    assert len(looks) == 1
    await client.produce("many", [b"x"], partition=partitions - 1)
    answer = await other.receive()
    records = answer.responses[-1].partitions[-1].records
    assert requests.values(records) == [(0, b"x")]
    assert (len(looks), reads) == (2, [(0, len(records))])


async def test_a_fetch_that_cannot_be_sent_yet_is_not_collected_for_nothing(
    client, requests, waiting, looks
):
    other = await client.server.connect()
    for partition in range(2):
        await other.send(requests.fetch(("t", partition, 0), max_wait_ms=LONG_MS), version=12)
    await waiting(client.server, 2)
    await client.produce("t", [b"second"], partition=1)
    await waiting(client.server, 1)
    assert looks == [[0], [1]], "the first fetch's reply comes before"
    await client.produce("t", [b"first"], partition=0)
    for value in (b"first", b"second"):
        answer = await other.receive()
        assert requests.values(answer.responses[0].partitions[0].records) == [(0, value)]
    assert looks == [[0], [1], [0], [1]]


async def test_what_is_on_disk_is_collected_once(start_server, requests, looks, wait_until):
    server = await start_server()
    client = await server.connect()
    await client.create_topic("t")
    await client.produce("t", [b"x"])
    await server.stop()
    server = await start_server()
    client = await server.connect()
    logs = server.parts["LogManager"]
    await wait_until(lambda: logs.get("t", 0).state is State.ONLINE)
    assert logs.get("t", 0).reader.read_nowait(0, 1) is None, "its ledger is not open"
    got = await client.fetch("t", 0)
    assert requests.values(got.records) == [(0, b"x")]
    assert looks == [[0]]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("partitions", "behind"), [(3, False), (3, True), (240, False)])
async def test_it_is_answered_when_a_look_at_all_finds_enough(
    client, requests, waiting, wait_until, seed, behind, partitions
):
    """Neither earlier nor later, whatever the limits, and though only counts are kept. Of one that
    is not the next to be answered (`behind`), that it has ended is seen by its count."""
    rng = random.Random(seed)
    await client.create_topic("many", partitions)
    server = client.server
    handler = handler_of(server)
    wanted = [("many", number, 0) for number in range(partitions)]
    wanted += rng.choices(wanted[:3], k=rng.choice([0, 1, 20]))
    body = requests.fetch(
        *wanted,
        max_wait_ms=LONG_MS,
        min_bytes=rng.randrange(2, 12_000),
        max_bytes=rng.choice([4000, 12_000, 1 << 20]),
        partition_max_bytes=rng.choice([500, 3000, 1 << 20]),
    )
    other = await server.connect()
    if behind:
        await other.send(requests.fetch(("t", 0, 0), max_wait_ms=LONG_MS), version=12)
        await waiting(server, 1)
    await other.send(body, version=12)
    await waiting(server, 1 + behind)
    # The handler changes what it is sent; this one is looked at only.
    mine = requests.fetch(
        *wanted, max_wait_ms=LONG_MS, min_bytes=min(body.min_bytes, body.max_bytes),
        max_bytes=body.max_bytes,
    )  # fmt: skip
    for topic, sent in zip(mine.topics, body.topics, strict=True):
        topic.partitions[0].partition_max_bytes = sent.partitions[0].partition_max_bytes
    context = handler._sessions.context(mine, 6)
    for _ in range(60):
        values = [bytes(rng.randrange(10, 1500)) for _ in range(rng.randrange(1, 3))]
        await client.produce("many", values, partition=rng.randrange(3))
        is_enough = handler.is_enough(mine, handler.at_once(handler.collect(mine, context)))
        if is_enough:
            break
        await client.produce("t", [b"a turn of the loop"], partition=1)
        assert handler.waiting_count == 1 + behind
    if is_enough:
        await waiting(server, int(behind))
        await client.produce("t", [b"x"], partition=0)
        if behind:
            await other.receive()
        assert sum(
            len(part.records) for topic in (await other.receive()).responses
            for part in topic.partitions
        )  # fmt: skip
