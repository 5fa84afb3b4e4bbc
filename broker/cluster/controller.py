"""The controller: one broker that gives partitions of lost and leaving brokers to others.

    /quire/controller   ephemeral: {"format": 1, "broker": id, "incarnation"}

Elected by being first to create that node; the others watch it. What it does, another may do at
the same time: two controllers can only lose each other's compare-and-sets, and a partition's data
do not depend on who is told to lead it (broker/cluster/ownership.py). It looks at every topic when
brokers came, went or changed, and at one topic when that or its assignment changed.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from math import inf
from typing import TYPE_CHECKING

import trio

from broker.cluster.assignment import new_assignment
from broker.cluster.balance import Electorate
from broker.cluster.catalog import TOPICS_PATH, TopicChange
from broker.cluster.ownership import Incarnation
from metadata.store import (
    MetadataError,
    MetadataUnknownOutcomeError,
    NodeExistsError,
    NoNodeError,
    SessionState,
)
from runtime.logs import kv

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from broker.cluster.assigned import AssignedOwnership
    from broker.cluster.assignment import Assigned, Assignment
    from broker.cluster.catalog import Topic, TopicCatalog, TopicEvent
    from broker.cluster.membership import Membership
    from broker.cluster.placing import Placing
    from metadata.store import MetadataStore, Watch

logger = logging.getLogger(__name__)

CONTROLLER_PATH = "/quire/controller"
FORMAT = 1
RETRY_SECONDS = 0.5
#: How long a broker may say that it cannot write before others lead what it leads. If no broker
#: reaches the bookies all will have said so by then (broker/cluster/reach.py: those that had no
#: reason to doubt begin to when the first one says it), and nothing moves.
DEPOSE_SECONDS = 20.0


class Controller:
    """`rebalance_seconds()`: how often leaders move back to the preferred ones; None: never.
    `may_be_elected`: whether it stands; it always knows who is elected."""

    def __init__(
        self,
        store: MetadataStore,
        membership: Membership,
        ownership: AssignedOwnership,
        catalog: TopicCatalog,
        placing: Placing,
        rebalance_seconds: Callable[[], float | None],
        *,
        may_be_elected: bool = True,
    ) -> None:
        self._store = store
        self._membership = membership
        self._ownership = ownership
        self._catalog = catalog
        self._placing = placing
        self._rebalance_seconds = rebalance_seconds
        self._may_be_elected = may_be_elected
        #: The elected one, as last seen.
        self.elected: Incarnation | None = None
        self._is_controller = False
        self._dirty: set[UUID] = set()
        self._all_dirty = True
        self._election_due = True
        self._woken = trio.Event()
        #: Since when we know that these cannot write.
        self._unable_since: dict[Incarnation, float] = {}
        self._listeners: list[Callable[[], None]] = []
        membership.subscribe(lambda _: self._wake_all())
        ownership.subscribe(self._wake)
        catalog.subscribe(self._on_topic)

    @property
    def is_controller(self) -> bool:
        return self._is_controller

    @property
    def _may_decide(self) -> bool:
        """Whether it stands for election, and decides if it is elected: not while it does not know
        itself, or it would give away what it leads. It may be elected then, by a request that
        waited for a new session, and stays so when its registration is deleted by hand; all is
        looked at again once it is registered."""
        return self._may_be_elected and self._membership.knows_itself

    def subscribe(self, listener: Callable[[], None]) -> None:
        """`listener()` after each look at who is elected."""
        self._listeners.append(listener)

    def abdicate(self) -> None:
        """Decides of no partition from now on, not even anew of what it is about to write: all
        brokers stop together, and this one's would go to those that stop next."""
        self._may_be_elected = self._is_controller = False

    # -- what wakes it --------------------------------------------------------------------------

    def _wake(self, topic_id: UUID) -> None:
        self._dirty.add(topic_id)
        self._woken.set()

    def _wake_all(self) -> None:
        self._all_dirty = self._election_due = True
        self._woken.set()

    def _on_topic(self, event: TopicEvent) -> None:
        if event.change is not TopicChange.CONFIG_CHANGED:
            self._wake(event.topic.id)

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._is_controller = False
        self._election_due = True
        self._woken.set()

    async def _watch_election(self, watch: Watch) -> None:
        while True:
            await watch.changed()
            self._election_due = True
            self._woken.set()

    # -- life -----------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        watch = self._store.watch(CONTROLLER_PATH)
        end_listening = self._store.subscribe(self._on_session)
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_election, watch)
                nursery.start_soon(self._rebalance)
                while True:
                    self._woken = trio.Event()
                    try:
                        if self._election_due:
                            await self._elect()
                        if self._is_controller and self._may_decide:
                            await self._rule()
                    except MetadataError as error:
                        logger.warning("controller_waits", kv(error=error))
                        self._wake_all()
                        await trio.sleep(RETRY_SECONDS)
                        continue
                    with trio.move_on_at(self._deposition_time()):
                        await self._woken.wait()
                        continue
                    self._all_dirty = True
        finally:
            end_listening()
            watch.close()
            with trio.move_on_after(RETRY_SECONDS, shield=True):
                await self._resign()

    async def _elect(self) -> None:
        """MetadataError: it is to be called again."""
        self._election_due = False
        was_controller = self._is_controller
        unknown: MetadataUnknownOutcomeError | None = None
        if self._may_decide:
            # Who has it is read in any case.
            try:
                await self._store.create(
                    CONTROLLER_PATH, self._document(), ephemeral=True, make_parents=True
                )
            except NodeExistsError:
                pass
            except MetadataUnknownOutcomeError as error:
                unknown = error
        try:
            node = await self._store.get(CONTROLLER_PATH)
        except NoNodeError:
            self._is_controller = False
            self.elected = None
            if unknown is not None:
                # It was not made, so no watch will tell that it is gone: stand again.
                raise unknown from None
            # Gone between the two: the watch has seen it, unless we did not stand.
            return
        self.elected = _incarnation(node.data)
        mine = self.elected == self._membership.incarnation
        is_owner = mine and await self._store.owns(CONTROLLER_PATH)
        self._is_controller = is_owner and self._may_be_elected
        if self._is_controller and not was_controller:
            logger.info("controller_elected", kv(node_id=self._membership.incarnation.node_id))
            self._all_dirty = True
        for listener in self._listeners:
            listener()

    def _document(self) -> bytes:
        own = self._membership.incarnation
        document = {"format": FORMAT, "broker": own.node_id, "incarnation": own.token}
        return json.dumps(document, separators=(",", ":")).encode()

    async def _resign(self) -> None:
        try:
            if self._is_controller and await self._store.owns(CONTROLLER_PATH):
                await self._store.delete(CONTROLLER_PATH)
        except MetadataError as error:
            logger.warning("not_resigned", kv(error=error))

    # -- what it does ---------------------------------------------------------------------------

    async def _rule(self) -> None:
        """Makes the assignments of all dirty topics agree with who lives. MetadataError."""
        topics = {topic.id: topic for topic in self._catalog.all()}
        everything = set(topics) | set(self._ownership.all())
        dirty = everything if self._all_dirty else self._dirty
        self._dirty, self._all_dirty = set(), False
        electorate = self._electorate()

        def latest() -> Electorate:
            """Brokers may come while another's change is waited for, and have been given partitions
            by it: to who lived before it they would seem lost."""
            nonlocal electorate
            live = {one.node_id: one.state for one in self._membership.candidates()}
            if live != electorate.states:
                electorate = self._electorate()
            return electorate

        changes = {}
        for topic_id in sorted(dirty):
            topic = topics.get(topic_id)
            if topic is None:
                await self._forget_if_gone(topic_id)
            elif self._needs_change(topic, electorate):
                changes[topic_id] = partial(self._changed, topic, latest)
        if changes:
            before = trio.current_time()
            await self._ownership.change_many(changes)
            logger.info(
                "assignments_changed",
                kv(topics=len(changes), ms=round(1000 * (trio.current_time() - before))),
            )

    def _electorate(self) -> Electorate:
        now = trio.current_time()
        live = self._membership.live.values()
        unable = [one.incarnation for one in live if not one.can_write]
        self._unable_since = {each: self._unable_since.get(each, now) for each in unable}
        deposed = {
            each.node_id
            for each, since in self._unable_since.items()
            if now >= since + DEPOSE_SECONDS
        }
        return Electorate(self._membership.candidates(), self._ownership.leading, deposed)

    def _deposition_time(self) -> float:
        """When the next broker is to be deposed, if it does not recover."""
        now = trio.current_time()
        times = [since + DEPOSE_SECONDS for since in self._unable_since.values()]
        return min((each for each in times if each > now), default=inf)

    def _needs_change(self, topic: Topic, electorate: Electorate) -> bool:
        """Cheap, as most topics need none."""
        assignment = self._ownership.get(topic.id)
        if assignment is None or len(assignment.partitions) < topic.partition_count:
            return True
        staying = {node_id for node_id in electorate.states if electorate.may_keep_leading(node_id)}
        return not staying.issuperset({one.leader for one in assignment.partitions})

    def _changed(
        self, topic: Topic, latest: Callable[[], Electorate], assignment: Assignment | None
    ) -> Assignment | None:
        if not self._may_decide:
            return None
        electorate = latest()
        if assignment is None:
            assignment = new_assignment(topic.name, [])
        missing = topic.partition_count - len(assignment.partitions)
        if missing > 0:
            assignment = assignment.grown(self._placing.lists(topic, missing))
        return assignment.with_partitions(
            {
                number: electorate.elect(assigned)
                for number, assigned in enumerate(assignment.partitions)
            }
        )

    async def _forget_if_gone(self, topic_id: UUID) -> None:
        """A topic that the catalog does not know may be so new that it was not told of it yet."""
        assignment = self._ownership.get(topic_id)
        if assignment is None:
            return
        try:
            node = await self._store.get(f"{TOPICS_PATH}/{assignment.topic}")
        except NoNodeError:
            node = None
        if node is None or json.loads(node.data).get("id") != str(topic_id):
            await self._ownership.forget([topic_id])

    # -- leaders back to where they should be ---------------------------------------------------

    async def _rebalance(self) -> None:
        while True:
            seconds = self._rebalance_seconds()
            await trio.sleep(RETRY_SECONDS if seconds is None else seconds)
            if seconds is None or not self._is_controller:
                continue
            try:
                await self.elect_preferred()
            except MetadataError as error:
                logger.warning("leaders_not_balanced", kv(error=error))

    async def elect_preferred(self) -> None:
        """All partitions whose preferred leader lives and stays. MetadataError."""
        electorate = Electorate(self._membership.candidates(), self._ownership.leading)

        def preferred(assignment: Assignment | None) -> Assignment | None:
            if assignment is None or not self._may_decide:
                return None
            return assignment.with_partitions(
                {n: electorate.elect_preferred(one) for n, one in enumerate(assignment.partitions)}
            )

        def is_wrong(assigned: Assigned) -> bool:
            return assigned.replicas[:1] != (assigned.leader,)

        changes = {
            topic_id: preferred
            for topic_id, assignment in self._ownership.all().items()
            if any(map(is_wrong, assignment.partitions))
        }
        if changes:
            await self._ownership.change_many(changes)


def _incarnation(data: bytes) -> Incarnation | None:
    """None if it is no document of ours."""
    try:
        document = json.loads(data)
        return Incarnation(int(document["broker"]), str(document["incarnation"]))
    except (ValueError, KeyError, TypeError):
        return None
