"""Which topics were deleted with all the ledgers that their documents named: a mark for each, kept
until nothing else of theirs can be left.

A ledger that no document names (broker/log/life/orphans.py) may outlive its topic, and then only
its own stamps tell whose it was. That this topic is not in the metadata does not prove that it was
deleted: the ledger may be another cluster's, or part of the metadata may be lost. So the sweep of a
deleted topic leaves a mark before the topic's last trace goes:

    /quire/swept/<the first two digits of the id>/<topic id>    empty

An id is used once. So whatever ledger says that it was made for a marked topic may go.

The mark's version counts the looks at all ledgers that began after it was there and came to their
end. The second one deletes it: a broker that had not heard of the deletion may have made a ledger
behind the first one's back, and the two are hours apart. The folders keep each listing far below
the 1 MiB that ZooKeeper answers (some 25,000 ids).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from broker.log.life.document import READ_COUNT_MAX
from metadata.store import BadVersionError, NodeExistsError, NoNodeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from metadata.store import MetadataStore

SWEPT_PATH = "/quire/swept"
#: The mark goes with the last of so many looks.
LOOKS = 2


def mark_path(topic_id: str) -> str:
    return f"{SWEPT_PATH}/{topic_id[:2]}/{topic_id}"


async def mark_swept(store: MetadataStore, topic_id: str) -> None:
    """Before the last trace of the deleted topic goes. MetadataError."""
    with suppress(NodeExistsError):
        await store.create(mark_path(topic_id), make_parents=True)


async def swept_among(store: MetadataStore, topic_ids: Iterable[str]) -> set[str]:
    """Those that are marked. MetadataError."""
    asked = sorted(set(topic_ids))
    nodes = await store.get_many([mark_path(topic_id) for topic_id in asked])
    return {topic_id for topic_id, node in zip(asked, nodes, strict=True) if node is not None}


async def read_marks(store: MetadataStore) -> dict[str, int]:
    """Looks so far, by the paths of the marks: before a look begins. MetadataError."""
    marks: dict[str, int] = {}
    for folder in await _children(store, SWEPT_PATH):
        names = await _children(store, f"{SWEPT_PATH}/{folder}")
        paths = [f"{SWEPT_PATH}/{folder}/{name}" for name in names]
        for start in range(0, len(paths), READ_COUNT_MAX):
            chunk = paths[start : start + READ_COUNT_MAX]
            for path, node in zip(chunk, await store.get_many(chunk), strict=True):
                if node is not None:
                    marks[path] = node.version
    return marks


async def count_look(store: MetadataStore, marks: dict[str, int]) -> None:
    """It began when the marks were these, and saw all ledgers. MetadataError."""
    for path, looks in marks.items():
        with suppress(NoNodeError, BadVersionError):  # another broker has looked as well
            if looks + 1 < LOOKS:
                await store.put(path, b"", looks)
            else:
                await store.delete(path, looks)


async def _children(store: MetadataStore, path: str) -> list[str]:
    try:
        return await store.children(path)
    except NoNodeError:
        return []
