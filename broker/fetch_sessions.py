"""Incremental fetch sessions (KIP-227). Pure: a request in, what to read and how to answer out.

A session remembers the partitions that a consumer fetches, so that its requests name only changes
and our responses only what is new. Cached up to `slots_max`. A new one takes the place of another
by the rule of Kafka's FetchSessionCache, of which all here are unprivileged: of one that was not
used for EVICTION_MS (the one that was unused longest), else of one that was made so long ago and
has fewer partitions than the new one (the smallest); else it is not made, and the client, told
session 0, sends full fetches. So more consumers than slots do not evict each other for ever, whose
every fetch would fail with FETCH_SESSION_ID_NOT_FOUND. A session that has forgotten all of its
partitions is closed. A session is its principal's: nobody else goes on with it or closes it.

| request's (id, epoch) | meaning |
|---|---|
| (0, -1) | no session wanted |
| (any, 0) | full fetch, make a session (closing the named one) |
| (id, -1) | full fetch, close the session |
| (id, n > 0) | the n-th incremental fetch of the session |
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from dataclasses import field
from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from broker.api import FREED_PER_TURN, Steps
from broker.security.principal import ANONYMOUS
from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.api import Account
    from broker.security.principal import Principal
    from runtime.env import Clock, Rng
    from wire.kafka.messages.fetch import FetchPartition, FetchRequest, PartitionData

FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = (1 << 31) - 1
#: As Kafka's MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS, which is no setting either.
EVICTION_MS = 120_000
#: Of a request that names more, the rest is done in further steps: some 0.1 ms each.
PARTITIONS_PER_STEP = 100

#: A partition as requests name it: by topic name or, from version 13 on, by topic id.
TopicKey = str | UUID
PartitionKey = tuple[TopicKey, int]
T = TypeVar("T")


@dataclass(slots=True)
class Wanted:
    """One partition of a fetch, with what the session last told the client about it."""

    topic: TopicKey
    request: FetchPartition
    sent_high_watermark: int = -1
    sent_log_start: int = -1
    sent_error: bool = False


Partitions = OrderedDict[PartitionKey, Wanted]


@dataclass(slots=True)
class Session:
    session_id: int
    next_epoch: int
    uses_topic_ids: bool
    partitions: Partitions
    #: Whose it is: to everybody else it is not there.
    owner: Principal
    #: On the clock that never goes back.
    created_seconds: float
    used_seconds: float
    #: As of when it was last used.
    size: int
    is_evictable: bool = False
    #: Which topics its owner may read, as of a state of the rights.
    verdicts: dict[TopicKey, bool] = field(default_factory=dict)
    verdicts_state: tuple[object, ...] = ()


@dataclass(slots=True)
class FetchContext:
    """What one request asks for. `session` is None without one; `incremental` responses leave out
    partitions with no news."""

    wanted: list[Wanted]
    session: Session | None
    incremental: bool
    #: Of the request; None while no client has a quota.
    account: Account | None = None
    #: What the client may not read.
    refused: list[Wanted] = field(default_factory=list)

    def verdicts(self, state: tuple[object, ...]) -> dict[TopicKey, bool]:
        """Which topics the client may read, as far as it was asked while its rights were in this
        state: of a session from one fetch to the next."""
        session = self.session
        if session is None:
            return {}
        if session.verdicts_state != state:
            session.verdicts, session.verdicts_state = {}, state
        return session.verdicts

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
    def __init__(self, slots_max: int, rng: Rng, clock: Clock) -> None:
        self._slots_max = slots_max
        self._rng = rng
        self._clock = clock
        self._sessions: OrderedDict[int, Session] = OrderedDict()  # last used last
        #: (partitions, id) of those that a larger one may evict, in order.
        self._evictable: list[tuple[int, int]] = []
        self.partitions_count = 0
        self.evictions_count = 0
        #: Of sessions that are gone, if they had many: whoever has time calls `free_some`.
        self.closed: list[Partitions] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def context(
        self, request: FetchRequest, version: int, owner: Principal = ANONYMOUS
    ) -> FetchContext:
        """Of a request that names few partitions. KafkaError: FETCH_SESSION_ID_NOT_FOUND,
        INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR; a request that is refused changes
        nothing."""
        by_id = version >= 13
        session = self._begin(request, version, by_id, owner)
        if session is not None:
            for topic in request.forgotten_topics_data:
                _forget(session, topic.topic_id if by_id else topic.topic, topic.partitions)
        named = [
            Wanted(topic.topic_id if by_id else topic.topic, partition)
            for topic in request.topics
            for partition in topic.partitions
        ]
        if session is not None:
            _change(session.partitions, named)
            return self._continued(session, named)
        if version < 7 or request.session_epoch == FINAL_EPOCH:
            return FetchContext(named, None, incremental=False)
        partitions: Partitions = OrderedDict()
        _put(partitions, named)
        return self._new_session(named, partitions, by_id, owner)

    def steps(
        self, request: FetchRequest, version: int, owner: Principal = ANONYMOUS
    ) -> Steps[FetchContext]:
        """`context` of a request that names many. Between two steps the session may be closed, and
        then it is not found."""
        by_id = version >= 13
        session = self._begin(request, version, by_id, owner)
        if session is not None:
            for topic in request.forgotten_topics_data:
                for numbers in _some_of(topic.partitions):
                    _forget(session, topic.topic_id if by_id else topic.topic, numbers)
                    yield 2 + 2 * len(numbers)
        named: list[Wanted] = []
        for wanted in request.topics:
            key = wanted.topic_id if by_id else wanted.topic
            for some in _some_of(wanted.partitions):
                named += [Wanted(key, partition) for partition in some]
                yield 3 + len(some)
        if session is not None:
            for news in _some_of(named):
                _change(session.partitions, news)
                yield 2 * len(news)
            return self._continued(session, named)
        if version < 7 or request.session_epoch == FINAL_EPOCH:
            return FetchContext(named, None, incremental=False)
        partitions: Partitions = OrderedDict()
        for news in _some_of(named):
            _put(partitions, news)
            yield 2 * len(news)
        return self._new_session(named, partitions, by_id, owner)

    def _begin(
        self, request: FetchRequest, version: int, by_id: bool, owner: Principal
    ) -> Session | None:
        """The session that goes on. KafkaError."""
        session = self._sessions.get(request.session_id)
        is_own = session is not None and session.owner == owner
        if version < 7 or request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            if is_own:
                self._close(request.session_id)
            return None
        if request.session_epoch < 0:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session is None or not is_own:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.next_epoch != request.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != by_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        # From here on this is the request of that epoch, whatever comes between two steps.
        session.next_epoch = 1 if session.next_epoch == EPOCH_MAX else session.next_epoch + 1
        return session

    def _continued(self, session: Session, named: list[Wanted]) -> FetchContext:
        """With what this request changed. KafkaError."""
        if self._sessions.get(session.session_id) is not session:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if not session.partitions:
            self._close(session.session_id)
            return FetchContext(named, None, incremental=False)
        self._touch(session)
        return FetchContext(list(session.partitions.values()), session, incremental=True)

    def throttled_id(self, context: FetchContext) -> int:
        """What an empty answer to a client that is to wait says of its session. One that the client
        has not learned of yet is closed: to an answer without the partitions that it named it makes
        none (KIP-219), and begins again."""
        if context.incremental:
            return context.session_id
        self._close(context.session_id)
        return 0

    def free_some(self) -> None:
        """Frees some of what closed sessions remembered, which is in `closed`."""
        left = FREED_PER_TURN
        while self.closed and left > 0:
            partitions = self.closed[-1]
            for _ in range(min(left, len(partitions))):
                partitions.popitem()
                left -= 1
            if not partitions:
                self.closed.pop()

    def _new_session(
        self, wanted: list[Wanted], partitions: Partitions, by_id: bool, owner: Principal
    ) -> FetchContext:
        if not wanted or self._slots_max <= 0:
            return FetchContext(wanted, None, incremental=False)
        if len(self._sessions) >= self._slots_max and not self._evict(len(partitions)):
            return FetchContext(wanted, None, incremental=False)
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = self._rng.randrange(EPOCH_MAX)
        now = self._clock.monotonic()
        session = Session(session_id, 1, by_id, partitions, owner, now, now, 0)
        self._sessions[session_id] = session
        self._touch(session)
        return FetchContext(list(partitions.values()), session, incremental=False)

    def _evict(self, partitions_count: int) -> bool:
        """Whether there is a place now for a session of so many partitions."""
        oldest = next(iter(self._sessions.values()))
        if self._clock.monotonic() - oldest.used_seconds > EVICTION_MS / 1000:
            self._close(oldest.session_id)
        elif self._evictable and self._evictable[0][0] < partitions_count:
            self._close(self._evictable[0][1])
        else:
            return False
        self.evictions_count += 1
        return True

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._take_evictable(session)
            self.partitions_count -= session.size
            if session.size > PARTITIONS_PER_STEP:
                self.closed.append(session.partitions)
                session.partitions = OrderedDict()  # a fetch that waits has it yet

    def _take_evictable(self, session: Session) -> None:
        if session.is_evictable:
            key = session.size, session.session_id
            del self._evictable[bisect_left(self._evictable, key)]
            session.is_evictable = False

    def _touch(self, session: Session) -> None:
        """It was used, and may have another size now."""
        now = self._clock.monotonic()
        self._sessions.move_to_end(session.session_id)
        session.used_seconds = now
        size = len(session.partitions)
        is_evictable = now - session.created_seconds > EVICTION_MS / 1000
        if (size, is_evictable) != (session.size, session.is_evictable):
            self._take_evictable(session)
            self.partitions_count += size - session.size
            session.size = size
            if is_evictable:
                insort(self._evictable, (size, session.session_id))
                session.is_evictable = True


def _some_of(elements: list[T]) -> Iterable[list[T]]:
    """All of them, so many at a time as are one step."""
    if len(elements) <= PARTITIONS_PER_STEP:
        return (elements,) if elements else ()
    starts = range(0, len(elements), PARTITIONS_PER_STEP)
    return (elements[start : start + PARTITIONS_PER_STEP] for start in starts)


def _forget(session: Session, topic: TopicKey, numbers: list[int]) -> None:
    for number in numbers:
        session.partitions.pop((topic, number), None)


def _change(partitions: Partitions, named: list[Wanted]) -> None:
    for item in named:
        known = partitions.get((item.topic, item.request.partition))
        if known is None:
            partitions[item.topic, item.request.partition] = item
        else:
            known.request = item.request


def _put(partitions: Partitions, named: list[Wanted]) -> None:
    for item in named:
        partitions[item.topic, item.request.partition] = item
