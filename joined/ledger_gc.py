"""What a bookie may know of its ledgers from the metadata (bookie/known_ledgers.py).

Who deletes a ledger because metadata does not have it deletes what he cannot make again. So:
- metadata catches up first (`MetadataStore.sync`): ZooKeeper answers reads from a server that may
  be some 10 s behind;
- a ledger that is absent from a listing is looked up directly, and only an answer of «no such
  node» counts;
- it must be missing twice, at looks that are ABSENT_SECONDS_MIN apart at least. `sync` is answered
  by ZooKeeper's leader alone; a leader that was deposed, and has not heard of it, gives up before
  that (tickTime * syncLimit, 10 s as ZooKeeper is shipped). A minute is also what somebody has who
  removed or restored metadata by mistake;
- nothing goes if `/ledgers`, its LAYOUT or its INSTANCEID is missing, or if INSTANCEID is not the
  one that was there first: then this is not, or not yet, the tree that the bookie's ledgers are in.

What was missing is remembered in memory only: after a restart a ledger is looked at twice again.
"""

from __future__ import annotations

import logging
from array import array
from contextlib import aclosing
from math import inf
from typing import TYPE_CHECKING

import trio

from bookie.known_ledgers import CollectionRefusedError
from bookie.storage.sorting import sort_in_slices
from joined.absent_ledgers import AbsentLedgers
from ledger.errors import LedgerError, NoSuchLedgerError
from ledger.ledger_walk import FOLDER_SIZE, walk_ledger_ids
from metadata.store import MetadataError
from runtime.logs import kv
from runtime.slices import Slices
from runtime.throttle import Throttle
from wire.bookkeeper.entry import Digest
from wire.bookkeeper.ledger_metadata import MetadataFormatError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from joined.over_replicated import SurplusCopies
    from ledger.metadata import LedgerManager

logger = logging.getLogger(__name__)

ABSENT_SECONDS_MIN = 60.0
#: Of a bookie's, before others have the loop: 1 ms.
LEDGERS_PER_TURN = 5000


class MetadataLedgers:
    """Memory: a time for each of the bookie's ledgers that was found missing once."""

    def __init__(
        self,
        manager: LedgerManager,
        reads_per_second: float,
        absent_seconds: float,
        surplus: SurplusCopies | None = None,
    ) -> None:
        """`reads_per_second`: gcMetadataOpRateLimit, of the direct look-ups. `absent_seconds`:
        ABSENT_SECONDS_MIN where others change metadata; simulations pass less. Without `surplus`
        no copy is over-replicated."""
        self._manager = manager
        self._surplus = surplus
        self._throttle = Throttle(reads_per_second)
        self._absent_seconds = absent_seconds
        #: Found missing once, when: on the loop's clock.
        self._absent = AbsentLedgers()
        self._instance_id: str | None = None

    @property
    def seconds_to_confirm(self) -> float:
        if not self._absent:
            return inf
        # All that were found at one look are confirmed at one.
        return max(self._absent.last + self._absent_seconds - trio.current_time(), 0.0)

    async def gone(self, ledger_ids: Sequence[int]) -> list[int]:
        await self._catch_up()
        try:
            missing = await self._missing(ledger_ids)
        except (LedgerError, MetadataError) as error:
            raise CollectionRefusedError(f"ledgers cannot be listed: {error}") from error
        slices = Slices(LEDGERS_PER_TURN)
        for number, portion in self._absent.portions():
            if slices.due(len(portion)):
                await slices.turn()
            of_folder = missing.get(number, set())
            for ledger_id, _ in portion:
                if ledger_id in of_folder:
                    of_folder.discard(ledger_id)  # not its first look
                else:
                    self._absent.discard(ledger_id)
        found = await self._confirm()
        await self._look(missing)
        return found

    async def _missing(self, ledger_ids: Sequence[int]) -> dict[int, set[int]]:
        """Those of the bookie's that the metadata does not list, by the number of their folder. All
        that is listed would be too much to remember: a folder's ledgers are compared with the
        bookie's of the same folder.

        A ledger is in the metadata before anything of it is at a bookie, so a listing that is
        younger than `ledger_ids` has each that lives. LedgerError, MetadataError."""
        folders: dict[int, array[int]] = {}
        slices = Slices(LEDGERS_PER_TURN)
        for start in range(0, len(ledger_ids), LEDGERS_PER_TURN):
            some = ledger_ids[start : start + LEDGERS_PER_TURN]
            if slices.due(len(some)):
                await slices.turn()
            for ledger_id in some:
                folder = folders.get(ledger_id // FOLDER_SIZE)
                if folder is None:
                    folder = folders[ledger_id // FOLDER_SIZE] = array("q")
                folder.append(ledger_id)
        async with aclosing(walk_ledger_ids(self._manager.store, self._manager.root)) as portions:
            async for listed in portions:
                number = listed[0] // FOLDER_SIZE
                # Where short ids end and long ones begin two folders have one number.
                left = set(folders.pop(number, ())).difference(listed)
                if left:
                    folders[number] = array("q", left)
                await trio.lowlevel.checkpoint()
        missing: dict[int, set[int]] = {}
        for number, had in folders.items():
            missing[number] = set(had)
            await trio.lowlevel.checkpoint()
        return missing

    async def confirmed(self) -> list[int]:
        await self._catch_up()
        return await self._confirm()

    async def _catch_up(self) -> None:
        """CollectionRefusedError unless this is the tree, and what is read from now on knows all
        that was there when it was called."""
        try:
            await self._manager.sync()
            instance_id = await self._manager.read_instance_id()
        except (LedgerError, MetadataError) as error:
            raise CollectionRefusedError(str(error)) from error
        if self._instance_id is None:
            self._instance_id = instance_id
        elif self._instance_id != instance_id:
            raise CollectionRefusedError(
                f"INSTANCEID is {instance_id}, and was {self._instance_id}: of another cluster"
            )

    async def _confirm(self) -> list[int]:
        """The second look at those that were missing long enough ago."""
        oldest = trio.current_time() - self._absent_seconds
        found: list[int] = []
        slices = Slices(LEDGERS_PER_TURN)
        for _, portion in self._absent.portions():
            if slices.due(len(portion)):
                await slices.turn()
            for ledger_id, since in portion:
                if since > oldest:
                    continue
                # Whatever is found now: it is gone, or it is looked at twice again.
                self._absent.discard(ledger_id)
                if await self._is_gone(ledger_id):
                    found.append(ledger_id)
        return found

    async def _look(self, missing: dict[int, set[int]]) -> None:
        """The first look."""
        for number in await sort_in_slices(missing):
            for ledger_id in await sort_in_slices(missing[number]):
                if await self._is_gone(ledger_id):
                    self._absent.add(ledger_id, trio.current_time())

    async def _is_gone(self, ledger_id: int) -> bool:
        """Of the tree as it was at the last `sync`, or newer."""
        await self._throttle.take(1)
        try:
            await self._manager.read(ledger_id)
        except NoSuchLedgerError:
            return True
        except (LedgerError, MetadataError) as error:
            logger.warning("gc_keeps_ledger", kv(ledger=ledger_id, error=error))
        return False

    async def over_replicated(
        self, ledger_ids: Sequence[int], give_up: Callable[[list[int]], Awaitable[None]]
    ) -> None:
        if self._surplus is None:
            return
        await self._catch_up()
        try:
            await self._surplus.give_up(ledger_ids, self._throttle, give_up)
        except (LedgerError, MetadataError, MetadataFormatError) as error:
            raise CollectionRefusedError(str(error)) from error

    async def digest(self, ledger_id: int) -> Digest | None:
        await self._throttle.take(1)
        try:
            metadata = (await self._manager.read(ledger_id)).metadata
        except (LedgerError, MetadataError):
            return None
        if metadata.digest_type is None or metadata.password is None:
            return None
        return Digest(metadata.digest_type, metadata.password)
