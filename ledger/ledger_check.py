"""Which copies of a ledger's entries are missing or damaged.

Asks every bookie of every write set for every entry and checks its digest: what Java's
LedgerChecker does for the first and last entry of a fragment. Entries are looked at in portions, on
all bookies of the ensemble at once, so memory holds a portion's answers and the runs found.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

import trio

from ledger.errors import LedgerMetadataError
from ledger.fragments import fragments, schedule_of
from wire.bookkeeper.entry import Digest, DigestMismatchError
from wire.bookkeeper.status import Status
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ledger.bookie_client import BookieClient, BookieId
    from ledger.fragments import Fragment
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

    OnGood = Callable[[BookieId, int, memoryview], None]

PORTION_COUNT = 1000
READ_SIZE_MAX_BYTES = 1 << 20
#: Entries of a striped ledger that are asked of one bookie at a time.
STRIPED_READS = 4
#: A bookie that gave no answer so often in a row is not asked again for this ledger.
SILENCES_MAX = 3
DAMAGED = "DAMAGED"


class MissingCopies(NamedTuple):
    """Of consecutive entries among those that the bookie should have, both ends included."""

    bookie: BookieId
    first_entry_id: int
    last_entry_id: int
    #: What the bookie said (a Status' name), or DAMAGED.
    reason: str


@dataclass(slots=True)
class LedgerCheck:
    ledger_id: int
    entries: int = 0
    copies: int = 0
    missing: list[MissingCopies] = field(default_factory=list)
    missing_copies: int = 0
    #: Entries without any good copy, and with fewer than the ack quorum.
    lost_entries: int = 0
    below_ack_quorum: int = 0


class LedgerChecker:
    def __init__(
        self,
        bookies: BookieClient,
        ledger_id: int,
        metadata: LedgerMetadata,
        on_good: OnGood | None = None,
    ) -> None:
        """`on_good(bookie, entry_id, payload)` sees each good copy; the payload is a view that it
        must not keep. LedgerMetadataError if the metadata does not tell how to check a digest."""
        if metadata.digest_type is None or metadata.password is None:
            words = "its metadata (of an old format) does not tell digest type and password"
            raise LedgerMetadataError(ledger_id, words)
        self._bookies = bookies
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._digest = Digest(metadata.digest_type, metadata.password)
        self._schedule = schedule_of(metadata)
        self._on_good = on_good
        self._silences: dict[BookieId, int] = {}
        #: Runs of missing copies that may go on.
        self._runs: dict[BookieId, MissingCopies] = {}

    async def check(
        self,
        last_entry_id: int,
        step: Callable[[int], None] | None = None,
        *,
        first_entry_id: int = 0,
    ) -> LedgerCheck:
        """All entries from `first_entry_id` up to `last_entry_id`: the ledger's last, or what is
        confirmed of an open one. `step(entries)` tells of progress."""
        found = LedgerCheck(self._ledger_id)
        for fragment in fragments(self._ledger_id, self._metadata):
            end = fragment.last_entry_id
            end = last_entry_id if end is None else min(end, last_entry_id)
            start = max(fragment.first_entry_id, first_entry_id)
            for first in range(start, end + 1, PORTION_COUNT):
                entry_ids = range(first, min(first + PORTION_COUNT, end + 1))
                await self._check_portion(fragment, entry_ids, found)
                if step is not None:
                    step(len(entry_ids))
            self._end_runs(found)
        return found

    async def _check_portion(
        self, fragment: Fragment, entry_ids: range, found: LedgerCheck
    ) -> None:
        bad: dict[int, dict[int, str]] = {}

        async def check_index(index: int, wanted: list[int]) -> None:
            bad[index] = await self._check_copies(fragment.ensemble[index], wanted)

        wanted_of: dict[int, list[int]] = {}
        for entry_id in entry_ids:
            for index in self._schedule.write_set(entry_id):
                wanted_of.setdefault(index, []).append(entry_id)
        async with trio.open_nursery() as nursery:
            for index, wanted in wanted_of.items():
                nursery.start_soon(check_index, index, wanted)
        found.entries += len(entry_ids)
        for index, wanted in sorted(wanted_of.items()):
            found.copies += len(wanted)
            found.missing_copies += len(bad[index])
            self._add_runs(fragment.ensemble[index], wanted, bad[index], found)
        self._count(bad, found)

    def _count(self, bad: dict[int, dict[int, str]], found: LedgerCheck) -> None:
        counts: dict[int, int] = {}
        for reasons in bad.values():
            for entry_id in reasons:
                counts[entry_id] = counts.get(entry_id, 0) + 1
        for count in counts.values():
            good = self._schedule.write_quorum_size - count
            found.lost_entries += good == 0
            found.below_ack_quorum += good < self._schedule.ack_quorum_size

    async def _check_copies(self, bookie: BookieId, wanted: list[int]) -> dict[int, str]:
        """Entry id -> what is wrong with this bookie's copy; good ones are left out."""
        bad: dict[int, str] = {}
        if self._schedule.is_striped:
            send, receive = trio.open_memory_channel[int](len(wanted))
            for entry_id in wanted:
                send.send_nowait(entry_id)
            send.close()

            async def read_some() -> None:
                async for entry_id in receive.clone():
                    await self._check_one(bookie, entry_id, bad)

            async with trio.open_nursery() as nursery:
                for _ in range(STRIPED_READS):
                    nursery.start_soon(read_some)
            return bad
        position = 0
        while position < len(wanted):
            position += await self._check_run(bookie, wanted[position:], bad)
        return bad

    async def _check_run(self, bookie: BookieId, wanted: Sequence[int], bad: dict[int, str]) -> int:
        """How many entries, at least one, are checked."""
        if not self._is_silent(bookie):
            status, views = await self._bookies.read_entries(
                bookie,
                self._ledger_id,
                wanted[0],
                count_max=len(wanted),
                size_max=READ_SIZE_MAX_BYTES,
            )
            if status is Status.EOK and views:
                for entry_id, view in zip(wanted, views, strict=False):
                    self._judge(bookie, entry_id, Status.EOK, view, bad)
                return min(len(views), len(wanted))
        # What a batch does not tell, or a bookie that knows none.
        await self._check_one(bookie, wanted[0], bad)
        return 1

    async def _check_one(self, bookie: BookieId, entry_id: int, bad: dict[int, str]) -> None:
        status, view = Status.EIO, memoryview(b"")
        if not self._is_silent(bookie):
            status, view = await self._bookies.read_entry(bookie, self._ledger_id, entry_id)
        self._judge(bookie, entry_id, status, view, bad)

    def _is_silent(self, bookie: BookieId) -> bool:
        return self._silences.get(bookie, 0) >= SILENCES_MAX

    def _judge(
        self, bookie: BookieId, entry_id: int, status: Status, view: memoryview, bad: dict[int, str]
    ) -> None:
        if status is not Status.EIO:
            self._silences[bookie] = 0
        elif not self._is_silent(bookie):
            self._silences[bookie] = self._silences.get(bookie, 0) + 1
        if status is not Status.EOK:
            bad[entry_id] = status.name
            return
        try:
            payload = self._digest.open(view, self._ledger_id, entry_id)
        except DigestMismatchError:
            bad[entry_id] = DAMAGED
            return
        if self._on_good is not None:
            self._on_good(bookie, entry_id, payload)

    def _add_runs(
        self, bookie: BookieId, wanted: list[int], bad: dict[int, str], found: LedgerCheck
    ) -> None:
        """A run goes on, also into the next portion, until this bookie has a good copy."""
        run = self._runs.pop(bookie, None)
        for entry_id in wanted:
            reason = bad.get(entry_id)
            if run is not None and run.reason == reason:
                run = run._replace(last_entry_id=entry_id)
                continue
            if run is not None:
                found.missing.append(run)
            run = MissingCopies(bookie, entry_id, entry_id, reason) if reason else None
        if run is not None:
            self._runs[bookie] = run

    def _end_runs(self, found: LedgerCheck) -> None:
        found.missing += sorted(self._runs.values())
        self._runs.clear()
