"""A share coordinator on logs in memory, which acknowledge when a test says so, refuse, are lost,
and are held anew with what was acknowledged."""

from __future__ import annotations

import random
import uuid
from types import SimpleNamespace

import trio
import trio.testing

from broker.share.ports import ShareKey, StateBatch
from broker.share.state.config import ShareStateConfig
from broker.share.state.coordinator import ShareStateCoordinator
from broker.share.state.share_state_core import Write
from runtime.env import Env
from runtime.turn import Turn
from tests.broker.coordinator.conftest import Inline, TestLog
from wire.kafka.errors import ErrorCode as E
from wire.kafka.errors import KafkaError

TOPIC = "__share_group_state"
T = uuid.UUID(int=77)
KEY = ShareKey("g", T, 0)


class World:
    """One partition of the topic. `T` is a topic of eight partitions."""

    def __init__(self, nursery, **config):
        self.turn = Turn()
        clock = SimpleNamespace(
            time_ms=lambda: 1_700_000_000_000 + int(trio.current_time() * 1000),
            monotonic=trio.current_time,
        )
        env = Env(clock=clock, rng=random.Random(1), net=None, disk=Inline(), turn=self.turn)
        self.config = ShareStateConfig(state_topic_num_partitions=1, **config)
        self.logs, self.listeners = {}, []
        self.topics = {T: SimpleNamespace(partition_count=8)}
        self.coordinator = ShareStateCoordinator(env, self.config, {}, self, self)
        self.nursery = nursery
        self.deleted = []

    async def start(self):
        self.nursery.start_soon(self.turn.serve)
        await self.nursery.start(self.coordinator.run)
        await self.hold()
        return self

    # the catalog

    def get_by_id(self, topic_id):
        return self.topics.get(topic_id)

    # the log manager, and the catalog's look-up by name

    def get(self, topic, partition=None):
        assert topic == TOPIC
        if partition is None:
            return SimpleNamespace(partition_count=1)
        if partition not in self.logs:
            raise KafkaError(E.NOT_LEADER_OR_FOLLOWER)
        return self.logs[partition]

    def subscribe(self, listener):
        self.listeners.append(listener)

    async def delete_records(self, topic, partition, offset):
        await trio.lowlevel.checkpoint()
        log = self.get(topic, partition)
        assert offset <= log.high_watermark
        self.deleted.append(offset)
        log.log_start_offset = max(log.log_start_offset, offset)
        return log.log_start_offset

    @property
    def log(self):
        return self.logs[0]

    async def hold(self, batches=(), log_start_offset=0):
        log = self.logs[0] = TestLog(batches)
        log.leader_epoch = 1
        log.log_start_offset = log_start_offset
        for listener in self.listeners:
            listener(TOPIC, 0)
        log.go_online()
        await trio.testing.wait_all_tasks_blocked()
        return log

    async def take_over(self, unacknowledged=0):
        """Another tenure, with so much of what was on its way."""
        old = self.log
        lost = old.go_offline()
        await trio.testing.wait_all_tasks_blocked()
        await self.hold([*old.batches, *lost[:unacknowledged]], old.log_start_offset)

    # requests

    def ask(self, name, key, *arguments):
        """The answers so far, which the caller keeps."""
        answers = []
        steps = getattr(self.coordinator, name)(key, *arguments, answers.append)
        for _ in steps or ():
            pass
        return answers

    def write(self, *batches, key=KEY, state_epoch=1, leader_epoch=-1, start=-1, count=-1):
        batches = [StateBatch(*each) for each in batches]
        return self.ask("write", key, Write(state_epoch, leader_epoch, start, count, batches))

    async def told(self, answers):
        """The one answer, once the log has acknowledged."""
        await trio.testing.wait_all_tasks_blocked()
        while self.log.in_flight and not answers:
            self.log.ack(1)
            await trio.testing.wait_all_tasks_blocked()
        (answer,) = answers
        return answer

    async def begin(self, key=KEY, state_epoch=1, start_offset=-1):
        answer = await self.told(self.ask("initialize", key, state_epoch, start_offset))
        assert answer.error is E.NONE

    @property
    def shard(self):
        (shard,) = self.coordinator.base.shards()
        return shard
