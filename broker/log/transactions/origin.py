"""Where a transactional batch comes from, and the question about it that was answered.

What both the queue of appends and the gate (broker/log/transactions/gate.py) know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from wire.kafka.errors import ErrorCode

#: From this version of Produce on a batch adds its partition to the transaction.
IMPLICIT_ADD_VERSION = 12

P = TypeVar("P")


class Guard(Generic[P]):
    """One question, and what waits for its answer."""

    __slots__ = ("asking", "bytes", "is_full", "is_open", "origin", "parked", "producer_epoch",
                 "producer_id", "waiting")  # fmt: skip

    def __init__(self, producer_id: int, producer_epoch: int, origin: Origin) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.origin = origin
        #: Not answered yet.
        self.is_open = True
        self.parked: list[P] = []
        #: Something found no place here.
        self.is_full = False
        self.bytes = 0
        #: Coordinators of ours, who ask before they have a batch.
        self.asking: list[tuple[Origin, Callable[[ErrorCode], None]]] = []
        #: Batches that passed, and are not numbered or refused yet.
        self.waiting = 0


class Origin:
    """What a Produce request says of a transactional batch, and the guard that let it pass."""

    __slots__ = ("guard", "produce_version", "transactional_id")

    def __init__(self, transactional_id: str, produce_version: int) -> None:
        self.transactional_id = transactional_id
        self.produce_version = produce_version
        self.guard: Guard[Any] | None = None

    @property
    def adds(self) -> bool:
        """Its partitions are added to the transaction, which has an epoch of its own."""
        return self.produce_version >= IMPLICIT_ADD_VERSION


#: Of what a coordinator writes, or a test, that is known to be asked about.
VERIFIED = Origin("", 0)
