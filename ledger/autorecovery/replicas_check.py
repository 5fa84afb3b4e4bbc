"""How many copies every entry of a closed ledger has, by the bookies' own lists of entries
(AuditorReplicasCheckTask.java)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import trio

from ledger.fragments import fragments, schedule_of
from wire.bookkeeper.entry_set import EntrySet
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ledger.bookie_client import BookieClient, BookieId
    from ledger.distribution import Schedule
    from ledger.fragments import Fragment
    from wire.bookkeeper.ledger_metadata import LedgerMetadata

#: Entries that are counted before others get a turn.
ENTRIES_PER_TURN = 10_000


class Replicas(NamedTuple):
    """Numbers of entries, and which bookies lack some of theirs."""

    entries: int = 0
    without_copy: int = 0
    #: Some copy, but fewer than the ack quorum; fewer than the write quorum.
    below_ack_quorum: int = 0
    below_write_quorum: int = 0
    lacking: frozenset[BookieId] = frozenset()
    #: Those that do not tell (Java's DbLedgerStorage): taken for complete.
    silent: frozenset[BookieId] = frozenset()


async def check_replicas(
    bookies: BookieClient,
    ledger_id: int,
    metadata: LedgerMetadata,
    registered: Collection[BookieId],
    waiting: Collection[BookieId] = (),
) -> Replicas:
    """Of the closed fragments. A bookie that is not registered has nothing, but those of `waiting`
    are taken for complete."""
    schedule = schedule_of(metadata)
    listed: dict[BookieId, EntrySet | None] = {}

    async def ask(bookie: BookieId) -> None:
        status, entries = await bookies.list_entries(bookie, ledger_id)
        if status in (Status.ENOLEDGER, Status.ENOENTRY):
            entries = EntrySet()
        listed[bookie] = entries

    async with trio.open_nursery() as nursery:
        # Sorted, so that a simulation asks in the same order each time.
        for bookie in sorted({each for _, ensemble in metadata.segments for each in ensemble}):
            if bookie in registered:
                nursery.start_soon(ask, bookie)
            else:
                listed[bookie] = None if bookie in waiting else EntrySet()
    counts = [0, 0, 0, 0]
    lacking: set[BookieId] = set()
    for fragment in fragments(ledger_id, metadata):
        if fragment.is_closed:
            for start in _portions(fragment):
                _count(fragment, start, schedule, listed, counts, lacking)
                await trio.lowlevel.checkpoint()
    unknown = {bookie for bookie, entries in listed.items() if entries is None}
    silent = frozenset(unknown.difference(waiting))
    return Replicas(counts[0], counts[1], counts[2], counts[3], frozenset(lacking), silent)


def _portions(fragment: Fragment) -> Iterator[range]:
    assert fragment.last_entry_id is not None
    end = fragment.last_entry_id + 1
    for first in range(fragment.first_entry_id, end, ENTRIES_PER_TURN):
        yield range(first, min(first + ENTRIES_PER_TURN, end))


def _count(
    fragment: Fragment,
    entry_ids: range,
    schedule: Schedule,
    listed: dict[BookieId, EntrySet | None],
    counts: list[int],
    lacking: set[BookieId],
) -> None:
    for entry_id in entry_ids:
        copies = 0
        for index in schedule.write_set(entry_id):
            bookie = fragment.ensemble[index]
            entries = listed[bookie]
            if entries is None or entry_id in entries:
                copies += 1
            else:
                lacking.add(bookie)
        counts[0] += 1
        counts[1] += copies == 0
        counts[2] += 0 < copies < schedule.ack_quorum_size
        counts[3] += schedule.ack_quorum_size <= copies < schedule.write_quorum_size
