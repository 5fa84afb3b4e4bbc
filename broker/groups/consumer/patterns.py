"""Patterns as RE2 reads them: in time that is linear in the text, without lookaround and without
backreferences. Kafka's broker uses RE2/J, whose language is the same.

A pattern is matched with a whole name. What one may cost is bounded: its length, and the memory of
its program; with that, to compile it takes at most about 3 ms.
"""

from __future__ import annotations

import re2

#: Characters. Kafka has no such bound.
LENGTH_MAX = 8192
#: Of a compiled pattern and its states, in bytes.
MEMORY_MAX = 1 << 18
#: Units (`Pattern.units`) of matching before others have the loop: about 1 ms. A match that may
#: take more of them is for a worker; the interpreter is not held meanwhile.
MATCHES_PER_TURN = 500
#: Of a compilation, in the same.
COMPILE_UNITS = 2_500
#: A step of the slowest way to match, for each character and each instruction of the program, takes
#: some 4 ns. (a?b?){1000} has 6,000 of these in 12 characters.
_STEPS_PER_UNIT = 128
#: Of a call, whatever it matches.
_CALL_UNITS = 2


class PatternError(ValueError):
    """It is no regular expression, or one that is too costly."""


class Pattern:
    __slots__ = ("_compiled", "_size")

    def __init__(self, text: str) -> None:
        """PatternError."""
        if len(text) > LENGTH_MAX:
            raise PatternError(f"it is longer than {LENGTH_MAX} characters")
        options = re2.Options()
        options.max_mem = MEMORY_MAX
        options.log_errors = False
        options.never_capture = True
        try:
            self._compiled = re2.compile(text, options)
        except (re2.error, UnicodeEncodeError) as error:
            raise PatternError(_message(error)) from None
        self._size: int = self._compiled.programsize

    def units(self, name: str) -> int:
        """How long `matches` may take, in microseconds or so."""
        return _CALL_UNITS + len(name) * self._size // _STEPS_PER_UNIT

    def matches(self, name: str) -> bool:
        return self._compiled.fullmatch(name) is not None


def _message(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
