"""The documents of a topic's partitions as nodes: made, made in portions, moved when it is deleted.

Half a topic must not be seen, so a topic and its partitions are made in one multi. ZooKeeper takes
none above 1 MiB, some 3,000 partitions, and a multi of so many is a long turn of the loop. A larger
topic's documents are *staged* before it:

    /quire/staged/<topic id>    made with the first portion, checked with each one, and deleted in
                                the multi that makes the topic's node

So exactly one of two things happens to what is staged: the topic is made, or it is given up: the
node goes in the multi that marks the folder as deleted, and the documents are moved away like those
of a deleted topic. The maker gives up what failed, and every broker that starts what it finds.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING

from broker.cluster.topic import DELETED_PATH, PARTITIONS_PATH
from metadata.limits import REQUEST_BYTES_MAX, multi_bytes, op_bytes
from metadata.store import (
    BadVersionError,
    CheckOp,
    CreateOp,
    DeleteOp,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    PutOp,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from uuid import UUID

    from metadata.store import MetadataStore, Op

STAGED_PATH = "/quire/staged"

#: Of one multi, if it can be cut. So many ops are made in 0.3 ms, and done by a store in this
#: process in 2.5; 1,850 of them, which have the bytes, took 12 ms.
PORTION_BYTES = REQUEST_BYTES_MAX // 2
PORTION_OPS = 400
#: Documents that are read at once.
_READ_COUNT = 128


def folder_of(topic_id: UUID) -> str:
    return f"{PARTITIONS_PATH}/{topic_id}"


def document_ops(topic_id: UUID, partitions: Iterable[int], document: bytes) -> Iterator[Op]:
    """Made when they are asked for: thousands of them at once take some milliseconds."""
    folder = folder_of(topic_id)
    return (CreateOp(f"{folder}/{n}", document, make_parents=True) for n in partitions)


async def make(
    store: MetadataStore, topic_id: UUID, topic_ops: Sequence[Op], documents: Iterable[Op]
) -> None:
    """Makes a topic (`topic_ops`: its own node first, and all that comes with it). MetadataError;
    what was staged is given up then, unless the topic was made."""
    portions = _portions(documents)
    begin = list(islice(portions, 2))
    if _is_one_portion(topic_ops, begin):
        await store.multi([*topic_ops, *chain.from_iterable(begin)])
        return
    marker = f"{STAGED_PATH}/{topic_id}"
    first: list[Op] = [CreateOp(marker, make_parents=True)]
    check: list[Op] = [CheckOp(marker, 0)]
    try:
        for portion in chain(begin, portions):
            await store.multi([*first, *portion])
            first = check
        await store.multi([DeleteOp(marker, 0), *topic_ops])
    except BaseException:
        with suppress(MetadataError):
            await give_up(store, topic_id)
        raise


async def staged(store: MetadataStore) -> set[str]:
    """The ids of topics that are being made, or never were."""
    return set(await _children(store, STAGED_PATH))


async def give_up(store: MetadataStore, topic_id: UUID) -> bool:
    """Unless the topic was made. Whether there was something. MetadataError."""
    with suppress(NoNodeError, BadVersionError):
        await store.multi(
            [
                DeleteOp(f"{STAGED_PATH}/{topic_id}", 0),
                PutOp(folder_of(topic_id), b"deleted", 0),
            ]
        )
        return await discard(store, topic_id)
    return False


async def stage_more(
    store: MetadataStore,
    topic_id: UUID,
    partitions: range,
    document: bytes,
    *,
    topic_ops: Sequence[Op],
    life: CheckOp,
) -> None:
    """Adds partitions to a topic that lives: what `topic_ops` say, with all documents or after
    them. Those that are left over from an earlier try serve as well. MetadataError."""
    there = set(await _children(store, folder_of(topic_id)))
    missing = document_ops(topic_id, (n for n in partitions if str(n) not in there), document)
    portions = _portions(missing)
    begin = list(islice(portions, 2))
    if not _is_one_portion(topic_ops, begin):
        for portion in chain(begin, portions):
            await store.multi([life, *portion])
        begin = []
    await store.multi([life, *topic_ops, *chain.from_iterable(begin)])


async def discard(store: MetadataStore, topic_id: UUID) -> bool:
    """Moves a deleted topic's documents; may be repeated after a crash at any point. Whether there
    were any. MetadataError."""
    found = False
    source, target = folder_of(topic_id), f"{DELETED_PATH}/{topic_id}"
    while names := await _children(store, source):
        found = True
        for start in range(0, len(names), _READ_COUNT):
            chunk = names[start : start + _READ_COUNT]
            nodes = await store.get_many([f"{source}/{name}" for name in chunk])
            ops: list[Op] = []
            for name, node in zip(chunk, nodes, strict=True):
                if node is not None:
                    ops.append(CreateOp(f"{target}/{name}", node.data, make_parents=True))
                    ops.append(DeleteOp(f"{source}/{name}", node.version))
            try:
                for portion in _portions(ops, step=2):
                    await store.multi(portion)
            except (BadVersionError, NoNodeError, NodeExistsError):
                # The partition's holder wrote a last time, or another broker moves them too.
                break
    with suppress(NoNodeError, NotEmptyError):  # another broker was quicker
        await store.delete(source)
    return found


def _is_one_portion(topic_ops: Sequence[Op], begin: Sequence[list[Op]]) -> bool:
    """Whether the documents, whose first two portions are `begin`, go with the topic's own ops."""
    if len(begin) > 1:
        return False
    return multi_bytes([*topic_ops, *chain.from_iterable(begin)]) <= PORTION_BYTES


def _portions(ops: Iterable[Op], step: int = 1) -> Iterator[list[Op]]:
    """In order; `step` ops that belong together stay together."""
    portion: list[Op] = []
    size_bytes = 0
    each = iter(ops)
    while added := list(islice(each, step)):
        added_bytes = sum(map(op_bytes, added))
        is_full = size_bytes + added_bytes > PORTION_BYTES or len(portion) + step > PORTION_OPS
        if portion and is_full:
            yield portion
            portion, size_bytes = [], 0
        portion += added
        size_bytes += added_bytes
    if portion:
        yield portion


async def _children(store: MetadataStore, path: str) -> list[str]:
    try:
        return await store.children(path)
    except NoNodeError:
        return []
