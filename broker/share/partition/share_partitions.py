"""All share partitions of a broker: made when somebody asks first, loaded many at a time.

A key is read from the persister with the partition's leader epoch, so that older leaders are fenced
from then on. While its coordinator cannot be reached the share partition stays LOADING and is read
again; any other refusal ends it, and whoever waits is told.

A share partition is kept while sessions have it, and longer, as long as there is room: of one that
nothing was ever stored of the next one would begin at the log's end anew, and what was produced
meanwhile would be delivered to nobody. Of those that no session has, UNUSED_MAX are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

import trio

from broker.log.partition import State as LogState
from broker.share.partition.beginning import beginning
from broker.share.partition.share_partition import SharePartition, State, Surroundings
from broker.share.partition.storing import RETRIABLE, as_told
from broker.share.ports import ShareKey
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    from broker.log.manager import LogManager
    from broker.share.ports import Persister, ShareGroups, ShareState
    from broker.share.sessions.share_session_core import Partition, ShareSession
    from runtime.env import Env
    from runtime.timers import Timers

#: Keys of one read.
LOADED_AT_ONCE = 500
#: Between two reads of a key whose coordinator is not there.
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.2, 5.0
#: Of a few hundred bytes each.
UNUSED_MAX = 10_000
#: So many of a session that ended are let go in one turn.
RELEASED_PER_TURN = 100
#: That can be looked at in a microsecond.
RUNS_PER_UNIT = 20


class SharePartitions:
    def __init__(
        self,
        logs: LogManager,
        persister: Persister,
        groups: ShareGroups,
        env: Env,
        timers: Timers,
    ) -> None:
        self.around = Surroundings(persister, groups, env, timers, self._start)
        self._logs = logs
        self._nursery: trio.Nursery | None = None
        self._is_over = False
        self._held: dict[ShareKey, SharePartition] = {}
        #: How many sessions have each.
        self._uses: dict[ShareKey, int] = {}
        self._unused: OrderedDict[ShareKey, None] = OrderedDict()
        #: By group and member: sessions that are closed, and have still something to give back.
        self._ending: dict[tuple[str, str], list[ShareSession]] = {}
        self._to_load: list[tuple[SharePartition, float]] = []
        self._load_deferred = False

    def __len__(self) -> int:
        return len(self._held)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Loads and stores, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._is_over = True

    def _start(self, function: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Nothing, once the broker stops: whoever waits is not answered any more."""
        assert self._nursery is not None, "it runs"
        if self._is_over:
            return
        self._nursery.start_soon(function, *arguments)

    # -- which there are -------------------------------------------------------------------------

    def get(self, group_id: str, topic_id: UUID, partition: int) -> SharePartition:
        """It may be LOADING. KafkaError as `LogManager.get_by_id`."""
        log = self._logs.get_by_id(topic_id, partition)
        key = ShareKey(group_id, topic_id, partition)
        share = self._held.get(key)
        if share is not None and share.log is log and share.state is not State.GONE:
            return share
        if log.state is LogState.OFFLINE:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if share is not None:
            share.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        share = self._held[key] = SharePartition(key, log, self.around)
        if key not in self._uses:
            self._not_used(key)
        self._load_soon(share, RETRY_SECONDS_MIN)
        return share

    def known(self, group_id: str, topic_id: UUID, partition: int) -> SharePartition:
        """One that records were acquired of. KafkaError as `LogManager.get_by_id`, and
        INVALID_RECORD_STATE if none can have been, since this broker leads the partition."""
        log = self._logs.get_by_id(topic_id, partition)
        share = self._held.get(ShareKey(group_id, topic_id, partition))
        if log.state is not LogState.ONLINE:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if share is None or share.log is not log or share.state is not State.ACTIVE:
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE)
        return share

    # -- sessions --------------------------------------------------------------------------------

    def use(self, session: ShareSession, partition: Partition, /) -> int:
        """A session has it now. If none had it for a while, and nobody holds anything of it, its
        state is read anew: an operator may have put it elsewhere, which he may do with a group that
        nobody is in. Who opened his session anew, or forgot a partition and named it again, holds
        what he held.

        What an earlier session of the member has still to give back here it gives back before.
        Gives what it took, in microseconds."""
        for before in self._ending.get((session.group, session.member), ()):
            if partition in before.partitions:
                del before.partitions[partition]
                self._give_back(before, partition)
        key = ShareKey(session.group, *partition)
        self._uses[key] = self._uses.get(key, 0) + 1
        if key not in self._unused:
            return 0
        del self._unused[key]
        share = self._held.get(key)
        if share is None or share.state is not State.ACTIVE:
            return 0
        units = len(share.core.runs) // RUNS_PER_UNIT
        if not share.core.is_any_held():
            del self._held[key]
            share.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return units

    def unuse(self, session: ShareSession, partition: Partition, /) -> None:
        key = ShareKey(session.group, *partition)
        uses = self._uses.get(key, 0) - 1
        if uses > 0:
            self._uses[key] = uses
            return
        self._uses.pop(key, None)
        if key in self._held:
            self._not_used(key)

    def _not_used(self, key: ShareKey) -> None:
        self._unused[key] = None
        while len(self._unused) > UNUSED_MAX:
            oldest, _ = self._unused.popitem(last=False)
            share = self._held.pop(oldest, None)
            if share is not None:
                share.end(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def let_go(self, session: ShareSession, *, releases: bool) -> None:
        """A session is closed: its share partitions are used once less, and with `releases` what
        its member holds of them is free; some in each turn."""
        if releases:
            self._ending.setdefault((session.group, session.member), []).append(session)
        self._let_go_some(session, releases=releases)

    def _let_go_some(self, session: ShareSession, *, releases: bool) -> None:
        for _ in range(min(RELEASED_PER_TURN, len(session.partitions))):
            partition, _ = session.partitions.popitem()
            if releases:
                self._give_back(session, partition)
            else:
                self.unuse(session, partition)
        if session.partitions:
            self.around.env.turn.later(partial(self._let_go_some, session, releases=releases))
        elif releases:
            name = session.group, session.member
            self._ending[name].remove(session)
            if not self._ending[name]:
                del self._ending[name]

    def _give_back(self, session: ShareSession, partition: Partition) -> None:
        """What its member holds of the partition; the session is over."""
        share = self._held.get(ShareKey(session.group, *partition))
        if share is not None:
            share.release(session.member)
        self.unuse(session, partition)

    # -- loading ---------------------------------------------------------------------------------

    def _load_soon(self, share: SharePartition, retry_seconds: float) -> None:
        """With all others that come in this turn."""
        if share.state is not State.LOADING:
            return
        self._to_load.append((share, retry_seconds))
        if not self._load_deferred:
            self._load_deferred = True
            self.around.env.turn.defer(self._load_all)

    def _load_all(self) -> None:
        self._load_deferred = False
        waiting, self._to_load = self._to_load, []
        ready = []
        for share, retry_seconds in waiting:
            if share.log.state is LogState.LOADING:
                self._start(self._load_later, share)
            elif share.state is State.LOADING:
                ready.append((share, retry_seconds))
        for start in range(0, len(ready), LOADED_AT_ONCE):
            self._start(self._load, ready[start : start + LOADED_AT_ONCE])

    async def _load_later(self, share: SharePartition) -> None:
        await share.log.wait_loaded()
        self._load_soon(share, RETRY_SECONDS_MIN)

    async def _load(self, shares: list[tuple[SharePartition, float]]) -> None:
        keys = [(share.key, share.log.leader_epoch) for share, _ in shares]
        found = await self.around.persister.read(keys)
        for share, retry_seconds in shares:
            stored = found[share.key]
            if stored.error in RETRIABLE:
                again = min(retry_seconds * 2, RETRY_SECONDS_MAX)
                load = partial(self._load_soon, share, again)
                self.around.timers.after(retry_seconds, load)
            elif stored.error is not ErrorCode.NONE:
                self._refused(share, as_told(stored.error))
            elif stored.start_offset >= 0:
                share.begin(stored, stored.start_offset)
                await trio.lowlevel.checkpoint()  # thousands of batches may be stored of each
            else:
                self._start(self._begin_at_reset, share, stored)

    async def _begin_at_reset(self, share: SharePartition, stored: ShareState) -> None:
        """Nothing was ever delivered of it, as far as is known."""
        reset = share.settings.auto_offset_reset
        try:
            start = await beginning(share.log, reset, self.around.env.clock.time_ms())
        except KafkaError as error:
            self._refused(share, error.code)
        else:
            share.begin(stored, start)

    def _refused(self, share: SharePartition, error: ErrorCode) -> None:
        share.end(error)
        if self._held.get(share.key) is share and share.key not in self._uses:
            del self._held[share.key]
            self._unused.pop(share.key, None)
