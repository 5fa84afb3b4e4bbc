"""What is done to a ledger as a whole: fence, force, explicit LAC, delete (invariants B, D).

Each is a record in the journal, and its answer waits for the sync.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from bookie.journal.journal_format import (
    EXPLICIT_LAC,
    LEDGER_DELETED,
    LEDGER_FENCED,
    special_record,
)
from wire.bookkeeper.status import Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bookie.adds import AddPath
    from bookie.journal.group import Group
    from bookie.journal.journal import Journal
    from bookie.ledger_table import LedgerState, LedgerTable
    from bookie.storage.write_cache import WriteCache

#: How long a deletion of many waits for the journal's sync.
DURABLE_SECONDS = 10.0


class LedgerOperations:
    __slots__ = ("_adds", "_cache", "_deletions", "_journal", "_ledger", "_table")

    def __init__(
        self,
        adds: AddPath,
        cache: WriteCache,
        journal: Journal,
        table: LedgerTable,
        deletions: dict[int, Group],
    ) -> None:
        """`deletions`: the checkpointer's, which brings them into the index."""
        self._adds = adds
        self._cache = cache
        self._journal = journal
        self._table = table
        self._ledger = table.get
        self._deletions = deletions

    async def fence(self, ledger_id: int, master_key: bytes | None) -> Status:
        """EOK when it is durable that the ledger takes no more adds but those of a recovery. Makes
        the ledger if it is unknown. EUA, ENOLEDGER (deleted)."""
        if self._adds.refusal is not None:
            return self._adds.refusal
        if master_key is None:
            return Status.EUA
        state = self._ledger(ledger_id)
        if state is None:
            if self._table.is_deleted(ledger_id):
                return Status.ENOLEDGER
            # Made although there is nothing in it, so that a late add finds it fenced.
            state = self._adds.create(ledger_id, master_key)
        elif state.master_key != master_key:
            return Status.EUA
        self._fence(state)
        if (group := state.fence_group) is not None:
            # Also for whoever fences while the first one's sync is under way.
            if not await self._is_made_durable(group):
                return Status.EIO
            state.fence_group = None
        return Status.EOK

    def _fence(self, state: LedgerState) -> None:
        if state.fenced:
            return
        state.fenced = True
        if state.lac is not None:
            state.lac.end()
        self._table.changed(state)
        state.fence_group = self._journal.append_special(
            special_record(state.ledger_id, LEDGER_FENCED)
        )

    async def fence_known(self, ledger_ids: Iterable[int]) -> bool:
        """As `fence`, of those that are known, with one sync; false if that failed, or nothing is
        taken any more."""
        if self._adds.refusal is not None:
            return False
        states = [state for each in ledger_ids if (state := self._ledger(each)) is not None]
        for state in states:
            self._fence(state)
        groups = [state.fence_group for state in states if state.fence_group is not None]
        for group in groups:
            if not await self._is_made_durable(group):
                return False
        return True

    def is_fenced(self, ledger_id: int, master_key: bytes | None) -> bool:
        """Whether `fence` would answer EOK at once, with nothing to wait for."""
        state = self._ledger(ledger_id)
        return (
            state is not None
            and state.fenced
            and state.fence_group is None
            and state.master_key == master_key
            and self._adds.refusal is None
        )

    async def _is_made_durable(self, group: Group) -> bool:
        try:
            await self._journal.wait_durable(group)
        except OSError:
            return False
        return True

    async def force_ledger(self, ledger_id: int) -> Status:
        """EOK when everything journaled before is durable."""
        if self._adds.refusal is not None:
            return self._adds.refusal
        if self._ledger(ledger_id) is None:
            return Status.ENOLEDGER
        return Status.EOK if await self._is_made_durable(self._journal.cut()) else Status.EIO

    async def set_explicit_lac(self, ledger_id: int, master_key: bytes, packet: bytes) -> Status:
        """Stores a LAC packet (WRITE_LAC); EOK when it is durable. EUA as for adds; EREADONLY.
        Makes the ledger if it is unknown, as BookKeeper does."""
        if self._adds.refusal is not None:
            return self._adds.refusal
        if self._adds.is_read_only:
            return Status.EREADONLY
        status = self._adds.admit(ledger_id, master_key, True)
        if status is not Status.EOK:
            return status
        state = self._ledger(ledger_id)
        assert state is not None
        state.explicit_lac = bytes(packet)
        if state.lac is not None:
            state.lac.see_packet(packet)
        self._table.changed(state)
        group = self._journal.append_special(
            special_record(ledger_id, EXPLICIT_LAC, state.explicit_lac)
        )
        return Status.EOK if await self._is_made_durable(group) else Status.EIO

    def get_explicit_lac(self, ledger_id: int) -> tuple[Status, bytes | None]:
        """The last packet; None if there was none. ENOLEDGER."""
        state = self._ledger(ledger_id)
        if state is None:
            return Status.ENOLEDGER, None
        return Status.EOK, state.explicit_lac

    async def delete_ledger(self, ledger_id: int) -> Status:
        """Forgets a ledger, for good once this returns EOK; fine if it is unknown. From the call
        on it is refused. The index follows with the next checkpoint, and entry logs in which
        nothing else is left are removed then."""
        if self._adds.refusal is not None:
            return self._adds.refusal
        group = self._delete(ledger_id)
        if group is None:
            # Somebody else's deletion of it may not be durable yet.
            group = self._deletions.get(ledger_id)
        if group is None:
            return Status.EOK
        return Status.EOK if await self._is_made_durable(group) else Status.EIO

    async def delete_ledgers(self, ledger_ids: Iterable[int]) -> tuple[int, int]:
        """Many, as `delete_ledger`, with one sync; how many were deleted, and how many failed, or
        are not durable after DURABLE_SECONDS: they will be, or are there again after a crash."""
        groups = []
        refused = 0
        for ledger_id in ledger_ids:
            if self._adds.refusal is not None:
                refused += 1
            elif (group := self._delete(ledger_id)) is not None:
                groups.append(group)
        # They are synced in their order.
        # Not for ever: a journal that finds no space for its next file may wait for the space that
        # the collector makes, which is who deletes.
        is_durable = not groups
        with trio.move_on_after(DURABLE_SECONDS):
            is_durable = is_durable or await self._is_made_durable(groups[-1])
        if is_durable:
            return len(groups), refused
        return 0, refused + len(groups)

    def _delete(self, ledger_id: int) -> Group | None:
        """The journal's group that says so; None if the ledger is unknown."""
        state = self._ledger(ledger_id)
        # An unknown one, too: an add that is held for want of room would make it.
        self._table.delete(ledger_id)
        if state is None:
            return None
        if state.lac is not None:
            state.lac.end()
        self._cache.drop_ledger(ledger_id)
        group = self._journal.append_special(special_record(ledger_id, LEDGER_DELETED))
        self._deletions[ledger_id] = group
        return group
