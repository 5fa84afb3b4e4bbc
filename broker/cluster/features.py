"""Finalized features: what every broker of the cluster can do, so that clients may count on it
(KIP-584). There is one, `transaction.version`.

Part of the transaction coordinator, which is not served yet: no broker says that it can.

    /quire/features   {"format": 1, "transaction.version": n, "by": who wrote it}

The node's version is the features' epoch, which clients compare: all brokers tell the same of it.
Somebody decides, the controller of a cluster: level 2 when every live broker's registration says
that it serves it, and 1 again when one is there that does not. In a rolling upgrade clients so go
on with version 1 until the last broker is new. A broker that joins meanwhile is seen a moment later
by the controller, and its absence of the newer versions of the APIs by every client at once.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import trio

from metadata.store import (
    BadVersionError,
    MetadataError,
    MetadataUnknownOutcomeError,
    NodeExistsError,
    NoNodeError,
)
from runtime.logs import kv

if TYPE_CHECKING:
    from collections.abc import Callable

    from metadata.store import MetadataStore, Node, Watch

logger = logging.getLogger(__name__)

FEATURES_PATH = "/quire/features"
FORMAT = 1
RETRY_SECONDS = 0.5
TRANSACTION_VERSION = "transaction.version"
#: What this code can do.
TRANSACTION_VERSION_MAX = 2
#: Before anybody has decided. Transactions of version 0 and 1 are the same but for the bytes of
#: `__transaction_state`, which are those of 1 here.
TRANSACTION_VERSION_LEAST = 1


class FinalizedFeatures:
    """Reads are plain memory. `run` follows the document. `wanted()`: the level that is to be in
    it, if this broker is the one who says so; else None. `owner`: a name that no other broker, and
    no other life of this one, has."""

    def __init__(self, store: MetadataStore, owner: str, wanted: Callable[[], int | None]) -> None:
        self.transaction_version = TRANSACTION_VERSION_LEAST
        #: -1: nobody has decided yet, and nothing is finalized.
        self.epoch = -1
        self._store = store
        self._owner = owner
        self._wanted = wanted
        self._woken = trio.Event()

    def look_again(self) -> None:
        """To be called when `wanted` may say something else."""
        self._woken.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Never returns; `started` when the document was read once."""
        watch = self._store.watch(FEATURES_PATH)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._wake_when_changed, watch)
                while True:
                    self._woken = trio.Event()
                    try:
                        node = await self._look()
                        is_settled = await self._decide(node)
                    except MetadataError as error:
                        logger.warning("features_not_read", kv(error=error))
                        await trio.sleep(RETRY_SECONDS)
                        continue
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
                    if is_settled:
                        await self._woken.wait()
        finally:
            watch.close()

    async def _wake_when_changed(self, watch: Watch) -> None:
        while True:
            await watch.changed()
            self._woken.set()

    async def _look(self) -> Node | None:
        try:
            node = await self._store.get(FEATURES_PATH)
        except NoNodeError:
            return None
        level = _level(node.data)
        if (level, node.version) != (self.transaction_version, self.epoch):
            logger.info("features", kv(transaction_version=level, epoch=node.version))
        self.transaction_version, self.epoch = level, node.version
        return node

    async def _decide(self, node: Node | None) -> bool:
        """Whether the document is as it is to be, for all that this broker has to say."""
        wanted = self._wanted()
        if wanted is None:
            return True
        wanted = min(max(wanted, TRANSACTION_VERSION_LEAST), TRANSACTION_VERSION_MAX)
        if wanted == (TRANSACTION_VERSION_LEAST if node is None else self.transaction_version):
            return True
        data = json.dumps(
            {"format": FORMAT, TRANSACTION_VERSION: wanted, "by": self._owner},
            separators=(",", ":"),
        ).encode()
        try:
            if node is None:
                await self._store.create(FEATURES_PATH, data, make_parents=True)
            else:
                await self._store.put(FEATURES_PATH, data, node.version)
        except (NodeExistsError, BadVersionError, MetadataUnknownOutcomeError):
            pass  # somebody wrote it, perhaps this broker: it is read again
        return False


def _level(data: bytes) -> int:
    """Of a document that cannot be read, or says more than is known here: the least, the most."""
    try:
        document = json.loads(data)
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']}")
        return min(int(document[TRANSACTION_VERSION]), TRANSACTION_VERSION_MAX)
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("features_damaged", kv(error=error))
        return TRANSACTION_VERSION_LEAST
