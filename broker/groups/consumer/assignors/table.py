"""The assignors that are offered, by the names in `group.consumer.assignors`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.consumer.assignors.range_core import assign_range
from broker.groups.consumer.assignors.uniform_core import assign_uniform

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.groups.consumer.assignors.input import Assignor

ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
