"""Patterns that clients send: regular expressions as Kafka has them (RE2), in bounded time.

RE2 never goes back over what it has read: a match takes time in proportion to the text times the
size of the compiled pattern. So what a client can make long is known before, and told as `units`.
What may take longer than UNITS_ON_LOOP, and the compilation of what is longer than SHORT_BYTES, is
for a worker thread; the interpreter is not held meanwhile.

Limits, which Kafka's RE2/J has not: a pattern of PATTERN_BYTES_MAX, and so much memory for its
program and for its automaton as MEMORY_BYTES_MAX. More is refused as if it were no pattern.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import re2

from wire.kafka.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

PATTERN_BYTES_MAX = 4_096
#: A class of characters, such as that of all letters, takes 60 us.
SHORT_BYTES = 64
MEMORY_BYTES_MAX = 256 << 10
#: A match that may take longer, in microseconds, is for a worker.
UNITS_ON_LOOP = 1_000
#: A step of the slowest way to match, for each byte and each instruction, takes 3.5 ns, and
#: twice that and more on a machine that is slow, or shares its caches.
_STEPS_PER_UNIT = 128
#: Of a call, whatever it matches.
_CALL_UNITS = 2

_OPTIONS = re2.Options()
_OPTIONS.max_mem = MEMORY_BYTES_MAX
_OPTIONS.never_capture = True
_OPTIONS.log_errors = False


class Pattern:
    """Matches whole texts."""

    __slots__ = ("_compiled", "_size", "text")

    def __init__(self, text: str, bytes_max: int = PATTERN_BYTES_MAX) -> None:
        """KafkaError INVALID_REGULAR_EXPRESSION: it is none, or too large."""
        self.text = text
        encoded = text.encode(errors="replace")
        if len(encoded) > bytes_max:
            raise _invalid(f"a pattern of {len(encoded)} bytes: {bytes_max} are the most")
        try:
            self._compiled = re2.compile(encoded, _OPTIONS)
        except re2.error as error:
            why = error.args[0]
            why = why.decode(errors="replace") if isinstance(why, bytes) else why
            raise _invalid(f"{text!r} is no regular expression: {why}") from None
        self._size: int = self._compiled.programsize

    def matches(self, text: str) -> bool:
        """Whether all of `text` matches."""
        return self._compiled.fullmatch(text.encode(errors="replace")) is not None

    def units(self, text: str) -> int:
        """How long `matches` may take, in microseconds about."""
        return _CALL_UNITS + len(text) * self._size // _STEPS_PER_UNIT


class Worker(Protocol):
    """Disk.run."""

    async def __call__(self, function: Callable[..., Any], /, *args: object) -> Any:  # noqa: ANN401
        """What the function gives, of a thread."""


async def compiled(text: str, worker: Worker) -> Pattern:
    """KafkaError as `Pattern`."""
    if len(text) <= SHORT_BYTES:
        return Pattern(text)
    pattern: Pattern = await worker(Pattern, text)
    return pattern


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, message)
