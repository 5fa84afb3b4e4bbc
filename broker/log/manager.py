"""LogManager: the partitions that this broker holds, found by name or by topic id.

Holds what the topic catalog knows and `ownership` assigns to this broker, and follows both: what
becomes ours is taken over, what is no longer ours is handed over, a deleted topic's partitions are
put offline and their ledgers deleted. One task per tenure, in `run`'s nursery; what a tenure is
about to do, and what ends it, is decided in broker/log/life/tenure.py and carried out here:

- The wait: as long as the chain's owner is another broker that is alive, up to
  HANDOVER_WAIT_SECONDS; then by force. A dead owner, none, or ourselves: at once.
- At most TAKEOVERS_MAX are taken over at a time; their documents are read many at once. One that
  hangs is given up, so that others get its place, and has twice as long the next time.
- At most OPENINGS_MAX open their first ledger at a time: metadata is not asked for thousands at
  once, and what only the opening needs is freed before it is old (the garbage collector, which
  counts what is made less what is freed, else looks through very much at once).
- A hand-over that is not done after HANDOVER_SECONDS is given up: the next owner fences.
- Who lost a partition asks metadata whether it is still to have it before it fences anybody.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

import trio

from broker.cluster.catalog import PARTITIONS_PATH, TopicChange
from broker.cluster.ownership import Incarnation, SoleOwner
from broker.log.life.chain import ChainDocument, ChainFormatError
from broker.log.life.document import DocumentReader
from broker.log.life.keeper import TAKEOVER_SECONDS, Keeper, KeeperParts
from broker.log.life.orphans import sweep_orphans
from broker.log.life.sweep import sweep_deleted
from broker.log.life.takeover import ChainStores, Claim
from broker.log.life.tenure import Effect, Event, Phase, Tenure
from broker.log.partition import PartitionLog, SharedParts, State
from broker.log.unanswered import UnansweredWatch
from metadata.shared_writes import SharedWrites
from metadata.store import MetadataError, SessionState
from runtime.logs import kv
from runtime.slices import Slices
from wire.dataclass import dataclass
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from uuid import UUID

    from broker.cluster.catalog import Topic, TopicCatalog, TopicEvent
    from broker.cluster.ownership import Ownership
    from broker.log.life.tenure import Effects
    from broker.log.settings import LogSettings
    from broker.log.transactions.gate import TransactionVerifier
    from ledger.client import LedgerClient
    from metadata.store import MetadataStore
    from runtime.env import Env

logger = logging.getLogger(__name__)

#: How long a partition that went offline by accident rests before it is taken over again; twice as
#: long each time that the take-over itself fails.
RETAKE_DELAY_SECONDS = 1.0
RETAKE_DELAY_MAX_SECONDS = 10.0
#: How long we wait for an owner that is alive to release what is ours now.
HANDOVER_WAIT_SECONDS = 5.0
#: How long a hand-over may take, from the change of the assignment: less than the other side waits.
HANDOVER_SECONDS = 4.0
#: How long a clean stop may take to close what is held.
STOP_SECONDS = 20.0
#: Of which each gets a task, or an end: 40 to 100 us each.
PARTITIONS_PER_TURN = 25
#: Of which each is told of a change: 1 ms.
TOLD_PER_TURN = 100
#: Of which one thing is asked: 1 ms.
LOOKS_PER_TURN = 4_000
TAKEOVERS_MAX = 128
#: First ledgers that are opened at a time.
OPENINGS_MAX = 256
PUBLISH_RETRY_SECONDS = 1.0
SWEEP_RETRY_SECONDS = 30.0
#: The look at all ledgers for some that no partition has: not while everybody starts, and rarely.
ORPHANS_FIRST_SECONDS = 600.0
ORPHANS_EVERY_SECONDS = 6 * 3600.0
#: The longest that one take-over may take; the first has keeper.TAKEOVER_SECONDS.
TAKEOVER_SECONDS_MAX = 480.0


@dataclass(slots=True, eq=False)
class _Held:
    """A partition that is held, and what its tenure needs."""

    log: PartitionLog
    keeper: Keeper
    path: str
    tenure: Tenure
    #: Of the tenure's task, until the partition is offline.
    scope: trio.CancelScope
    #: The owner that we wait for, and the wait.
    owner: Incarnation | None = None
    waiting: trio.CancelScope | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.log.topic.name, self.log.partition


def _tell_metadata(held: _Held) -> None:
    held.keeper.metadata_changed()


def _tell_bookies(held: _Held) -> None:
    held.keeper.bookies_changed()


NONE_HELD: dict[int, _Held] = {}
#: As a partition is written: "01" is none.
PARTITION_DIGITS = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


class LogManager:
    def __init__(
        self,
        catalog: TopicCatalog,
        store: MetadataStore,
        ledgers: LedgerClient,
        env: Env,
        settings: LogSettings,
        *,
        ownership: Ownership | None = None,
        retention_check_interval_ms: int = 300_000,
        verifier: TransactionVerifier | None = None,
    ) -> None:
        """Without `ownership` this broker is the whole cluster; without `verifier` transactional
        batches are refused."""
        self._catalog = catalog
        self._store = store
        self._ledgers = ledgers
        self._env = env
        self._settings = settings
        self._shared = SharedParts.of(env, settings)
        self._shared.verifier = verifier
        self.checks = self._shared.checks
        self.producers_room = self._shared.room
        if ownership is None:
            ownership = SoleOwner(Incarnation(0, env.new_uuid().hex))
        self._ownership = ownership
        self._retention_check_seconds = retention_check_interval_ms / 1000
        #: By topic's name and partition; a topic of which nothing is held may be there, empty.
        self._held: dict[str, dict[int, _Held]] = {}
        self._topics: dict[UUID, Topic] = {}
        #: Topics whose partitions are not all looked at since a change, and the next one to be.
        self._following: dict[UUID, tuple[int, int]] = {}
        self._follow_asked = trio.Event()
        #: Of deleted topics: found by nobody any more, and not yet offline.
        self._dropped: deque[_Held] = deque()
        #: Take-overs that failed in a row, and why the last one did.
        self._failures: dict[tuple[str, int], tuple[int, str]] = {}
        self._documents = DocumentReader(store)
        self._slots = trio.CapacityLimiter(TAKEOVERS_MAX)
        self._keeper_parts = KeeperParts(
            ChainStores(store, ledgers, settings, SharedWrites(store)),
            env,
            lambda: self._is_metadata_away,
            trio.CapacityLimiter(OPENINGS_MAX),
        )
        self._listeners: list[Callable[[str, int], None]] = []
        self._sweep_asked = trio.Event()
        self._nursery: trio.Nursery | None = None
        #: Changes, and the partitions that are still to be told of each.
        self._untold: dict[Callable[[_Held], None], Iterator[_Held]] = {}
        self._is_telling = False
        self._stopping = self._is_metadata_away = False

    # -- look-up -------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> PartitionLog:
        """KafkaError: NOT_LEADER_OR_FOLLOWER (another broker is to lead it, or nobody is),
        UNKNOWN_TOPIC_OR_PARTITION (there is no such partition)."""
        return self._find(topic, partition).log

    def _find(self, topic: str, partition: int) -> _Held:
        held = self._held.get(topic, NONE_HELD).get(partition)
        if held is not None:
            return held
        known = self._catalog.get(topic)
        if known is None or not 0 <= partition < known.partition_count:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if known.id in self._following:
            # Whoever asks need not wait until its turn comes.
            self._follow_partition(known, partition)
            held = self._held.get(topic, NONE_HELD).get(partition)
            if held is not None:
                return held
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def get_by_id(self, topic_id: UUID, partition: int) -> PartitionLog:
        """KafkaError as `get`, and UNKNOWN_TOPIC_ID."""
        topic = self._topics.get(topic_id)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return self.get(topic.name, partition)

    def all(self) -> Iterator[PartitionLog]:
        """Those that are held here, of each topic when the iterator comes to it. They may be very
        many: whoever looks at each of them gives the loop away in between (runtime/slices.py), and
        may go on with this iterator then."""
        return (held.log for held in self._every())

    def of_topic(self, topic: str) -> list[PartitionLog]:
        """Those of a topic that are held here, by partition."""
        held = self._held.get(topic, NONE_HELD)
        return [held[partition].log for partition in sorted(held)]

    def named(self, name: str) -> PartitionLog | None:
        """The one whose `PartitionLog.name` this is, if it is held here."""
        topic, _, partition = name.rpartition("-")
        held = self._held.get(topic, NONE_HELD)
        found = held.get(int(partition)) if PARTITION_DIGITS.fullmatch(partition) else None
        return found.log if found is not None else None

    def keepers(self) -> Iterator[tuple[PartitionLog, Keeper]]:
        """As `all`, with who changes their chains."""
        return ((held.log, held.keeper) for held in self._every())

    async def any(self, is_so: Callable[[PartitionLog], bool]) -> bool:
        """Whether `is_so` of one of those that are held here; asked in slices."""
        slices = Slices(LOOKS_PER_TURN)
        for log in self.all():
            if slices.due():
                await slices.turn()
            if is_so(log):
                return True
        return False

    def _every(self) -> Iterator[_Held]:
        """Of each topic as it is when the iterator comes to it: a list of all touches each of them,
        and takes 5 ms for 50,000 that are in no cache."""
        for of_topic in list(self._held.values()):
            yield from list(of_topic.values())

    async def delete_records(self, topic: str, partition: int, offset: int) -> int:
        """The new log start. KafkaError as Keeper.delete_records and `get`."""
        return await self._find(topic, partition).keeper.delete_records(offset)

    def subscribe(self, listener: Callable[[str, int], None]) -> None:
        """`listener(topic, partition)` whenever a partition begins to be held: `get` finds it,
        LOADING, until it is online or offline again."""
        self._listeners.append(listener)

    def statistics(self) -> tuple[int, int]:
        """(partitions held, of them offline)."""
        offline = sum(log.state is State.OFFLINE for log in self.all())
        return sum(map(len, self._held.values())), offline

    # -- life ----------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Takes over what is ours and keeps it; when cancelled, closes the open ledgers first
        (shielded, for STOP_SECONDS at most)."""
        unsubscribe = self._store.subscribe(self._session_changed)
        keeping = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            try:
                await nursery.start(self._run_keepers, keeping)
                nursery.start_soon(self._sweep_for_ever)
                nursery.start_soon(self._sweep_orphans)
                nursery.start_soon(UnansweredWatch(self.all).run)
                # Before the first wait: what changes while topics are followed is seen.
                self._catalog.subscribe(self._on_topic_event)
                self._ownership.subscribe(self._on_assignment)
                for topic in self._catalog.all():
                    self.follow(topic)
                while self._following:
                    await trio.lowlevel.checkpoint()
                    self._follow_some(next(iter(self._following)))
                nursery.start_soon(self._follow_for_ever)
                task_status.started()
                while True:
                    await trio.sleep(self._retention_check_seconds)
                    slices = Slices(2)  # one may forget thousands of producers
                    for held in self._every():
                        if slices.due():
                            await slices.turn()
                        held.keeper.check_retention()
            finally:
                unsubscribe()
                self._stopping = True
                with trio.CancelScope(shield=True):
                    await self._close_all()
                keeping.cancel()

    async def _run_keepers(
        self, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]
    ) -> None:
        """Their tasks live in a shield: at a stop each of them closes its ledger."""
        with scope:
            try:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    nursery.start_soon(self.checks.run)
                    task_status.started()
                    await trio.sleep_forever()
            finally:
                self._nursery = None

    async def _close_all(self) -> None:
        slices = Slices(PARTITIONS_PER_TURN)
        while self._dropped:
            if slices.due():
                await slices.turn()
            self._end(self._dropped.popleft())
        with trio.move_on_after(STOP_SECONDS):
            async with trio.open_nursery() as nursery:
                async for held in self._all_held():
                    if Effect.CLOSE in held.tenure.step(Event.STOPPING):
                        nursery.start_soon(held.keeper.close)
        async for held in self._all_held():
            held.log.go_offline("stopped")

    async def _all_held(self) -> AsyncIterator[_Held]:
        """All partitions, some in each turn: there may be ten thousand."""
        slices = Slices(PARTITIONS_PER_TURN)
        for held in self._every():
            if slices.due():
                await slices.turn()
            yield held

    def _session_changed(self, state: SessionState) -> None:
        self._is_metadata_away = state is not SessionState.CONNECTED
        self._tell_each(_tell_metadata)

    def refresh_configs(self) -> None:
        """A broker-wide default changed: every topic's settings are looked up anew."""
        self._tell_each(self._refresh)

    def _refresh(self, held: _Held) -> None:
        held.keeper.configure(self._catalog.config(held.log.topic))

    def bookies_changed(self) -> None:
        """Bookies came or went (BookieWatcher.subscribe)."""
        self._tell_each(_tell_bookies)

    def _tell_each(self, tell: Callable[[_Held], None]) -> None:
        """Some at once, and of very many the others soon; of each what is true then. What is told
        again meanwhile begins anew: whoever was not told yet is so once."""
        every = self._every()
        if self._tell_some(every, tell) and self._nursery is not None:
            self._untold[tell] = every
            if not self._is_telling:
                self._is_telling = True
                self._nursery.start_soon(self._tell_rest)

    @staticmethod
    def _tell_some(every: Iterator[_Held], tell: Callable[[_Held], None]) -> bool:
        """Whether there may be more."""
        count = 0
        for held in islice(every, TOLD_PER_TURN):
            tell(held)
            count += 1
        return count == TOLD_PER_TURN

    async def _tell_rest(self) -> None:
        untold = self._untold
        try:
            while untold:
                await trio.lowlevel.checkpoint()
                tell, every = next(iter(untold.items()))
                if not self._tell_some(every, tell):
                    del untold[tell]
        finally:
            self._is_telling = False

    # -- what is ours --------------------------------------------------------------------------

    def _on_topic_event(self, event: TopicEvent) -> None:
        self.follow(event.topic)
        if event.change is TopicChange.DISCARDED:
            self._sweep_asked.set()

    def _on_assignment(self, topic_id: UUID) -> None:
        topic = self._catalog.get_by_id(topic_id)
        if topic is not None:  # else the catalog tells when it knows it
            self.follow(topic)

    def follow(self, topic: Topic) -> None:
        """Makes what is held agree with the catalog's and the assignments' picture of a topic; of
        one with very many partitions the later ones soon, or when they are asked for."""
        current = self._catalog.get(topic.name)
        if current is None or current.id != topic.id:
            self._drop(topic)
        if current is None:
            return
        self._topics[current.id] = current
        # It goes on where it is, and around: changes in every turn keep no partition from its turn.
        at = self._following.get(current.id, (0, 0))[0]
        self._following[current.id] = at, current.partition_count
        self._follow_some(current.id)
        if self._following:
            self._follow_asked.set()

    def _follow_some(self, topic_id: UUID) -> None:
        """As many partitions as may be looked at in one turn."""
        start, left = self._following.pop(topic_id)
        topic = self._topics.get(topic_id)
        if topic is None:
            return  # deleted meanwhile
        count = min(PARTITIONS_PER_TURN, left)
        for number in range(start, start + count):
            self._follow_partition(topic, number % topic.partition_count)
        if left > count:
            self._following[topic_id] = (start + count) % topic.partition_count, left - count

    def _follow_partition(self, topic: Topic, partition: int) -> None:
        epoch = self._ownership.assigned_epoch(topic.id, partition)
        held = self._held.get(topic.name, NONE_HELD).get(partition)
        if held is not None:
            held.log.topic = topic
            held.keeper.configure(self._catalog.config(topic))
            self._follow_assignment(held, epoch)
        elif epoch is not None:
            self._hold(topic, partition, epoch)

    async def _follow_for_ever(self) -> None:
        """What one turn had no time for."""
        while True:
            if self._dropped:
                for _ in range(min(PARTITIONS_PER_TURN, len(self._dropped))):
                    self._end(self._dropped.popleft())
                await trio.lowlevel.checkpoint()
            elif self._following:
                self._follow_some(next(iter(self._following)))
                await trio.lowlevel.checkpoint()
            else:
                self._follow_asked = trio.Event()
                await self._follow_asked.wait()

    def _follow_assignment(self, held: _Held, epoch: int | None) -> None:
        if self._stopping:
            return
        if held.waiting is not None and not self._is_elsewhere(held.owner):
            self._carry_out(held, held.tenure.step(Event.OWNER_GONE))
        self._carry_out(held, held.tenure.assigned(epoch))

    def _carry_out(self, held: _Held, effects: Effects, why: str = "handed over") -> None:
        """`why`: what the log says of its end."""
        for effect in effects:
            match effect:
                case Effect.STOP_WAITING if held.waiting is not None:
                    held.waiting.cancel()
                case Effect.PUBLISH if self._assigned_epoch(held) is not None:
                    self._start(self._publish, held)
                case Effect.HAND_OVER:
                    self._start(self._hand_over, held)
                case Effect.FORGET:
                    self._forget(held)
                case Effect.GIVE_UP:
                    held.log.go_offline(why)
                    held.scope.cancel()
                case Effect.HOLD:
                    epoch = self._assigned_epoch(held)
                    if epoch is not None:
                        self._hold(held.log.topic, held.log.partition, epoch)

    def _assigned_epoch(self, held: _Held) -> int | None:
        return self._ownership.assigned_epoch(held.log.topic.id, held.log.partition)

    def _start(self, task: Callable[[_Held], Awaitable[None]], held: _Held) -> None:
        if self._nursery is not None and not self._stopping:
            self._nursery.start_soon(task, held)

    async def _hand_over(self, held: _Held) -> None:
        with trio.move_on_after(HANDOVER_SECONDS) as scope:
            await held.keeper.close(release=True)
        if scope.cancelled_caught:
            logger.warning("handover_too_slow", kv(partition=held.log.name))
        held.log.go_offline("handed over")
        held.scope.cancel()

    def _hold(self, topic: Topic, partition: int, epoch: int) -> None:
        if self._nursery is None or self._stopping or topic.id not in self._topics:
            return
        config = self._catalog.config(topic)
        log = PartitionLog(topic, partition, config, self._env, self._settings, self._shared)
        log.failure_count, log.last_failure = self._failures.get((topic.name, partition), (0, ""))
        path = partition_path(topic.id, partition)
        keeper = Keeper(log, Claim(path, self._ownership.incarnation), self._keeper_parts)
        held = _Held(log, keeper, path, Tenure(epoch), trio.CancelScope())
        of_topic = self._held.setdefault(topic.name, {})
        assert partition not in of_topic, held.key
        of_topic[partition] = held
        self._nursery.start_soon(self._keep, held)
        for listener in self._listeners:
            listener(topic.name, partition)

    def _drop(self, topic: Topic) -> None:
        """It was deleted: nobody finds its partitions from now on. They go offline at once, of
        very many the later ones soon."""
        self._topics.pop(topic.id, None)
        self._following.pop(topic.id, None)
        held = self._held.get(topic.name)
        if held is None or any(one.log.topic.id != topic.id for one in islice(held.values(), 1)):
            return
        del self._held[topic.name]
        if len(held) <= PARTITIONS_PER_TURN:
            for one in held.values():
                self._end(one)
        else:
            self._dropped.extend(held.values())
            self._follow_asked.set()

    def _end(self, held: _Held) -> None:
        self._failures.pop(held.key, None)
        self._carry_out(held, held.tenure.step(Event.TOPIC_DELETED), "topic deleted")

    def _forget(self, held: _Held) -> None:
        """A deleted topic's are forgotten before they end."""
        of_topic = self._held.get(held.log.topic.name, NONE_HELD)
        if of_topic.get(held.log.partition) is held:
            del of_topic[held.log.partition]

    # -- one tenure ----------------------------------------------------------------------------

    async def _keep(self, held: _Held) -> None:
        """The task of one tenure."""
        tenure = held.tenure
        with held.scope:
            await self._tenure(held)
        held.log.go_offline("given up")
        await held.keeper.discard_spare()
        self._carry_out(held, tenure.step(Event.GONE_OFFLINE))
        if tenure.phase is Phase.RESTING:
            await self._rest(held)

    async def _rest(self, held: _Held) -> None:
        tenure, delay = held.tenure, self._retake_delay(held)
        is_confirmed = False
        while not is_confirmed:
            await trio.sleep(delay)
            if tenure.phase is not Phase.RESTING:
                return
            if self._assigned_epoch(held) is None:
                self._carry_out(held, tenure.assigned(None))
                return
            self._carry_out(held, tenure.step(Event.DELAY_PASSED))
            is_confirmed = await self._is_confirmed(held)
            answer = Event.CONFIRMED if is_confirmed else Event.NOT_CONFIRMED
            self._carry_out(held, tenure.step(answer))
            delay = min(2 * delay, RETAKE_DELAY_MAX_SECONDS)

    async def _tenure(self, held: _Held) -> None:
        has_waited = False
        while True:
            try:
                async with self._slots:
                    node = await self._documents.get(held.path)
                    held.owner = ChainDocument(node.data).owner
                    if has_waited or not self._is_elsewhere(held.owner):
                        if not await self._may_fence(held):
                            held.log.go_offline("another broker's, and not known to be ours")
                            return
                        if not self._begin(held):
                            return
                        limit = takeover_limit_seconds(held.log.failure_count)
                        if not await held.keeper.take_over(node, limit_seconds=limit):
                            return
                        break
                await self._wait_for_release(held)
            except (MetadataError, ChainFormatError) as error:
                held.log.go_offline(f"{type(error).__name__}: {error}")
                return
            has_waited = True
        self._failures.pop(held.key, None)
        self._carry_out(held, held.tenure.taken_over(held.log.leader_epoch))
        self._follow_assignment(held, self._assigned_epoch(held))
        await held.keeper.run()

    def _begin(self, held: _Held) -> bool:
        """Whether the take-over may begin: the tenure may have ended in this turn of the loop."""
        self._carry_out(held, held.tenure.step(Event.BEGUN))
        held.keeper.epoch_min = held.tenure.epoch
        return held.tenure.is_under_way

    async def _may_fence(self, held: _Held) -> bool:
        """What memory knows of assignments and of who lives may be old. Who would fence another
        broker's ledger asks metadata whether it is still to have the partition. MetadataError."""
        if held.owner in (None, self._ownership.incarnation):
            return True
        log = held.log
        return await self._ownership.confirm(log.topic.id, log.partition)

    def _is_elsewhere(self, owner: Incarnation | None) -> bool:
        ownership = self._ownership
        return owner is not None and owner != ownership.incarnation and ownership.is_alive(owner)

    async def _wait_for_release(self, held: _Held) -> None:
        """MetadataError, ChainFormatError."""
        with trio.move_on_after(HANDOVER_WAIT_SECONDS) as held.waiting:
            watch = self._store.watch(held.path)
            try:
                while self._is_elsewhere(held.owner):
                    node = await self._documents.get(held.path)
                    held.owner = ChainDocument(node.data).owner
                    if self._is_elsewhere(held.owner):
                        await watch.changed()
            finally:
                watch.close()
                held.waiting = None

    def _retake_delay(self, held: _Held) -> float:
        """Longer each time that the take-over itself fails."""
        if held.keeper.took_over:
            return RETAKE_DELAY_SECONDS
        count = self._failures.get(held.key, (0, ""))[0] + 1
        self._failures[held.key] = count, held.log.last_failure
        return min(RETAKE_DELAY_SECONDS * 2.0 ** min(count, 10), RETAKE_DELAY_MAX_SECONDS)

    async def _is_confirmed(self, held: _Held) -> bool:
        try:
            return await self._ownership.confirm(held.log.topic.id, held.log.partition)
        except MetadataError as error:
            logger.warning("not_confirmed", kv(partition=held.log.name, error=error))
            return False

    async def _publish(self, held: _Held) -> None:
        """Also the epoch that was planned: that ends a reassignment."""
        log = held.log
        while log.state is State.ONLINE and not self._stopping:
            try:
                await self._ownership.publish(log.topic.id, log.partition, log.leader_epoch)
                return
            except MetadataError as error:
                logger.warning("epoch_not_published", kv(partition=log.name, error=error))
            await trio.sleep(PUBLISH_RETRY_SECONDS)

    # -- deleted topics ------------------------------------------------------------------------

    async def _sweep_for_ever(self) -> None:
        while True:
            is_done = await sweep_deleted(self._store, self._ledgers)
            with trio.move_on_after(float("inf") if is_done else SWEEP_RETRY_SECONDS):
                await self._sweep_asked.wait()
            self._sweep_asked = trio.Event()

    async def _sweep_orphans(self) -> None:
        pause = ORPHANS_FIRST_SECONDS
        while True:
            await trio.sleep(pause)
            pause = ORPHANS_EVERY_SECONDS
            if not self._is_metadata_away and self._ownership.is_sweeper():
                await sweep_orphans(self._store, self._ledgers)


def takeover_limit_seconds(failure_count: int) -> float:
    """Longer each time: what only needs long must come to its end some time."""
    return min(TAKEOVER_SECONDS * 2.0 ** min(failure_count, 10), TAKEOVER_SECONDS_MAX)


def partition_path(topic_id: UUID, partition: int) -> str:
    return f"{PARTITIONS_PATH}/{topic_id}/{partition}"
