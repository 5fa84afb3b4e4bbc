"""LacFollower: how a reader of an open ledger learns how far it may read.

Bookies learn a ledger's LAC from later entries, or from an explicit one. A long poll lets one of
them say so at once; another is asked too when it takes long (ReadLastConfirmedAndEntryOp.java).
Meanwhile the ledger's metadata is watched: its end, or another ensemble, ends the poll.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

from ledger.errors import LedgerError
from wire.bookkeeper.entry import DigestMismatchError, parse_header
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from ledger.bookie_client import BookieClient, BookieId, LacRecord
    from ledger.config import LedgerClientConfig
    from ledger.health import BookieHealth
    from ledger.metadata import LedgerManager
    from ledger.statistics import LedgerStatistics
    from wire.bookkeeper.entry import Digest
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

#: Between polls that told nothing, growing; else a bookie that answers at once (the ledger is being
#: recovered, the bookie is gone) would be asked without end.
PAUSE_SECONDS = 0.02
PAUSE_MAX_SECONDS = 1.0


class Followed(Protocol):
    """The reader."""

    ledger_id: int
    last_add_confirmed: int
    metadata: LedgerMetadata

    async def refresh(self) -> bool:
        """Reads the metadata again; whether it has changed."""


class LacFollower:
    __slots__ = (
        "_bookies",
        "_digest",
        "_health",
        "_manager",
        "_reader",
        "_speculation_seconds",
        "_statistics",
        "_timeout_max_ms",
    )

    def __init__(
        self,
        reader: Followed,
        digest: Digest,
        bookies: BookieClient,
        manager: LedgerManager,
        config: LedgerClientConfig,
        statistics: LedgerStatistics,
        health: BookieHealth,
    ) -> None:
        self._reader = reader
        self._digest = digest
        self._bookies = bookies
        self._manager = manager
        self._statistics = statistics
        self._health = health
        self._speculation_seconds = config.speculative_lac_timeout_ms / 1000
        self._timeout_max_ms = config.long_poll_timeout_max_ms

    async def wait_for(self, last_add_confirmed: int, timeout_ms: int) -> None:
        """Returns when the reader's LAC is at least that, its ledger is closed, or the time is
        over. NoSuchLedgerError if it is deleted meanwhile; LedgerMetadataError."""
        reader = self._reader
        deadline = trio.current_time() + timeout_ms / 1000
        watch = self._manager.watch(reader.ledger_id)
        pause = PAUSE_SECONDS
        try:
            await reader.refresh()
            while reader.last_add_confirmed < last_add_confirmed and not reader.metadata.is_closed:
                left = deadline - trio.current_time()
                if left <= 0:
                    return
                before = (reader.last_add_confirmed, reader.metadata)
                with trio.move_on_after(left):
                    await self._poll(left, watch.changed)
                    if (reader.last_add_confirmed, reader.metadata) != before:
                        pause = PAUSE_SECONDS
                        continue
                    await trio.sleep(pause)
                    pause = min(2 * pause, PAUSE_MAX_SECONDS)
                    await reader.refresh()
        finally:
            watch.close()

    async def _poll(self, left: float, changed: Callable[[], Awaitable[None]]) -> None:
        """One round: ends with the first good answer, when none is left to wait for, or when the
        metadata has changed. NoSuchLedgerError, LedgerMetadataError."""
        reader = self._reader
        previous = reader.last_add_confirmed
        members = reader.metadata.ensemble_at(previous + 1)
        # First one that gets the entry which tells that `previous + 1` is confirmed.
        start = (previous + 2) % len(members)
        bookies = self._health.in_order([*members[start:], *members[:start]])
        timeout_ms = max(1, min(int(left * 1000), self._timeout_max_ms))

        failure: LedgerError | None = None

        async with trio.open_nursery() as nursery:
            scope = nursery.cancel_scope

            async def look() -> None:
                nonlocal failure
                await changed()
                try:
                    await reader.refresh()
                except LedgerError as error:
                    failure = error
                scope.cancel()

            async def ask_all() -> None:
                async with trio.open_nursery() as asking:
                    for bookie in bookies:
                        failed = trio.Event()
                        asking.start_soon(ask, bookie, failed)
                        with trio.move_on_after(self._speculation_seconds):
                            await failed.wait()
                scope.cancel()

            async def ask(bookie: BookieId, failed: trio.Event) -> None:
                self._statistics.long_polls += 1
                answer = await self._bookies.wait_lac(
                    bookie, reader.ledger_id, previous, timeout_ms=timeout_ms
                )
                if answer.status is Status.EOK:
                    if answer.last_add_confirmed > reader.last_add_confirmed:
                        reader.last_add_confirmed = answer.last_add_confirmed
                    scope.cancel()
                    return
                if answer.status is Status.EIO:
                    self._health.erred(bookie)
                failed.set()

            nursery.start_soon(look)
            nursery.start_soon(ask_all)
        if failure is not None:
            raise failure

    async def ask_lac(self, bookies: Sequence[BookieId]) -> int:
        """The highest LAC that any of them knows now: an explicit one, or an entry's. -1: none."""
        found = [-1]

        async def ask(bookie: BookieId) -> None:
            record = await self._bookies.read_lac(bookie, self._reader.ledger_id)
            if record.status is Status.EOK:
                found.extend(self._lacs_of(record))

        async with trio.open_nursery() as nursery:
            for bookie in bookies:
                nursery.start_soon(ask, bookie)
        return max(found)

    def _lacs_of(self, record: LacRecord) -> list[int]:
        """Only what its digest vouches for."""
        ledger_id = self._reader.ledger_id
        lacs: list[int] = []
        try:
            if record.packet is not None:
                lacs.append(self._digest.open_lac(record.packet, ledger_id))
            if record.last_entry is not None:
                header = parse_header(record.last_entry)
                self._digest.open(record.last_entry, ledger_id, header.entry_id)
                lacs.append(header.last_add_confirmed)
        except (DigestMismatchError, ValueError):
            self._statistics.digest_mismatches += 1
        return lacs
