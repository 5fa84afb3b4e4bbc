"""CRC-32C of parts: in C and in Python as of all the bytes in one."""

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from wire.checksum import JOINED_SIZE_MAX, joined, joined_pure

BOTH = pytest.mark.parametrize("join", [joined, joined_pure], ids=["used", "python"])
CRC = st.integers(0, (1 << 32) - 1)
SIZE = st.integers(0, JOINED_SIZE_MAX)


@BOTH
@given(parts=st.lists(st.binary(max_size=300), max_size=6), repeated=st.integers(1, 300))
def test_parts_joined_are_the_whole(join, parts, repeated):
    crc, whole = 0, b""
    for part in parts:
        long = part * repeated
        crc = join(crc, crc32c(long), len(long))
        whole += long
    assert crc == crc32c(whole)


@given(crc=CRC, behind=CRC, size=SIZE)
def test_both_agree(crc, behind, size):
    assert joined(crc, behind, size) == joined_pure(crc, behind, size)


@BOTH
def test_the_largest(join):
    """What zeros do to a checksum, twice half of them and all at once."""
    half = JOINED_SIZE_MAX // 2
    crc = join(join(0x1234ABCD, 0, half), 0, half + 1)
    assert crc == join(0x1234ABCD, 0, JOINED_SIZE_MAX)
    assert crc not in (0, 0x1234ABCD)


BAD_CRCS = [1 << 32, 1 << 64, (1 << 64) + 5, -1, -(1 << 64)]
BAD_SIZES = [JOINED_SIZE_MAX + 1, 1 << 63, 1 << 64, 1 << 70, -1, -(1 << 63)]


@BOTH
@pytest.mark.parametrize(
    "numbers",
    [
        *((crc, 0, 1) for crc in BAD_CRCS),
        *((0, crc, 1) for crc in BAD_CRCS),
        *((0, 0, size) for size in BAD_SIZES),
    ],
)
def test_what_cannot_be_joined_is_refused(join, numbers):
    with pytest.raises(ValueError, match="no checksums that can be joined"):
        join(*numbers)


@pytest.mark.parametrize("numbers", [("1", 0, 1), (0, None, 1), (0, 0, 1.5), (0, 0), (0, 0, 1, 1)])
def test_what_is_no_number_is_refused(numbers):
    with pytest.raises(TypeError):
        joined(*numbers)
