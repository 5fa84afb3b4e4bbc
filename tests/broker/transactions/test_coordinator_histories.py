"""Arbitrary histories of the coordinator: several ids on one partition of the log, which
acknowledges late, refuses, is lost with some of what was on its way, and is held anew; partitions
whose leaders are away, do not answer, or break off.

- Every request is answered once.
- What a marker says is in the log, and what a producer was told is what the log says.
- When the trouble is over memory is as the log, and no id is stuck.
"""

from __future__ import annotations

import random

import pytest
import trio

from broker.transactions.types import AT_REST, TV2, TxnState
from tests.broker.transactions.world import ME, OTHER, Log, World
from wire.kafka.errors import ErrorCode as E

NAMES = ("a", "b", "c")
PLACES = [("t", 0), ("t", 1), ("u", 0)]


class History:
    def __init__(self, world, seed):
        self.world = world
        self.rng = random.Random(seed)
        self.asked = []  # every list of answers
        self.producers = {}  # id -> what its producer was told last
        self.told = []  # (id, producer id, epoch, whether it is committed)

    async def run(self, steps):
        everyday = [self.init, self.add, self.add, self.verify, self.end, self.end] * 3
        everyday += [self.turn, self.ack, self.ack] * 4
        trouble = (
            self.late_acks, self.refuse, self.lose, self.mute, self.unmute, self.break_off,
            self.move_leader, self.sleep, self.expire,
        )  # fmt: skip
        actions = everyday + [each for each in trouble if self.rng.random() < 0.7] * 2
        for _ in range(steps):
            result = self.rng.choice(actions)()
            if result is not None:
                await result
        await self.heal()
        self.check()

    # --- requests

    def ask(self, answers, heard=None):
        self.asked.append(answers)
        if heard is not None:
            self.world.nursery.start_soon(self.listen, answers, heard)

    async def listen(self, answers, heard):
        while not answers:
            await trio.sleep(0.01)
        if not answers[0].error:
            heard(answers[0])

    def some_producer(self, name):
        producer_id, epoch = self.producers.get(name, (1001, 0))
        return producer_id, max(0, epoch + self.rng.choice((0, 0, 0, 0, -1, 1)))

    def init(self):
        name = self.rng.choice(NAMES)
        named = self.some_producer(name) if self.rng.random() < 0.5 else (-1, -1)

        def heard(result):
            self.producers[name] = (result.producer_id, result.epoch)

        self.ask(self.world.init(*named, name=name, timeout_ms=3_000), heard)

    def add(self):
        name = self.rng.choice(NAMES)
        places = self.rng.sample(PLACES, self.rng.randint(1, 3))
        may_wait = self.rng.random() < 0.5
        self.ask(self.world.add(self.some_producer(name), places, name=name, may_wait=may_wait))

    def verify(self):
        name = self.rng.choice(NAMES)
        self.ask(self.world.verify(self.some_producer(name), name=name))

    def end(self):
        name = self.rng.choice(NAMES)
        producer = self.some_producer(name)
        is_commit = self.rng.random() < 0.6

        def heard(result):
            self.told.append((name, *producer, is_commit))
            self.producers[name] = (result.producer_id, result.epoch)

        self.ask(self.world.end(producer, is_commit, TV2, name=name), heard)

    # --- what happens

    async def turn(self):
        await self.world.settle()

    def ack(self):
        """Of what is on its way the first part."""
        log = self.world.log
        waiting = log._waiting
        count = self.rng.randint(0, len(waiting))
        log._waiting, rest = waiting[:count], waiting[count:]
        log.ack()
        log._waiting += rest

    def late_acks(self):
        self.world.log.auto_ack = not self.world.log.auto_ack

    async def refuse(self):
        self.world.log.fail_with = self.rng.choice((E.NOT_ENOUGH_REPLICAS, None, None))

    async def lose(self):
        world, log = self.world, self.world.log
        found = log._waiting[: self.rng.randint(0, len(log._waiting))]
        world.logs.elsewhere.add(0)
        log.go_offline()
        for base, records, _, _ in found:
            log.batches.append((base, records))
            log.high_watermark = base + _count(records)
        if self.rng.random() < 0.5:
            await trio.sleep(self.rng.random())
        world.logs.hold(0, log.successor())

    def mute(self):
        self.world.partitions.is_mute = True

    def unmute(self):
        self.world.partitions.is_mute = False
        self.world.partitions.answer()

    def break_off(self):
        self.world.partitions.break_off()

    def move_leader(self):
        self.world.leaders[self.rng.choice(PLACES)] = self.rng.choice((None, ME, OTHER))
        self.world.coordinator.markers.wake()

    async def sleep(self):
        await trio.sleep(self.rng.choice((0.05, 0.5, 2)))

    async def expire(self):
        await self.world.coordinator.expire()

    # --- the end

    async def heal(self):
        world = self.world
        world.log.fail_with, world.log.auto_ack = None, True
        world.log.ack()
        world.leaders.clear()
        self.unmute()
        await trio.sleep(20)

    def check(self):
        world = self.world
        assert [len(answers) for answers in self.asked] == [1] * len(self.asked)
        decided = {}
        last = {}
        for stored in world.log.values():
            last[stored.transactional_id] = stored.snapshot
            txn = stored.snapshot
            if txn is not None and txn.state in (TxnState.PREPARE_COMMIT, TxnState.PREPARE_ABORT):
                is_commit = txn.state is TxnState.PREPARE_COMMIT
                decided.setdefault((txn.producer_id, txn.epoch), set()).add(is_commit)
        assert all(len(each) == 1 for each in decided.values())
        for _, _, _, producer_id, epoch, is_commit, _, _ in world.partitions.written:
            assert decided[producer_id, epoch] == {is_commit}
        for _, producer_id, epoch, is_commit in self.told:
            assert decided[producer_id, epoch + 1] == {is_commit}
        error, transactions = world.coordinator.list_transactions()
        assert not error
        found = {txn.transactional_id: txn.snapshot() for txn in transactions}
        assert found == {name: each for name, each in last.items() if each is not None}
        assert all(txn.state in AT_REST and not txn.pending for txn in transactions)
        assert world.coordinator.statistics()["markers_parked"] == 0


def _count(records):
    log = Log(None)
    log.batches = [(0, records)]
    return len(log.values())


@pytest.mark.parametrize("block", range(6))
def test_histories(block):
    async def main(seed):
        async with trio.open_nursery() as nursery:
            world = World(nursery, transactional_id_expiration_ms=2_500)
            await world.start()
            await History(world, seed).run(150)
            nursery.cancel_scope.cancel()

    for seed in range(block * 10, block * 10 + 10):
        try:
            trio.run(main, seed, clock=trio.testing.MockClock(autojump_threshold=0))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
