"""CandidateSource: the bookies as placements see them, kept current.

Who is there comes from the BookieWatcher, where they are from a Topology or, where that does not
know, from their registration, and how much room they have from themselves (GET_BOOKIE_INFO), if
that is wanted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from ledger.placement.policy import DEFAULT_LOCATION, Candidate
from ledger.placement.topology import (
    DefaultTopology,
    TopologyError,
    checked_location,
    locations_or_default,
)
from runtime.logs import kv
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from ledger.bookie_client import BookieClient, BookieId
    from ledger.bookie_watcher import BookieWatcher
    from ledger.placement.topology import Topology

logger = logging.getLogger(__name__)

#: getBookieInfoIntervalSeconds and getBookieInfoRetryIntervalSeconds
BOOKIE_INFO_INTERVAL_SECONDS = 24 * 3600.0
BOOKIE_INFO_RETRY_SECONDS = 60.0


class CandidateSource:
    """`snapshot` is what SpreadPlacement takes. Start `run` once the watcher runs."""

    def __init__(
        self,
        watcher: BookieWatcher,
        topology: Topology | None = None,
        bookies: BookieClient | None = None,
        *,
        info_interval_seconds: float = BOOKIE_INFO_INTERVAL_SECONDS,
        info_retry_seconds: float = BOOKIE_INFO_RETRY_SECONDS,
    ) -> None:
        """With `bookies` they are asked for their free space."""
        self._watcher = watcher
        self._topology = topology if topology is not None else DefaultTopology()
        self._bookies = bookies
        self._info_interval = info_interval_seconds
        self._info_retry = info_retry_seconds
        self._locations: dict[BookieId, str] = {}
        self._free_bytes: dict[BookieId, int] = {}
        self._changed = trio.Event()

    def snapshot(self) -> list[Candidate]:
        watcher = self._watcher
        return [
            Candidate(
                bookie,
                self._locations.get(bookie, DEFAULT_LOCATION),
                bookie in watcher.writable,
                self._free_bytes.get(bookie),
            )
            for bookie in sorted(watcher.writable | watcher.read_only)
        ]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """`started` once everybody's location is known; until cancelled."""
        self._watcher.subscribe(self._on_change)
        await self._locate()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            if self._bookies is not None:
                nursery.start_soon(self._ask_for_space, self._bookies)
            task_status.started()

    def _on_change(self) -> None:
        self._changed.set()

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            await self._locate()

    async def _locate(self) -> None:
        """Those that are new; a bookie does not move while this runs."""
        new = [
            bookie
            for bookie in sorted(self._watcher.writable | self._watcher.read_only)
            if bookie not in self._locations
        ]
        if not new:
            return
        addresses = [self._watcher.resolve(bookie) for bookie in new]
        hosts = [
            bookie if address is None else address[0]
            for bookie, address in zip(new, addresses, strict=True)
        ]
        found = await locations_or_default(self._topology, hosts)
        for number, bookie in enumerate(new):
            if found[number] == DEFAULT_LOCATION and (told := self._told(bookie)) is not None:
                found[number] = told
        self._locations.update(zip(new, found, strict=True))
        logger.info("bookies_located", kv(count=len(new), racks=len(set(found))))

    def _told(self, bookie: BookieId) -> str | None:
        """What the bookie says of itself, if it makes sense."""
        told = self._watcher.location(bookie)
        if told is None:
            return None
        try:
            return checked_location(told, f"bookie {bookie}")
        except TopologyError as error:
            logger.warning("bad_location", kv(error=error))
            return None

    async def _ask_for_space(self, bookies: BookieClient) -> None:
        while True:
            wanted = sorted(self._watcher.writable)
            failures: list[BookieId] = []

            async def ask(bookie: BookieId, failures: list[BookieId] = failures) -> None:
                space = await bookies.bookie_info(bookie)
                if space.status is Status.EOK:
                    self._free_bytes[bookie] = space.free_bytes
                else:
                    failures.append(bookie)

            known_count = len(self._free_bytes)
            async with trio.open_nursery() as nursery:
                for bookie in wanted:
                    nursery.start_soon(ask, bookie)
            if len(self._free_bytes) != known_count:
                logger.info("bookies_told_free_space", kv(count=len(self._free_bytes)))
            is_new = set(wanted) != self._watcher.writable
            pause = self._info_retry if failures or is_new or not wanted else self._info_interval
            with trio.move_on_after(pause):
                await self._changed.wait()
                # New bookies say where they are first.
                await trio.lowlevel.checkpoint()
