"""Followers that lag: which node's session reads from a server of the ensemble that is behind.

A node keeps to its server: a life that it begins meanwhile reads from there as well (of what was
done before its session began it knows all, as of every session).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metadata.faulty import FaultyStore
    from sim.nodes import Node
    from sim.plan import Fault
    from sim.world import World

#: ZooKeeper lets go of a follower that is further behind (syncLimit of 5 ticks of 2 s).
LAG_SECONDS_MAX = 10.0
#: Of the fault: it goes on for so many times what others do.
LONGER = 3.0
SHARE_OF_ALL = 0.4


class LaggingFollowers:
    def __init__(self, world: World) -> None:
        self._world = world
        #: Node's name -> seconds, and whether its changes wait (`Follower.lag`).
        self._lags: dict[str, tuple[float, bool]] = {}

    def begin(self, node: Node, fault: Fault) -> None:
        """One node, or in two of five cases all, each of them with a server of its own."""
        nodes = self._world.nodes if fault.b < SHARE_OF_ALL else [node]
        for number, each in enumerate(nodes):
            # Of the same draw, other digits.
            share = fault.b * 1000 * (number + 1) % 1
            does_wait = int(fault.b * 100_000 * (number + 1)) % 3 == 0
            self._lags[each.name] = LAG_SECONDS_MAX * share, does_wait
            if each.life is not None:
                self.joined(each, each.life.store)
            self._world.later(LONGER * fault.seconds, partial(self.end, each))

    def joined(self, node: Node, store: FaultyStore) -> None:
        """A node begins a life, or its server to lag."""
        if node.name in self._lags:
            lag, does_wait = self._lags[node.name]
            store.follower.lag(lag, does_wait=does_wait)

    def end(self, node: Node) -> None:
        self._lags.pop(node.name, None)
        if node.life is not None:
            node.life.store.follower.end_lag()
