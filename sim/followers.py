"""Followers that lag: which node's session reads from a server of the ensemble that is behind.

A node keeps to its server: a life that it begins meanwhile reads from there as well (of what was
done before its session began it knows all, as of every session).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metadata.faulty import FaultyStore
    from sim.faults import Fault
    from sim.nodes import Node
    from sim.world import World

#: ZooKeeper lets go of a follower that is further behind (syncLimit of 5 ticks of 2 s).
LAG_SECONDS_MAX = 10.0
#: Of the fault: it goes on for so many times what others do.
LONGER = 3.0


class LaggingFollowers:
    def __init__(self, world: World) -> None:
        self._world = world
        #: Node's name -> seconds, and whether its changes wait (`Follower.lag`).
        self._lags: dict[str, tuple[float, bool]] = {}

    def begin(self, node: Node, fault: Fault) -> None:
        """Up to 10 s behind, more often little than much."""
        lag = LAG_SECONDS_MAX * fault.b**2
        # Of the same draw: the digits behind those that count for the lag.
        does_wait = int(fault.b * 1000) % 2 == 1
        self._lags[node.name] = lag, does_wait
        if node.life is not None:
            self.joined(node, node.life.store)
        self._world.later(LONGER * fault.seconds, lambda: self.end(node))

    def joined(self, node: Node, store: FaultyStore) -> None:
        """A node begins a life, or its server to lag."""
        if node.name in self._lags:
            lag, does_wait = self._lags[node.name]
            store.follower.lag(lag, does_wait=does_wait)

    def end(self, node: Node) -> None:
        self._lags.pop(node.name, None)
        if node.life is not None:
            node.life.store.follower.end_lag()
