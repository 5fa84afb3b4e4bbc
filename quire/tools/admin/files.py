"""What of a bookie is on its disks: files by kind, and space. Reads only; for the HTTP endpoints
and for `quire bookie` on a data directory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from bookie.journal.journal_format import journal_id_of
from bookie.start import CURRENT, journal_directory, ledger_directory
from bookie.storage.entry_log_format import log_id_of
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bookie.config import BookieConfig
    from runtime.disk import Disk

#: RocksDB's tables; its write-ahead logs are named as entry logs are, and are none.
TABLE_SUFFIX = ".sst"
INDEX_NAMES = ("locations", "ledgers")


@dataclass(slots=True, frozen=True)
class StoredFile:
    name: str
    path: str
    size_bytes: int


def list_files(disk: Disk, config: BookieConfig) -> dict[str, list[StoredFile]]:
    """The files of each kind (journal, entrylog, index), oldest first. Blocks. Directories that are
    not there have none."""
    ledger_directories = [f"{path.rstrip('/')}/{CURRENT}" for path in config.ledger_directories]
    tables = [f"{ledger_directory(config)}/{name}" for name in INDEX_NAMES]
    return {
        "journal": _matching(disk, [journal_directory(config)], journal_id_of),
        "entrylog": _matching(disk, ledger_directories, log_id_of),
        "index": _matching(disk, tables, _table_number),
    }


def _table_number(name: str) -> int | None:
    number, suffix = os.path.splitext(name)
    return int(number) if suffix == TABLE_SUFFIX and number.isdigit() else None


def _matching(
    disk: Disk, directories: Iterable[str], number_of: Callable[[str], int | None]
) -> list[StoredFile]:
    found = []
    for directory in directories:
        if not disk.exists(directory):
            continue
        for name in disk.list(directory):
            if (number := number_of(name)) is not None:
                path = f"{directory}/{name}"
                try:
                    size = os.stat(path).st_size
                except FileNotFoundError:
                    continue  # collected, or compacted away, since it was listed
                found.append((number, StoredFile(name, path, size)))
    return [file for _, file in sorted(found, key=lambda item: item[0])]


def disk_space(disk: Disk, directories: Sequence[str]) -> tuple[int, int]:
    """(total, free) bytes of the file systems that the directories are on, each counted once."""
    usages = {os.stat(path).st_dev: disk.usage(path) for path in directories}
    return sum(total for total, _ in usages.values()), sum(free for _, free in usages.values())
