"""A ShareFetch while it is answered: it takes what is there, or waits for something to come.

It has no task. Its share partitions call it when something changed in them; it looks at those then,
as soon as its reply is the next of its connection, so that nothing is acquired for a client that
does not read. Only what has to be read from disk is a task's.

Looking at one partition is some microseconds. Looks at many are made in slices, and so is whatever
else is done for each partition.

Owner: the event loop's thread.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from broker.api import run_steps
from broker.handlers.share_answers import ANSWER_UNITS, Acknowledging
from broker.share.partition.acquiring import Taker
from broker.share.partition.share_partition import State
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.share_groups import (
    AcquiredRecords,
    NodeEndpoint,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchResponsePartitionData,
)

if TYPE_CHECKING:
    from broker.api import Request, Steps
    from broker.handlers.share_answers import Leaders
    from broker.share.partition.share_partition import SharePartition, Taken
    from broker.share.partition.share_partitions import SharePartitions
    from broker.share.sessions.share_session_core import Partition, ShareSession, ShareSessions
    from runtime.timers import Timer, Timers
    from runtime.turn import Turn

#: What a look at a partition costs, in units of `Steps`; one that only registers or leaves.
LOOK_UNITS, WATCH_UNITS = 15, 4
#: So many partitions are left in one turn.
UNWATCHED_PER_TURN = 500
RECORD_LIMIT = 1
EMPTY = b""


class Fetches(Protocol):
    """What all fetches of a broker have together (broker/handlers/share_fetch.py)."""

    sessions: ShareSessions
    partitions: SharePartitions
    leaders: Leaders
    timers: Timers
    turn: Turn
    #: Of partitions, for as long as their fetches wait.
    waiting_partitions: int
    bytes_out: int
    #: fetch.max.bytes
    fetch_bytes_max: int

    def may_wait(self, partitions: int) -> bool: ...


class Part:
    """One partition of a fetch. Called when something changed in it (`SharePartition.watch`)."""

    __slots__ = ("key", "reply", "share", "size_bytes")

    def __init__(self, reply: ShareFetching, key: Partition, share: SharePartition) -> None:
        self.reply = reply
        self.key = key
        self.share = share
        #: That could be had of it at the last look, if `min_bytes` are waited for.
        self.size_bytes = 0

    def __call__(self) -> None:
        self.reply.moved(self)


class ShareFetching(Acknowledging):
    """The reply of a ShareFetch, of its acknowledgements and its records."""

    __slots__ = (
        "_available_bytes", "_body", "_cold", "_dirty", "_errors", "_handler", "_is_busy",
        "_is_late", "_is_over", "_is_waiting", "_parts", "_refused", "_request", "_size_bytes",
        "_taken",
        "_taker", "_timer", "_waiting_count",
    )  # fmt: skip

    def __init__(self, handler: Fetches, request: Request, session: ShareSession) -> None:
        super().__init__(session, handler.sessions, handler.partitions)
        body: ShareFetchRequest = request.body
        self._handler = handler
        self._request = request
        self._body = body
        self._taker = Taker(
            session.member,
            handler.partitions.around.now_ms(),
            body.max_records,
            max(body.batch_size, 1),
            request.version >= 2 and body.share_acquire_mode == RECORD_LIMIT,
        )
        self._parts: dict[Partition, Part] = {}
        self._dirty: dict[Part, None] = {}
        self._cold: list[Part] = []
        self._taken: dict[Partition, tuple[SharePartition, Taken]] = {}
        self._errors: dict[Partition, ErrorCode] = {}
        #: Of topics that the client may not read: told, and nothing is answered at once for them.
        self._refused: dict[Partition, ErrorCode] = {}
        self._size_bytes = 0
        self._available_bytes = 0
        self._timer: Timer | None = None
        self._waiting_count = 0
        #: A look is on its way, or waits for the reply's turn.
        self._is_busy = True
        self._is_waiting = False
        #: Its time is over: what it has is answered.
        self._is_late = body.max_wait_ms <= 0
        #: Nothing more is taken.
        self._is_over = False

    # -- looking ---------------------------------------------------------------------------------

    def look_at_all(self) -> Steps[None]:
        """The first look, in the session's order."""
        rights = self._request.rights
        for key in list(self.session.partitions):
            yield WATCH_UNITS
            if rights is not None and not rights.reads_topic(key.topic_id):
                self._refused[key] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                continue
            try:
                share = self.partitions.get(self.session.group, *key)
            except KafkaError as error:
                self._errors[key] = error.code
                continue
            self._parts[key] = Part(self, key, share)
        yield from self._look(list(self._parts.values()))

    def no_records(self) -> None:
        """It only acknowledges."""
        self._is_over = True

    def _look(self, parts: list[Part]) -> Steps[None]:
        self._cold.clear()
        if self._body.min_bytes > 1 and not self._is_late:
            for part in parts:
                yield LOOK_UNITS
                self._measure(part)
            if self._available_bytes < min(self._body.min_bytes, self._bytes_max):
                return
            parts = [part for part in self._parts.values() if part.size_bytes]
        for part in parts:
            if self._is_full:
                break
            yield LOOK_UNITS
            self._take(part)

    def _measure(self, part: Part) -> None:
        before = part.size_bytes
        try:
            part.size_bytes = part.share.readable_bytes(self._bytes_max)
            if part.share.state is State.GONE:
                part.share.check_active()
        except KafkaError as error:
            part.size_bytes = 0
            self._errors[part.key] = error.code
        self._available_bytes += part.size_bytes - before

    @property
    def _bytes_max(self) -> int:
        return min(self._body.max_bytes, self._handler.fetch_bytes_max)

    @property
    def _is_full(self) -> bool:
        if self._is_over:
            return True
        is_much = self._size_bytes >= self._bytes_max or self._taker.records_max <= 0
        return is_much and bool(self._taken)

    def _take(self, part: Part) -> None:
        share = part.share
        if self.session.is_closed or share.state is State.LOADING or part.key in self._taken:
            return
        taker = self._taker._replace(now_ms=self.partitions.around.now_ms())
        try:
            taken = share.take(taker, max(self._bytes_max - self._size_bytes, 0))
        except KafkaError as error:
            self._errors[part.key] = error.code
            return
        if taken is None:
            self._cold.append(part)
        else:
            self._add(part, taken)

    def _add(self, part: Part, taken: Taken) -> None:
        if not taken.acquired:
            return
        self._taken[part.key] = part.share, taken
        self._size_bytes += taken.size_bytes
        left = self._taker.records_max - taken.records
        self._taker = self._taker._replace(records_max=left)

    # -- waiting ---------------------------------------------------------------------------------

    def begin_to_wait(self) -> Steps[None]:
        """If there is nothing yet. What changes while it registers is looked at."""
        if self._reads_first:
            self._read_cold()
            return
        if self._is_answerable or self._is_over:
            self._finish()
            return
        count = len(self._parts)
        if self._is_late or not self._handler.may_wait(count):
            self._finish()
            return
        self._waiting_count = count
        self._handler.waiting_partitions += count
        self.on_abandoned = self._leave
        self._is_waiting = True
        self._timer = self._handler.timers.after(self._body.max_wait_ms / 1000, self._end)
        is_registered = False
        try:
            for part in list(self._parts.values()):
                yield WATCH_UNITS
                if not self._is_wanted():
                    break
                part.share.watch(part)
                if part.share.has_some():
                    self._dirty[part] = None
            is_registered = True
        finally:
            if not is_registered:  # the connection was closed between two steps
                self._leave()
        if not self._is_wanted():
            self._finish()
            return
        self._is_busy = bool(self._dirty) or self._is_late
        if self._is_busy:
            self._handler.turn.later(self._when_next)

    def moved(self, part: Part) -> None:
        if self._is_over or not part.share.has_some():
            return
        self._dirty[part] = None
        if not self._is_busy:
            self._is_busy = True
            self._when_next()

    def _when_next(self) -> None:
        if not self._is_over:
            self.when_next(self._go_on)

    def _go_on(self) -> None:
        if self._is_over:
            return
        parts = list(self._dirty)
        if self._is_late and self._body.min_bytes > 1:
            parts = list(self._parts.values())
        self._dirty.clear()
        run_steps(self._handler.turn, self._look(parts), self._looked)

    def _looked(self) -> None:
        if self._is_over:
            return
        if self._reads_first:
            self._read_cold()
        elif self._is_answerable or self._is_late:
            self._finish()
        elif self._dirty:
            self._handler.turn.later(self._when_next)
        else:
            self._is_busy = False

    @property
    def _is_answerable(self) -> bool:
        return bool(self._taken or self._errors) or self.session.is_closed or not self._parts

    @property
    def _reads_first(self) -> bool:
        """What has to be read is, also if there are errors to be told: a partition of the session
        that is answered with one each time would else keep it from ever being read."""
        return bool(self._cold) and not self._taken and self._is_wanted()

    def _end(self) -> None:
        self._is_late = True
        if not self._is_busy:
            self._is_busy = True
            self._when_next()

    def _read_cold(self) -> None:
        """A task reads the first that has to be read; what it has is the answer."""
        self.on_abandoned = self._leave
        self._is_busy = True
        self.partitions.around.start(self._read, self._cold[0])

    async def _read(self, part: Part) -> None:
        taker = self._taker._replace(now_ms=self.partitions.around.now_ms())
        try:
            taken = await part.share.read(taker, self._bytes_max, self._is_wanted)
        except KafkaError as error:
            self._errors[part.key] = error.code
        else:
            self._add(part, taken)
        if self._is_over:
            return
        if self._is_waiting and not self._is_answerable and not self._is_late:
            self._dirty[part] = None
            self._handler.turn.later(self._when_next)
        else:
            self._finish()

    def _is_wanted(self) -> bool:
        return not self._is_over and not self.session.is_closed

    # -- answering -------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._leave()
        self.is_stored()

    def _leave(self) -> None:
        """Nothing more is waited for or taken."""
        self.on_abandoned = None
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self._handler.waiting_partitions -= self._waiting_count
        self._waiting_count = 0
        self._unwatch_some()

    def _unwatch_some(self) -> None:
        parts = self._parts
        for _ in range(min(UNWATCHED_PER_TURN, len(parts))):
            _, part = parts.popitem()
            part.share.unwatch(part)
        if parts:
            self._handler.turn.later(self._unwatch_some)

    def is_stored(self) -> None:
        if not self._is_over or not self.all_stored or self.message is not None:
            return
        settings = self.partitions.around.groups.settings(self.session.group)
        response = ShareFetchResponse(acquisition_lock_timeout_ms=settings.record_lock_duration_ms)
        then = partial(self._send, response)
        run_steps(self._handler.turn, self._answer(response), then)

    def _send(self, response: ShareFetchResponse) -> None:
        account = self._request.account
        if account is not None and account.fetched(self._size_bytes, response):
            # The client is to wait, and has nothing of it: neither does it hold it.
            for share, taken in self._taken.values():
                share.give_back(self.session.member, taken)
            for topic in response.responses:
                for answer in topic.partitions:
                    answer.records, answer.acquired_records = EMPTY, []
        else:
            self._handler.bytes_out += self._size_bytes
            self.session.rotate((*self._taken, *self._errors))
        self.resolve(response)

    def _answer(self, response: ShareFetchResponse) -> Steps[None]:
        endpoints: dict[int, NodeEndpoint] = {}
        listener = self._request.connection.listener
        topics: dict[object, ShareFetchableTopicResponse] = {}
        none = ErrorCode.NONE
        self._errors |= self._refused
        for key in dict.fromkeys((*self._taken, *self._errors, *self.acknowledged)):
            yield ANSWER_UNITS
            topic = topics.get(key.topic_id)
            if topic is None:
                topic = topics[key.topic_id] = ShareFetchableTopicResponse(topic_id=key.topic_id)
                response.responses.append(topic)
            error, refused = self._errors.get(key, none), self.acknowledged.get(key, none)
            answer = ShareFetchResponsePartitionData(
                partition_index=key.number,
                error_code=int(error),
                acknowledge_error_code=int(refused),
                records=EMPTY,
            )
            if key in self._taken:
                _, taken = self._taken[key]
                yield len(taken.acquired)
                answer.error_code = 0
                answer.records = list(taken.parts)
                answer.acquired_records = [AcquiredRecords(*each) for each in taken.acquired]
            self._handler.leaders.tell(answer, key, (error, refused), listener, endpoints)
            topic.partitions.append(answer)
        response.node_endpoints = list(endpoints.values())
