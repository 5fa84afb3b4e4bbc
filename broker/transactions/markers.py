"""Markers on their way out: to the leader of each partition, as it is known now.

All markers of one turn for one broker travel in one WriteTxnMarkers (version 2, which tells the
transaction's version, KIP-1228); those for partitions of this broker are a plain call. A partition
that is gone, with its topic or because this was made anew with fewer partitions, has nothing to
mark. It counts as gone when the catalog does not have it after it has caught up with metadata: a
coordinator that has just taken over may not have heard of a topic that is new, and would leave its
transaction open for ever (kop#1386 is the opposite: a deleted topic was tried for ever).

Who is to be told again waits: 100 ms first, doubling to 1 s, and less if an assignment changes. A
leader that is not known, or not alive, is looked for in the same way.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import trio

from metadata.store import MetadataError
from runtime.logs import kv
from runtime.slices import Slices
from runtime.spread import Spread
from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode
from wire.kafka.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from broker.cluster.peers import Endpoint
    from broker.coordinator.timers import CoordinatorTimers
    from broker.transactions.ports import OtherBrokers, OwnPartitions, Topics
    from broker.transactions.types import Markers, TopicPartition
    from runtime.turn import Turn
    from wire.kafka.message import Message

logger = logging.getLogger(__name__)

Results = Mapping["TopicPartition", ErrorCode]

#: Of WriteTxnMarkers: the first that tells the transaction's version.
MARKERS_VERSION = 2
PAUSE_MS = 100
PAUSE_MS_MAX = 1_000
#: Partitions of one request, about; more make another one.
PARTITIONS_PER_REQUEST = 200
#: What a partition's marker costs the turn; where this broker leads it, who writes it adds more.
PARTITION_UNITS = 10
#: What a partition costs the turn when its leader is looked up.
SENT_UNITS = 2
#: What it costs the turn when a job is told.
TOLD_UNITS = 40
#: Partitions whose markers are tried again before others have the loop, about.
WOKEN_PER_TURN = 150


@dataclass(slots=True, eq=False)
class MarkerJob:
    """Markers of one transaction, and who hears what they came to: `done(results)`, in as many
    calls as it takes, for each partition once. `is_wanted`: whether anybody still wants to know.
    `lacks_leader`: some partition had none when it was tried last."""

    markers: Markers
    coordinator_epoch: int
    done: Callable[[Results], None]
    is_wanted: Callable[[], bool]
    lacks_leader: bool = False


class _Parked:
    """A job that waits for its time."""

    __slots__ = ("_sender", "is_over", "job", "timer_at_ms")

    def __init__(self, sender: MarkerSender, job: MarkerJob) -> None:
        self._sender = sender
        self.job = job
        self.is_over = False
        self.timer_at_ms: int | None = None

    def on_timer(self, now_ms: int) -> None:
        self._sender.unpark(self)


#: A job and those of its partitions that one broker leads.
_Part = tuple[MarkerJob, list["TopicPartition"]]


class MarkerSender:
    """`run` it once. Everything else is a plain call on the loop's thread."""

    def __init__(
        self,
        turn: Turn,
        timers: CoordinatorTimers,
        topics: Topics,
        own: OwnPartitions,
        brokers: OtherBrokers,
    ) -> None:
        self._turn = turn
        #: What a job's markers came to leads to the record that ends its transaction.
        self._telling = Spread(turn, TOLD_UNITS)
        #: Those of one job that are too many for a turn.
        self._sending = Spread(turn, PARTITIONS_PER_REQUEST * SENT_UNITS)
        self._timers = timers
        self._topics = topics
        self._own = own
        self._brokers = brokers
        #: By broker: what leaves at the end of the turn.
        self._due: dict[int, tuple[Endpoint, list[_Part]]] = {}
        #: In the order in which they came; some in the middle are over. There may be 100,000: a
        #: dict of so many takes 10 ms to grow.
        self._parked: deque[_Parked] = deque()
        self._parked_count = self._lost_count = 0
        #: So many of the first ones are tried at once.
        self._to_wake = 0
        self._unknown: list[_Part] = []
        self._has_unknown = trio.Event()

    def send(self, job: MarkerJob, *, pause_ms: int = 0) -> None:
        """At the end of this turn, or after a pause."""
        if pause_ms:
            parked = _Parked(self, job)
            self._parked.append(parked)
            self._parked_count += 1
            self._lost_count += job.lacks_leader
            self._timers.arm(parked, self._timers.now_ms() + pause_ms)
            return
        if not job.is_wanted():
            return
        names, step = sorted(job.markers.partitions), PARTITIONS_PER_REQUEST
        if len(names) <= step:
            self._send_some(job, names)
        else:
            starts = range(0, len(names), step)
            self._sending.add(
                partial(self._send_some, job, names[start : start + step]) for start in starts
            )

    def _send_some(self, job: MarkerJob, names: list[TopicPartition]) -> None:
        """Of a job that may have very many."""
        if not job.is_wanted():
            return
        lost, unknown = [], []
        led: dict[int, tuple[Endpoint, list[TopicPartition]]] = {}
        for name in names:
            if not self._is_known(name):
                unknown.append(name)
                continue
            leader = self._brokers.leader(*name)
            if leader is None:
                lost.append(name)
            elif leader.node_id in led:
                led[leader.node_id][1].append(name)
            else:
                led[leader.node_id] = leader, [name]
        for leader, some in led.values():
            self._queue(leader, job, some)
        if unknown:
            self._unknown.append((job, unknown))
            self._has_unknown.set()
        if lost:
            job.done(dict.fromkeys(lost, ErrorCode.LEADER_NOT_AVAILABLE))

    def wake(self) -> None:
        """Who leads what has changed: what waits is tried, from the end of this turn on."""
        is_waking, self._to_wake = self._to_wake > 0, len(self._parked)
        if self._parked and not is_waking:
            self._turn.defer(self._wake)

    def unpark(self, parked: _Parked) -> None:
        parked.is_over = True
        self._parked_count -= 1
        self._lost_count -= parked.job.lacks_leader
        while self._parked and self._parked[0].is_over:
            self._parked.popleft()
        self.send(parked.job)

    async def run(self) -> None:
        """Never returns. Looks for partitions that this broker does not know."""
        while True:
            await self._has_unknown.wait()
            self._has_unknown = trio.Event()
            parts, self._unknown = self._unknown, []
            is_certain = True
            try:
                await self._topics.catch_up()
            except MetadataError as error:
                logger.warning("topics_not_known", kv(error=error))
                is_certain = False
            await self._settle_unknown(parts, is_certain)

    def statistics(self) -> dict[str, int]:
        return {
            "markers_parked": self._parked_count,
            "markers_without_leader": self._lost_count + len(self._unknown),
        }

    # --- inside

    def _is_known(self, name: TopicPartition) -> bool:
        topic = self._topics.get(name[0])
        return topic is not None and name[1] < topic.partition_count

    async def _settle_unknown(self, parts: list[_Part], is_certain: bool) -> None:
        """What is there after all is as if it had no leader: it is tried again soon."""
        slices = Slices(WOKEN_PER_TURN)
        gone: dict[str, int] = {}
        for job, names in parts:
            if slices.due(1 + len(names)):
                await slices.turn()
            results = {}
            for name in names:
                is_gone = is_certain and not self._is_known(name)
                results[name] = ErrorCode.NONE if is_gone else ErrorCode.LEADER_NOT_AVAILABLE
                if is_gone:
                    gone[name[0]] = gone.get(name[0], 0) + 1
            job.done(results)
        for topic, count in gone.items():
            logger.info("marker_of_deleted_topic", kv(markers=count, topic=topic))

    def _wake(self) -> None:
        left = WOKEN_PER_TURN
        while self._to_wake > 0 and self._parked and left > 0:
            self._to_wake -= 1
            parked = self._parked[0]
            self._timers.cancel(parked)
            left -= 1 + len(parked.job.markers.partitions)
            self.unpark(parked)
        if not self._parked:
            self._to_wake = 0
        if self._to_wake:
            self._turn.later(self._wake)

    def _queue(self, leader: Endpoint, job: MarkerJob, names: list[TopicPartition]) -> None:
        if not self._due:
            self._turn.defer(self._flush)
        _, parts = self._due.setdefault(leader.node_id, (leader, []))
        if parts and parts[-1][0] is job:
            room = PARTITIONS_PER_REQUEST - len(parts[-1][1])
            parts[-1][1].extend(names[:room])
            names = names[room:]
        if names:
            parts.append((job, names))

    def _flush(self) -> None:
        """Requests of this turn; what is too much for it leaves in later ones."""
        while self._due:
            if self._turn.is_spent:
                self._turn.later(self._flush)
                return
            node_id, (leader, parts) = next(iter(self._due.items()))
            count = taken = 0
            for _, names in parts:
                count += len(names)
                taken += 1
                if count >= PARTITIONS_PER_REQUEST:
                    break
            some, rest = parts[:taken], parts[taken:]
            if rest:
                self._due[node_id] = (leader, rest)
            else:
                del self._due[node_id]
            self._ask(leader, some)

    def _ask(self, leader: Endpoint, parts: list[_Part]) -> None:
        request = WriteTxnMarkersRequest(markers=[_writable(*part) for part in parts])
        self._turn.spent_units += PARTITION_UNITS * sum(len(names) for _, names in parts)
        heard = partial(self._heard, parts)
        if self._brokers.is_own(leader):
            self._own.write_markers(request, heard)
        else:
            self._brokers.peers.ask(leader, request, MARKERS_VERSION, heard)

    def _heard(self, parts: list[_Part], answer: Message | None) -> None:
        """What is not in the answer was not heard of."""
        by_producer: dict[int, dict[TopicPartition, ErrorCode]] = {}
        count = 0
        if isinstance(answer, WriteTxnMarkersResponse):
            for marker in answer.markers:
                results = by_producer.setdefault(marker.producer_id, {})
                for topic in marker.topics:
                    name = topic.name
                    count += len(topic.partitions)
                    for each in topic.partitions:
                        results[name, each.partition_index] = _error(each.error_code)
        self._turn.spent_units += count
        self._telling.add(partial(_tell, by_producer, *part) for part in parts)


def _tell(
    by_producer: dict[int, dict[TopicPartition, ErrorCode]],
    job: MarkerJob,
    names: list[TopicPartition],
) -> None:
    results = by_producer.get(job.markers.producer_id, {})
    job.done({name: results.get(name, ErrorCode.NETWORK_EXCEPTION) for name in names})


def pause_ms(attempt: int) -> int:
    """Before the so-many-th try again, from 0 on."""
    return min(PAUSE_MS << min(attempt, 10), PAUSE_MS_MAX)


def _writable(job: MarkerJob, names: list[TopicPartition]) -> WritableTxnMarker:
    topics: dict[str, list[int]] = {}
    for topic, number in names:
        topics.setdefault(topic, []).append(number)
    markers = job.markers
    return WritableTxnMarker(
        producer_id=markers.producer_id,
        producer_epoch=markers.epoch,
        transaction_result=markers.is_commit,
        topics=[WritableTxnMarkerTopic(name, numbers) for name, numbers in topics.items()],
        coordinator_epoch=job.coordinator_epoch,
        transaction_version=markers.version,
    )


def _error(code: int) -> ErrorCode:
    if not code:  # nearly always, and an enum takes a while to look one up
        return ErrorCode.NONE
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
