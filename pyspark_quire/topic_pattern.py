"""subscribePattern: which topics' names match. Names are other people's, and a pattern that goes
back and forth over one of them could hold the planner beyond any deadline."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from broker.regex import Pattern
from wire.kafka.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

#: RE2 takes a repetition of so many for plain text.
_HUGE = re.compile(r"\{\d{6,}", re.ASCII)


def matcher(pattern: str) -> Callable[[str], bool]:
    """Of whole names, in a time that grows with them (RE2). Of what RE2 does not have, as looking
    ahead, Python's way back and forth, which nothing bounds. ValueError."""
    if _HUGE.search(pattern):
        raise ValueError(f"{pattern[:100]!r} is no regular expression: it repeats without bounds")
    try:
        return Pattern(pattern).matches
    except KafkaError:
        pass
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{pattern[:100]!r} is no regular expression: {error}") from None
    return lambda name: compiled.fullmatch(name) is not None
