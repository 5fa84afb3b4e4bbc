"""Did it happen? What a look at the nodes says about a change whose reply was lost.

Pure functions. They are asked after a new connection was made and `sync` was called, when nothing
of the old connection can happen any more. `lost_zxid` is the highest transaction id that the old
connection had told of. ZooKeeper serves the requests of a session in order, so that a lost change,
if it happened, has a greater one: a node that is not newer was not touched by it (W8, W9).

What cannot be told apart: two clients that write the *same bytes* to the same node at the same
version. Callers to whom that matters put something of their own into the data (a creator token).
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from metadata.store import ANY_VERSION, CheckOp, CreateOp, DeleteOp, PutOp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from metadata.store import Op


class Outcome(Enum):
    HAPPENED = auto()
    #: It did not and cannot happen any more: it may be sent again.
    NOT_HAPPENED = auto()
    UNKNOWN = auto()


class Seen(NamedTuple):
    """A node after the loss; the numbers are ZooKeeper's Stat."""

    data: bytes
    version: int
    #: Transactions that made it, and that last put its data
    created_zxid: int
    modified_zxid: int
    #: Session of an ephemeral node, else 0
    owner: int


def of_create(seen: Seen | None, data: bytes, session_id: int | None, lost_zxid: int) -> Outcome:
    """`session_id` is None for lasting nodes. A node that is not there counts as never made,
    though somebody may have deleted it since."""
    if seen is None or seen.created_zxid <= lost_zxid:
        return Outcome.NOT_HAPPENED
    if session_id is not None:
        mine = seen.owner == session_id
    elif seen.version == 0:
        mine = seen.owner == 0 and seen.data == data
    else:
        # Its first data are gone.
        return Outcome.UNKNOWN
    return Outcome.HAPPENED if mine else Outcome.NOT_HAPPENED


def of_put(seen: Seen | None, data: bytes, version: int, lost_zxid: int) -> Outcome:
    if seen is None:
        return Outcome.UNKNOWN
    if seen.modified_zxid <= lost_zxid:
        return Outcome.NOT_HAPPENED
    if version == ANY_VERSION:
        return Outcome.HAPPENED if seen.data == data else Outcome.UNKNOWN
    if seen.version == version:
        return Outcome.NOT_HAPPENED
    if seen.version == version + 1:
        # Of all puts at `version` one succeeded: this data's.
        return Outcome.HAPPENED if seen.data == data else Outcome.NOT_HAPPENED
    return Outcome.UNKNOWN


def of_delete(seen: Seen | None, lost_zxid: int) -> Outcome:
    """A node that is gone counts as deleted by us: that is what was wanted."""
    if seen is None:
        return Outcome.HAPPENED
    # A node made since may stand where ours was deleted.
    return Outcome.NOT_HAPPENED if seen.created_zxid <= lost_zxid else Outcome.UNKNOWN


def of_multi(
    ops: Sequence[Op], seen: Mapping[str, Seen | None], session_id: int, lost_zxid: int
) -> Outcome:
    """All or nothing: what is certain of one op holds for all. Only the last op on each path can
    be judged. That a node is gone, or not there, is a hint only, as rivals with a like multi leave
    the same: it counts if nothing else is to be seen, and all hints agree. Checks leave no trace: a
    multi of nothing else may as well be sent again."""
    last = {op.path: op for op in ops if not isinstance(op, CheckOp)}
    if not last:
        return Outcome.NOT_HAPPENED
    outcomes: set[Outcome] = set()
    hints: set[Outcome] = set()
    for path, op in last.items():
        node = seen[path]
        match op:
            case CreateOp():
                owner = session_id if op.ephemeral else None
                outcome = of_create(node, op.data, owner, lost_zxid)
            case PutOp():
                # A node made in the same multi has no version that was known before.
                made = any(isinstance(other, CreateOp) for other in ops if other.path == path)
                outcome = of_put(node, op.data, op.version, lost_zxid)
                if made and node is None:
                    outcome = Outcome.NOT_HAPPENED
            case DeleteOp():
                outcome = of_delete(node, lost_zxid)
        (hints if node is None else outcomes).add(outcome)
    certain = outcomes - {Outcome.UNKNOWN}
    if not certain and Outcome.UNKNOWN not in outcomes:
        certain = hints
    return certain.pop() if len(certain) == 1 else Outcome.UNKNOWN
