"""CRC-32C of bytes of which a part's is known: nobody reads that part again.

A large entry is read for its checksum when it comes, and its journal's group has one over the same
bytes: they were read a second time for it, out of the memory behind the processor's caches. The
checksum of A and B behind it follows from A's, B's and B's size: A's is multiplied by x^(8 size)
modulo the polynomial (zlib's crc32_combine does so for its own), which takes less than a
microsecond in C (`_checksum.c`, where there was a compiler) and up to a hundred here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from wire.compiled import check_allowed

if TYPE_CHECKING:
    from collections.abc import Callable

#: CRC-32C's polynomial without its highest term; the lowest bit is the highest power's.
_POLYNOMIAL: Final = 0x82F63B78
_ONE: Final = 1 << 31
#: Bytes that `joined` can join.
JOINED_SIZE_MAX: Final = (1 << 48) - 1


def _times(a: int, b: int) -> int:
    """The product of two polynomials modulo CRC-32C's."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & 0xFFFFFFFF
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _squares() -> list[int]:
    """x^(2^k) for each k that a size can need."""
    powers = [1 << 30]
    while len(powers) < 3 + JOINED_SIZE_MAX.bit_length():
        powers.append(_times(powers[-1], powers[-1]))
    return powers


_SQUARES: Final = _squares()


@lru_cache(maxsize=64)
def _factor(size: int) -> int:
    """x^(8 size)."""
    factor, bit = _ONE, 3
    while size:
        if size & 1:
            factor = _times(_SQUARES[bit], factor)
        size >>= 1
        bit += 1
    return factor


def joined_pure(crc: int, behind: int, size: int) -> int:
    """As `joined`, in Python."""
    if not (0 <= size <= JOINED_SIZE_MAX and crc >> 32 == behind >> 32 == 0):
        raise ValueError(f"{crc}, {behind} and {size} bytes: no checksums that can be joined")
    return _times(_factor(size), crc) ^ behind


#: (CRC-32C of some bytes, CRC-32C of those behind them, how many those are) -> CRC-32C of all.
#: ValueError for more than JOINED_SIZE_MAX, and for numbers of more than 32 bits.
joined: Callable[[int, int, int], int]
#: From this size on it is cheaper than to read the bytes.
JOINED_SIZE_MIN: int

try:
    check_allowed()
    from wire._checksum import joined as joined
except ImportError:  # not wanted, or no compiler was there when the package was installed
    joined, JOINED_SIZE_MIN = joined_pure, 512 << 10
    IS_COMPILED = False
else:
    JOINED_SIZE_MIN = 16 << 10
    IS_COMPILED = True
