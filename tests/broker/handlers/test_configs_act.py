"""Settings that a client changes, seen through what they do to its records."""

import logging

import pytest
import trio

from broker.cluster.config_topic import TOPIC_CONFIGS
from runtime.config import ConfigError, ConfigType
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import InitProducerIdRequest
from wire.kafka.records.batch import iter_records, parse_header, records_data
from wire.kafka.records.compression import Compression, compress

WORDS = b" ".join(b"%d green bottles hanging on the wall" % (n % 97) for n in range(4000))


async def stored(client, topic):
    """A partition's only batch."""
    got = await client.fetch(topic, 0, partition_max_bytes=1 << 20)
    return memoryview(bytes(got.records))


@pytest.mark.parametrize(
    ("codec", "levels"), [("gzip", ("1", "9")), ("zstd", ("1", "19")), ("lz4", ("9", "12"))]
)
async def test_compression_levels(client, requests, codec, levels):
    """What the broker packs anew has the size that the codec gives it at the topic's level."""
    sizes = []
    for level in levels:
        topic = f"{codec}-{level}"
        configs = {f"compression_{codec}_level": level, "max_message_bytes": 1 << 20}
        await client.create_topic(topic, compression_type=codec, **configs)
        answer = await client.produce(topic, requests.batch([WORDS]))
        assert not answer.error_code
        batch = await stored(client, topic)
        header = parse_header(batch)
        assert header.compression is Compression.by_name(codec)
        (record,) = iter_records(batch, header, size_max=1 << 20)
        assert record.value == WORDS
        inside = records_data(batch, header, size_max=1 << 20)
        # For lz4 Kafka's default level is the fast compressor, and not its ninth.
        asked = None if (codec, level) == ("lz4", "9") else int(level)
        packed = compress(Compression.by_name(codec), inside, asked)
        assert header.size == 61 + len(packed)
        sizes.append(header.size)
    assert sizes[1] < sizes[0]


async def test_a_dynamic_producer_id_expiration_acts(start_server, requests, wait_until):
    """A producer that is forgotten may begin anew anywhere; one that is known may not."""
    server = await start_server({"log.retention.check.interval.ms": "20"})
    client = await server.connect()
    await client.create_topic("t")
    answer = await client.call(
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    )

    async def produce(sequence):
        batch = requests.batch(
            [b"x"],
            producer_id=answer.producer_id,
            producer_epoch=answer.producer_epoch,
            base_sequence=sequence,
        )
        return ErrorCode((await client.produce("t", batch)).error_code).name

    assert await produce(0) == "NONE"
    for _ in range(20):
        assert await produce(7) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    await client.set_config("0", resource_type=4, producer_id_expiration_ms=1)

    async def is_forgotten():
        return await produce(7) == "NONE"

    await wait_until(is_forgotten)


async def test_compacted_topics_are_told_of_where_nothing_compacts_them(start_server, caplog):
    caplog.set_level(logging.WARNING)
    off = {"log.cleaner.enable": "false"}
    server = await start_server(off)
    client = await server.connect()
    await client.create_topic("c", cleanup_policy="compact", flush_ms=5)
    await client.create_topic("d")
    await client.set_config("d", cleanup_policy="compact,delete")

    def told(event):
        return [record.args for record in caplog.records if record.getMessage() == event]

    assert [note["topic"] for note in told("compaction_is_off")] == ["c", "d"]
    idle = [note for note in told("setting_without_effect") if "topic" in note]
    assert idle == [{"topic": "c", "settings": "flush.ms"}]
    await server.stop()
    caplog.clear()
    server = await start_server(off)
    assert told("compaction_is_off") == [{"topics": 2, "first": "c,d"}]
    await server.stop()
    caplog.clear()
    await start_server()
    assert not told("compaction_is_off")


def extremes(table, *, upwards):
    """Each whole number and size at the end of what it may be."""
    bits = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}
    found = {}
    for key in table:
        if key.type not in bits:
            continue
        largest = 2 ** (bits[key.type] - 1) - 1
        for number in (largest, 22, 17, 9) if upwards else (-largest - 1, -131072, -1, 0, 1):
            try:
                key.parse(str(number))
            except ConfigError:
                continue
            found[key.name] = str(number)
            break
    return found


@pytest.mark.parametrize("upwards", [True, False])
async def test_settings_at_the_ends_of_their_ranges(start_server, upwards, wait_until):
    """A sum with a time, or a product of a size, must still fit in what carries it on."""
    kept = ("quire.", "min.insync", "min.compaction", "message.timestamp", "max.message.bytes")
    topic = {
        name: value
        for name, value in extremes(TOPIC_CONFIGS, upwards=upwards).items()
        if not name.startswith(kept)
    }
    if upwards:
        topic["message.timestamp.after.max.ms"] = topic["message.timestamp.before.max.ms"] = str(
            2**63 - 1
        )
    server = await start_server({"log.retention.check.interval.ms": "20"})
    client = await server.connect()
    await client.create_topic("t", **{name.replace(".", "_"): v for name, v in topic.items()})
    await client.set_config("0", resource_type=4, producer_id_expiration_ms=2**31 - 1)
    for n in range(3):
        answer = await client.produce("t", [b"%d" % n])
        assert not answer.error_code
        await trio.sleep(0.1)
    if upwards:
        got = await client.fetch("t", 0)
        assert not got.error_code
        assert (await client.list_offset("t", 2**63 - 1)).offset == -1
    else:  # no limit is negative: what the least keeps may be nothing, and that is kept, too
        log = server.parts["LogManager"].get("t", 0)
        await wait_until(lambda: log.high_watermark == 3)
    assert not (await client.produce("t", [b"more"])).error_code
