"""BookieClient: how the ledger client speaks to bookies, wherever they live.

Two implementations: the in-process one of `quire standalone` (joined/local_bookie.py), and the one
over sockets (ledger/network/client.py). Adds are callbacks because they are the hot path: the
answer comes on the loop's thread, possibly before the call returns, and never more than once. Reads
are awaited, with a `_nowait` twin for what can be answered without waiting.

Answers are statuses, not exceptions: the ledger's cores decide what they mean (invariants E).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

# Among `add_entry`'s flags: the bookie may answer before it has synced.
from wire.bookkeeper.status import FLAG_DEFERRED_SYNC as FLAG_DEFERRED_SYNC
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from wire.bookkeeper.entry_set import EntrySet
    from wire.buffers import Buffer, Buffers

BookieId = str

#: Called with the status of one add.
AddDone = Callable[[Status], None]


class LacAnswer(NamedTuple):
    """What a bookie tells of a ledger's last add confirmed; -1 and None unless EOK."""

    status: Status
    last_add_confirmed: int = -1
    #: The entry `entry` is (digest included), if one came along.
    entry_id: int = -1
    entry: memoryview | None = None


class LacRecord(NamedTuple):
    """The explicit LAC's packet (Digest.open_lac) and the last entry, as far as there are any."""

    status: Status
    packet: Buffer | None = None
    last_entry: Buffer | None = None


class DiskSpace(NamedTuple):
    status: Status
    total_bytes: int = 0
    free_bytes: int = 0


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
        """Sends one entry (feature 1's bytes, in pieces). The pieces may be changed by the
        caller once `done` was called, not before. `flags`: FLAG_RECOVERY_ADD, FLAG_HIGH_PRIORITY,
        FLAG_DEFERRED_SYNC."""

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

    async def wait_lac(
        self,
        bookie: BookieId,
        ledger_id: int,
        previous_lac: int,
        *,
        timeout_ms: int,
        with_entry: bool = False,
    ) -> LacAnswer:
        """A long poll: answers when the bookie knows a higher LAC than `previous_lac`, when the
        ledger is fenced, or after `timeout_ms` (then with the LAC it knows). `with_entry` asks for
        entry `previous_lac + 1`, which may or may not come along."""

    async def read_lac(self, bookie: BookieId, ledger_id: int) -> LacRecord: ...

    async def write_lac(
        self,
        bookie: BookieId,
        ledger_id: int,
        last_add_confirmed: int,
        master_key: bytes,
        packet: bytes,
    ) -> Status:
        """Keeps an explicit LAC (`packet`: Digest.seal_lac's)."""

    async def force_ledger(self, bookie: BookieId, ledger_id: int) -> Status:
        """EOK when all that the bookie has answered EOK to is on its disk."""

    async def bookie_info(self, bookie: BookieId) -> DiskSpace: ...

    async def list_entries(
        self, bookie: BookieId, ledger_id: int
    ) -> tuple[Status, EntrySet | None]:
        """Which entries of the ledger the bookie has; None unless EOK."""
