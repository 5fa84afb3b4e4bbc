"""Commits, transactional ones, markers, tombstones and loads in any order, against the plain rules
read off the log.

The model is a list of what was acknowledged, in order, and one function over it: of each key the
record that lies last in the log among those that count, which are plain ones and those of
transactions that a later marker committed, if no tombstone of the key came since. What is pending
is what no marker and no tombstone came behind.
"""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.coordinator.units import Marker
from broker.groups.offsets import offsets_core
from tests.broker.groups.conftest import World
from tests.broker.groups.test_coordinator import commit_request
from tests.broker.groups.test_transactional import errors_of, txn_request
from wire.kafka.errors import ErrorCode as E
from wire.kafka.messages.groups import DeleteGroupsRequest
from wire.kafka.messages.offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from wire.kafka.records.batch import iter_records, parse_header
from wire.kafka.records.control import EndTransactionMarker, decode_end_transaction_marker

GROUPS, PARTITIONS, PRODUCERS = ("a", "b"), 3, (7, 8)
STEPS = (
    *("plain",) * 4, *("transactional",) * 6, *("end",) * 4, "tombstone", "tombstone",
    "delete_group", *("ack",) * 3, *("turn",) * 3, "reload", "lose",
)  # fmt: skip


def expected(log):
    """({key: (offset, its record's)}, {key: producers}) by what the log has acknowledged."""
    table, pending = {}, {}
    for base_offset, batch in log.batches:
        header = parse_header(batch)
        records = list(iter_records(batch, header, size_max=1 << 20))
        if header.is_control:
            committed = decode_end_transaction_marker(records[0]).committed
            for key, value in pending.pop(header.producer_id, {}).items():
                if committed and value[1] > table.get(key, (0, -1))[1]:
                    table[key] = value
            continue
        for at, parsed in zip(records, log.parsed(batch), strict=True):
            if not hasattr(parsed, "topic"):
                continue
            key = (parsed.group_id, parsed.topic, parsed.partition)
            if parsed.value is None:
                table.pop(key, None)
                for of_producer in pending.values():
                    of_producer.pop(key, None)
                continue
            value = (parsed.value.offset, base_offset + at.offset_delta)
            if header.is_transactional:
                pending.setdefault(header.producer_id, {})[key] = value
            else:
                table[key] = value
    unstable = {}
    for producer_id, values in pending.items():
        for key in values:
            unstable.setdefault(key, set()).add(producer_id)
    return table, unstable


class History:
    def __init__(self, world, rng):
        self.world, self.rng = world, rng
        self.sent = []  # lists of answers
        self.offset = 0

    async def run(self, count):
        self.world.catalog.add("t", PARTITIONS)
        await self.world.start()
        await self.world.ask(*commit_request(self.world, "a"))
        for _ in range(count):
            await getattr(self, self.rng.choice(STEPS))()
            self.check()
        self.log.auto_ack = True
        self.log.ack()
        await self.world.settle()
        self.check()
        assert all(len(answers) == 1 for answers in self.sent), "each is answered once"
        await self.world.restart()
        self.check()

    def check(self):
        table, unstable = expected(self.log)
        found, found_unstable = {}, {}
        for entry in self.world.coordinator.list_groups()[1]:
            group_id, offsets = entry.group.group_id, entry.offsets
            for topic, number in sorted(offsets.keys()):
                each = offsets.get(topic, number)
                found[group_id, topic, number] = (each.offset, each.record_offset)
            for key, producers in offsets.unstable.items():
                found_unstable[group_id, *key] = producers
        assert found == table
        assert found_unstable == unstable

    @property
    def log(self):
        return self.world.logs.logs[0]

    def partitions(self):
        self.offset += 10
        return sorted(self.rng.sample(range(PARTITIONS), self.rng.randint(1, PARTITIONS)))

    async def plain(self):
        group, partitions = self.rng.choice(GROUPS), self.partitions()
        request = commit_request(self.world, group, offset=self.offset, partitions=partitions)
        self.sent.append(self.world.send(*request))

    async def transactional(self):
        group, partitions = self.rng.choice(GROUPS), self.partitions()
        request = txn_request(
            group, self.offset, partitions, version=4, pid=self.rng.choice(PRODUCERS)
        )
        answers = self.world.send(*request)
        self.sent.append(answers)

    async def end(self):
        end = EndTransactionMarker(self.rng.random() < 0.6, 1)
        answers = []
        self.sent.append(answers)
        marker = Marker(self.rng.choice(PRODUCERS), 0, end, 1)
        self.world.coordinator.transactions.end(0, marker, answers.append)

    async def tombstone(self):
        asked = [OffsetDeleteRequestPartition(number) for number in self.partitions()]
        request = OffsetDeleteRequest(
            self.rng.choice(GROUPS), [OffsetDeleteRequestTopic("t", asked)]
        )
        self.sent.append(self.world.send(0, request))

    async def delete_group(self):
        request = DeleteGroupsRequest([self.rng.choice(GROUPS)])
        self.sent.append(self.world.send(2, request))

    async def turn(self):
        self.log.auto_ack = self.rng.random() < 0.5
        await self.world.settle()

    async def ack(self):
        self.log.ack()
        await self.world.settle()

    async def reload(self):
        self.log.ack()
        await self.world.settle()
        self.log.ack()
        await self.world.restart()

    async def lose(self):
        """What is on its way is not acknowledged any more, and everybody is told."""
        log = self.log
        self.world.logs.elsewhere.add(0)
        log.go_offline()
        await self.world.settle()
        assert all(len(answers) == 1 for answers in self.sent)
        self.world.logs.hold(0, log.successor())
        await self.world.settle()


@pytest.mark.parametrize("settled_per_step", [1, 1_000])
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_what_is_committed_is_what_the_log_says(settled_per_step, seed):
    before = offsets_core.SETTLED_PER_STEP
    offsets_core.SETTLED_PER_STEP = settled_per_step

    async def main():
        async with trio.open_nursery() as nursery:
            world = World(nursery, offsets_topic_num_partitions=1)
            await History(world, random.Random(seed)).run(60)
            nursery.cancel_scope.cancel()

    try:
        trio.run(main, clock=trio.testing.MockClock())
    finally:
        offsets_core.SETTLED_PER_STEP = before


def test_the_model_is_not_empty():
    """Among a hundred histories each of these is met."""
    met = set()

    class Watched(History):
        def check(self):
            super().check()
            table, unstable = expected(self.log)
            met.update(["table"] * bool(table) + ["unstable"] * bool(unstable))
            met.update("two" for each in unstable.values() if len(each) > 1)
            for answers in self.sent:
                for answer in answers:
                    met.update(errors_of(answer) if hasattr(answer, "topics") else [])

    async def main(seed):
        async with trio.open_nursery() as nursery:
            world = World(nursery, offsets_topic_num_partitions=1)
            await Watched(world, random.Random(seed)).run(40)
            nursery.cancel_scope.cancel()

    for seed in range(10):
        trio.run(main, seed, clock=trio.testing.MockClock())
    assert met >= {"table", "unstable", "two", E.NONE, E.INVALID_TXN_STATE, E.NOT_COORDINATOR}
