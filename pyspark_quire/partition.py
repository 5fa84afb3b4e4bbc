"""What Spark hands to a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from pyspark_quire.splits import Split


@dataclass
class SplitPartition(InputPartition):  # type: ignore[misc]
    """One task's."""

    split: Split
