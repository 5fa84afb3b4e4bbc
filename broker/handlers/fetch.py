"""Fetch (key 1), versions 4-18.

What is in memory (or in the page cache) is answered in the same turn, as views that go out with one
`sendmsg`; a fetch that must touch the disk, or of very many partitions, becomes a task; one that
finds too little waits, without a task, for its partitions' high watermarks or its time. Either ends
with its connection.

- whole batches, from the one that contains the offset on; at least one, however large;
- `max_bytes` and `partition_max_bytes` hold for everything behind the first batch;
- `min_bytes` is compared with what is there, as in Kafka's DelayedFetch: of a partition whose
  batches did not all fit, its `partition_max_bytes`, for whole batches may fall short of that;
- sessions: KIP-227 (broker/fetch_sessions.py); topic ids from version 13 on;
- leader epochs are checked (FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH), divergence is told (v12+);
- `records` is empty, never null; the last stable offset is the high watermark.

What waits holds memory: `max_wait_ms` counts up to WAIT_MS_MAX, a request may name PARTITIONS_MAX
partitions (else INVALID_REQUEST), and beyond WAITING_PARTITIONS_MAX of all that wait an answer with
too little is given at once.

Known deviations: only consumers are served: a `replica_id` or replica state of a broker changes
nothing. No preferred read replica is ever named.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import trio

from broker.api import Abandonable, Api, Reply, Request, Steps, all_steps, in_slices
from broker.log.partition import State
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.fetch_sessions import FetchContext, FetchSessions, Wanted
    from broker.log.manager import LogManager
    from broker.log.partition import PartitionLog, ReadResult
    from runtime.timers import Timer, Timers

logger = logging.getLogger(__name__)

EMPTY = b""
#: Longer than any client's request timeout leaves sense in.
WAIT_MS_MAX = 300_000
#: Some 400 bytes each, for as long as a fetch waits or its session lasts.
PARTITIONS_MAX = 10_000
WAITING_PARTITIONS_MAX = 200_000
#: More are looked at in slices, by a task.
PARTITIONS_AT_ONCE = 200
#: What one partition costs, in units of `Steps`.
PARTITION_UNITS = 10


@dataclass(slots=True)
class _Collected:
    """One look at all partitions of a fetch."""

    data: list[tuple[Wanted, PartitionData]]
    size_bytes: int
    #: What is there to be read, each partition up to its limit; not less than `size_bytes`.
    available_bytes: int
    failed: bool  # some partition answered with an error: do not wait
    cold: list[tuple[Wanted, PartitionData, PartitionLog]]  # cannot be read without waiting


class FetchHandler:
    def __init__(
        self, logs: LogManager, sessions: FetchSessions, timers: Timers, *, fetch_bytes_max: int
    ) -> None:
        """`fetch_bytes_max`: the broker's fetch.max.bytes, above any client's."""
        self._logs = logs
        self._sessions = sessions
        self._timers = timers
        self._fetch_bytes_max = fetch_bytes_max
        self.requests_count = 0
        self.bytes_out = 0
        self.waiting_count = 0
        self.waiting_partitions = 0

    def apis(self) -> list[Api]:
        return [Api(ApiKey.FETCH, 4, 18, self.fetch)]

    def fetch(self, request: Request) -> FetchResponse | Reply | Abandonable:
        body: FetchRequest = request.body
        self.requests_count += 1
        body.max_wait_ms = min(body.max_wait_ms, WAIT_MS_MAX)
        if sum(len(topic.partitions) for topic in body.topics) > PARTITIONS_MAX:
            return FetchResponse(error_code=int(ErrorCode.INVALID_REQUEST))
        try:
            context = self._sessions.context(body, request.version)
        except KafkaError as error:
            return FetchResponse(error_code=int(error.code))
        count = len(context.wanted)
        if count > PARTITIONS_AT_ONCE:
            return Abandonable(self._fetch_in_task(body, context))
        collected = all_steps(self._collect(body, context))
        if collected.cold:
            return Abandonable(self._fetch_in_task(body, context))
        if self._is_enough(body, collected) or not self._may_wait(count):
            return all_steps(self._response(context, collected))
        return _WaitingFetch(self, body, context)

    def _may_wait(self, partitions: int) -> bool:
        return self.waiting_partitions + partitions <= WAITING_PARTITIONS_MAX

    # -- reading -------------------------------------------------------------------------------

    def _collect(self, body: FetchRequest, context: FetchContext) -> Steps[_Collected]:
        """Reads what needs no waiting, in the session's order."""
        collected = _Collected([], 0, 0, False, [])
        limit = min(body.max_bytes, self._fetch_bytes_max)
        for wanted in context.wanted:
            data = PartitionData(
                partition_index=wanted.request.partition, high_watermark=-1, records=EMPTY
            )
            collected.data.append((wanted, data))
            yield PARTITION_UNITS
            try:
                log = self._log_of(wanted)
                if log.state is State.LOADING:
                    # What is said if it takes longer than the client wants to wait.
                    data.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    collected.cold.append((wanted, data, log))
                    continue
                if not self._check_epochs(log, wanted, data):
                    collected.failed = True
                    continue
                got = log.read_nowait(
                    wanted.request.fetch_offset,
                    min(wanted.request.partition_max_bytes, limit - collected.size_bytes),
                    at_least_one=not collected.size_bytes,
                )
            except KafkaError as error:
                data.error_code = int(error.code)
                collected.failed = True
                continue
            if got is None:
                collected.cold.append((wanted, data, log))
            else:
                self._count(collected, wanted, log, got)
            self._fill(data, log, got)
        return collected

    def _log_of(self, wanted: Wanted) -> PartitionLog:
        partition = wanted.request.partition
        if isinstance(wanted.topic, str):
            return self._logs.get(wanted.topic, partition)
        return self._logs.get_by_id(wanted.topic, partition)

    def _check_epochs(self, log: PartitionLog, wanted: Wanted, data: PartitionData) -> bool:
        """Whether to read; KafkaError if the client knows another epoch than ours."""
        check_leader_epoch(log, wanted.request.current_leader_epoch)
        last_epoch = wanted.request.last_fetched_epoch
        if last_epoch >= 0:
            epoch, end = log.end_offset_for_epoch(last_epoch)
            if end < 0:
                raise KafkaError(
                    ErrorCode.OFFSET_OUT_OF_RANGE, f"no end is known of leader epoch {last_epoch}"
                )
            if epoch < last_epoch or end < wanted.request.fetch_offset:
                data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end)
                self._fill(data, log, None)
                return False
        return True

    @staticmethod
    def _count(collected: _Collected, wanted: Wanted, log: PartitionLog, got: ReadResult) -> None:
        size = got.size_bytes
        collected.size_bytes += size
        if got.next_offset < log.high_watermark:  # there is more that did not fit
            size = max(size, wanted.request.partition_max_bytes)
        collected.available_bytes += size

    @staticmethod
    def _fill(data: PartitionData, log: PartitionLog, got: ReadResult | None) -> None:
        data.high_watermark = data.last_stable_offset = log.high_watermark
        data.log_start_offset = log.log_start_offset
        if got is not None and got.parts:
            data.records = got.parts

    async def _fetch_in_task(self, body: FetchRequest, context: FetchContext) -> FetchResponse:
        """Waits for partitions that are being taken over, and reads from the first one that is not
        in memory. The answer is what there is then, be it an error: a partition that cannot be read
        must not be tried for ever."""
        deadline = trio.current_time() + body.max_wait_ms / 1000
        watching: _Watching | None = None
        try:
            while True:
                moved = watching.next_move() if watching is not None else None
                collected = await in_slices(self._collect(body, context))
                if collected.cold and not (
                    collected.size_bytes and collected.available_bytes >= body.min_bytes
                ):
                    log = collected.cold[0][2]
                    if log.state is not State.LOADING:
                        await self._read_cold(body, collected)
                        break
                    with trio.move_on_at(deadline) as scope:
                        await log.wait_loaded()
                    if scope.cancelled_caught:
                        break
                    continue
                if self._is_enough(body, collected) or collected.cold:
                    break
                if watching is None:
                    if not self._may_wait(len(context.wanted)):
                        break
                    watching = _Watching(self, context)
                    continue  # what came before it watched is not missed
                assert moved is not None
                with trio.move_on_at(deadline) as scope:
                    await moved.wait()
                if scope.cancelled_caught:
                    break
        finally:
            if watching is not None:
                watching.end()
        return await in_slices(self._response(context, collected))

    async def _read_cold(self, body: FetchRequest, collected: _Collected) -> None:
        wanted, data, log = collected.cold[0]
        limit = min(body.max_bytes, self._fetch_bytes_max) - collected.size_bytes
        try:
            got = await log.read(
                wanted.request.fetch_offset, min(wanted.request.partition_max_bytes, limit)
            )
        except KafkaError as error:
            data.error_code = int(error.code)
            collected.failed = True
            return
        self._count(collected, wanted, log, got)
        self._fill(data, log, got)

    # -- answering -----------------------------------------------------------------------------

    @staticmethod
    def _is_enough(body: FetchRequest, collected: _Collected) -> bool:
        return (
            collected.size_bytes >= body.min_bytes
            # An answer with nothing in it would come again at once.
            or (collected.available_bytes >= body.min_bytes and collected.size_bytes > 0)
            or body.max_wait_ms <= 0
            or collected.failed
            or not collected.data
        )

    def _response(self, context: FetchContext, collected: _Collected) -> Steps[FetchResponse]:
        response = FetchResponse(session_id=context.session_id)
        topic: FetchableTopicResponse | None = None
        last: object = None
        sent = []
        for wanted, data in collected.data:
            yield 2
            if not context.has_news(wanted, data):
                continue
            if topic is None or wanted.topic != last:
                last = wanted.topic
                topic = FetchableTopicResponse()
                if isinstance(wanted.topic, str):
                    topic.topic = wanted.topic
                else:
                    topic.topic_id = wanted.topic
                response.responses.append(topic)
            topic.partitions.append(data)
            if data.records:
                sent.append(wanted)
        self.bytes_out += collected.size_bytes
        context.rotate(sent)
        return response


class _Watching:
    """A task that waits until some of its partitions moved."""

    def __init__(self, handler: FetchHandler, context: FetchContext) -> None:
        self._handler = handler
        self._event = trio.Event()
        self._partitions = len(context.wanted)
        self._logs = _watch_all(handler, context, self._moved)
        handler.waiting_count += 1
        handler.waiting_partitions += self._partitions

    def _moved(self) -> None:
        self._event.set()

    def next_move(self) -> trio.Event:
        """Set at the next move from now on."""
        if self._event.is_set():
            self._event = trio.Event()
        return self._event

    def end(self) -> None:
        for log in self._logs:
            log.unwatch(self._moved)
        self._handler.waiting_count -= 1
        self._handler.waiting_partitions -= self._partitions


def _watch_all(
    handler: FetchHandler, context: FetchContext, look: Callable[[], None]
) -> list[PartitionLog]:
    """`look` is called when one of them moves; those that are watched now."""
    logs = []
    for wanted in context.wanted:
        try:
            log = handler._log_of(wanted)
        except KafkaError:
            continue
        log.watch(look)
        logs.append(log)
    return logs


class _WaitingFetch(Reply):
    """A fetch that found less than min_bytes: waits for data or for max_wait_ms."""

    __slots__ = ("_body", "_context", "_handler", "_logs", "_timer")

    def __init__(self, handler: FetchHandler, body: FetchRequest, context: FetchContext) -> None:
        super().__init__()
        self._handler = handler
        self._body = body
        self._context = context
        self._timer: Timer = handler._timers.after(
            body.max_wait_ms / 1000, partial(self._look, True)
        )
        self.on_abandoned = self._leave
        handler.waiting_count += 1
        handler.waiting_partitions += len(context.wanted)
        self._logs = _watch_all(handler, context, self._look)

    def _look(self, timed_out: bool = False) -> None:
        handler = self._handler
        collected = all_steps(handler._collect(self._body, self._context))
        if timed_out or handler._is_enough(self._body, collected) or collected.cold:
            self._leave()
            self.resolve(all_steps(handler._response(self._context, collected)))

    def _leave(self) -> None:
        self._timer.cancel()
        for log in self._logs:
            log.unwatch(self._look)
        self._logs.clear()
        self._handler.waiting_count -= 1
        self._handler.waiting_partitions -= len(self._context.wanted)


def check_leader_epoch(log: PartitionLog, epoch: int) -> None:
    """KafkaError if the client names another leader epoch than ours (KIP-320); -1 is no claim."""
    if epoch < 0 or epoch == log.leader_epoch:
        return
    if epoch < log.leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
    raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
