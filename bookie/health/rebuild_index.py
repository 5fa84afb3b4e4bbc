"""Makes the index anew from the entry logs: `quire bookie rebuild-index` (BookKeeper:
rebuild-db-ledger-locations-index and rebuild-db-ledgers-index in one).

For a bookie that is not running. The new index is built beside the old one and then takes its place
(index_swap.py), so a crash at any step leaves either. What the journal has and the logs do
not is replayed by the next start, as ever.

**Locations.** Every record that can be believed (log_salvage.py) is put in. An entry may be
in the logs more than once: compaction copied it, or a replay or a recovery added it again. All
copies have the same payload; what differs at most is the LAC, which is a lower bound in any of
them. So any intact copy will do, and the last one that is met is taken, but never a damaged one in
place of an intact one.

**Ledgers.** Master keys and fences are nowhere but in the `ledgers` database and the journal. If
that database can be read, and has all that it had at the last checkpoint, it is taken over, and
records of ledgers that it does not know are of deleted ones: they are left out. If not, the keys
come from the journal, or from the metadata, and every ledger is fenced: it may have been, and a
fence too many costs its writer a new ledger, while one too few loses entries. So that a late writer
does not find a ledger unknown that was fenced while it was empty, all ledgers of the metadata that
are not closed become known, fenced.

**Limbo.** Where something in a log cannot be read, the log's map says of which ledgers records are
missing; without a map it may be any. These ledgers are marked limbo (BP-46): what is not here of
them is answered EUNKNOWNLEDGERSTATE and never «no such entry».
"""

from __future__ import annotations

import logging
from dataclasses import field
from typing import TYPE_CHECKING

from bookie.cookie import LOCK_NAME
from bookie.errors import BookieStartError, CorruptionError
from bookie.health.digest_guess import DigestGuess
from bookie.health.index_swap import (
    backup_directory,
    finish_swap,
    new_directory,
    remove_backup,
    start_new,
)
from bookie.health.log_salvage import LogSalvager, Salvage
from bookie.journal.journal_files import list_journals
from bookie.journal.journal_format import (
    EXPLICIT_LAC,
    LEDGER_FENCED,
    LEDGER_KEY,
    UNKNOWN_SEQUENCE,
    Position,
    special_value,
)
from bookie.journal.journal_replay import JournalReplay
from bookie.ledger_table import LedgerState, decode_ledger_state
from bookie.start import CURRENT
from bookie.storage.checkpoint import (
    END_UNKNOWN,
    AdoptedJournal,
    Checkpoint,
    read_checkpoint,
)
from bookie.storage.entry_log_format import (
    COMPACTING_SUFFIX,
    HEADER_SIZE,
    LENGTH_SIZE,
    log_id_of,
    read_adopted_journal_id,
    read_ledgers_map,
)
from bookie.storage.ledgers_map import outline_map
from bookie.storage.rocks_database import read_ledgers
from bookie.storage.rocks_index import RocksIndex
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from bookie.health.log_salvage import Batch
    from runtime.disk import Disk, File

logger = logging.getLogger(__name__)

BLOCK_CACHE_SIZE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class MetadataLedger:
    """What the metadata says of a ledger."""

    master_key: bytes
    is_closed: bool


@dataclass(slots=True)
class RebuildReport:
    logs: int = 0
    bytes: int = 0
    #: Records that were put into the index, copies too.
    records: int = 0
    #: Of these: the digest does not match. They are answered EIO.
    damaged: int = 0
    #: What could not be read, in words with file and offset.
    gaps: list[str] = field(default_factory=list)
    ledgers: int = 0
    #: The old `ledgers` database was taken over.
    are_ledgers_kept: bool = False
    #: Ledgers that may lack entries.
    limbo: list[int] = field(default_factory=list)
    #: What else an operator should know.
    notes: list[str] = field(default_factory=list)
    #: Where the old index is kept; "" if it was removed, for all was recovered.
    backup: str = ""


@dataclass(slots=True)
class _Log:
    log_id: int
    path: str
    file: File
    #: There is a map that can be believed.
    has_map: bool
    #: It ought to have a map: then what cannot be read of it is damage, and no torn tail.
    is_complete: bool
    #: Bytes by ledger as its map says, while the log is looked at; None if it has none.
    ledgers: dict[int, int] | None = None


def _no_progress(count: int) -> None:
    return


class IndexRebuild:
    """One rebuild; `run` does all of it. Blocks."""

    def __init__(
        self,
        disk: Disk,
        ledger_directories: Sequence[str],
        journal_directory: str | None,
        *,
        metadata: Mapping[int, MetadataLedger] | None = None,
        default_master_key: bytes | None = None,
        is_crc32c: bool = False,
    ) -> None:
        """Directories as configured (without `current`), the one with the index first. `metadata`:
        of all ledgers, None if it cannot be read; `default_master_key`: of ledgers whose key is
        nowhere else. `is_crc32c`: all entries have CRC32C digests."""
        self._disk = disk
        self._directories = [f"{path.rstrip('/')}/{CURRENT}" for path in ledger_directories]
        self._directory = self._directories[0]
        self._journal_directory = (
            f"{journal_directory.rstrip('/')}/{CURRENT}" if journal_directory else None
        )
        self._metadata = metadata
        self._default_master_key = default_master_key
        self._guess = DigestGuess(is_crc32c=is_crc32c)
        self._checkpoint = Checkpoint(Position(0, 0, 0), -1, 0, {})
        #: Journals that are to be entry logs, by the logs' ids (bookie/storage/adopted.py).
        self._adopted: dict[int, AdoptedJournal] = {}
        self._doubtful: set[int] = set()
        self._report = RebuildReport()
        #: Entries whose only copy so far is damaged.
        self._damaged: set[tuple[int, int]] = set()
        self._found: set[int] = set()
        #: Ledgers that may lack entries; or any may.
        self._suspects: set[int] = set()
        self._are_all_suspect = False

    def total_bytes(self) -> int:
        """What there is to read."""
        total = 0
        for directory in self._directories:
            for name in self._disk.list(directory):
                if log_id_of(name.removesuffix(COMPACTING_SUFFIX)) is not None:
                    file = self._disk.open(f"{directory}/{name}")
                    total += file.size()
                    file.close()
        return total

    def run(self, on_progress: Callable[[int], None] = _no_progress) -> RebuildReport:
        """`on_progress` is given the bytes that were read since it was last called.
        BookieStartError: the bookie is running, or what is needed is missing. OSError."""
        releases = self._lock()
        try:
            if finish_swap(self._disk, self._directory):
                self._report.notes.append("an interrupted rebuild was brought to its end first")
            self._rebuild(on_progress)
        finally:
            for release in releases:
                release()
        return self._report

    def _lock(self) -> list[Callable[[], None]]:
        releases: list[Callable[[], None]] = []
        journal = [self._journal_directory] if self._journal_directory else []
        for path in dict.fromkeys([*self._directories, *journal]):
            try:
                if not self._disk.exists(path):
                    raise BookieStartError(f"{path} does not exist")
                releases.append(self._disk.lock(f"{path}/{LOCK_NAME}"))
            except BaseException as error:
                for release in releases:
                    release()
                if isinstance(error, BlockingIOError):
                    raise BookieStartError(f"{path} is in use: stop the bookie first") from error
                raise
        return releases

    def _rebuild(self, on_progress: Callable[[int], None]) -> None:
        report = self._report
        self._checkpoint = read_checkpoint(self._disk, self._directory)
        adopted = self._checkpoint.adopted
        self._adopted = {each.log_id: each for each in adopted if each.end != END_UNKNOWN}
        # Of these, and of all without a checkpoint, nobody knows what the journal has, too.
        self._doubtful = {each.log_id for each in adopted if each.end == END_UNKNOWN}
        states = self._old_states()
        report.are_ledgers_kept = states is not None
        start_new(self._disk, self._directory)
        index = RocksIndex(new_directory(self._directory), BLOCK_CACHE_SIZE_BYTES)
        index.open()
        try:
            index.begin_stamps(self._checkpoint.index_stamps)
            for log in self._logs():
                try:
                    self._read_map(log)
                    self._add_log(index, log, None if states is None else set(states), on_progress)
                finally:
                    log.file.close()
                    log.ledgers = None
            if states is None:
                states = self._recovered_states()
            self._mark_limbo(states)
            report.ledgers = len(states)
            index.put_ledgers((ledger_id, state.encode()) for ledger_id, state in states.items())
            index.sync()
        finally:
            index.close()
        finish_swap(self._disk, self._directory, is_complete=True)
        report.damaged = len(self._damaged)
        if report.gaps or not report.are_ledgers_kept:
            report.backup = backup_directory(self._directory)
        else:
            remove_backup(self._disk, self._directory)

    # Locations.

    def _logs(self) -> list[_Log]:
        """All that a start would take, those of an unfinished compaction first: the originals of
        their records are still there, and win."""
        logs: list[_Log] = []
        for directory in self._directories:
            for name in self._disk.list(directory):
                log_id = log_id_of(name.removesuffix(COMPACTING_SUFFIX))
                if log_id is None:
                    continue
                path = f"{directory}/{name}"
                file = self._disk.open(path)
                has_map, is_complete = False, True
                try:
                    has_map = is_complete = outline_map(file) is not None
                except CorruptionError as error:
                    is_complete = file.size() > HEADER_SIZE
                    self._report.notes.append(f"no map to compare with: {error}")
                is_unknown = (
                    self._checkpoint.mark.sequence != UNKNOWN_SEQUENCE
                    and read_adopted_journal_id(file) >= 0
                    and log_id not in self._adopted
                    and log_id not in self._doubtful
                )
                if not has_map and (name.endswith(COMPACTING_SUFFIX) or is_unknown):
                    # The index was never told of it, or what it was told of is in the journal.
                    file.close()
                    continue
                logs.append(_Log(log_id, path, file, has_map, is_complete))
        logs.sort(key=lambda log: (not log.path.endswith(COMPACTING_SUFFIX), log.log_id))
        return logs

    def _read_map(self, log: _Log) -> None:
        """For as long as this log is looked at: all maps together are gigabytes."""
        if not log.has_map:
            return
        try:
            log.ledgers = read_ledgers_map(log.file)
        except CorruptionError as error:
            log.has_map = False
            self._report.notes.append(f"no map to compare with: {error}")

    def _add_log(
        self,
        index: RocksIndex,
        log: _Log,
        known: set[int] | None,
        on_progress: Callable[[int], None],
    ) -> None:
        """`known`: ledgers that are not deleted; None if nobody can tell."""
        size = end = log.file.size()
        if (last := self._end_at_checkpoint(log)) is not None:
            # What is behind is in the journal, and the next start writes it again.
            end = min(size, last)
        candidates = self._found | (known or set()) | set(log.ledgers or ())
        candidates |= set(self._ledgers_at_checkpoint(log.log_id) or ())
        salvager = LogSalvager(log.file, end, candidates, self._guess, on_progress)
        on_progress(min(HEADER_SIZE, size))
        for batch in salvager.batches():
            self._put(index, log.log_id, batch, known)
        salvage = salvager.salvage
        self._found.update(salvage.ledgers)
        self._judge(log, end, salvage)
        on_progress(size - end)
        self._report.logs += 1
        self._report.bytes += size

    def _put(self, index: RocksIndex, log_id: int, batch: Batch, known: set[int] | None) -> None:
        by_ledger: dict[int, tuple[list[int], list[int]]] = {}
        damaged = set(batch.damaged)
        base = log_id << 32
        for i, key in enumerate(batch.keys):
            ledger_id, entry_id = key
            if known is not None and ledger_id not in known:
                continue
            if i in damaged:
                if index.get(ledger_id, entry_id) or entry_id in by_ledger.get(ledger_id, ((),))[0]:
                    continue
                self._damaged.add(key)
            elif self._damaged:
                self._damaged.discard(key)
            entry_ids, locations = by_ledger.setdefault(ledger_id, ([], []))
            entry_ids.append(entry_id)
            locations.append(base | batch.offsets[i])
        for ledger_id, (entry_ids, locations) in by_ledger.items():
            index.put(ledger_id, entry_ids, locations)
            self._report.records += len(entry_ids)

    def _ledgers_at_checkpoint(self, log_id: int) -> dict[int, int] | None:
        """What the checkpoint says that the log had; None if it does not name the log."""
        if log_id == self._checkpoint.log_id:
            return self._checkpoint.ledgers
        return self._adopted[log_id].ledgers if log_id in self._adopted else None

    def _end_at_checkpoint(self, log: _Log) -> int | None:
        """Of a log that was being written at the checkpoint, and got no map since."""
        if log.has_map:
            return None
        if log.log_id == self._checkpoint.log_id:
            return self._checkpoint.log_end
        return self._adopted[log.log_id].end if log.log_id in self._adopted else None

    def _judge(self, log: _Log, end: int, salvage: Salvage) -> None:
        """Which ledgers may have had records in what could not be read."""
        expected = log.ledgers
        if expected is None:
            expected = self._ledgers_at_checkpoint(log.log_id)
        if expected is None and not log.is_complete and 0 <= self._checkpoint.log_id < log.log_id:
            return  # all of it is in the journal
        if expected is not None:
            short = {i for i, count in expected.items() if salvage.ledgers.get(i, 0) < count}
            self._suspects |= short
            gaps = salvage.gaps if short else []
        else:
            # The last gap of a log that was being written is what the crash tore: its records are
            # in the journal, or were copied from a log that is still there.
            torn = not log.is_complete and salvage.gaps[-1:] == [(salvage.end, end)]
            gaps = salvage.gaps[:-1] if torn else salvage.gaps
            self._are_all_suspect |= bool(gaps)
        self._report.gaps += [f"{log.path}: offset {start} to {end}" for start, end in gaps]

    # Ledgers.

    def _old_states(self) -> dict[int, LedgerState] | None:
        """What the `ledgers` database says; None if it cannot be trusted to say all."""
        try:
            stored, stamp = read_ledgers(self._directory)
            expected = self._checkpoint.index_stamps[1]
            if stamp < expected:
                raise BookieStartError(
                    f"{self._directory}/ledgers: its last sync is {stamp}, the checkpoint knows of "
                    f"{expected}"
                )
            return {i: decode_ledger_state(i, data) for i, data in stored}
        except (BookieStartError, ValueError) as error:
            self._report.notes.append(f"the ledgers' states are not taken over: {error}")
            if self._metadata is None and self._default_master_key is None:
                raise BookieStartError(
                    f"{error}. So master keys and fences of ledgers are lost: they have to come "
                    "from the metadata (--metadata), or every ledger's password be given"
                ) from error
            return None

    def _recovered_states(self) -> dict[int, LedgerState]:
        metadata = self._metadata
        states: dict[int, LedgerState] = {}
        known = self._found | self._suspects
        if self._are_all_suspect and metadata is not None:
            known |= metadata.keys()
        for ledger_id in sorted(known):
            key = self._default_master_key or b""
            if metadata is not None and ledger_id in metadata:
                key = metadata[ledger_id].master_key
            states[ledger_id] = LedgerState(ledger_id, key)
        for ledger_id, ledger in (metadata or {}).items():
            if not ledger.is_closed and ledger_id not in states:
                states[ledger_id] = LedgerState(ledger_id, ledger.master_key)
        self._apply_journal(states)
        for state in states.values():
            state.fenced = True
        if metadata is None:
            self._report.notes.append(
                "the metadata was not read: ledgers that were fenced while nothing of them was "
                "here are forgotten; make sure that no writer from before is still running"
            )
        else:
            unknown = self._found - metadata.keys()
            if unknown:
                self._report.notes.append(
                    f"{len(unknown)} ledgers are not in the metadata; garbage collection looks "
                    "them up again and deletes them"
                )
        return states

    def _apply_journal(self, states: dict[int, LedgerState]) -> None:
        """Keys and LACs from the journals that are left, also of before the mark."""
        if self._journal_directory is None:
            self._report.notes.append("no journal directory was given")
            return
        ids = list_journals(self._disk, self._journal_directory)
        if not ids:
            return
        replay = JournalReplay(
            self._disk, self._journal_directory, Position(ids[0], 0, UNKNOWN_SEQUENCE)
        )
        try:
            for ledger_id, kind, record in replay.records():
                state = states.get(ledger_id)
                if kind == LEDGER_KEY:
                    if state is None:
                        state = states[ledger_id] = LedgerState(ledger_id, None)
                    state.master_key = special_value(record)
                elif state is not None and kind == EXPLICIT_LAC:
                    state.explicit_lac = special_value(record)
                elif state is not None and kind == LEDGER_FENCED:
                    state.fenced = True
        except BookieStartError as error:
            # The next start is the one to refuse what it cannot do without.
            self._report.notes.append(f"the journal was not read to its end: {error}")

    def _mark_limbo(self, states: dict[int, LedgerState]) -> None:
        suspects: Iterable[int] = states if self._are_all_suspect else self._suspects
        for ledger_id in sorted(suspects):
            if (state := states.get(ledger_id)) is not None:
                state.limbo = state.fenced = True
                self._report.limbo.append(ledger_id)


assert LENGTH_SIZE == 4, "a ledgers map counts it, and so does a salvage"
