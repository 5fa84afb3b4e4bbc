"""The seed that the code itself gives: fresh with each change of it, the same for the same code, so
that a run of CI can be repeated, here or there, and a failure is the change's own."""

from __future__ import annotations

import zlib
from pathlib import Path

#: What a world is made of.
PACKAGES = ("bookie", "broker", "joined", "ledger", "metadata", "runtime", "sim", "wire")


def code_seed(root: Path = Path(__file__).parent.parent) -> int:
    """0 to 2^31 - 1, of the names and contents of the packages' source files below `root`."""
    sum_so_far = 0
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            sum_so_far = zlib.crc32(name.encode() + b"\0" + path.read_bytes(), sum_so_far)
    return sum_so_far & 0x7FFF_FFFF
