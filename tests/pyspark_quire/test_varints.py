"""Lengths of records that cannot be."""

import pytest

from pyspark_quire.varints import record_ends
from wire.kafka.errors import WireError


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xff\xff\xff\xff\x01", "more than 32 bits"),
        (b"\x02\x00\x04\x00", "cut short|end at byte"),
        (b"\x03\x00\x00", "negative length"),
        (b"\x02\x00\x00", "end at byte"),
        (b"\x80", "cut short"),
    ],
)
def test_a_length_that_cannot_be_is_told(data, words):
    with pytest.raises(WireError, match=words):
        record_ends(data, 2 if data == b"\x02\x00\x04\x00" else 1)


def test_lengths_of_one_two_and_three_bytes():
    records = [bytes(n) for n in (1, 63, 64, 8191, 8192, 70_000)]

    def length(n):
        value, out = n << 1, bytearray()
        while value >= 0x80:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes(out) + bytes([value])

    data, wanted = b"", []
    for each in records:
        data += length(len(each)) + each
        wanted.append(len(data))
    assert record_ends(data, len(records)) == wanted
