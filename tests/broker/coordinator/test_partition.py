"""Arbitrary histories of one partition, against the plain rules of a log.

- What is loaded is what was acknowledged, in its order, and what else the log kept. Whoever answers
  for the partition knows what was acknowledged until then.
- Every `done` is called once. Those of writes that were taken up are called in their order, and so
  are the functions of `after_pending` between them, and those of barriers, each after the ack of
  something that was appended later than it asked.
- What a transaction writes counts when its marker is acknowledged, and is alone in its batch. Who
  writes hears where in the log the records are.
- A shard is told `loaded` once and then `closed` once, or only `closed`.
"""

from __future__ import annotations

import random
import struct
from functools import partial

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from broker.coordinator.loading import load_records
from broker.coordinator.partition import PartitionState
from broker.coordinator.units import NOBODY, Marker, Producer
from broker.log.transactions.origin import Origin
from runtime.turn import SPENT_UNITS
from wire.kafka.errors import ErrorCode, WireError
from wire.kafka.records.batch import build_batch, iter_records, parse_header, patch
from wire.kafka.records.compression import Compression
from wire.kafka.records.control import (
    EndTransactionMarker,
    build_end_transaction_batch,
    decode_end_transaction_marker,
)
from wire.kafka.records.record import Record

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
    *("write_transactional",) * 4, *("write_marker",) * 3, *("pass_by",) * 6,
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
        self.pending = {}  # of transactions, by producer
        self.shards = []

    async def run(self, steps_count):
        self.log = self.world.hold()
        self.log.go_online()
        await self.settle()
        for _ in range(steps_count):
            await getattr(self, self.rng.choice(STEPS))()
            assert self.answered == self.asked[: len(self.answered)]
            shard, _ = self.world.coordinator.find("key")
            if shard is not None:
                assert shard.values == self.kept, "who answers knows every ack"
                assert shard.pending == self.pending
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
            assert shard.pending == self.pending
            wanted = self.log.data_offsets()
            if self.world.last_counts:
                assert set(self.log.counting_offsets()) <= set(shard.loaded_at) <= set(wanted)
                assert shard.loaded_at == sorted(shard.loaded_at)
            else:
                assert shard.loaded_at == wanted
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
        for each in records:
            self.put(*each)
            self.shards[-1].take(*each)

    def put(self, key, value):
        if value is None:
            self.kept.pop(key, None)
        else:
            self.kept[key] = value

    def written(self, producer_id, records):
        for table in (self.pending, self.shards[-1].pending):
            table.setdefault(producer_id, []).extend(records)

    def ended(self, producer_id, *, committed):
        for each in self.pending.pop(producer_id, ()):
            if committed:
                self.put(*each)

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

    async def write_in_units(self, producer=NOBODY):
        records = self.records(12)
        at = count = 0

        def stored(which, offset):
            nonlocal at, count
            assert which.start >= at, "in order"
            at = which.stop
            count += which.stop - which.start
            assert self.log.at(offset, len(records[which])) == records[which]
            if producer is NOBODY:
                self.stored(records[which])
            else:
                self.written(producer.id, records[which])
                _, header = self.log.batch_at(offset)
                assert (header.producer_id, header.producer_epoch) == (producer.id, producer.epoch)
                assert header.record_count == which.stop - which.start, "alone in its batch"

        def ask(serial):
            self.partition.write_in_units(records, stored, partial(done, serial), producer)

        def done(serial, error):
            assert bool(error) == (count < len(records))
            self.done(serial, (), error)

        self.log.given_back.clear()
        queued = self.partition.pending_bytes
        self.ask(ask)
        is_refused = producer is not NOBODY and self.partition.pending_bytes == queued
        assert self.log.given_back == [producer.origin] * is_refused

    async def write_transactional(self):
        producer = Producer(self.rng.randrange(2), 3, Origin("id", 0))
        await self.write_in_units(producer)

    async def write_marker(self):
        producer_id, committed = self.rng.randrange(2), self.rng.random() < 0.7
        marker = Marker(producer_id, 3, EndTransactionMarker(committed, 1), 1)
        where = []

        def done(serial, error):
            assert bool(error) == (not where)
            if not error:
                assert self.log.batch_at(where[0])[1].base_offset == where[0]
                for _ in self.shards[-1].end_transaction(producer_id, committed=committed):
                    pass
                self.ended(producer_id, committed=committed)
            self.done(serial, (), error)

        self.ask(
            lambda serial: self.partition.write_marker(marker, where.append, partial(done, serial))
        )

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
            self.partition.barrier(lambda: (b"nothing", None), partial(done, serial))

        self.ask(ask)

    async def turn(self):
        await self.settle()

    async def pass_by(self):
        """One pass of the loop: of what is told in many turns, a little."""
        await trio.lowlevel.checkpoint()

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
                if header.is_control:
                    committed = decode_end_transaction_marker(record).committed
                    self.ended(header.producer_id, committed=committed)
                elif header.is_transactional:
                    of_producer = self.pending.setdefault(header.producer_id, [])
                    of_producer.append((record.key, record.value))
                else:
                    self.put(record.key, record.value)
        self.asked, self.answered = [], []
        self.log = self.world.hold(batches=[*self.log.batches, *found])
        self.log.go_online()
        await self.settle()


@pytest.mark.parametrize(
    ("compression", "told_units", "last_counts"),
    [
        (Compression.NONE, 1, False),
        (Compression.NONE, 1, True),
        (Compression.GZIP, 1, True),
        (Compression.NONE, SPENT_UNITS // 3, False),
        (Compression.NONE, SPENT_UNITS + 1, True),
    ],
)
@given(seed=st.integers(0, 2**32))
def test_what_is_loaded_is_what_was_acknowledged(
    world_class, compression, told_units, last_counts, seed
):
    """Whether a turn has room to tell everybody, a few, or one. Where the last record of a key
    counts, others may be left out."""

    async def main():
        async with trio.open_nursery() as nursery:
            world = world_class(
                compression=compression, told_units=told_units, last_counts=last_counts
            )
            await nursery.start(world.run)
            await History(world, random.Random(seed)).run(60)
            nursery.cancel_scope.cancel()

    trio.run(main)


class Told:
    """Offsets and values, as a load tells them."""

    def __init__(self):
        self.told = []

    def apply(self, key, value, offset, producer_id):
        self.told.append((offset, key, value, producer_id))

    def end_transaction(self, producer_id, *, committed):
        self.told.append((producer_id, committed))
        yield


def in_log(*batches):
    """A log of batches without a gap."""
    found, offset = [], 0
    for batch in batches:
        records = bytearray(batch)
        patch(records, 0, offset, 1)
        found.append(bytes(records))
        offset += parse_header(records).last_offset_delta + 1
    return found


def batch_of(*records, pid=-1):
    made = [Record(at, 0, key, value) for at, (key, value) in enumerate(records)]
    is_transactional = pid >= 0
    epoch = 0 if is_transactional else -1
    return build_batch(
        made, producer_id=pid, producer_epoch=epoch, is_transactional=is_transactional
    )


async def load(world_class, batches, *, last_counts):
    world = world_class(last_counts=last_counts)
    log = world.hold(batches=in_log(*batches))
    log.go_online()
    shard = Told()
    await load_records(
        log, shard, world.env, read_bytes_max=1 << 20, is_wanted=lambda: True,
        last_counts=last_counts,
    )  # fmt: skip
    return shard.told


MARKER = build_end_transaction_batch(
    EndTransactionMarker(committed=True, coordinator_epoch=0),
    producer_id=7, producer_epoch=0, timestamp_ms=1,
)  # fmt: skip


def test_what_has_a_later_record_is_passed_over(world_class):
    """But not what is of a transaction, by whatever is later, nor a tombstone; and a record of a
    transaction makes nothing late."""
    batches = [
        batch_of((b"a", b"0"), (b"b", b"1"), (b"a", b"2"), (None, b"3")),
        batch_of((b"a", b"4"), (b"c", b"5"), pid=7),
        batch_of((b"b", None), (b"c", b"7")),
        MARKER,
        batch_of((b"b", b"9"), (b"c", b"10")),
    ]
    of_the_transaction = [(4, b"a", b"4", 7), (5, b"c", b"5", 7)]
    behind = [(6, b"b", None, -1), (7, True), (9, b"b", b"9", -1), (10, b"c", b"10", -1)]
    told = trio.run(partial(load, world_class, batches, last_counts=True))
    assert told == [(2, b"a", b"2", -1), *of_the_transaction, *behind]
    told = trio.run(partial(load, world_class, batches, last_counts=False))
    before = [(0, b"a", b"0", -1), (1, b"b", b"1", -1), (2, b"a", b"2", -1)]
    assert told == [*before, *of_the_transaction, behind[0], (7, b"c", b"7", -1), *behind[1:]]


def test_a_producer_id_alone_makes_no_transaction(world_class):
    """Of an idempotent producer, which a tool may be that repairs the topic: it counts at once."""
    made = [Record(at, 0, b"a", b"%d" % at, []) for at in range(2)]
    plain = build_batch(made, producer_id=7, producer_epoch=0, base_sequence=0)
    told = trio.run(partial(load, world_class, [plain], last_counts=True))
    assert told == [(1, b"a", b"1", -1)]


def test_more_than_is_walked_ahead_is_told_in_order(world_class):
    """The table of what is ahead is made anew; nothing is forgotten where one follows another."""
    count = 300
    values = [(b"%d" % (at % 700), b"%d" % at) for at in range(200 * count)]
    batches = [batch_of(*values[at : at + count]) for at in range(0, len(values), count)]
    told = trio.run(partial(load, world_class, batches, last_counts=True))
    offsets = [offset for offset, *_ in told]
    assert offsets == sorted(set(offsets))
    assert len(told) < len(values) / 10
    assert {key: value for _, key, value, _ in told} == dict(values)
    told = trio.run(partial(load, world_class, batches, last_counts=False))
    assert [(key, value) for _, key, value, _ in told] == values


@pytest.mark.parametrize("damage", ["short", "behind"])
def test_what_no_coordinator_wrote_is_named(world_class, damage):
    records = bytearray(batch_of((b"a", b"0"), (b"b", b"1")))
    struct.pack_into(">i", records, 57, 3 if damage == "short" else 1)
    with pytest.raises(WireError, match=r"record at byte|bytes follow"):
        trio.run(partial(load, world_class, [bytes(records)], last_counts=True))
