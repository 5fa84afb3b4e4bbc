"""The benchmark's frames are read, and its replies written, by another project's codec."""

import datetime
import io
import struct

import pytest
from kafka.record import MemoryRecords
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v12 import request as fetch_request
from kio.schema.fetch.v12 import response as fetch_response
from kio.schema.produce.v9 import request as produce_request
from kio.schema.produce.v9 import response as produce_response
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32Timedelta

from bench import frames

NO_TIME = i32Timedelta.parse(datetime.timedelta(0))


def write_response(entity):
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    payload = struct.pack(">i", 9) + b"\0" + buffer.getvalue()
    return struct.pack(">i", len(payload)) + payload


def read_request(frame, cls):
    """The header and the body of a frame, which must be used up by them."""
    assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
    header, size = entity_reader(cls.__header_schema__)(frame, 4)
    body, rest = entity_reader(cls)(frame, 4 + size)
    assert 4 + size + rest == len(frame)
    return header, body


def produce_reply(topic, error=ErrorCode.none):
    partition = produce_response.PartitionProduceResponse(
        index=3,
        error_code=error,
        base_offset=77,
        log_append_time=None,
        log_start_offset=0,
        record_errors=(),
        error_message=None,
    )
    responses = produce_response.TopicProduceResponse(name=topic, partition_responses=(partition,))
    return write_response(
        produce_response.ProduceResponse(responses=(responses,), throttle_time=NO_TIME)
    )


def test_produce_request():
    batch = frames.record_batch([b"one", b"two" * 1000])
    header, body = read_request(
        frames.produce_frame("topic", 5, batch), produce_request.ProduceRequest
    )
    assert (header.client_id, body.acks) == ("bench", -1)
    (topic,) = body.topic_data
    (partition,) = topic.partition_data
    assert (topic.name, partition.index, bytes(partition.records)) == ("topic", 5, batch)


def test_produce_request_for_several_partitions():
    batch = frames.record_batch([b"one"])
    frame = frames.produce_many_frame("topic", [4, 0, 9], batch)
    _, body = read_request(frame, produce_request.ProduceRequest)
    (topic,) = body.topic_data
    assert [(part.index, bytes(part.records)) for part in topic.partition_data] == [
        (index, batch) for index in (4, 0, 9)
    ]


def test_produce_response_of_several_partitions():
    error = produce_response.BatchIndexAndErrorMessage(
        batch_index=0, batch_index_error_message="no such record"
    )
    answers = [
        (7, ErrorCode.none, None, ()),
        (8, ErrorCode.not_leader_or_follower, "moved", ()),
        (300, ErrorCode.invalid_record, None, (error,)),
        (1, ErrorCode.none, None, ()),
    ]
    partitions = tuple(
        produce_response.PartitionProduceResponse(
            index=index,
            error_code=code,
            base_offset=5,
            log_append_time=None,
            log_start_offset=0,
            record_errors=errors,
            error_message=words,
        )
        for index, code, words, errors in answers
    )
    topic = produce_response.TopicProduceResponse(name="t", partition_responses=partitions)
    reply = write_response(
        produce_response.ProduceResponse(responses=(topic,), throttle_time=NO_TIME)
    )
    found = frames.parse_produce(memoryview(reply)[4:])
    assert found == [(index, code.value) for index, code, _, _ in answers]


def test_record_batch():
    values = [b"", b"x", b"y" * 70_000]
    records = MemoryRecords(frames.record_batch(values))
    batch = records.next_batch()
    assert batch.validate_crc()
    assert [(record.offset, record.key, record.value) for record in batch] == [
        (index, None, value) for index, value in enumerate(values)
    ]
    assert not records.has_next()
    assert abs(len(frames.batch_of(65_536)) - 65_536) < 3000


@pytest.mark.parametrize("cut", [1, 7, 50, 10_000])
def test_replies_are_counted_however_they_are_cut(cut):
    reply = produce_reply("some-topic")
    replies = frames.ProduceReplies("some-topic")
    assert len(reply) == replies.size
    data = reply * 20
    for start in range(0, len(data), cut):
        replies.feed(data[start : start + cut])
    assert replies.count == 20


def test_an_error_among_replies_is_seen():
    good, bad = produce_reply("t"), produce_reply("t", ErrorCode.not_leader_or_follower)
    replies = frames.ProduceReplies("t")
    with pytest.raises(frames.ProduceError, match=r"\{0, 6\}"):
        replies.feed(good * 5 + bad + good)
    with pytest.raises(frames.ProduceError, match="unexpected"):
        frames.ProduceReplies("t").feed(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4)


def test_fetch_request():
    frame = frames.fetch_frame("topic", {0: 10, 3: 99}, 1000, 500)
    _, body = read_request(frame, fetch_request.FetchRequest)
    assert (body.max_bytes, body.session_epoch, body.isolation_level) == (1000, -1, 0)
    (topic,) = body.topics
    assert topic.topic == "topic"
    assert [(p.partition, p.fetch_offset, p.partition_max_bytes) for p in topic.partitions] == [
        (0, 10, 500),
        (3, 99, 500),
    ]


def fetch_partition(index, records, aborted=None):
    return fetch_response.PartitionData(
        partition_index=index,
        error_code=ErrorCode.none,
        high_watermark=40,
        aborted_transactions=aborted,
        records=records,
        # Not the default, so that it is written as a tagged field.
        current_leader=fetch_response.LeaderIdAndEpoch(leader_id=1, leader_epoch=2),
    )


def test_fetch_response():
    batch = frames.record_batch([b"a", b"b"])
    aborted = (fetch_response.AbortedTransaction(producer_id=7, first_offset=8),)
    partitions = (fetch_partition(0, batch * 2 + batch[:-1], aborted), fetch_partition(1, b""))
    topic = fetch_response.FetchableTopicResponse(topic="t" * 200, partitions=partitions)
    reply = write_response(
        fetch_response.FetchResponse(
            throttle_time=NO_TIME, error_code=ErrorCode.none, responses=(topic,)
        )
    )
    first, second = frames.parse_fetch(memoryview(reply)[4:])
    assert first[:3] == (0, 0, 40)
    assert frames.count_batches(first[3]) == (2, 2 * len(batch), 2)
    assert second[:3] == (1, 0, 40)
    assert frames.count_batches(second[3]) == (0, 0, -1)


def numbered(values, base_offset):
    return struct.pack(">q", base_offset) + frames.record_batch(values)[8:]


SAME = [numbered([b"x" * 10], index) for index in range(20)]
MIXED = [numbered([b"y" * (index % 3)] * 2, 2 * index) for index in range(20)]
LARGER_LAST = [*SAME, numbered([b"", b""], 20)]


@pytest.mark.parametrize("cut", [0, 1, 40, 62])
@pytest.mark.parametrize("batches", [SAME, MIXED, LARGER_LAST], ids=["same", "mixed", "last"])
def test_batches_are_counted_with_and_without_the_short_cut(batches, cut):
    data = b"".join(batches)
    kept = batches if cut == 0 else batches[:-1]
    last_base, last_delta = struct.unpack_from(">q", kept[-1])[0], kept[-1][26]
    count, used, next_offset = frames.count_batches(memoryview(data)[: len(data) - cut])
    assert (count, used) == (len(kept), sum(map(len, kept)))
    assert next_offset == last_base + last_delta + 1
