"""What of an ordinary Produce is taken as it comes, and what it is answered."""

import struct
import uuid
from types import SimpleNamespace

import pytest

from broker.handlers.produce import ProduceHandler
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.headers import decode_response, encode_request
from wire.kafka.messages import ProduceRequest
from wire.kafka.messages.produce import PartitionProduceData, TopicProduceData
from wire.kafka.plain_produce import plain_produce

pytestmark = pytest.mark.skipif(
    plain_produce is None, reason="installed where there was no compiler"
)
TOPIC_ID = uuid.UUID(int=7)


class World:
    def __init__(self, *, internal=False, is_short=False):
        self.submitted = []
        self.log = SimpleNamespace(
            topic=SimpleNamespace(internal=internal),
            copies=None,
            config=None,
            log_start_offset=17,
            submit=self.submitted.append,
        )
        logs = SimpleNamespace(
            get=lambda topic, partition: self.log, get_by_id=lambda topic_id, partition: self.log
        )
        self.handler = ProduceHandler(
            logs, SimpleNamespace(is_short=lambda copies, config: is_short, count=0)
        )

    def plain(self, version=9, acks=-1, records=b"records"):
        data = [TopicProduceData("t", TOPIC_ID, [PartitionProduceData(3, records)])]
        frame = encode_request(ProduceRequest(None, acks, 0, data), version, 5, "c")[4:]
        return self.handler.plain(memoryview(bytearray(frame)))


@pytest.mark.parametrize(("acks", "is_taken"), [(-1, False), (1, True)])
def test_too_few_bookies_are_asked_about_for_all(acks, is_taken):
    world = World(is_short=True)
    assert (world.plain(acks=acks) is not None) == is_taken
    assert len(world.submitted) == world.handler.requests_count == is_taken


def test_internal_topics_are_not_taken():
    world = World(internal=True)
    assert world.plain() is None
    assert not world.submitted


def test_what_is_taken_is_counted():
    world = World()
    assert world.plain() is world.submitted[0]
    assert (world.handler.requests_count, world.handler.bytes_in) == (1, len(b"records"))
    assert bytes(world.submitted[0].records) == b"records"


@pytest.mark.parametrize("version", range(7, 14))
def test_an_answer(version):
    append = World().plain(version)
    append.base_offset = 99
    append.finished()
    [frame] = append.parts
    assert struct.unpack_from(">i", frame) == (len(frame) - 4,)
    _, response = decode_response(ApiKey.PRODUCE, version, frame[4:])
    check(response, version, ErrorCode.NONE, 99)


@pytest.mark.parametrize("version", range(7, 14))
def test_a_refusal(version):
    append = World().plain(version)
    append.fail(KafkaError(ErrorCode.INVALID_RECORD, "why", record_indexes=[1]))
    check(append.message, version, ErrorCode.INVALID_RECORD, -1)
    [topic] = append.message.responses
    [told] = topic.partition_responses[0].record_errors
    assert (told.batch_index, told.batch_index_error_message) == (1, "why")


def check(response, version, error, base_offset):
    [topic] = response.responses
    if version >= 13:
        assert topic.topic_id == TOPIC_ID
    else:
        assert topic.name == "t"
    [result] = topic.partition_responses
    assert result.index == 3
    assert (result.error_code, result.base_offset) == (error, base_offset)
    assert result.log_start_offset == 17
