"""Kafka's settings of the cleaner on a running server: what acts, when, and what is refused."""

import pytest
import trio

from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    FindCoordinatorRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from wire.kafka.messages.offsets import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestTopic,
)

QUICK = {
    "log.cleaner.backoff.ms": "50",
    "log.retention.check.interval.ms": "50",
    "log.roll.ms": "200",
    "log.cleaner.min.cleanable.ratio": "0.01",
}
BROKER = 4


async def commit(client, offset, group):
    topic = OffsetCommitRequestTopic("t", partitions=[OffsetCommitRequestPartition(0, offset)])
    body = OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=[topic]
    )
    answer = await client.call(body, 4)
    return ErrorCode(answer.topics[0].partitions[0].error_code).name


async def committed(client, group):
    topic = OffsetFetchRequestTopic("t", partition_indexes=[0])
    answer = await client.call(OffsetFetchRequest(group_id=group, topics=[topic]), 5)
    assert not answer.error_code
    return answer.topics[0].partitions[0].committed_offset


async def find_coordinator(client):
    body = FindCoordinatorRequest(key_type=0, coordinator_keys=["a"])
    assert not (await client.call(body)).coordinators[0].error_code
    fetch = OffsetFetchRequest(group_id="a", topics=[])
    with trio.fail_after(10):
        while (await client.call(fetch, 5)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            await trio.sleep(0.01)


async def test_dynamic_settings_act_at_once(start_server):
    server = await start_server()
    client = await server.connect()
    cleaner = server.parts["LogCleaner"]
    assert cleaner._settings.threads == 1
    await client.set_config(
        "0",
        resource_type=BROKER,
        log_cleaner_threads=2,
        log_cleaner_backoff_ms=7,
        log_cleaner_io_max_bytes_per_second=1e6,
        log_cleaner_dedupe_buffer_size=1 << 23,
        log_cleaner_io_buffer_load_factor=0.5,
    )
    await trio.sleep(0.05)
    settings = cleaner._settings
    assert (settings.threads, settings.backoff_ms, settings.bytes_per_second) == (2, 7, 1e6)
    assert cleaner._task_count == 2
    assert settings.limits().key_map_bytes == 1 << 22
    assert settings.limits().load_factor == 0.5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"log.cleaner.threads": "0"}, "the least is 1"),
        ({"log.cleaner.dedupe.buffer.size": "1048576"}, "more than 1048576"),
        ({"log.cleaner.threads": "128"}, "log.cleaner.dedupe.buffer.size"),
        ({"log.cleaner.io.max.bytes.per.second": "0"}, "never end"),
    ],
)
async def test_what_a_start_refuses(start_server, settings, words):
    with pytest.raises(Exception, match=words):  # a group of it, and what it is in
        await start_server(settings)


async def test_where_it_is_off(start_server):
    server = await start_server({"log.cleaner.enable": "false", "log.cleaner.threads": "500"})
    assert "LogCleaner" not in server.parts


async def test_group_offsets_are_compacted_and_loaded(start_server, wait_until):
    """A coordinator that loads what passes left, also while one swaps ledgers."""
    server = await start_server({**QUICK, "offsets.topic.num.partitions": "1"})
    client = await server.connect()
    await client.create_topic("t")
    await find_coordinator(client)
    for number in range(40):
        for group in ("a", "b"):
            assert await commit(client, number, group) == "NONE"
        await trio.sleep(0.02)
    log = server.parts["LogManager"].get("__consumer_offsets", 0)

    async def is_clean():
        return log.chain.cleaned_to > 40

    await wait_until(is_clean)
    assert any(info.generation for info in log.chain.ledgers)
    for _ in range(3):
        await server.stop()
        server = await start_server({**QUICK, "offsets.topic.num.partitions": "1"})
        client = await server.connect()
        await find_coordinator(client)
        assert [await committed(client, group) for group in ("a", "b")] == [39, 39]
