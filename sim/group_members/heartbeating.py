"""A member of a protocol in which one heartbeat joins, tells what is owned, and hears what is the
member's own: of KIP-848's consumers, and of Kafka Streams (KIP-1071).

As Java's clients: what it has to give up it commits and gives up at once; after an answer that did
not come it tells everything again; who is fenced gives everything up and joins anew.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import trio

from sim.client import Unanswered
from sim.fetching import RETRY_SECONDS
from sim.group_members.committing import FETCH_VERSION, CommittingMember, topics_of
from sim.group_members.safe_time import SafeTime
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import OffsetFetchRequest, OffsetFetchResponse
from wire.kafka.messages.offsets import OffsetFetchRequestGroup

if TYPE_CHECKING:
    import random
    from collections.abc import Collection

    from sim.history import Partition
    from sim.world import World

JOINING, LEAVING = 0, -1
#: In half of the cases not at all. Well below REBALANCE_MS.
KEEP_SECONDS_MAX = 1.0


def keep_seconds(rng: random.Random) -> float:
    """How long a member goes on with what it has to give up, as a slow rebalance listener does."""
    return max(0.0, 2 * KEEP_SECONDS_MAX * rng.random() - KEEP_SECONDS_MAX)


class HeartbeatingMember(CommittingMember):
    over_codes = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
    commit_version = 9
    #: What the trace counts by.
    kind: str

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        #: What it was told last; what it owns becomes that.
        self._target: set[Partition] = set()
        #: Whether the next heartbeat tells everything; whether it tells what is owned.
        self._is_full = self._is_changed = True
        self._lives = 0
        self._safe_time = SafeTime()
        #: Until then it goes on with what it has to give up.
        self._keeps_until: float | None = None

    # -- what a protocol is --------------------------------------------------------------------

    @abstractmethod
    async def _exchange(self, *, is_full: bool, tells: bool) -> Collection[Partition] | None:
        """One heartbeat, which brings `_epoch`: what is to be its own, None if that has not
        changed. `is_full`: everything is told; `tells`: what is owned is. OverError, Unanswered."""

    @abstractmethod
    async def _say_farewell(self, member_id: str) -> None:
        """It leaves; Unanswered."""

    async def _prepare(self) -> None:
        """What it must know to join; Unanswered."""
        return

    # -- the same in all of them ---------------------------------------------------------------

    async def _join(self) -> None:
        self._give_up_all()
        await self._prepare()
        if not self._id:
            self._lives += 1
            self._id = f"{self.name}-{self._lives}"
        self._epoch = JOINING
        await self._beat()
        self._world.trace.count(f"{self.kind} group joins")

    async def _beat(self) -> None:
        try:
            await self._tell()
        except Unanswered:
            if self._epoch == JOINING:
                raise
            # Its membership goes on, as far as it knows.
            self._coordinator = None
            await trio.sleep(RETRY_SECONDS)

    async def _tell(self) -> None:
        self._safe_time.asks(trio.current_time())
        is_full, tells = self._is_full, self._is_full or self._is_changed
        self._is_full, self._is_changed = True, True  # unless an answer comes
        # What it gave up may be another one's before it hears the answer.
        owners = self._world.owners[self.group]
        owners.has_only(self._id, self._target.union(self._assigned))
        target = await self._exchange(is_full=is_full, tells=tells)
        self._is_full = self._is_changed = False
        if target is not None:
            self._target = set(target)
            self._world.trace.event(
                self.name, "assigned", f"epoch {self._epoch}: {sorted(self._target)}"
            )
            self._world.trace.count(f"{self.kind} group assignments")
        assert self._coordinator is not None
        owners.told(
            self._id,
            self._epoch,
            self._target.union(self._assigned),
            self._coordinator,
            instance=self.instance,
            now=trio.current_time(),
            safe_until=self._safe_time.answered(is_taken=self._is_taken()),
        )
        await self._reconcile()

    def _is_taken(self) -> bool:
        """Whether it was told to give something up."""
        return not self._target.issuperset(self._assigned)

    async def _reconcile(self) -> None:
        """What is not its own any more goes, what is new is taken up where the group is."""
        positions = self._reader.positions
        gone = [partition for partition in self._assigned if partition not in self._target]
        if gone:
            now = trio.current_time()
            if self._keeps_until is None:
                self._keeps_until = now + keep_seconds(self._rng)
            if now < self._keeps_until:
                return
            self._keeps_until = None
            self._assigned = [each for each in self._assigned if each in self._target]
            self._is_changed = True
            last = {each: positions.pop(each) for each in gone if each in positions}
            await self._commit(last)
        new = sorted(self._target.difference(self._assigned))
        if new and await self._take_up(new):
            self._assigned += new
            self._is_changed = True

    async def _take_up(self, partitions: list[Partition]) -> bool:
        """False: this epoch is over, and the next heartbeat tells more."""
        floors = {p: self._world.history.committed(self.group, p) for p in partitions}
        group = OffsetFetchRequestGroup(
            group_id=self.group,
            member_id=self._id,
            member_epoch=self._epoch,
            topics=topics_of(partitions),
        )
        answer = await self._ask(
            OffsetFetchRequest(groups=[group]), OffsetFetchResponse, FETCH_VERSION
        )
        (found_group,) = answer.groups
        code = ErrorCode(found_group.error_code)
        if code is ErrorCode.STALE_MEMBER_EPOCH:
            self._world.trace.count(f"group {code.name}")
            return False
        self._check(code)
        for topic_found in found_group.topics:
            for found in topic_found.partitions:
                self._check(ErrorCode(found.error_code))
                partition = topic_found.name, found.partition_index
                self._told(partition, found.committed_offset, floors[partition])
        return True

    def _give_up_all(self) -> None:
        self._world.owners[self.group].over(self._id)
        self._assigned, self._target = [], set()
        self._keeps_until = None
        self._safe_time = SafeTime()
        self._reader.positions.clear()
        self._is_full = self._is_changed = True

    def _forget(self) -> None:
        self._give_up_all()
        self._id = ""

    def _commit_is_unknown(self) -> None:
        """While this member is one its late commit may still be done: another one goes on."""
        self._forget()

    async def _leave(self) -> None:
        if not self._id:
            return
        member_id = self._id
        self._forget()
        try:
            await self._say_farewell(member_id)
        except Unanswered:
            self._coordinator = None
