"""Members of a group that goes from the classic protocol to KIP-848's and back while it is in use.

A member is a process that is stopped and started again with the other `group.protocol`, as in a
rolling upgrade: half of them leave before, the others fall silent. One changes after the other;
between two such rounds all speak one protocol. In a world of even seed the classic consumers are
cooperative (they keep what they have while they join, and the leader gives nothing out that another
one still has), in the others eager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import trio

from sim.group_members.classic import ClassicMember
from sim.group_members.committing import CommittingMember, static_name
from sim.group_members.consumer import ConsumerMember
from sim.group_members.heartbeating import keep_seconds
from sim.group_members.member import OverError
from sim.names import MIGRATING_GROUP
from wire.kafka.errors import ErrorCode
from wire.kafka.records.consumer_group import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolTopicPartition,
)
from wire.kafka.records.coordinator import (
    decode_assignment,
    decode_subscription,
    encode_protocol,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from sim.history import Partition
    from sim.world import World

#: Of the consumers' own bytes: with what is owned, the generation, and the rack.
VERSION = 3
#: From one round of changes to the next, in which all have changed: seconds of virtual time.
ROUND_SECONDS_MIN, ROUND_SECONDS_MAX = 3.0, 8.0
#: Of those that change their protocol: how many do not leave before.
SILENT_SHARE = 0.5


class Rounds:
    """When which member speaks which protocol. All draw the same of a world."""

    def __init__(self, world: World, number: int, count: int) -> None:
        """The member of that `number` among `count`."""
        rng = world.rng_for(MIGRATING_GROUP)
        self._world = world
        self._seconds = ROUND_SECONDS_MIN + rng.random() * (ROUND_SECONDS_MAX - ROUND_SECONDS_MIN)
        #: The first half of a round is for the changes, the other one for all of one protocol.
        self._offset = number * self._seconds / (2 * count)
        self._last = 0

    def current(self) -> int:
        """The round; an odd one is of KIP-848's protocol. None begins while the group ends."""
        if not self._world.is_draining:
            self._last = int(max(0.0, trio.current_time() - self._offset) // self._seconds)
        return self._last


class _Migrating(CommittingMember):
    """One that is stopped when its round is over."""

    group = MIGRATING_GROUP
    rounds: Rounds
    round = 0

    def _is_done(self) -> bool:
        return super()._is_done() or self.rounds.current() != self.round

    async def _end(self) -> None:
        if not self._world.is_draining and self._rng.random() < SILENT_SHARE:
            self._forget()
        await super()._end()


class MigratingConsumer(_Migrating, ConsumerMember):
    """In a round of KIP-848's protocol. If it was the last one of that, and not heard of for too
    long, its group is a classic one by now: as Kafka's, that answers GROUP_ID_NOT_FOUND, and a
    commit with ILLEGAL_GENERATION."""

    over_codes = ConsumerMember.over_codes | {
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.ILLEGAL_GENERATION,
    }


class MigratingClassic(_Migrating, ClassicMember):
    """In a round of the classic protocol; with the bytes of real consumers, which a coordinator
    reads when it makes a group of the other protocol of theirs."""

    protocol_type = "consumer"

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._is_cooperative = world.seed % 2 == 0
        self.protocol = "cooperative-sticky" if self._is_cooperative else "range"
        self._keeps = False
        #: What it has lost and has not given up yet, among others.
        self._leftover: set[Partition] = set()

    def _check(self, code: ErrorCode) -> None:
        """What it has it keeps while it joins, if only the generation is to end."""
        self._keeps = self._is_cooperative and code is ErrorCode.REBALANCE_IN_PROGRESS
        super()._check(code)

    def _give_up_for_join(self) -> None:
        keeps, self._keeps = self._keeps, False
        if not keeps:
            self._give_up_all()

    def _commit_is_unknown(self) -> None:
        """In a group of the other protocol it may join without a new generation: so it goes on as
        somebody else, while its late commit may still be done."""
        self._forget()

    def _metadata(self) -> bytes:
        topics = sorted({topic for topic, _ in self._world.partitions})
        owned = _by_topic(self._assigned)
        generation = self._epoch if owned else -1
        return encode_protocol(
            ConsumerProtocolSubscription(topics, None, owned, generation), VERSION
        )

    def _encode(self, share: Collection[Partition]) -> bytes:
        return encode_protocol(ConsumerProtocolAssignment(_by_topic(share)), VERSION)

    def _decode(self, assignment: bytes) -> list[Partition]:
        if not assignment:
            return []
        return _flat(decode_assignment(assignment).assigned_partitions)

    def _shares(self, members: Mapping[str, bytes]) -> dict[str, list[Partition]]:
        """Of what another member still has, a member gets nothing yet. Of two who say that they
        have it that one is right who was given it in the later generation."""
        told = {member_id: decode_subscription(data) for member_id, data in members.items()}
        owners: dict[Partition, tuple[int, str]] = {}
        for member_id, each in sorted(told.items()):
            for partition in _flat(each.owned_partitions):
                claim = each.generation_id, member_id
                owners[partition] = max(claim, owners.get(partition, claim))
        return {
            member_id: [each for each in share if owners.get(each, (0, member_id))[1] == member_id]
            for member_id, share in super()._shares(members).items()
        }

    def _holdings(self) -> Collection[Partition]:
        return self._leftover.union(self._assigned)

    async def _sync(self, shares: Mapping[str, Collection[Partition]]) -> None:
        """What it had stays its own until it has given it up, though its group is made one of the
        other kind meanwhile (Kafka's coordinator would take it for free)."""
        had = set(self._assigned)
        self._leftover = had
        await super()._sync(shares)
        lost = had.difference(self._assigned)
        if lost:
            await self._give_up(lost)

    async def _give_up(self, lost: Collection[Partition]) -> NoReturn:
        """OverError: who joins again tells that others may have it."""
        await trio.sleep(keep_seconds(self._rng))
        positions = self._reader.positions
        known = sorted(each for each in lost if each in positions)  # a set has no order
        await self._commit({each: positions.pop(each) for each in known})
        self._leftover = set()
        self._world.owners[self.group].has_only(self._id, self._assigned)
        self._keeps = True
        raise OverError


class MigratingMember:
    """One after the other, under one name."""

    def __init__(self, world: World, number: int, count: int) -> None:
        self.name = f"member-migrating-{number + 1}"
        self._world = world
        self._rounds = Rounds(world, number, count)
        self._classic = MigratingClassic(world, f"{self.name}-classic")
        self._consumer = MigratingConsumer(world, f"{self.name}-848")
        for each in (self._classic, self._consumer):
            each.rounds, each.reports_as = self._rounds, self.name
            each.instance = static_name(world, self.name)

    async def run(self) -> None:
        while True:
            now = self._rounds.current()
            member: _Migrating = self._consumer if now % 2 else self._classic
            member.round = now
            await member.run()
            if self._rounds.current() == now:
                return
            kind = "downgraded" if now % 2 else "upgraded"
            self._world.trace.event(self.name, kind)
            self._world.trace.count(f"members {kind}")


def _by_topic(partitions: Collection[Partition]) -> list[ConsumerProtocolTopicPartition]:
    numbers: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        numbers.setdefault(topic, []).append(number)
    return [ConsumerProtocolTopicPartition(topic, some) for topic, some in numbers.items()]


def _flat(told: Collection[ConsumerProtocolTopicPartition]) -> list[Partition]:
    return [(each.topic, number) for each in told for number in each.partitions]
