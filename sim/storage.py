"""Reads what metadata and the bookies hold, for the judges of sim/ledgers.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from bookie.errors import IndexReadError
from broker.cluster.topic import PARTITIONS_PATH
from ledger.metadata import ledger_path
from sim.chains import chain_at, chain_paths
from sim.copies import thin_entries, wait_repaired
from sim.history import Violation
from sim.ledgers import LedgerHistory, check_chain, check_copies
from sim.nodes import BOOKIE_PORT, ROOT
from wire.bookkeeper.ledger_metadata import parse
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sim.nodes import BookieNode
    from sim.world import World
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

#: A ledger that is not in order at the end is looked at again for so long: a repair may be under
#: way, or the deletion of what nobody needs.
SETTLE_SECONDS = 20.0


class Storage:
    def __init__(self, world: World) -> None:
        self._world = world
        self._history = LedgerHistory()
        self._versions: dict[int, int] = {}

    # -- metadata ------------------------------------------------------------------------------

    def ledger(self, ledger_id: int) -> LedgerMetadata | None:
        row = self._world.tree.table.find(ledger_path(ROOT, ledger_id))
        return None if row is None else parse(row.data)

    def _ledger_ids(self) -> Iterator[int]:
        """Short ids only: a world makes no others."""
        table = self._world.tree.table
        if table.find(ROOT) is None:
            return
        for high in table.children(ROOT):
            if not (len(high) == 2 and high.isdecimal()):
                continue
            for middle in table.children(f"{ROOT}/{high}"):
                for low in table.children(f"{ROOT}/{high}/{middle}"):
                    yield int(high + middle + low.removeprefix("L"))

    def look(self) -> None:
        """Judges what metadata says now. Violation."""
        table = self._world.tree.table
        for ledger_id in self._ledger_ids():
            row = table.find(ledger_path(ROOT, ledger_id))
            if row is not None and self._versions.get(ledger_id) != row.version:
                self._versions[ledger_id] = row.version
                metadata = parse(row.data)
                self._history.see(ledger_id, metadata)
                if self._world.witness is not None:
                    self._world.witness.changed(ledger_id, metadata)
        for path in chain_paths(table):
            chain = chain_at(table, path)
            if chain is not None:
                check_chain(path.removeprefix(f"{PARTITIONS_PATH}/"), chain, self.ledger)

    # -- bookies -------------------------------------------------------------------------------

    async def judge(self) -> int:
        """At the end, when all nodes run and no client writes. Violation; else how many entries
        were judged."""
        deadline = trio.current_time() + SETTLE_SECONDS
        while True:
            try:
                self.look()
                return await self._check_all()
            except Violation:
                if trio.current_time() > deadline:
                    raise
                await trio.sleep(1.0)

    async def judge_repairs(self) -> None:
        """After `judge`, where auto-recovery runs. Violation."""
        if not self._world.recoverers:
            return
        for node in self._world.bookies:
            if node.bookie is not None and node.bookie.is_running:
                # Of the log that is being written the scrub looks at what is flushed.
                await node.bookie.flush()
                await node.bookie.scrubber.scrub()
        await wait_repaired(self._thin_entries)

    async def _thin_entries(self) -> list[str]:
        found: list[str] = []
        for ledger_id in list(self._ledger_ids()):
            copies = await self._copies(ledger_id)
            metadata = self.ledger(ledger_id)
            if metadata is not None:
                found += thin_entries(ledger_id, metadata, copies)
        return found

    async def _check_all(self) -> int:
        spoilt = 0 if self._world.rotten is None else 1
        count = 0
        for node in self._world.bookies:
            if node.name != self._world.rotten:
                self._check_index(node)
        for ledger_id in list(self._ledger_ids()):
            copies = await self._copies(ledger_id)
            metadata = self.ledger(ledger_id)
            if metadata is not None:
                count += check_copies(ledger_id, metadata, copies, spoilt=spoilt)
        return count

    async def _copies(self, ledger_id: int) -> dict[str, dict[int, bytes]]:
        copies: dict[str, dict[int, bytes]] = {}
        for node in self._world.bookies:
            copies[f"{node.name}:{BOOKIE_PORT}"] = await self._entries(node, ledger_id)
        return copies

    @staticmethod
    def _check_index(node: BookieNode) -> None:
        """Places are of ledgers that are there, and in logs that are there. Violation."""
        bookie = node.bookie
        if bookie is None or not bookie.is_running:
            return
        known = {*bookie.list_ledgers(), *bookie._checkpointer.deletions}
        for ledger_id, entry_id, place in node.index.locations():
            what = f"{node.name}: ledger {ledger_id} entry {entry_id} in log {place >> 32:x}"
            if ledger_id not in known:
                raise Violation("dead place", f"{what}, and the ledger was deleted there")
            if bookie._logs.get(place >> 32) is None:
                raise Violation("dead place", f"{what}, and there is no such log")

    @staticmethod
    async def _entries(node: BookieNode, ledger_id: int) -> dict[int, bytes]:
        bookie = node.bookie
        if bookie is None or not bookie.is_running:
            return {}
        found: dict[int, bytes] = {}
        try:
            entry_ids = await bookie.entries(ledger_id) or ()
        except IndexReadError:
            return {}  # as if all of the ledger was damaged here
        for entry_id in entry_ids:
            status, entry = await bookie.read_entry(ledger_id, entry_id)
            if status is Status.EOK:
                found[entry_id] = bytes(entry)
        return found
