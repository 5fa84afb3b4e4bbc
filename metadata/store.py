"""The MetadataStore protocol: what brokers, ledgers and bookies may ask of metadata.

A tree of nodes named by absolute paths («/ledgers/00/0000/L0013»). A node has data (bytes) and a
version that starts at 0 and rises by 1 with every put; a node that was deleted and made again
starts anew at 0, so a version alone does not tell it from the old one (`CheckOp`). All meanings are
ZooKeeper's, so that kazoo is one implementation; `memory` and `sqlite` are the others, and one
contract suite (tests/metadata/test_store_contract.py) runs against all.

Every change is durable when the call returns. A call that raises `MetadataUnknownOutcome` may or
may not have happened: the caller re-reads before it decides (invariants W8, W9).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import trio

ANY_VERSION = -1
#: That are taken at once (`MetadataStore.take_numbers`): ZooKeeper makes a node for each of them.
NUMBERS_MAX = 500


class MetadataError(Exception):
    """Root of all that a MetadataStore raises; `path` names the node."""

    def __init__(self, path: str, detail: str = "") -> None:
        super().__init__(f"{path}: {detail}" if detail else path)
        self.path = path


class NoNodeError(MetadataError):
    """The node, or the parent of a node to be made, does not exist."""


class NodeExistsError(MetadataError):
    """A node of that name exists already."""


class BadVersionError(MetadataError):
    """The node's version is not the one that was expected (a lost compare-and-set)."""


class NotEmptyError(MetadataError):
    """The node has children and cannot be deleted."""


class MetadataUnknownOutcomeError(MetadataError):
    """The connection was lost before the answer came; the change may have happened."""


class MetadataUnavailableError(MetadataError):
    """The store cannot be reached, or the session is gone; nothing happened."""


class MetadataClosedError(MetadataUnavailableError):
    """The store was closed by its own process: there is no use in waiting for it."""


@dataclass(slots=True, frozen=True)
class Node:
    data: bytes
    version: int


@dataclass(slots=True, frozen=True)
class CreateOp:
    path: str
    data: bytes = b""
    ephemeral: bool = False
    make_parents: bool = False


@dataclass(slots=True, frozen=True)
class PutOp:
    path: str
    data: bytes
    version: int


@dataclass(slots=True, frozen=True)
class DeleteOp:
    path: str
    version: int = ANY_VERSION


@dataclass(slots=True, frozen=True)
class CheckOp:
    """Changes nothing; the multi is refused unless the node is there and has that version.

    What makes a compare-and-set safe from a node that was deleted and made anew under its name, and
    has come to the same version: a second node, named after something that is never used twice,
    lives and dies with it and is checked in the same multi."""

    path: str
    version: int = ANY_VERSION


Op = CreateOp | PutOp | DeleteOp | CheckOp


class SessionState(Enum):
    CONNECTED = auto()
    #: The connection is lost; operations wait for a while. The session may live on.
    SUSPENDED = auto()
    #: The session has ended and its ephemeral nodes are gone; CONNECTED follows with a new one,
    #: unless the store is closed.
    LOST = auto()


class Watch(Protocol):
    """Tells that something changed; never what. Changes between two looks are merged into one."""

    async def changed(self) -> None:
        """Returns when the watched thing changed since the last return (or since the watch was
        made). After a session was lost it returns once too: everything must be read again."""

    def close(self) -> None: ...


class MetadataStore(Protocol):
    async def get(self, path: str) -> Node:
        """NoNodeError if it is not there."""

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """One answer for each path, None for a missing node; not one instant's picture."""

    async def exists(self, path: str) -> bool: ...

    async def sync(self, path: str) -> None:
        """Reads that begin after it returns know of every change, anybody's, that was made before
        it was called. Without it a read may be older (docs/metadata-reads.md): ZooKeeper answers it
        from a server that may be some 10 s behind the others. `path` need not be there.

        What a store promises without it: a session's reads never go back, know what the session has
        changed or was refused to change (BadVersionError, NodeExistsError, a change's NoNodeError),
        and what its watches told of. After a lost connection, a lost session, or a
        MetadataUnknownOutcomeError they are as if `sync` had been called.

        What it does not promise: ZooKeeper's leader answers it by itself. One that was deposed, and
        has not heard of it, lets its followers read what it has (ZOOKEEPER-2136) until it gives up,
        within `syncLimit`. A CheckOp goes through a majority."""

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
    ) -> str:
        """Returns the path made; with `sequence`, ten digits of the parent's counter are appended
        («/a/n-» → «/a/n-0000000007»). Ephemeral nodes vanish when this store's session ends, and
        have no children. NodeExistsError, NoNodeError (parent), as ZooKeeper.

        If only the reply is lost, a node that is newer than the loss and has this data (or this
        session, if it is ephemeral) counts as ours, and one that is not there as never made. Where
        rivals may write the same data and the difference matters, put something of your own into
        it (BookKeeper's creator token)."""

    async def take_numbers(self, path: str, count: int) -> list[int]:
        """The next `count` numbers that sequence nodes named `path` would have, ascending. Nobody
        else ever gets them, nor does who makes such nodes (`create` with `sequence`, as ZooKeeper's
        own clients do); no node stays. The parent is made if it is missing.

        MetadataUnknownOutcomeError if the answer is lost, and the numbers with it: others may be
        taken. They are also lost with the caller."""

    async def put(self, path: str, data: bytes, version: int) -> int:
        """Replaces the data if the version is `version` (or ANY_VERSION) and returns the new
        version. NoNodeError, BadVersionError.

        If only the reply is lost, the next version with this very data counts as ours: rivals must
        not write the same bytes. If it is put over already: MetadataUnknownOutcomeError."""

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """NoNodeError, BadVersionError, NotEmptyError. If only the reply is lost, a node that is
        not there counts as deleted by us."""

    async def children(self, path: str) -> list[str]:
        """Names (not paths) of the children, sorted. NoNodeError."""

    async def multi(self, ops: Sequence[Op]) -> None:
        """All or nothing, in order; raises the first op's error (with its path) and changes
        nothing."""

    def watch(self, path: str) -> Watch:
        """Fires when the node is made, put or deleted."""

    def watch_children(self, path: str) -> Watch:
        """Fires when a child is made or deleted (not when a child's data changes)."""

    def subscribe(self, listener: Callable[[SessionState], None]) -> Callable[[], None]:
        """Calls `listener` on every change of the session's state, on the loop; it must not block
        or raise. Returns what ends that. Owners of ephemeral nodes make them anew when CONNECTED
        follows LOST; nobody else does."""

    async def owns(self, path: str) -> bool:
        """Whether there is an ephemeral node of this store's present session."""

    async def run(self, *, task_status: trio.TaskStatus[None] = ...) -> None:
        """Keeps the session; to be started in the node's nursery before any other call."""

    async def aclose(self) -> None: ...
