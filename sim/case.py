"""A case: everything that a run follows from, and the command that runs it again."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from sim.plan import KINDS, draw_kinds, draw_plan
from sim.runner import run_seed
from sim.shape import Shape, draw_shape

if TYPE_CHECKING:
    from typing import TextIO

    from sim.plan import Fault
    from sim.runner import Result

STEPS = 12


@dataclass(frozen=True, slots=True)
class Case:
    seed: int
    #: Faults that are drawn.
    steps: int = STEPS
    #: Instead of the seed's own choice.
    kinds: tuple[str, ...] | None = None
    #: Numbers of the faults that are kept of those; None: all.
    only: tuple[int, ...] | None = None
    #: Fields of the world's shape that differ from the seed's own.
    shape: tuple[tuple[str, int], ...] = ()

    @property
    def plan(self) -> list[Fault]:
        kinds = draw_kinds(self.seed) if self.kinds is None else self.kinds
        plan = draw_plan(self.seed, self.steps, kinds)
        if self.only is None:
            return plan
        return [fault for fault in plan if fault.number in self.only]

    @property
    def full_shape(self) -> Shape:
        return replace(draw_shape(self.seed), **dict(self.shape))

    def run(self, file: TextIO | None = None) -> Result:
        """`file` gets the trace."""
        return run_seed(self.seed, plan=self.plan, shape=self.full_shape, file=file)

    @property
    def command(self) -> str:
        words = [f"python -m sim --seed {self.seed}"]
        if self.steps != STEPS:
            words.append(f"--steps {self.steps}")
        if self.kinds is not None:
            words.append(f"--faults {','.join(self.kinds)}")
        if self.only is not None:
            words.append(f"--only '{','.join(map(str, self.only))}'")
        if self.shape:
            words.append(f"--shape {','.join(f'{name}={value}' for name, value in self.shape)}")
        return " ".join(words)


def parse_kinds(text: str) -> tuple[str, ...]:
    """ValueError."""
    kinds = tuple(text.split(","))
    if unknown := set(kinds) - set(KINDS):
        raise ValueError(f"unknown {', '.join(sorted(unknown))}; known: {', '.join(KINDS)}")
    return kinds


def parse_shape(text: str) -> tuple[tuple[str, int], ...]:
    """From `brokers=2,admins=0`; ValueError."""
    names = [field.name for field in fields(Shape)]
    shape: list[tuple[str, int]] = []
    for pair in text.split(",") if text else ():
        name, _, value = pair.partition("=")
        if name not in names:
            raise ValueError(f"unknown {name!r}; known: {', '.join(names)}")
        if not value.isdecimal():
            raise ValueError(f"{name} is {value!r}, not a number")
        shape.append((name, int(value)))
    return tuple(shape)
