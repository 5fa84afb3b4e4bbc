"""What share groups ask of their neighbours, as protocols."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.groups.share.types import ShareTimes
    from broker.share.ports import Persister


class EndOffsets(Protocol):
    """Where partitions end, whoever leads them."""

    async def read(self, partitions: Sequence[tuple[str, int]], /) -> dict[tuple[str, int], int]:
        """The offset after the last record that is acknowledged, by (topic, partition); of those
        that cannot be asked, none."""


@dataclass(slots=True, frozen=True)
class ShareNeighbours:
    """`times_of(group id)`: a share group's own settings in force."""

    persister: Persister
    ends: EndOffsets
    times_of: Callable[[str], ShareTimes]
