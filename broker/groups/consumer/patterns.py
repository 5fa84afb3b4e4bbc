"""Patterns of members, which stand for topics (broker/regex.py), and what they may cost a turn."""

from __future__ import annotations

from broker.regex import Pattern
from wire.kafka.errors import ErrorCode, KafkaError

#: Characters. Kafka has no such bound.
LENGTH_MAX = 8192
#: Units (`Pattern.units`) of matching before others have the loop: about 1 ms. A match that may
#: take more of them is for a worker; the interpreter is not held meanwhile.
MATCHES_PER_TURN = 500
#: Of a compilation, in the same.
COMPILE_UNITS = 2_500
#: Of a character, in UTF-8.
_BYTES_MAX = 4


def pattern_of(text: str) -> Pattern:
    """KafkaError INVALID_REGULAR_EXPRESSION; to compile it takes at most about 3 ms."""
    if len(text) > LENGTH_MAX:
        message = f"a pattern of {len(text)} characters: {LENGTH_MAX} are the most"
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, message)
    return Pattern(text, _BYTES_MAX * LENGTH_MAX)
