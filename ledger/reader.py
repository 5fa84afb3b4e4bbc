"""LedgerReader: reads a ledger's entries up to its last confirmed one.

Each read goes to one replica, to others when that fails or takes long (replicas.py). With E = Qw
every bookie has every entry, and the one that answered last time is asked first (it has the next
entries in memory). With E > Qw a run is asked of several at once: each has Qw entries in a row.
A read that no replica can answer reads the ledger's metadata again: its entries may have been
copied to other bookies.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from ledger.distribution import Schedule
from ledger.errors import LedgerError, LedgerReadError, NoSuchEntryError, NoSuchLedgerError
from ledger.replicas import ReplicaReads
from ledger.tail import LacFollower
from runtime.logs import kv
from wire.bookkeeper import entry as entry_format
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.bookie_client import BookieId
    from ledger.client_parts import ClientParts
    from ledger.metadata import Versioned
    from wire.bookkeeper.entry import Digest
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

logger = logging.getLogger(__name__)

_EOK = Status.EOK


class LedgerReader:
    """`last_add_confirmed` is moved by the writer (or whoever follows the ledger); entries beyond
    it are never read, even where a bookie has them."""

    __slots__ = (
        "_bookies",
        "_cache",
        "_digest",
        "_follower",
        "_health",
        "_is_sticky",
        "_manager",
        "_preferred",
        "_replica_reads",
        "_schedule",
        "_segment_end",
        "_segment_first",
        "_segment_members",
        "_statistics",
        "_striped_read_batch",
        "_version",
        "_watch_scope",
        "last_add_confirmed",
        "ledger_id",
        "metadata",
    )

    def __init__(
        self,
        ledger_id: int,
        versioned: Versioned,
        last_add_confirmed: int,
        digest: Digest,
        parts: ClientParts,
    ) -> None:
        config, bookies, manager = parts.config, parts.bookies, parts.manager
        statistics, health = parts.statistics, parts.health
        self.ledger_id = ledger_id
        self._cache = parts.cache
        self._statistics = statistics
        self.last_add_confirmed = last_add_confirmed
        self._digest = digest
        self._bookies = bookies
        self._striped_read_batch = config.striped_read_batch
        self._manager = manager
        self._health = health
        self._replica_reads = ReplicaReads(ledger_id, digest, bookies, config, statistics, health)
        self._follower = LacFollower(self, digest, bookies, manager, config, statistics, health)
        #: Ends `follow_metadata`.
        self._watch_scope = trio.CancelScope()
        self._version = -1
        metadata = versioned.metadata
        self._schedule = Schedule(
            metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size
        )
        self._is_sticky = config.sticky_reads and not self._schedule.is_striped
        self.set_metadata(versioned)

    def set_metadata(self, versioned: Versioned) -> None:
        """Metadata of the same ledger: other ensembles, or its end. Older than what is known
        already says nothing.

        An ensemble changes from the first entry on that is not confirmed (invariant W4): what
        is in front of the last segment is, whether or not a bookie is left that would say so."""
        if versioned.version <= self._version:
            return
        self._version = versioned.version
        self.metadata: LedgerMetadata = versioned.metadata
        metadata = versioned.metadata
        if metadata.is_closed:
            self.last_add_confirmed = metadata.last_entry_id
        else:
            first_entry_id, _ = metadata.last_segment
            self.last_add_confirmed = max(self.last_add_confirmed, first_entry_id - 1)
        self._preferred: BookieId | None = None
        self._segment_first, self._segment_end = 0, 0
        self._segment_members: tuple[BookieId, ...] = ()

    def read_nowait(
        self, first_entry_id: int, *, count_max: int, size_max: int
    ) -> list[memoryview] | None:
        """As `read` if the cache or a bookie can answer at once; None also for what needs another
        replica, which is then `read`'s work. Views pin what they look into."""
        count = self._count(first_entry_id, count_max)
        if self._cache is not None:
            cached = self._cache.run(self.ledger_id, first_entry_id, count, size_max)
            if cached:
                return cached
        bookie = self._replicas(first_entry_id)[0]
        answer = self._bookies.read_entries_nowait(
            bookie, self.ledger_id, first_entry_id, count_max=count, size_max=size_max
        )
        if answer is None:
            return None
        status, entries = answer
        if status is not _EOK or not entries:
            return None
        self._statistics.reads += 1
        try:
            return self._digest.open_run(entries, self.ledger_id, first_entry_id)
        except entry_format.DigestMismatchError:
            return None

    async def read(self, first_entry_id: int, *, count_max: int, size_max: int) -> list[memoryview]:
        """Payloads of consecutive entries, at least one, digests checked: at most `count_max`, and
        `size_max` bytes unless the first is larger. May stop early (at a segment's end).

        NoSuchEntryError beyond the LAC; DigestMismatchError or LedgerReadError if no replica has
        the first entry intact."""
        if self._cache is None:
            return await self._read_uncached(first_entry_id, count_max, size_max)
        count = self._count(first_entry_id, count_max)
        return await self._cache.read(
            self.ledger_id, first_entry_id, count, size_max, self._read_uncached
        )

    async def _read_uncached(
        self, first_entry_id: int, count_max: int, size_max: int
    ) -> list[memoryview]:
        try:
            return await self._read(first_entry_id, count_max, size_max)
        except LedgerReadError:
            if not await self._is_moved():
                raise
        return await self._read(first_entry_id, count_max, size_max)

    async def _read(self, first_entry_id: int, count_max: int, size_max: int) -> list[memoryview]:
        count = self._count(first_entry_id, count_max)
        if self._schedule.is_striped and count > 1:
            return await self._read_striped(first_entry_id, count, size_max)
        return await self._read_run(first_entry_id, count, size_max)

    async def _is_moved(self) -> bool:
        try:
            return await self.refresh()
        except LedgerError:
            return False  # the read's own error says more

    async def refresh(self) -> bool:
        """Reads the metadata again; whether there is newer. NoSuchLedgerError,
        LedgerMetadataError."""
        before = self._version
        self.set_metadata(await self._manager.read(self.ledger_id))
        return self._version != before

    async def wait_for(self, last_add_confirmed: int, *, timeout_ms: int) -> int:
        """Waits until entry `last_add_confirmed` may be read, or the ledger is closed, or the time
        is over; returns the LAC that is known then. NoSuchLedgerError, LedgerMetadataError."""
        if self.last_add_confirmed < last_add_confirmed and not self.metadata.is_closed:
            await self._follower.wait_for(last_add_confirmed, timeout_ms)
        return self.last_add_confirmed

    async def read_last_add_confirmed(self) -> int:
        """Asks the metadata and the bookies of the last segment, explicit LACs included; the
        highest that is known then. Disturbs no writer. NoSuchLedgerError, LedgerMetadataError.

        Parity with BookKeeper's client (readLastAddConfirmed): the broker does not ask."""
        await self.refresh()
        if not self.metadata.is_closed:
            found = await self._follower.ask_lac(self.metadata.last_segment[1])
            self.last_add_confirmed = max(self.last_add_confirmed, found)
        return self.last_add_confirmed

    async def follow_metadata(self) -> None:
        """Keeps `metadata` as it is in the store (keepUpdateMetadata), until `close`, or the
        ledger's deletion."""
        watch = self._manager.watch(self.ledger_id)
        try:
            with self._watch_scope:
                while await self._is_there():
                    await watch.changed()
        finally:
            watch.close()

    async def _is_there(self) -> bool:
        try:
            await self.refresh()
        except NoSuchLedgerError:
            return False
        except LedgerError as error:
            logger.warning("metadata_not_read", kv(ledger=self.ledger_id, error=error))
        return True

    def close(self) -> None:
        """Ends `follow_metadata`; a reader without it needs no close."""
        self._watch_scope.cancel()

    def _count(self, first_entry_id: int, count_max: int) -> int:
        """Entries that one bookie may be asked for."""
        assert count_max >= 1
        if not 0 <= first_entry_id <= self.last_add_confirmed:
            raise NoSuchEntryError(
                self.ledger_id,
                f"entry {first_entry_id} is not among the confirmed ones, 0 to "
                f"{self.last_add_confirmed}",
            )
        self._enter_segment_of(first_entry_id)
        return min(
            count_max,
            self.last_add_confirmed - first_entry_id + 1,
            self._segment_end - first_entry_id,
        )

    def _enter_segment_of(self, entry_id: int) -> None:
        if self._segment_first <= entry_id < self._segment_end:
            return
        end = 2**63
        for first_entry_id, bookies in reversed(self.metadata.segments):
            if first_entry_id <= entry_id:
                self._segment_first, self._segment_end = first_entry_id, end
                self._segment_members = bookies
                return
            end = first_entry_id
        raise LedgerReadError(self.ledger_id, f"no segment has entry {entry_id}")

    def _replicas(self, entry_id: int) -> Sequence[BookieId]:
        members = self._segment_members
        if len(members) == 1:
            return members
        replicas = [members[index] for index in self._schedule.write_set(entry_id)]
        preferred = self._preferred
        if preferred is not None and replicas[0] != preferred and preferred in replicas:
            replicas.remove(preferred)
            replicas.insert(0, preferred)
        return replicas

    async def _read_run(self, first_entry_id: int, count: int, size_max: int) -> list[memoryview]:
        # Again: other metadata, or another read, may have come in between.
        self._enter_segment_of(first_entry_id)
        replicas = self._health.in_order(self._replicas(first_entry_id))
        bookie, payloads = await self._replica_reads.read(replicas, first_entry_id, count, size_max)
        if self._is_sticky:
            self._preferred = bookie
        return payloads

    async def _read_striped(
        self, first_entry_id: int, count: int, size_max: int
    ) -> list[memoryview]:
        """All at once, each bookie the entries in a row that it has."""
        run = self._schedule.write_quorum_size
        count = min(count, self._striped_read_batch)
        starts = range(first_entry_id, first_entry_id + count, run)
        results: list[list[memoryview] | LedgerReadError] = [[] for _ in starts]

        async def read_some(position: int) -> None:
            start = starts[position]
            size = min(run, first_entry_id + count - start)
            try:
                results[position] = await self._read_group(start, size, size_max)
            except LedgerReadError as error:
                results[position] = error

        async with trio.open_nursery() as nursery:
            for position in range(len(starts)):
                nursery.start_soon(read_some, position)
        return self._joined(results, run, size_max)

    async def _read_group(self, start: int, count: int, size_max: int) -> list[memoryview]:
        """At most Qw entries: the bookie that has them all is first; the others have a part."""
        self._enter_segment_of(start)
        schedule, members = self._schedule, self._segment_members
        last = (start + count - 1) % schedule.ensemble_size
        complete = members[last]
        replicas = [members[index] for index in schedule.write_set(start)]
        if complete in replicas:
            replicas.remove(complete)
            replicas.insert(0, complete)
        ordered = self._health.in_order(replicas)
        _, payloads = await self._replica_reads.read(ordered, start, count, size_max)
        while len(payloads) < count and sum(map(len, payloads)) < size_max:
            rest = start + len(payloads)
            try:
                payloads += await self._read_run(rest, 1, size_max)
            except LedgerReadError:
                break
        return payloads

    @staticmethod
    def _joined(
        results: list[list[memoryview] | LedgerReadError], run: int, size_max: int
    ) -> list[memoryview]:
        """In order, up to the first gap and within the size; an error only if nothing is there."""
        payloads: list[memoryview] = []
        size = 0
        for result in results:
            if isinstance(result, LedgerReadError):
                if not payloads:
                    raise result
                break
            for payload in result:
                size += len(payload)
                if payloads and size > size_max:
                    return payloads
                payloads.append(payload)
            if len(result) < run:
                break
        return payloads
