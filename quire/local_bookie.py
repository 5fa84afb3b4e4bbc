"""LocalBookieClient: the ledger client's way to bookies in the same process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bookie.bookie import Bookie
    from ledger.bookie_client import AddDone, BookieId
    from wire.buffers import Buffers

_NOTHING = memoryview(b"")


class LocalBookieClient:
    """Implements `ledger.bookie_client.BookieClient`. A bookie that is not in the mapping answers
    EIO, as one that cannot be reached."""

    __slots__ = ("_bookies",)

    def __init__(self, bookies: Mapping[BookieId, Bookie]) -> None:
        self._bookies = bookies

    def add_entry(
        self,
        bookie: BookieId,
        ledger_id: int,
        entry_id: int,
        master_key: bytes,
        entry: Buffers,
        flags: int,
        done: AddDone,
    ) -> None:
        known = self._bookies.get(bookie)
        if known is None:
            done(Status.EIO)
        else:
            known.add_entry(ledger_id, entry_id, master_key, entry, flags, done)

    async def read_entry(
        self,
        bookie: BookieId,
        ledger_id: int,
        entry_id: int,
        *,
        flags: int = 0,
        master_key: bytes | None = None,
    ) -> tuple[Status, memoryview]:
        known = self._bookies.get(bookie)
        if known is None:
            return Status.EIO, _NOTHING
        return await known.read_entry(ledger_id, entry_id, flags=flags, master_key=master_key)

    async def read_entries(
        self,
        bookie: BookieId,
        ledger_id: int,
        first_entry_id: int,
        *,
        count_max: int,
        size_max: int,
    ) -> tuple[Status, Sequence[memoryview]]:
        known = self._bookies.get(bookie)
        if known is None:
            return Status.EIO, ()
        return await known.read_entries(ledger_id, first_entry_id, count_max, size_max)

    def read_entries_nowait(
        self,
        bookie: BookieId,
        ledger_id: int,
        first_entry_id: int,
        *,
        count_max: int,
        size_max: int,
    ) -> tuple[Status, Sequence[memoryview]] | None:
        known = self._bookies.get(bookie)
        if known is None:
            return Status.EIO, ()
        return known.read_entries_nowait(ledger_id, first_entry_id, count_max, size_max)
