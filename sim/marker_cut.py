"""A broker that reaches no bookie any more, from a marker on that it appends.

The marker is numbered and nobody acknowledges it, while clients reach that broker, and so do other
brokers and metadata: its readers are told high watermark and last stable offset from memory. Then
its power fails, and what it had sent is lost with it. So the next owner knows nothing of the end of
the transaction until its coordinator tells it again, and must not be behind what readers were told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.append_crash import AppendCrash
from sim.names import TXN_TOPIC

if TYPE_CHECKING:
    from sim.nodes import Node
    from sim.transactions.decided import Read
    from sim.world import World


def is_marker(batch: Read) -> bool:
    return batch.marker is not None


class MarkerCut(AppendCrash):
    """At the `number`-th marker from now on (from 1 on). `seconds`: until the power fails; `down`:
    from then on until the broker is started again."""

    def __init__(self, world: World, *, number: int, seconds: float, down: float) -> None:
        super().__init__(
            world,
            TXN_TOPIC,
            number=number,
            copies=0,
            is_silent=True,
            seconds=down,
            counts=is_marker,
        )
        self._cut_seconds = seconds

    def _strike(self, node: Node) -> None:
        world, life = self._world, node.life
        world.trace.count("cut off at a marker")
        world.trace.event(node.name, "reaches no bookie")
        for bookie in world.bookies:
            world.network.cut(node.host, bookie.host)
            world.network.cut(bookie.host, node.host)

        def end() -> None:
            if life is not None and node.life is life:
                self._lose_sent(node)
                node.crash(is_silent=True)
                world.start_later(node, self._seconds)
            world.network.heal()

        world.later(self._cut_seconds, end)

    def _lose_sent(self, node: Node) -> None:
        """What is on its way to the bookies never arrives."""
        bookies = {bookie.host for bookie in self._world.bookies}
        for end in self._world.network.connections:
            assert end.other is not None
            hosts = {end.net.name, end.other.net.name}
            if node.host in hosts and hosts & bookies:
                self._world.network.reset(end)
