"""What ZooKeeper takes in one request, for every store: what grows too large shows in all tests,
and a cluster may move from one store to another. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from metadata.store import MetadataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metadata.store import Op

#: A request may have this many bytes (jute.maxbuffer, 0xfffff), of which names and ACLs are some.
#: ZooKeeper cuts the connection when there are more.
REQUEST_BYTES_MAX = 0xFFFFF - 2_048

#: About what an op of a multi has beside its path and data: lengths, flags and ACL, chroot.
_OP_BYTES = 100


def check_size(path: str, size_bytes: int) -> None:
    """MetadataError if no request can be as large as this."""
    if size_bytes > REQUEST_BYTES_MAX:
        raise MetadataError(
            path, f"{size_bytes} bytes are more than metadata take at once ({REQUEST_BYTES_MAX})"
        )


def multi_bytes(ops: Sequence[Op]) -> int:
    """About what the multi has on the wire, rather more."""
    return sum(op_bytes(op) for op in ops)


def op_bytes(op: Op) -> int:
    return len(op.path) + _OP_BYTES + len(getattr(op, "data", b""))
