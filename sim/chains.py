"""Partitions' chains as metadata have them at one moment, archives included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.cluster.topic import PARTITIONS_PATH, TOPICS_PATH, decode_topic
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


def partition_of(table: MemoryTable, ledger_id: int) -> tuple[str, int] | None:
    """Whose chain has the ledger: topic and number."""
    for topic in table.children(TOPICS_PATH):
        row = table.find(f"{TOPICS_PATH}/{topic}")
        assert row is not None
        parent = f"{PARTITIONS_PATH}/{decode_topic(topic, row.data, row.version).id}"
        for name in table.children(parent) if table.find(parent) is not None else ():
            chain = None if is_archive(name) else chain_at(table, f"{parent}/{name}")
            if chain is not None and any(info.ledger_id == ledger_id for info in chain.ledgers):
                return topic, int(name)
    return None
