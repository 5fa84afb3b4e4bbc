"""What the owners of partitions with transactions have for the last stable offset.

A last stable offset rests on what is durable alone: the high watermark, open transactions, and
those whose marker is not acknowledged. So none is ever less than one of an earlier leader epoch,
whoever has it, and whether or not a client asks. Looked at often, and in the moment in which a
partition is taken over: the marker is told again so soon that hardly a client asks before it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from broker.log.partition import State
from sim.history import Violation
from wire.kafka.errors import KafkaError

if TYPE_CHECKING:
    from broker.log.manager import LogManager
    from broker.log.partition import PartitionLog
    from sim.world import World


def watch_owner(world: World, name: str, logs: LogManager) -> None:
    """From now on, each time that a partition's log of this broker comes online."""

    def begins(topic: str, number: int) -> None:
        if (topic, number) in world.txn_partitions:
            log = logs.get(topic, number)
            log.watch(partial(_look_or_fail, world, name, log))

    logs.subscribe(begins)


def look_at_owners(world: World) -> None:
    """At what each broker has now that takes itself for an owner. Violation."""
    for broker in world.brokers:
        if broker.logs is None:
            continue
        for partition in world.txn_partitions:
            try:
                log = broker.logs.get(*partition)
            except KafkaError:
                continue
            _look(world, broker.name, log)


def _look_or_fail(world: World, name: str, log: PartitionLog) -> None:
    """In the midst of the broker's own work."""
    try:
        _look(world, name, log)
    except Violation as violation:
        world.fail(violation)


def _look(world: World, name: str, log: PartitionLog) -> None:
    if log.state is State.ONLINE:
        epoch = log.leader_epoch
        world.txns.stable(
            f"{name} in epoch {epoch}",
            (log.topic.name, log.partition),
            log.last_stable_offset,
            log.high_watermark,
            log.log_start_offset,
            epoch,
        )
