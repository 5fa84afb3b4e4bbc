"""Produce with optimistic locks in headers, over real sockets: answers, acks=0, settings, turns."""

import pytest

from broker.log.locks.lock_headers_core import LOCKS_MAX
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import CreateTopicsRequest
from wire.kafka.messages.topics import CreatableTopic, CreatableTopicConfig
from wire.kafka.records.batch import build_batch
from wire.kafka.records.compression import Compression
from wire.kafka.records.record import Record

P, R, W = "quire.position", "quire.lock.read", "quire.lock.write"
NOW = 1_700_000_000_000


def batch(*headers, value=b"v", **options):
    records = [Record(n, 0, None, value, some) for n, some in enumerate(headers)]
    return build_batch(records, base_timestamp=NOW, **options)


def locked(position, *names, kind=W):
    return [(P, b"%d" % position), *[(kind, name) for name in names]]


def code(answer):
    return ErrorCode(answer.error_code).name


async def test_scenario_1_who_uses_none_notices_nothing(client):
    await client.create_topic("plain")
    await client.create_topic("locks", quire_locks="optional")
    data = batch([], [("other", b"x")])
    told = [await client.produce(topic, data) for topic in ("plain", "locks")]
    assert [(one.error_code, one.base_offset) for one in told] == [(0, 0)] * 2
    got = [(await client.fetch(topic, 0)).records for topic in ("plain", "locks")]
    assert bytes(got[0]) == bytes(got[1])


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
async def test_scenario_10_each_culprit_is_told_why(client, codec):
    await client.create_topic("locks", quire_locks="optional")
    first = batch(locked(0, b"x"), compression=codec)
    assert (await client.produce("locks", first)).base_offset == 0
    answer = await client.produce(
        "locks",
        batch(
            locked(1, b"y"), locked(0, b"x"), locked(1, b"y", b"z"), [], compression=codec
        ),
    )  # fmt: skip
    assert code(answer) == "INVALID_RECORD"
    assert answer.base_offset == -1
    assert answer.error_message == "LOCK_CONFLICT position=0 conflict=0 lock=x"
    assert [(one.batch_index, one.batch_index_error_message) for one in answer.record_errors] == [
        (1, "LOCK_CONFLICT position=0 conflict=0 lock=x"),
        (2, "LOCK_CONFLICT position=1 conflict=-1 lock=y"),
    ]
    assert (await client.produce("locks", batch(locked(1, b"x")))).base_offset == 1


async def test_old_versions_are_told_the_code(client):
    await client.create_topic("locks", quire_locks="optional")
    for version, expected in ((3, "NONE"), (7, "INVALID_RECORD")):
        answer = await client.produce("locks", batch(locked(0, b"x")), version=version)
        assert code(answer) == expected


async def test_scenario_16_17_what_is_malformed_or_missing(client, server):
    await client.create_topic("locks", quire_locks="required", quire_locks_max_per_record=2)
    for data in (
        batch([]),
        batch(locked(0, b"a", b"b", b"c")),
        batch(locked(0, b"a"), producer_id=1, producer_epoch=0, base_sequence=0,
              is_transactional=True),
    ):  # fmt: skip
        assert code(await client.produce("locks", data)) in (
            "INVALID_RECORD",
            # Who names no transactional id is refused before anybody looks at locks.
            "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
        )
    assert (await client.produce("locks", batch(locked(0, b"a", b"b")))).base_offset == 0
    assert server.parts["LogManager"].checks.lock_counts.malformed == 3


async def test_scenario_17_without_acks(client, server, requests):
    """Nobody would hear of a conflict, so a topic that requires locks does not take it; on others
    the connection ends at a conflict, as at any error."""
    await client.create_topic("required", quire_locks="required")
    await client.create_topic("optional", quire_locks="optional")
    unheard = await server.connect()
    await unheard.send(requests.produce(("required", 0, batch(locked(0, b"x"))), acks=0), version=9)
    assert await unheard.is_closed()
    unheard = await server.connect()
    for _ in range(2):
        await unheard.send(
            requests.produce(("optional", 0, batch(locked(0, b"x"))), acks=0), version=9
        )
    assert await unheard.is_closed()
    assert (await client.produce("required", batch(locked(0, b"x")))).base_offset == 0
    assert (await client.produce("optional", batch([]))).base_offset == 1


async def create_refused(client, **configs):
    settings = [
        CreatableTopicConfig(name.replace("_", "."), text) for name, text in configs.items()
    ]
    topic = CreatableTopic(name="no", num_partitions=1, replication_factor=1, configs=settings)
    answer = await client.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
    assert code(answer.topics[0]) == "INVALID_CONFIG"
    return answer.topics[0].error_message


async def test_settings_that_cannot_be_kept_are_refused(client):
    message = await create_refused(client, quire_locks="optional", cleanup_policy="compact")
    assert "quire.locks" in message
    assert "compact" in message
    assert "quire.locks" in await create_refused(client, quire_locks="yes")
    assert "1009" in await create_refused(client, quire_locks_table_size="1008")


async def test_many_locks_are_checked_in_turns_of_their_own(client, server, requests):
    """As many as a batch may have, in many batches of one burst: not all in one turn."""
    await client.create_topic("locks", quire_locks="optional")
    full = [locked(0, *[b"%d" % n for n in range(50)], kind=R) for _ in range(LOCKS_MAX // 50)]
    checks = server.parts["LogManager"].checks
    before = checks.inline_count
    bodies = [requests.produce(("locks", 0, batch(*full))) for _ in range(10)]
    await client.send(*bodies, version=9)
    for _ in bodies:
        answer = await client.receive()
        assert answer.responses[0].partition_responses[0].error_code == 0
    assert checks.inline_count - before < len(bodies)
    too_many = batch(*full, locked(0, b"one more", kind=R))
    assert code(await client.produce("locks", too_many)) == "MESSAGE_TOO_LARGE"


async def test_locks_that_a_worker_thread_looked_for_count(client, server):
    """A batch of so many is not for a turn of the loop."""
    await client.create_topic("locks", quire_locks="optional")
    ids = [b"%d" % n for n in range(960)]
    many = [locked(0, *ids[n : n + 60], kind=W) for n in range(0, len(ids), 60)]
    assert (await client.produce("locks", batch(*many))).error_code == 0
    assert server.parts["LogManager"].checks.threaded_count == 1
    for again in (batch(locked(0, ids[-1], kind=W)), batch(*many)):
        assert code(await client.produce("locks", again)) == "INVALID_RECORD"
