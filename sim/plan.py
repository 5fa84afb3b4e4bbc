"""The plan: which faults come when, drawn from the seed before the run starts.

A plan is a list of plain values, so that a failing seed's can be made smaller by leaving some out
(sim/minimise.py) without changing the others. Which kinds a seed uses at all is drawn first (swarm
testing: a world without resets meets what resets would hide). sim/faults.py does what it says.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

KINDS = (
    "crash-bookie",
    "crash-broker",
    "crash-at-effect",
    "blackout",
    "rival",
    "stop",
    "partition",
    "one-way",
    "clog",
    "reset",
    "latency",
    "slow-disk",
    "full-disk",
    "failing-sync",
    "clock",
    "metadata-cut",
    "metadata-errors",
    "metadata-conflicts",
    "late-watches",
    "session",
    "pause",
    "rolling-restart",
    "bit-rot",
    "lagging-follower",
    "addresses",
    "rot-anywhere",
    "latent-errors",
    "read-errors",
    "crash-at-fence",
    "crash-at-ack",
    "slow-changes",
    "absence",
    "metadata-away",
    "crash-at-append",
    "cut-at-marker",
)
#: Seconds from one fault to the next, and how long one that ends by itself goes on.
GAP_SECONDS = 0.8
SHORT_SECONDS, LONG_SECONDS = 0.2, 4.0


@dataclass(frozen=True, slots=True)
class Fault:
    """`a` and `b` are shares (0 to 1) from which the kind makes what it needs: which node, which
    way. `seconds` is how long it goes on, or how long a node stays down."""

    number: int
    at_seconds: float
    kind: str
    a: float
    b: float
    seconds: float

    def __str__(self) -> str:
        return f"#{self.number} {self.kind} at {self.at_seconds:.2f} s for {self.seconds:.2f} s"


def draw_kinds(seed: int) -> tuple[str, ...]:
    """Each with one half chance; never none."""
    rng = random.Random(f"{seed}/kinds")
    return tuple(kind for kind in KINDS if rng.random() < 0.5) or KINDS[:1]


def draw_plan(seed: int, steps: int, kinds: tuple[str, ...]) -> list[Fault]:
    rng = random.Random(f"{seed}/plan")
    now = 1.0
    plan = []
    for number in range(steps):
        now += GAP_SECONDS * 2 * rng.random()
        seconds = SHORT_SECONDS + (LONG_SECONDS - SHORT_SECONDS) * rng.random() ** 2
        kind = kinds[rng.randrange(len(kinds))]
        plan.append(Fault(number, now, kind, rng.random(), rng.random(), seconds))
    return plan
