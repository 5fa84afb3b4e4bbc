"""Env: all that a node takes from the world, in one value that a simulation can replace.

Real and simulated versions of each part pass one contract suite (tests/runtime). Sleeping is
`trio.sleep`, which a simulation drives with `trio.testing.MockClock`; only *reading* a clock goes
through here.
"""

from __future__ import annotations

import random
import time
import uuid
from typing import TYPE_CHECKING, Protocol

from wire.dataclass import dataclass

if TYPE_CHECKING:
    from runtime.disk import Disk
    from runtime.net import Net
    from runtime.poller import Poller
    from runtime.turn import Turn


class Clock(Protocol):
    def time_ms(self) -> int:
        """Wall clock, milliseconds since the epoch; may step backwards."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean something."""


class Rng(Protocol):
    """The part of `random.Random` that we use; seeded in simulations, else the OS's entropy."""

    def random(self) -> float: ...
    def getrandbits(self, k: int, /) -> int: ...
    def randrange(self, stop: int, /) -> int: ...
    def randbytes(self, n: int, /) -> bytes: ...


class RealClock:
    __slots__ = ()

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


@dataclass(slots=True, frozen=True)
class Env:
    clock: Clock
    rng: Rng
    net: Net
    disk: Disk
    turn: Turn
    #: What drives sockets and finished syncs; None in a simulation.
    poller: Poller | None = None

    def new_uuid(self) -> uuid.UUID:
        """A random (version 4) UUID from this world's entropy."""
        return uuid.UUID(int=self.rng.getrandbits(128), version=4)


def seeded_rng(seed: str) -> Rng:
    """Of a command that draws the same numbers each time: it keeps no secrets."""
    return random.Random(seed)


def real_env(*, turn: Turn | None = None) -> Env:
    """The operating system's clock, entropy, sockets and files. Call it inside a trio run."""
    from runtime.poller import Poller
    from runtime.real_disk import RealDisk
    from runtime.real_net import RealNet
    from runtime.turn import Turn as TurnClass

    poller = Poller(turn if turn is not None else TurnClass())
    return Env(
        clock=RealClock(),
        rng=random.SystemRandom(),
        net=RealNet(poller),
        disk=RealDisk(poller),
        turn=poller.turn,
        poller=poller,
    )
