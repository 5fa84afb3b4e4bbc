"""FaultIndex: an index in memory that is two databases, as `RocksIndex` is. Each of them may find
no space, and when power fails each keeps a part of its own of what was not synced."""

import errno
import os

from bookie.storage.index import MemoryIndex


class FaultIndex(MemoryIndex):
    """After a write that found no space it takes no other one before it was mended."""

    def __init__(self, rng):
        super().__init__()
        #: How often a write, or a sync of one of the databases, finds no space.
        self.full_share = 0.0
        self.full_sync_share = 0.0
        #: So many operations from now one finds no space; None: none does.
        self.operations_until_full = None
        #: From the end of a life until all its tasks have ended, too.
        self.is_off = False
        self._rng = rng
        self._is_stuck = False
        #: What was done in memory only, to `locations` and to `ledgers`.
        self._of_locations = []
        self._of_ledgers = []

    def put(self, ledger_id, entry_ids, locations):
        ids, places = list(entry_ids), list(locations)
        self._write(self._of_locations, lambda tables: tables.put(ledger_id, ids, places))

    def delete_entries(self, ledger_ids):
        ids = list(ledger_ids)
        if ids:
            self._write(self._of_locations, lambda tables: tables.delete_entries(ids))

    def delete_ledgers(self, ledger_ids):
        """One database after the other: there may be space for the first one only."""
        ids = list(ledger_ids)
        self.delete_entries(ids)

        def forget(tables):
            for ledger_id in ids:
                tables.ledgers.pop(ledger_id, None)

        if ids:
            self._write(self._of_ledgers, forget)

    def put_ledgers(self, states):
        items = list(states)
        if items:
            self._write(self._of_ledgers, lambda tables: tables.ledgers.update(items))

    def mend(self):
        self._check_on()
        if self._is_stuck and self._finds_no_space():
            raise _full("the index is still full")
        self._is_stuck = False

    def sync(self):
        """One database after the other: the first may be durable, and the second not."""
        self._check_on()
        for number, changes in enumerate((self._of_locations, self._of_ledgers)):
            if (
                self._is_stuck
                or self._rng.random() < self.full_sync_share
                or (self.operations_until_full is not None and self._finds_no_space())
            ):
                self._is_stuck = True
                raise _full(f"database {number} of the index is full")
            if not changes:
                continue
            for change in changes:
                change(self._durable)
            changes.clear()
            stamps = list(self._durable.stamps)
            stamps[number] += 1
            self._tables.stamps = self._durable.stamps = tuple(stamps)

    def crash(self):
        """Power fails: a prefix of what was not synced is left, another one of each database."""
        for changes in (self._of_locations, self._of_ledgers):
            count = self._rng.choice([0, 0, self._rng.randrange(len(changes) + 1), len(changes)])
            for change in changes[:count]:
                change(self._durable)
            changes.clear()
        self._tables = self._durable.copy()
        self._is_stuck, self.is_off = False, True

    def kill(self):
        """The process ends. What it had in memory of its own is gone, as when power fails; or it
        had written all of it, and it is in the page cache, which is no more durable than before."""
        if self._rng.random() < 0.5:
            self.crash()
        self._is_stuck, self.is_off = False, True

    def _write(self, changes, change):
        self._check_on()
        if self._is_stuck or self._finds_no_space():
            self._is_stuck = True
            raise _full("the index is full")
        change(self._tables)
        changes.append(change)

    def _finds_no_space(self):
        is_full = self._rng.random() < self.full_share
        if self.operations_until_full is not None:
            self.operations_until_full -= 1
            if self.operations_until_full <= 0:
                self.operations_until_full = None
                is_full = True
        return is_full

    def _check_on(self):
        if self.is_off:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def _full(words):
    return OSError(errno.ENOSPC, words)
