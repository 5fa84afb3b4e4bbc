"""The ordinary Produce request on its way: one object that is both its batch and its reply.

A produce request has thirty objects when it is decoded as declared, checked, answered and encoded,
and it is them that take most of the time of one with 1 kB. The ordinary one
(wire/kafka/plain_produce.py) needs none of them as long as all goes well. When something does not,
its answer is the declared message again.

Owner: the event loop's thread.
"""

from __future__ import annotations

from itertools import repeat

from broker.api import PlainReply
from broker.log.append.queue import Append
from wire.kafka.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from wire.kafka.plain_produce import answer_maker, place_of


def tell_outcome(append: Append, result: PartitionProduceResponse) -> None:
    """Stage 2 of one partition: what its answer says."""
    if append.error:
        result.error_code = int(append.error)
        result.error_message = append.error_message
        messages = append.record_messages or repeat(append.error_message)
        result.record_errors = [
            BatchIndexAndErrorMessage(index, message)
            for index, message in zip(append.record_indexes, messages, strict=False)
        ]
    result.base_offset = append.base_offset
    result.log_append_time_ms = append.log_append_time_ms


class PlainPlace:
    """A partition as requests of one version name it, and how they are answered."""

    __slots__ = ("answer", "partition", "topic", "topic_id", "version")

    def __init__(self, version: int, place: bytes) -> None:
        """UnicodeDecodeError."""
        self.version = version
        self.topic, self.topic_id, self.partition = place_of(version, place)
        self.answer = answer_maker(version, place)


class PlainAppend(Append, PlainReply):
    __slots__ = (
        "correlation_id", "line", "log_start_offset", "message", "on_turn", "parts", "parts_bytes",
        "place", "route", "size_bytes", "version",
    )  # fmt: skip

    on_abandoned = None
    finish = None
    is_silent = False

    def __init__(
        self,
        records: memoryview,
        place: PlainPlace,
        correlation_id: int,
        log_start_offset: int,
    ) -> None:
        super().__init__(records)
        self.place = place
        self.version = place.version
        self.correlation_id = correlation_id
        self.log_start_offset = log_start_offset
        self.message = None
        self.line = None
        self.on_turn = None
        self.parts = None
        self.parts_bytes = 0
        self.size_bytes = 0

    def finished(self) -> None:
        if self.error:
            self.resolve(self._refusal())
            return
        answer = self.place.answer(
            self.correlation_id, self.base_offset, self.log_append_time_ms, self.log_start_offset
        )
        self.parts = [answer]
        if self.line is not None:
            self.line.reply_resolved(self)

    def _refusal(self) -> ProduceResponse:
        place = self.place
        result = PartitionProduceResponse(place.partition)
        result.log_start_offset = self.log_start_offset
        tell_outcome(self, result)
        topic = TopicProduceResponse(place.topic)
        if place.topic_id is not None:
            topic.topic_id = place.topic_id
        topic.partition_responses.append(result)
        return ProduceResponse([topic])
