"""EntryLog: one file of entries of many ledgers, as it is known in memory (entry_logs.py has all).

Owner: the event loop's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bookie.storage.entry_log_format import COMPACTING_SUFFIX, HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bookie.storage.ledgers_map import LedgersMap
    from runtime.disk import File


class EntryLog:
    __slots__ = (
        "_ledgers",
        "_live_bytes",
        "file",
        "is_doubtful",
        "is_written",
        "journal_id",
        "log_id",
        "map",
        "path",
        "readers",
        "records_end",
        "size_bytes",
    )

    def __init__(
        self,
        log_id: int,
        path: str,
        size_bytes: int,
        ledgers: dict[int, int] | None,
        *,
        is_written: bool = False,
        file: File | None = None,
    ) -> None:
        self.log_id = log_id
        self.path = path
        #: What is written, the header included; reads go no further.
        self.size_bytes = size_bytes
        self._ledgers = ledgers
        #: Of a log whose ledgers are not in memory: where its map is on disk.
        self.map: LedgersMap | None = None
        #: None: not summed up since it changed.
        self._live_bytes: int | None = None
        #: It has a writer, so it grows, and is neither closed nor removed.
        self.is_written = is_written
        #: Of one that is a journal still, and has the name of an entry log beside; else -1.
        self.journal_id = -1
        #: Reads on worker threads that are under way: the file is not closed under them.
        self.readers = 0
        self.file = file
        #: Where its records end and its map starts; 0 if that is not known.
        self.records_end = 0
        #: It has a map, or should have one, and what is in it must be found by looking at all of
        #: it: the map cannot be read, or the crash of a compaction left the log. For the collector.
        self.is_doubtful = False

    @property
    def ledgers(self) -> dict[int, int] | None:
        """Bytes by ledger, lengths included, of a log that is being written, or of which no map
        could be written. None: they are in the `map`; or not known, so the log is kept. Only its
        writer changes what it holds, and only while `is_written`; all others `forget`."""
        return self._ledgers

    @ledgers.setter
    def ledgers(self, ledgers: dict[int, int] | None) -> None:
        self._ledgers = ledgers
        self._live_bytes = None

    @property
    def is_known(self) -> bool:
        """It is known what is in it. If not, the log is kept."""
        return self._ledgers is not None or self.map is not None

    @property
    def live_count(self) -> int:
        """Ledgers in it that are not deleted, as far as that is known."""
        if self._ledgers is not None:
            return len(self._ledgers)
        return self.map.live_count if self.map is not None else 0

    @property
    def is_dead(self) -> bool:
        """Nothing in it is alive, and nobody writes it."""
        return self.is_known and not self.live_count and not self.is_written

    @property
    def followed_end(self) -> int:
        """Where a reader that goes on without the index stops. What lies in a journal behind the
        records that the index points at may be a group of its file's earlier life."""
        return self.size_bytes if self.journal_id < 0 else self.records_end

    def doubt(self) -> None:
        """What is in it must be found by looking at all of it."""
        self.ledgers = self.map = None
        self.is_doubtful = True

    @property
    def is_compacting(self) -> bool:
        return self.path.endswith(COMPACTING_SUFFIX)

    @property
    def record_bytes(self) -> int:
        """Of all records, live or not."""
        return (self.records_end or self.size_bytes) - HEADER_SIZE

    @property
    def live_bytes(self) -> int:
        """Of the records of ledgers that are not deleted, as far as the map knows. Summed up once
        for a log that nobody writes: who asks about thousands of logs holds the loop."""
        if self._ledgers is None:
            return self.map.live_bytes if self.map is not None else 0
        if self.is_written or self._live_bytes is None:
            self._live_bytes = sum(self._ledgers.values())
        live_bytes = self._live_bytes
        if self.is_written:
            self._live_bytes = None
        return live_bytes

    def forget(self, ledger_ids: Iterable[int]) -> None:
        """These ledgers are deleted."""
        assert self._ledgers is not None
        gone = 0
        for ledger_id in ledger_ids:
            gone += self._ledgers.pop(ledger_id, 0)
        if self._live_bytes is not None:
            self._live_bytes -= gone

    def taken(self, ledger_ids: Iterable[int]) -> dict[int, int]:
        """As `forget`; what it had of them, for `give_back`."""
        assert self._ledgers is not None
        taken = {each: self._ledgers[each] for each in ledger_ids if each in self._ledgers}
        self.forget(taken)
        return taken

    def give_back(self, ledgers: dict[int, int]) -> None:
        """They are not forgotten yet. Does nothing if they are in the map by now."""
        if self._ledgers is not None:
            self.ledgers = self._ledgers | ledgers
