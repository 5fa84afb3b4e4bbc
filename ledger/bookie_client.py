"""BookieClient: how the ledger client speaks to bookies, wherever they live.

Two implementations: the in-process one of `quire standalone` (quire/local_bookie.py) and, next, the
network client. Adds are callbacks because they are the hot path: the answer comes on the loop's
thread, possibly before the call returns, and never more than once. Reads are awaited, with a
`_nowait` twin for what can be answered without waiting.

Answers are statuses, not exceptions: the ledger's cores decide what they mean (design.md §6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from wire.buffers import Buffers

BookieId = str

#: Called with the status of one add.
AddDone = Callable[[Status], None]


class BookieClient(Protocol):
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
        """Sends one entry (features.md #1's bytes, in pieces). The pieces may be changed by the
        caller once `done` was called, not before. `flags`: FLAG_RECOVERY_ADD, FLAG_HIGH_PRIORITY.
        """

    async def read_entry(
        self,
        bookie: BookieId,
        ledger_id: int,
        entry_id: int,
        *,
        flags: int = 0,
        master_key: bytes | None = None,
    ) -> tuple[Status, memoryview]:
        """One whole entry, digest included; LAST_ADD_CONFIRMED_ENTRY for the last. FLAG_DO_FENCING
        (with the key) fences first, durably. The view is empty unless EOK."""

    async def read_entries(
        self,
        bookie: BookieId,
        ledger_id: int,
        first_entry_id: int,
        *,
        count_max: int,
        size_max: int,
    ) -> tuple[Status, Sequence[memoryview]]:
        """Consecutive entries from `first_entry_id`, as BATCH_READ: at least one if it exists, even
        if larger than `size_max` bytes; stops at the first that is missing."""

    def read_entries_nowait(
        self,
        bookie: BookieId,
        ledger_id: int,
        first_entry_id: int,
        *,
        count_max: int,
        size_max: int,
    ) -> tuple[Status, Sequence[memoryview]] | None:
        """As `read_entries` if it can be answered from memory (or the page cache) now, else None.
        A network client may always answer None."""
