"""Idempotent producers with up to five batches in flight, through take-overs at any place.

A real client sends again, in order, all that was not answered: to the broker that it knows by then.
What must hold of every answer: a batch that is in the log gets the offset that it has there, the
first one of those in flight is never out of order, and none is told that it is there already
without being told where (DUPLICATE_SEQUENCE_NUMBER, of which librdkafka makes an acknowledgement
without an offset).
"""

from collections import Counter, deque

import pytest
import trio

from broker.log.partition import State
from broker.log.settings import LogSettings
from wire.kafka.errors import ErrorCode

IN_FLIGHT_MAX = 5
STEPS = 120
#: A client sends again after these; behind a batch that was refused, also out of order.
RETRIABLE = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS}


class Batch:
    def __init__(self, sequence, values, records):
        self.sequence, self.values, self.records = sequence, values, records
        #: Where it is, as any broker said, whether or not the client heard it.
        self.offset = None


class Producer:
    """One client's batches of the partition, oldest first; `connection` counts its connections:
    what is answered on a former one is not heard."""

    def __init__(self, play, producer_id):
        self.play, self.producer_id = play, producer_id
        self.unacked = deque()
        self.acked = []
        self.next_sequence = 0
        self.connection = 0
        self.unanswered = 0
        self.must_send_again = False

    def make(self):
        rng = self.play.rng
        first = self.next_sequence
        values = [b"%d/%d" % (self.producer_id, first + n) for n in range(rng.randrange(1, 4))]
        self.next_sequence += len(values)
        records = self.play.sim.batch(
            *values, producer_id=self.producer_id, producer_epoch=0, base_sequence=first
        )
        self.unacked.append(Batch(first, values, records))
        return self.unacked[-1]

    def send(self, log, batch):
        connection = self.connection
        self.unanswered += 1
        log.append_nowait(
            memoryview(bytearray(batch.records)),
            lambda append: self.answered(log, batch, append, connection),
        )

    def send_all_again(self, log):
        """On a new connection, with all its sequence numbers as they were."""
        self.connection += 1
        self.unanswered = 0
        self.must_send_again = False
        self.play.counts["sent again"] += len(self.unacked)
        for batch in list(self.unacked):
            self.send(log, batch)

    def answered(self, log, batch, append, connection):
        if append.error is ErrorCode.NONE:
            assert append.base_offset >= 0
            assert batch.offset in (None, append.base_offset), "it is at one place"
            if batch.offset is not None:
                self.play.counts["told again where it is"] += 1
            batch.offset = append.base_offset
        if connection != self.connection:
            return
        self.unanswered -= 1
        is_first = bool(self.unacked) and self.unacked[0] is batch
        if append.error is ErrorCode.NONE:
            assert is_first, "answers come in order"
            self.acked.append(self.unacked.popleft())
            return
        self.play.counts[append.error.name] += 1
        self.must_send_again = True
        if append.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            assert not is_first, append.error_message
        else:
            assert append.error in RETRIABLE, append.error_message


class Play:
    def __init__(self, sim, seed):
        self.sim = sim
        settings = LogSettings(snapshot_interval_bytes=600)
        self.cluster = sim.Cluster(seed, settings=settings)
        self.rng = self.cluster.rng
        self.cluster.delay_s = self.rng.choice([0.0, 0.002, 0.05])
        self.counts = Counter()
        self.brokers = {}
        self.producers = [Producer(self, number) for number in range(3)]

    async def main(self):
        with trio.fail_after(5000):  # virtual: everything ends
            await self.run()

    async def run(self):
        async with trio.open_nursery() as self.nursery:
            for node_id in (1, 2, 3):
                self.brokers[node_id] = await self.cluster.start(self.nursery, node_id)
            topic = await self.cluster.create_topic(self.brokers[1], 1, segment_ms=3000)
            self.topic_id = topic.id
            self.cluster.assignments.assign(topic.id, 0, 1)
            self.leader = 1
            for _ in range(STEPS):
                await self.step()
            await self.settle()
            self.nursery.cancel_scope.cancel()

    async def log(self):
        with trio.fail_after(300):
            while True:
                log = self.brokers[self.leader].log()
                if log is not None and log.state is not State.OFFLINE:
                    return log
                await trio.sleep(0.01)

    async def step(self):
        act = self.rng.choices(
            [self.send_some, self.pause, self.lose_answers, self.snapshot, self.roll, self.move],
            [12, 6, 3, 1, 1, 2],
        )[0]
        await act()
        for producer in self.producers:
            if producer.must_send_again and not producer.unanswered:
                producer.send_all_again(await self.log())

    async def send_some(self):
        log = await self.log()
        producer = self.rng.choice(self.producers)
        if producer.must_send_again:
            return
        for _ in range(self.rng.randrange(1, IN_FLIGHT_MAX + 1)):
            if len(producer.unacked) < IN_FLIGHT_MAX:
                producer.send(log, producer.make())
        if self.rng.random() < 0.3:
            await trio.lowlevel.checkpoint()

    async def pause(self):
        await trio.sleep(self.rng.choice([0.001, 0.01, 0.1, 1.0]))

    async def lose_answers(self):
        self.rng.choice(self.producers).send_all_again(await self.log())

    async def snapshot(self):
        log = await self.log()
        if log.state is State.ONLINE:
            log.queue.push_snapshot()

    async def roll(self):
        log = await self.log()
        keeper = self.brokers[self.leader].manager._find("t", 0).keeper
        if keeper is not None:
            keeper._roll_asked = True
            log.call_keeper()

    async def move(self):
        """The leader is killed, cut off, short of bookies, or hands over."""
        old = self.brokers[self.leader]
        how = self.rng.choice(["kill", "freeze", "hand over", "no bookies"])
        self.counts[how] += 1
        if how == "no bookies":
            self.cluster.bookies.down = set("abcd")
            await trio.sleep(self.rng.choice([0.1, 3.0]))
            self.cluster.bookies.down = set()
            return
        if how == "freeze":
            old.wire.freeze()
            self.cluster.assignments.alive.discard(old.incarnation)
        elif how == "kill":
            await old.kill()
            self.nursery.start_soon(self.start_again, self.leader)
        self.leader = self.rng.choice([n for n in (1, 2, 3) if n != self.leader])
        while self.leader not in self.brokers or self.brokers[self.leader].wire.dead:
            await trio.sleep(0.1)
        self.cluster.assignments.assign(self.topic_id, 0, self.leader)
        for producer in self.producers:
            producer.send_all_again(await self.log())
        if how == "freeze":
            await trio.sleep(self.rng.choice([0.0, 1.0]))
            self.cluster.assignments.alive.add(old.incarnation)
            old.wire.thaw()

    async def start_again(self, node_id):
        await trio.sleep(0.2)
        self.brokers[node_id] = await self.cluster.start(self.nursery, node_id)

    async def settle(self):
        with trio.fail_after(300):
            while any(producer.unacked for producer in self.producers):
                await trio.sleep(0.5)
                for producer in self.producers:
                    if producer.must_send_again and not producer.unanswered:
                        producer.send_all_again(await self.log())
            await trio.sleep(60)  # whoever still has to step back has done so
            log = await self.log()
            while log.state is not State.ONLINE:
                await trio.sleep(0.5)
                log = await self.log()
        found = dict(await self.sim.read_all(log))
        for producer in self.producers:
            places = []
            for batch in producer.acked:
                places += range(batch.offset, batch.offset + len(batch.values))
            values = [value for batch in producer.acked for value in batch.values]
            assert [found.get(place) for place in places] == values
            assert places == sorted(places)
            self.counts["acked"] += len(producer.acked)
        assert len(found) == sum(producer.next_sequence for producer in self.producers), "once"


@pytest.mark.parametrize("first", range(24, 48, 4))
def test_what_is_sent_again_is_told_where_it_is(sim, first):
    total = Counter()
    for seed in range(first, first + 4):
        play = Play(sim, seed)
        sim.run_seeded(play.main, seed)
        total += play.counts
    assert total["acked"] > 200
    assert total["sent again"] > 100
    assert total["told again where it is"] > 20
