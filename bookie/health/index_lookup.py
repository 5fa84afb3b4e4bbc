"""Places of entries in an index of which a part may be damaged.

RocksDB checks each block that it reads: one damaged block makes a look-up of many keys fail, though
most of them are in other blocks. The scrub must not end there: each pass would stop at the same
record, and nobody would look at the logs behind it. So the keys are then asked for one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookie.errors import IndexReadError
from runtime.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bookie.storage.index import EntryIndex

#: Instead of a location, where the index cannot be read.
UNREADABLE = -1
#: Each may read a block from the disk, and again for each key of a damaged one.
KEYS_PER_TURN = 50


async def look_up(
    index: EntryIndex, keys: Sequence[tuple[int, int]]
) -> tuple[list[int], dict[int, str]]:
    """The location of each (ledger id, entry id), in their order: 0 if there is none, UNREADABLE
    where the index cannot be read; and for the numbers of those keys why not. A few hundred keys.
    OSError of any other kind."""
    try:
        return index.get_many(keys), {}
    except IndexReadError:
        pass
    slices = Slices(KEYS_PER_TURN)
    locations: list[int] = []
    unreadable: dict[int, str] = {}
    for i, key in enumerate(keys):
        if slices.due():
            await slices.turn()
        try:
            locations.append(index.get(*key))
        except IndexReadError as error:
            locations.append(UNREADABLE)
            unreadable[i] = str(error)
    return locations, unreadable


def location_of(index: EntryIndex, ledger_id: int, entry_id: int) -> int:
    """The same for one entry."""
    try:
        return index.get(ledger_id, entry_id)
    except IndexReadError:
        return UNREADABLE


def has_entries(index: EntryIndex, ledger_id: int) -> bool:
    """Whether the index knows an entry of the ledger; true if that cannot be read."""
    try:
        return index.last_entry_id(ledger_id) >= 0
    except IndexReadError:
        return True
