"""What an assignor is given, and the shape of one.

An assignor is a generator: it yields what each step cost, in units of about a microsecond, so that
a large group's assignment can be made in slices; it returns the targets of all members. It is pure,
and its result depends on nothing but the input: not on the order of its mappings, either.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import field
from uuid import UUID

from wire.dataclass import dataclass

#: Topic id -> partitions; never changed in place.
Target = dict[UUID, frozenset[int]]
#: By member id.
Targets = dict[str, Target]
Steps = Generator[int, None, Targets]


@dataclass(slots=True, frozen=True)
class AssignorMember:
    """`topics`: ids of those it is subscribed to; of topics that do not exist, none. `target`: what
    it was to have until now."""

    topics: frozenset[UUID]
    target: Target = field(default_factory=dict)
    instance_id: str | None = None


@dataclass(slots=True, frozen=True)
class AssignorInput:
    """Members by their ids; partition counts of every topic that a member is subscribed to."""

    members: Mapping[str, AssignorMember]
    partition_counts: Mapping[UUID, int]

    @property
    def cost(self) -> int:
        """About how many units an assignment takes."""
        return len(self.members) + sum(self.partition_counts.values())


Assignor = Callable[[AssignorInput], Steps]
