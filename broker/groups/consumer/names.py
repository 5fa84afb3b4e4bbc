"""How many topics members may name: their names are sorted, hashed and stored together. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.groups.consumer.types import GroupError
from wire.kafka.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: Of a member, and of all members of a group together: a join of so many takes some 3 ms.
NAMES_MAX = 3_000


def names_problem(names: Collection[str] | None) -> str | None:
    """What is wrong with those of a request."""
    if names is not None and len(names) > NAMES_MAX:
        return f"A member can subscribe to {NAMES_MAX} topics by name at most."
    return None


def check_names(names: Iterable[str], of_group: Collection[str]) -> None:
    """That a member names these, too. GroupError INVALID_REQUEST: they are too many together."""
    added = sum(1 for name in names if name not in of_group)
    if added and len(of_group) + added > NAMES_MAX:
        raise GroupError(
            ErrorCode.INVALID_REQUEST,
            f"The members of a group can subscribe to {NAMES_MAX} topics by name at most.",
        )
