"""AssignedOwnership: the assignments of all topics in memory, and what this broker is to lead.

Every broker follows all assignments: clients may ask any broker who leads what. A change is made by
compare-and-set, by whoever has a reason to: the controller, a broker that was asked by an
administrator, and the leader that took over (`publish`). Changes of one topic that are wanted at
once are one write; those of many topics travel in few requests.

When the answer to a write is lost, the documents are read again and the change is decided again. So
a decision must be a function of the document that comes to the same when it is asked twice.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import trio

from broker.cluster import optimistic
from broker.cluster.assignment import (
    ASSIGNMENTS_PATH,
    NO_LEADER,
    Assigned,
    Assignment,
    AssignmentFormatError,
)
from broker.cluster.watched_folder import WatchedFolder
from broker.log.life.document import DocumentReader
from metadata.store import (
    CreateOp,
    MetadataError,
    NoNodeError,
    PutOp,
)
from runtime.logs import kv

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from broker.cluster.membership import Membership
    from broker.cluster.ownership import Incarnation
    from metadata.store import MetadataStore, Node

    #: An assignment and its document's version; None: it is not there yet.
    Known = tuple[Assignment, int] | None
    #: (topic id, what it is to become, its version then, the write)
    Write = tuple[UUID, Assignment, int, CreateOp | PutOp]
    #: What an assignment is to become; None (of one that is not there yet) and None (no change).
    Change = Callable[[Assignment | None], Assignment | None]

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
#: Topics that are looked at in one turn when brokers come or go: 1 ms.
TOPICS_PER_TURN = 200
#: Documents in one multi: ZooKeeper refuses a request above 1 MiB.
OPS_PER_MULTI_MAX = 100
BYTES_PER_MULTI_MAX = 512 << 10


class AssignedOwnership:
    """Implements broker/cluster/ownership.py's `Ownership`."""

    def __init__(self, store: MetadataStore, membership: Membership) -> None:
        self._store = store
        self._membership = membership
        self._node_id = membership.incarnation.node_id
        self._known: dict[UUID, tuple[Assignment, int]] = {}
        #: Of those that are known: to name 10,000 takes 10 ms.
        self._names: dict[str, None] = {}
        #: By broker: partitions that it is to lead.
        self.leading: Counter[int] = Counter()
        #: By topic: how many partitions this broker is to lead.
        self._ours: dict[UUID, int] = {}
        self._listeners: list[Callable[[UUID], None]] = []
        self._folder = WatchedFolder(store, ASSIGNMENTS_PATH)
        self._documents = DocumentReader(store)
        self._unpublished: dict[UUID, dict[int, int]] = {}
        self._publish_asked = trio.Event()
        membership.subscribe(self._on_brokers)
        self._registered_count = 0
        #: After a change of brokers: topics that are to be read again, and whose listeners are to
        #: be told.
        self._to_mark: deque[str] = deque()
        self._to_tell: deque[UUID] = deque()
        self._follow_asked = trio.Event()

    # -- reads ----------------------------------------------------------------------------------

    @property
    def incarnation(self) -> Incarnation:
        return self._membership.incarnation

    def get(self, topic_id: UUID) -> Assignment | None:
        found = self._known.get(topic_id)
        return None if found is None else found[0]

    def version(self, topic_id: UUID) -> int:
        """Of a known topic's document."""
        return self._known[topic_id][1]

    def partition(self, topic_id: UUID, partition: int) -> Assigned | None:
        found = self._known.get(topic_id)
        if found is None or not 0 <= partition < len(found[0].partitions):
            return None
        return found[0].partitions[partition]

    def all(self) -> dict[UUID, Assignment]:
        return {topic_id: assignment for topic_id, (assignment, _) in self._known.items()}

    @property
    def led_count(self) -> int:
        """Partitions that this broker is to lead."""
        return self.leading[self._node_id]

    def assigned_epoch(self, topic_id: UUID, partition: int) -> int | None:
        if not self._membership.is_registered:
            return None
        assigned = self.partition(topic_id, partition)
        if assigned is None or assigned.leader != self._node_id:
            return None
        return assigned.epoch

    def is_alive(self, incarnation: Incarnation) -> bool:
        return self._membership.is_alive(incarnation)

    def is_sweeper(self) -> bool:
        """The lowest id: no more metadata for something that any number may do at once."""
        return self._node_id == min(self._membership.live, default=None)

    async def confirm(self, topic_id: UUID, partition: int) -> bool:
        # Of many partitions that change hands at once the documents are read together.
        own, node = await self._documents.get_many([self._membership.path, _path(topic_id)])
        if not self._membership.is_ours(own):
            return False
        await self._take_read(topic_id, node)
        return self.assigned_epoch(topic_id, partition) is not None

    def subscribe(self, listener: Callable[[UUID], None]) -> None:
        self._listeners.append(listener)

    # -- changes --------------------------------------------------------------------------------

    async def change(self, topic_id: UUID, change: Change) -> None:
        """Stores `change(what it is now)`, which may be asked again when another broker was
        quicker, and must then come to the same, and may raise. MetadataError."""
        await self.change_many({topic_id: change})

    async def change_many(self, changes: Mapping[UUID, Change]) -> None:
        """As `change`, for many topics in few requests. MetadataError."""
        writes: list[Write] = []
        for topic_id, change in changes.items():
            known = self._known.get(topic_id)
            wanted = _decided(change, known)
            if wanted is not None:
                writes.append((topic_id, wanted, *_operation(topic_id, known, wanted)))
        lost: list[UUID] = []
        for batch in _batches(writes):
            if await optimistic.attempt(self._store.multi([op for *_, op in batch])):
                for topic_id, assignment, version, _ in batch:
                    self._take(topic_id, assignment, version)
                continue
            topic_ids = [topic_id for topic_id, *_ in batch]
            await self._read(topic_ids)
            lost += topic_ids
        # A lost race in a batch fails all of it: from then on one by one.
        for topic_id in lost:
            await self._change_one(topic_id, changes[topic_id])

    async def _change_one(self, topic_id: UUID, change: Change) -> None:
        """MetadataError."""

        async def write(known: Known, wanted: Assignment) -> None:
            version, op = _operation(topic_id, known, wanted)
            await self._store.multi([op])
            self._take(topic_id, wanted, version)

        async def look(_: Known) -> bool:
            await self._read([topic_id])
            return False  # decided again, it comes to nothing if it was written

        await optimistic.change(
            partial(self._known.get, topic_id),
            partial(_decided, change),
            write,
            look_again=look,
            recognise=look,
            attempts_max=optimistic.ATTEMPTS_MAX,
        )

    async def publish(self, topic_id: UUID, partition: int, leader_epoch: int) -> None:
        """Returns at once: `run` writes it, and tries again until it is written or out of date."""
        assigned = self.partition(topic_id, partition)
        if assigned is not None and assigned.published(self._node_id, leader_epoch) != assigned:
            self._unpublished.setdefault(topic_id, {})[partition] = leader_epoch
            self._publish_asked.set()

    async def _publish(self) -> None:
        """All that came while the last write was under way is the next one."""
        while True:
            await self._publish_asked.wait()
            self._publish_asked = trio.Event()
            unpublished, self._unpublished = self._unpublished, {}
            try:
                await self.change_many(
                    {
                        topic_id: partial(self._published, epochs)
                        for topic_id, epochs in unpublished.items()
                    }
                )
            except MetadataError as error:
                logger.warning("epochs_not_published", kv(topics=len(unpublished), error=error))
                for topic_id, epochs in unpublished.items():
                    self._unpublished[topic_id] = epochs | self._unpublished.get(topic_id, {})
                self._publish_asked.set()
                await trio.sleep(RETRY_SECONDS)

    def _published(
        self, epochs: Mapping[int, int], assignment: Assignment | None
    ) -> Assignment | None:
        if assignment is None:
            return None
        return assignment.with_partitions(
            {
                number: assignment.partitions[number].published(self._node_id, epoch)
                for number, epoch in epochs.items()
                if number < len(assignment.partitions)
            }
        )

    def made(self, topic_id: UUID, assignment: Assignment) -> None:
        """This broker has just made it."""
        self._take(topic_id, assignment, 0)

    def look_again(self, topic_id: UUID) -> None:
        """It was changed by other means."""
        self._folder.mark(str(topic_id))

    async def forget(self, topic_ids: Collection[UUID]) -> None:
        """Deletes assignments of topics that are gone. MetadataError."""
        for topic_id in topic_ids:
            with suppress(NoNodeError):
                await self._store.delete(_path(topic_id))
            self._drop(topic_id)

    # -- following ------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """`started` once all are known."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._folder.run, self._look, self._names.keys)
            nursery.start_soon(self._publish)
            nursery.start_soon(self._follow)
            task_status.started()

    async def _look(self, names: list[str]) -> None:
        await self._read([UUID(name) for name in names])

    async def _read(self, topic_ids: Sequence[UUID]) -> None:
        nodes = await self._store.get_many([_path(topic_id) for topic_id in topic_ids])
        for topic_id, node in zip(topic_ids, nodes, strict=True):
            await self._take_read(topic_id, node)

    async def _take_read(self, topic_id: UUID, node: Node | None) -> None:
        if node is None:
            self._drop(topic_id)
            return
        known = self._known.get(topic_id)
        if known is not None and known[1] >= node.version:
            return  # not parsed for nothing
        try:
            assignment = await _parsed(node.data)
        except AssignmentFormatError as error:
            logger.error("bad_assignment", kv(topic_id=topic_id, error=error))
            return
        self._take(topic_id, assignment, node.version)

    def _take(self, topic_id: UUID, assignment: Assignment, version: int) -> None:
        """Only forward: an older answer may come after a newer one."""
        known = self._known.get(topic_id)
        if known is not None and known[1] >= version:
            return
        self._count(topic_id, None if known is None else known[0], assignment)
        self._known[topic_id] = (assignment, version)
        if known is None:
            name = str(topic_id)
            self._names[name] = None
            # Made here, it may be deleted before it was ever seen in the folder.
            self._folder.mark(name)
        self._tell(topic_id)

    def _drop(self, topic_id: UUID) -> None:
        known = self._known.pop(topic_id, None)
        if known is not None:
            del self._names[str(topic_id)]
            self._count(topic_id, known[0], None)
            self._tell(topic_id)

    def _count(self, topic_id: UUID, old: Assignment | None, new: Assignment | None) -> None:
        if old is not None:
            self.leading.subtract(one.leader for one in old.partitions)
        if new is not None:
            self.leading.update(one.leader for one in new.partitions if one.leader != NO_LEADER)
        ours = sum(one.leader == self._node_id for one in new.partitions) if new else 0
        if ours:
            self._ours[topic_id] = ours
        else:
            self._ours.pop(topic_id, None)

    def _on_brokers(self, ended: frozenset[Incarnation]) -> None:
        """Looks at some topics at once, and of very many at the others soon."""
        count = self._membership.registered_count
        is_new, self._registered_count = count != self._registered_count, count
        if is_new:
            # A session ended and another began, or it is the first one: nothing is known for sure.
            self._to_mark = deque(self._names)
        if is_new or ended:
            self._to_tell = deque(self._ours)
            self._follow_some()
        if self._to_mark or self._to_tell:
            self._follow_asked.set()

    def _follow_some(self) -> None:
        for _ in range(min(len(self._to_mark), TOPICS_PER_TURN)):
            self._folder.mark(self._to_mark.popleft())
        for _ in range(min(len(self._to_tell), TOPICS_PER_TURN)):
            self._tell(self._to_tell.popleft())

    async def _follow(self) -> None:
        while True:
            await self._follow_asked.wait()
            self._follow_asked = trio.Event()
            while self._to_mark or self._to_tell:
                await trio.lowlevel.checkpoint()
                self._follow_some()

    def _tell(self, topic_id: UUID) -> None:
        for listener in self._listeners:
            listener(topic_id)


def _path(topic_id: UUID) -> str:
    return f"{ASSIGNMENTS_PATH}/{topic_id}"


async def _parsed(data: bytes) -> Assignment:
    """In slices. Others may have read, or made, a newer one meanwhile. AssignmentFormatError."""
    steps = Assignment.parse(data)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            assignment: Assignment = end.value
            return assignment
        await trio.lowlevel.checkpoint()


def _decided(change: Change, known: Known) -> Assignment | None:
    """None if it is that already."""
    assignment = None if known is None else known[0]
    wanted = change(assignment)
    return None if wanted == assignment else wanted


def _operation(topic_id: UUID, known: Known, wanted: Assignment) -> tuple[int, CreateOp | PutOp]:
    """And the version that it will have."""
    if known is None:
        return 0, CreateOp(_path(topic_id), wanted.to_bytes(), make_parents=True)
    return known[1] + 1, PutOp(_path(topic_id), wanted.to_bytes(), known[1])


def _batches(items: Sequence[Write]) -> list[list[Write]]:
    """As many at once as a multi takes."""
    batches: list[list[Write]] = []
    size_bytes = 0
    for item in items:
        added_bytes = len(item[3].data)
        full = not batches or len(batches[-1]) >= OPS_PER_MULTI_MAX
        if full or size_bytes + added_bytes > BYTES_PER_MULTI_MAX:
            batches.append([])
            size_bytes = 0
        batches[-1].append(item)
        size_bytes += added_bytes
    return batches
