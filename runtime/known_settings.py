"""Settings that are known and have no effect: lines of a text file beside the code.

One setting a line; what is not said is left out:

    name [type [scope]] [=default] [| least 1 | from 0 to 1 | ...] [| doc Words to the end.]

- type: a `ConfigType`'s value; without it `string`. Scope: r read-only (the default), b per broker,
  c cluster-wide, p of each resource. `=` alone is the empty default, none is unset.
- limits: `least N`; `from N to M`; `one of A B`, or `one of any case A B`; `any of A B`,
  each at most once; `distinct`, or `distinct not empty`; `as NAME`, a validator that the reader is
  handed.
- `by NAME NAME`: the settings of the level above that give the default, strongest first.

Blank lines and those that begin with # are nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.config import (
    ConfigKey,
    ConfigType,
    Scope,
    Validator,
    at_least,
    between,
    distinct_list,
    list_of,
    one_of,
)
from wire.dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SCOPES = {
    "r": Scope.READ_ONLY,
    "b": Scope.PER_BROKER,
    "c": Scope.CLUSTER_WIDE,
    "p": Scope.PER_RESOURCE,
}


@dataclass(slots=True, frozen=True)
class KnownSetting:
    """`default_from`: names of the settings that give its default, strongest first."""

    key: ConfigKey
    default_from: tuple[str, ...] = ()


def read_known(
    path: Path, doc: str, validators: Mapping[str, Validator] | None = None
) -> tuple[KnownSetting, ...]:
    """The settings of a file. `doc` is for lines without words. `validators` are
    those that lines call by name. ValueError names a line that is none."""
    text = path.read_text(encoding="utf-8")
    return tuple(
        parse_known(line, doc, validators or {})
        for line in text.splitlines()
        if line and not line.startswith("#")
    )


def parse_known(line: str, doc: str, validators: Mapping[str, Validator]) -> KnownSetting:
    """One line. ValueError."""
    declaration, *clauses = line.split(" | ")
    words, separator, default = declaration.partition("=")
    limit: Validator | None = None
    default_from: tuple[str, ...] = ()
    try:
        name, *more = words.split()
        kind = more[0] if more else ConfigType.STRING.value
        scope = more[1] if len(more) > 1 else "r"
        for clause in clauses:
            about, _, rest = clause.partition(" ")
            if about == "doc":
                doc = rest
            elif about == "by":
                default_from = tuple(rest.split())
            else:
                limit = _limit(clause, validators)
        key = ConfigKey(
            *(name, ConfigType(kind), default if separator else None, doc, limit),
            scope=_SCOPES[scope],
            has_effect=False,
        )
        key.parse_default()
    except (ValueError, KeyError) as error:
        raise ValueError(f"{line!r} is no line of a known setting: {error}") from error
    return KnownSetting(key, default_from)


def _limit(clause: str, validators: Mapping[str, Validator]) -> Validator:
    match clause.split():
        case ["least", low]:
            return at_least(int(low))
        case ["from", low, "to", high]:
            return between(int(low), int(high))
        case ["one", "of", "any", "case", *choices]:
            return one_of(*choices, ignore_case=True)
        case ["one", "of", *choices]:
            return one_of(*choices)
        case ["any", "of", *choices]:
            return list_of(*choices)
        case ["distinct", *rest] if rest in ([], ["not", "empty"]):
            return distinct_list(empty_allowed=not rest)
        case ["as", name]:
            return validators[name]
    raise ValueError(f"{clause!r} is no limit")
