"""Produce requests that are wrong in one way each, and what there is to compare of the answers.

A case is a function of (connection, topic) that sends what it likes on its own connection to its
own topic (one partition, empty) and gives a ProduceAnswer. The control's answers are recorded in
control_answers.json; any other server must give the same.
"""

import gzip
import struct
import time
from collections.abc import Callable

from harness.raw import Closed, Connection, ProduceAnswer, batch, record, varint

Case = Callable[[Connection, str], ProduceAnswer | None]
CASES: dict[str, Case] = {}
# Settings of a case's topic, where it needs any.
TOPIC_CONFIGS: dict[str, dict[str, str]] = {}
HOUR_MS = 3_600_000


def case(name: str, **configs: str) -> Callable[[Case], Case]:
    def add(function: Case) -> Case:
        CASES[name] = function
        TOPIC_CONFIGS[name] = {key.replace("_", "."): value for key, value in configs.items()}
        return function

    return add


def plain(name: str, make: Callable[[], bytes | None], **configs: str) -> None:
    """A case that is one request with these records."""
    case(name, **configs)(lambda connection, topic: connection.produce(topic, make()))


def now_ms() -> int:
    return int(time.time() * 1000)


# The batch's frame: checksum, size, magic.
plain("right", lambda: batch([b"a", b"b"]))
plain("wrong checksum", lambda: batch([b"a"], crc_change=1))
plain("size one too large", lambda: batch([b"a"], size_change=1))
plain("size one too small", lambda: batch([b"a"], size_change=-1))
plain("size zero", lambda: struct.pack(">qi", 0, 0) + batch([b"a"])[12:])
plain("size negative", lambda: struct.pack(">qi", 0, -5) + batch([b"a"])[12:])
plain("size enormous", lambda: struct.pack(">qi", 0, 0x7FFFFFFF) + batch([b"a"])[12:])
plain("header cut short", lambda: batch([b"a"])[:40])
plain("records cut short", lambda: batch([b"a" * 100])[:-50])
plain("magic 0", lambda: batch([b"a"], magic=0))
plain("magic 1", lambda: batch([b"a"], magic=1))
plain("magic 3", lambda: batch([b"a"], magic=3))
plain("magic -1", lambda: batch([b"a"], magic=-1))
plain("empty records", lambda: b"")
plain("two batches", lambda: batch([b"a"]) + batch([b"b"]))
plain("garbage after the batch", lambda: batch([b"a"]) + b"\xde\xad\xbe\xef")
plain("base offset and epoch of its own", lambda: batch([b"a"], base_offset=77, leader_epoch=5))

# Counts against each other and against the records.
plain("count too large", lambda: batch([b"a"], count=2))
plain("count too small", lambda: batch([b"a", b"b"], count=1))
plain("count zero", lambda: batch([b"a"], count=0))
plain("count negative", lambda: batch([b"a"], count=-1))
plain("offset delta too large", lambda: batch([b"a"], last_offset_delta=4))
plain("offset delta negative", lambda: batch([b"a"], last_offset_delta=-1))
plain("count and delta too large", lambda: batch([b"a"], count=10, last_offset_delta=9))
plain("count and delta too small", lambda: batch([b"a"] * 3, count=2, last_offset_delta=1))
plain("no records at all", lambda: batch([], body=b""))
plain("count enormous", lambda: batch([b"a"], count=0x7FFFFFFF, last_offset_delta=0x7FFFFFFE))

# The records themselves.
plain("record longer than the batch", lambda: batch([b"a"], body=varint(500) + b"\0\0\0\1\1a\0"))
plain("record of negative length", lambda: batch([b"a"], body=varint(-3) + b"\0\0\0\1\1a\0"))
plain(
    "record offsets out of step", lambda: batch([b"a"] * 2, body=record(0, b"a") + record(7, b"b"))
)
plain("record offsets twice the same", lambda: batch([b"a"] * 2, body=record(0, b"a") * 2))
plain(
    "value longer than its record",
    lambda: batch([b"a"], body=varint(8) + b"\0\0\0\1" + varint(50) + b"ab\0"),
)
plain("varint without end", lambda: batch([b"a"], body=b"\xff" * 40))


# Many records: nothing may be taken for right because there is much of it.
MANY = 100


def many(change: Callable[[list[bytes]], list[bytes]], **options: object) -> bytes:
    """A batch that counts MANY records, and holds what `change` made of them."""
    records = [record(n, b"v%d" % n) for n in range(MANY)]
    return batch([b""] * MANY, body=b"".join(change(records)), **options)


def lying(name: str, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """The case as it is, and packed, and for a topic that packs it."""
    plain(f"many: {name}", lambda: many(change))
    body = b"".join(change([record(n, b"v%d" % n) for n in range(MANY)]))
    packed = gzip.compress(body)
    plain(f"many, gzip: {name}", lambda: batch([b""] * MANY, attributes=1, body=packed))
    plain(f"many, packed here: {name}", lambda: many(change), compression_type="zstd")


lying("right", lambda records: records)
lying("noise", lambda records: [bytes(7 * n % 251 for n in range(2000))])
lying("one too few", lambda records: records[:-1])
lying("one too many", lambda records: [*records, record(MANY, b"more")])
lying("the last is cut short", lambda records: [*records[:-1], records[-1][:-3]])
lying(
    "a value longer than its record",
    lambda records: [
        *records[:-1],
        varint(8) + b"\0\0" + varint(MANY - 1) + b"\1" + varint(50) + b"a\0",
    ],
)
lying(
    "a header with a null key",
    lambda records: [*records[:-1], varint(9) + b"\0\0" + varint(MANY - 1) + b"\1\1\2\1\0"],
)
lying(
    "a negative number of headers",
    lambda records: [*records[:-1], varint(7) + b"\0\0" + varint(MANY - 1) + b"\1\1\1"],
)


def timed(*offsets_ms: int) -> bytes:
    """Records at these times from now; the header says now."""
    body = b"".join(record(n, b"v", time_delta=at) for n, at in enumerate(offsets_ms))
    return batch([b""] * len(offsets_ms), body=body, max_timestamp_ms=now_ms())


plain("some ahead, header says now", lambda: timed(0, 2 * HOUR_MS, 0, 5 * HOUR_MS))
plain(
    "some too old",
    lambda: timed(0, -2 * HOUR_MS, 0),
    message_timestamp_before_max_ms=str(HOUR_MS),
)
plain(
    "some ahead, append time", lambda: timed(0, 2 * HOUR_MS), message_timestamp_type="LogAppendTime"
)
plain(
    "some without keys on a compacted topic",
    lambda: batch(
        [b""] * 3, body=record(0, b"a", key=b"k") + record(1, b"b") + record(2, b"c", key=b"k")
    ),
    cleanup_policy="compact",
)

# Attributes.
plain("codec 5", lambda: batch([b"a"], attributes=5))
plain("codec 7", lambda: batch([b"a"], attributes=7))
plain("gzip of garbage", lambda: batch([b"a"], attributes=1, body=b"no gzip at all"))
plain(
    "gzip cut short",
    lambda: batch([b"a"], attributes=1, body=gzip.compress(record(0, b"a" * 100))[:-12]),
)
plain("lz4 of garbage", lambda: batch([b"a"], attributes=3, body=b"\x04\x22\x4d\x18 no lz4"))
plain("zstd of garbage", lambda: batch([b"a"], attributes=4, body=b"\x28\xb5\x2f\xfd no zstd"))
plain("snappy of garbage", lambda: batch([b"a"], attributes=2, body=b"\xff\xff no snappy"))
plain("gzip, right", lambda: batch([b"a"], attributes=1, body=gzip.compress(record(0, b"a"))))
plain(
    "gzip with a count that lies",
    lambda: batch(
        [b"a"], attributes=1, count=3, last_offset_delta=2, body=gzip.compress(record(0, b"a"))
    ),
)
plain("control batch", lambda: batch([b"\0\0\0\0\0\0"], key=b"\0\0\0\1", attributes=0x20))
plain("unknown attribute bits", lambda: batch([b"a"], attributes=0x4000))
plain("delete horizon bit", lambda: batch([b"a"], attributes=0x40))
plain("append time set by the client", lambda: batch([b"a"], attributes=0x08))

# Limits and kinds of topics.
plain("over max.message.bytes", lambda: batch([b"a" * 2000]), max_message_bytes="1000")
plain("just under max.message.bytes", lambda: batch([b"a" * 900]), max_message_bytes="1000")
plain("two hours ahead", lambda: batch([b"a"], timestamp_ms=now_ms() + 2 * HOUR_MS))
plain("half an hour ahead", lambda: batch([b"a"], timestamp_ms=now_ms() + HOUR_MS // 2))
plain(
    "ahead, append time",
    lambda: batch([b"a"], timestamp_ms=now_ms() + 2 * HOUR_MS),
    message_timestamp_type="LogAppendTime",
)
plain(
    "too old for before.max",
    lambda: batch([b"a"], timestamp_ms=now_ms() - 2 * HOUR_MS),
    message_timestamp_before_max_ms=str(HOUR_MS),
)
plain("timestamp minus one", lambda: batch([b"a"], timestamp_ms=-1))
plain("timestamp minus five", lambda: batch([b"a"], timestamp_ms=-5))
plain("max timestamp lies", lambda: batch([b"a"], max_timestamp_ms=now_ms() + 48 * HOUR_MS))
plain("no key on a compacted topic", lambda: batch([b"a"]), cleanup_policy="compact")
plain("a key on a compacted topic", lambda: batch([b"a"], key=b"k"), cleanup_policy="compact")


@case("acks 2")
def _acks_2(connection: Connection, topic: str) -> ProduceAnswer | None:
    return connection.produce(topic, batch([b"a"]), acks=2)


@case("acks -2")
def _acks_minus_2(connection: Connection, topic: str) -> ProduceAnswer | None:
    return connection.produce(topic, batch([b"a"]), acks=-2)


@case("partition that is not there")
def _no_partition(connection: Connection, topic: str) -> ProduceAnswer | None:
    return connection.produce(topic, batch([b"a"]), partition=9)


@case("partition -1")
def _negative_partition(connection: Connection, topic: str) -> ProduceAnswer | None:
    return connection.produce(topic, batch([b"a"]), partition=-1)


@case("topic that is not there")
def _no_topic(connection: Connection, topic: str) -> ProduceAnswer | None:
    return connection.produce(topic + "-not", batch([b"a"]))


@case("topic with an illegal name")
def _illegal_topic(connection: Connection, topic: str) -> ProduceAnswer | None:
    return connection.produce(topic + "/not", batch([b"a"]))


def sequenced(connection: Connection, topic: str, *steps: tuple[int, int]) -> ProduceAnswer | None:
    """Batches of two records by one producer, each with (epoch change, sequence); last answer."""
    error, producer_id, epoch = connection.init_producer_id()
    assert error == 0
    answer = None
    for change, sequence in steps:
        records = batch(
            [b"a", b"b"],
            producer_id=producer_id,
            producer_epoch=epoch + change,
            base_sequence=sequence,
        )
        answer = connection.produce(topic, records)
    return answer


def sequence_case(name: str, *steps: tuple[int, int]) -> None:
    case(name)(lambda connection, topic: sequenced(connection, topic, *steps))


sequence_case("sequence in step", (0, 0), (0, 2))
sequence_case("sequence with a gap", (0, 0), (0, 4))
sequence_case("sequence back", (0, 0), (0, 2), (0, 1))
sequence_case("duplicate of the last", (0, 0), (0, 2), (0, 2))
sequence_case("duplicate of an earlier", (0, 0), (0, 2), (0, 4), (0, 0))
sequence_case("duplicate of one too old", *((0, 2 * n) for n in range(7)), (0, 0))
sequence_case("first sequence is not zero", (0, 10))
sequence_case("newer epoch from zero", (0, 0), (1, 0))
sequence_case("newer epoch not from zero", (0, 0), (1, 2))
sequence_case("older epoch", (0, 0), (1, 0), (0, 2))
sequence_case("no sequence", (0, -1))


@case("producer id without epoch")
def _no_epoch(connection: Connection, topic: str) -> ProduceAnswer | None:
    records = batch([b"a"], producer_id=5_000_000, producer_epoch=-1, base_sequence=0)
    return connection.produce(topic, records)


@case("two batches of an idempotent producer")
def _two_idempotent(connection: Connection, topic: str) -> ProduceAnswer | None:
    _, producer_id, epoch = connection.init_producer_id()
    same = {"producer_id": producer_id, "producer_epoch": epoch}
    both = batch([b"a"], base_sequence=0, **same) + batch([b"b"], base_sequence=1, **same)
    return connection.produce(topic, both)


@case("transactional batch without transactional id")
def _no_transactional_id(connection: Connection, topic: str) -> ProduceAnswer | None:
    _, producer_id, epoch = connection.init_producer_id()
    records = batch(
        [b"a"], attributes=0x10, producer_id=producer_id, producer_epoch=epoch, base_sequence=0
    )
    return connection.produce(topic, records)


@case("transactional batch outside of a transaction")
def _outside_transaction(connection: Connection, topic: str) -> ProduceAnswer | None:
    error, producer_id, epoch = connection.init_producer_id(topic)
    assert error == 0, error
    records = batch(
        [b"a"], attributes=0x10, producer_id=producer_id, producer_epoch=epoch, base_sequence=0
    )
    return connection.produce(topic, records, transactional_id=topic)


@case("plain batch with transactional id")
def _plain_with_transactional_id(connection: Connection, topic: str) -> ProduceAnswer | None:
    return connection.produce(topic, batch([b"a"]), transactional_id=topic)


def answer_to(name: str, port: int, topic: str) -> dict[str, object]:
    """What a server answers to a case, as JSON can hold it."""
    with Connection(port) as connection:
        try:
            answer = CASES[name](connection, topic)
        except Closed:
            answer = None
    with Connection(port) as connection:
        end_offset = connection.end_offset(topic)
    if answer is None:
        return {"closed": True, "end_offset": end_offset}
    return {
        "error": answer.error,
        "base_offset": answer.base_offset,
        "record_errors": [index for index, _ in answer.record_errors],
        "stamped": answer.append_time_ms > 0,
        "end_offset": end_offset,
    }


# Refusals that say as much as each other. The control answers -1 where one of its decoders threw
# something that nobody had thought of; whoever did think of it is not wrong.
REFUSED = {
    "UNKNOWN_SERVER_ERROR",
    "CORRUPT_MESSAGE",
    "INVALID_RECORD",
    "UNSUPPORTED_COMPRESSION_TYPE",
}


def agrees(answer: dict[str, object], recorded: dict[str, object]) -> bool:
    """Whether an answer is as good as the control's: the same, but for REFUSED."""
    if recorded.get("error") == "UNKNOWN_SERVER_ERROR" and answer.get("error") in REFUSED:
        recorded = {**recorded, "error": answer["error"]}
    return answer == recorded
