"""Incremental fetch sessions (KIP-227). Pure: a request in, what to read and how to answer out.

A session remembers the partitions that a consumer fetches, so that its requests name only changes
and our responses only what is new. Cached up to `slots_max`; the session that was unused longest
goes first, and its consumer starts a new one on FETCH_SESSION_ID_NOT_FOUND.

| request's (id, epoch) | meaning |
|---|---|
| (0, -1) | no session wanted |
| (any, 0) | full fetch, make a session (closing the named one) |
| (id, -1) | full fetch, close the session |
| (id, n > 0) | the n-th incremental fetch of the session |
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runtime.env import Rng
    from wire.kafka.messages.fetch import FetchPartition, FetchRequest, PartitionData

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = (1 << 31) - 1

#: A partition as requests name it: by topic name or, from version 13 on, by topic id.
TopicKey = str | UUID
PartitionKey = tuple[TopicKey, int]


@dataclass(slots=True)
class Wanted:
    """One partition of a fetch, with what the session last told the client about it."""

    topic: TopicKey
    request: FetchPartition
    sent_high_watermark: int = -1
    sent_log_start: int = -1
    sent_error: bool = False


@dataclass(slots=True)
class Session:
    session_id: int
    next_epoch: int
    uses_topic_ids: bool
    partitions: OrderedDict[PartitionKey, Wanted]


@dataclass(slots=True)
class FetchContext:
    """What one request asks for. `session` is None without one; `incremental` responses leave out
    partitions with no news."""

    wanted: list[Wanted]
    session: Session | None
    incremental: bool

    @property
    def session_id(self) -> int:
        return self.session.session_id if self.session is not None else 0

    def has_news(self, wanted: Wanted, data: PartitionData) -> bool:
        """Whether an incremental response must carry this partition; notes what it carries."""
        news = (
            bool(data.records)
            or data.error_code != 0
            or data.diverging_epoch is not None
            or data.high_watermark != wanted.sent_high_watermark
            or data.log_start_offset != wanted.sent_log_start
        )
        wanted.sent_high_watermark = data.high_watermark
        wanted.sent_log_start = data.log_start_offset
        wanted.sent_error = data.error_code != 0
        return news or not self.incremental

    def rotate(self, sent: Iterable[Wanted]) -> None:
        """Partitions that got data go to the end of the line: a size limit starves nobody."""
        if self.session is None:
            return
        partitions = self.session.partitions
        for wanted in sent:
            key = wanted.topic, wanted.request.partition
            if key in partitions:  # else the client forgot it while this fetch waited
                partitions.move_to_end(key)


class FetchSessions:
    def __init__(self, slots_max: int, rng: Rng) -> None:
        self._slots_max = slots_max
        self._rng = rng
        self._sessions: OrderedDict[int, Session] = OrderedDict()
        self.evictions_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partitions_count(self) -> int:
        return sum(len(session.partitions) for session in self._sessions.values())

    def context(self, request: FetchRequest, version: int) -> FetchContext:
        """KafkaError: FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH,
        FETCH_SESSION_TOPIC_ID_ERROR, INVALID_REQUEST."""
        by_id = version >= 13
        if version < 7 or request.session_epoch == FINAL_EPOCH:
            self._sessions.pop(request.session_id, None)
            return FetchContext(_partitions(request, by_id), None, incremental=False)
        if request.session_epoch == INITIAL_EPOCH:
            self._sessions.pop(request.session_id, None)
            return self._new_session(_partitions(request, by_id), by_id)
        if request.session_epoch < 0:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        return self._continue(request, by_id)

    def _new_session(self, wanted: list[Wanted], by_id: bool) -> FetchContext:
        if not wanted or self._slots_max <= 0:
            return FetchContext(wanted, None, incremental=False)
        while len(self._sessions) >= self._slots_max:
            self._sessions.popitem(last=False)
            self.evictions_count += 1
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = self._rng.randrange(EPOCH_MAX)
        partitions = OrderedDict(((item.topic, item.request.partition), item) for item in wanted)
        session = Session(session_id, 1, by_id, partitions)
        self._sessions[session_id] = session
        return FetchContext(list(partitions.values()), session, incremental=False)

    def _continue(self, request: FetchRequest, by_id: bool) -> FetchContext:
        session = self._sessions.get(request.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.next_epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != by_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        self._sessions.move_to_end(session.session_id)
        partitions = session.partitions
        for topic in request.forgotten_topics_data:
            for partition in topic.partitions:
                partitions.pop((topic.topic_id if by_id else topic.topic, partition), None)
        for item in _partitions(request, by_id):
            known = partitions.get((item.topic, item.request.partition))
            if known is None:
                partitions[item.topic, item.request.partition] = item
            else:
                known.request = item.request
        session.next_epoch = 1 if session.next_epoch == EPOCH_MAX else session.next_epoch + 1
        return FetchContext(list(partitions.values()), session, incremental=True)


def _partitions(request: FetchRequest, by_id: bool) -> list[Wanted]:
    return [
        Wanted(topic.topic_id if by_id else topic.topic, partition)
        for topic in request.topics
        for partition in topic.partitions
    ]
