"""The course of a run: what happens in a world from its start to its judgement.

Start everything; make the topics; the clients begin; the plan's faults come; everything is healed;
within a virtual deadline every client must have made progress; then the clients stop, all
partitions are read to their ends, and the history is judged.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import trio

from sim import preset
from sim.bank import bank_configs, judge_bank
from sim.clients import clients_of
from sim.faults import Faults
from sim.keyed import KeyedReader
from sim.names import (
    BANK_TOPIC,
    KEYED_TOPIC,
    SHARE_GROUP,
    SHORT_TOPIC,
    TOPIC,
    TXN_PARTITIONS,
    TXN_TOPIC,
)
from sim.pipeliner import NotAckedError
from sim.rights import judge_rights
from sim.transactions.judge import judge_transactions
from sim.transactions.owners import look_at_owners
from sim.workload import EARLIEST, LATEST, Admin, Consumer

if TYPE_CHECKING:
    from sim.clients import Client
    from sim.history import Partition
    from sim.world import World

#: Virtual seconds after the heal within which everybody must have made progress.
LIVENESS_SECONDS = 60.0
#: A node that is down is looked for this often, and started.
SUPERVISE_SECONDS = 0.5
#: One look at all ledgers in so many at the chains.
LEDGER_LOOK_TURNS = 10


class LivenessError(Exception):
    """Something does not go on although nothing is in its way; names it."""


class Course:
    def __init__(self, world: World) -> None:
        self._world = world
        self._faults = Faults(world)

    async def run(self) -> None:
        """Violation, LivenessError, CrashError; and what else broke."""
        async with self._world.open() as nursery:
            await self._run(nursery)

    async def _run(self, nursery: trio.Nursery) -> None:
        world = self._world
        for node in world.nodes:
            if not node.is_spare:
                node.start()
        nursery.start_soon(self._supervise)
        admin = Admin(world, "admin-0")
        with _Deadline("making the topic"):
            await admin.create(TOPIC, world.shape.partitions, preset.topic_configs(world.shape))
            if world.shape.share_members:
                await admin.set_group(SHARE_GROUP, preset.SHARE_GROUP_CONFIGS)
            if world.shape.retention:
                await admin.create(SHORT_TOPIC, 1, preset.retention_configs(world.seed))
            if world.shape.keyed:
                await admin.create(KEYED_TOPIC, 1, preset.keyed_configs(world.seed))
            if world.shape.transactional:
                configs = preset.txn_configs(world.seed, world.shape)
                await admin.create(TXN_TOPIC, TXN_PARTITIONS, configs)
            if world.shape.tellers:
                await admin.create(BANK_TOPIC, 1, bank_configs(world.seed))
        self._start_clients(nursery)
        nursery.start_soon(self._watch_chains)
        await self._follow_plan()
        await self._heal()
        await self._drain()
        for node in world.nodes:
            world.gather_node(node)
            world.trace.counts["read errors"] += node.disk.read_error_count
        world.trace.counts["stale metadata reads"] += world.store_faults.stale_read_count

    def _start_clients(self, nursery: trio.Nursery) -> None:
        for client in clients_of(self._world):
            self._world.busy[client.name] = None
            nursery.start_soon(self._run_client, client)

    async def _run_client(self, client: Client) -> None:
        try:
            await client.run()
        except NotAckedError as error:
            raise LivenessError(str(error)) from error
        del self._world.busy[client.name]

    async def _supervise(self) -> None:
        """Starts what is down, as an operator's service manager would."""
        world = self._world
        while True:
            await trio.sleep(SUPERVISE_SECONDS)
            now = trio.current_time()
            for node in world.nodes:
                is_wanted = now >= world.down_until.get(node.name, 0.0)
                if is_wanted and not (node.is_up or node.is_spare):
                    node.start()

    async def _watch_chains(self) -> None:
        """Judges each state of each partition's document in metadata, and what owners have in
        memory."""
        world = self._world
        nothing: dict[str, int] = {}
        turn = 0
        while not world.is_draining:
            await trio.sleep(0.02)
            world.look_at_chains(nothing)
            look_at_owners(world)
            turn += 1
            if turn % LEDGER_LOOK_TURNS == 0:
                world.storage.look()

    async def _follow_plan(self) -> None:
        for fault in self._world.plan:
            await trio.sleep_until(fault.at_seconds)
            self._faults.begin(fault)
        await trio.sleep(1.0)

    async def _heal(self) -> None:
        world = self._world
        world.trace.event("world", "heal")
        world.is_healed, world.healed_at = True, trio.current_time()
        world.down_until.clear()
        self._faults.heal()
        before = Counter(world.progress)
        clients = list(world.busy)
        waiting = clients
        try:
            with _Deadline("the clients"):
                while waiting:
                    await trio.sleep(0.1)
                    waiting = [n for n in clients if world.progress[n] < before[n] + 3]
                    waiting += [n.name for n in world.nodes if not (n.is_serving or n.is_spare)]
        except LivenessError:
            raise LivenessError(f"no progress after the heal: {', '.join(waiting)}") from None

    async def _drain(self) -> None:
        """Stops the clients, and reads everything once more, with a client of its own."""
        world = self._world
        world.is_draining = True
        with _Deadline("the last requests"):
            while world.busy:  # noqa: ASYNC110  # an event would say nothing earlier
                await trio.sleep(0.1)
        with _Deadline("the end of rivals"):
            # One of two that own everything may not have heard yet of what the other took over,
            # and would show an older end of a log, as a deposed leader may.
            while world.has_rivals:  # noqa: ASYNC110  # as above
                await trio.sleep(0.1)
        final = {}
        reader = Consumer(world, "judge")
        for partition in world.partitions:
            with _Deadline(f"reading {partition}"):
                final[partition] = await self._read_all(reader, partition)
        world.history.check(final)
        world.share.check(final)
        if world.shape.transactional:
            with _Deadline("judging transactions"):
                await judge_transactions(world)
        if world.shape.keyed:
            await self._judge_keyed()
        if world.shape.acl_admins and world.shape.is_cluster:
            with _Deadline("judging rights"):
                await judge_rights(world)
        if world.shape.tellers:
            with _Deadline("judging the bank"):
                await judge_bank(world)
        entries = await world.storage.judge()
        world.trace.event("world", "copies", f"{entries} entries")
        world.trace.counts["entries judged"] += entries
        await world.storage.judge_repairs()
        total = sum(len(records) for _, records in final.values())
        world.trace.event("world", "judged", f"{total} records, {world.history.ack_count} acked")
        world.trace.counts["records"] += total
        world.trace.counts["acked"] += world.history.ack_count
        if not (world.history.ack_count or world.bank.committed):
            raise LivenessError("nothing was acknowledged in the whole run")

    async def _judge_keyed(self) -> None:
        world = self._world
        reader = KeyedReader(world, "keyed-judge")
        with _Deadline("reading what is compacted"):
            while (count := await reader.read_all()) is None:
                pass
            world.trace.counts["keyed records left"] += count
        world.trace.counts["keyed acked"] += world.keyed.ack_count

    @staticmethod
    async def _read_all(
        reader: Consumer, partition: Partition
    ) -> tuple[int, list[tuple[int, bytes]]]:
        start = end = None
        while start is None:
            start = await reader.offset(partition, EARLIEST)
        while end is None:
            end = await reader.offset(partition, LATEST)
        reader.positions[partition] = start
        records: list[tuple[int, bytes]] = []
        while reader.positions[partition] < end:
            records += await reader.poll(partition) or []
        # It may have moved under the reader.
        start = None
        while start is None:
            start = await reader.offset(partition, EARLIEST)
        return start, [record for record in records if record[0] >= start]


class _Deadline:
    """LivenessError unless the block ends in time."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._scope = trio.CancelScope()

    def __enter__(self) -> None:
        self._scope.deadline = trio.current_time() + LIVENESS_SECONDS
        self._scope.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        handled = self._scope.__exit__(type(error) if error else None, error, None)
        if self._scope.cancelled_caught:
            raise LivenessError(f"not done within {LIVENESS_SECONDS:g} s: {self._what}")
        return bool(handled)
