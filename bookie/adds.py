"""The path of an add, and what is not an ordinary one (invariant B1).

One add is one synchronous section: fence and key check, the copy into the write cache, the
journal's queue. At the end of the burst the journal writes and syncs all of it at once and calls
every `done`. Adds that find no room wait in order, up to a limit.

Owner: the event loop's thread. Nothing here is done once per entry that could be done per burst.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from crc32c import crc32c

from bookie.held_adds import HeldAdd, HeldAdds
from bookie.journal.journal_format import LEDGER_KEY, special_record
from bookie.storage.reader import ENTRY_SIZE_MIN
from bookie.storage.write_cache import LENGTH_SIZE
from wire.bookkeeper.entry import crc32c_matches, crc32c_of_verified
from wire.bookkeeper.status import (
    FLAG_DEFERRED_SYNC,
    FLAG_HIGH_PRIORITY,
    FLAG_RECOVERY_ADD,
    Status,
)
from wire.checksum import JOINED_SIZE_MIN, joined

if TYPE_CHECKING:
    from collections.abc import Callable

    from bookie.config import BookieConfig
    from bookie.journal.journal import Journal
    from bookie.ledger_table import LedgerState, LedgerTable
    from bookie.storage.write_cache import WriteCache
    from wire.buffers import Buffers

    Done = Callable[[Status], None]

_unpack_ids = struct.Struct(">qq").unpack_from


class AddPath:
    """Takes adds from `accept` until `refuse`."""

    __slots__ = (
        "_cache",
        "_config",
        "_gate",
        "_journal",
        "_ledger",
        "_queue_size_max",
        "_swap",
        "_table",
        "_verify_digest",
        "held",
        "is_read_only",
        "refusal",
        "refused_read_only_count",
        "takes_high_priority",
    )

    def __init__(
        self,
        config: BookieConfig,
        cache: WriteCache,
        journal: Journal,
        table: LedgerTable,
        swap: Callable[[], bool],
    ) -> None:
        """`swap` makes room in the write cache, if it can: the checkpointer's."""
        self._config = config
        self._cache = cache
        self._journal = journal
        self._table = table
        self._ledger = table.get
        self._swap = swap
        self._queue_size_max = config.journal_queue_size_max_bytes
        self._verify_digest = config.verify_digest_on_write
        #: Adds that wait for room: the arguments of `add_entry`, and the size.
        self.held = HeldAdds(config.held_adds_max, config.held_adds_size_max_bytes)
        #: What every add is answered, if it is not taken: before the start and after the end.
        self.refusal: Status | None = Status.EIO
        #: Adds are answered EREADONLY, but those of high priority while that says true.
        self.is_read_only = False
        self.takes_high_priority: Callable[[], bool] = lambda: True
        self.refused_read_only_count = 0
        #: Whether adds have to take the slow way: a refusal, or others are held.
        self._gate = True

    def accept(self) -> None:
        self.refusal = None
        self._gate = self.is_read_only

    def set_read_only(self, is_read_only: bool) -> None:
        """Those that are held are answered at once: nobody knows when there will be room."""
        self.is_read_only = is_read_only
        if is_read_only:
            self._gate = True
            for add in self.held.release_all():
                self._hold(add)
        else:
            self.progressed()

    def refuse(self, status: Status) -> None:
        """From now on, and those that are held. What is in the journal's queue is not touched."""
        self.refusal = status
        self._gate = True
        for add in self.held.release_all():
            add.done(status)

    def refuse_later(self, status: Status) -> None:
        """From now on; those that are held are answered by `refuse`."""
        self.refusal = status
        self._gate = True

    def add_entry(
        self,
        ledger_id: int,
        entry_id: int,
        master_key: bytes,
        entry: Buffers,
        flags: int,
        done: Done,
    ) -> None:
        """Stores one entry (feature 1's bytes, in pieces); `done(Status.EOK)` once it is
        durable, in the order of the calls; with FLAG_DEFERRED_SYNC once it is written, and then it
        is durable when `force_ledger` returned. Other answers: EBADREQ (these are no bytes of that
        entry), EUA, EFENCED, ETOOMANYREQUESTS, EREADONLY (full or stopping), EIO (failed). The
        pieces stay unchanged until `done`."""
        size = len(entry[0]) if len(entry) == 1 else sum(map(len, entry))
        if self._gate or not self._add(ledger_id, entry_id, master_key, entry, flags, done, size):
            self._hold(HeldAdd(ledger_id, entry_id, master_key, entry, flags, done, size))

    def _add(
        self,
        ledger_id: int,
        entry_id: int,
        master_key: bytes,
        entry: Buffers,
        flags: int,
        done: Done,
        size: int,
    ) -> bool:
        """False if there is no room now."""
        if size < ENTRY_SIZE_MIN or size > self._config.entry_size_max_bytes or entry_id < 0:
            done(Status.EBADREQ)
            return True
        state = self._ledger(ledger_id)
        if state is None or state.master_key != master_key or state.fenced:
            status = self.admit(ledger_id, master_key, bool(flags & FLAG_RECOVERY_ADD))
            if status is not Status.EOK:
                done(status)
                return True
        journal = self._journal
        if journal.queued_bytes >= self._queue_size_max:
            return False
        cache = self._cache
        start = cache.put(ledger_id, entry_id, entry, size)
        if start < 0:
            if not self._swap():
                return False
            start = cache.put(ledger_id, entry_id, entry, size)
            assert start >= 0, "an empty generation takes any entry"
        view = cache.view
        if _unpack_ids(view, start + 4) != (ledger_id, entry_id) or (
            self._verify_digest and not crc32c_matches(view, start + 4, size)
        ):
            done(Status.EBADREQ)
            return True
        if state is not None and state.lac is not None:
            state.lac.see_entry(view, start + 4)
        end = cache.commit(ledger_id, entry_id, start, size)
        crc = None if size < JOINED_SIZE_MIN else self._record_crc(view, start, end)
        if flags & FLAG_DEFERRED_SYNC:
            journal.append_unsynced(view, start, end, done, crc)
        else:
            journal.append(view, start, end, done, crc)
        return True

    def _record_crc(self, view: memoryview, start: int, end: int) -> int:
        """CRC32C of a large record, now that it is in the processor's caches; when its group is
        written it is not any more."""
        if not self._verify_digest:
            return crc32c(view[start:end])
        at = start + LENGTH_SIZE
        entry_crc = crc32c_of_verified(view, at, end - at)
        return joined(crc32c(view[start:at]), entry_crc, end - at)

    def admit(self, ledger_id: int, master_key: bytes, is_recovery: bool) -> Status:
        """Whether an add may be taken, in the cases that are not the ordinary one; makes the
        ledger if it is new. EOK, EUA, EFENCED."""
        state = self._ledger(ledger_id)
        if state is None:
            if self._table.is_deleted(ledger_id):
                return Status.EFENCED
            self.create(ledger_id, master_key)
            return Status.EOK
        if state.master_key != master_key:
            return Status.EUA
        return Status.EFENCED if state.fenced and not is_recovery else Status.EOK

    def create(self, ledger_id: int, master_key: bytes) -> LedgerState:
        """A new ledger; its key goes to the journal before anything else of it."""
        key = bytes(master_key)
        self._journal.append_special(special_record(ledger_id, LEDGER_KEY, key))
        return self._table.create(ledger_id, key)

    def _hold(self, add: HeldAdd) -> None:
        """Not now: a refusal, or no room, and then all that follow wait behind it."""
        if self.refusal is not None:
            add.done(self.refusal)
        elif self.is_read_only:
            is_taken = add.flags & FLAG_HIGH_PRIORITY and self.takes_high_priority()
            if not is_taken or not self._add(*add):
                self.refused_read_only_count += 1
                add.done(Status.EREADONLY)
        elif self.held.hold(add):
            self._gate = True
        else:
            add.done(Status.ETOOMANYREQUESTS)

    def progressed(self) -> None:
        """There may be room again."""
        held = self.held
        while held and self.refusal is None:
            if not self._add(*held.first()):
                return
            held.release_first()
        if self.refusal is None:
            self._gate = self.is_read_only
