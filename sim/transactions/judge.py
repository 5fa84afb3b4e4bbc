"""The last look at transactions, when nobody writes any more: all are ended, and the logs, the
groups' offsets and what every reader was given agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from sim.history import Violation
from sim.transactions.decided import decide
from sim.transactions.producer import TIMEOUT_MS_MAX
from sim.transactions.reader import SLACK_SECONDS, TxnReader
from sim.workload import LATEST

if TYPE_CHECKING:
    from sim.history import Partition
    from sim.transactions.decided import Decided
    from sim.world import World

LOOK_SECONDS = 0.2


async def judge_transactions(world: World) -> None:
    """Violation."""
    everything = TxnReader(world, "txn-judge-all", is_committed=False)
    committed = TxnReader(world, "txn-judge", is_committed=True)
    for partition in world.txn_partitions:
        await _wait_until_ended(world, partition, everything, committed)
    logs: dict[Partition, Decided] = {}
    for partition in world.plain_txn_partitions:
        while (found := await everything.read_all(partition)) is None:
            pass
        logs[partition] = decide(*found)
        while await committed.read_all(partition) is None:
            pass
    fates = world.txns.check(logs)
    for transactional_id in sorted({txn.transactional_id for txn in world.txns.txns}):
        while (offset := await committed.group_offset(transactional_id)) is None:
            pass
        world.txns.check_offset(transactional_id, offset, fates)
    counts = world.trace.counts
    counts["transactions"] += len(fates)
    counts["transactions committed"] += sum(fate is True for fate in fates.values())
    counts["transactions aborted"] += sum(fate is False for fate in fates.values())
    counts["transactions of unknown end, committed"] += sum(
        bool(fate) and txn.told is None for txn, fate in fates.items()
    )
    counts["records in transactions"] += sum(len(log.fates) for log in logs.values())
    counts["markers"] += sum(len(log.markers) for log in logs.values())


async def _wait_until_ended(
    world: World, partition: Partition, everything: TxnReader, committed: TxnReader
) -> None:
    """Those that were left open are aborted when their time is up."""
    deadline = trio.current_time() + TIMEOUT_MS_MAX / 1000 + SLACK_SECONDS
    while True:
        end = await everything.offset(partition, LATEST)
        stable = await committed.offset(partition, LATEST)
        if end is not None and stable == end:
            return
        if trio.current_time() > deadline:
            raise Violation("open", f"{partition}: stable at {stable} of {end}, at the very end")
        world.trace.event("world", "unended", f"{partition} {stable} of {end}")
        await trio.sleep(LOOK_SECONDS)
