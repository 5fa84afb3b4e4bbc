"""Which broker gets which partition: pure choices, the same for everybody who makes them.

Leaders are spread evenly when partitions are made and stay put after that. A partition moves only
if its leader is gone or leaves, if it is asked for, or back to the preferred leader.
"""

from __future__ import annotations

import enum
import itertools
from collections import Counter
from typing import TYPE_CHECKING

from broker.cluster.assignment import Assigned
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence


class BrokerState(enum.Enum):
    RUNNING = "running"
    #: Leads what it leads, and is given nothing more (KIP-1066).
    CORDONED = "cordoned"
    #: On its way out: what it leads is given to others.
    DRAINING = "draining"


@dataclass(slots=True, frozen=True)
class Candidate:
    """A live broker."""

    node_id: int
    rack: str | None = None
    state: BrokerState = BrokerState.RUNNING
    #: It reaches enough bookies for what it is to write.
    can_write: bool = True


def spread(
    count: int,
    length: int,
    brokers: Sequence[Candidate],
    leading: Mapping[int, int],
    *,
    start: int = 0,
) -> list[tuple[int, ...]]:
    """As `spread_each`, of all at once."""
    return list(spread_each(count, length, brokers, leading, start=start))


def spread_each(
    count: int,
    length: int,
    brokers: Sequence[Candidate],
    leading: Mapping[int, int],
    *,
    start: int = 0,
) -> Iterator[tuple[int, ...]]:
    """Lists of brokers for `count` new partitions, each of `length` (less with fewer brokers), one
    by one; `leading` is read before the first.

    The first of each list goes to who leads fewest (`leading`, by id) by then; the others are
    those who follow it in the order of ids, from a distance that changes from round to round,
    brokers of racks that the list has not yet before others. `start` shifts the ties."""
    usable = [one for one in brokers if one.state is BrokerState.RUNNING and one.can_write]
    if not usable:
        usable = [one for one in brokers if one.state is BrokerState.RUNNING]
    if not usable:
        usable = [one for one in brokers if one.state is BrokerState.CORDONED] or list(brokers)
    usable.sort(key=lambda one: one.node_id)
    if not usable:
        yield from itertools.repeat((), count)
        return
    size = len(usable)
    counts = [leading.get(one.node_id, 0) for one in usable]
    for number in range(count):
        first = min(range(size), key=lambda place: (counts[place], (place - start - number) % size))
        counts[first] += 1
        distance = 1 + (start + counts[first]) % max(size - 1, 1)
        others = [(first + distance + step) % size for step in range(size)]
        chosen = [first]
        racks = {usable[first].rack}
        for is_second_pass in (False, True):
            for place in others:
                if len(chosen) >= length:
                    break
                if place in chosen or (not is_second_pass and usable[place].rack in racks):
                    continue
                chosen.append(place)
                racks.add(usable[place].rack)
        yield tuple(usable[place].node_id for place in chosen)


class Electorate:
    """The live brokers, and how many partitions each leads: counts follow what is chosen."""

    def __init__(
        self,
        brokers: Iterable[Candidate],
        leading: Mapping[int, int],
        deposed: Collection[int] = (),
    ) -> None:
        """`deposed`: those who cannot write for so long that others are to lead what they lead, if
        there are others who can."""
        candidates = list(brokers)
        self.states = {one.node_id: one.state for one in candidates}
        self.leading = Counter(leading)
        self._able = {one.node_id for one in candidates if one.can_write}
        others_can = any(self._may_lead(node_id) for node_id in self._able)
        self._deposed = frozenset(deposed if others_can else ())

    def _may_lead(self, node_id: int) -> bool:
        return self.states[node_id] is not BrokerState.DRAINING

    def may_lead_more(self, node_id: int) -> bool:
        return self.states.get(node_id) is BrokerState.RUNNING and node_id in self._able

    def may_keep_leading(self, node_id: int) -> bool:
        is_staying = self.states.get(node_id, BrokerState.DRAINING) is not BrokerState.DRAINING
        return is_staying and node_id not in self._deposed

    def elect(self, assigned: Assigned) -> Assigned:
        """Unchanged if its leader lives, stays and is not deposed, or if there is nobody to take
        it. Else the preferred leader, or who leads fewest of the list, or of all, or, if all are
        cordoned, of them; one who can write before those who cannot."""
        if self.may_keep_leading(assigned.leader):
            return assigned
        return self._move(assigned, self._successor(assigned))

    def _successor(self, assigned: Assigned) -> int | None:
        preferred = assigned.replicas[:1]
        for choice in (preferred, assigned.replicas):
            usable = [node_id for node_id in choice if self.may_lead_more(node_id)]
            if usable:
                return min(usable, key=self._rank)
        for is_able in (True, False):
            for wanted in (BrokerState.RUNNING, BrokerState.CORDONED):
                found = [
                    node_id
                    for node_id, state in self.states.items()
                    if state is wanted and (node_id in self._able) is is_able
                ]
                if found:
                    return min(found, key=self._rank)
        return None

    def _rank(self, node_id: int) -> tuple[int, int]:
        return self.leading[node_id], node_id

    def _move(self, assigned: Assigned, leader: int | None) -> Assigned:
        if leader is None or leader == assigned.leader:
            return assigned
        self.leading[assigned.leader] -= 1
        self.leading[leader] += 1
        return assigned.led_by(leader)

    def elect_preferred(self, assigned: Assigned) -> Assigned:
        """Unchanged if it leads already, or cannot."""
        if not assigned.replicas or not self.may_lead_more(assigned.replicas[0]):
            return assigned
        return self._move(assigned, assigned.replicas[0])

    def reassign(self, assigned: Assigned, replicas: tuple[int, ...]) -> Assigned:
        """Another list. The leader changes only if it is not in that (KIP-455); the reassignment
        is under way until the new one has taken over."""
        if replicas == assigned.replicas:
            return assigned
        changed = Assigned(assigned.leader, assigned.epoch, replicas)
        if assigned.leader in replicas and assigned.leader in self.states:
            return changed
        leader = self._successor(changed)
        moved = self._move(changed, leader)
        if moved is changed:
            return changed
        before = assigned.before or assigned.replicas
        return Assigned(moved.leader, moved.epoch, replicas, before)

    def cancel(self, assigned: Assigned) -> Assigned:
        """Back to the list before the reassignment that is under way."""
        back = Assigned(assigned.leader, assigned.epoch, assigned.before)
        if assigned.leader in back.replicas:
            return back
        return self._move(back, self._successor(back))


def without_broker(
    assigned: Assigned, node_id: int, brokers: Sequence[Candidate], leading: Mapping[int, int]
) -> Assigned:
    """Its list with a broker that is gone for good replaced by another one, if there is one."""
    if node_id not in assigned.replicas:
        return assigned
    others = [one for one in brokers if one.node_id not in (*assigned.replicas, node_id)]
    ((*found,),) = spread(1, 1, others, leading)
    replicas = tuple(
        one for old in assigned.replicas for one in (found if old == node_id else (old,))
    ) or (assigned.leader,)
    before = assigned.before if node_id not in assigned.before else ()
    return Assigned(assigned.leader, assigned.epoch, replicas, before)
