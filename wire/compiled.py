"""Whether the modules in C may be used: what the environment's QUIRE_PURE_PYTHON says.

Three rooms have one, with the same in Python beside it: wire/kafka/records/walk.py,
wire/checksum.py and wire/kafka/plain_produce.py. They use it where it was built.
`QUIRE_PURE_PYTHON=1` makes a process do without, as where there was no compiler: so the tests run
both ways on one machine, and an operator can tell whether a fault is in C. It is read here alone,
once, when the rooms are imported.
"""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "QUIRE_PURE_PYTHON"
_MEANINGS = {"": False, "0": False, "1": True}


def is_refused_by(text: str) -> bool:
    """`text`: of the variable. ValueError if it is neither empty, 0 nor 1."""
    if text not in _MEANINGS:
        raise ValueError(f"{VARIABLE}={text}: 1 is Python alone, 0 or nothing what was compiled")
    return _MEANINGS[text]


#: Python alone was asked for.
IS_REFUSED: Final = is_refused_by(os.environ.get(VARIABLE, ""))


def check_allowed() -> None:
    """Call it before the import of a module in C. ImportError, as if that had not been built."""
    if IS_REFUSED:
        raise ImportError(f"{VARIABLE} is set")
