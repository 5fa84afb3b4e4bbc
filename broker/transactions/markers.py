"""Markers on their way out: to the leader of each partition, as it is known now.

Part of the transaction coordinator, which is not served yet.

All markers of one turn for one broker travel in one WriteTxnMarkers (version 2, which tells the
transaction's version, KIP-1228); those for partitions of this broker are a plain call. A partition
of a topic that is gone has nothing to mark. It counts as gone when the catalog does not have it
after it has caught up with metadata: a coordinator that has just taken over may not have heard of a
topic that is new, and would leave its transaction open for ever (kop#1386 is the opposite: a
deleted topic was tried for ever).

Who is to be told again waits: 100 ms first, doubling to 1 s, and less if an assignment changes. A
leader that is not known, or not alive, is looked for in the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import trio

from metadata.store import MetadataError
from runtime.logs import kv
from wire.kafka.errors import ErrorCode
from wire.kafka.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from broker.cluster.peers import BrokerPeers, Endpoint
    from broker.coordinator.ports import Leaders
    from broker.coordinator.timers import CoordinatorTimers
    from broker.transactions.ports import OwnPartitions, Topics
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
PARTITIONS_PER_REQUEST = 1_000
#: What a partition's marker costs the turn.
PARTITION_UNITS = 5


@dataclass(slots=True, eq=False)
class MarkerJob:
    """Markers of one transaction, and who hears what they came to: `done(results)`, in as many
    calls as it takes, for each partition once. `is_wanted`: whether anybody still wants to know."""

    markers: Markers
    coordinator_epoch: int
    done: Callable[[Results], None]
    is_wanted: Callable[[], bool]


class _Parked:
    """A job that waits for its time."""

    __slots__ = ("_sender", "job", "timer_at_ms")

    def __init__(self, sender: MarkerSender, job: MarkerJob) -> None:
        self._sender = sender
        self.job = job
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
        leaders: Leaders,
        listener: str,
        node_id: int,
        own: OwnPartitions,
        peers: BrokerPeers,
    ) -> None:
        """`listener`: by which brokers speak with each other."""
        self._turn = turn
        self._timers = timers
        self._topics = topics
        self._leaders = leaders
        self._listener = listener
        self._node_id = node_id
        self._own = own
        self._peers = peers
        #: By broker: what leaves at the end of the turn.
        self._due: dict[int, tuple[Endpoint, list[_Part]]] = {}
        self._parked: set[_Parked] = set()
        self._unknown: list[_Part] = []
        self._has_unknown = trio.Event()
        self._is_waking = False

    def send(self, job: MarkerJob, *, pause_ms: int = 0) -> None:
        """At the end of this turn, or after a pause."""
        if pause_ms:
            parked = _Parked(self, job)
            self._parked.add(parked)
            self._timers.arm(parked, self._timers.now_ms() + pause_ms)
            return
        if not job.is_wanted():
            return
        lost, unknown = [], []
        for name in job.markers.partitions:
            if self._topics.get(name[0]) is None:
                unknown.append(name)
                continue
            leader = self._leaders.leader(*name, self._listener)
            if leader is None:
                lost.append(name)
            else:
                self._queue(leader, job, name)
        if unknown:
            self._unknown.append((job, unknown))
            self._has_unknown.set()
        if lost:
            job.done(dict.fromkeys(lost, ErrorCode.LEADER_NOT_AVAILABLE))

    def wake(self) -> None:
        """Who leads what has changed: what waits is tried at the end of this turn."""
        if self._parked and not self._is_waking:
            self._is_waking = True
            self._turn.defer(self._wake)

    def unpark(self, parked: _Parked) -> None:
        self._parked.discard(parked)
        self.send(parked.job)

    async def run(self) -> None:
        """Never returns. Looks for topics that this broker does not know."""
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
            for job, names in parts:
                self._settle_unknown(job, names, is_certain)

    def statistics(self) -> dict[str, int]:
        return {"markers_parked": len(self._parked)}

    # --- inside

    def _settle_unknown(
        self, job: MarkerJob, names: list[TopicPartition], is_certain: bool
    ) -> None:
        """What is there after all is as if it had no leader: it is tried again soon."""
        results = {
            name: ErrorCode.NONE
            if is_certain and self._topics.get(name[0]) is None
            else ErrorCode.LEADER_NOT_AVAILABLE
            for name in names
        }
        gone = [name for name, error in results.items() if not error]
        if gone:
            logger.info("marker_of_deleted_topic", kv(partitions=len(gone), topic=gone[0][0]))
        job.done(results)

    def _wake(self) -> None:
        self._is_waking = False
        parked, self._parked = self._parked, set()
        for each in parked:
            self._timers.cancel(each)
            self.send(each.job)

    def _queue(self, leader: Endpoint, job: MarkerJob, name: TopicPartition) -> None:
        if not self._due:
            self._turn.defer(self._flush)
        _, parts = self._due.setdefault(leader.node_id, (leader, []))
        if not parts or parts[-1][0] is not job:
            parts.append((job, []))
        parts[-1][1].append(name)

    def _flush(self) -> None:
        due, self._due = self._due, {}
        for leader, parts in due.values():
            some: list[_Part] = []
            count = 0
            for part in parts:
                some.append(part)
                count += len(part[1])
                if count >= PARTITIONS_PER_REQUEST:
                    self._ask(leader, some)
                    some, count = [], 0
            if some:
                self._ask(leader, some)

    def _ask(self, leader: Endpoint, parts: list[_Part]) -> None:
        request = WriteTxnMarkersRequest(markers=[_writable(*part) for part in parts])
        self._turn.spent_units += PARTITION_UNITS * sum(len(names) for _, names in parts)
        heard = partial(self._heard, parts)
        if leader.node_id == self._node_id:
            self._own.write_markers(request, heard)
        else:
            self._peers.ask(leader, request, MARKERS_VERSION, heard)

    def _heard(self, parts: list[_Part], answer: Message | None) -> None:
        """What is not in the answer was not heard of."""
        results: dict[tuple[int, str, int], ErrorCode] = {}
        if isinstance(answer, WriteTxnMarkersResponse):
            for marker in answer.markers:
                for topic in marker.topics:
                    for each in topic.partitions:
                        at = (marker.producer_id, topic.name, each.partition_index)
                        results[at] = _error(each.error_code)
        for job, names in parts:
            producer_id = job.markers.producer_id
            job.done(
                {
                    name: results.get((producer_id, *name), ErrorCode.NETWORK_EXCEPTION)
                    for name in names
                }
            )


def pause_ms(attempt: int) -> int:
    """Before the so-many-th try again, from 0 on."""
    return min(PAUSE_MS << min(attempt, 10), PAUSE_MS_MAX)


def _writable(job: MarkerJob, names: list[TopicPartition]) -> WritableTxnMarker:
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(names):
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
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
