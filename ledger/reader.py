"""LedgerReader: reads a ledger's entries up to its last confirmed one.

Reads go to the replicas in the order of the entry's write set, starting with the one that answered
last time (a bookie that reads a ledger in order has its next entries in memory). A replica that
does not give the entry, or gives it with a wrong digest, is passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ledger.distribution import Schedule
from ledger.errors import DigestMismatchError, LedgerReadError, NoSuchEntryError
from wire.bookkeeper import entry as entry_format
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ledger.bookie_client import BookieClient, BookieId
    from ledger.config import LedgerClientConfig
    from ledger.statistics import LedgerStatistics
    from wire.bookkeeper.entry import Digest
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

_EOK = Status.EOK


class LedgerReader:
    """`last_add_confirmed` is moved by the writer (or whoever follows the ledger); entries beyond
    it are never read, even where a bookie has them."""

    __slots__ = (
        "_bookies",
        "_digest",
        "_preferred",
        "_schedule",
        "_segment_end",
        "_segment_first",
        "_segment_members",
        "_statistics",
        "_striped_read_batch",
        "last_add_confirmed",
        "ledger_id",
        "metadata",
    )

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        last_add_confirmed: int,
        digest: Digest,
        bookies: BookieClient,
        config: LedgerClientConfig,
        statistics: LedgerStatistics,
    ) -> None:
        self.ledger_id = ledger_id
        self._statistics = statistics
        self.last_add_confirmed = last_add_confirmed
        self._digest = digest
        self._bookies = bookies
        self._striped_read_batch = config.striped_read_batch
        self._schedule = Schedule(
            metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size
        )
        self.set_metadata(metadata)

    def set_metadata(self, metadata: LedgerMetadata) -> None:
        """Newer metadata of the same ledger: other ensembles, or its end."""
        self.metadata = metadata
        if metadata.is_closed:
            self.last_add_confirmed = metadata.last_entry_id
        self._preferred: BookieId | None = None
        self._segment_first, self._segment_end = 0, 0
        self._segment_members: tuple[BookieId, ...] = ()

    def read_nowait(
        self, first_entry_id: int, *, count_max: int, size_max: int
    ) -> list[memoryview] | None:
        """As `read` if a bookie can answer at once; None also for what needs another replica, which
        is then `read`'s work. Views pin what they look into."""
        count = self._count(first_entry_id, count_max)
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
        count = self._count(first_entry_id, count_max)
        if self._schedule.is_striped and count > 1:
            return await self._read_striped(first_entry_id, count, size_max)
        return await self._read_run(first_entry_id, count, size_max)

    def _count(self, first_entry_id: int, count_max: int) -> int:
        """Entries that one bookie may be asked for."""
        assert count_max >= 1
        if not 0 <= first_entry_id <= self.last_add_confirmed:
            raise NoSuchEntryError(
                self.ledger_id,
                f"entry {first_entry_id} is not among the confirmed ones, 0 to "
                f"{self.last_add_confirmed}",
            )
        if not self._segment_first <= first_entry_id < self._segment_end:
            self._enter_segment(first_entry_id)
        return min(
            count_max,
            self.last_add_confirmed - first_entry_id + 1,
            self._segment_end - first_entry_id,
        )

    def _enter_segment(self, entry_id: int) -> None:
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
        answers: list[str] = []
        damaged_count = 0
        for bookie in self._replicas(first_entry_id):
            status, entries = await self._bookies.read_entries(
                bookie, self.ledger_id, first_entry_id, count_max=count, size_max=size_max
            )
            if status is not _EOK or not entries:
                self._statistics.read_failures += 1
                answers.append(f"{bookie}: {status.name}")
                continue
            try:
                payloads = self._digest.open_run(entries, self.ledger_id, first_entry_id)
            except entry_format.DigestMismatchError as error:
                self._statistics.digest_mismatches += 1
                intact = self._intact(entries, first_entry_id)
                if intact:
                    return intact
                answers.append(f"{bookie}: {error}")
                damaged_count += 1
                continue
            self._preferred = bookie
            self._statistics.reads += 1
            return payloads
        words = f"entry {first_entry_id}: no replica gave it ({'; '.join(answers)})"
        if damaged_count == len(answers):
            raise DigestMismatchError(self.ledger_id, words)
        raise LedgerReadError(self.ledger_id, words)

    def _intact(self, entries: Sequence[memoryview], first_entry_id: int) -> list[memoryview]:
        """The entries in front of the first damaged one, which another replica is asked for next
        time."""
        payloads: list[memoryview] = []
        for entry_id, entry in enumerate(entries, first_entry_id):
            try:
                payloads.append(self._digest.open(entry, self.ledger_id, entry_id))
            except entry_format.DigestMismatchError:
                break
        return payloads

    async def _read_striped(
        self, first_entry_id: int, count: int, size_max: int
    ) -> list[memoryview]:
        """Consecutive entries are on different bookies: asks for several at once."""
        count = min(count, self._striped_read_batch)
        results: list[memoryview | LedgerReadError | None] = [None] * count

        async def read_one(position: int) -> None:
            try:
                results[position] = (await self._read_run(first_entry_id + position, 1, size_max))[
                    0
                ]
            except LedgerReadError as error:
                results[position] = error

        async with trio.open_nursery() as nursery:
            for position in range(count):
                nursery.start_soon(read_one, position)
        payloads: list[memoryview] = []
        size = 0
        for result in results:
            if isinstance(result, LedgerReadError):
                if not payloads:
                    raise result
                break
            assert result is not None
            size += len(result)
            if payloads and size > size_max:
                break
            payloads.append(result)
        return payloads
