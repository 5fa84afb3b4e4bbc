"""What a bookie's entries and ledgers are kept in: parts that `Bookie` makes once and shares.

`Bookie` owns them and their start and end. Whoever is given `BookieParts` takes what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from bookie.config import BookieConfig
    from bookie.health.damage import DamageReports
    from bookie.journal.journal import Journal
    from bookie.journal.journal_files import JournalFiles
    from bookie.ledger_table import LedgerTable
    from bookie.storage.entry_log_writer import EntryLogWriter
    from bookie.storage.entry_logs import EntryLogs
    from bookie.storage.index import EntryIndex
    from bookie.storage.write_cache import WriteCache
    from runtime.env import Env


@dataclass(slots=True, frozen=True)
class BookieParts:
    config: BookieConfig
    env: Env
    table: LedgerTable
    cache: WriteCache
    journal: Journal
    files: JournalFiles
    logs: EntryLogs
    #: The flush's.
    writer: EntryLogWriter
    index: EntryIndex
    damages: DamageReports
    #: Ends the bookie: of a write or sync that failed the outcome is unknown.
    fail: Callable[[OSError], None]
