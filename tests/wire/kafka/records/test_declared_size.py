"""What a format says of its size is never less than what comes out of it, gzip's lies apart."""

import random
from functools import cache

import cramjam
import lz4.frame
import pytest
import zstandard

from wire.kafka.errors import WireError
from wire.kafka.records.compression import XERIAL_MAGIC, Compression, compress, decompress
from wire.kafka.records.declared_size import BLOCKS_MAX, declared_size

CODECS = list(Compression)
#: What a block of a codec may be more than what it holds, as this says it.
BLOCK = 128 << 10


@cache
def text(size):
    rng = random.Random(size)
    words = [b"%d" % rng.randrange(1000) for _ in range(size // 3 + 1)]
    return b" ".join(words)[:size]


@cache
def noise(size):
    return random.Random(size).randbytes(size)


def streamed_zstd(data):
    stream = zstandard.ZstdCompressor().compressobj()
    pieces = [stream.compress(data[n : n + 50_000]) for n in range(0, len(data), 50_000)]
    return b"".join(pieces) + stream.flush()


OTHERS = {
    "zstd streamed": (Compression.ZSTD, streamed_zstd),
    "zstd with a checksum": (
        Compression.ZSTD,
        lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
    ),
    "snappy in one block": (
        Compression.SNAPPY,
        lambda data: bytes(cramjam.snappy.compress_raw(data)),
    ),
    "lz4 with checksums": (
        Compression.LZ4,
        lambda data: lz4.frame.compress(data, block_checksum=True, content_checksum=True),
    ),
    "lz4 with a content size": (
        Compression.LZ4,
        lambda data: lz4.frame.compress(data, store_size=True, block_linked=False),
    ),
    "lz4 in blocks of 4 MiB": (
        Compression.LZ4,
        lambda data: lz4.frame.compress(data, block_size=lz4.frame.BLOCKSIZE_MAX4MB),
    ),
}
PACKERS = {
    codec.name: (codec, lambda data, codec=codec: compress(codec, data)) for codec in CODECS
} | OTHERS


@pytest.mark.parametrize("make", [bytes, text, noise])
@pytest.mark.parametrize("name", PACKERS)
@pytest.mark.parametrize("size", [1, 7, 1000, 32_768, 65_537, 131_073, 400_000, 2 << 20])
def test_what_comes_out_is_no_more_and_not_much_less(name, size, make):
    codec, pack = PACKERS[name]
    packed = pack(make(size))
    declared = declared_size(codec, packed)
    assert declared >= size
    if "4 MiB" not in name:
        assert declared <= (size + BLOCK if size <= 400_000 else 3 * size)
    assert len(decompress(codec, packed, declared)) == size


def test_where_exact_numbers_are_it_is_exact():
    for size in (1, 1000, 400_000):
        for name in ("NONE", "GZIP", "SNAPPY", "snappy in one block"):
            codec, pack = PACKERS[name]
            assert declared_size(codec, pack(text(size))) == size
    # What is stored as it is, is of its own size.
    assert declared_size(Compression.LZ4, compress(Compression.LZ4, noise(1000))) == 1000
    assert declared_size(Compression.ZSTD, compress(Compression.ZSTD, noise(1000))) == 1000
    # A short block of lz4 is not taken for a whole one.
    assert declared_size(Compression.LZ4, compress(Compression.LZ4, bytes(100))) < 5000


@pytest.mark.parametrize("codec", [Compression.SNAPPY, Compression.LZ4, Compression.ZSTD])
def test_of_many_blocks_the_first_ones_stand_for_all(codec):
    block = {Compression.SNAPPY: 32 << 10, Compression.LZ4: 64 << 10, Compression.ZSTD: 128 << 10}
    few = bytes((BLOCKS_MAX - 1) * block[codec])
    assert declared_size(codec, compress(codec, few)) == len(few)
    for make in (bytes, noise):
        many = make(4 * BLOCKS_MAX * block[codec])
        declared = declared_size(codec, compress(codec, many))
        assert 1.3 * len(many) <= declared <= 2.4 * len(many)


@pytest.mark.parametrize("codec", CODECS)
def test_nothing_that_is_sent_makes_it_fail_or_be_exceeded(codec):
    """Cut, changed and made up: no exception, and what comes out (but for gzip) is not more."""
    rng = random.Random(codec)
    whole = compress(codec, text(100_000))
    damaged = [whole[:n] for n in range(0, 64)] + [whole[: -n - 1] for n in range(20)]
    for _ in range(300):
        changed = bytearray(whole)
        changed[rng.randrange(min(len(whole), rng.choice((8, 64, len(whole)))))] = rng.randrange(
            256
        )
        damaged.append(bytes(changed))
    starts = (b"", XERIAL_MAGIC, b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")
    damaged += [start + rng.randbytes(rng.randrange(60)) for start in starts for _ in range(100)]
    for data in damaged:
        declared = declared_size(codec, data)
        assert declared >= 0
        try:
            made = decompress(codec, data, 1 << 20)
        except WireError:
            continue
        assert codec is Compression.GZIP or len(made) <= declared
