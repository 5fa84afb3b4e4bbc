"""Partitions' chains as metadata have them at one moment, archives included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.cluster.topic import PARTITIONS_PATH
from broker.log.life.chain import Chain, ChainDocument, archive_from_bytes, archive_path, is_archive
from sim.history import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from metadata.memory import MemoryTable


def chain_paths(table: MemoryTable) -> Iterator[str]:
    """The documents of all partitions."""
    if table.find(PARTITIONS_PATH) is None:
        return
    for topic in table.children(PARTITIONS_PATH):
        parent = f"{PARTITIONS_PATH}/{topic}"
        for name in table.children(parent):
            if not is_archive(name):
                yield f"{parent}/{name}"


def chain_at(table: MemoryTable, path: str) -> Chain | None:
    """Violation if an archive that the document names is not there."""
    row = table.find(path)
    if row is None:
        return None
    document = ChainDocument(row.data)
    archived = []
    for archive in document.archives:
        found = table.find(archive_path(path, archive.number))
        if found is None:
            raise Violation("torn chain", f"{path}: archive {archive.number} is gone")
        archived.append(archive_from_bytes(found.data))
    return document.chain(archived)
