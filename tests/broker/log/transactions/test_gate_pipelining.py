"""A producer of version 1 of the protocol with five batches on their way, as librdkafka has them,
through everything that may come between: words of the coordinator that are late, or are refusals,
connections and owners that are lost, want of room and of bookies, transactions that time out.

- The first of its batches that is not acknowledged is never out of order: nobody could tell then
  whether it was written. One behind it may be, when what came before was refused.
- What is acknowledged is in the log, once, and the numbers of each epoch are without a gap.
"""

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.broker.log.transactions.conftest import Verifier
from wire.kafka.errors import ErrorCode
from wire.kafka.records.batch import scan_batches

PID = 7
IN_FLIGHT_MAX = 5
STEPS = (
    *("send",) * 8, *("hear",) * 4, *("word",) * 4, "retriable_word", "retriable_word",
    "lose_connection", "crash", "restart", "roll", "room", "no_bookies", "commit", "commit",
    "abort", "time_out", "late_marker",
)  # fmt: skip
RETRIABLE = {ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER}


class Producer:
    """And its coordinator: whether the transaction of `epoch` is open."""

    def __init__(self, world):
        self.world = world
        self.epoch = 0
        self.acked = []  # (epoch, sequence)
        self.late_marker = None  # epoch of one that the coordinator has not sent yet
        self._begin_epoch(0)

    def _begin_epoch(self, epoch):
        self.epoch = epoch
        self.next_sequence = self.next_ack = 0
        self.waiting, self.in_flight = [], []
        self.maybe_written = set()
        self.is_draining = self.must_bump = False
        self.is_open = True

    # -- what it does

    async def send(self):
        if self.is_draining or self.must_bump or len(self.in_flight) >= IN_FLIGHT_MAX:
            return
        if self.waiting:
            sequence = self.waiting.pop(0)
        else:
            sequence, self.next_sequence = self.next_sequence, self.next_sequence + 1
        append = self.world.send(sequence, pid=PID, epoch=self.epoch, version=9)
        self.in_flight.append((sequence, append))

    async def hear(self):
        """Answers come in the order of the requests."""
        await self.world.settle()
        while self.in_flight and self.in_flight[0][1].finished_count:
            sequence, append = self.in_flight.pop(0)
            assert append.finished_count == 1
            self._heard(sequence, append.error)
        self.is_draining &= bool(self.in_flight)
        if self.must_bump and not self.in_flight:
            await self._bump()

    def _heard(self, sequence, error):
        if not error:
            self.acked.append((self.epoch, sequence))
            self.next_ack = sequence + 1
            self.maybe_written.discard(sequence)
        elif error in RETRIABLE:
            self._again([sequence])
            if error is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                self.maybe_written.add(sequence)
        elif error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            assert sequence > self.next_ack, f"{sequence} is the first that is not acknowledged"
            self._again([sequence])
            self.must_bump = True
        else:
            wanted = (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH)
            assert error in wanted, error
            assert not self.is_open, "its transaction is open, and its epoch the newest"
            self.must_bump = True

    def _again(self, sequences):
        self.waiting = sorted([*self.waiting, *sequences])
        self.is_draining = True

    async def _bump(self):
        """By InitProducerId: what is open is aborted, in the next epoch."""
        if self.is_open:
            self.world.end(PID, commit=False, epoch=self.epoch + 1, version=1)
        self.late_marker = None
        await self.world.settle()
        self._begin_epoch(self.epoch + 2)

    async def _flush(self):
        """Until all that it wrote is acknowledged, or it has to give up."""
        self.world.shared.parking.bytes_max = 1 << 20
        for _ in range(100):
            if not self.waiting and not self.in_flight:
                return
            before = self.epoch
            await self.send()
            await self.word()
            await self.hear()
            if self.epoch != before:
                return
        raise AssertionError(f"{self.waiting} {self.in_flight} never came to an end")

    async def commit(self):
        before = self.epoch
        await self._flush()
        if self.epoch == before and self.is_open:
            self.world.end(PID, commit=True, epoch=self.epoch, version=1)

    async def abort(self):
        """What was not sent, or surely refused, gives its numbers to what comes next."""
        if self.in_flight:
            return
        dropped, self.waiting = self.waiting, []
        if self.maybe_written & set(dropped):
            await self._bump()
        elif self.is_open:
            self.next_sequence = min(dropped, default=self.next_sequence)
            self.world.end(PID, commit=False, epoch=self.epoch, version=1)

    # -- what happens to it

    async def word(self):
        """Of the coordinator, to the oldest question."""
        self._answer(ErrorCode.NONE if self.is_open else ErrorCode.PRODUCER_FENCED)

    async def retriable_word(self):
        self._answer(ErrorCode.NOT_COORDINATOR)

    def _answer(self, error):
        # What was asked for an epoch that is over is answered, too: nobody waits for it.
        if self.world.verifier._waiting:
            self.world.verifier.tell(error)

    async def lose_connection(self):
        """All that is on its way may be written, now or later; nobody hears of it."""
        lost, self.in_flight = [sequence for sequence, _ in self.in_flight], []
        self.maybe_written.update(lost)
        if lost:
            self._again(lost)
        self.is_draining = False

    async def crash(self):
        """The connection goes with the owner: nothing comes to the next one before what was on its
        way comes again. (Of a producer that is not known it would take any number for the first.)
        """
        await self.lose_connection()
        await self.world.crash()

    async def restart(self):
        await self.lose_connection()
        await self.world.restart()

    async def roll(self):
        await self.world.roll()

    async def room(self):
        parking = self.world.shared.parking
        parking.bytes_max = 150 if parking.bytes_max > 150 else 1 << 20

    async def no_bookies(self):
        """For as long as it takes to send what it may."""
        await self.world.roll()
        self.world.log.is_suspended = True
        for _ in range(3):
            await self.send()
        self.world.log.is_suspended = False

    async def time_out(self):
        """The coordinator aborts in the next epoch, and its marker comes later."""
        if self.is_open:
            self.is_open = False
            self.late_marker = self.epoch + 1

    async def late_marker_comes(self):
        if self.late_marker is not None:
            self.world.end(PID, commit=False, epoch=self.late_marker, version=1)
            self.late_marker = None


async def numbers_in_log(world):
    """(epoch, sequence) of each batch of the producer, in order."""
    await world.settle()
    found, offset = [], 0
    while offset < world.log.high_watermark:
        got = await world.log.read(offset, 1 << 20)
        found += [(each.producer_epoch, each.base_sequence)
                  for each in scan_batches(b"".join(got.parts))
                  if not each.is_control and each.producer_id == PID]  # fmt: skip
        assert got.next_offset > offset
        offset = got.next_offset
    return found


async def run_producer(txn, steps):
    async with txn.open_world(verifier=Verifier()) as world:
        world.verifier.answer = None
        producer = Producer(world)
        for step in steps:
            name = "late_marker_comes" if step == "late_marker" else step
            await getattr(producer, name)()
        before = producer.epoch
        await producer._flush()
        if producer.epoch == before and producer.is_open:
            world.end(PID, commit=True, epoch=producer.epoch, version=1)
        found = await numbers_in_log(world)
        by_epoch = {}
        for epoch, sequence in found:
            by_epoch.setdefault(epoch, []).append(sequence)
        assert [*by_epoch] == sorted(by_epoch), "no epoch comes back"
        for sequences in by_epoch.values():
            assert sequences == list(range(len(sequences)))
        assert set(producer.acked) <= set(found), "acknowledged, and not there"


@given(steps=st.lists(st.sampled_from(STEPS), min_size=10, max_size=80))
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_first_on_its_way_is_never_out_of_order(txn, steps):
    trio.run(run_producer, txn, steps, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("lost", ["crash", "restart", "lose_connection"])
def test_five_that_were_written_and_lost(txn, lost):
    """All of them come again, whoever owns the partition then."""
    steps = [*["send"] * 5, "word", "hear", *["send"] * 5, lost, *["send", "word"] * 5, "hear"]
    trio.run(run_producer, txn, steps, clock=MockClock(autojump_threshold=0))
