"""How an index that was made anew takes the old one's place, so that a crash loses neither.

    current/index-rebuilding/{locations,ledgers}       the new one, while it is made
    current/index-rebuilding/complete                  from here on it is the index
    current/index-before-rebuild/{locations,ledgers}   the old one, kept until all is done

Until `complete` is durable the old index is untouched. After it nothing but renames is left, each
of which can be repeated; a bookie refuses to start in between (bookie/start.py), and the next
rebuild finishes them first.

The databases are directories of RocksDB's own files: they are removed without the disk's seam.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from bookie.start import REBUILD_COMPLETE, REBUILD_DIRECTORY

if TYPE_CHECKING:
    from runtime.disk import Disk

BACKUP_DIRECTORY = "index-before-rebuild"
DATABASES = ("locations", "ledgers")


def new_directory(directory: str) -> str:
    return f"{directory}/{REBUILD_DIRECTORY}"


def backup_directory(directory: str) -> str:
    return f"{directory}/{BACKUP_DIRECTORY}"


def start_new(disk: Disk, directory: str) -> None:
    """An empty directory for the new index; remains of an interrupted rebuild go. OSError."""
    new = new_directory(directory)
    if disk.exists(new):
        shutil.rmtree(new)
    disk.make_directory(new)
    disk.sync_directory(directory)


def finish_swap(disk: Disk, directory: str, *, is_complete: bool = False) -> bool:
    """Puts the new index in its place; false if there is none that is complete. `is_complete`: it
    was just closed, and is. OSError."""
    new, backup = new_directory(directory), backup_directory(directory)
    marker = f"{new}/{REBUILD_COMPLETE}"
    if is_complete:
        # A backup of an earlier rebuild is older than the index that is about to be replaced.
        if disk.exists(backup):
            shutil.rmtree(backup)
        disk.sync_directory(new)
        disk.write_file(marker, b"")
    elif disk.exists(marker):
        # Who was killed behind it had not made its name durable, maybe.
        disk.sync_directory(new)
    else:
        return False
    disk.make_directory(backup)
    disk.sync_directory(directory)
    for name in DATABASES:
        if disk.exists(f"{new}/{name}"):
            if disk.exists(f"{directory}/{name}"):
                disk.rename(f"{directory}/{name}", f"{backup}/{name}")
            disk.rename(f"{new}/{name}", f"{directory}/{name}")
    for path in (new, backup, directory):
        disk.sync_directory(path)
    shutil.rmtree(new)
    disk.sync_directory(directory)
    return True


def remove_backup(disk: Disk, directory: str) -> None:
    shutil.rmtree(backup_directory(directory))
    disk.sync_directory(directory)
