"""A member of a share group (KIP-932): it is given records of partitions that others read, too, and
accepts, releases or rejects each of them.

As Java's client it has a share session with each leader, in which a request names what is new; a
session that is not known any more is opened anew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from sim.client import Unanswered
from sim.fetching import RETRY_SECONDS
from sim.group_members.member import Member
from sim.group_members.topic_ids import TopicIds
from sim.history import Violation
from sim.names import SHARE_GROUP
from sim.workload import EARLIEST, LATEST, RECORDS_MAX, RETRIABLE
from wire.kafka.errors import ErrorCode
from wire.kafka.messages import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from wire.kafka.messages.share_groups import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
)
from wire.kafka.records.batch import iter_records, scan_batches

if TYPE_CHECKING:
    from sim.history import Partition
    from sim.world import World
    from wire.kafka.messages.share_groups import ShareFetchResponsePartitionData

JOINING, LEAVING = 0, -1
ACCEPT, RELEASE, REJECT = 1, 2, 3
#: Of what is given: the share that is released, and that is rejected.
RELEASE_SHARE, REJECT_SHARE = 0.15, 0.02
#: The chance that it thinks for longer than its locks live.
SLOW_SHARE = 0.02
#: How long a lock lives (the settings of the world's brokers).
LOCK_SECONDS = 1.0
#: A session that the leader does not know, or knows otherwise.
SESSION_CODES = frozenset(
    {
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)
#: Of a partition: somebody else leads it, or the state is on its way.
PARTITION_CODES = RETRIABLE | {
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.FENCED_STATE_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_SERVER_ERROR,
}
Address = tuple[str, int]


@dataclass(slots=True)
class _Session:
    epoch: int = 0
    partitions: set[Partition] = field(default_factory=set)

    def advance(self) -> None:
        self.epoch += 1


class ShareMember(Member):
    group = SHARE_GROUP
    over_codes = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._topics = TopicIds()
        self._lives = 0
        self._is_full = True
        self._sessions: dict[Address, _Session] = {}

    # -- membership ----------------------------------------------------------------------------

    async def _join(self) -> None:
        await self._topics.look_up(self._client, (topic for topic, _ in self._world.partitions))
        if not self._id:
            self._lives += 1
            self._id = f"{self.name}-{self._lives}"
        self._epoch = JOINING
        self._is_full = True
        await self._beat()

    async def _beat(self) -> None:
        is_full, self._is_full = self._is_full, True
        try:
            answer = await self._ask(
                ShareGroupHeartbeatRequest(
                    group_id=self.group,
                    member_id=self._id,
                    member_epoch=self._epoch,
                    subscribed_topic_names=self._topics.names() if is_full else None,
                ),
                ShareGroupHeartbeatResponse,
                1,
            )
        except Unanswered:
            if self._epoch == JOINING:
                raise
            self._coordinator = None
            await trio.sleep(RETRY_SECONDS)
            return
        self._check(ErrorCode(answer.error_code))
        self._is_full = False
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            self._assigned = self._topics.partitions(answer.assignment.topic_partitions)
            self._world.trace.event(self.name, "assigned", f"{self._epoch}: {self._assigned}")
            self._world.trace.count("share group assignments")

    def _forget(self) -> None:
        """Its sessions stay open, and its locks with them, until their time is over."""
        self._world.share.let_all_go(self._id)
        self._id = ""
        self._assigned = []
        self._sessions.clear()

    async def _leave(self) -> None:
        if not self._id:
            return
        request = ShareGroupHeartbeatRequest(
            group_id=self.group, member_id=self._id, member_epoch=LEAVING
        )
        self._forget()
        try:
            await self._ask(request, ShareGroupHeartbeatResponse, 1)
        except Unanswered:
            self._coordinator = None

    # -- records -------------------------------------------------------------------------------

    def _is_done(self) -> bool:
        return self._world.is_draining and self._world.share.is_done(self._world.partitions)

    async def _work(self) -> None:
        if self._world.is_quiet:
            await self._look_whether_done()
        if not self._assigned:
            return
        partition = self._assigned[self._rng.randrange(len(self._assigned))]
        address = await self._client.try_leader(*partition)
        if address is not None:
            try:
                await self._fetch(address)
            except Unanswered:
                self._lose(address)
                await trio.sleep(RETRY_SECONDS)

    def _lose(self, address: Address) -> None:
        """The connection is closed, and the session with it."""
        self._sessions.pop(address, None)
        self._world.share.let_all_go(self._id)
        for partition in self._assigned:
            self._client.forget(*partition)

    async def _led_by(self, address: Address) -> set[Partition]:
        return {each for each in self._assigned if await self._client.try_leader(*each) == address}

    async def _fetch(self, address: Address) -> None:
        session = self._sessions.setdefault(address, _Session())
        wanted = await self._led_by(address)
        new, gone = wanted - session.partitions, session.partitions - wanted
        epochs = {each: self._client.leader_epoch(*each) for each in wanted}
        leads = {each: self._world.leader_epoch(each) == epochs[each] for each in wanted}
        asked_at = trio.current_time()
        request = ShareFetchRequest(
            group_id=self.group,
            member_id=self._id,
            share_session_epoch=session.epoch,
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=RECORDS_MAX,
            max_records=20,
            batch_size=5,
            topics=[
                FetchTopic(topic_id=topic_id, partitions=[FetchPartition(n) for n in some])
                for topic_id, some in self._topics.grouped(new)
            ],
            forgotten_topics_data=[
                ForgottenTopic(topic_id=topic_id, partitions=some)
                for topic_id, some in self._topics.grouped(gone)
            ],
        )  # fmt: skip
        answer = await self._client.ask_at(address, request, ShareFetchResponse, 1)
        if self._is_refused(address, answer.error_code):
            return
        session.advance()
        session.partitions = wanted
        for topic in answer.responses:
            name = self._topics.name(topic.topic_id)
            for found in topic.partitions:
                partition = name, found.partition_index
                if self._is_trouble(partition, found.error_code):
                    session.partitions.discard(partition)
                    continue
                offsets = self._take(partition, found, epochs, leads, asked_at)
                if offsets:
                    await self._acknowledge(address, session, partition, offsets)

    def _is_refused(self, address: Address, error_code: int) -> bool:
        """The whole request; the session is opened anew."""
        code = ErrorCode(error_code)
        if code is ErrorCode.NONE:
            return False
        self._world.trace.count(f"share {code.name}")
        if code not in SESSION_CODES | self.over_codes | PARTITION_CODES:
            raise Violation("refused", f"{self.name}: {code.name}")
        self._sessions.pop(address, None)
        return True

    def _is_trouble(self, partition: Partition, error_code: int) -> bool:
        code = ErrorCode(error_code)
        if code is ErrorCode.NONE:
            return False
        self._world.trace.count(f"share {code.name}")
        if code not in PARTITION_CODES | self.over_codes:
            raise Violation("refused", f"{self.name}: {partition} {code.name}")
        self._client.forget(*partition)
        return True

    def _take(
        self,
        partition: Partition,
        found: ShareFetchResponsePartitionData,
        epochs: dict[Partition, int],
        leads: dict[Partition, bool],
        asked_at: float,
    ) -> list[int]:
        """Offsets of the records that it was given."""
        world = self._world
        counts = {
            offset: each.delivery_count
            for each in found.acquired_records
            for offset in range(each.first_offset, each.last_offset + 1)
        }
        records = found.records or b""
        assert isinstance(records, (bytes, bytearray, memoryview))
        data, at, given = bytes(records), 0, []
        for header in scan_batches(data):
            batch = memoryview(data)[at : at + header.size]
            at += header.size
            for record in iter_records(batch, header, size_max=RECORDS_MAX):
                offset = header.base_offset + record.offset_delta
                if offset not in counts:
                    continue
                assert record.value is not None
                world.history.see(partition, offset, record.value)
                given.append(offset)
                world.share.given(
                    self._id, partition, offset, counts[offset],
                    leader_epoch=epochs.get(partition, -1), is_leader=leads.get(partition, False),
                    asked_at=asked_at, now=trio.current_time(), lock_seconds=LOCK_SECONDS,
                )  # fmt: skip
        world.trace.counts["share records given"] += len(given)
        return given

    async def _acknowledge(
        self, address: Address, session: _Session, partition: Partition, offsets: list[int]
    ) -> None:
        world, rng = self._world, self._rng
        if rng.random() < SLOW_SHARE:
            await trio.sleep(2 * LOCK_SECONDS * rng.random())
        kinds = {offset: self._kind(rng.random()) for offset in offsets}
        done = [offset for offset, kind in kinds.items() if kind != RELEASE]
        batches = [AcknowledgementBatch(offset, offset, [kind]) for offset, kind in kinds.items()]
        asked = AcknowledgePartition(partition_index=partition[1], acknowledgement_batches=batches)
        topic = AcknowledgeTopic(topic_id=self._topics.id(partition[0]), partitions=[asked])
        world.share.let_go(self._id, partition, offsets)
        world.share.acknowledging(partition, done)
        answer = await self._client.ask_at(
            address,
            ShareAcknowledgeRequest(
                group_id=self.group,
                member_id=self._id,
                share_session_epoch=session.epoch,
                topics=[topic],
            ),
            ShareAcknowledgeResponse,
            1,
        )
        if self._is_refused(address, answer.error_code):
            return
        session.advance()
        (found,) = answer.responses[0].partitions
        code = ErrorCode(found.error_code)
        if code is ErrorCode.NONE:
            world.share.acknowledged(partition, done, trio.current_time())
            world.trace.counts["share records acknowledged"] += len(done)
            return
        world.trace.count(f"share {code.name}")
        # A lock may have ended before.
        if code is not ErrorCode.INVALID_RECORD_STATE:
            self._is_trouble(partition, found.error_code)

    @staticmethod
    def _kind(chance: float) -> int:
        if chance < RELEASE_SHARE:
            return RELEASE
        return REJECT if chance < RELEASE_SHARE + REJECT_SHARE else ACCEPT

    # -- the end -------------------------------------------------------------------------------

    async def _look_whether_done(self) -> None:
        share = self._world.share
        numbers: dict[str, list[int]] = {}
        for topic, number in self._world.partitions:
            numbers.setdefault(topic, []).append(number)
        group = DescribeShareGroupOffsetsRequestGroup(
            group_id=self.group,
            topics=[
                DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=some)
                for name, some in numbers.items()
            ],
        )
        answer = await self._ask(
            DescribeShareGroupOffsetsRequest(groups=[group]), DescribeShareGroupOffsetsResponse, 1
        )
        for told in answer.groups[0].topics:
            for found in told.partitions:
                partition = told.topic_name, found.partition_index
                if found.error_code or partition in share.done:
                    continue
                if found.lag == 0 or await self._is_rest_done(
                    partition, found.start_offset, found.lag
                ):
                    share.done.add(partition)

    async def _is_rest_done(self, partition: Partition, share_start: int, lag: int) -> bool:
        """Whether nothing is left of it that was not acknowledged. The start offset is stored with
        what is acknowledged next, as in Kafka, and so trails behind what is deleted: there may be
        a lag for ever, of records that are gone, below others that were acknowledged."""
        start, end = [await self._reader.offset(partition, which) for which in (EARLIEST, LATEST)]
        if start is None or end is None:
            return False
        if start == end:
            return True
        are_gone = lag <= start - share_start
        return are_gone and self._world.share.are_acknowledged(partition, start, end)
