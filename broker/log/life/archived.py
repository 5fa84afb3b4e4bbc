"""How far a partition's records are in an archive outside of the cluster, as the job says that
makes it (`quire-spark archive`): a node in metadata, written after the archive's files and manifest
are durable.

    /quire/archived/<topic id>/<n>    {"format": 1, "next_base": <offset>}

Every record before `next_base` is in the archive. On a topic with `quire.archive.required`
retention goes no further than that; without the node nothing is archived. The job alone writes it,
and it only rises. A topic's id is used once, so a topic that is made anew begins without; the nodes
of a deleted one go with its documents (broker/log/life/sweep.py).
"""

from __future__ import annotations

import json
from contextlib import suppress

from broker.cluster.topic import PARTITIONS_PATH
from metadata.store import BadVersionError, MetadataStore, NodeExistsError, NoNodeError

ARCHIVED_PATH = "/quire/archived"
FORMAT = 1


class ArchivedFormatError(ValueError):
    """The stored node does not say how far the archive goes; names what is wrong."""


def archived_path(document: str) -> str:
    """Of the partition with this document."""
    assert document.startswith(PARTITIONS_PATH + "/")
    return ARCHIVED_PATH + document.removeprefix(PARTITIONS_PATH)


def decode_archived(data: bytes) -> int:
    """The first offset that is not archived. ArchivedFormatError."""
    try:
        document = json.loads(data)
        form, offset = document["format"], document["next_base"]
    except (ValueError, KeyError, TypeError) as error:
        raise ArchivedFormatError(f"the node of an archive is damaged: {error!r}") from error
    if form != FORMAT:
        raise ArchivedFormatError(f"the node of an archive has the unknown format {form!r}")
    if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
        raise ArchivedFormatError(f"the node of an archive has no offset, but {offset!r}")
    return offset


async def read_archived(store: MetadataStore, document: str) -> int:
    """The first offset that is not archived, 0 if nobody has told of any. `document`: the path of
    the partition's. MetadataError, ArchivedFormatError."""
    path = archived_path(document)
    await store.sync(path)
    try:
        node = await store.get(path)
    except NoNodeError:
        return 0
    return decode_archived(node.data)


async def tell_archived(store: MetadataStore, document: str, next_base: int) -> int:
    """Every record before `next_base` is archived, durably. What is told by now: another job may
    have told more. MetadataError, ArchivedFormatError."""
    path = archived_path(document)
    data = json.dumps({"format": FORMAT, "next_base": next_base}).encode()
    while True:
        with suppress(NodeExistsError):
            await store.create(path, data, make_parents=True)
            return next_base
        with suppress(NoNodeError, BadVersionError):
            node = await store.get(path)
            told = decode_archived(node.data)
            if told >= next_base:
                return told
            await store.put(path, data, node.version)
            return next_base


async def forget_archived(store: MetadataStore, topic_id: str) -> None:
    """Of a topic that is deleted. MetadataError."""
    path = f"{ARCHIVED_PATH}/{topic_id}"
    with suppress(NoNodeError):
        for name in await store.children(path):
            with suppress(NoNodeError):
                await store.delete(f"{path}/{name}")
        await store.delete(path)
