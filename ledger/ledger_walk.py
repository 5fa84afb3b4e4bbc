"""All ledgers with their metadata, in portions: a cluster may have millions."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import trio

from ledger.metadata import ledger_path
from metadata.store import NoNodeError
from runtime.slices import Slices
from wire.bookkeeper.ledger_metadata import LedgerMetadata, MetadataFormatError, parse

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from metadata.store import MetadataStore

#: Ledgers whose metadata is read together.
METADATA_BATCH = 100
#: Names of a folder that are looked at before others have the loop: 1 ms.
NAMES_PER_TURN = 2000
#: Ledgers whose metadata is parsed before others have the loop: 1 ms.
PARSED_PER_TURN = 25

#: The ids of one folder have one `id // FOLDER_SIZE`.
FOLDER_SIZE = 10_000


async def walk_ledger_ids(store: MetadataStore, root: str) -> AsyncGenerator[list[int], None]:
    """All ledger ids, ascending, in the portions in which the tree holds them: each has the ids of
    one folder, at most FOLDER_SIZE. NoNodeError if there is no tree, MetadataError."""
    names = [name for name in await store.children(root) if name.isdigit() and len(name) in (2, 3)]
    # Those of two digits are of the short ids (ledger/metadata.py); they are smaller.
    pending = [(f"{root}/{name}", name) for name in sorted(names, key=lambda n: (len(n), n))]
    pending.reverse()
    while pending:
        path, digits = pending.pop()
        try:
            children = await store.children(path)
        except NoNodeError:
            continue  # its last ledger was deleted meanwhile
        leaves: list[int] = []
        inner: list[str] = []
        for start in range(0, len(children), NAMES_PER_TURN):
            if start:
                await trio.lowlevel.checkpoint()
            some = children[start : start + NAMES_PER_TURN]
            leaves += [int(digits + name[1:]) for name in some if _is_leaf(name)]
            inner += [name for name in some if name.isdigit()]
        if leaves:
            leaves.sort()  # as good as sorted: `children` is, and all are of one length
            yield leaves
        pending.extend((f"{path}/{name}", digits + name) for name in reversed(inner))


def _is_leaf(name: str) -> bool:
    return name.startswith("L") and name[1:].isdigit()


async def walk_ledgers(
    store: MetadataStore, root: str
) -> AsyncGenerator[tuple[int, LedgerMetadata | str], None]:
    """All ledgers, ascending, with their metadata, or why that cannot be read."""
    async with aclosing(walk_ledger_ids(store, root)) as portions:
        async for ids in portions:
            for start in range(0, len(ids), METADATA_BATCH):
                batch = ids[start : start + METADATA_BATCH]
                nodes = await store.get_many([ledger_path(root, each) for each in batch])
                slices = Slices(PARSED_PER_TURN)
                for ledger_id, node in zip(batch, nodes, strict=True):
                    if slices.due():
                        await slices.turn()
                    if node is None:
                        continue  # deleted meanwhile
                    try:
                        yield ledger_id, parse(node.data)
                    except MetadataFormatError as error:
                        yield ledger_id, str(error)
