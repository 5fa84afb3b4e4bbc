"""ShareFetch (key 78), versions 1-2 (KIP-932, KIP-1206, KIP-1222).

A member of a share group is given records that nobody else has, until it acknowledges them or its
lock ends. The request may acknowledge what earlier ones were given, before anything else.

- sessions: broker/share/sessions/share_session_core.py; a closed connection closes its session and
  releases what its member holds here; every partition that is named joins the session, as long as
  it is not forgotten; with epoch -1 nothing is fetched;
- SHARE_SESSION_LIMIT_REACHED is answered after `max_wait_ms`, so that clients do not spin;
- `max_records` is rounded up to a record batch in mode 0 (batch_optimized), and exact in mode 1
  (record_limit, version 2); `batch_size` only splits the acquired ranges, at record batches' ends;
- `max_bytes` holds for everything behind the first batch, `min_bytes` are waited for;
- partitions without records, error or acknowledgement are left out of the answer; an error of one
  partition is answered at once;
- `is_renew_ack` (version 2) fetches nothing, and demands that max_wait_ms, min_bytes, max_bytes and
  max_records are 0 (INVALID_REQUEST);
- share.isolation.level read_committed: records up to the last stable offset, none of them aborted;
- everything is UNSUPPORTED_VERSION while not every broker of the cluster serves share groups;
- a topic that the client may not read is TOPIC_AUTHORIZATION_FAILED in each fetch of the session.

`records` has whole batches, of which the client is given only `acquired_records`. It is empty, not
null.

Known deviations: whether the member belongs to the group is not asked, as in Kafka. A share
partition whose coordinator cannot be reached is waited for, where Kafka answers an error at once.
With a quota on the client's bytes, what it is not sent is not acquired either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.api import Api, Reply, Request, Steps
from broker.handlers.share_acknowledge import is_long
from broker.handlers.share_answers import at_once, check_names, count_of
from broker.handlers.share_waiting import RECORD_LIMIT, ShareFetching
from broker.share.sessions.share_session_core import FINAL_EPOCH, INITIAL_EPOCH, Partition
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.share_groups import ShareFetchRequest, ShareFetchResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.handlers.share_answers import Leaders
    from broker.share.partition.share_partitions import SharePartitions
    from broker.share.sessions.share_session_core import ShareSession, ShareSessions
    from broker.unsent import UnsentAnswers
    from runtime.timers import Timer, Timers
    from runtime.turn import Turn

#: As of a Fetch: longer than any client's request timeout leaves sense in.
WAIT_MS_MAX = 300_000
PARTITIONS_MAX = 10_000
WAITING_PARTITIONS_MAX = 200_000
#: Of a session; more are looked at in slices.
PARTITIONS_AT_ONCE = 50
ShareFetchResult = ShareFetchResponse | Reply


class ShareFetchHandler:
    def __init__(
        self,
        sessions: ShareSessions,
        partitions: SharePartitions,
        leaders: Leaders,
        timers: Timers,
        turn: Turn,
        answers: UnsentAnswers,
        *,
        fetch_bytes_max: int,
        is_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """`fetch_bytes_max`: the broker's fetch.max.bytes, above any client's. `is_on`: whether
        share groups are served: the cluster's `share.version` allows it."""
        self.sessions = sessions
        self.partitions = partitions
        self.leaders = leaders
        self.timers = timers
        self.turn = turn
        self._answers = answers
        self.fetch_bytes_max = fetch_bytes_max
        self._is_on = is_on
        self.requests_count = 0
        self.bytes_out = 0
        self.waiting_partitions = 0

    def apis(self) -> list[Api]:
        return [Api(ApiKey.SHARE_FETCH, 1, 2, self.share_fetch)]

    def may_wait(self, partitions: int) -> bool:
        return self.waiting_partitions + partitions <= WAITING_PARTITIONS_MAX

    def connection_closed(self, connection_id: str) -> None:
        """Its sessions are over, and what their members hold here is free."""
        for session in self.sessions.connection_closed(connection_id):
            self.partitions.let_go(session, releases=True)

    def share_fetch(self, request: Request) -> ShareFetchResult | Steps[ShareFetchResult]:
        body: ShareFetchRequest = request.body
        self.requests_count += 1
        if not self._is_on():
            return ShareFetchResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION))
        body.max_wait_ms = min(body.max_wait_ms, WAIT_MS_MAX)
        try:
            group, member = check_names(body)
            _check(body, request.version)
        except KafkaError as error:
            return _refusal(error)
        session = self.sessions.find(group, member)
        is_small = session is None or len(session.partitions) <= PARTITIONS_AT_ONCE
        forgotten = count_of(body.forgotten_topics_data)
        steps = self._steps(request, group, member)
        if is_small and forgotten <= PARTITIONS_AT_ONCE and not is_long(body):
            return at_once(self.turn, steps)
        return steps

    def _steps(self, request: Request, group: str, member: str) -> Steps[ShareFetchResult]:
        body: ShareFetchRequest = request.body
        epoch = body.share_session_epoch
        session = None
        try:
            session = self._session(request, group, member)
            if epoch != FINAL_EPOCH:
                yield from self._change(session, body)
        except KafkaError as error:
            if session is not None and epoch == INITIAL_EPOCH:
                self.sessions.close(session)
            refusal = _refusal(error)
            if error.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED and body.max_wait_ms > 0:
                return _Late(refusal, self.timers, body.max_wait_ms)
            return refusal
        if session.is_closed:  # between two steps
            return _refusal(KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND))
        allowed = None if request.account is None else request.account.fetch_bytes_max()
        most = self._answers.answer_bytes_max
        limit = most if allowed is None else min(allowed, most)
        if limit < body.max_bytes:
            body.max_bytes = limit
            body.min_bytes = min(body.min_bytes, limit)
        reply = ShareFetching(self, request, session)
        yield from reply.begin(request, body.topics)
        reply.all_begun(closes=epoch == FINAL_EPOCH)
        if epoch == FINAL_EPOCH or body.is_renew_ack:
            reply.no_records()
        else:
            yield from reply.look_at_all()
        yield from reply.begin_to_wait()
        return reply

    def _session(self, request: Request, group: str, member: str) -> ShareSession:
        """KafkaError as `ShareSessions.fetch`."""
        body: ShareFetchRequest = request.body
        epoch = body.share_session_epoch
        acknowledges = epoch == INITIAL_EPOCH and any(
            each.acknowledgement_batches for topic in body.topics for each in topic.partitions
        )
        before = self.sessions.find(group, member)
        if before is not None and epoch == INITIAL_EPOCH and not acknowledges:
            self.sessions.close(before)
            self.partitions.let_go(before, releases=False)
        connection = request.connection.id
        return self.sessions.fetch(group, member, epoch, connection, acknowledges=acknowledges)

    def _change(self, session: ShareSession, body: ShareFetchRequest) -> Steps[None]:
        added = [
            Partition(topic.topic_id, each.partition_index)
            for topic in body.topics
            for each in topic.partitions
        ]
        forgotten = [
            Partition(topic.topic_id, number)
            for topic in body.forgotten_topics_data
            for number in topic.partitions
        ]
        yield len(added) + len(forgotten)
        yield from self.sessions.change(session, added, forgotten)


def _check(body: ShareFetchRequest, version: int) -> None:
    """KafkaError INVALID_REQUEST."""
    for topics in (body.topics, body.forgotten_topics_data):
        if len(topics) > PARTITIONS_MAX or count_of(topics) > PARTITIONS_MAX:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
    if version < 2:
        return
    if body.share_acquire_mode not in (0, RECORD_LIMIT):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "there is no such acquire mode")
    limits = (body.max_wait_ms, body.min_bytes, body.max_bytes, body.max_records)
    if body.is_renew_ack and any(limits):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "who renews fetches nothing")


def _refusal(error: KafkaError) -> ShareFetchResponse:
    return ShareFetchResponse(error_code=int(error.code), error_message=error.message)


class _Late(Reply):
    """An answer that its client is to wait for."""

    __slots__ = ("_timer",)

    def __init__(self, response: ShareFetchResponse, timers: Timers, wait_ms: int) -> None:
        super().__init__()
        self._timer: Timer = timers.after(wait_ms / 1000, lambda: self.resolve(response))
        self.on_abandoned = self._timer.cancel
