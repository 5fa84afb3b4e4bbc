"""Finalized features: what every broker of the cluster can do, so that clients may count on it
(KIP-584). FEATURES has them all.

    /quire/features   {"format": 1, <feature>: its level, …, "limits": {<feature>: level, …},
                       "by": who wrote it}

The node's version is the features' epoch, which clients compare: all brokers tell the same of it.
Somebody decides, the controller of a cluster: the highest level that every live broker's
registration says that it serves, and a lower one again when one is there that does not. In a
rolling upgrade clients so go on with what was before until the last broker is new. A broker that
joins meanwhile is seen a moment later by the controller, and its absence of the newer versions of
the APIs by every client at once.

An operator may lower a level (UpdateFeatures): that is a limit, which holds until he raises it
again. Who raises a feature to its highest level takes the limit away.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
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
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from metadata.store import MetadataStore, Node, Watch

logger = logging.getLogger(__name__)

FEATURES_PATH = "/quire/features"
FORMAT = 1
RETRY_SECONDS = 0.5
TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"
SHARE_VERSION = "share.version"
STREAMS_VERSION = "streams.version"


@dataclass(slots=True, frozen=True)
class Feature:
    """`most`: the highest level that this code can do; all down to 0 it can, too. `undecided`: what
    is in force before anybody has decided, and while brokers are there that know none."""

    name: str
    most: int
    undecided: int = 0


FEATURES: Mapping[str, Feature] = {
    feature.name: feature
    for feature in (
        # Transactions of version 0 and 1 are the same but for the bytes of `__transaction_state`,
        # which are those of 1 here.
        Feature(TRANSACTION_VERSION, most=2, undecided=1),
        # 1: groups of the consumer protocol (KIP-848).
        Feature(GROUP_VERSION, most=1),
        # 1: share groups (KIP-932).
        Feature(SHARE_VERSION, most=1),
        # 1: streams groups (KIP-1071).
        Feature(STREAMS_VERSION, most=1),
    )
}

#: By feature.
Levels = Mapping[str, int]
UNDECIDED: Levels = {feature.name: feature.undecided for feature in FEATURES.values()}
MOST: Levels = {feature.name: feature.most for feature in FEATURES.values()}


class FinalizedFeatures:
    """Reads are plain memory. `run` follows the document. `supported()`: the levels that each live
    broker can do, by its id; `decides()`: whether this broker is the one who says what is in force.
    `owner`: a name that no other broker, and no other life of this one, has."""

    def __init__(
        self,
        store: MetadataStore,
        owner: str,
        supported: Callable[[], Mapping[int, Levels]],
        decides: Callable[[], bool],
    ) -> None:
        self.levels: Levels = UNDECIDED
        #: -1: nobody has decided yet, and nothing is finalized.
        self.epoch = -1
        self.supported = supported
        self._limits: Levels = {}
        self._store = store
        self._owner = owner
        self._decides = decides
        self._woken = trio.Event()

    @property
    def transaction_version(self) -> int:
        return self.levels[TRANSACTION_VERSION]

    def look_again(self) -> None:
        """To be called when `supported` or `decides` may say something else."""
        self._woken.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Never returns; `started` once the document says what this broker has to say."""
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
                    if is_settled:
                        task_status.started()
                        task_status = trio.TASK_STATUS_IGNORED
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
        levels, limits = _read(node.data)
        if (levels, node.version) != (self.levels, self.epoch):
            shown = {name.replace(".", "_"): level for name, level in levels.items()}
            logger.info("features", kv(**shown, epoch=node.version))
        self.levels, self._limits, self.epoch = levels, limits, node.version
        return node

    async def _decide(self, node: Node | None) -> bool:
        """Whether the document is as it is to be, for all that this broker has to say."""
        if not self._decides():
            return True
        limits = {} if node is None else self._limits
        wanted = self._possible(limits)
        if wanted == (UNDECIDED if node is None else self.levels):
            return True
        await self._write(node, wanted, limits)
        return False

    def _possible(self, limits: Levels) -> Levels:
        brokers = self.supported().values()
        possible = {}
        for name, feature in FEATURES.items():
            level = min((levels.get(name, 0) for levels in brokers), default=0)
            level = max(feature.undecided, min(level, feature.most))
            possible[name] = min(level, limits.get(name, level))
        return possible

    async def _write(self, node: Node | None, levels: Levels, limits: Levels) -> bool:
        """Whether it is certain that this is stored."""
        document: dict[str, object] = {"format": FORMAT, **levels}
        if limits:
            document["limits"] = limits
        document["by"] = self._owner
        data = json.dumps(document, separators=(",", ":")).encode()
        try:
            if node is None:
                await self._store.create(FEATURES_PATH, data, make_parents=True)
            else:
                await self._store.put(FEATURES_PATH, data, node.version)
        except (NodeExistsError, BadVersionError, MetadataUnknownOutcomeError):
            return False  # somebody wrote it, perhaps this broker: it is read again
        return True

    async def update(self, change: Callable[[Levels], Levels]) -> None:
        """Puts the levels in force that `change(those in force now)` gives for some features, and
        keeps them so. It may run again when another broker was quicker, and may raise, which
        changes nothing. MetadataError."""
        while True:
            await self._store.sync(FEATURES_PATH)
            node = await self._look()
            changed = change(self.levels)
            limits = dict(self._limits)
            for name, level in changed.items():
                if level < FEATURES[name].most:
                    limits[name] = level
                else:
                    limits.pop(name, None)
            if limits == self._limits and all(
                self.levels[name] == level for name, level in changed.items()
            ):
                return
            if await self._write(node, {**self.levels, **changed}, limits):
                await self._look()
                return


def _read(data: bytes) -> tuple[Levels, Levels]:
    """(levels, limits). Of a document that cannot be read, or says more than is known here: what is
    in force before anybody has decided, the most."""
    try:
        document = json.loads(data)
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']}")
        levels = {
            name: max(0, min(int(document.get(name, feature.undecided)), feature.most))
            for name, feature in FEATURES.items()
        }
        limits = {name: int(level) for name, level in document.get("limits", {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("features_damaged", kv(error=error))
        return UNDECIDED, {}
    return levels, limits
