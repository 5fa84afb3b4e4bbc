"""PartitionLog: one partition that this broker holds; the only writer of its chain.

Order is fixed by synchronous code: `append_nowait` checks a batch against the
topic's settings and the producers' state, gives it its offsets, patches them into its header and
queues it. A batch that is too long to be checked in this turn of the loop waits in line for that
(broker/log/append/checking.py), and so does all that comes behind it. Everything after that
(entries, acks, high watermark) is the AppendQueue's; everything that changes the chain in metadata
is the Keeper's.

    LOADING --taken over--> ONLINE --fence, conflict, close()--> OFFLINE

OFFLINE is for good: it answers NOT_LEADER_OR_FOLLOWER, and the manager makes a new PartitionLog.
The high watermark is the last add confirmed, in offsets. The last stable offset is what readers of
committed records get up to (broker/log/transactions/stable_offset.py); of a partition without
transactions the high watermark.

Batches wait without offsets while the partition loads, and while the open ledger has all that it
may hold and its successor is on its way (`LogSettings.segment_bytes_max`): what was numbered goes
into the ledger that is open then, in front of its snapshot of the producers, so that a ledger is
kept from growing here or not at all.

Owner of all state: the event loop's thread.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from enum import Enum
from typing import TYPE_CHECKING

import trio

from broker.cluster.durability import copies_of
from broker.log.append.checking import BatchChecks
from broker.log.append.line import AppendLine
from broker.log.append.producer_state import ProducerState
from broker.log.append.producer_store import Room
from broker.log.append.queue import NO_LIMIT, Append, AppendQueue, CallbackAppend
from broker.log.append.validation import own_batch
from broker.log.life.chain import Chain
from broker.log.locks.partition_locks import PartitionLocks
from broker.log.read.partition_reader import PartitionReader
from broker.log.transactions.aborted_list import AbortedCache, is_sealed
from broker.log.transactions.acceptance import TransactionAcceptance
from broker.log.transactions.gate import CoordinatorAppend, ParkingRoom, TransactionGate
from broker.log.transactions.markers import CallbackMarkerAppend, marker_batch
from broker.log.transactions.origin import VERIFIED, Origin
from broker.log.watchers import Watchers
from runtime.logs import kv
from runtime.turn import Gathered
from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode, KafkaError
from wire.kafka.records.batch import CONTROL_MASK, TRANSACTIONAL_MASK, parse_header, patch

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.cluster.catalog import Topic
    from broker.cluster.config import TopicConfig
    from broker.cluster.durability import Copies
    from broker.log.append.validation import Checked
    from broker.log.life.takeover import TakenOver
    from broker.log.read.partition_reader import ReadResult
    from broker.log.read.segment import Segment
    from broker.log.settings import LogSettings
    from broker.log.transactions.gate import TransactionVerifier
    from broker.log.transactions.markers import MarkerAppend
    from ledger.writer import LedgerWriter
    from runtime.env import Env
    from wire.kafka.records.batch import BatchHeader
    from wire.kafka.records.control import EndTransactionMarker

logger = logging.getLogger(__name__)

#: What was on its way, when bookies were there again, behind batches that were refused for want of
#: them has come after so long. Until then what is out of order is refused as those were.
ON_ITS_WAY_MS = 1000


@dataclass(slots=True)
class SharedParts:
    """What all partitions of a broker have together."""

    checks: BatchChecks
    room: Room
    aborted: AbortedCache
    parking: ParkingRoom
    #: What was queued in a turn is pushed at its end, for all of them in one call.
    flushes: Gathered
    #: Asks the coordinators of transactions; None: transactions are not served.
    verifier: TransactionVerifier | None = None

    @classmethod
    def of(cls, env: Env, settings: LogSettings) -> SharedParts:
        room = Room(settings.producers_total_max)
        flushes = Gathered(env.turn)
        return cls(BatchChecks(env), room, AbortedCache(), ParkingRoom(), flushes)


class State(Enum):
    LOADING = "loading"
    ONLINE = "online"
    OFFLINE = "offline"


class PartitionLog:
    def __init__(
        self,
        topic: Topic,
        partition: int,
        config: TopicConfig,
        env: Env,
        settings: LogSettings,
        shared: SharedParts | None = None,
    ) -> None:
        """`shared`: the broker's; without any, its own, of which the checks do not run: then what
        is too long for a turn of the loop waits for ever."""
        self.topic = topic
        self.partition = partition
        #: In force now; whoever holds the partition replaces it when it changes.
        self.config = config
        self.state = State.LOADING
        self.leader_epoch = -1
        self.next_offset = 0
        #: There are no bookies that take writes: appends that need a new ledger are refused before
        #: they are numbered. The keeper sets it and looks again.
        self.is_suspended = False
        #: When one was refused for that last, by the wall clock.
        self._without_bookies_ms = -ON_ITS_WAY_MS
        #: The open ledger takes all that comes, as nobody could make another: metadata is away.
        self.is_unbounded = False
        #: It is being handed over or stopped: what is here is read, acknowledged and closed, and
        #: nothing more is taken.
        self.is_closing = False
        #: Of the open ledger, if there is one; the keeper's.
        self.writer: LedgerWriter | None = None
        self.batches_in = 0
        self.bytes_in = 0
        self.chain = Chain()
        self.segments: list[Segment] = []
        #: How often compaction has put other ledgers in the place of some.
        self.swap_count = 0
        self.producers = ProducerState(producers_max=settings.producers_max)
        shared = SharedParts.of(env, settings) if shared is None else shared
        #: Who wrote what last, of optimistic locks (quire.locks).
        self.locks = PartitionLocks(shared.checks.lock_counts)
        self._room = shared.room
        self._copies = topic, config, copies_of(topic, config)
        self._env = env
        self._settings = settings
        self._epoch_start_offset = 0
        self._line = AppendLine(self, shared.checks)
        self.transactions = TransactionAcceptance(
            self, self._make_gate(shared), shared.aborted, settings
        )
        #: Batches that the producers' state refuses, and why: told once it is certain that this
        #: broker still owns the partition (the keeper asks), as the state may be an old one.
        self._doubted: list[tuple[Append, KafkaError]] = []
        #: Why the last tenure here ended, and how many in a row never began; for people.
        self.last_failure = ""
        self.failure_count = 0
        self.reader = PartitionReader(self)
        self._watchers = Watchers(env.turn)
        self._loaded = trio.Event()
        #: The keeper waits for it: a ledger is needed or full, or somebody asked for something.
        self.attention = trio.Event()
        self.queue = AppendQueue(
            settings,
            env.turn,
            shared.flushes,
            on_progress=self._watchers.tell_soon,
            on_lost=self.go_offline,
            on_attention=self.call_keeper,
            take_snapshot=lambda: self.producers.snapshot(),
            take_aborted=self.transactions.take_aborted,
        )

    def _make_gate(self, shared: SharedParts) -> TransactionGate | None:
        """None: transactions are not served, and what belongs to one is refused."""
        if shared.verifier is None:
            return None
        return TransactionGate(
            shared.verifier, self.topic.name, self.partition, shared.parking,
            admit=self._line.resume, refuse=self._refuse,
        )  # fmt: skip

    # -- facts ---------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return f"{self.topic.name}-{self.partition}"

    @property
    def high_watermark(self) -> int:
        return self.queue.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Everything before it is decided. It never falls, not by a take-over either."""
        high_watermark = self.queue.high_watermark
        first = self.producers.first_open_transaction_offset
        if first is None and not self.transactions.undecided:
            return high_watermark
        ended = self.transactions.undecided.first_offset(high_watermark)
        stable = high_watermark if first is None else min(high_watermark, first)
        return max(stable if ended is None else min(stable, ended), self.log_start_offset)

    def readable_end(self, *, committed: bool) -> int:
        """Up to where a fetch reads: `committed` is read_committed (isolation level 1)."""
        return self.last_stable_offset if committed else self.high_watermark

    @property
    def log_start_offset(self) -> int:
        return self.chain.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.next_offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    async def wait_loaded(self) -> None:
        """Returns once the take-over succeeded or failed (see `state`)."""
        await self._loaded.wait()

    @property
    def copies(self) -> Copies:
        """That its next ledger is to have."""
        topic, config, copies = self._copies
        if topic is not self.topic or config is not self.config:
            copies = copies_of(self.topic, self.config)
            self._copies = self.topic, self.config, copies
        return copies

    @property
    def ensemble(self) -> tuple[str, ...]:
        """The bookies that are written to; empty while no ledger is open."""
        return self.writer.metadata.last_segment[1] if self.writer is not None else ()

    def oldest_unanswered(self) -> tuple[Append, str] | None:
        """A batch that has no answer yet, and what it waits for; where several wait for different
        things, the one that a client's requests can be held up by for the longest."""
        if self._doubted:
            return self._doubted[0][0], "whether this broker owns the partition"
        return self.queue.oldest or self._line.oldest

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset): the largest known epoch <= `epoch`, and where it ended; (-1, -1) if
        it is unknown (Kafka's OffsetForLeaderEpoch, KIP-279)."""
        if epoch == self.leader_epoch:
            return epoch, self.high_watermark
        if epoch < 0 or epoch > self.leader_epoch:
            return -1, -1
        end = self._epoch_start_offset
        for segment in reversed(self.segments):
            for known, first_offset in reversed(segment.info.all_epochs):
                if known <= epoch:
                    # A ledger below the log start may be kept for its snapshot of the producers.
                    return known, max(end, self.log_start_offset)
                end = min(end, first_offset)
        return epoch, max(end, self.log_start_offset)

    def epoch_of(self, offset: int) -> int:
        """The leader epoch under which the record at `offset` was written; -1 if unknown."""
        position = self.position_of(offset)
        if position < len(self.segments):
            info = self.segments[position].info
            if not info.epochs:
                return info.leader_epoch
            return max(
                epoch for epoch, first in info.all_epochs if first <= max(offset, info.base_offset)
            )
        return self.leader_epoch

    # -- append --------------------------------------------------------------------------------

    def append_nowait(
        self, records: memoryview, done: Callable[[Append], None], *, internal: bool = False,
        origin: Origin | None = VERIFIED,
    ) -> None:  # fmt: skip
        """`submit` with a callback instead of a subclass: `done(append)`. `internal`: of one of our
        coordinators, who has just built it. `origin`: of an internal batch of a transaction."""
        if internal:
            append = CoordinatorAppend(records, done, origin)
            self._submit_own(append, parse_header(records), self._env.clock.time_ms())
        else:
            self.submit(CallbackAppend(records, done))

    def ask_transaction(
        self, origin: Origin, pid: int, epoch: int, done: Callable[[ErrorCode], None]
    ) -> None:
        """For coordinators: whether a batch of the transaction may come (`gate.ask_ahead`). It is
        appended with that origin, or `give_back` is called."""
        if self.state is not State.ONLINE or self.is_closing:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            self.transactions.ask(origin, pid, epoch, done)

    def give_back(self, origin: Origin) -> None:
        """No batch comes of that question."""
        self.transactions.give_back(origin)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransactionMarker,
        transaction_version: int,
        done: Callable[[Append], None],
    ) -> None:
        """Ends the producer's transaction here, if one is open, and from version 2 on its epoch in
        any case. `done(append)` when the marker is acknowledged, or refused: INVALID_PRODUCER_EPOCH
        and TRANSACTION_COORDINATOR_FENCED for good, else as a batch."""
        self.submit_marker(
            CallbackMarkerAppend(producer_id, producer_epoch, marker, transaction_version, done)
        )

    def submit_marker(self, append: MarkerAppend) -> None:
        """`append_marker` with a subclass instead of a callback."""
        now_ms = self._env.clock.time_ms()
        marker = append.marker
        batch, header = marker_batch(
            append.producer_id,
            append.producer_epoch,
            marker.committed,
            marker.coordinator_epoch,
            now_ms,
        )
        append.records = memoryview(bytearray(batch))
        self._submit_own(append, header, now_ms)

    def _submit_own(self, append: Append, header: BatchHeader, now_ms: int) -> None:
        """`submit` of a batch that this broker has built just now, for which a checksum, made a
        line before, need not be made again. It keeps its place behind what waits. Numbers of a
        client's that no batch may have are refused as ever."""
        is_odd = header.record_count <= 0 or header.producer_id >= 0 > header.producer_epoch
        if (
            self.state is State.ONLINE
            and not self.is_closing
            and not self._line.is_waiting
            and not self.queue.is_full
            and not is_odd
        ):
            self.accept(append, own_batch(append.records, header, self.config, now_ms))
        else:
            self.submit(append, internal=True)

    def submit(self, append: Append, *, internal: bool = False) -> None:
        """Checks, numbers and queues one record batch v2, in writable memory that the caller does
        not change until it is finished. Errors come by `append.finished()`, possibly before this
        returns. `internal`: from a coordinator of ours; control batches and any size are fine."""
        if self.is_closing:
            append.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        elif self.state is State.ONLINE:
            if self._line.is_held or self.queue.is_full:
                self._line.take(append, internal)
            else:
                self._line.check(append, internal)
        elif self.state is State.LOADING:
            self._line.hold(append, internal)
        else:
            append.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def has_room(self) -> bool:
        """Whether a batch may be numbered now: the ledger that is open, or comes next, may hold
        more; or what comes is refused anyway."""
        limit = NO_LIMIT
        if not self.is_unbounded:
            limit = self._settings.segment_bytes_max(self.config.segment_bytes)
        self.queue.ledger_bytes_max = limit
        return not self.queue.is_full or (self.is_suspended and self.queue.sealed)

    def release_waiting(self) -> bool:
        """Takes up some of the batches that waited, in order; True: there are more, and room."""
        return self._line.release()

    async def append(self, batch: bytes | bytearray) -> Append:
        """For coordinators: appends and waits for the ack. KafkaError."""
        event = trio.Event()
        append = CoordinatorAppend(memoryview(bytearray(batch)), lambda _: event.set())
        self.submit(append, internal=True)
        await event.wait()
        if append.error:
            raise KafkaError(append.error, append.error_message)
        return append

    def accept(self, append: Append, checked: Checked) -> None:
        """Of a batch that is whole: what the producers' state says, then its place in the log."""
        if self.is_closing:
            append.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        header = checked.header
        append.records = checked.records
        if header.attributes & (TRANSACTIONAL_MASK | CONTROL_MASK):
            self.transactions.accept(append, checked)
            return
        if header.producer_id >= 0 and not self.is_new(append, checked):
            return
        if self.is_suspended and not self.has_bookies(append, checked):
            return
        if (checked.locks is not None or self.locks.table is not None) and not self._are_locks_free(
            append, checked
        ):
            return
        self.put(append, checked)

    def _are_locks_free(self, append: Append, checked: Checked) -> bool:
        """Whether the batch's locks let it pass; else it is taken care of. Asked of what is no
        duplicate: a batch that is here already would conflict with itself."""
        refusal = self.locks.refusal(
            checked.locks, self.config, self.next_offset, self.queue.high_watermark
        )
        if refusal is None:
            return True
        error, wait_for, is_doubted = refusal
        # What is behind it on the way is no beginning: its sender may use the number once more.
        self.producers.note_refused(checked.header, checked.now_ms)
        if is_doubted:  # a deposed owner's end may be an old one
            self.doubt(append, error)
        elif wait_for >= 0:
            self.queue.put_refused(append, error, wait_for)
        else:
            append.fail(error)
        return False

    def is_new(self, append: Append, checked: Checked, *, is_asked: bool = True) -> bool:
        """Whether the producers' state lets the batch pass; else it is taken care of. Not
        `is_asked`: of a transaction that its coordinator has still to vouch for."""
        header = checked.header
        producers = self.producers
        try:
            if is_asked:
                duplicate = producers.check(header, checked.now_ms)
            else:
                duplicate = producers.check_unasked(header, checked.now_ms)
        except KafkaError as error:
            is_out_of_order = error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            # Without bookies what came before was refused, too, and all of it comes once more. So
            # does what was on its way behind that when they came back.
            if not is_out_of_order or self.has_bookies(append, checked, grace_ms=ON_ITS_WAY_MS):
                self.doubt(append, error)
            return False
        if duplicate is None:
            return True
        append.base_offset = duplicate.base_offset
        append.last_offset = duplicate.base_offset + header.last_offset_delta
        # As Kafka: what stands here for a duplicate is the batch's own timestamp.
        append.log_append_time_ms = max(duplicate.log_append_time_ms, header.max_timestamp)
        self.queue.put_duplicate(append)
        return False

    def has_bookies(self, append: Append, checked: Checked, *, grace_ms: int = 0) -> bool:
        """Else the batch is refused; also for `grace_ms` after the last that was."""
        is_without = self.is_suspended and self.queue.sealed
        if is_without:
            self._without_bookies_ms = checked.now_ms
        if is_without or 0 <= checked.now_ms - self._without_bookies_ms < grace_ms:
            refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "no bookies take writes now")
            self._refuse(append, checked, refusal)
            return False
        return True

    def doubt(self, append: Append, error: KafkaError) -> None:
        """Refuses it for that, once it is certain that the state is the newest."""
        self._doubted.append((append, error))
        self.call_keeper()

    def _refuse(self, append: Append, checked: Checked, error: KafkaError) -> None:
        """For a reason that is not the producers' state, and may pass."""
        self.producers.note_refused(checked.header, checked.now_ms)
        append.fail(error)

    def put(
        self, append: Append, checked: Checked, marker: EndTransactionMarker | None = None
    ) -> None:
        """Gives the batch its offsets and queues it; from here on it is part of the log's order."""
        header = checked.header
        base_offset = self.next_offset
        patch(append.records, 0, base_offset, self.leader_epoch)
        append.base_offset = base_offset
        append.last_offset = base_offset + header.last_offset_delta
        append.max_timestamp = header.max_timestamp
        append.min_timestamp = checked.min_timestamp
        if checked.append_time_ms >= 0:
            append.log_append_time_ms = append.max_timestamp = checked.append_time_ms
        if header.producer_id >= 0:
            append_time_ms = append.log_append_time_ms
            self.producers.append(
                header,
                base_offset,
                checked.now_ms,
                log_append_time_ms=append_time_ms,
                marker=marker,
            )
        if self.locks.table is not None:
            self.locks.numbered(checked, base_offset)
        self.next_offset = append.last_offset + 1
        self.batches_in += 1
        self.bytes_in += len(append.records)
        self.queue.put(append)

    # -- lifecycle (called by the keeper and the manager) -----------------------------------------

    def go_online(self, taken: TakenOver) -> None:
        """The take-over succeeded: serve, first of all what waited for it."""
        assert self.state is State.LOADING
        self.chain = taken.chain
        self.segments = taken.segments
        self.transactions.aborted.segments_changed(self.segments)
        self.producers = taken.producers
        self.producers.enter(self._room)
        if self.segments and not is_sealed(self.segments[-1].info) and len(self.producers):
            # Before any batch that waits is numbered: the next ledger begins with it.
            self.queue.opening_snapshot = self.producers.snapshot()
        self.leader_epoch = taken.chain.leader_epoch
        end = taken.chain.closed_end_offset
        self.next_offset = self._epoch_start_offset = end
        self.queue.high_watermark = self.queue.pushed_offset = end
        self.state = State.ONLINE
        self._loaded.set()
        self.has_room()  # the queue learns what its ledger may hold
        if self.release_waiting():
            self.call_keeper()
        self._watchers.tell()

    def go_offline(self, reason: str) -> None:
        """Nothing more is acknowledged. Outcome of what was queued: unknown to its producers, as
        after a lost connection (invariant W6)."""
        if self.state is State.OFFLINE:
            return
        logger.log(
            logging.INFO if self.is_closing else logging.WARNING,
            "partition_offline",
            kv(partition=self.name, leader_epoch=self.leader_epoch, reason=reason),
        )
        self.state = State.OFFLINE
        self.producers.leave()
        self.last_failure = reason
        lost = self.queue.stop() + self._line.clear()
        lost += [append for append, _ in self.take_doubted()]
        lost += self.transactions.close()
        refusal = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        for append in lost:
            append.fail(refusal)
        self._loaded.set()
        self.call_keeper()
        self._watchers.tell()

    @property
    def is_doubting(self) -> bool:
        return bool(self._doubted)

    def take_doubted(self) -> list[tuple[Append, KafkaError]]:
        """Those that wait for certainty by now; the keeper answers them."""
        doubted, self._doubted = self._doubted, []
        return doubted

    def call_keeper(self) -> None:
        self.attention.set()

    # -- watching ------------------------------------------------------------------------------

    def watch(self, function: Callable[[], None]) -> None:
        """`function()` is called once per burst of acks, after the high watermark moved, and when
        the partition goes offline; until `unwatch`."""
        self._watchers.add(function)

    def unwatch(self, function: Callable[[], None]) -> None:
        self._watchers.remove(function)

    # -- read ----------------------------------------------------------------------------------

    async def read(self, offset: int, size_max: int, *, committed: bool = False) -> ReadResult:
        """As the reader's, which also has what needs no waiting, and what was aborted."""
        return await self.reader.read(offset, size_max, committed=committed)

    def check_online(self) -> None:
        """KafkaError NOT_LEADER_OR_FOLLOWER unless the partition is served here, now."""
        if self.state is not State.ONLINE:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_readable(self, offset: int) -> None:
        """KafkaError, OFFSET_OUT_OF_RANGE unless the offset lies in the log, or is its end."""
        self.check_online()
        if not self.log_start_offset <= offset <= self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not in {self.log_start_offset}..{self.high_watermark}",
            )

    def position_of(self, offset: int) -> int:
        """In `segments`, of the one that the offset lies in, or would."""
        return max(bisect_right(self.segments, offset, key=base_offset_of) - 1, 0)


def base_offset_of(segment: Segment) -> int:
    return segment.info.base_offset
