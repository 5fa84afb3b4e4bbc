"""Incremental fetch sessions (KIP-227) over real sockets."""

import trio

from wire.kafka.messages import FetchRequest
from wire.kafka.messages.fetch import ForgottenTopic


def told(answer):
    """{partition: number of record bytes}."""
    return {
        part.partition_index: len(part.records)
        for topic in answer.responses
        for part in topic.partitions
    }


async def begin(client, requests, *parts, version=12, **fields):
    answer = await client.call(requests.fetch(*parts, session_epoch=0, **fields), version)
    assert answer.error_code == 0
    assert answer.session_id != 0
    return answer


def more(session, epoch, **fields):
    return FetchRequest(
        session_id=session, session_epoch=epoch, **{"max_wait_ms": 0, "min_bytes": 1, **fields}
    )


async def test_only_news_comes(client, requests):
    for version in (7, 12, 13, 18):
        name = f"s{version}"
        topic_id = await client.create_topic(name, 2)
        topic = topic_id if version >= 13 else name
        first = await begin(client, requests, (topic, 0, 0), (topic, 1, 0), version=version)
        assert told(first) == {0: 0, 1: 0}
        session = first.session_id
        answer = await client.call(more(session, 1), version)
        assert (answer.error_code, answer.session_id, answer.responses) == (0, session, [])
        await client.produce(name, [b"x"], partition=1)
        answer = await client.call(more(session, 2), version)
        assert set(told(answer)) == {1}
        assert (
            answer.responses[0].topic_id if version >= 13 else answer.responses[0].topic
        ) == topic
        # The client moves on in that partition alone; nothing is new then.
        moved = requests.fetch((topic, 1, 1), session_id=session, session_epoch=3)
        assert (await client.call(moved, version)).responses == []


async def test_a_long_poll_in_a_session(client, requests):
    session = (await begin(client, requests, ("t", 0, 0), ("t", 1, 0))).session_id
    other = await client.server.connect()
    await client.send(more(session, 1, max_wait_ms=10_000), version=12)
    await trio.sleep(0.02)
    await other.produce("t", [b"x"], partition=1)
    assert set(told(await client.receive())) == {1}


async def test_forgotten_partitions(client, requests):
    session = (await begin(client, requests, ("t", 0, 0), ("t", 1, 0))).session_id
    await client.produce("t", [b"x"], partition=0)
    await client.produce("t", [b"x"], partition=1)
    forget = [ForgottenTopic(topic="t", partitions=[0, 7])]
    answer = await client.call(more(session, 1, forgotten_topics_data=forget), 12)
    assert set(told(answer)) == {1}


async def test_a_partition_is_forgotten_while_its_fetch_waits(client, requests):
    """Two requests of one session at once: odd of the client, but no reason to fall over."""
    session = (await begin(client, requests, ("t", 0, 0), ("t", 1, 0))).session_id
    await client.send(more(session, 1, max_wait_ms=10_000), version=12)
    other = await client.server.connect()
    forget = [ForgottenTopic(topic="t", partitions=[0])]
    await other.call(more(session, 2, forgotten_topics_data=forget), 12)
    await other.produce("t", [b"x"])
    assert set(told(await client.receive())) == {0}
    assert (await other.produce("t", [b"y"])).base_offset == 1


async def test_partitions_are_added(client, requests):
    session = (await begin(client, requests, ("t", 0, 0))).session_id
    added = requests.fetch(("t", 1, 0), session_id=session, session_epoch=1)
    assert set(told(await client.call(added, 12))) == {1}


async def test_epochs(client, requests, name):
    session = (await begin(client, requests, ("t", 0, 0))).session_id
    for epoch in (2, 0x7FFFFFFF):
        answer = await client.call(more(session, epoch), 12)
        assert name(answer.error_code) == "INVALID_FETCH_SESSION_EPOCH"
        assert answer.responses == []
    assert (await client.call(more(session, 1), 12)).error_code == 0
    again = await client.call(more(session, 1), 12)
    assert name(again.error_code) == "INVALID_FETCH_SESSION_EPOCH"
    unknown = await client.call(more(session ^ 1, 1), 12)
    assert name(unknown.error_code) == "FETCH_SESSION_ID_NOT_FOUND"


async def test_names_and_ids_do_not_mix(client, requests, name):
    session = (await begin(client, requests, ("t", 0, 0))).session_id
    answer = await client.call(more(session, 1), 13)
    assert name(answer.error_code) == "FETCH_SESSION_TOPIC_ID_ERROR"


async def test_closing_and_beginning_anew(client, requests, name):
    session = (await begin(client, requests, ("t", 0, 0))).session_id
    closing = requests.fetch(("t", 0, 0), session_id=session, session_epoch=-1)
    answer = await client.call(closing, 12)
    assert (answer.session_id, told(answer)) == (0, {0: 0})
    answer = await client.call(more(session, 1), 12)
    assert name(answer.error_code) == "FETCH_SESSION_ID_NOT_FOUND"
    first = await begin(client, requests, ("t", 0, 0))
    second = await begin(client, requests, ("t", 0, 0), session_id=first.session_id)
    assert second.session_id != first.session_id
    answer = await client.call(more(first.session_id, 1), 12)
    assert name(answer.error_code) == "FETCH_SESSION_ID_NOT_FOUND"


async def test_more_consumers_than_slots(start_server, requests, name):
    """The third of three consumers has no session, and no fetch of anybody fails."""
    server = await start_server({"max.incremental.fetch.session.cache.slots": "2"})
    client = await server.connect()
    await client.create_topic("t")
    fetch = requests.fetch(("t", 0, 0), session_epoch=0)
    sessions = [(await client.call(fetch, 12)).session_id for _ in range(3)]
    assert [bool(session) for session in sessions] == [True, True, False]
    for epoch in range(1, 5):
        for session in sessions:
            answer = await client.call(more(session, epoch) if session else fetch, 12)
            assert (name(answer.error_code), answer.session_id) == ("NONE", session)


async def test_no_slots_means_no_sessions(start_server, requests):
    server = await start_server({"max.incremental.fetch.session.cache.slots": "0"})
    client = await server.connect()
    await client.create_topic("t")
    answer = await client.call(requests.fetch(("t", 0, 0), session_epoch=0), 12)
    assert (answer.session_id, told(answer)) == (0, {0: 0})


async def test_an_error_is_told_each_time_and_so_is_its_end(client, requests, name):
    session = (await begin(client, requests, ("later", 0, 0))).session_id
    answer = await client.call(more(session, 1), 12)
    assert name(answer.responses[0].partitions[0].error_code) == "UNKNOWN_TOPIC_OR_PARTITION"
    await client.create_topic("later")
    answer = await client.call(more(session, 2), 12)
    assert answer.responses[0].partitions[0].error_code == 0
    assert (await client.call(more(session, 3), 12)).responses == []


async def test_a_small_limit_starves_no_partition(client, requests):
    """Who got data goes to the end of the line."""
    for partition in range(2):
        for _ in range(3):
            await client.produce("t", [b"x" * 1000], partition=partition)
    first = await begin(client, requests, ("t", 0, 0), ("t", 1, 0), max_bytes=100)
    assert told(first)[1] == 0
    moved = requests.fetch(("t", 0, 1), session_id=first.session_id, session_epoch=1, max_bytes=100)
    assert told(await client.call(moved, 12))[1] > 1000
