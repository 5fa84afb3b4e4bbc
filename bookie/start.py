"""How a bookie starts: directories, cookie, index, logs, replay, first checkpoint's clean-up.

After a clean stop there is nothing to replay. After a crash the journals from the mark on are put
into the write cache as adds are, only not journaled again, and flushed; then the mark moves to the
new journal. Until then nothing of the earlier life is changed, so a crash while starting is no
different from the first one.
"""

from __future__ import annotations

import logging
import posixpath
from typing import TYPE_CHECKING

import trio

from bookie.cookie import LOCK_NAME, Cookie, check_cookies
from bookie.errors import BookieStartError, CorruptionError
from bookie.journal.journal_format import (
    EXPLICIT_LAC,
    FORCE,
    LEDGER_DELETED,
    LEDGER_FENCED,
    LEDGER_KEY,
    UNKNOWN_SEQUENCE,
    special_value,
)
from bookie.storage.checkpoint import END_UNKNOWN, Checkpoint, read_checkpoint
from bookie.storage.entry_log_format import HEADER_SIZE, LENGTH_SIZE
from runtime.slices import Slices

if TYPE_CHECKING:
    from collections.abc import Callable

    from bookie.config import BookieConfig
    from bookie.ledger_table import LedgerTable
    from bookie.storage.entry_log import EntryLog
    from bookie.storage.entry_logs import EntryLogs
    from bookie.storage.index import EntryIndex
    from bookie.storage.write_cache import WriteCache
    from runtime.disk import Disk

logger = logging.getLogger(__name__)

#: An index that is being made anew; with this file in it, it is whole and is about to be the index.
REBUILD_DIRECTORY = "index-rebuilding"
REBUILD_COMPLETE = "complete"
#: In one turn of the loop: records that are settled, ledgers' states that are loaded.
SETTLED_PER_TURN = 200
LOADED_PER_TURN = 500
#: As Apache BookKeeper names the directory in each of the configured ones that has the files.
CURRENT = "current"


def journal_directory(config: BookieConfig) -> str:
    return f"{config.journal_directory.rstrip('/')}/{CURRENT}"


def ledger_directory(config: BookieConfig) -> str:
    """The first, which has the index and the checkpoint too."""
    return f"{config.ledger_directory.rstrip('/')}/{CURRENT}"


def ledger_directories(config: BookieConfig) -> tuple[str, ...]:
    return tuple(f"{path.rstrip('/')}/{CURRENT}" for path in config.ledger_directories)


def all_directories(config: BookieConfig) -> list[str]:
    """Journal and ledgers, each once."""
    return list(dict.fromkeys((journal_directory(config), *ledger_directories(config))))


def lock_directories(config: BookieConfig, disk: Disk) -> list[Callable[[], None]]:
    """Makes the directories and locks them; the functions that let go. BookieStartError."""
    releases: list[Callable[[], None]] = []
    for path in all_directories(config):
        make_durable_directory(disk, path)
        try:
            releases.append(disk.lock(f"{path}/{LOCK_NAME}"))
        except BlockingIOError as error:
            for release in releases:
                release()
            raise BookieStartError(f"{path} is in use by another bookie") from error
    return releases


def make_durable_directory(disk: Disk, path: str) -> None:
    """Makes it, its parents, and their names durable; those of an existing one again, for the
    process may have ended before. A file is only as durable as the names on the way to it."""
    parent = posixpath.dirname(path)
    names = [parent, posixpath.dirname(parent)]
    while names[-1] and not disk.exists(names[-1]):
        names.append(posixpath.dirname(names[-1]))
    disk.make_directory(path)
    for name in names:
        disk.sync_directory(name or ".")


def check_identity(config: BookieConfig, disk: Disk) -> bool:
    """Compares or makes the cookies; whether the bookie is new. BookieStartError."""
    cookie = Cookie(
        config.bookie_id,
        config.journal_directory,
        config.ledger_directory,
        config.instance_id,
        config.more_ledger_directories,
    )
    return check_cookies(
        disk,
        cookie,
        all_directories(config),
        new={each for each in ledger_directories(config)[1:] if config.allow_storage_expansion},
    )


def load_checkpoint(config: BookieConfig, disk: Disk) -> Checkpoint:
    return read_checkpoint(disk, ledger_directory(config))


async def load_table(disk: Disk, index: EntryIndex, table: LedgerTable, directory: str) -> None:
    """What the index says of each ledger. BookieStartError."""
    stored = await disk.run(index.ledgers)
    try:
        for start in range(0, len(stored), LOADED_PER_TURN):
            table.load(stored[start : start + LOADED_PER_TURN])
            await trio.lowlevel.checkpoint()
    except ValueError as error:
        raise BookieStartError(f"{directory}/ledgers: {error}") from error


class ReplayTarget:
    """Applies the journal's records to the write cache and the table."""

    def __init__(self, cache: WriteCache, table: LedgerTable) -> None:
        self._cache = cache
        self._table = table
        self.deleted: set[int] = set()
        #: Made here, before their key came by.
        self._keyless: set[int] = set()

    def apply(self, ledger_id: int, entry_id: int, record: memoryview) -> bool:
        """False if the cache is full: flush, then apply the record again. BookieStartError."""
        if entry_id >= 0:
            return self._apply_entry(ledger_id, entry_id, record)
        table = self._table
        state = table.get(ledger_id)
        if entry_id == LEDGER_KEY:
            # Of a deleted ledger too: then it was made anew after the deletion was forgotten.
            if state is None:
                table.create(ledger_id, special_value(record))
            elif state.master_key is None:
                state.master_key = special_value(record)
        elif entry_id == LEDGER_DELETED:
            table.delete(ledger_id)
            self._cache.drop_ledger(ledger_id)
            self.deleted.add(ledger_id)
        elif entry_id in (LEDGER_FENCED, EXPLICIT_LAC):
            if state is None:
                state = table.create(ledger_id, None)
                self._keyless.add(ledger_id)
            if entry_id == LEDGER_FENCED:
                state.fenced = True
            else:
                state.explicit_lac = special_value(record)
            table.changed(state)
        elif entry_id != FORCE:
            raise BookieStartError(
                f"ledger {ledger_id}: the journal has a record of kind {entry_id}, which this "
                "version does not know"
            )
        return True

    def _apply_entry(self, ledger_id: int, entry_id: int, record: memoryview) -> bool:
        table, cache = self._table, self._cache
        if table.get(ledger_id) is None:
            if table.is_deleted(ledger_id):
                return True
            table.create(ledger_id, None)
            self._keyless.add(ledger_id)
        start = cache.put(ledger_id, entry_id, (record,), len(record))
        if start < 0:
            return False
        cache.commit(ledger_id, entry_id, start, len(record))
        return True

    def check(self) -> None:
        """After the last record: every ledger's key must have come, or have been in the index."""
        states = [self._table.get(ledger_id) for ledger_id in sorted(self._keyless)]
        missing = [each.ledger_id for each in states if each and each.master_key is None]
        if missing:
            raise BookieStartError(
                f"ledgers {missing[:10]} ({len(missing)} in all) have entries in the journal, and "
                "their master key is neither there nor in the index"
            )


def open_index(disk: Disk, index: EntryIndex, directory: str, at_start: Checkpoint) -> None:
    """Opens it; blocks. BookieStartError unless it has all that it had at the last checkpoint: an
    index that lost something would answer «no such entry» for what is in the entry logs."""
    how = "`quire bookie rebuild-index` makes the index anew from the entry logs"
    if disk.exists(f"{directory}/{REBUILD_DIRECTORY}/{REBUILD_COMPLETE}"):
        raise BookieStartError(
            f"{directory}/{REBUILD_DIRECTORY}: the new index was not put in its place yet; "
            "`quire bookie rebuild-index` goes on where it was interrupted"
        )
    try:
        index.open(must_exist=any(at_start.index_stamps))
    except BookieStartError as error:
        raise BookieStartError(f"{error}; {how}") from error
    for name, found, expected in zip(
        ("locations", "ledgers"), index.stamps, at_start.index_stamps, strict=True
    ):
        if found < expected:
            raise BookieStartError(
                f"{directory}/{name}: the index has sync {found} as its last, and at the last "
                f"checkpoint it had {expected}: it is lost, damaged or another one; {how}"
            )


def check_logs(logs: EntryLogs, at_start: Checkpoint) -> None:
    """CorruptionError if the log that was written at the checkpoint is not what it was then."""
    ends = {each.log_id: each.end for each in at_start.adopted} | {
        at_start.log_id: at_start.log_end
    }
    for log_id, end in ends.items():
        log = logs.get(log_id)
        if log is not None and log.size_bytes < end:
            raise CorruptionError(
                log.path,
                log.size_bytes,
                f"the log ends here; at the last checkpoint it had {end} bytes",
            )


def check_missing_log(logs: EntryLogs, table: LedgerTable, at_start: Checkpoint) -> None:
    """After the replay, which may have brought the deletion of all its ledgers: on a full disk
    logs are removed before the checkpoint. BookieStartError."""
    named = {at_start.log_id: at_start.ledgers}
    named |= {each.log_id: each.ledgers for each in at_start.adopted}
    for log_id, ledgers in named.items():
        if logs.get(log_id) is None and any(table.get(each) is not None for each in ledgers):
            raise BookieStartError(
                f"{logs.missing_path(log_id)} is missing: at the last checkpoint it had "
                f"entries of {len(ledgers)} ledgers"
            )


async def settle_logs(
    logs: EntryLogs, index: EntryIndex, table: LedgerTable, at_start: Checkpoint
) -> None:
    """After the replay is durable in logs and index, and before the mark moves: completes the logs
    that the crash left open, and removes those that nothing refers to any more."""
    await _settle_adopted(logs, at_start)
    for log in logs.incomplete():
        await _settle_log(logs, index, log, at_start)
    await logs.remove_dead(lambda ledger_id: table.get(ledger_id) is not None, index.with_entries)
    await logs.close_removed_later()


async def _settle_adopted(logs: EntryLogs, at_start: Checkpoint) -> None:
    """Journals that are to be entry logs: bookie/storage/adopted.py has the table."""
    known = {each.log_id: each for each in at_start.adopted}
    for each in at_start.adopted:
        log = logs.get(each.log_id)
        if log is not None and not log.is_known and log.journal_id < 0:
            # The crash came while the entry log's header took the place of the journal's.
            logs.take_for_adopted(log, each.journal_id)
        elif log is not None and log.journal_id < 0:
            # A process that was killed may have left the header in the page cache only, and the
            # next checkpoint does not name what is complete.
            await logs.file(log).wait_synced()
    for log in [log for log in logs.all() if log.journal_id >= 0]:
        found = known.get(log.log_id)
        if found is not None and found.end != END_UNKNOWN:
            log.ledgers = dict(found.ledgers)
            log.records_end = found.end
        elif (
            found is not None
            or at_start.mark.sequence == UNKNOWN_SEQUENCE
            or logs.has_last_name(log)
        ):
            logger.error("entry log kept: nobody knows what is in it path=%s", log.path)
            log.is_doubtful = True
        else:
            logs.disown(log)


async def _settle_log(
    logs: EntryLogs, index: EntryIndex, log: EntryLog, at_start: Checkpoint
) -> None:
    """All that this log got after the checkpoint was in the journal, so the replay wrote it
    again elsewhere, and the index says so. What it had before is known from the checkpoint."""
    if log.log_id < at_start.log_id:
        # No crash of ours leaves this: a log is complete before the checkpoint names another.
        logger.error("entry log kept: it never got a ledgers map path=%s", log.path)
        log.is_doubtful = True
        return
    if log.log_id == at_start.log_id:
        end, ledgers = at_start.log_end, dict(at_start.ledgers)
    else:
        end, ledgers = HEADER_SIZE, {}
    scanned = end
    slices = Slices(SETTLED_PER_TURN)
    for ledger_id, entry_id, offset, size in logs.scan(log, end):
        if slices.due():
            await slices.turn()
        scanned = offset + size
        if index.get(ledger_id, entry_id) == log.log_id << 32 | offset:
            ledgers[ledger_id] = ledgers.get(ledger_id, 0) + size + LENGTH_SIZE
            end = scanned
    if at_start.mark.sequence == UNKNOWN_SEQUENCE and scanned < log.size_bytes:
        logger.error("entry log kept: unreadable at offset=%d path=%s", scanned, log.path)
        log.is_doubtful = True
    elif ledgers:
        await logs.complete(log, end, ledgers)
    else:
        logs.remove(log)
