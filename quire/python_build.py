"""Whether this Python was built to be fast. As a program it says so by its exit code, for make."""

from __future__ import annotations

import sys
import sysconfig

OPTIMISED = "--enable-optimizations"


def is_optimised(configured: str | None, prefix: str | None) -> bool:
    """`configured` are the arguments of CPython's configure script, `prefix` where it was built to
    lie. Assumes that a distribution's own, below /usr, is optimised though it may not say so:
    Debian's makes the target for it itself. True where nothing is known."""
    return not configured or OPTIMISED in configured or prefix == "/usr"


def of_this_python() -> bool:
    """Reads a file of the installation at its first call, about 2 ms."""
    known = sysconfig.get_config_var
    return is_optimised(known("CONFIG_ARGS"), known("prefix"))


if __name__ == "__main__":
    sys.exit(not of_this_python())
