"""Arbitrary histories of one partition, against the plain rules of a log.

- What is loaded is what was acknowledged, in its order, and what else the log kept. Whoever answers
  for the partition knows what was acknowledged until then.
- Every `done` is called once. Those of writes that were taken up are called in their order, and so
  are the functions of `after_pending` between them, and those of barriers, each after the ack of
  something that was appended later than it asked.
- A shard is told `loaded` once and then `closed` once, or only `closed`.
"""

from __future__ import annotations

import random
from functools import partial

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from broker.coordinator.partition import PartitionState
from wire.kafka.errors import ErrorCode
from wire.kafka.records.batch import iter_records, parse_header
from wire.kafka.records.compression import Compression

REFUSALS = (
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.MESSAGE_TOO_LARGE,
)
#: Bytes of a value; None: a tombstone. The largest alone is nearly a batch.
SIZES = (None, 1, 1, 40, 150, 390)
#: What may come next, the frequent ones more often.
STEPS = (
    *("write",) * 6, *("turn",) * 6, *("ack",) * 4, *("write_in_units",) * 3, *("refuse",) * 2,
    "barrier", "barrier", "after_pending", "lose", "hand_over", "break_reads",
)  # fmt: skip


class History:
    """Runs the steps, and knows what they must lead to."""

    def __init__(self, world, rng):
        self.world = world
        self.rng = rng
        self.serial = 0
        self.asked = []  # of this tenure, in order: what was taken up
        self.answered = []  # of this tenure, in order
        self.results = {}  # serial -> error, of all tenures
        self.kept = {}  # what the log holds, by the acks and by what was found after a loss
        self.shards = []

    async def run(self, steps_count):
        self.log = self.world.hold()
        self.log.go_online()
        await self.settle()
        for _ in range(steps_count):
            await getattr(self, self.rng.choice(STEPS))()
            assert self.answered == self.asked[: len(self.answered)]
            shard, _ = self.world.coordinator.find("key")
            assert shard is None or shard.values == self.kept, "who answers knows every ack"
        await self.lose()
        assert self.results.keys() == set(range(1, self.serial + 1)), "all are answered"
        for shard in self.shards[:-1]:
            assert shard.calls in (["loaded", "closed"], ["closed"])
            assert shard.partition.pending_bytes == 0

    async def settle(self):
        await trio.testing.wait_all_tasks_blocked()
        shard, error = self.world.coordinator.find("key")
        if shard is None and error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            await trio.testing.wait_all_tasks_blocked()
            shard, error = self.world.coordinator.find("key")
        if shard is not None and (not self.shards or shard is not self.shards[-1]):
            assert shard.values == self.kept, "loaded is what was acknowledged"
            assert shard.calls == ["loaded"]
            self.shards.append(shard)

    @property
    def partition(self):
        return self.shards[-1].partition

    def done(self, serial, records, error):
        """Of a write: the table changes by the ack."""
        assert serial not in self.results, "answered twice"
        self.results[serial] = error
        if serial in self.asked:
            self.answered.append(serial)
        if not error:
            self.stored(records)

    def stored(self, records):
        for key, value in records:
            for table in (self.kept, self.shards[-1].values):
                if value is None:
                    table.pop(key, None)
                else:
                    table[key] = value

    def ask(self, function):
        """`function(serial)`: what is not answered before it returns was taken up."""
        self.serial += 1
        serial = self.serial
        self.asked.append(serial)
        before = len(self.answered)
        function(serial)
        if serial in self.results and self.asked[before : before + 1] != [serial]:
            # Refused, while others wait: out of line.
            assert self.results[serial]
            self.asked.remove(serial)
            self.answered.remove(serial)

    def records(self, count_max):
        """Their values differ, so that what is stored says which write it is of."""
        records = []
        for at in range(self.rng.randint(1, count_max)):
            size = self.rng.choice(SIZES)
            value = None if size is None else (b"%d-%d " % (self.serial, at)).ljust(size)
            records.append((b"%d" % self.rng.randrange(6), value))
        return records

    # --- the steps

    async def write(self):
        records = self.records(3)
        self.ask(lambda serial: self.partition.write(records, partial(self.done, serial, records)))

    async def write_in_units(self):
        records = self.records(12)
        at = count = 0

        def stored(which):
            nonlocal at, count
            assert which.start >= at, "in order"
            at = which.stop
            count += which.stop - which.start
            self.stored(records[which])

        def ask(serial):
            self.partition.write_in_units(records, stored, partial(done, serial))

        def done(serial, error):
            assert bool(error) == (count < len(records))
            self.done(serial, (), error)

        self.ask(ask)

    async def after_pending(self):
        def ask(serial):
            self.partition.after_pending(partial(self.done, serial, (), ErrorCode.NONE))

        self.ask(ask)

    async def barrier(self):
        """Whoever hears NONE hears it after the ack of what was appended after the question."""
        log = self.log
        appended = len(log.batches) + len(log.in_flight)

        def done(serial, error):
            assert error or len(log.batches) > appended
            self.done(serial, (), error)

        def ask(serial):
            self.partition.barrier((b"nothing", None), partial(done, serial))

        self.ask(ask)

    async def turn(self):
        await self.settle()

    async def ack(self):
        self.log.ack(self.rng.randint(1, 3))

    async def refuse(self):
        self.log.refusals = [self.rng.choice(REFUSALS)] * self.rng.randint(1, 3)

    async def hand_over(self):
        self.log.is_closing = True

    async def break_reads(self):
        self.log.broken_reads = 1

    async def lose(self):
        """The next owner finds what was acknowledged, and perhaps the first of the rest."""
        lost = self.log.go_offline()
        found = lost[: self.rng.randint(0, len(lost))]
        assert self.partition.state is PartitionState.CLOSED
        await trio.testing.wait_all_tasks_blocked()
        assert self.answered == self.asked, "nobody waits for a log that is gone"
        for batch in found:
            header = parse_header(batch)
            for record in iter_records(batch, header, size_max=1 << 20):
                if record.value is None:
                    self.kept.pop(record.key, None)
                else:
                    self.kept[record.key] = record.value
        self.asked, self.answered = [], []
        self.log = self.world.hold(batches=[*self.log.batches, *found])
        self.log.go_online()
        await self.settle()


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.GZIP])
@given(seed=st.integers(0, 2**32))
def test_what_is_loaded_is_what_was_acknowledged(world_class, compression, seed):
    async def main():
        async with trio.open_nursery() as nursery:
            world = world_class(compression=compression)
            await nursery.start(world.run)
            await History(world, random.Random(seed)).run(60)
            nursery.cancel_scope.cancel()

    trio.run(main)
