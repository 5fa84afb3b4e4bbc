"""Fetch (key 1), versions 4-18.

What is in memory (or in the page cache) is answered in the same turn, as views that go out with one
`sendmsg`; a fetch that must touch the disk, or of very many partitions, becomes a task; one that
finds too little waits, without a task, for its partitions' high watermarks or its time. Either ends
with its connection.

- whole batches, from the one that contains the offset on; at least one, however large;
- `max_bytes` and `partition_max_bytes` hold for everything behind the first batch, and so does
  ANSWER_BYTES_MAX, whatever a client allows, and a limit of entries, as a tiny one costs as much as
  a large one: what it does not get now it asks for next;
- `min_bytes` is compared with what is there, as in Kafka's DelayedFetch: of a partition whose
  batches did not all fit, its `partition_max_bytes`, for whole batches may fall short of that. So
  an answer of as many entries as one may have is given at once though it has less (as Kafka's that
  ends with a segment);
- sessions: KIP-227 (broker/fetch_sessions.py); topic ids from version 13 on;
- leader epochs are checked (FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH), divergence is told (v12+);
- a topic that the client may not read is TOPIC_AUTHORIZATION_FAILED, in each fetch of the session;
  a change of an ACL counts from the next fetch on;
- `records` is empty, never null;
- read_committed (isolation level 1): batches up to the last stable offset, those of aborted
  transactions among them, and the list of these, sorted by first offset (franz-go passed aborted
  records on of a list that was not); between last stable offset and high watermark is nothing, and
  that is no error. `min_bytes` counts up to there. A list that is not in memory is read as cold
  records are. In read_uncommitted (0) the list is null; the last stable offset is told in both.

A fetch that waits holds no records: what comes is counted (broker/handlers/fetch_watch.py), and all
is read once, when its reply is the next of its connection and there is room for it: what a client
that does not read has asked for is not collected.

What waits holds memory: `max_wait_ms` counts up to WAIT_MS_MAX, a request may name PARTITIONS_MAX
partitions (else INVALID_REQUEST), and beyond WAITING_PARTITIONS_MAX of all that wait an answer with
too little is given at once.

Known deviations: only consumers are served: a `replica_id` or replica state of a broker changes
nothing. No preferred read replica is ever named.
"""

from __future__ import annotations

import logging
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import trio

from broker.api import Abandonable, Api, Reply, Request, Steps, in_slices
from broker.authorization import AclOperation, ResourceType
from broker.handlers.fetch_cold import cold_bytes_max, read_cold
from broker.handlers.fetch_look import Collected, fill, freed, is_committed, listed
from broker.handlers.fetch_room import READ_BYTES_SHIFT, FetchRoom
from broker.handlers.fetch_wait import WaitingFetch, Wakes
from broker.handlers.fetch_watch import PARTITION_UNITS, Watching
from broker.log.partition import State
from broker.log.read.partition_reader import ENTRY_UNITS, ReadResult
from broker.log.settings import READ_ENTRIES_MAX
from wire.kafka.api_keys import ApiKey
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.api import Account
    from broker.fetch_sessions import FetchContext, FetchSessions, Wanted
    from broker.log.manager import LogManager
    from broker.log.partition import PartitionLog
    from broker.rights import Rights
    from broker.unsent import UnsentAnswers
    from runtime.timers import Timers
    from runtime.turn import Turn

logger = logging.getLogger(__name__)

EMPTY = b""
#: Longer than any client's request timeout leaves sense in.
WAIT_MS_MAX = 300_000
#: Some 400 bytes each, for as long as a fetch waits or its session lasts.
PARTITIONS_MAX = 10_000
WAITING_PARTITIONS_MAX = 200_000
#: More are looked at in slices, by a task: so many, each with a batch, are 4 ms.
PARTITIONS_AT_ONCE = 100
#: Of these, a look that costs more is gone on with by a task, others in between; in units of
#: `Steps`. Where nothing is found it never costs so much.
AT_ONCE_UNITS = 2_500
#: A read that finds something, beside its bytes and its entries.
READ_UNITS = 25
#: Entries that a look reads, beside `READ_ENTRIES_MAX`, for each of its partitions: a batch may be
#: an entry of 69 bytes, and a look at a hundred partitions is made in one turn. What is left comes
#: with the next fetch.
ENTRIES_EACH = 4
#: An answer takes no more once so many partitions had a batch that was read and did not fit: it is
#: nearly full then, and each of thousands would cost up to a megabyte more. Who asks in the same
#: order each time reads nothing of such partitions from Kafka either.
MISFITS_MAX = 4
MISFIT_UNITS = 200
#: Who is given no more goes ahead of those that wait to be read, as short answers go ahead of long
#: ones when they are sent.
SHORT_BYTES, SHORT_ENTRIES = 48 << 10, 25
FetchResult = FetchResponse | Reply | Abandonable
T = TypeVar("T")


class FetchHandler:
    def __init__(
        self,
        logs: LogManager,
        sessions: FetchSessions,
        timers: Timers,
        turn: Turn,
        answers: UnsentAnswers,
        *,
        fetch_bytes_max: int,
    ) -> None:
        """`turn` is told what fetches cost. `fetch_bytes_max`: the broker's fetch.max.bytes, above
        any client's."""
        self._logs = logs
        self._sessions = sessions
        self.timers = timers
        self.turn = turn
        self._answers = answers
        self.fetch_bytes_max = fetch_bytes_max
        self.requests_count = 0
        self.bytes_out = 0
        self.waiting_count = 0
        self.waiting_partitions = 0
        self._is_freeing = False
        self.wakes = Wakes(turn)
        self.room = FetchRoom(turn)

    def apis(self) -> list[Api]:
        return [Api(ApiKey.FETCH, 4, 18, self.fetch)]

    def fetch(self, request: Request) -> FetchResult | Steps[FetchResult]:
        body: FetchRequest = request.body
        self.requests_count += 1
        body.max_wait_ms = min(body.max_wait_ms, WAIT_MS_MAX)
        body.max_bytes = min(body.max_bytes, self._answers.answer_bytes_max)
        # As Kafka does: more is never sent. One byte still means that there is something.
        body.min_bytes = min(body.min_bytes, max(body.max_bytes, 1), self.fetch_bytes_max)
        named = _count_of(body.topics)
        if body.forgotten_topics_data:
            named = max(named, _count_of(body.forgotten_topics_data))
        if named > PARTITIONS_MAX:
            return FetchResponse(error_code=int(ErrorCode.INVALID_REQUEST))
        if named > PARTITIONS_AT_ONCE:
            return self._fetch_many(request)
        try:
            context = self._sessions.context(body, request.version, request.connection.principal)
        except KafkaError as error:
            return FetchResponse(error_code=int(error.code))
        if request.account is not None:
            self._count_for(context, request.account, body)
        if request.rights is not None:
            asking = asked(context, request.rights, body)
            if len(context.wanted) > PARTITIONS_AT_ONCE:
                return self._ask_and_fetch(asking, body, context)
            self.at_once(asking)
        return self._fetch(body, context)

    @staticmethod
    def _count_for(context: FetchContext, account: Account, body: FetchRequest) -> None:
        """The client has a quota: no answer is larger than fits in its windows."""
        context.account = account
        limit = account.fetch_bytes_max()
        if limit is not None and limit < body.max_bytes:
            body.max_bytes = limit
            body.min_bytes = min(body.min_bytes, limit)

    def _fetch_many(self, request: Request) -> Steps[FetchResult]:
        """One that names many partitions: its session is made or changed in slices."""
        try:
            context = yield from self._sessions.steps(
                request.body, request.version, request.connection.principal
            )
        except KafkaError as error:
            return FetchResponse(error_code=int(error.code))
        if request.rights is not None:
            yield from asked(context, request.rights, request.body)
        if request.account is not None:
            self._count_for(context, request.account, request.body)
        return self._fetch(request.body, context)

    def _ask_and_fetch(
        self, asking: Steps[None], body: FetchRequest, context: FetchContext
    ) -> Steps[FetchResult]:
        yield from asking
        return self._fetch(body, context)

    def _fetch(self, body: FetchRequest, context: FetchContext) -> FetchResult:
        if self._sessions.closed and not self._is_freeing:
            self._is_freeing = True
            self.turn.later(self._free_some)
        count = len(context.wanted)
        room = self.room
        # Who waits for much is looked at now: it would hold more as a task than what it finds.
        is_busy = room.is_busy if body.min_bytes <= 1 else room.is_full
        if count > PARTITIONS_AT_ONCE or is_busy:
            return Abandonable(partial(self._fetch_in_task, body, context, None, None))
        collected = Collected.nothing()
        collecting = self.collect(body, context, collected)
        if not self._begin(collecting, collected, count):
            return Abandonable(partial(self._fetch_in_task, body, context, None, collecting))
        if collected.cold:
            # Nothing is read for a task that may have to wait for its turn: a burst has many.
            is_kept = not collected.size_bytes and not _is_loading(collected)
            known = collected if is_kept else None
            return Abandonable(partial(self._fetch_in_task, body, context, known, None))
        if collected.size_bytes > SHORT_BYTES:
            room.read_at_once(collected.size_bytes)
        if self.is_enough(body, collected) or not self._may_wait(count):
            return self.at_once(self.response(context, collected))
        return WaitingFetch(self, body, context, collected)

    def _free_some(self) -> None:
        """What closed sessions remembered, some in each turn."""
        self._sessions.free_some()
        self._is_freeing = bool(self._sessions.closed)
        if self._is_freeing:
            self.turn.later(self._free_some)

    def at_once(self, steps: Steps[T]) -> T:
        """All steps, charged to the turn: a burst of them ends."""
        units = 0
        try:
            while True:
                units += next(steps)
        except StopIteration as end:
            self.turn.spent_units += units
            result: T = end.value
            return result

    def _begin(self, collecting: Steps[Collected], collected: Collected, count: int) -> bool:
        """Collects as much as may be done in one turn, charged to it; whether that is all."""
        units = 0
        for step in collecting:
            units += step
            if units > AT_ONCE_UNITS and len(collected.data) < count:
                break
        self.turn.spent_units += units
        return len(collected.data) == count

    def _may_wait(self, partitions: int) -> bool:
        return self.waiting_partitions + partitions <= WAITING_PARTITIONS_MAX

    # -- reading -------------------------------------------------------------------------------

    def collect_now(self, body: FetchRequest, context: FetchContext) -> Collected | None:
        """All that needs no waiting; None if it is long, and long ones are not to be made now."""
        if not self.turn.is_behind:
            return self.at_once(self.collect(body, context))
        collected = self.at_once(self.collect(body, context, bytes_max=SHORT_BYTES))
        return None if collected.is_cut else collected

    def collect(
        self,
        body: FetchRequest,
        context: FetchContext,
        collected: Collected | None = None,
        bytes_max: int | None = None,
    ) -> Steps[Collected]:
        """Reads what needs no waiting, in the session's order. `collected`: has nothing yet, and
        is what is given. With `bytes_max` not one batch beyond so many bytes, and not many
        entries: what `is_cut` then is no answer."""
        if collected is None:
            collected = Collected.nothing()
        committed = is_committed(body)
        limit = min(body.max_bytes, self.fetch_bytes_max)
        entries_left = READ_ENTRIES_MAX + ENTRIES_EACH * len(context.wanted)
        if bytes_max is not None:
            limit, entries_left = min(limit, bytes_max), SHORT_ENTRIES
        misfits = 0
        for wanted in context.wanted:
            data = _unread(wanted)
            collected.data.append((wanted, data))
            yield PARTITION_UNITS
            offset = wanted.request.fetch_offset
            try:
                log = self.log_of(wanted)
                if log.state is State.LOADING:
                    # What is said if it takes longer than the client wants to wait.
                    data.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    collected.cold.append((wanted, data, log))
                    continue
                if not self._check_epochs(log, wanted, data):
                    collected.failed = True
                    continue
                end_offset = log.readable_end(committed=committed)
                left = limit - collected.size_bytes
                is_full = collected.size_bytes > 0 and (
                    left <= 0 or misfits >= MISFITS_MAX or entries_left <= 0
                )
                got: ReadResult | None = ReadResult([], 0, offset)
                if is_full:
                    log.check_readable(offset)
                    data.aborted_transactions = [] if committed else None
                else:
                    first = bytes_max is None and not collected.size_bytes
                    limits = left, max(entries_left, 1)
                    got = _read_hot(log, wanted, data, limits, first, committed=committed)
            except KafkaError as error:
                data.error_code = int(error.code)
                collected.failed = True
                continue
            if got is None:
                collected.cold.append((wanted, data, log))
            else:
                collected.count(wanted, end_offset, got)
                if collected.is_cut and bytes_max is not None:
                    break
            fill(data, log, got)
            if data.aborted_transactions:
                yield len(data.aborted_transactions)
            if got is not None:
                entries_left -= got.entries_read
                units = got.entries_read * ENTRY_UNITS
                if got.size_bytes:
                    yield READ_UNITS + units + (got.size_bytes >> READ_BYTES_SHIFT)
                elif not is_full and got.next_offset < end_offset:
                    misfits += 1
                    yield MISFIT_UNITS + units
        return collected

    def log_of(self, wanted: Wanted) -> PartitionLog:
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
                fill(data, log, None)
                return False
        return True

    async def _fetch_in_task(
        self,
        body: FetchRequest,
        context: FetchContext,
        collected: Collected | None,
        collecting: Steps[Collected] | None,
        abandonable: Abandonable,
    ) -> FetchResponse:
        """`collected`: a look that was just made, and has no records. `collecting`: one that has
        begun, and was too much for one turn.

        Waits for partitions that are being taken over, and reads from those that are not in
        memory. The answer is what there is then, be it an error: a partition that cannot be read
        must not be tried for ever."""
        deadline = trio.current_time() + body.max_wait_ms / 1000
        watching: Watching | None = None
        has_turn = False
        if collecting is not None:
            has_turn = True
            if abandonable.has_turn:
                collected = await in_slices(collecting)
            else:
                # What it has read is let go, and read again when it can be sent.
                collecting.close()
                await abandonable.turn()
        try:
            while True:
                if watching is not None:
                    watching.begin()
                if collected is None:
                    collected = await self._collect_in_task(body, context, abandonable)
                is_late = trio.current_time() >= deadline
                log = self._must_load(body, collected)
                if log is not None and not is_late:
                    collected = await in_slices(collected.let_go())
                    with trio.move_on_at(deadline):
                        await log.wait_loaded()
                    continue
                if not is_late and not collected.cold and not self.is_enough(body, collected):
                    if watching is None and self._may_wait(len(context.wanted)):
                        watching = Watching(self, body, len(context.wanted))
                    if watching is not None:
                        await in_slices(watching.measured(collected))
                        collected = await in_slices(collected.let_go())
                        with trio.move_on_at(deadline):
                            await watching.moved.wait()
                        has_turn = True
                        if not abandonable.has_turn:
                            await abandonable.turn()
                        continue
                if not has_turn:
                    has_turn = True
                    if not abandonable.has_turn:
                        # What is read for those before it is all that is held for this client.
                        collected = await in_slices(collected.let_go())
                        await abandonable.turn()
                        continue
                break
            response = await self._respond(body, context, collected, is_loading=log is not None)
        finally:
            if watching is not None:
                await watching.end()
        if context.session is None:
            await in_slices(freed(context.wanted))
        return response

    async def _respond(
        self, body: FetchRequest, context: FetchContext, collected: Collected, *, is_loading: bool
    ) -> FetchResponse:
        """Reads what is cold first, if there is too little without."""
        if is_loading or not collected.cold or self._is_enough_now(body, collected):
            response = await in_slices(self.response(context, collected))
        else:
            bytes_max = min(body.max_bytes, self.fetch_bytes_max)
            async with self.room.for_cold(cold_bytes_max(collected, bytes_max)):
                await read_cold(collected, bytes_max, committed=is_committed(body))
                response = await in_slices(self.response(context, collected))
        await in_slices(collected.let_go())
        return response

    async def _collect_in_task(
        self, body: FetchRequest, context: FetchContext, abandonable: Abandonable
    ) -> Collected:
        """Once there is room for it, if it is long."""
        if self.room.is_busy:
            if body.min_bytes <= 1 and not abandonable.has_turn:
                # Or all of a pipeline are read ahead of others, and what is found cannot be sent.
                await abandonable.turn()
            collected = await in_slices(self.collect(body, context, bytes_max=SHORT_BYTES))
            if not collected.is_cut and not collected.cold:
                return collected
            await in_slices(collected.let_go())
            await self.room.enter()
        else:
            self.room.enter_at_once()
        collected = await in_slices(self.collect(body, context))
        self.room.read(collected.size_bytes, sum(got.entries_read for got in collected.reads))
        return collected

    @staticmethod
    def _is_enough_now(body: FetchRequest, collected: Collected) -> bool:
        return collected.size_bytes > 0 and collected.available_bytes >= body.min_bytes

    def _must_load(self, body: FetchRequest, collected: Collected) -> PartitionLog | None:
        """A partition that is being taken over, and without which there is too little."""
        if not collected.cold or self._is_enough_now(body, collected):
            return None
        log = collected.cold[0][2]
        return log if log.state is State.LOADING else None

    # -- answering -----------------------------------------------------------------------------

    @staticmethod
    def is_enough(body: FetchRequest, collected: Collected) -> bool:
        return (
            collected.size_bytes >= body.min_bytes
            # An answer with nothing in it would come again at once.
            or (collected.available_bytes >= body.min_bytes and collected.size_bytes > 0)
            or body.max_wait_ms <= 0
            or collected.failed
            or not collected.data
        )

    def response(self, context: FetchContext, collected: Collected) -> Steps[FetchResponse]:
        response = FetchResponse(session_id=context.session_id)
        if context.account is not None and context.account.fetched(collected.size_bytes, response):
            response.session_id = self._sessions.throttled_id(context)
            return response
        topic: FetchableTopicResponse | None = None
        last: object = None
        sent = []
        for wanted, data in chain(collected.data, map(_refused, context.refused)):
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
        while len(sent) > PARTITIONS_AT_ONCE:
            context.rotate(sent[:PARTITIONS_AT_ONCE])
            del sent[:PARTITIONS_AT_ONCE]
            yield PARTITIONS_AT_ONCE
        context.rotate(sent)
        return response


def asked(context: FetchContext, rights: Rights, body: FetchRequest) -> Steps[None]:
    """Takes what the client may not read out of what is wanted. Who says that it is a broker has
    to be one, too: else it reads nothing."""
    state = body.replica_state
    replica_id = body.replica_id if state is None else max(body.replica_id, state.replica_id)
    yield 1
    if replica_id >= 0 and not rights.allows_cluster(AclOperation.CLUSTER_ACTION):
        context.wanted, context.refused = [], context.wanted
        return
    verdicts = context.verdicts(rights.state)
    readable: list[Wanted] = []
    for wanted in context.wanted:
        topic = wanted.topic
        may_read = verdicts.get(topic)
        if may_read is None:
            yield 5
            name = topic if isinstance(topic, str) else rights.topic_name(topic)
            # One that is not there is for the look-up to tell.
            may_read = name is None or rights.allows(AclOperation.READ, ResourceType.TOPIC, name)
            if name is not None:
                verdicts[topic] = may_read
        else:
            yield 1
        (readable if may_read else context.refused).append(wanted)
    context.wanted = readable


def _read_hot(
    log: PartitionLog,
    wanted: Wanted,
    data: PartitionData,
    limits: tuple[int, int],
    at_least_one: bool,
    *,
    committed: bool,
) -> ReadResult | None:
    """What needs no waiting of a partition, and puts what was aborted into `data`; None if either
    has to be waited for. `limits`: of bytes, and of entries."""
    offset = wanted.request.fetch_offset
    bytes_max, entries_max = limits
    got = log.reader.read_nowait(
        offset,
        min(wanted.request.partition_max_bytes, bytes_max),
        at_least_one=at_least_one,
        committed=committed,
        entries_max=min(entries_max, READ_ENTRIES_MAX),
    )
    if committed and got is not None:
        aborted = log.transactions.aborted.find_nowait(offset, got.next_offset)
        if aborted is None:
            return None
        data.aborted_transactions = listed(aborted)
    return got


def _unread(wanted: Wanted) -> PartitionData:
    return PartitionData(
        partition_index=wanted.request.partition,
        high_watermark=-1,
        aborted_transactions=None,
        records=EMPTY,
    )


def _refused(wanted: Wanted) -> tuple[Wanted, PartitionData]:
    data = _unread(wanted)
    data.error_code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    data.aborted_transactions = []  # as Kafka, whatever is read
    return wanted, data


def _is_loading(collected: Collected) -> bool:
    """Whether some of what is cold was being taken over, and was answered so."""
    return any(data.error_code for _, data, _ in collected.cold)


def _count_of(topics: Sequence[FetchTopic | ForgottenTopic]) -> int:
    """Topics or partitions, whichever are more."""
    many = len(topics)
    if many > PARTITIONS_MAX:
        return many
    count = 0
    for topic in topics:
        count += len(topic.partitions)
    return count if count > many else many


def check_leader_epoch(log: PartitionLog, epoch: int) -> None:
    """KafkaError if the client names another leader epoch than ours (KIP-320); -1 is no claim."""
    if epoch < 0 or epoch == log.leader_epoch:
        return
    if epoch < log.leader_epoch:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
    raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
