"""What the shell of consumer groups asks of its neighbours, as a protocol. The real part is
broker/cluster's TopicCatalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from broker.coordinator.ports import Catalog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.coordinator.ports import Topic


class Topics(Catalog, Protocol):
    """The cluster's topics; patterns are matched with all of them."""

    def all(self) -> Sequence[Topic]: ...
