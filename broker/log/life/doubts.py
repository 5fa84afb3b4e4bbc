"""What the producers' state refuses is answered once it is certain whose state it is.

Before a producer is told that its sequence number or epoch is wrong, metadata is asked whether the
partition is still ours: the state of one who was deposed and does not know it is old, and such an
answer is final for a producer, where NOT_LEADER_OR_FOLLOWER is not. A duplicate needs no such
question: an acknowledged offset stays true whoever owns the partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from metadata.store import CheckOp, MetadataUnavailableError, MetadataUnknownOutcomeError
from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.log.partition import PartitionLog
    from metadata.store import MetadataStore


async def settle_doubts(
    log: PartitionLog, store: MetadataStore, path: str, version: int | None
) -> None:
    """`version`: of the document, as we wrote it last; None if metadata cannot be asked. A check
    goes through ZooKeeper's leader, where a read might be a follower's old picture.

    BadVersionError, NoNodeError: we were deposed, which ends the tenure."""
    doubted = log.take_doubted()
    unknown = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    is_certain = version is not None
    try:
        if version is not None:
            await store.multi([CheckOp(path, version)])
    except (MetadataUnavailableError, MetadataUnknownOutcomeError):
        is_certain = False
    except BaseException:  # deposed, or cancelled: they are not in the log's hands any more
        for append, _ in doubted:
            append.fail(unknown)
        raise
    for append, error in doubted:
        append.fail(error if is_certain else unknown)
