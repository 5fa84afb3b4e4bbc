"""Which bookies of a fragment miss copies (LedgerChecker.java).

A bookie that is not registered misses all. The others are asked which entries they have: one
question for a ledger and bookie, which a bookie of ours answers from its index. Where nothing is
missing by that, and of bookies that do not answer it (Java's DbLedgerStorage), some entries are
read, the first and the last at least, and their digests are checked. A bookie that gives no answer
to a read counts as one that is not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import trio

from ledger.errors import LedgerMetadataError
from ledger.fragments import schedule_of
from runtime.slices import Slices
from wire.bookkeeper.entry import Digest, DigestMismatchError
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from collections.abc import Collection

    from ledger.bookie_client import BookieClient, BookieId
    from ledger.fragments import Fragment
    from runtime.env import Rng
    from wire.bookkeeper.entry_set import EntrySet
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

NOT_REGISTERED = "not registered"
#: Entries that are read at a time of one bookie; and looked for before others get a turn.
READS_AT_A_TIME = 8
LOOKS_PER_TURN = 2_000
#: Entries that are read of a bookie and fragment, whatever the percentage.
SAMPLE_MAX = 100_000
#: More missing entries of a striped ledger than these are not told one by one.
LISTED_MAX = 100_000


class Missing(NamedTuple):
    """What a bookie of a fragment's ensemble lacks."""

    ensemble_index: int
    bookie: BookieId
    reason: str
    #: It answers, so it could get them again.
    is_there: bool
    #: Consecutive entries (any, of a striped ledger); None: all that it should have.
    runs: tuple[tuple[int, ...] | range, ...] | None = None


class CopyChecker:
    """Of one ledger. LedgerMetadataError if the metadata does not tell how to check a digest."""

    def __init__(
        self,
        bookies: BookieClient,
        ledger_id: int,
        metadata: LedgerMetadata,
        rng: Rng,
        *,
        percentage: int = 0,
    ) -> None:
        """`percentage` of the entries are read (SAMPLE_MAX at most), besides the first and the
        last."""
        if metadata.digest_type is None or metadata.password is None:
            words = "its metadata (of an old format) does not tell digest type and password"
            raise LedgerMetadataError(ledger_id, words)
        self._bookies = bookies
        self._ledger_id = ledger_id
        self._digest = Digest(metadata.digest_type, metadata.password)
        self._schedule = schedule_of(metadata)
        self._rng = rng
        self._percentage = percentage
        #: What a bookie said that it has: once for all fragments.
        self._listed: dict[BookieId, tuple[Status, EntrySet | None]] = {}
        self._listing: dict[BookieId, trio.Event] = {}

    async def check(
        self,
        fragment: Fragment,
        registered: Collection[BookieId],
    ) -> list[Missing]:
        """By ensemble index. Of an open fragment only who is not registered."""
        found: list[Missing] = []

        async def check_one(index: int, bookie: BookieId) -> None:
            missing = await self._check_list(fragment, index, bookie)
            if missing is None or not missing.is_there:
                missing = await self._check_sample(fragment, index, bookie)
            if missing is not None:
                found.append(missing)

        async with trio.open_nursery() as nursery:
            for index, bookie in enumerate(fragment.ensemble):
                if bookie not in registered:
                    found.append(Missing(index, bookie, NOT_REGISTERED, is_there=False))
                elif fragment.is_closed:
                    nursery.start_soon(check_one, index, bookie)
        return sorted(found, key=lambda missing: missing.ensemble_index)

    async def check_lists(self, fragment: Fragment, wanted: Collection[BookieId]) -> list[Missing]:
        """Of a closed fragment, by what the bookies of `wanted` say that they have; `is_there` is
        false of who gave no answer. Nothing of who refuses to tell."""
        found: list[Missing] = []

        async def check_one(index: int, bookie: BookieId) -> None:
            missing = await self._check_list(fragment, index, bookie)
            if missing is not None:
                found.append(missing)

        async with trio.open_nursery() as nursery:
            for index, bookie in enumerate(fragment.ensemble):
                if bookie in wanted:
                    nursery.start_soon(check_one, index, bookie)
        return sorted(found, key=lambda missing: missing.ensemble_index)

    async def _check_list(self, fragment: Fragment, index: int, bookie: BookieId) -> Missing | None:
        if next(fragment.entry_ids(self._schedule, (index,)), None) is None:
            return None
        status, listed = await self._list(bookie)
        if status is Status.ENOLEDGER:
            return Missing(index, bookie, status.name, is_there=True)
        if status is Status.EIO:
            return Missing(index, bookie, status.name, is_there=False)
        if status is Status.EOK and listed is not None:
            runs = await self._not_listed(fragment, index, listed)
            if runs is None or runs:
                return Missing(index, bookie, Status.ENOENTRY.name, is_there=True, runs=runs)
        return None

    async def _list(self, bookie: BookieId) -> tuple[Status, EntrySet | None]:
        while bookie not in self._listed:
            if (under_way := self._listing.get(bookie)) is not None:
                await under_way.wait()
                continue
            done = self._listing[bookie] = trio.Event()
            try:
                self._listed[bookie] = await self._bookies.list_entries(bookie, self._ledger_id)
            finally:
                del self._listing[bookie]
                done.set()
        return self._listed[bookie]

    async def _not_listed(
        self, fragment: Fragment, index: int, listed: EntrySet
    ) -> tuple[tuple[int, ...] | range, ...] | None:
        """None: too many to tell."""
        assert fragment.last_entry_id is not None
        if not self._schedule.is_striped:
            return tuple(_gaps(fragment.first_entry_id, fragment.last_entry_id, listed))
        missing: list[int] = []
        slices = Slices(LOOKS_PER_TURN)
        for entry_id in fragment.entry_ids(self._schedule, (index,)):
            if slices.due():
                await slices.turn()
            if entry_id not in listed:
                missing.append(entry_id)
                if len(missing) > LISTED_MAX:
                    return None
        return (tuple(missing),) if missing else ()

    async def _check_sample(
        self, fragment: Fragment, index: int, bookie: BookieId
    ) -> Missing | None:
        waiting = iter(self._sample(fragment, index))
        bad: list[tuple[int, str, bool]] = []

        async def read_some() -> None:
            for entry_id in waiting:
                if bad:
                    return
                status, view = await self._bookies.read_entry(bookie, self._ledger_id, entry_id)
                if status is Status.ETOOMANYREQUESTS:
                    continue  # it is there, and has better things to do
                if status is not Status.EOK:
                    is_there = status in (Status.ENOENTRY, Status.ENOLEDGER)
                    bad.append((entry_id, status.name, is_there))
                    return
                try:
                    self._digest.open(view, self._ledger_id, entry_id)
                except DigestMismatchError:
                    bad.append((entry_id, "DAMAGED", True))

        async with trio.open_nursery() as nursery:
            for _ in range(READS_AT_A_TIME):
                nursery.start_soon(read_some)
        if not bad:
            return None
        entry_id, reason, is_there = min(bad)
        return Missing(index, bookie, f"entry {entry_id}: {reason}", is_there=is_there)

    def _sample(self, fragment: Fragment, index: int) -> list[int]:
        """Ascending ids of entries that the bookie at `index` should have."""
        first, last = fragment.first_entry_id, fragment.last_entry_id
        assert last is not None
        count = last - first + 1
        if count <= 0:
            return []
        chosen = {self._near(first, index, 1), self._near(last, index, -1)}
        for _ in range(min(count * self._percentage // 100, SAMPLE_MAX)):
            chosen.add(self._near(first + self._rng.randrange(count), index, -1))
        return sorted(entry_id for entry_id in chosen if first <= entry_id <= last)

    def _near(self, entry_id: int, index: int, direction: int) -> int:
        """The nearest entry, in that direction, that has a copy at `index`."""
        while entry_id >= 0 and index not in self._schedule.write_set(entry_id):
            entry_id += direction
        return entry_id


def _gaps(first: int, last: int, listed: EntrySet) -> list[range]:
    """The parts of first..last that are not there."""
    found: list[range] = []
    for start, size in listed.runs():
        if start > last:
            break
        if start > first:
            found.append(range(first, start))
        first = max(first, start + size)
    if first <= last:
        found.append(range(first, last + 1))
    return found
