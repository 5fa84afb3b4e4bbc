"""A mutation: a named rule, and the change of source text that breaks it.

A patch names a module and a piece of its text that is there exactly once; where the code has moved
on it fails with `AnchorError`, and never does nothing. A test looks at all of them
(tests/sim/test_mutations.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


class AnchorError(Exception):
    """The text that a patch replaces is not there, or not once. Names both."""


@dataclass(frozen=True, slots=True)
class Patch:
    module: str
    old: str
    new: str

    @property
    def path(self) -> Path:
        return ROOT / f"{self.module.replace('.', '/')}.py"

    def apply(self, source: str) -> str:
        """AnchorError."""
        count = source.count(self.old)
        if count != 1:
            raise AnchorError(f"{self.module}: {count} times, and not once:\n{self.old}")
        return source.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Mutation:
    name: str
    #: The rule that is broken, as a sentence of what the code does now.
    story: str
    patches: tuple[Patch, ...]
    #: Tests (pytest's ids) that `make check` runs and that must fail.
    tests: tuple[str, ...] = ()

    def sources(self) -> dict[str, str]:
        """By module: its source with the rule broken. AnchorError."""
        found: dict[str, str] = {}
        for patch in self.patches:
            source = found.get(patch.module)
            if source is None:
                source = patch.path.read_text(encoding="utf-8")
            found[patch.module] = patch.apply(source)
        return found
