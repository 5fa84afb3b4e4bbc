"""Who reads partitions with transactions: what is committed, or everything.

What each fetch gave is kept, for the judge to compare with what the whole log says at the end. Now
and then a reader goes back, so that old ledgers' aborted transactions are looked up again.

Judged while it reads: a last stable offset that stands still below the high watermark although
nothing is in its way: a transaction is open for longer than its timeout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from sim.client import KafkaClient, Unanswered
from sim.fetching import RETRY_SECONDS, fetch_and_tell, records_of
from sim.history import Violation
from sim.transactions.decided import Read, committed, parse
from sim.transactions.history import Fetched
from sim.transactions.producer import TIMEOUT_MS_MAX
from sim.transactions.protocol import KEY_TYPE_GROUP, MOVED, Coordinated
from sim.workload import EARLIEST, LATEST, RETRIABLE
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from wire.kafka.messages.fetch import FetchPartition
from wire.kafka.messages.list_offsets import ListOffsetsPartition, ListOffsetsTopic
from wire.kafka.messages.offsets import OffsetFetchRequestTopic

if TYPE_CHECKING:
    from sim.history import Partition
    from sim.world import World
    from wire.kafka.messages.fetch import PartitionData

THINK_SECONDS = 0.25
BACK_SHARE, OFFSET_SHARE = 0.1, 0.1
FETCH_BYTES = 1 << 20
#: The broker that was asked leads in another epoch than the client knows.
OTHER_EPOCH = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH})
#: A transaction that is open for longer than its timeout and so many seconds, with nothing wrong,
#: is open for ever. Kafka looks every 10 s; here a timer is at the moment itself, and what is left
#: is for owners that have just changed, and two markers that found nobody (a second each).
SLACK_SECONDS = 10.0


class TxnReader:
    """`is_committed`: it reads only what is."""

    def __init__(self, world: World, name: str, *, is_committed: bool) -> None:
        self._world = world
        self.name = name
        self._rng = world.rng_for(name)
        self._is_committed = is_committed
        self.client: KafkaClient = world.client(name)
        self.positions: dict[Partition, int] = {}
        #: Where the last stable offset has stood still, since when.
        self._stuck: dict[Partition, tuple[int, float]] = {}

    async def run(self) -> None:
        world, rng = self._world, self._rng
        while not world.is_draining:
            partition = world.txn_partitions[rng.randrange(len(world.txn_partitions))]
            if partition not in world.plain_txn_partitions:
                continue
            position = self.positions.get(partition, 0)
            if rng.random() < BACK_SHARE:
                self.positions[partition] = rng.randrange(position + 1)
            await self.fetch(partition)
            if self._is_committed and rng.random() < OFFSET_SHARE:
                await self._look_at_offset()
            await trio.sleep(THINK_SECONDS * rng.random())

    # -- records -----------------------------------------------------------------------------------

    async def fetch(self, partition: Partition) -> tuple[PartitionData, list[Read]] | None:
        """One fetch, from where it is on; None if it had no answer, or an error."""
        position = self.positions.setdefault(partition, 0)
        small = 1 + self._rng.randrange(2000)
        data = FetchPartition(
            partition=partition[1],
            fetch_offset=position,
            # Who is in another epoch refuses, so that it is known whose answer it is.
            current_leader_epoch=self.client.leader_epoch(*partition),
            partition_max_bytes=small if self._rng.random() < 0.5 else FETCH_BYTES,
        )
        answer = await fetch_and_tell(
            self._world, self.name, self.client, partition, data, int(self._is_committed)
        )
        if answer is None:
            return None
        result, code = answer
        if code is ErrorCode.NONE:
            return result, self._take(partition, position, result)
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            start = await self.offset(partition, EARLIEST)
            if start is not None and position < start:
                self.positions[partition] = start
        elif code not in RETRIABLE | OTHER_EPOCH:
            raise Violation("refused", f"{self.name}: {code.name}")
        self.client.forget(*partition)
        await trio.sleep(RETRY_SECONDS)
        return None

    def _take(self, partition: Partition, position: int, result: PartitionData) -> list[Read]:
        world, history = self._world, self._world.txns
        teller = f"{self.name} of {self.client.leader(*partition)}"
        stable, high_watermark = result.last_stable_offset, result.high_watermark
        self._check_stuck(partition, stable, high_watermark)
        batches = list(parse(records_of(result)))
        # As Kafka's, an answer without records may have no list.
        listed = result.aborted_transactions
        if (listed is not None) != self._is_committed and (listed is not None or batches):
            raise Violation("refused", f"{self.name}: {listed} are aborted")
        if self._is_committed:
            found = list(committed(batches, listed or ()))
        else:
            found = [record for batch in batches for record in batch.records]
        end = batches[-1].header.last_offset + 1 if batches else position
        limit = stable if self._is_committed else high_watermark
        if end > max(limit, position):
            raise Violation("shown", f"{partition}: {teller} got to {end}, the end is {limit}")
        offsets = []
        for offset, record in found:
            if offset >= position:
                assert record.value is not None
                history.see(partition, offset, record.value, committed=self._is_committed)
                offsets.append(offset)
        if end > position:
            self.positions[partition] = end
            if self._is_committed:
                given = Fetched(self.name, position, end, frozenset(offsets))
                history.fetched[partition].append(given)
            world.trace.event(self.name, "read", f"{partition} to {end}: {len(offsets)}")
        world.made_progress(self.name)
        return batches

    def _check_stuck(self, partition: Partition, stable: int, high_watermark: int) -> None:
        now = trio.current_time()
        if stable == high_watermark:
            self._stuck.pop(partition, None)
            return
        # From when it was seen first: what came before, between two looks, nobody knows.
        before, since = self._stuck.get(partition, (stable, now))
        if stable != before:
            since = now
        self._stuck[partition] = stable, since
        if not self._world.is_healed:
            return
        waited = now - max(since, self._world.healed_at)
        if waited > TIMEOUT_MS_MAX / 1000 + SLACK_SECONDS:
            story = f"{partition}: stable at {stable} of {high_watermark} for {waited:.1f} s"
            raise Violation("open", f"{self.name}: {story}")

    async def offset(self, partition: Partition, timestamp: int) -> int | None:
        asked = ListOffsetsPartition(partition_index=partition[1], timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(self._is_committed),
            topics=[ListOffsetsTopic(name=partition[0], partitions=[asked])],
        )
        try:
            answer = await self.client.ask_leader(*partition, request, ListOffsetsResponse)
        except Unanswered:
            await trio.sleep(RETRY_SECONDS)
            return None
        result = answer.topics[0].partitions[0]
        if not result.error_code:
            return result.offset
        if ErrorCode(result.error_code) not in RETRIABLE:
            raise Violation("refused", f"{self.name}: {ErrorCode(result.error_code).name}")
        self.client.forget(*partition)
        await trio.sleep(RETRY_SECONDS)
        return None

    async def read_all(self, partition: Partition) -> tuple[int, list[Read]] | None:
        """The log start and every batch to the present end; None if it is to be tried again."""
        start = await self.offset(partition, EARLIEST)
        end = await self.offset(partition, LATEST)
        if start is None or end is None:
            return None
        self.positions[partition] = start
        batches: list[Read] = []
        while self.positions[partition] < end:
            answer = await self.fetch(partition)
            if answer is not None:
                batches += answer[1]
        start = await self.offset(partition, EARLIEST)
        return None if start is None else (start, batches)

    # -- offsets -----------------------------------------------------------------------------------

    async def _look_at_offset(self) -> None:
        ids = sorted({txn.transactional_id for txn in self._world.txns.txns})
        if not ids:
            return
        transactional_id = ids[self._rng.randrange(len(ids))]
        floor = self._world.txns.offset_floor(transactional_id)
        offset = await self.group_offset(transactional_id)
        if offset is not None:
            self._world.txns.offset_seen(transactional_id, offset, floor)
            self._world.trace.count("offsets of transactions looked at")

    async def group_offset(self, transactional_id: str) -> int | None:
        """What the id's group has committed, -1: nothing; None without an answer that holds."""
        group = f"group of {transactional_id}"
        topic, number = self._world.txn_partitions[0]
        request = OffsetFetchRequest(
            group_id=group,
            topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[number])],
            require_stable=True,
        )
        coordinated = Coordinated(self.client, group, KEY_TYPE_GROUP)
        answer = await coordinated.ask(request, OffsetFetchResponse, 7)
        if answer is None:
            await trio.sleep(RETRY_SECONDS)
            return None
        found = answer.topics[0].partitions[0] if answer.topics else None
        code = ErrorCode(answer.error_code or (found.error_code if found is not None else 0))
        if code is ErrorCode.NONE and found is not None:
            return found.committed_offset
        if code not in RETRIABLE | MOVED | {ErrorCode.UNSTABLE_OFFSET_COMMIT}:
            raise Violation("refused", f"{self.name}: OffsetFetch: {code.name}")
        await trio.sleep(RETRY_SECONDS)
        return None
