"""LocalBookieClient: the ledger client's way to bookies in the same process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from ledger.bookie_client import DiskSpace, LacAnswer, LacRecord
from wire.bookkeeper.status import LAST_ADD_CONFIRMED_ENTRY, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bookie.bookie import Bookie
    from ledger.bookie_client import AddDone, BookieId
    from wire.bookkeeper.entry_set import EntrySet
    from wire.buffers import Buffers

_NOTHING = memoryview(b"")


class LocalBookieClient:
    """Implements `ledger.bookie_client.BookieClient`. A bookie that is not in the mapping answers
    EIO, as one that cannot be reached."""

    __slots__ = ("_bookies", "_disk_space")

    def __init__(
        self,
        bookies: Mapping[BookieId, Bookie],
        disk_space: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        """`disk_space()`: total and free bytes, of all of them; without it nobody can ask."""
        self._bookies = bookies
        self._disk_space = disk_space

    def writable(self) -> list[BookieId]:
        """Those that take writes now."""
        return [bookie_id for bookie_id, bookie in self._bookies.items() if not bookie.is_read_only]

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

    async def wait_lac(
        self,
        bookie: BookieId,
        ledger_id: int,
        previous_lac: int,
        *,
        timeout_ms: int,
        with_entry: bool = False,
    ) -> LacAnswer:
        known = self._bookies.get(bookie)
        if known is None:
            return LacAnswer(Status.EIO)
        status, lac = await known.lacs.follow(ledger_id)
        if lac is None:
            return LacAnswer(status)
        if lac.lac <= previous_lac and not lac.is_ended and timeout_ms > 0:
            moved = trio.Event()
            lac.wait(previous_lac, moved.set)
            try:
                with trio.move_on_after(timeout_ms / 1000):
                    await moved.wait()
            finally:
                lac.forget(moved.set)
        entry_id = previous_lac + 1
        if with_entry and lac.lac >= entry_id:
            found = known.read_entries_nowait(ledger_id, entry_id, 1, 0)
            if found is not None and found[0] is Status.EOK:
                return LacAnswer(Status.EOK, lac.lac, entry_id, found[1][0])
        return LacAnswer(Status.EOK, lac.lac)

    async def read_lac(self, bookie: BookieId, ledger_id: int) -> LacRecord:
        known = self._bookies.get(bookie)
        if known is None:
            return LacRecord(Status.EIO)
        status, packet = known.get_explicit_lac(ledger_id)
        if status is not Status.EOK:
            return LacRecord(status)
        found, entry = await known.read_entry(ledger_id, LAST_ADD_CONFIRMED_ENTRY)
        if found is Status.EOK:
            return LacRecord(status, packet, entry)
        # As a bookie answers over sockets: nothing there is fine, unreadable is not.
        is_fine = found is Status.ENOENTRY or packet is not None
        return LacRecord(status if is_fine else found, packet)

    async def write_lac(
        self,
        bookie: BookieId,
        ledger_id: int,
        last_add_confirmed: int,
        master_key: bytes,
        packet: bytes,
    ) -> Status:
        known = self._bookies.get(bookie)
        if known is None:
            return Status.EIO
        return await known.set_explicit_lac(ledger_id, master_key, packet)

    async def force_ledger(self, bookie: BookieId, ledger_id: int) -> Status:
        known = self._bookies.get(bookie)
        return Status.EIO if known is None else await known.force_ledger(ledger_id)

    async def bookie_info(self, bookie: BookieId) -> DiskSpace:
        if bookie not in self._bookies or self._disk_space is None:
            return DiskSpace(Status.EIO)
        try:
            return DiskSpace(Status.EOK, *self._disk_space())
        except OSError:  # as a bookie's server answers it
            return DiskSpace(Status.EIO)

    async def list_entries(
        self, bookie: BookieId, ledger_id: int
    ) -> tuple[Status, EntrySet | None]:
        known = self._bookies.get(bookie)
        if known is None:
            return Status.EIO, None
        try:
            entries = await known.sound_entries(ledger_id)
        except OSError:
            return Status.EIO, None
        return (Status.ENOLEDGER if entries is None else Status.EOK), entries
